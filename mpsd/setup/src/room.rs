//! What root's files and mounts need: a run_dir and a state_dir with room that root can write to,
//! and entries in the mount table.

use crate::verbs::CheckLine::{self, Fail, Pass, Warn};
use mpsd_core::Paths;
use mpsd_sys::files::lacking;
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, access, geteuid};
use std::fs;
use std::path::Path;

/// Our own namespace has what a job's mounts are added to.
const MOUNTS: &str = "/proc/self/mountinfo";
/// A job needs two for each of its daemons, on a node with 16 GPUs that several jobs may use.
const FREE_MOUNTS: usize = 256;

pub fn room(paths: &Paths) -> Vec<CheckLine> {
    let mut all = vec![
        directory("run_dir", paths.run(), "no job's MPS starts here"),
        directory("state_dir", paths.state(), "drains and reports are lost"),
    ];
    let most = fs::read_to_string("/proc/sys/fs/mount-max").ok();
    let most = most.and_then(|text| text.trim().parse().ok());
    let used = fs::read_to_string(MOUNTS).map(|text| text.lines().count());
    all.extend(most.zip(used.ok()).map(|(most, used)| mounts(used, most)));
    all
}

/// `key`: the directory's name in mpsd.toml; `then`: what follows if it cannot be used.
fn directory(key: &str, path: &Path, then: &str) -> CheckLine {
    let shown = path.display();
    // A directory that is not there yet is made in the one above it.
    let there = path.ancestors().find(|path| path.exists()).unwrap_or(path);
    let is_closed = || match statvfs(there) {
        Ok(about) if about.flags().contains(FsFlags::ST_RDONLY) => {
            Some("its file system is read-only".to_owned())
        }
        Ok(_) if !there.is_dir() => Some(format!("'{}' is no directory", there.display())),
        Ok(_) if geteuid().is_root() => {
            let error = access(there, AccessFlags::W_OK).err()?;
            Some(error.desc().to_owned())
        }
        Ok(_) => None,
        Err(error) => Some(error.desc().to_owned()),
    };
    match (is_closed(), lacking(path)) {
        (Some(why), _) => Fail(format!("{key} '{shown}': {why}: {then}")),
        // A user can fill it, and a health check takes a node with a FAIL out of service.
        (None, Some(lacking)) => Warn(format!("{key} '{shown}': {lacking}: {then}")),
        (None, None) => Pass(format!("{key} '{shown}' can be written, and has room")),
    }
}

fn mounts(used: usize, most: usize) -> CheckLine {
    match used.saturating_add(FREE_MOUNTS) > most {
        true => Warn(format!(
            "{used} of {most} mounts are in use: a job's pipe and log directories need their own; find who mounts in \
             '{MOUNTS}', or raise fs.mount-max"
        )),
        false => Pass("the mount table has room".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_cannot_be_written_is_wrong_and_says_why() {
        let line = |path: &str| directory("run_dir", Path::new(path), "then").to_string();
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        assert!(line(&path("a/b/c")).starts_with("OK"), "not there yet");
        std::fs::write(path("file"), "").unwrap();
        let found = line(&path("file/run"));
        let is_told = found.starts_with("FAIL") && found.ends_with("is no directory: then");
        assert!(is_told, "{found}");
    }

    #[test]
    fn a_full_mount_table_is_told() {
        assert_eq!(mounts(100, 100_000).status(), "OK");
        assert_eq!(mounts(100_000 - FREE_MOUNTS, 100_000).status(), "OK");
        assert_eq!(mounts(100_001 - FREE_MOUNTS, 100_000).status(), "WARN");
        assert_eq!(mounts(usize::MAX, 100_000).status(), "WARN");
    }
}
