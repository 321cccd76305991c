//! The suite's programs installed beside a simulated node, and how a test runs them.

use crate::child;
use crate::double::{NodeDouble, copy_program};
use serde_json::Value;
use std::borrow::BorrowMut;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// The ordinary user of the tests: in every passwd, without a home that matters.
pub const USER: &str = "nobody";
pub const OTHER_USER: &str = "daemon";
pub const THREE: [&str; 3] = ["mpsd", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"];
/// No command of the suite may take longer than this.
const LONGEST: Duration = Duration::from_secs(60);
const PROGRAMS: [&str; 5] = ["mps-prologue", "mps-epilogue", "mpsd", "mpsctl", "mps-probe"];

#[derive(Debug)]
pub struct Stage {
    pub node: NodeDouble,
    root: TempDir,
}
#[derive(Debug, Clone)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
    pub took: Duration,
}

impl Ran {
    #[track_caller]
    pub fn ok(self) -> Self {
        self.exits(0)
    }
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }
    #[track_caller]
    pub fn prints(&self, words: impl AsRef<str>) -> &Self {
        let words = words.as_ref();
        assert!(self.out.contains(words), "'{words}' is missing: {self:?}");
        self
    }
    #[track_caller]
    pub fn complains(&self, words: impl AsRef<str>) -> &Self {
        let words = words.as_ref();
        assert!(self.err.contains(words), "'{words}' is missing: {self:?}");
        self
    }
    #[track_caller]
    pub fn lacks(&self, words: impl AsRef<str>) -> &Self {
        let words = words.as_ref();
        let found = self.out.contains(words) || self.err.contains(words);
        assert!(!found, "'{words}' is there: {self:?}");
        self
    }

    /// Asserts exit 0 and these words alone, on standard output.
    #[track_caller]
    pub fn prints_only(&self, words: &str) -> &Self {
        let ran = (self.code, self.out.as_str(), self.err.as_str());
        assert_eq!(ran, (Some(0), words, ""));
        self
    }
    #[track_caller]
    pub fn prints_nothing(&self) -> &Self {
        assert!(self.out.is_empty(), "{self:?}");
        self
    }
    #[track_caller]
    pub fn within(&self, limit: Duration) -> &Self {
        assert!(self.took < limit, "{self:?}");
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        let first = || serde_json::from_str(self.out.lines().next().unwrap_or_default());
        let whole = serde_json::from_str(&self.out).or_else(|_| first());
        whole.unwrap_or_else(|why| panic!("{why}: {self:?}"))
    }
}

impl Stage {
    pub fn new(node: NodeDouble, extra: &str) -> Self {
        let root = TempDir::with_prefix("stage-").expect("no temporary directory");
        chmod(root.path(), 0o755);
        let stage = Self { node, root };
        for dir in ["bin", "run", "state"] {
            stage.directory(dir);
        }
        for program in PROGRAMS {
            let to = stage.program(program);
            copy_program(&built(program), &to).unwrap_or_else(|e| panic!("build {program} first: {e}"));
            chmod(&to, 0o755);
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

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// A new directory below it, which everybody may list and root alone may change.
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap_or_else(|why| panic!("{name}: {why}"));
        chmod(&path, 0o755);
        path
    }
    pub fn config(&self) -> PathBuf {
        self.path("mpsd.toml")
    }
    pub fn program(&self, name: &str) -> PathBuf {
        self.path("bin").join(name)
    }
    pub fn job(&self, job: &str) -> PathBuf {
        self.path("run/jobs").join(job)
    }

    /// The prologue with arguments and environment as a scheduler gives them, and nothing else.
    pub fn prologue<S: AsRef<OsStr>>(&self, args: &[S], env: &[(&str, &str)]) -> Ran {
        self.run("mps-prologue", args, env)
    }
    pub fn epilogue<S: AsRef<OsStr>>(&self, args: &[S], env: &[(&str, &str)]) -> Ran {
        self.run("mps-epilogue", args, env)
    }

    pub fn torque(&self, job: &str, account: &str) -> Ran {
        self.torque_on(job, account, "0")
    }

    pub fn torque_on(&self, job: &str, account: &str, gpus: &str) -> Ran {
        let mut args = vec!["--gpus", gpus];
        args.extend(prologue_args(job, account));
        self.prologue(&args, &[])
    }

    /// The same, whose request is refused, with a record of that for its tasks.
    pub fn refused(&self, job: &str, account: &str) -> Ran {
        let args = [&["--record", "--gpus", "0"], &prologue_args(job, account)[..]].concat();
        self.prologue(&args, &[]).exits(1)
    }

    pub fn torque_end(&self, job: &str) -> Ran {
        self.epilogue(&epilogue_args(job), &[])
    }

    /// `mpsctl` as root, without any variable.
    pub fn mpsctl(&self, args: &[&str]) -> Ran {
        self.run("mpsctl", args, &[])
    }

    /// `mpsctl` as an ordinary user, with these variables alone.
    pub fn mpsctl_as(&self, user: &str, args: &[&str], env: &[(&str, &str)]) -> Ran {
        finish(self.mpsctl_of(user).args(args).envs(env.iter().copied()))
    }

    pub fn mpsctl_of(&self, user: &str) -> Command {
        let mut command = as_user(user, self.program("mpsctl"));
        command.arg("--config").arg(self.config()).env_clear();
        command
    }

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

    pub fn client<S: AsRef<OsStr>>(&self, args: &[S], env: &[(String, String)]) -> Ran {
        let mut command = as_user(USER, self.node.client());
        command.arg("--node").arg(self.node.dir()).args(args).env_clear();
        command.envs(env.iter().map(|(k, v)| (k, v)));
        finish(command)
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
}

/// Of a job that a failed test has left: the directory could not be removed else.
impl Drop for Stage {
    fn drop(&mut self) {
        for at in self.mounts().iter().rev() {
            let _ = nix::mount::umount2(at, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}

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

/// Runs to the end, within a minute, and until nothing holds its output open.
#[track_caller]
pub fn finish(mut command: impl BorrowMut<Command>) -> Ran {
    let ran = child::run(command.borrow_mut(), "", LONGEST);
    let ran = ran.unwrap_or_else(|why| panic!("{why:#}"));
    assert!(!ran.held_open, "something holds its output open: {}", ran.story());
    Ran {
        code: ran.code,
        out: ran.stdout,
        err: ran.stderr,
        took: ran.wall,
    }
}
#[track_caller]
pub fn chmod(path: &Path, mode: u32) {
    let set = fs::set_permissions(path, fs::Permissions::from_mode(mode));
    set.unwrap_or_else(|why| panic!("{}: {why}", path.display()));
}

#[track_caller]
pub fn script(path: &Path, body: &str) {
    fs::write(path, format!("#!/bin/sh\n{body}\n")).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    chmod(path, 0o755);
}
pub fn uid_of(user: &str) -> u32 {
    let found = nix::unistd::User::from_name(user).expect("users");
    found.expect(user).uid.as_raw()
}

pub fn prologue_args<'a>(job: &'a str, account: &'a str) -> Vec<&'a str> {
    let head = ["--scheduler", "torque", job, USER, "nogroup", "job1"];
    [&head[..], &["nodes=1:gpus=1", "batch", account]].concat()
}
pub fn epilogue_args(job: &str) -> Vec<&str> {
    let head = ["--scheduler", "torque", job, USER, "nogroup", "job1"];
    [
        &head[..],
        &["4242", "nodes=1:gpus=1", "cput=0", "batch", "x", "0"],
    ]
    .concat()
}

/// The arguments of an OpenPBS prologue on GPU 0. Unlike Torque's, it does not hold its exit back if it could not drain.
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
