//! `cargo xtask dist --repository DIR`: the signed repositories for apt and dnf. `DIR/mpsd.asc` is
//! the public key, `DIR/apt` a flat repository (apt trusts the signed InRelease). `DIR/dnf` has
//! `repodata/repomd.xml` and its signature. Older versions stay.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::release::{date, gzip};
use crate::command::{command, quietly, works, wrote};
use crate::files::{copy, is_a, make_dir, write};
use crate::install;

/// Its place, and who signs.
#[derive(Debug)]
pub struct Repository<'a> {
    pub dir: &'a Path,
    pub key: &'a str,
}

impl Repository<'_> {
    /// Installs missing tools and finds the key, before the long build starts.
    pub fn prepare(&self) -> Result<()> {
        install::program("/usr/bin/gpg", "gnupg", "gnupg2")?;
        install::program("/usr/bin/dpkg-scanpackages", "dpkg-dev", "dpkg-dev")?;
        install::program("/usr/bin/createrepo_c", "createrepo-c", "createrepo_c")?;
        match works(gpg().args(["--list-secret-keys", self.key])) {
            true => Ok(()),
            false => bail!(
                "--key '{}': gpg has no such secret key (GNUPGHOME names its directory)",
                self.key
            ),
        }
    }

    /// Adds packages to both trees and signs these again.
    pub fn add(&self, packages: &[PathBuf]) -> Result<()> {
        let (apt, dnf) = (self.dir.join("apt"), self.dir.join("dnf"));
        make_dir(&apt)?;
        make_dir(&dnf)?;
        for package in packages {
            let tree = if is_a(package, "deb") { &apt } else { &dnf };
            let name = package.file_name().context("a package without a name")?;
            copy(package, &tree.join(name))?;
        }
        self.apt(&apt)?;
        quietly(command("/usr/bin/createrepo_c", "--quiet --no-database").arg(&dnf))?;
        let list = dnf.join("repodata/repomd.xml");
        let signature = list.with_extension("xml.asc");
        self.sign("--armor --detach-sign", &list, &signature)?;
        let key = wrote(gpg().args(["--armor", "--export", self.key]))?;
        write(&self.dir.join("mpsd.asc"), key)
    }

    fn apt(&self, tree: &Path) -> Result<()> {
        let mut scan = command("/usr/bin/dpkg-scanpackages", "--multiversion .");
        let index = wrote(scan.current_dir(tree))?;
        let files = ["Packages", "Packages.gz", "Release"];
        let [plain, packed, release] = files.map(|name| tree.join(name));
        if packed.exists() {
            let left = || format!("cannot remove '{}'", packed.display());
            fs::remove_file(&packed).with_context(left)?;
        }
        write(&plain, &index)?;
        gzip(&plain)?;
        write(&plain, &index)?;
        write(&release, release_file(tree)?)?;
        self.sign("--clear-sign", &release, &tree.join("InRelease"))?;
        self.sign("--armor --detach-sign", &release, &tree.join("Release.gpg"))
    }

    fn sign(&self, how: &str, file: &Path, to: &Path) -> Result<()> {
        let mut command = gpg();
        command
            .args(["--yes", "--local-user", self.key, "--output"])
            .arg(to);
        quietly(command.args(how.split(' ')).arg(file))
    }
}

fn release_file(tree: &Path) -> Result<String> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let mut text = format!(
        "Origin: mpsd\nLabel: mpsd\nSuite: stable\nDate: {}\nArchitectures: amd64 arm64\n\
         Description: a per-job NVIDIA Multi-Process Service for batch schedulers\nSHA256:\n",
        date(now.as_secs(), "-R")?
    );
    for name in ["Packages", "Packages.gz"] {
        let sum = wrote(Command::new("sha256sum").current_dir(tree).arg(name))?;
        let sum = sum.split(' ').next().unwrap_or_default();
        let size = fs::metadata(tree.join(name))?.len();
        text.push_str(&format!(" {sum} {size} {name}\n"));
    }
    Ok(text)
}

fn gpg() -> Command {
    command("/usr/bin/gpg", "--batch --quiet --pinentry-mode loopback")
}
