//! Looks at processes by /proc only: the tested programs' own word does not count.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

#[derive(Clone, Debug)]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
    /// Start time in clock ticks since boot: with the pid, the process's identity.
    pub start: u64,
    pub uid: u32,
    pub state: char,
    /// Name of the program file (`comm`, at most 15 bytes).
    pub name: String,
    /// Its executable; empty for a zombie.
    pub exe: PathBuf,
    /// Its command line; empty in state `D`.
    pub args: Vec<String>,
}

impl Process {
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pid, parent, uid, state) = (self.pid, self.parent, self.uid, self.state);
        write!(f, "pid {pid} (parent {parent}, uid {uid}, state {state}) ")?;
        match self.args.is_empty() {
            true => write!(f, "[{}]", self.name),
            false => f.write_str(&self.args.join(" ")),
        }
    }
}

pub fn process(pid: u32) -> Option<Process> {
    let dir = PathBuf::from(format!("/proc/{pid}"));
    let stat = fs::read_to_string(dir.join("stat")).ok()?;
    // The name is in parentheses and may contain anything, blanks and parentheses included.
    let (head, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let state = fields.first()?.chars().next()?;
    // Reading the command line takes a lock that a process waiting in the kernel may hold.
    let args = match state {
        'D' => Vec::new(),
        _ => fs::read(dir.join("cmdline")).unwrap_or_default(),
    };
    let args = args.split(|b| *b == 0).filter(|a| !a.is_empty());
    let args = args.map(|a| String::from_utf8_lossy(a).into_owned());
    let status = fs::read_to_string(dir.join("status")).ok()?;
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    Some(Process {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        start: fields.get(19)?.parse().ok()?,
        uid: uids.split_whitespace().nth(1)?.parse().ok()?,
        state,
        name: head.split_once('(')?.1.to_owned(),
        exe: fs::read_link(dir.join("exe")).unwrap_or_default(),
        args: args.collect(),
    })
}

pub fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(process).collect()
}

pub fn descendants(root: u32) -> Vec<Process> {
    let mut all = processes();
    let mut family = BTreeSet::from([root]);
    loop {
        let size = family.len();
        for process in &all {
            if family.contains(&process.parent) {
                family.insert(process.pid);
            }
        }
        if family.len() == size {
            break;
        }
    }
    family.remove(&root);
    all.retain(|process| family.contains(&process.pid));
    all
}

pub fn processes_from(dir: &Path) -> Vec<Process> {
    let mut all = processes();
    all.retain(|process| process.exe.starts_with(dir));
    all
}

/// A directory is entered if `each` says so.
pub fn walk(dir: &Path, each: &mut dyn FnMut(&Path, &Metadata) -> bool) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(about) = path.symlink_metadata() else {
            continue;
        };
        if each(&path, &about) && about.is_dir() {
            walk(&path, each);
        }
    }
}

/// Sends SIGKILL until none is left, a few times.
pub fn end_all(left: impl Fn() -> Vec<Process>) {
    for _ in 0..3 {
        for process in left() {
            // A stopped process ends, too.
            let _ = kill(Pid::from_raw(process.pid.cast_signed()), Signal::SIGKILL);
        }
        if wait_until(Duration::from_secs(2), || left().is_empty()) {
            break;
        }
    }
}

pub fn host() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

pub fn alive(pid: u32) -> bool {
    process(pid).is_some_and(|process| !process.is_zombie())
}

pub fn wait_until(limit: Duration, mut so: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if so() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
