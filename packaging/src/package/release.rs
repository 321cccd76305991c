//! What is packed: the version, its time, its entry of the changelog, and what both formats do alike.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::machine::Machine;
use super::stage::Staged;
use crate::cargo;
use crate::command::quietly;

/// What both formats need to know.
#[derive(Debug)]
pub struct Release {
    /// The workspace's version.
    pub version: String,
    /// Number of the packages among those of the version.
    pub revision: u32,
    /// Seconds since 1970 that every file and package carries.
    pub epoch: u64,
    /// What the programs run on.
    pub machine: Machine,
    /// The staged tree.
    pub tree: PathBuf,
    /// Its files.
    pub files: Vec<Staged>,
}

/// The workspace's version: it stands in `Cargo.toml` alone.
pub fn version() -> Result<String> {
    let text = fs::read_to_string(cargo::root()?.join("Cargo.toml")).context("cannot read 'Cargo.toml'")?;
    let manifest: toml::Value = toml::from_str(&text)?;
    let version = manifest["workspace"]["package"]["version"].as_str();
    Ok(version.context("'Cargo.toml' has no version")?.to_owned())
}

/// `SOURCE_DATE_EPOCH`, or the time of the commit, or of a source without a repository the first moment of 2026.
pub fn epoch() -> Result<u64> {
    if let Ok(given) = std::env::var("SOURCE_DATE_EPOCH") {
        return given
            .parse()
            .with_context(|| format!("SOURCE_DATE_EPOCH '{given}' is no number of seconds"));
    }
    let output = Command::new("git").args(["log", "-1", "--format=%ct"]).output();
    let commit = output.ok().filter(|output| output.status.success());
    let time = commit.and_then(|output| String::from_utf8(output.stdout).ok()?.trim().parse().ok());
    Ok(time.unwrap_or(1_767_225_600))
}

/// Without name and time, so that the same text gives the same bytes.
pub fn gzip(path: &Path) -> Result<()> {
    quietly(Command::new("gzip").args(["-9n"]).arg(path))
}

/// What is for every machine is packed with each one's programs, under one name: refuses `made` where `there` has other bytes.
pub fn same_if_there(made: &Path, there: &Path) -> Result<()> {
    let read = |path: &Path| fs::read(path).with_context(|| format!("cannot read '{}'", path.display()));
    if there.exists() && read(made)? != read(there)? {
        bail!(
            "'{}' is for every machine, and came out as other bytes for the second one",
            there.display()
        );
    }
    Ok(())
}

/// A time in a format of date(1)'s.
pub fn date(epoch: u64, format: &str) -> Result<String> {
    let output = Command::new("date")
        .args(["--utc", format, "-d", &format!("@{epoch}")])
        .env("LC_ALL", "C")
        .output()
        .context("cannot start date")?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// The entry of `version` in CHANGELOG.md.
pub fn notes(version: &str) -> Result<String> {
    let text =
        fs::read_to_string(cargo::root()?.join("CHANGELOG.md")).context("cannot read 'CHANGELOG.md'")?;
    let heading = format!("## [{version}]");
    let (_, after) = text
        .split_once(&heading)
        .with_context(|| format!("'CHANGELOG.md' has no '{heading}'"))?;
    let body = after.split_once('\n').map_or("", |(_, body)| body);
    let end = body.find("\n## [").unwrap_or(body.len());
    Ok(format!("{}\n", body[..end].trim()))
}
