//! The control daemon has one thread, so every exchange with a server or a newcomer blocks it
//! (recorded: a stopped server, or a client that connects and says nothing, hangs every command).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use tests::double::node::Node;
use tests::double::wire;

use crate::clients::Pending;
use crate::log::Log;
use crate::quit::{Quit, Retry};
use crate::servers::Server;
use crate::settings::Settings;
use crate::start::Files;

#[derive(Debug)]
pub struct Session {
    pub connection: OwnedFd,
    pub uid: u32,
    pub id: u64,
}

#[derive(Debug)]
pub struct Daemon {
    pub node: Node,
    pub files: Files,
    pub log: Log,
    pub settings: Settings,
    pub server: Option<Server>,
    pub pending: Vec<Pending>,
    pub sessions: Vec<Session>,
    pub quit: Option<Quit>,
    pub retry: Option<Retry>,
    pub ended: Option<u8>,
    pub server_failed: bool,
    last_session: u64,
}

impl Daemon {
    pub fn new(node: Node, files: Files, log: Log) -> Daemon {
        Daemon {
            node,
            files,
            log,
            settings: Settings::default(),
            server: None,
            pending: Vec::new(),
            sessions: Vec::new(),
            quit: None,
            retry: None,
            ended: None,
            server_failed: false,
            last_session: 0,
        }
    }

    pub fn run(mut self) -> u8 {
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGCHLD);
        let children = mask.thread_block().and_then(|()| SignalFd::new(&mask));
        let Ok(children) = children else { return 1 };
        while self.ended.is_none() {
            let ready = self.wait(&children);
            if ready[0] {
                let _ = children.read_signal();
                self.reap();
            }
            self.timers();
            for (index, socket) in [(1, false), (2, true)] {
                if ready[index] && self.ended.is_none() {
                    self.accept(socket);
                }
            }
            let sessions = self.sessions.iter().zip(&ready[3..]);
            let talking: Vec<u64> = sessions.filter(|(_, r)| **r).map(|(s, _)| s.id).collect();
            for id in talking {
                self.session(id);
            }
        }
        let status = self.ended.unwrap_or(1);
        self.log.control(format!("Exit with status {status}"));
        let asked = self.quit.as_ref().map(|q| q.session);
        for session in self.sessions.iter().filter(|s| Some(s.id) == asked) {
            let _ = wire::send(&session.connection, format!("Q{status}").as_bytes());
        }
        status
    }

    fn wait(&self, children: &SignalFd) -> Vec<bool> {
        let sockets = [&self.files.control, &self.files.privileged].map(AsFd::as_fd);
        let own = std::iter::once(children.as_fd()).chain(sockets);
        let sessions = self.sessions.iter().map(|s| s.connection.as_fd());
        let timeout = self.next_timer().map_or(PollTimeout::NONE, |at| {
            let left = at.saturating_duration_since(Instant::now()).as_millis() as u64 + 1;
            PollTimeout::try_from(left.min(60_000) as i32).unwrap_or(PollTimeout::ZERO)
        });
        readable(own.chain(sessions), timeout)
    }

    fn next_timer(&self) -> Option<Instant> {
        let retry = self.retry.as_ref().map(|r| r.at);
        let deadline = self.quit.as_ref().and_then(|q| q.deadline);
        [retry, deadline].into_iter().flatten().min()
    }

    fn reap(&mut self) {
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, status)) => {
                    self.server_failed |= status != 0;
                    self.server_ended(pid.as_raw() as u32, status);
                }
                Ok(WaitStatus::Signaled(pid, _, _)) => self.server_ended(pid.as_raw() as u32, 0),
                Ok(WaitStatus::StillAlive) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }

    fn accept(&mut self, privileged: bool) {
        let files = &self.files;
        let listener = match privileged {
            true => &files.privileged,
            false => &files.control,
        };
        let Ok(connection) = wire::accept(listener) else {
            return;
        };
        self.log.control("Accepting connection...");
        if self.quit.is_some() {
            // Recorded: while it quits, it serves only old sessions.
            return;
        }
        let hello = wire::recv(&connection).unwrap_or_default();
        let Ok((pid, uid)) = wire::peer(&connection) else {
            return;
        };
        match hello.as_slice() {
            b"UI" => {
                self.log.control("NEW UI");
                self.last_session += 1;
                let id = self.last_session;
                let session = Session {
                    connection,
                    uid,
                    id,
                };
                self.sessions.push(session);
            }
            b"VERSION" => self.log.control("User did not send valid credentials"),
            b"CLIENT" => self.new_client(connection, pid, uid),
            b"SERVER" => self.server_connected(connection, pid),
            _ => {
                let text = "Unable to read new connection type information";
                self.log.control(text);
            }
        }
    }

    fn session(&mut self, id: u64) {
        let Some(at) = self.sessions.iter().position(|s| s.id == id) else {
            return;
        };
        let Some(packet) = wire::recv(&self.sessions[at].connection) else {
            self.log.control("UI closed");
            self.sessions.remove(at);
            return;
        };
        let line = String::from_utf8_lossy(&packet[1..]);
        let answer = self.command(id, self.sessions[at].uid, &line);
        let _ = wire::send(&self.sessions[at].connection, &answer);
    }
}

pub fn readable<'a>(fds: impl Iterator<Item = BorrowedFd<'a>>, timeout: PollTimeout) -> Vec<bool> {
    let mut fds: Vec<PollFd> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    let _ = poll(&mut fds, timeout);
    fds.iter().map(|fd| fd.any().unwrap_or(false)).collect()
}
