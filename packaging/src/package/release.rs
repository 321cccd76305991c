//! One release, in the form that both package formats need.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use fs_err as fs;

use super::layout::Entry;
use super::programs::Machine;
use crate::command::{command, quietly, wrote};

#[derive(Debug)]
pub struct Release {
    pub version: String,
    /// Seconds since 1970 that every file and package carries.
    pub epoch: u64,
    pub machine: Machine,
    /// xz's, from 0 to 9, for the large packages.
    pub compression: u8,
    pub tree: PathBuf,
    pub files: Vec<Entry>,
}

/// Moves a finished package to `out`. A package for all machines is made once with each machine's
/// programs, under one name; it is refused if the two differ.
pub fn take_over(made: &Path, out: &Path) -> Result<PathBuf> {
    let file = out.join(made.file_name().context("a package without a name")?);
    if file.exists() && fs::read(made)? != fs::read(&file)? {
        bail!(
            "'{}' is for every machine, and came out as other bytes for the second one",
            file.display()
        );
    }
    fs::rename(made, &file)?;
    Ok(file)
}

pub const VERSION: &str = env!("CARGO_PKG_VERSION");
pub const MAINTAINER: &str = env!("CARGO_PKG_AUTHORS");
pub const HOMEPAGE: &str = env!("CARGO_PKG_HOMEPAGE");

/// Without name and time, so that the same text gives the same bytes.
pub fn gzip(path: &Path) -> Result<()> {
    quietly(command("gzip", "-9n").arg(path))
}

/// A time in a format of date(1)'s.
pub fn date(epoch: u64, format: &str) -> Result<String> {
    let mut date = Command::new("date");
    date.args(["--utc", format, "-d", &format!("@{epoch}")]);
    Ok(wrote(date.env("LC_ALL", "C"))?.trim().to_owned())
}
