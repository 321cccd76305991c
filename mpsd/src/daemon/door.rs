//! The socket through which the job's owner asks its `mpsd` for other limits, in the first daemon's
//! log directory, which is the owner's (0700). One line of JSON each way. The answer is the user's
//! word.

use super::session;
use crate::job::spec::Unready;
use mpsd_core::record::{ClientLimits, Daemon};
use mpsd_sys::deadline::Deadline;
use mpsd_sys::descriptors::read_line;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

const NAME: &str = "mpsd.socket";
const LONGEST: usize = 64 * 1024;
const PATIENCE: Duration = Duration::from_millis(300);

/// Longest wait for limits to be set, and to be restored if that fails.
pub const TIME: Duration = Duration::from_secs(9);

pub type Answer = Result<Vec<ClientLimits>, Unready>;

#[derive(Debug)]
pub struct Door(UnixListener);

impl Door {
    pub fn open(log: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(log.join(NAME))?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// Takes the next caller, root or our own user, and its request; `None`: there is none, or the
    /// request makes no sense.
    pub fn take(&self) -> Option<(UnixStream, ClientLimits)> {
        let (stream, _) = self.0.accept().ok()?;
        let peer = getsockopt(&stream, PeerCredentials).ok()?;
        if ![geteuid().as_raw(), 0].contains(&peer.uid()) {
            return None;
        }
        let line = read_line(stream.as_fd(), Deadline::after(PATIENCE), LONGEST).ok()??;
        Some((stream, serde_json::from_slice(&line).ok()?))
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

pub fn send(mut stream: &UnixStream, what: &impl serde::Serialize) -> io::Result<()> {
    let line = serde_json::to_string(what)?;
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all((line + "\n").as_bytes())
}

/// Asks the `mpsd` of a job with these daemons to set `wanted`, which may be empty. Waits `limit`
/// at most.
pub fn ask(daemons: &[Daemon], wanted: &ClientLimits, limit: Duration) -> Answer {
    let gone = |why: &dyn std::fmt::Display| {
        Unready::Failed(format!("the job's mpsd cannot be asked: {why}"))
    };
    let first = daemons.first().ok_or_else(|| gone(&"it has no daemon"))?;
    let stream = session::connect(&first.log.join(NAME)).map(UnixStream::from);
    let stream = stream.map_err(|errno| gone(&errno.desc()))?;
    send(&stream, wanted).map_err(|error| gone(&error))?;
    let line = read_line(stream.as_fd(), Deadline::after(limit), LONGEST);
    let line = line.map_err(|errno| gone(&errno.desc()))?;
    let line = line.ok_or_else(|| gone(&"it has hung up"))?;
    let answer: Answer = serde_json::from_slice(&line).map_err(|error| gone(&error))?;
    answer.and_then(|limits| match limits.len() == daemons.len() {
        true => Ok(limits),
        false => Err(gone(&"its answer is of another job")),
    })
}

/// The pid of the `mpsd` that listens for a job with these daemons.
pub fn owner(daemons: &[Daemon]) -> Option<i32> {
    let stream = session::connect(&daemons.first()?.log.join(NAME)).ok()?;
    getsockopt(&stream, PeerCredentials)
        .ok()
        .map(|peer| peer.pid())
}

/// The daemons with the limits that they should have now, by the job's `mpsd`; unchanged if it does
/// not answer.
pub fn now(daemons: &[Daemon]) -> Vec<Daemon> {
    let said = ask(daemons, &ClientLimits::default(), 2 * PATIENCE);
    let now = |limits: Vec<ClientLimits>| {
        let both = daemons.iter().zip(limits);
        both.map(|(daemon, limits)| daemon.with(&limits)).collect()
    };
    said.map_or_else(|_| daemons.to_vec(), now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
    };
    use std::os::fd::AsRawFd as _;
    use std::sync::mpsc::channel;

    /// The directory's mode keeps others out. A user who opens it does not let them set limits.
    #[test]
    fn only_the_jobs_user_and_root_are_heard() {
        use std::os::unix::fs::PermissionsExt as _;
        const STRANGER: u32 = 54_321;
        let log = tempfile::tempdir().unwrap();
        let door = Door::open(log.path()).unwrap();
        let path = log.path().join(NAME);
        for open in [log.path(), &path] {
            std::fs::set_permissions(open, std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        let knocks_as = |uid: u32| {
            std::thread::scope(|scope| {
                let knock = || {
                    let uid = rustix::process::Uid::from_raw(uid);
                    rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
                    let stream = UnixStream::connect(&path).unwrap();
                    send(&stream, &ClientLimits::default()).unwrap();
                    stream
                };
                scope.spawn(knock).join().unwrap()
            })
        };
        let stranger = knocks_as(STRANGER);
        assert!(door.take().is_none());
        let own = knocks_as(0);
        assert!(door.take().is_some());
        drop((stranger, own));
    }

    /// A process of the user may be in `mpsd`'s place, and a connection to a full backlog waits for
    /// ever.
    #[test]
    fn a_full_backlog_blocks_no_caller() {
        let log = tempfile::tempdir().unwrap();
        let path = log.path().join(NAME);
        let own = socket(
            AddressFamily::Unix,
            SockType::Stream,
            SockFlag::empty(),
            None,
        )
        .unwrap();
        bind(own.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        listen(&own, Backlog::new(1).unwrap()).unwrap();
        let waiting: Vec<_> = std::iter::from_fn(|| session::connect(&path).ok()).collect();
        assert!(!waiting.is_empty());
        let daemon = Daemon {
            log: log.path().to_owned(),
            ..Daemon::default()
        };
        let (tell, told) = channel();
        std::thread::spawn(move || tell.send(ask(&[daemon], &ClientLimits::default(), TIME)));
        let answer = told.recv_timeout(Duration::from_secs(5));
        let answer = answer.unwrap().unwrap_err().to_string();
        assert!(answer.contains("mpsd cannot be asked: "), "{answer}");
    }
}
