//! Checks that a control daemon listens. A CUDA program without one runs outside MPS
//! (docs/facts/mps-control.md#clients).

use super::environment::{Change, PIPE_DIRECTORY};
use super::failure::Undetermined;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

const SOCKET: &str = "control";

/// Fails if no control daemon listens in the pipe directory that `changes` set. An error of the
/// check itself proves nothing. Call it only as the job's user, who can replace what lies there.
pub fn expect(changes: &[Change]) -> Result<(), Undetermined> {
    let pipe = changes.iter().find(|change| change.name == PIPE_DIRECTORY);
    let Some(pipe) = pipe.and_then(|change| change.value.as_deref()) else {
        return Ok(());
    };
    let path = Path::new(pipe);
    let of_root = || path.symlink_metadata().is_ok_and(|about| about.uid() == 0);
    match missing(path) {
        None => Ok(()),
        // Root's own directory, which the user's mount should cover.
        Some(Errno::EACCES) if of_root() => {
            let what = format!("this process does not see '{pipe}'");
            let why = "its mounts are older than the job's MPS, and it would run outside MPS; use a container that begins later";
            Err(Undetermined::new(what, why))
        }
        Some(errno) => Err(ended(&format!("its socket in '{pipe}': {}", errno.desc()))),
    }
}

/// The failure of a task if its control daemon has ended; `seen`: what shows it.
pub fn ended(seen: &str) -> Undetermined {
    let why =
        format!("it has ended, and this would run outside MPS ({seen}); submit the job again");
    Undetermined::new("the job's control daemon", why)
}

/// Why a CUDA program finds no daemon in `pipe`; `None`: one listens, or it is not known.
pub fn missing(pipe: &Path) -> Option<Errno> {
    use Errno::{EACCES, ECONNREFUSED, ENOENT, ENOTDIR};
    let errno = probe(&pipe.join(SOCKET)).err();
    errno.filter(|errno| matches!(errno, ECONNREFUSED | ENOENT | ENOTDIR | EACCES))
}

/// EPROTOTYPE: a process holds the stream socket open (Linux: `unix_find_bsd`).
fn probe(path: &Path) -> nix::Result<()> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let own = socket(AddressFamily::Unix, SockType::Datagram, flags, None)?;
    connect(own.as_raw_fd(), &UnixAddr::new(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::sockopt::ReceiveTimeout;
    use nix::sys::socket::{Backlog, bind, listen, setsockopt};
    use nix::sys::time::{TimeVal, TimeValLike as _};
    use nix::unistd::{Uid, setfsuid};
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::PermissionsExt as _;

    fn listener(path: &Path, kind: SockType) -> OwnedFd {
        let own = socket(AddressFamily::Unix, kind, SockFlag::empty(), None).unwrap();
        bind(own.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
        listen(&own, Backlog::new(1).unwrap()).unwrap();
        own
    }

    fn of(pipe: &Path) -> Change {
        Change::set(PIPE_DIRECTORY, pipe.display().to_string())
    }

    #[test]
    fn a_daemon_listens_until_it_has_gone_whether_its_socket_stays_or_not() {
        for kind in [SockType::Stream, SockType::SeqPacket] {
            let pipe = tempfile::tempdir().unwrap();
            assert_eq!(missing(pipe.path()), Some(Errno::ENOENT));
            let own = listener(&pipe.path().join(SOCKET), kind);
            assert_eq!(missing(pipe.path()), None);
            assert_eq!(expect(&[of(pipe.path())]), Ok(()));
            // Nothing waits in its backlog: the daemon has heard nothing.
            setsockopt(&own, ReceiveTimeout, &TimeVal::milliseconds(50)).unwrap();
            let heard = nix::sys::socket::accept(own.as_raw_fd());
            assert_eq!(heard, Err(Errno::EAGAIN));
            drop(own);
            assert_eq!(missing(pipe.path()), Some(Errno::ECONNREFUSED));
            let line = expect(&[of(pipe.path())]).unwrap_err().to_string();
            assert!(line.contains(&pipe.path().display().to_string()), "{line}");
        }
    }

    /// As in a container that began before root covered the directory with the job's own.
    #[test]
    fn roots_own_directory_is_no_daemons() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
        let pipe = dir.path().join("pipe");
        std::fs::create_dir(&pipe).unwrap();
        std::fs::set_permissions(&pipe, std::fs::Permissions::from_mode(0o700)).unwrap();
        // This thread alone loses root's access to files.
        let root = setfsuid(Uid::from_raw(54_321));
        let found = (missing(&pipe), expect(&[of(&pipe)]));
        setfsuid(root);
        assert_eq!(found.0, Some(Errno::EACCES));
        let line = found.1.unwrap_err().to_string();
        let why = "its mounts are older than the job's MPS";
        assert!(line.contains(why), "{line}");
    }

    #[test]
    fn no_pipe_directory_and_a_path_that_no_socket_can_have_prove_nothing() {
        assert_eq!(expect(&[]), Ok(()));
        assert_eq!(expect(&[Change::unset(PIPE_DIRECTORY)]), Ok(()));
        assert_eq!(missing(Path::new(&format!("/{}", "x".repeat(200)))), None);
    }
}
