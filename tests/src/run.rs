//! How a test runs programs, as root and as ordinary users.

use crate::child;
use crate::slurm::program_beside;
use serde_json::Value;
use std::borrow::BorrowMut;
use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The ordinary user of the tests: every passwd has it, and its home does not matter.
pub const USER: &str = "nobody";
pub const OTHER_USER: &str = "daemon";
pub const PROGRAMS: [&str; 6] = [
    "mps-prologue",
    "mps-epilogue",
    "mpsd",
    "mpsctl",
    "mps-probe",
    "mps-runner",
];
pub const THREE: [&str; 3] = ["mpsd", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"];
const LONGEST: Duration = Duration::from_secs(60);

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

    /// The object on the first line: scripts read one a line.
    #[track_caller]
    pub fn json(&self) -> Value {
        let first = self.out.lines().next().unwrap_or_default();
        serde_json::from_str(first).unwrap_or_else(|why| panic!("{why}: {self:?}"))
    }
}

#[track_caller]
pub fn built(program: &str) -> PathBuf {
    let path = program_beside(program);
    path.unwrap_or_else(|why| panic!("build the workspace first: {why:#}"))
}

/// Through setpriv, so that none of our code drops the test's privileges.
pub fn as_user(user: &str, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("/usr/bin/setpriv");
    let groups = ["--regid", "nogroup", "--clear-groups", "--"];
    command.args(["--reuid", user]).args(groups).arg(program);
    command
}

/// Runs it to its end, within a minute, and until nothing holds its output open.
#[track_caller]
pub fn finish(mut command: impl BorrowMut<Command>) -> Ran {
    let ran = child::run(command.borrow_mut(), "", LONGEST);
    let ran = ran.unwrap_or_else(|why| panic!("{why:#}"));
    let is_held = ran.held_open;
    assert!(!is_held, "something holds its output open: {}", ran.story());
    Ran {
        code: ran.code,
        out: ran.stdout,
        err: ran.stderr,
        took: ran.wall,
    }
}
#[track_caller]
pub fn says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no '{word}' in {text}");
    }
}

/// Names to the runner a test, or a part of one, that this machine cannot run. It bypasses the
/// test program's capture, which hides the output of a test that passes.
pub fn skip(what: &str, why: &str) {
    let line = format!("\nskipped: {what}: {}\n", why.replace('\n', " "));
    std::io::stdout()
        .write_all(line.as_bytes())
        .expect("output");
}

#[track_caller]
pub fn chmod(path: &Path, mode: u32) {
    let set = fs::set_permissions(path, fs::Permissions::from_mode(mode));
    set.unwrap_or_else(|why| panic!("{}: {why}", path.display()));
}

#[track_caller]
pub fn script(path: &Path, body: &str) {
    let written = fs::write(path, format!("#!/bin/sh\n{body}\n"));
    written.unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    chmod(path, 0o755);
}
pub fn uid_of(user: &str) -> u32 {
    users::get_user_by_name(user).expect(user).uid()
}

pub fn prologue_args<'a>(job: &'a str, account: &'a str) -> Vec<&'a str> {
    let head = ["--scheduler", "torque", job, USER, "nogroup", "job1"];
    [&head[..], &["nodes=1:gpus=1", "batch", account]].concat()
}

pub fn epilogue_args(job: &str) -> Vec<&str> {
    let head = ["--scheduler", "torque", job, USER, "nogroup", "job1"];
    let used = ["4242", "nodes=1:gpus=1", "cput=0", "batch", "x", "0"];
    [&head[..], &used].concat()
}

pub fn prologue_on_gpu_0<'a>(job: &'a str, account: &'a str) -> Vec<&'a str> {
    [&["--gpus", "0"], &prologue_args(job, account)[..]].concat()
}
pub fn strict_epilogue_args(job: &str) -> Vec<&str> {
    [&["--strict"], &epilogue_args(job)[..]].concat()
}

/// What slurmd tells its prolog (`prolog_slurmd`) or epilog of a job.
pub fn slurm_env<'a>(job: &'a str, uid: &'a str, context: &'a str) -> [(&'a str, &'a str); 4] {
    [
        ("SLURM_JOB_ID", job),
        ("SLURM_JOB_UID", uid),
        ("SLURMD_NODENAME", "gpu001"),
        ("SLURM_SCRIPT_CONTEXT", context),
    ]
}

/// On GPU 0. Unlike Torque's, it does not delay its exit if it could not drain.
pub fn openpbs_args<'a>(job: &'a str, user: &'a str, account: &'a str) -> Vec<&'a str> {
    let options = ["--scheduler", "openpbs", "--account", account];
    [&options[..], &["--gpus", "0", job, user, "nogroup"]].concat()
}
