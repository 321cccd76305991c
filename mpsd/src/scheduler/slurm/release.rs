//! The release of the Slurm that is here, and the one that a plugin is stamped for: the four bytes of its dynamic symbol
//! `plugin_version`, which is all that Slurm compares (docs/facts/slurm.md#version-of-a-plugin). 64-bit little endian ELF
//! (System V gABI).

use super::commands::Installation;
use crate::scheduler::host::Host;
use mpsd_core::trusted::open_trusted;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A local program that prints its version.
const VERSION_DEADLINE: Duration = Duration::from_secs(5);
/// Where slurmd is, and then the commands that every host of a cluster has.
const VERSION_PROGRAMS: [&str; 4] = ["../sbin/slurmd", "slurmd", "sinfo", "srun"];

/// Largest plugin that is read, bytes; ours stays below 1 MiB stripped.
const LARGEST: usize = 64 << 20;
const SYMBOL: &[u8] = b"plugin_version\0";
const SHT_DYNSYM: usize = 11;
/// Size of an entry of the dynamic symbol table.
const ENTRY: usize = 24;

/// A release of Slurm as far as a plugin depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Release {
    major: u8,
    minor: u8,
}

impl Release {
    /// Reads `23.11`, `23.11.5` or `23.11.0-1rc1`.
    ///
    /// # Errors
    /// One line.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is no release; allowed: 22.05 and the like");
        let mut parts = text.split('.');
        let mut number = || parts.next().filter(|part| part.len() == 2)?.parse().ok();
        let release = Self {
            major: number().ok_or_else(wrong)?,
            minor: number().ok_or_else(wrong)?,
        };
        if (20..100).contains(&release.major) && (1..=12).contains(&release.minor) {
            Ok(release)
        } else {
            Err(wrong())
        }
    }

    /// The release that `slurm-wlm 22.05.8` names.
    fn said(text: &str) -> Option<Self> {
        text.split_whitespace()
            .nth(1)
            .and_then(|word| Self::parse(word).ok())
    }
}

impl std::fmt::Display for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02}.{:02}", self.major, self.minor)
    }
}

/// The release of `slurm`: the running daemon's program's, else that of the first of its programs that says one.
pub(super) fn installed(slurm: &Installation, host: &dyn Host) -> Option<Release> {
    all_installed(slurm, host).first().copied()
}

/// The release that each of the programs says, one after the other where they differ.
pub(super) fn all_installed(slurm: &Installation, host: &dyn Host) -> Vec<Release> {
    let daemon = slurm.daemon.as_ref().and_then(|daemon| daemon.program.clone());
    let beside = VERSION_PROGRAMS.iter().map(|name| slurm.commands.join(name));
    let version = |program: PathBuf| {
        let answer = program
            .exists()
            .then(|| host.run(&program, &["-V"], &[], VERSION_DEADLINE).ok())??;
        Release::said(&answer.text)
    };
    let mut said: Vec<Release> = daemon.into_iter().chain(beside).filter_map(version).collect();
    said.dedup();
    said
}

/// The release of the plugin in `file`, which must be root's: slurmd loads it.
///
/// # Errors
/// One line.
pub(super) fn stamp_of(file: &Path) -> Result<Release, String> {
    let bytes = open_trusted(file)
        .and_then(|file| file.read(LARGEST))
        .map_err(|e| e.to_string())?;
    let stamp = stamp(&bytes).ok_or_else(|| format!("'{}' is no Slurm plugin", file.display()))?;
    let byte = |shift: usize| u8::try_from(stamp >> shift & 0xff).unwrap_or(0);
    Ok(Release {
        major: byte(16),
        minor: byte(8),
    })
}

fn stamp(bytes: &[u8]) -> Option<usize> {
    if bytes.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (at, each, count) = (word(bytes, 40, 8)?, word(bytes, 58, 2)?, word(bytes, 60, 2)?);
    let section = |number: usize| at.checked_add(number.checked_mul(each)?);
    let table = (0..count)
        .filter_map(section)
        .find(|head| word(bytes, head + 4, 4) == Some(SHT_DYNSYM))?;
    let strings = word(bytes, section(word(bytes, table + 40, 4)?)? + 24, 8)?;
    let (first, size) = (word(bytes, table + 24, 8)?, word(bytes, table + 32, 8)?);
    let symbol = (0..size / ENTRY)
        .map(|number| first + number * ENTRY)
        .find(|symbol| {
            let name = word(bytes, *symbol, 4).and_then(|name| bytes.get(strings.checked_add(name)?..));
            word(bytes, symbol + 6, 2) != Some(0) && name.is_some_and(|name| name.starts_with(SYMBOL))
        })?;
    let home = section(word(bytes, symbol + 6, 2)?)?;
    let within = word(bytes, symbol + 8, 8)?.checked_sub(word(bytes, home + 16, 8)?)?;
    word(bytes, word(bytes, home + 24, 8)?.checked_add(within)?, 4)
}

/// The little endian number of `size` bytes at `at`.
fn word(bytes: &[u8], at: usize, size: usize) -> Option<usize> {
    let part = bytes.get(at..at.checked_add(size)?)?;
    part.iter().rev().try_fold(0_usize, |number, byte| {
        number.checked_mul(256)?.checked_add(usize::from(*byte))
    })
}

#[cfg(test)]
mod tests;
