//! What a user can turn the vendor's own file into, with a library loaded into it or under a
//! debugger: a process whose memory map blocks every reader.

use std::fs::File;
use std::io::Result;
use std::os::fd::AsRawFd;
use std::process::ExitCode;

use nix::libc;

const VARIABLE: &str = "MPS_DOUBLE_HANGS_IN";
/// Names a directory to list into a mapping of that file. The kernel keeps the directory's lock
/// while the file system withholds the memory.
const LISTS: &str = "MPS_DOUBLE_LISTS";
/// Names a file to read into such a mapping: some file systems keep its lock meanwhile.
const READS: &str = "MPS_DOUBLE_READS";
/// Names a file to write to from such a mapping. The kernel keeps its lock, and a second writer
/// waits without regard to signals.
const WRITES: &str = "MPS_DOUBLE_WRITES";
const LENGTH: usize = 4096;

pub fn as_told() -> Option<ExitCode> {
    let place = std::env::var_os(VARIABLE)?;
    let mut names = [READS, LISTS, WRITES].into_iter();
    let goal = names.find_map(|name| Some((name, std::env::var_os(name)?)));
    let done = match goal {
        None => in_mapping(File::options().read(true).write(true).open(place)),
        Some((name, goal)) => {
            let mut options = File::options();
            options.read(name != WRITES).append(name == WRITES);
            through_mapping(name, options.open(goal), File::open(place))
        }
    };
    Some(ExitCode::from(u8::from(done.is_err())))
}

fn mapped(file: &File, access: i32, flags: i32) -> Result<*mut libc::c_void> {
    let (anywhere, fd) = (std::ptr::null_mut(), file.as_raw_fd());
    // SAFETY: a new mapping, at a place of the kernel's choice.
    let at = unsafe { libc::mmap(anywhere, LENGTH, access, flags, fd, 0) };
    match at == libc::MAP_FAILED {
        true => Err(std::io::Error::last_os_error()),
        false => Ok(at),
    }
}

fn through_mapping(name: &str, goal: Result<File>, file: Result<File>) -> Result<()> {
    let (goal, file) = (goal?, file?);
    let at = mapped(&file, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE)?;
    let fd = goal.as_raw_fd();
    // SAFETY: the mapping is as long as is said, readable and writable, and nothing refers to it.
    unsafe {
        match name {
            READS => libc::read(fd, at, LENGTH) as libc::c_long,
            WRITES => libc::write(fd, at, LENGTH) as libc::c_long,
            _ => libc::syscall(libc::SYS_getdents64, fd, at, LENGTH),
        }
    };
    Ok(())
}

/// Writes to a mapping of the file, replaces it by another mapping, and waits while the file system
/// withholds the end of the write.
fn in_mapping(file: Result<File>) -> Result<()> {
    let file = file?;
    let at = mapped(&file, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED)?;
    // SAFETY: the mapping is writable and longer than a byte.
    unsafe { at.cast::<u8>().write_volatile(1) };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: exactly the mapping made above is replaced, and nothing refers to it.
    unsafe { libc::mmap(at, LENGTH, libc::PROT_NONE, flags, -1, 0) };
    Ok(())
}
