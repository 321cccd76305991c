//! Whether a control daemon listens where a job's task looks for it. A CUDA program that finds none runs outside MPS and says
//! nothing (docs/facts/mps-control.md#clients).

use super::environment::{Change, PIPE_DIRECTORY};
use super::failure::Undetermined;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// What NVIDIA's daemon makes in its pipe directory.
const SOCKET: &str = "control";

/// Checks that the control daemon to which `changes` send a task listens. Only as the job's user, who can replace what lies in
/// the pipe directory.
///
/// # Errors
/// No daemon listens there. A look that fails for another cause proves nothing.
pub fn expect(changes: &[Change]) -> Result<(), Undetermined> {
    let pipe = changes.iter().find(|change| change.name == PIPE_DIRECTORY);
    let Some(pipe) = pipe.and_then(|change| change.value.as_deref()) else {
        return Ok(());
    };
    match missing(Path::new(pipe)) {
        None => Ok(()),
        Some(Errno::EACCES) if is_covered(Path::new(pipe)) => {
            let why = "its mounts are older than the job's MPS, and it would run outside MPS; use a container that begins later";
            Err(Undetermined::new(
                format!("this process does not see '{pipe}'"),
                why,
            ))
        }
        Some(errno) => Err(ended(&format!("its socket in '{pipe}': {}", errno.desc()))),
    }
}

/// Whether root's directory stands there, over which the user's is mounted where that is seen.
fn is_covered(pipe: &Path) -> bool {
    pipe.symlink_metadata().is_ok_and(|about| about.uid() == 0)
}

/// The failure of a task whose control daemon has ended; `seen`: what shows it.
pub fn ended(seen: &str) -> Undetermined {
    let why = format!("it has ended, and this would run outside MPS ({seen}); submit the job again");
    Undetermined::new("the job's control daemon", why)
}

/// Why a CUDA program would find no control daemon in `pipe`; `None`: one listens, or that cannot be told.
pub fn missing(pipe: &Path) -> Option<Errno> {
    let gone = [Errno::ECONNREFUSED, Errno::ENOENT, Errno::ENOTDIR, Errno::EACCES];
    look(&pipe.join(SOCKET))
        .err()
        .filter(|errno| gone.contains(errno))
}

/// Asks the kernel alone. The daemon's socket takes streams: a datagram socket is turned away (EPROTOTYPE) before the daemon hears
/// of it, but only while a process holds the daemon's socket open (Linux: `unix_find_bsd`).
fn look(path: &Path) -> nix::Result<()> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let own = socket(AddressFamily::Unix, SockType::Datagram, flags, None)?;
    connect(own.as_raw_fd(), &UnixAddr::new(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{Backlog, bind, listen};
    use std::os::fd::OwnedFd;

    fn listener(path: &Path, kind: SockType) -> OwnedFd {
        let own = socket(AddressFamily::Unix, kind, SockFlag::empty(), None).unwrap();
        bind(own.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
        listen(&own, Backlog::new(1).unwrap()).unwrap();
        own
    }

    #[test]
    fn a_daemon_listens_until_it_has_gone_whether_its_socket_stays_or_not() {
        for kind in [SockType::Stream, SockType::SeqPacket] {
            let pipe = tempfile::tempdir().unwrap();
            assert_eq!(missing(pipe.path()), Some(Errno::ENOENT));
            let own = listener(&pipe.path().join(SOCKET), kind);
            assert_eq!(missing(pipe.path()), None);
            let of = |value: &Path| Change {
                name: PIPE_DIRECTORY,
                value: Some(value.display().to_string()),
            };
            assert_eq!(expect(&[of(pipe.path())]), Ok(()));
            // Nothing waits in its backlog: the daemon has heard nothing.
            nix::sys::socket::setsockopt(&own, nix::sys::socket::sockopt::ReceiveTimeout, &short()).unwrap();
            assert_eq!(nix::sys::socket::accept(own.as_raw_fd()), Err(Errno::EAGAIN));
            drop(own);
            assert_eq!(missing(pipe.path()), Some(Errno::ECONNREFUSED));
            let line = expect(&[of(pipe.path())]).unwrap_err().to_string();
            assert!(line.contains(&pipe.path().display().to_string()), "{line}");
        }
    }

    fn short() -> nix::sys::time::TimeVal {
        nix::sys::time::TimeValLike::milliseconds(50)
    }

    #[test]
    fn a_task_that_is_sent_to_no_daemon_is_not_stopped() {
        assert_eq!(expect(&[]), Ok(()));
        let unset = Change {
            name: PIPE_DIRECTORY,
            value: None,
        };
        assert_eq!(expect(&[unset]), Ok(()));
    }

    /// What it proves is the daemon's end, and not this process's own want.
    #[test]
    fn a_path_that_no_socket_can_have_proves_nothing() {
        assert_eq!(missing(Path::new(&format!("/{}", "x".repeat(200)))), None);
    }
}
