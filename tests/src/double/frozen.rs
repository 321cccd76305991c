//! A process that survives SIGKILL for a while: the version-1 freezer holds it in state D, and it
//! dies when thawed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::look::wait_until;

#[derive(Debug)]
pub struct Frozen {
    group: PathBuf,
    mounted: Option<PathBuf>,
}

impl Frozen {
    /// Needs root and a kernel with the version-1 freezer (mounted here if it is not).
    pub fn new(pids: &[u32]) -> io::Result<Frozen> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (root, mounted) = freezer()?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let group = root.join(format!("mpsd-frozen-{}-{number}", std::process::id()));
        fs::create_dir(&group)?;
        // From here on Drop cleans up.
        let frozen = Frozen { group, mounted };
        for pid in pids {
            fs::write(frozen.group.join("cgroup.procs"), pid.to_string())?;
        }
        frozen.set("FROZEN")?;
        let state = frozen.group.join("freezer.state");
        let is_frozen = || fs::read_to_string(&state).is_ok_and(|s| s.trim() == "FROZEN");
        match wait_until(Duration::from_secs(5), is_frozen) {
            true => Ok(frozen),
            false => Err(io::Error::other(format!(
                "cannot freeze {pids:?} within 5 s"
            ))),
        }
    }

    fn set(&self, state: &str) -> io::Result<()> {
        fs::write(self.group.join("freezer.state"), state)
    }

    fn empty(&self) -> bool {
        let procs = fs::read_to_string(self.group.join("cgroup.procs")).unwrap_or_default();
        let root = self.group.parent().unwrap_or(Path::new("/"));
        for pid in procs.split_whitespace() {
            let _ = fs::write(root.join("cgroup.procs"), pid);
        }
        fs::remove_dir(&self.group).is_ok()
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = self.set("THAWED");
        wait_until(Duration::from_secs(5), || self.empty());
        if let Some(dir) = &self.mounted {
            let _ = umount2(dir, MntFlags::MNT_DETACH);
            let _ = fs::remove_dir(dir);
        }
    }
}

/// Its files cannot be removed one by one.
pub fn remove_cgroup(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_cgroup(&entry.path())?;
        }
    }
    fs::remove_dir(dir)
}

/// The version-1 freezer's root; the second is set if we mounted it.
fn freezer() -> io::Result<(PathBuf, Option<PathBuf>)> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    for mount in mounts.lines() {
        let fields: Vec<&str> = mount.split(' ').collect();
        if let [_, dir, "cgroup", options, ..] = fields.as_slice()
            && options.split(',').any(|o| o == "freezer")
        {
            return Ok((PathBuf::from(dir), None));
        }
    }
    let dir = tempfile::TempDir::with_prefix("freezer-")?;
    let (nothing, none) = (None::<&str>, MsFlags::empty());
    let mounted = mount(nothing, dir.path(), Some("cgroup"), none, Some("freezer"));
    let failed = |why| io::Error::other(format!("cannot mount the version-1 freezer: {why}"));
    mounted.map_err(failed)?;
    let dir = dir.keep();
    Ok((dir.clone(), Some(dir)))
}
