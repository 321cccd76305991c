//! `cargo xtask dist --repository DIR`: the signed repositories for apt and dnf. `DIR/mpsd.asc` is
//! the public key, `DIR/apt` a flat repository (apt trusts the signed InRelease). `DIR/dnf` has
//! `repodata/repomd.xml` and its signature. Older versions stay.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use fs_err as fs;

use crate::command::{command, quietly, wrote};
use crate::files::is_a;
use crate::install;

const FTPARCHIVE: &str = "/usr/bin/apt-ftparchive";
const RELEASE: [&str; 5] = [
    "Origin=mpsd",
    "Label=mpsd",
    "Suite=stable",
    "Architectures=amd64 arm64",
    "Description=a per-job NVIDIA Multi-Process Service for batch schedulers",
];

/// Its place, and who signs.
#[derive(Debug)]
pub struct Repository<'a> {
    pub dir: &'a Path,
    pub key: &'a str,
}

impl Repository<'_> {
    /// Installs missing tools and tries the key, before the long build starts.
    pub fn prepare(&self) -> Result<()> {
        install::program("/usr/bin/gpg", "gnupg")?;
        install::program(FTPARCHIVE, "apt-utils")?;
        install::program("/usr/bin/createrepo_c", "createrepo-c")?;
        let signs = wrote(gpg().args(["--armor", "--local-user", self.key, "--detach-sign"]));
        signs.map(drop).with_context(|| {
            format!(
                "--key '{}': gpg does not sign with it; allowed: a secret key without a passphrase (GNUPGHOME names its directory)",
                self.key
            )
        })
    }

    /// Adds packages to both trees and signs these again.
    pub fn add(&self, packages: &[PathBuf]) -> Result<()> {
        let (apt, dnf) = (self.dir.join("apt"), self.dir.join("dnf"));
        fs::create_dir_all(&apt)?;
        fs::create_dir_all(&dnf)?;
        for package in packages {
            let tree = if is_a(package, "deb") { &apt } else { &dnf };
            let name = package.file_name().context("a package without a name")?;
            fs::copy(package, tree.join(name))?;
        }
        self.apt(&apt)?;
        quietly(command("/usr/bin/createrepo_c", "--quiet --no-database").arg(&dnf))?;
        let list = dnf.join("repodata/repomd.xml");
        let signature = list.with_extension("xml.asc");
        self.sign("--armor --detach-sign", &list, &signature)?;
        let key = wrote(gpg().args(["--armor", "--export", self.key]))?;
        Ok(fs::write(self.dir.join("mpsd.asc"), key)?)
    }

    fn apt(&self, tree: &Path) -> Result<()> {
        let files = ["Packages", "Packages.gz", "Release"];
        let [plain, packed, release] = files.map(|name| tree.join(name));
        quietly(command("rm", "-f").args([&plain, &packed, &release]))?;
        let mut packages = command(FTPARCHIVE, "packages .");
        fs::write(&plain, wrote(packages.current_dir(tree))?)?;
        quietly(command("gzip", "-9n --keep").arg(&plain))?;
        let about = RELEASE.map(|line| format!("-oAPT::FTPArchive::Release::{line}"));
        let mut list = command(FTPARCHIVE, "release .");
        fs::write(&release, wrote(list.args(about).current_dir(tree))?)?;
        self.sign("--clear-sign", &release, &tree.join("InRelease"))?;
        self.sign("--armor --detach-sign", &release, &tree.join("Release.gpg"))
    }

    fn sign(&self, how: &str, file: &Path, to: &Path) -> Result<()> {
        let mut command = gpg();
        command.args(["--yes", "--local-user", self.key, "--output"]);
        command.arg(to);
        quietly(command.args(how.split(' ')).arg(file))
    }
}

fn gpg() -> Command {
    command("/usr/bin/gpg", "--batch --quiet --pinentry-mode loopback")
}
