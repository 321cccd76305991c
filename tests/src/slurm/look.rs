//! An independent look at the machine, by `/proc`, directories and mounts, without our programs'
//! word.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    /// Start time in clock ticks since boot: with the pid, the process's identity.
    pub start: u64,
    pub state: char,
    /// Name of the program file (`comm`, at most 15 bytes).
    pub name: String,
    pub uid: u32,
    /// Program file, unless the kernel does not say (a zombie).
    pub exe: Option<PathBuf>,
    pub argv: Vec<String>,
}

impl Process {
    pub fn read(pid: i32) -> Option<Process> {
        let dir = PathBuf::from(format!("/proc/{pid}"));
        let stat = std::fs::read_to_string(dir.join("stat")).ok()?;
        // The name is in parentheses and may contain anything, blanks and parentheses included.
        let (head, rest) = stat.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let status = std::fs::read_to_string(dir.join("status")).ok()?;
        let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        let argv = std::fs::read(dir.join("cmdline")).unwrap_or_default();
        Some(Process {
            pid,
            parent: fields.get(1)?.parse().ok()?,
            start: fields.get(19)?.parse().ok()?,
            state: fields.first()?.chars().next()?,
            name,
            uid: uids.split_whitespace().nth(1)?.parse().ok()?,
            exe: std::fs::read_link(dir.join("exe")).ok(),
            argv: words(&argv),
        })
    }

    pub fn is_zombie(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// The environment at its start (`/proc/PID/environ`), without later changes.
    pub fn environment(&self) -> BTreeMap<String, String> {
        let bytes = std::fs::read(format!("/proc/{}/environ", self.pid)).unwrap_or_default();
        words(&bytes)
            .iter()
            .filter_map(|word| word.split_once('='))
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .collect()
    }

    pub fn descendants(root: i32) -> Vec<Process> {
        let all = processes();
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
        all.into_iter()
            .filter(|process| family.contains(&process.pid))
            .collect()
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "pid {} (parent {}, uid {}, state {}) ",
            self.pid, self.parent, self.uid, self.state
        )?;
        match self.argv.is_empty() {
            true => write!(f, "[{}]", self.name),
            false => f.write_str(&self.argv.join(" ")),
        }
    }
}

fn words(bytes: &[u8]) -> Vec<String> {
    bytes
        .split(|&byte| byte == 0)
        .filter(|word| !word.is_empty())
        .map(|word| {
            OsString::from_vec(word.to_vec())
                .to_string_lossy()
                .into_owned()
        })
        .collect()
}

pub fn processes() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(Result::ok)
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(Process::read)
        .collect()
}

/// Everything that a job could leave on the node, by name, to be compared with another look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot(BTreeSet<String>);

impl Snapshot {
    /// The names of everything below `roots` (of a cgroup, the directories); what is mounted there;
    /// the shared-memory segments of `users`; the descendants of `warden` that are not in `known`.
    pub fn take(roots: &[PathBuf], users: &[u32], warden: i32, known: &BTreeSet<i32>) -> Snapshot {
        let mut items = BTreeSet::new();
        for root in roots {
            walk(root, &mut items, &|path| {
                !path.starts_with("/sys") || path.is_dir()
            });
        }
        let owned = |path: &Path| {
            path.symlink_metadata()
                .is_ok_and(|found| users.contains(&found.uid()))
        };
        walk(Path::new("/dev/shm"), &mut items, &owned);
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for point in mounts.lines().filter_map(|line| line.split(' ').nth(4)) {
            // A node's run directory is one from its first MPS job to the next boot.
            let is_run = Path::new(point).join("jobs").is_dir();
            if !is_run && roots.iter().any(|root| Path::new(point).starts_with(root)) {
                items.insert(format!("mount {point}"));
            }
        }
        for process in Process::descendants(warden) {
            if !known.contains(&process.pid) && !process.is_zombie() {
                items.insert(format!(
                    "process {} (uid {}) {}",
                    process.pid,
                    process.uid,
                    process.argv.join(" ")
                ));
            }
        }
        Snapshot(items)
    }

    pub fn beyond(&self, earlier: &Snapshot) -> Vec<String> {
        self.0.difference(&earlier.0).cloned().collect()
    }
}

fn walk(dir: &Path, items: &mut BTreeSet<String>, counts: &dyn Fn(&Path) -> bool) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for entry in entries.filter_map(Result::ok) {
        let path = entry.path();
        if counts(&path) {
            items.insert(format!("file {}", path.display()));
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&path, items, counts);
        }
    }
}
