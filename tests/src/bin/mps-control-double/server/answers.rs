//! The server's answers to its control daemon.

use std::thread::sleep;
use std::time::Duration;

use tests::double::wire;
use tests::double::wire::{CudaError, Reply};

use super::Server;

impl Server {
    pub(super) fn control_spoke(&mut self) -> bool {
        let Some((packet, passed)) = wire::recv_fd(&self.control) else {
            if self.node.is.faults.server_survives_control {
                // The control daemon is gone. A pair that never speaks replaces the connection.
                if let Ok((ours, theirs)) = wire::pair() {
                    self.control = ours;
                    std::mem::forget(theirs);
                }
                return true;
            }
            return false;
        };
        let text = String::from_utf8_lossy(&packet).into_owned();
        let words: Vec<&str> = text.split_whitespace().collect();
        let answer = match (words.as_slice(), passed) {
            (["NEW", pid], Some(connection)) => {
                self.take_client(pid.parse().unwrap_or(0), connection);
                return true;
            }
            (["SHUTDOWN"], _) => return self.shutdown(),
            (["TERMINATE", pid], _) => self.terminate(pid.parse().unwrap_or(0)),
            (["STATUS"], _) => format!("{}\n", self.status()),
            (["CLIENTS"], _) => self.attached().map(|(pid, _)| format!("{pid}\n")).collect(),
            (["PS"], _) => self.ps(),
            _ => String::new(),
        };
        let _ = wire::send(&self.control, format!("={answer}").as_bytes());
        true
    }

    fn status(&self) -> &'static str {
        match self.node.is.faults.server.as_str() {
            "initializing" => "INITIALIZING",
            "fault-state" => "FAULT",
            _ if self.fatal == super::fatal::Fatal::Handling => "FAULT",
            _ => "ACTIVE",
        }
    }

    pub(super) fn attached(&self) -> impl Iterator<Item = (u32, &super::Client)> {
        let attached = self.clients.iter().filter(|c| !c.granted.is_empty());
        attached.map(|c| (c.pid, c))
    }

    fn shutdown(&self) -> bool {
        // A thread for each program and one for each of its contexts.
        let busy: usize = self.clients.iter().map(|c| 1 + c.contexts()).sum();
        self.log.server("Server has been notified to shutdown");
        if busy > 0 {
            let text = format!("Server was unable to shutdown due to {busy} active clients");
            self.log.server(text);
            let _ = wire::send(&self.control, format!("=BUSY {busy}").as_bytes());
            return true;
        }
        let _ = wire::send(&self.control, b"=BYE");
        self.log.server("Waiting for current clients to finish");
        self.log.server("Exiting");
        sleep(Duration::from_millis(self.node.is.times.server_exit));
        false
    }

    fn terminate(&mut self, pid: u32) -> String {
        let its = |c: &super::Client| c.pid == pid && !c.granted.is_empty();
        let Some(at) = self.clients.iter().position(its) else {
            return "1".into();
        };
        let client = format!("client {{PID: {pid}, Context ID: 1}}");
        self.log
            .server(format!("MPS server requesting {client} to exit"));
        let client = self.clients.remove(at);
        let told = serde_json::to_vec(&Reply::Failed(CudaError::of(810))).unwrap_or_default();
        let _ = wire::send(&client.connection, &told);
        self.forget(&client);
        self.log.server("Client termination succeeded.");
        self.log.server("Client termination succeeded.");
        // Recorded: these appear when its process ends.
        self.log_ended(&client);
        sleep(Duration::from_millis(8));
        "0".into()
    }

    fn ps(&self) -> String {
        let row = |[pid, id, server, device, namespace, command]: [&str; 6]| {
            format!("{pid:<10}{id:<10}{server:<15}{device:<26}{namespace:<15}{command:<15}\n")
        };
        let server = std::process::id().to_string();
        let mut text = String::new();
        for (pid, client) in self.attached() {
            // Recorded: the UUID is cut after its third group.
            let uuid: String = client.device().chars().take(22).collect();
            let (pid, id, namespace) = (pid.to_string(), client.id.to_string(), namespace(pid));
            text += &row([&pid, &id, &server, &uuid, &namespace, &client.command]);
        }
        if text.is_empty() {
            return text;
        }
        row(["PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"]) + &text
    }
}

fn namespace(pid: u32) -> String {
    let link = std::fs::read_link(format!("/proc/{pid}/ns/pid")).unwrap_or_default();
    let link = link.to_string_lossy();
    link.chars().filter(char::is_ascii_digit).collect()
}
