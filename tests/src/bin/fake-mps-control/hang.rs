//! What a user can make of the vendor's very file, with a library of their own loaded into it or under a debugger: a process
//! of whose memory map the kernel lets nobody read anything.

use std::path::Path;
use std::process::ExitCode;

use nix::libc;

/// Names the file to hang in.
pub const VARIABLE: &str = "FAKE_MPS_HANGS_IN";
/// Names a directory to keep the lock of.
pub const LISTS: &str = "FAKE_MPS_LISTS";
/// Names a file to read, as [`LISTS`].
pub const READS: &str = "FAKE_MPS_READS";
/// Names a file to keep the lock of.
pub const WRITES: &str = "FAKE_MPS_WRITES";
const LENGTH: usize = 4096;

/// Writes to `goal` what stands in `file`: the kernel keeps the lock of `goal` for as long as the file system withholds that, and
/// whoever writes to it waits without regard to signals.
pub fn in_writing(goal: &Path, file: &Path) -> ExitCode {
    use std::os::fd::AsRawFd;
    let goal = std::fs::File::options().append(true).open(goal);
    let (Ok(goal), Ok(file)) = (goal, std::fs::File::open(file)) else {
        return ExitCode::FAILURE;
    };
    let (access, fd) = (libc::PROT_READ, file.as_raw_fd());
    // SAFETY: a new mapping, at a place of the kernel's choice.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), LENGTH, access, libc::MAP_PRIVATE, fd, 0) };
    if at == libc::MAP_FAILED {
        return ExitCode::FAILURE;
    }
    // SAFETY: the mapping is readable and as long as is said.
    unsafe { libc::write(goal.as_raw_fd(), at, LENGTH) };
    ExitCode::SUCCESS
}

/// Lists `directory` into a mapping of `file`: the kernel keeps the directory's lock for as long as the file system withholds
/// what stands there.
pub fn in_listing(directory: &Path, file: &Path) -> ExitCode {
    // SAFETY: the mapping is writable and as long as is said, and nothing refers to it.
    into_mapping(directory, file, |fd, at| unsafe {
        libc::syscall(libc::SYS_getdents64, fd, at, LENGTH);
    })
}

/// Reads `goal` into a mapping of `file`: some file systems keep the lock of `goal` meanwhile.
pub fn in_reading(goal: &Path, file: &Path) -> ExitCode {
    // SAFETY: as above.
    into_mapping(goal, file, |fd, at| unsafe {
        libc::read(fd, at, LENGTH);
    })
}

fn into_mapping(goal: &Path, file: &Path, call: impl Fn(i32, *mut libc::c_void)) -> ExitCode {
    use std::os::fd::AsRawFd;
    let (Ok(goal), Ok(file)) = (std::fs::File::open(goal), std::fs::File::open(file)) else {
        return ExitCode::FAILURE;
    };
    let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
    // SAFETY: a new mapping, at a place of the kernel's choice.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), LENGTH, access, libc::MAP_PRIVATE, fd, 0) };
    if at == libc::MAP_FAILED {
        return ExitCode::FAILURE;
    }
    call(goal.as_raw_fd(), at);
    ExitCode::SUCCESS
}

/// Writes to a mapping of `file`, puts another mapping in its place, and waits for as long as the file system withholds the
/// end of the write.
pub fn in_mapping(file: &Path) -> ExitCode {
    use std::os::fd::AsRawFd;
    let Ok(file) = std::fs::File::options().read(true).write(true).open(file) else {
        return ExitCode::FAILURE;
    };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, at a place of the kernel's choice.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            LENGTH,
            access,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return ExitCode::FAILURE;
    }
    // SAFETY: the mapping is writable and longer than a byte.
    unsafe { at.cast::<u8>().write_volatile(1) };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: exactly the mapping made above is replaced, and nothing refers to it.
    unsafe { libc::mmap(at, LENGTH, libc::PROT_NONE, flags, -1, 0) };
    ExitCode::SUCCESS
}
