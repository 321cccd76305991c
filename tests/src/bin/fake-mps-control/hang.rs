//! What a user can make of the vendor's very file, with a library of their own loaded into it or under a debugger: a process
//! of whose memory map the kernel lets nobody read anything.

use std::path::Path;
use std::process::ExitCode;

use nix::libc;

/// Names the file to hang in.
pub const VARIABLE: &str = "FAKE_MPS_HANGS_IN";
const LENGTH: usize = 4096;

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
