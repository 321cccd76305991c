//! `cargo xtask dist --repository DIR`: what apt and dnf install from, signed. What lies in DIR stays, so that older versions can be
//! had as well.
//!
//! `DIR/mpsd.asc` is the public key. `DIR/apt` is a flat repository: apt trusts what InRelease, signed, has the sums of. `DIR/dnf` has
//! the same in `repodata/repomd.xml` and its signature.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::release::{date, gzip};
use crate::command::quietly;
use crate::install;

/// Where it goes and who signs.
#[derive(Debug)]
pub struct Repository<'a> {
    /// Its directory.
    pub dir: &'a Path,
    /// The key, as gpg's `--local-user` names it.
    pub key: &'a str,
}

impl Repository<'_> {
    /// Installs the tools that are missing and finds the key, before anything takes minutes.
    pub fn prepare(&self) -> Result<()> {
        install::program("/usr/bin/gpg", "gnupg", "gnupg2")?;
        install::program("/usr/bin/dpkg-scanpackages", "dpkg-dev", "dpkg-dev")?;
        install::program("/usr/bin/createrepo_c", "createrepo-c", "createrepo_c")?;
        let known = gpg().args(["--list-secret-keys", self.key]).output();
        if !known.context("cannot start gpg")?.status.success() {
            bail!(
                "--key '{}': gpg has no such secret key (GNUPGHOME names its directory)",
                self.key
            );
        }
        Ok(())
    }

    /// Adds packages to both trees and signs them anew.
    pub fn add(&self, packages: &[PathBuf]) -> Result<()> {
        let (apt, dnf) = (self.dir.join("apt"), self.dir.join("dnf"));
        for tree in [&apt, &dnf] {
            fs::create_dir_all(tree).with_context(|| format!("cannot make '{}'", tree.display()))?;
        }
        for package in packages {
            let tree = if package.extension().is_some_and(|end| end == "deb") {
                &apt
            } else {
                &dnf
            };
            let to = tree.join(package.file_name().context("a package without a name")?);
            fs::copy(package, &to).with_context(|| format!("cannot copy '{}'", package.display()))?;
        }
        self.apt(&apt)?;
        self.dnf(&dnf)?;
        let public = wrote(gpg().args(["--armor", "--export", self.key]))?;
        write(&self.dir.join("mpsd.asc"), &public)
    }

    fn apt(&self, tree: &Path) -> Result<()> {
        let mut scan = Command::new("/usr/bin/dpkg-scanpackages");
        let index = wrote(scan.current_dir(tree).args(["--multiversion", "."]))?;
        let plain = tree.join("Packages");
        write(&plain, &index)?;
        let old = tree.join("Packages.gz");
        if old.exists() {
            fs::remove_file(&old).with_context(|| format!("cannot remove '{}'", old.display()))?;
        }
        gzip(&plain)?;
        write(&plain, &index)?;
        let release = tree.join("Release");
        write(&release, release_file(tree)?.as_bytes())?;
        self.sign(&["--clear-sign"], &release, &tree.join("InRelease"))?;
        self.sign(&["--armor", "--detach-sign"], &release, &tree.join("Release.gpg"))
    }

    fn dnf(&self, tree: &Path) -> Result<()> {
        quietly(
            Command::new("/usr/bin/createrepo_c")
                .args(["--quiet", "--no-database"])
                .arg(tree),
        )?;
        let list = tree.join("repodata/repomd.xml");
        self.sign(
            &["--armor", "--detach-sign"],
            &list,
            &list.with_extension("xml.asc"),
        )
    }

    fn sign(&self, how: &[&str], file: &Path, to: &Path) -> Result<()> {
        let mut command = gpg();
        command
            .args(["--yes", "--local-user", self.key, "--output"])
            .arg(to);
        quietly(command.args(how).arg(file))
    }
}

/// What apt asks of a flat repository, and the sums of its indexes.
fn release_file(tree: &Path) -> Result<String> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let mut text = format!(
        "Origin: mpsd\nLabel: mpsd\nSuite: stable\nDate: {}\nArchitectures: amd64 arm64\n\
         Description: a per-job NVIDIA Multi-Process Service for batch schedulers\nSHA256:\n",
        date(now.as_secs(), "-R")?
    );
    for name in ["Packages", "Packages.gz"] {
        let sum = wrote(Command::new("sha256sum").current_dir(tree).arg(name))?;
        let sum = String::from_utf8(sum)?;
        let sum = sum.split(' ').next().unwrap_or_default();
        let size = fs::metadata(tree.join(name))?.len();
        text.push_str(&format!(" {sum} {size} {name}\n"));
    }
    Ok(text)
}

/// gpg that asks nobody anything.
fn gpg() -> Command {
    let mut command = Command::new("/usr/bin/gpg");
    command.args(["--batch", "--quiet", "--pinentry-mode", "loopback"]);
    command
}

/// What a command wrote that must succeed.
fn wrote(command: &mut Command) -> Result<Vec<u8>> {
    let output = command
        .output()
        .with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?} failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(output.stdout)
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).with_context(|| format!("cannot write '{}'", path.display()))
}
