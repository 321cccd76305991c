//! Looks at processes by /proc only: the tested programs' own word does not count.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Clone, Debug)]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
    pub uid: u32,
    pub state: char,
    /// Its executable; empty for a zombie.
    pub exe: PathBuf,
    /// Its command line; empty in state `D`.
    pub args: Vec<String>,
}

pub fn process(pid: u32) -> Option<Process> {
    let dir = PathBuf::from(format!("/proc/{pid}"));
    let stat = fs::read_to_string(dir.join("stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    // Reading the command line takes a lock that a process waiting in the kernel may hold.
    let args = match state {
        'D' => Vec::new(),
        _ => fs::read(dir.join("cmdline")).unwrap_or_default(),
    };
    let args = args.split(|b| *b == 0).filter(|a| !a.is_empty());
    Some(Process {
        pid,
        parent,
        state,
        uid: fs::metadata(&dir).ok()?.uid(),
        exe: fs::read_link(dir.join("exe")).unwrap_or_default(),
        args: args
            .map(|a| String::from_utf8_lossy(a).into_owned())
            .collect(),
    })
}

pub fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|e| process(e.file_name().to_str()?.parse().ok()?))
        .collect()
}

pub fn processes_from(dir: &Path) -> Vec<Process> {
    processes()
        .into_iter()
        .filter(|p| p.exe.starts_with(dir))
        .collect()
}

pub fn alive(pid: u32) -> bool {
    process(pid).is_some_and(|p| p.state != 'Z' && p.state != 'X')
}

/// Waits until something is so, looking every 2 ms; false if the time runs out.
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
