//! Slurm on a machine without a package manager: what its packages hold and the machine lacks is copied in, and taken
//! away again.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::child;
use crate::site;

const COMMAND: Duration = Duration::from_secs(60);

/// Debian's names of the programs, and the names that Slurm itself calls.
const PLAIN: [&str; 3] = ["slurmctld", "slurmd", "slurmstepd"];

/// What was brought; removed when dropped.
#[derive(Debug, Default)]
pub struct Debs {
    files: Vec<PathBuf>,
    directories: Vec<PathBuf>,
    hosts: Option<Vec<u8>>,
}

impl Debs {
    /// Unpacks every `.deb` of `from`, unless the machine has a Slurm of its own.
    pub fn install(from: &Path) -> Result<Self> {
        let mut brought = Self::default();
        brought.name_this_host()?;
        if site::program("slurmctld").is_ok() && site::program("munged").is_ok() {
            return Ok(brought);
        }
        let dpkg = site::program("dpkg")?;
        let scratch = tempfile::tempdir().context("no directory for the packages")?;
        let mut count = 0;
        for entry in fs::read_dir(from).with_context(|| format!("no packages in '{}'", from.display()))? {
            let file = entry?.path();
            if file.extension().is_some_and(|kind| kind == "deb") {
                child::run(
                    Command::new(&dpkg).arg("-x").args([&file, scratch.path()]),
                    "",
                    COMMAND,
                )?
                .success()?;
                count += 1;
            }
        }
        if count == 0 {
            bail!(
                "no packages in '{}': pack it again with 'cargo xtask hardware --pack DIR'",
                from.display()
            );
        }
        brought.copy_missing(scratch.path(), Path::new("/"))?;
        for name in PLAIN {
            let plain = Path::new("/usr/sbin").join(name);
            if plain.symlink_metadata().is_err() {
                symlink(format!("{name}-wlm"), &plain)?;
                brought.files.push(plain);
            }
        }
        brought.refresh_loader()?;
        Ok(brought)
    }

    /// Files brought in.
    pub fn count(&self) -> usize {
        self.files.len()
    }

    fn copy_missing(&mut self, from: &Path, to: &Path) -> Result<()> {
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let target = to.join(entry.file_name());
            let kind = entry.file_type()?;
            if kind.is_dir() {
                if !target.exists() {
                    fs::create_dir(&target)?;
                    self.directories.push(target.clone());
                }
                self.copy_missing(&entry.path(), &target)?;
            } else if target.symlink_metadata().is_err() {
                self.files.push(target.clone());
                if kind.is_symlink() {
                    symlink(fs::read_link(entry.path())?, &target)?;
                } else {
                    fs::copy(entry.path(), &target)?;
                    let mode = entry.metadata()?.permissions().mode() & 0o755;
                    fs::set_permissions(&target, fs::Permissions::from_mode(mode))?;
                }
            }
        }
        Ok(())
    }

    /// The controller and its nodes call each other by the host's name.
    fn name_this_host(&mut self) -> Result<()> {
        use std::net::ToSocketAddrs as _;
        let host = nix::unistd::gethostname()?.to_string_lossy().into_owned();
        if (host.as_str(), 0).to_socket_addrs().is_ok() {
            return Ok(());
        }
        let file = "/etc/hosts";
        self.hosts = Some(fs::read(file).unwrap_or_default());
        let mut hosts = fs::OpenOptions::new().append(true).create(true).open(file)?;
        writeln!(hosts, "\n127.0.0.1 {host}").with_context(|| format!("cannot write '{file}'"))
    }

    fn refresh_loader(&self) -> Result<()> {
        child::run(&mut Command::new(site::program("ldconfig")?), "", COMMAND)?.success()?;
        Ok(())
    }
}

impl Drop for Debs {
    fn drop(&mut self) {
        if let Some(hosts) = &self.hosts {
            let _ = fs::write("/etc/hosts", hosts);
        }
        for file in self.files.iter().rev() {
            let _ = fs::remove_file(file);
        }
        for directory in self.directories.iter().rev() {
            let _ = fs::remove_dir(directory);
        }
        if !self.files.is_empty() {
            let _ = self.refresh_loader();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_brought_and_all_of_it_is_taken_away() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir_all(from.path().join("usr/lib")).unwrap();
        fs::write(from.path().join("usr/lib/new"), "deb").unwrap();
        fs::write(from.path().join("usr/there"), "deb").unwrap();
        fs::create_dir(to.path().join("usr")).unwrap();
        fs::write(to.path().join("usr/there"), "machine").unwrap();
        let mut brought = Debs::default();
        brought.copy_missing(from.path(), to.path()).unwrap();
        assert_eq!(fs::read_to_string(to.path().join("usr/lib/new")).unwrap(), "deb");
        assert_eq!(
            fs::read_to_string(to.path().join("usr/there")).unwrap(),
            "machine"
        );
        assert_eq!(brought.count(), 1);
        // Without the loader's cache of this machine: the test brought no library.
        for file in brought.files.drain(..) {
            fs::remove_file(file).unwrap();
        }
        drop(brought);
        assert!(!to.path().join("usr/lib").exists());
        assert!(to.path().join("usr/there").exists());
    }
}
