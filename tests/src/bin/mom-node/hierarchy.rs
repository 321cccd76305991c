//! Cgroups of the node's own: what it calls the root of a hierarchy is a directory of this machine's, which is removed
//! with the node. Two nodes that run the same job id must not meet there.

use std::fs;
use std::path::{Path, PathBuf};

/// Where the hierarchies that systemd tracks its units in are mounted: v2, or v2 and the named one of a hybrid.
const TOPS: [&str; 3] = [
    "/sys/fs/cgroup",
    "/sys/fs/cgroup/unified",
    "/sys/fs/cgroup/systemd",
];

/// One hierarchy of this machine.
#[derive(Debug)]
pub struct Hierarchy {
    /// Where it is mounted.
    pub top: &'static str,
    /// This process's own cgroup.
    home: PathBuf,
    /// The node's.
    node: PathBuf,
}

/// Makes the node's cgroup in every hierarchy and enters it.
pub fn enter() -> Vec<Hierarchy> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let name = format!("mom-node-{}", std::process::id());
    let mut all = Vec::new();
    for top in TOPS {
        let key = if top.ends_with("systemd") {
            "name=systemd"
        } else {
            ""
        };
        let line = own
            .lines()
            .find_map(|line| line.split_once(':')?.1.split_once(':').filter(|(k, _)| *k == key));
        let (Some((_, path)), true) = (line, Path::new(top).join("cgroup.procs").exists()) else {
            continue;
        };
        let home = Path::new(top).join(path.trim_start_matches('/'));
        let node = home.join(&name);
        if fs::create_dir(&node).is_ok() && fs::write(node.join("cgroup.procs"), "0").is_ok() {
            all.push(Hierarchy { top, home, node });
        }
    }
    all
}

/// Goes back and removes the node's cgroups, with those that were made below them.
pub fn leave(all: Vec<Hierarchy>) {
    for one in all {
        let _ = fs::write(one.home.join("cgroup.procs"), "0");
        remove(&one.node);
    }
}

fn remove(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    if let Err(why) = fs::remove_dir(dir) {
        eprintln!("mom-node: cgroup '{}' stays: {why}", dir.display());
    }
}
