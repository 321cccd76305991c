//! The subject under test, and daemons of it.

use std::fs;
use std::io::Write;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempDir;
use tests::double::look::{self, wait_until};
use tests::double::{Builder, NodeDouble, copy_program};
use tests::node_bed::kill;
use tests::run::chmod;

use crate::client::Client;
use tests::child::Ran;

use crate::processes::{Running, USER, command, run, spawn};

pub const PATIENCE: Duration = Duration::from_secs(10);
pub const HANGS: Duration = Duration::from_secs(1);
pub const PIPE: &str = "CUDA_MPS_PIPE_DIRECTORY";

#[derive(Clone, Debug)]
pub struct GpuFact {
    pub uuid: String,
    pub sms: u32,
}

#[derive(Debug)]
pub struct Bench {
    pub dir: TempDir,
    pub node: Option<NodeDouble>,
    pub control: PathBuf,
    pub gpus: Vec<GpuFact>,
    pub client: Vec<String>,
}

/// When dropped, it is killed with its server.
#[derive(Debug)]
pub struct Daemon {
    pub bench: Arc<Bench>,
    pub pipe: PathBuf,
    pub log: PathBuf,
    process: Option<Running>,
}

pub fn nvidia() -> bool {
    match std::env::var("MPS_SUBJECT").as_deref() {
        Ok("nvidia") => true,
        Ok("double") | Err(_) => false,
        Ok(other) => panic!("MPS_SUBJECT is 'double' or 'nvidia', not '{other}'"),
    }
}

/// The double's time depends on the machine, and is not checked.
#[track_caller]
pub fn assert_within(took: Duration, limit: Duration) {
    assert!(took < if nvidia() { limit } else { PATIENCE }, "{took:?}");
}

/// Says on the terminal, past the test runner, that something was not tried.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "contract: {text}");
}

pub fn not_verified(needs: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    say(&format!("not verified here, needs {needs}: {test}"));
}

fn directory() -> TempDir {
    // Not in /tmp: some clients get a /tmp of their own.
    let dir = TempDir::with_prefix_in("contract-", "/var/tmp").expect("/var/tmp takes a directory");
    chmod(dir.path(), 0o755);
    dir
}

impl Bench {
    pub fn new() -> Arc<Bench> {
        Bench::with(|builder| builder)
    }

    pub fn with(change: impl FnOnce(Builder) -> Builder) -> Arc<Bench> {
        match nvidia() {
            true => Arc::new(Bench::of_nvidia()),
            false => Bench::of_double(change),
        }
    }

    /// None if the machine has fewer.
    pub fn with_two_gpus() -> Option<Arc<Bench>> {
        let bench = Bench::with(|b| b.gpus(2, "NVIDIA H200"));
        if bench.gpus.len() < 2 {
            not_verified("two GPUs");
            return None;
        }
        Some(bench)
    }

    pub fn of_double(change: impl FnOnce(Builder) -> Builder) -> Arc<Bench> {
        let dir = directory();
        let builder = NodeDouble::builder().at(dir.path().join("node"));
        let node = change(builder).build().unwrap();
        let gpus = node.uuids().into_iter();
        let [client, of_node] =
            [node.client(), node.dir().to_owned()].map(|path| path.display().to_string());
        Arc::new(Bench {
            control: node.control(),
            client: vec![client, "--node".to_owned(), of_node],
            gpus: gpus.map(|uuid| GpuFact { uuid, sms: 132 }).collect(),
            node: Some(node),
            dir,
        })
    }

    fn of_nvidia() -> Bench {
        let usual = ["/usr", "/usr/local/nvidia", "/usr/local", "/opt/nvidia"];
        let usual = usual.map(|dir| Path::new(dir).join("bin/nvidia-cuda-mps-control"));
        let control = usual.into_iter().find(|path| path.exists());
        let control = control.expect("nvidia-cuda-mps-control lies in one of the usual places");
        let probe = std::env::var_os("MPS_PROBE").expect("MPS_PROBE names the program mps-probe");
        let dir = directory();
        let client = dir.path().join("mps-probe");
        copy_program(Path::new(&probe), &client).expect("MPS_PROBE can be read");
        let client = vec![client.display().to_string()];
        let mut bench = Bench {
            dir,
            node: None,
            control,
            gpus: Vec::new(),
            client,
        };
        let fact = |g: &serde_json::Value| GpuFact {
            uuid: g["uuid"].as_str().expect("a UUID").to_owned(),
            sms: g["sms"].as_u64().expect("a number") as u32,
        };
        let seen = Client::new(&bench).run();
        let gpus = seen.record()["gpus"].as_array();
        let gpus = gpus.expect("the machine has a GPU").iter();
        bench.gpus = gpus.map(fact).collect();
        bench
    }

    pub fn control(&self, arguments: &[&str], env: &[(&str, &str)]) -> Ran {
        let mut command = command(&self.control, USER, env);
        command.args(arguments);
        run(command, "", PATIENCE)
    }

    pub fn directories(self: &Arc<Self>) -> Daemon {
        let own = TempDir::with_prefix_in("d-", self.dir.path());
        let own = own.expect("it is ours").keep();
        chmod(&own, 0o755);
        let made = |name: &str| {
            let dir = own.join(name);
            fs::create_dir(&dir).expect("it is ours");
            chown(&dir, Some(USER), Some(USER)).expect("the tests run as root");
            dir
        };
        Daemon {
            bench: Arc::clone(self),
            pipe: made("pipe"),
            log: made("log"),
            process: None,
        }
    }

    pub fn daemon(self: &Arc<Self>) -> Daemon {
        self.daemon_with(&[])
    }

    pub fn daemon_with(self: &Arc<Self>, env: &[(&str, &str)]) -> Daemon {
        let mut daemon = self.directories();
        daemon.start(env);
        daemon
    }
}

impl Daemon {
    pub fn new() -> Daemon {
        Bench::new().daemon()
    }

    pub fn env(&self) -> [(&'static str, &str); 2] {
        let [pipe, log] = [&self.pipe, &self.log].map(|path| path.to_str().expect("plain names"));
        [(PIPE, pipe), ("CUDA_MPS_LOG_DIRECTORY", log)]
    }

    pub fn start(&mut self, more: &[(&str, &str)]) {
        self.start_so(more, |command| command);
    }

    pub fn start_so(
        &mut self,
        more: &[(&str, &str)],
        change: impl FnOnce(&mut Command) -> &mut Command,
    ) {
        let env = [&self.env()[..], more].concat();
        let mut command = command(&self.bench.control, USER, &env);
        change(command.arg("-f"));
        self.started(command);
    }

    /// Root starts it through this program, which must drop to the user itself.
    pub fn start_through(&mut self, wrapper: &[&str]) {
        let mut command = command(wrapper[0], 0, &self.env());
        command.args(&wrapper[1..]).arg(&self.bench.control);
        command.arg("-f");
        self.started(command);
    }

    fn started(&mut self, command: Command) {
        self.process = Some(spawn(command, ""));
        let control = self.pipe.join("control");
        let made = wait_until(PATIENCE, || control.exists());
        assert!(made && self.answers(), "no daemon: {}", self.log_text());
    }

    pub fn answers(&self) -> bool {
        let get = "get_default_active_thread_percentage";
        wait_until(PATIENCE, || self.say(get).code == Some(0))
    }

    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("a daemon").pid()
    }

    /// The daemon that started its server.
    pub fn parent_of_server(&self) -> Option<u32> {
        Some(look::process(self.server()?)?.parent)
    }

    pub fn process(&mut self) -> &mut Running {
        self.process.as_mut().expect("a daemon in the foreground")
    }

    #[track_caller]
    pub fn ends(&mut self) -> Option<i32> {
        let status = self.process().ended_within(PATIENCE);
        let status = status.unwrap_or_else(|| panic!("it stays: {}", self.log_text()));
        status.code()
    }

    pub fn say(&self, lines: &str) -> Ran {
        self.say_as(USER, lines)
    }

    pub fn say_as(&self, uid: u32, lines: &str) -> Ran {
        let command = command(&self.bench.control, uid, &self.env());
        run(command, &format!("{lines}\n"), PATIENCE)
    }

    pub fn hangs(&self, lines: &str) -> bool {
        self.begin(lines).finish(HANGS).hung()
    }

    /// Does not wait for its end.
    pub fn begin(&self, lines: &str) -> Running {
        let command = command(&self.bench.control, USER, &self.env());
        spawn(command, &format!("{lines}\n"))
    }

    pub fn log_text(&self) -> String {
        let process = self.process.as_ref();
        process.map_or(String::new(), |process| process.so_far().said())
    }

    #[track_caller]
    pub fn logs(&self, text: &str) {
        let told = wait_until(PATIENCE, || self.log_text().contains(text));
        assert!(told, "'{text}' is not in {}", self.log_text());
    }

    pub fn server(&self) -> Option<u32> {
        self.say("get_server_list").stdout.trim().parse().ok()
    }

    /// Starts a server and waits until it has logged its limits. The server must be ACTIVE as soon
    /// as the daemon's log says Ready: `mpsd` believes that line and does not ask.
    pub fn start_server(&self) -> u32 {
        self.say(&format!("start_server -uid {USER}"));
        self.logs(": Ready");
        let log = self.log_text();
        // `NEW SERVER <pid>: Ready`
        let (told, _) = log.split_once(": Ready").expect("it is in the log");
        let server = told.rsplit(' ').next().and_then(|pid| pid.parse().ok());
        let server = server.expect("the server that has just started");
        self.assert_active(server);
        self.logs("Server has started");
        server
    }

    #[track_caller]
    pub fn assert_active(&self, server: u32) {
        self.say(&format!("get_server_status {server}"))
            .answers("ACTIVE\n");
    }

    pub fn client(&self) -> Client {
        Client::new(&self.bench).env(PIPE, self.pipe.to_str().expect("plain names"))
    }

    pub fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.pipe).expect("it is ours").flatten();
        let names = entries.map(|e| e.file_name().to_string_lossy().into_owned());
        let names = std::collections::BTreeSet::from_iter(names);
        names.into_iter().collect()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let control = self.bench.control.canonicalize().unwrap();
        let ours =
            |pid: &u32| look::process(*pid).is_some_and(|p| p.uid == USER && p.exe == control);
        let Some(daemon) = self.process.as_ref().map(|own| own.pid()).filter(ours) else {
            return;
        };
        let all = look::processes().into_iter();
        let members = all.filter(|p| p.parent == daemon || p.pid == daemon);
        let members: Vec<u32> = members.map(|p| p.pid).collect();
        members.iter().for_each(|pid| kill(*pid, Signal::SIGKILL));
        wait_until(PATIENCE, || members.iter().all(|pid| !look::alive(*pid)));
    }
}
