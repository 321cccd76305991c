//! The server under the control daemon: at most one at a time, for one user.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::unistd::{ForkResult, Gid, Uid};
use tests::double::wire;

use crate::daemon::Daemon;
use crate::start::hang;

#[derive(Debug)]
pub struct Server {
    pub pid: u32,
    pub uid: u32,
    pub connection: Option<OwnedFd>,
    pub active: bool,
}

impl Daemon {
    pub fn start_server(&mut self, uid: u32) {
        // SAFETY: this process has one thread.
        match unsafe { nix::unistd::fork() } {
            Ok(ForkResult::Parent { child }) => {
                let (pid, connection, active) = (child.as_raw() as u32, None, false);
                self.server = Some(Server {
                    pid,
                    uid,
                    connection,
                    active,
                });
            }
            Ok(ForkResult::Child) => self.become_server(uid),
            Err(why) => self.log.control(format!("Failed to fork: {why}")),
        }
    }

    fn become_server(&self, uid: u32) -> ! {
        let own = std::process::id();
        self.log
            .control(format!("Starting new server {own} for user {uid}"));
        let why = self.try_become_server(uid).desc();
        let text = format!("Failed to start server using uid {uid}, error: {why}");
        self.log.control(text);
        // SAFETY: the child of a fork leaves without running the parent's clean-up.
        unsafe { nix::libc::_exit(1) }
    }

    fn try_become_server(&self, uid: u32) -> nix::errno::Errno {
        if Uid::effective().as_raw() != uid {
            let groups = nix::unistd::setgroups(&[]);
            let group = groups.and_then(|()| nix::unistd::setgid(Gid::from_raw(uid)));
            if let Err(why) = group.and_then(|()| nix::unistd::setuid(Uid::from_raw(uid))) {
                return why;
            }
        }
        if !self.node.is.faults.server_survives_control {
            // After setuid, which clears it. Recorded: the server dies with its control daemon, no
            // matter how that dies.
            let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
        }
        let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
        let _ = nix::unistd::dup2_stdin(self.files.fifo.as_fd());
        if let Some(log) = self.log.of_servers() {
            let _ = nix::unistd::dup2_stdout(&log);
            let _ = nix::unistd::dup2_stderr(&log);
        }
        let path = self.node.dir.join("nvidia-cuda-mps-server");
        // Recorded: named as this daemon was, with a path or without.
        let own = std::env::args().next().unwrap_or_default();
        let name = Path::new(&own).with_file_name("nvidia-cuda-mps-server");
        let text = |path: &Path| CString::new(path.as_os_str().as_bytes());
        let (Ok(path), Ok(name)) = (text(&path), text(&name)) else {
            return nix::errno::Errno::EINVAL;
        };
        match nix::unistd::execv(&path, &[name]) {
            Err(why) => why,
        }
    }

    /// The daemon waits until it is ready, and does nothing else meanwhile.
    pub fn server_connected(&mut self, connection: OwnedFd, pid: u32) {
        if self.server.as_ref().is_none_or(|s| s.pid != pid) {
            return;
        }
        let settings = serde_json::to_vec(&self.settings).unwrap_or_default();
        let _ = wire::send(&connection, &settings);
        let Some(word) = wire::recv(&connection) else {
            return;
        };
        let Some(server) = self.server.as_mut() else {
            return;
        };
        server.connection = Some(connection);
        server.active = word == b"READY";
        if server.active {
            self.log.control(format!("NEW SERVER {pid}: Ready"));
            self.clients_may_retry();
        }
        if self.retry.is_none() && (self.quit.is_some() || !self.pending.is_empty()) {
            self.try_shutdown_if_wanted();
        }
    }

    /// Blocks as long as the server does.
    pub fn ask(&self, question: &str) -> Option<String> {
        let connection = self.server.as_ref()?.connection.as_ref()?;
        wire::send(connection, question.as_bytes()).ok()?;
        // Every answer begins with a sign, because an empty packet would mean the end.
        wire::recv(connection).map(|answer| String::from_utf8_lossy(&answer[1..]).into_owned())
    }

    pub fn server_ended(&mut self, pid: u32, status: i32) {
        self.log
            .control(format!("Server {pid} exited with status {status}"));
        for gpu in &self.node.cuda() {
            self.node.unregister(&gpu.uuid, pid);
        }
        let Some(server) = self.server.take_if(|s| s.pid == pid) else {
            return;
        };
        self.retry = None;
        if self.quit.is_some() {
            self.finish_quit();
        } else {
            self.serve_pending((!server.active).then_some(server.uid));
        }
    }

    pub fn hang_if_told(&self, command: &str) {
        if self.node.is.faults.hang_on.iter().any(|c| c == command) {
            hang();
        }
    }
}
