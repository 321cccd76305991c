//! An independent look at the machine, by `/proc`, directories and mounts, without our programs'
//! word.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::double::look::{descendants, walk};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot(BTreeSet<String>);

impl Snapshot {
    /// The names of everything below `roots` (of a cgroup, the directories); what is mounted there;
    /// the shared-memory segments of `users`; the descendants of `warden` that are not in `known`.
    pub fn take(roots: &[PathBuf], users: &[u32], warden: u32, known: &BTreeSet<u32>) -> Snapshot {
        let mut items = BTreeSet::new();
        let mut take = |path: &Path, counts: bool| {
            if counts {
                items.insert(format!("file {}", path.display()));
            }
            true
        };
        for root in roots {
            walk(root, &mut |path, about| {
                take(path, !path.starts_with("/sys") || about.is_dir())
            });
        }
        walk(Path::new("/dev/shm"), &mut |path, about| {
            take(path, users.contains(&about.uid()))
        });
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for point in mounts.lines().filter_map(|line| line.split(' ').nth(4)) {
            // A node's run directory is one from its first MPS job to the next boot.
            let is_run = Path::new(point).join("jobs").is_dir();
            if !is_run && roots.iter().any(|root| Path::new(point).starts_with(root)) {
                items.insert(format!("mount {point}"));
            }
        }
        for process in descendants(warden) {
            if !known.contains(&process.pid) && !process.is_zombie() {
                let (pid, uid, args) = (process.pid, process.uid, process.args.join(" "));
                items.insert(format!("process {pid} (uid {uid}) {args}"));
            }
        }
        Snapshot(items)
    }

    pub fn beyond(&self, earlier: &Snapshot) -> Vec<String> {
        self.0.difference(&earlier.0).cloned().collect()
    }
}
