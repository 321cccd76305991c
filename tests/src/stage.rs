//! The suite's programs installed beside a simulated node: what a test runs, and an independent look at what is left.

use crate::double::{NodeDouble, copy_program, look};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The ordinary user of the tests: in every passwd, without a home that matters.
pub const USER: &str = "nobody";
/// Another one.
pub const OTHER_USER: &str = "daemon";
/// No command of the suite may take longer than this.
const LONGEST: Duration = Duration::from_secs(60);
/// The programs that are installed.
pub const PROGRAMS: [&str; 5] = ["mps-prologue", "mps-epilogue", "mpsd", "mpsctl", "mps-probe"];

/// A simulated node with the suite installed.
#[derive(Debug)]
pub struct Stage {
    /// The node.
    pub node: NodeDouble,
    root: TempDir,
}

/// What a command did.
#[derive(Debug, Clone)]
pub struct Ran {
    /// Exit code; none when a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
    /// How long it took.
    pub took: Duration,
}

impl Stage {
    /// Installs the suite beside `node`, with `extra` lines in its configuration.
    pub fn new(node: NodeDouble, extra: &str) -> Self {
        let root = TempDir::with_prefix("stage-").expect("no temporary directory");
        let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("chmod");
        open(root.path());
        let bin = root.path().join("bin");
        fs::create_dir(&bin).expect("bin");
        open(&bin);
        for program in PROGRAMS {
            let to = bin.join(program);
            copy_program(&built(program), &to).unwrap_or_else(|e| panic!("build {program} first: {e}"));
            open(&to);
        }
        let stage = Self { node, root };
        for dir in ["run", "state"] {
            fs::create_dir(stage.path(dir)).expect("directory");
            open(&stage.path(dir));
        }
        stage.configure(extra);
        stage
    }

    /// Writes the configuration anew with `extra` lines. A PBS of this machine is none of the stage's.
    pub fn configure(&self, extra: &str) {
        let no_pbs = match extra.contains("[pbs]") {
            true => String::new(),
            false => format!("pbs.home = \"{}\"", self.path("no-pbs").display()),
        };
        let text = format!(
            "run_dir = \"{}\"\nstate_dir = \"{}\"\ncontrol = \"{}\"\nnvml = \"{}\"\n{no_pbs}\n{extra}\n",
            self.path("run").display(),
            self.path("state").display(),
            self.node.control().display(),
            self.node.nvml().display(),
        );
        fs::write(self.config(), text).expect("configuration");
    }

    /// A path below the stage's own directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// The configuration.
    pub fn config(&self) -> PathBuf {
        self.path("mpsd.toml")
    }

    /// An installed program.
    pub fn program(&self, name: &str) -> PathBuf {
        self.path("bin").join(name)
    }

    /// The directory of `job`.
    pub fn job(&self, job: &str) -> PathBuf {
        self.path("run/jobs").join(job)
    }

    /// The prologue with arguments and environment as a scheduler gives them, and nothing else.
    pub fn prologue<S: AsRef<OsStr>>(&self, args: &[S], env: &[(&str, &str)]) -> Ran {
        self.run("mps-prologue", args, env)
    }

    /// The epilogue, likewise.
    pub fn epilogue<S: AsRef<OsStr>>(&self, args: &[S], env: &[(&str, &str)]) -> Ran {
        self.run("mps-epilogue", args, env)
    }

    /// A Torque prologue for `job` of [`USER`] with account `account` and GPU 0.
    pub fn torque(&self, job: &str, account: &str) -> Ran {
        self.torque_on(job, account, "0")
    }

    /// The same with these GPUs.
    pub fn torque_on(&self, job: &str, account: &str, gpus: &str) -> Ran {
        let mut args = vec!["--gpus", gpus];
        args.extend(prologue_args(job, account));
        self.prologue(&args, &[])
    }

    /// The Torque epilogue for `job`.
    pub fn torque_end(&self, job: &str) -> Ran {
        self.epilogue(&epilogue_args(job), &[])
    }

    /// A program of ours with our configuration.
    pub fn run<S: AsRef<OsStr>>(&self, program: &str, args: &[S], env: &[(&str, &str)]) -> Ran {
        let mut command = Command::new(self.program(program));
        command
            .arg("--config")
            .arg(self.config())
            .args(args)
            .env_clear()
            .envs(env.iter().copied());
        finish(command)
    }

    /// A client of `job`'s MPS as [`USER`], attached by `mpsctl env`'s values given in `env`.
    pub fn client<S: AsRef<OsStr>>(&self, args: &[S], env: &[(String, String)]) -> Ran {
        let mut command = as_user(USER, self.node.client());
        command.arg("--node").arg(self.node.dir()).args(args).env_clear();
        command.envs(env.iter().map(|(k, v)| (k, v)));
        finish(command)
    }

    /// All that is on this node now and was not before any job: processes, directories, accounts, contexts, modes.
    /// Found by looking at `/proc`, directories and the doubles' own state, never by our own code.
    pub fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        for process in self
            .node
            .processes()
            .into_iter()
            .chain(look::processes_from(&self.path("bin")))
        {
            left.push(format!("process {process:?}"));
        }
        for dir in ["run/jobs", "run/gpus", "state/drains"] {
            for entry in fs::read_dir(self.path(dir)).into_iter().flatten().flatten() {
                left.push(format!("file {}", entry.path().display()));
            }
        }
        for (gpu, context) in self.node.contexts() {
            left.push(format!("context {context:?} on {gpu}"));
        }
        for (gpu, mode) in self.node.uuids().iter().zip(self.node.modes()) {
            if mode != "default" {
                left.push(format!("mode {mode} of {gpu}"));
            }
        }
        left.extend(self.mounts().iter().map(|at| format!("mount {}", at.display())));
        left.extend(cgroups(self.root.path()));
        left
    }

    /// What is mounted below the stage's own directories.
    pub fn mounts(&self) -> Vec<PathBuf> {
        let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        let jobs = self.path("run/jobs");
        points
            .map(PathBuf::from)
            .filter(|at| at.starts_with(&jobs))
            .collect()
    }

    /// Asserts that nothing is left, allowing the moment that the kernel and init need.
    #[track_caller]
    pub fn assert_clean(&self) {
        let end = Instant::now() + Duration::from_secs(3);
        while !self.left().is_empty() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(self.left(), Vec::<String>::new());
    }
}

/// Of a job that a failed test has left: the directory could not be removed else.
impl Drop for Stage {
    fn drop(&mut self) {
        for at in self.mounts().iter().rev() {
            let _ = nix::mount::umount2(at, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}

/// Cgroups of ours with a process that runs out of `root`, or empty ones left behind: none may be there between jobs.
fn cgroups(root: &Path) -> Vec<String> {
    let _ = root;
    let mut found = Vec::new();
    for mount in [
        "/sys/fs/cgroup",
        "/sys/fs/cgroup/unified",
        "/sys/fs/cgroup/systemd",
    ] {
        for base in ["mpsd", "system.slice/mpsd.service"] {
            let jobs = fs::read_dir(Path::new(mount).join(base))
                .into_iter()
                .flatten()
                .flatten();
            found.extend(
                jobs.filter(|e| e.path().is_dir())
                    .map(|e| e.path())
                    .filter(|p| is_of(p, root)),
            );
        }
    }
    found
        .into_iter()
        .map(|path| format!("cgroup {}", path.display()))
        .collect()
}

/// Whether the cgroup holds a process that runs out of `root`.
fn is_of(cgroup: &Path, root: &Path) -> bool {
    let procs = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    procs
        .lines()
        .any(|pid| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.starts_with(root)))
}

/// A built program of the workspace.
pub fn built(program: &str) -> PathBuf {
    let exe = std::env::current_exe().expect("own path");
    let dir = exe.ancestors().skip(1).take(2).find(|d| d.join("mpsd").is_file());
    dir.unwrap_or_else(|| panic!("no mpsd beside '{}': build the workspace first", exe.display()))
        .join(program)
}

/// `program` as an ordinary user, through setpriv: no code of ours drops the test's own privileges.
pub fn as_user(user: &str, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("/usr/bin/setpriv");
    command
        .args(["--reuid", user, "--regid", "nogroup", "--clear-groups", "--"])
        .arg(program);
    command
}

/// Runs to the end, with null stdin and a bound.
pub fn finish(mut command: Command) -> Ran {
    let began = Instant::now();
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let child = child.unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    let (done, wait) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if wait
            .recv_timeout(LONGEST)
            .is_err_and(|e| e == std::sync::mpsc::RecvTimeoutError::Timeout)
        {
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
    });
    let output: Output = child.wait_with_output().expect("wait");
    drop(done);
    watchdog.join().expect("watchdog");
    Ran {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
        took: began.elapsed(),
    }
}

/// The arguments of a Torque prologue of [`USER`].
pub fn prologue_args<'a>(job: &'a str, account: &'a str) -> Vec<&'a str> {
    vec![
        "--scheduler",
        "torque",
        job,
        USER,
        "nogroup",
        "job1",
        "nodes=1:gpus=1",
        "batch",
        account,
    ]
}

/// The arguments of its epilogue.
pub fn epilogue_args(job: &str) -> Vec<&str> {
    vec![
        "--scheduler",
        "torque",
        job,
        USER,
        "nogroup",
        "job1",
        "4242",
        "nodes=1:gpus=1",
        "cput=0",
        "batch",
        "x",
        "0",
    ]
}

/// The arguments of an OpenPBS prologue on GPU 0: unlike Torque's, it does not hold its exit back where nothing could be
/// drained.
pub fn openpbs_args<'a>(job: &'a str, user: &'a str, account: &'a str) -> [&'a str; 9] {
    [
        "--scheduler",
        "openpbs",
        "--account",
        account,
        "--gpus",
        "0",
        job,
        user,
        "nogroup",
    ]
}
