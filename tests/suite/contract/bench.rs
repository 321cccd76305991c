//! The subject under test, and daemons of it.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tests::double::look::{self, wait_until};
use tests::double::{Builder, NodeDouble, Programs, copy_program};

use crate::client::Client;
use crate::processes::{Ended, Running, USER, command, run, spawn};

/// How long a command may take that is believed to answer.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// After how long a command counts as hung.
pub const HANGS: Duration = Duration::from_secs(1);

/// A GPU of the machine under test.
#[derive(Clone, Debug)]
pub struct GpuFact {
    /// Its UUID.
    pub uuid: String,
    /// Its multiprocessors.
    pub sms: u32,
}

/// The subject: NVIDIA's program, or a node of doubles.
#[derive(Debug)]
pub struct Bench {
    /// A directory that every user may search.
    pub dir: TempDir,
    /// The doubles' node, if that is the subject.
    pub node: Option<NodeDouble>,
    /// `nvidia-cuda-mps-control`.
    pub control: PathBuf,
    /// The GPUs.
    pub gpus: Vec<GpuFact>,
    /// The client program with its first arguments.
    pub client: Vec<String>,
}

/// A daemon in the foreground, with its directories. Killed with its server when dropped.
#[derive(Debug)]
pub struct Daemon<'b> {
    pub bench: &'b Bench,
    /// `CUDA_MPS_PIPE_DIRECTORY`.
    pub pipe: PathBuf,
    /// `CUDA_MPS_LOG_DIRECTORY`.
    pub log: PathBuf,
    /// The foreground process; none for a daemon in the background.
    pub process: Option<Running>,
}

/// Whether the subject is NVIDIA's program.
pub fn nvidia() -> bool {
    match std::env::var("MPS_SUBJECT").as_deref() {
        Ok("nvidia") => true,
        Ok("fake") | Err(_) => false,
        Ok(other) => panic!("MPS_SUBJECT is 'fake' or 'nvidia', not '{other}'"),
    }
}

/// How soon NVIDIA's program is there. The double's time tells of the machine alone.
#[track_caller]
pub fn assert_within(took: Duration, limit: Duration) {
    assert!(took < if nvidia() { limit } else { PATIENCE }, "{took:?}");
}

/// Says on the terminal, past the test runner, that something was not looked at.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "contract: {text}");
}

fn directory() -> TempDir {
    // Not in /tmp: some clients get a /tmp of their own.
    let dir = TempDir::with_prefix_in("contract-", "/var/tmp").expect("/var/tmp takes a directory");
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("it is ours");
    dir
}

impl Bench {
    /// The subject with whatever GPUs it has; the double has one.
    pub fn new() -> Bench {
        if nvidia() {
            Bench::of_nvidia()
        } else {
            Bench::of_double(|builder| builder)
        }
    }

    /// The subject with two GPUs; none, and a word about it, if the machine has fewer.
    pub fn with_two_gpus() -> Option<Bench> {
        let bench = if nvidia() {
            Bench::of_nvidia()
        } else {
            Bench::of_double(|b| b.gpus(2, "NVIDIA H200"))
        };
        if bench.gpus.len() < 2 {
            let test = std::thread::current().name().unwrap_or("a test").to_owned();
            say(&format!("not verified here, needs two GPUs: {test}"));
            return None;
        }
        Some(bench)
    }

    /// A node of doubles.
    pub fn of_double(change: impl FnOnce(Builder) -> Builder) -> Bench {
        let programs = Programs::of(
            env!("CARGO_BIN_EXE_fake-mps-control"),
            env!("CARGO_BIN_EXE_fake-cuda-client"),
        );
        let dir = directory();
        let builder = NodeDouble::builder()
            .programs(programs.unwrap())
            .at(dir.path().join("node"));
        let node = change(builder).build().unwrap();
        let gpus = node
            .uuids()
            .into_iter()
            .map(|uuid| GpuFact { uuid, sms: 132 })
            .collect();
        let client = [
            node.client().display().to_string(),
            "--node".into(),
            node.dir().display().to_string(),
        ];
        Bench {
            control: node.control(),
            client: client.to_vec(),
            gpus,
            node: Some(node),
            dir,
        }
    }

    fn of_nvidia() -> Bench {
        let usual = [
            "/usr/bin",
            "/usr/local/nvidia/bin",
            "/usr/local/bin",
            "/opt/nvidia/bin",
        ];
        let control = usual
            .iter()
            .map(|d| Path::new(d).join("nvidia-cuda-mps-control"))
            .find(|p| p.exists());
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
        let record = Client::new(&bench).run();
        let gpus = record.record()["gpus"]
            .as_array()
            .expect("the machine has a GPU")
            .clone();
        let fact = |g: &serde_json::Value| GpuFact {
            uuid: g["uuid"].as_str().expect("a UUID").to_owned(),
            sms: g["sms"].as_u64().expect("a number") as u32,
        };
        bench.gpus = gpus.iter().map(fact).collect();
        bench
    }

    /// Runs the control program as this user.
    pub fn control(&self, uid: u32, arguments: &[&str], env: &[(&str, &str)], input: &str) -> Ended {
        let mut command = command(&self.control, uid, env);
        command.args(arguments);
        run(command, input, self.dir.path(), PATIENCE)
    }

    /// A pair of directories for a daemon of this user.
    pub fn directories(&self) -> Daemon<'_> {
        let own = TempDir::with_prefix_in("d-", self.dir.path())
            .expect("it is ours")
            .keep();
        fs::set_permissions(&own, Permissions::from_mode(0o755)).expect("it is ours");
        let made = |name: &str| {
            let dir = own.join(name);
            fs::create_dir(&dir).expect("it is ours");
            chown(&dir, Some(USER), Some(USER)).expect("the tests run as root");
            dir
        };
        Daemon {
            bench: self,
            pipe: made("pipe"),
            log: made("log"),
            process: None,
        }
    }

    /// A daemon of [`USER`] in the foreground that answers.
    pub fn daemon(&self) -> Daemon<'_> {
        self.daemon_with(&[])
    }

    /// As [`Bench::daemon`], with more in its environment.
    pub fn daemon_with(&self, env: &[(&str, &str)]) -> Daemon<'_> {
        let mut daemon = self.directories();
        daemon.start(env);
        daemon
    }
}

impl Daemon<'_> {
    /// The two variables.
    pub fn env(&self) -> [(&'static str, &str); 2] {
        [
            (
                "CUDA_MPS_PIPE_DIRECTORY",
                self.pipe.to_str().expect("plain names"),
            ),
            ("CUDA_MPS_LOG_DIRECTORY", self.log.to_str().expect("plain names")),
        ]
    }

    /// Starts it in the foreground and waits until it answers.
    pub fn start(&mut self, more: &[(&str, &str)]) {
        self.start_in_group(USER, more);
    }

    /// As [`Daemon::start`], with these options.
    pub fn start_with(&mut self, options: &[&str]) {
        self.start_so(USER, &[], options);
    }

    /// As [`Daemon::start`], in a group of this number.
    pub fn start_in_group(&mut self, group: u32, more: &[(&str, &str)]) {
        self.start_so(group, more, &[]);
    }

    fn start_so(&mut self, group: u32, more: &[(&str, &str)], options: &[&str]) {
        let mut env = self.env().to_vec();
        env.extend(more);
        let mut command = command(&self.bench.control, USER, &env);
        command.arg("-f").args(options).gid(group);
        self.process = Some(spawn(command, "", self.bench.dir.path()));
        let control = self.pipe.join("control");
        assert!(
            wait_until(PATIENCE, || control.exists()),
            "no socket: {}",
            self.log_text()
        );
        assert!(self.answers(), "the daemon does not answer: {}", self.log_text());
    }

    /// Whether a session gets an answer.
    pub fn answers(&self) -> bool {
        wait_until(PATIENCE, || {
            self.say("get_default_active_thread_percentage").code() == 0
        })
    }

    /// The daemon's pid.
    pub fn pid(&self) -> u32 {
        match &self.process {
            Some(process) => process.pid(),
            None => {
                let file = self.pipe.join("nvidia-cuda-mps-control.pid");
                fs::read_to_string(file)
                    .unwrap_or_default()
                    .trim()
                    .parse()
                    .expect("a daemon left its pid")
            }
        }
    }

    /// The foreground process.
    pub fn process(&mut self) -> &mut Running {
        self.process.as_mut().expect("a daemon in the foreground")
    }

    /// A session of its user with these lines.
    pub fn say(&self, lines: &str) -> Ended {
        self.say_as(USER, lines)
    }

    /// A session of this user with these lines.
    pub fn say_as(&self, uid: u32, lines: &str) -> Ended {
        self.bench.control(uid, &[], &self.env(), &format!("{lines}\n"))
    }

    /// Its user's session with these lines, which is killed at the deadline.
    pub fn say_within(&self, lines: &str, limit: Duration) -> Ended {
        self.begin(lines).finish(limit)
    }

    /// Its user's session with these lines, not waited for.
    pub fn begin(&self, lines: &str) -> Running {
        spawn(
            command(&self.bench.control, USER, &self.env()),
            &format!("{lines}\n"),
            self.bench.dir.path(),
        )
    }

    /// What it and its server have logged so far.
    pub fn log_text(&self) -> String {
        self.process
            .as_ref()
            .map(|p| p.out() + &p.err())
            .unwrap_or_default()
    }

    /// Waits for a line of the log.
    pub fn logs(&self, text: &str) -> bool {
        wait_until(PATIENCE, || self.log_text().contains(text))
    }

    /// The server's pid as the daemon tells it, if there is one.
    pub fn server(&self) -> Option<u32> {
        self.say("get_server_list").out.trim().parse().ok()
    }

    /// Starts a server and waits until it is ready and has logged its limits.
    pub fn start_server(&self) -> u32 {
        self.say(&format!("start_server -uid {USER}"));
        assert!(self.logs("Server has started"), "no server: {}", self.log_text());
        let server = self.server().expect("the server that has just started");
        assert_eq!(self.say(&format!("get_server_status {server}")).out, "ACTIVE\n");
        server
    }

    /// A client program of its user in its environment.
    pub fn client(&self) -> Client<'_> {
        Client::new(self.bench).env(
            "CUDA_MPS_PIPE_DIRECTORY",
            self.pipe.to_str().expect("plain names"),
        )
    }

    /// The names in its pipe directory.
    pub fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.pipe).expect("it is ours").flatten();
        let mut names: Vec<String> = entries
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let file = self.pipe.join("nvidia-cuda-mps-control.pid");
        let named: Option<u32> = fs::read_to_string(file)
            .ok()
            .and_then(|text| text.trim().parse().ok());
        let ours = |pid: &u32| {
            look::process(*pid)
                .is_some_and(|p| p.uid == USER && p.exe == self.bench.control.canonicalize().unwrap())
        };
        let daemon = self.process.as_ref().map(Running::pid).or(named).filter(ours);
        let Some(daemon) = daemon else { return };
        let children = look::processes()
            .into_iter()
            .filter(|p| p.parent == daemon)
            .map(|p| p.pid);
        let all: Vec<u32> = children.chain([daemon]).collect();
        for pid in &all {
            let _ = kill(Pid::from_raw(*pid as i32), Signal::SIGKILL);
        }
        wait_until(PATIENCE, || all.iter().all(|pid| !look::alive(*pid)));
    }
}
