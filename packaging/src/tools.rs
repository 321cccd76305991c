//! What the packages are made with, installed when it is missing: Zig as the linker against an old C library, and the two
//! formats' own programs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::build::target_directory;
use crate::progress::Progress;
use crate::watch;

/// From Python's package index, where Zig is a package.
const ZIG: [&str; 2] = ["cargo-zigbuild==0.24.0", "ziglang==0.17.0"];

/// Longest that one installation may take.
const LIMIT: Duration = Duration::from_secs(600);

/// Where cargo-zigbuild and Zig are.
#[derive(Debug)]
pub struct Zig {
    bin: PathBuf,
}

impl Zig {
    /// The two in a virtual environment of our own in the target directory; made when it is not there.
    pub fn find_or_install() -> Result<Zig> {
        let home = target_directory()?.join("tools").join("zig");
        let zig = Zig {
            bin: home.join("bin"),
        };
        if zig.works() {
            return Ok(zig);
        }
        let progress = Progress::start("installing cargo-zigbuild and Zig");
        python()?;
        quietly(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&home))?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        quietly(Command::new(zig.bin.join("python")).args(pip).args(ZIG))?;
        if !zig.works() {
            bail!(
                "cargo-zigbuild was installed into '{}' and does not start",
                home.display()
            );
        }
        progress.end("done");
        Ok(zig)
    }

    fn works(&self) -> bool {
        let version = Command::new(self.bin.join("cargo-zigbuild"))
            .arg("--version")
            .output();
        version.is_ok_and(|output| output.status.success())
    }

    /// `PATH` with the two in it: cargo finds its verbs there.
    pub fn path(&self) -> Result<OsString> {
        let rest = std::env::var_os("PATH").unwrap_or_default();
        let all = std::iter::once(self.bin.clone()).chain(std::env::split_paths(&rest));
        std::env::join_paths(all).context("PATH cannot be extended")
    }
}

/// Python with `venv`, which Debian packs by itself.
fn python() -> Result<()> {
    let there = Command::new("python3")
        .args(["-c", "import ensurepip, venv"])
        .output();
    if there.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    packages(&["python3-venv"], &["python3"])
}

/// A program that is there, or that the system's package manager brings: its path, its package on Debian, its package on RPM
/// systems.
pub fn program(path: &str, deb: &str, rpm: &str) -> Result<()> {
    if Path::new(path).exists() {
        return Ok(());
    }
    let progress = Progress::start(&format!("installing {deb}"));
    packages(&[deb], &[rpm])?;
    if !Path::new(path).exists() {
        bail!("'{path}' is still missing");
    }
    progress.end("done");
    Ok(())
}

fn packages(deb: &[&str], rpm: &[&str]) -> Result<()> {
    let mut command = if Path::new("/usr/bin/apt-get").exists() {
        let mut update = Command::new("/usr/bin/apt-get");
        quietly(update.args(["update", "-q"]))?;
        let mut command = Command::new("/usr/bin/apt-get");
        command
            .args(["install", "-y", "-q", "--no-install-recommends"])
            .args(deb);
        command
    } else if Path::new("/usr/bin/dnf").exists() {
        let mut command = Command::new("/usr/bin/dnf");
        command.args(["install", "-y", "-q"]).args(rpm);
        command
    } else {
        bail!(
            "cannot install {}: neither apt-get nor dnf is here",
            deb.join(", ")
        );
    };
    quietly(command.env("DEBIAN_FRONTEND", "noninteractive"))
}

/// Runs a command that says something only when it fails.
pub fn quietly(command: &mut Command) -> Result<()> {
    let mut said = Vec::new();
    let status = watch::lines(command, LIMIT, |line| said.push(line.to_owned()))?;
    if !status.success() {
        let tail = said[said.len().saturating_sub(25)..].join("\n");
        bail!("'{command:?}' failed ({status}):\n{tail}");
    }
    Ok(())
}
