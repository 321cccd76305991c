//! What the tests and the packages need of the system, installed when it is missing.

pub mod arm64;
pub mod deny;
pub mod python;
pub mod slurm;

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::command::quietly;
use crate::progress::Progress;

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

/// Installs packages by the system's package manager: their names on Debian, and on RPM systems.
pub fn packages(deb: &[&str], rpm: &[&str]) -> Result<()> {
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
