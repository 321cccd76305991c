//! The commands of a session. Recorded: nearly all refusals are texts, and the exit status stays 0.

use std::time::Duration;

use nix::unistd::Uid;

use crate::daemon::Daemon;

const STRANGER: &str =
    "Control deamon settings can only be modified by the user who started it or by the root user.";

fn insufficient(uid: u32) -> String {
    format!("Insufficient privileges for UID {uid}. {STRANGER}\n")
}

impl Daemon {
    pub fn command(&mut self, session: u64, uid: u32, line: &str) -> Vec<u8> {
        self.log.control(format!("Cmd:{line}"));
        let words: Vec<&str> = line.split_whitespace().collect();
        let name = words.first().copied().unwrap_or("");
        self.hang_if_told(name);
        if name == "quit" && Self::owner(uid) && !self.node.is.faults.refuse_quit {
            let option = words.iter().position(|w| *w == "-t");
            let patience = option.and_then(|at| words.get(at + 1)?.parse().ok());
            let patience = patience.filter(|seconds: &u64| *seconds > 0);
            self.begin_quit(session, patience.map(Duration::from_secs));
            return b"W".to_vec();
        }
        let modifies = name.starts_with("set_") || name == "terminate_client";
        let mut answer = match modifies && !Self::owner(uid) {
            true => insufficient(uid),
            false => self.answer(uid, name, &words[1.min(words.len())..]),
        };
        if let Some(other) = self.node.is.faults.answer.get(name) {
            answer = format!("{other}\n");
        }
        for line in answer.lines() {
            self.log.control(line);
        }
        if self.node.is.faults.truncate.iter().any(|c| c == name) {
            answer.truncate(answer.len() / 2);
        }
        format!("R{answer}").into_bytes()
    }

    fn owner(uid: u32) -> bool {
        uid == 0 || uid == Uid::effective().as_raw()
    }

    fn answer(&mut self, uid: u32, name: &str, words: &[&str]) -> String {
        let word = |at: usize| words.get(at).copied().unwrap_or("");
        match name {
            "quit" => "Not enough privilege to execute quit command\n".into(),
            "start_server" => self.start_command(uid, words),
            "get_server_list" => self.server.iter().map(|s| format!("{}\n", s.pid)).collect(),
            "get_server_status" if word(0).parse::<u32>().is_err() => {
                "A server PID is required\n".into()
            }
            "get_server_status" => self.of_server(word(0), "STATUS"),
            "get_client_list" => self.of_server(word(0), "CLIENTS"),
            "ps" => self.ps(words),
            "terminate_client" => self.terminate(word(0), word(1)),
            "set_default_active_thread_percentage" => {
                if !self.settings.set_threads(word(0)) {
                    let text = "Invalid percentage, expected between (0.0, 100.0]";
                    self.log.control(text);
                }
                format!("{}\n", self.settings.threads_text())
            }
            "get_default_active_thread_percentage" => format!("{}\n", self.settings.threads_text()),
            "set_default_device_pinned_mem_limit" => {
                let (device, value) = (word(0), word(1));
                self.log.control(format!("{name} {device} {value}."));
                if !value.is_empty() {
                    self.settings.set_memory(device, value);
                }
                String::new()
            }
            "get_default_device_pinned_mem_limit" => match self.settings.memory_text(word(0)) {
                Some(value) => format!("{value}\n"),
                None => {
                    let text = "No default pinned memory limit set for the device!";
                    self.log.control(text);
                    String::new()
                }
            },
            // Like C's atoi: a word that is no number is 0.
            "set_default_client_priority" => match word(0).parse::<i64>().unwrap_or(0) {
                new @ 0..=1 => {
                    self.settings.priority = new as u32;
                    String::new()
                }
                _ => "Invalid priority value - must be 0 or 1!\n".into(),
            },
            "get_default_client_priority" => format!("{}\n", self.settings.priority),
            _ => format!("Unknown command \"{name}\"\n"),
        }
    }

    fn start_command(&mut self, uid: u32, words: &[&str]) -> String {
        match words {
            [] | ["-uid"] | ["-uid", ..]
                if words.get(1).is_none_or(|of| of.parse::<u32>().is_err()) =>
            {
                "A user id (UID) is required to start a new server\n".into()
            }
            // Recorded: a user may ask for their own server, even one that cannot start.
            ["-uid", of, ..] if of.parse() != Ok(uid) && uid != 0 => insufficient(uid),
            ["-uid", of, ..] => {
                if self.server.is_none() {
                    self.start_server(of.parse().unwrap_or(uid));
                }
                String::new()
            }
            _ => "Invalid start_server cmd. Expected cmd: start_server -uid <user id>\n".into(),
        }
    }

    /// Whether a word names the present server; a word that is no number counts as 0.
    fn names_server(&self, word: &str) -> Result<u32, u32> {
        let pid = word.parse().unwrap_or(0);
        let is_there = self.server.as_ref().is_some_and(|s| s.pid == pid);
        if is_there { Ok(pid) } else { Err(pid) }
    }

    fn of_server(&mut self, word: &str, question: &str) -> String {
        match self.names_server(word) {
            Ok(_) => self.ask(question).unwrap_or_default(),
            Err(pid) => format!("Server {pid} not found\n"),
        }
    }

    fn ps(&mut self, words: &[&str]) -> String {
        if let ["-p", word, ..] = words
            && let Err(pid) = self.names_server(word)
        {
            return format!("Server {pid} not found\nServer {pid} not found\n\n");
        }
        if self.server.is_none() {
            return "Server not found\n".into();
        }
        self.ask("PS").unwrap_or_default()
    }

    fn terminate(&mut self, server: &str, client: &str) -> String {
        if let Err(pid) = self.names_server(server) {
            return format!("Server {pid} not found\nServer {pid} not found!\n1\n");
        }
        let pid: u32 = client.parse().unwrap_or(0);
        match self.ask(&format!("TERMINATE {pid}")).as_deref() {
            Some("0") => "0\n".into(),
            _ => format!("Invalid process {pid}!\n1\n"),
        }
    }
}
