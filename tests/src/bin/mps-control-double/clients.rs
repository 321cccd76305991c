//! Clients at the control daemon: it passes them to their user's server, or lets them wait for one.

use std::os::fd::OwnedFd;

use tests::double::wire;

use crate::daemon::Daemon;

/// How often it tries a server for a waiting client (recorded: twice).
const ATTEMPTS: u32 = 2;

#[derive(Debug)]
pub struct Pending {
    connection: OwnedFd,
    pub uid: u32,
    attempts: u32,
}

impl Daemon {
    pub fn new_client(&mut self, connection: OwnedFd, pid: u32, uid: u32) {
        if self.quit.is_some() {
            return;
        }
        let client = format!("NEW CLIENT {pid} from user {uid}");
        let server = self.server.as_ref();
        if server.is_some_and(|s| s.uid == uid && s.active) {
            self.log.control(client + ": Server already exists");
            self.pass_on(&connection, pid);
            return;
        }
        let of = server.map(|s| s.uid);
        self.log
            .control(client + ": Server is not ready, push client to pending list");
        self.pending.push(Pending {
            connection,
            uid,
            attempts: 0,
        });
        match of {
            None => self.serve_pending(None),
            Some(other) if other != uid => self.try_shutdown_if_wanted(),
            Some(_) => {}
        }
    }

    fn pass_on(&self, connection: &OwnedFd, pid: u32) {
        let Some(server) = self.server.as_ref() else {
            return;
        };
        let (Some(to_server), Ok((ours, theirs))) = (&server.connection, wire::pair()) else {
            return;
        };
        if wire::send_fd(to_server, format!("NEW {pid}").as_bytes(), &ours).is_ok() {
            let names = format!("SERVER {} {}", server.pid, std::process::id());
            let _ = wire::send_fd(connection, names.as_bytes(), &theirs);
        }
    }

    pub fn clients_may_retry(&mut self) {
        let ready = self.server.as_ref().map(|s| s.uid);
        for client in self.pending.extract_if(.., |c| Some(c.uid) == ready) {
            let _ = wire::send(&client.connection, b"RETRY");
        }
    }

    /// There is no server: starts one for the client that has waited longest, and refuses clients
    /// whose tries have failed (`failed`: the user whose server has just failed to start).
    pub fn serve_pending(&mut self, failed: Option<u32>) {
        let in_vain = |c: &mut Pending| Some(c.uid) == failed && c.attempts >= ATTEMPTS;
        for client in self.pending.extract_if(.., in_vain) {
            let _ = wire::send(&client.connection, b"REFUSED");
        }
        let Some(uid) = self.pending.first().map(|c| c.uid) else {
            return;
        };
        for client in self.pending.iter_mut().filter(|c| c.uid == uid) {
            client.attempts += 1;
        }
        self.start_server(uid);
    }
}
