//! Opens the user's regular files, and waits for no FIFO.

use nix::errno::Errno;
use nix::fcntl::OFlag;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

pub fn regular(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let other = || io::Error::other("it is no regular file");
    let opened = options.custom_flags(OFlag::O_NONBLOCK.bits()).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        // A FIFO that nothing reads, or a socket.
        Some(code) if code == Errno::ENXIO as i32 => other(),
        _ => error,
    })?;
    file.metadata()?.is_file().then_some(file).ok_or_else(other)
}
