//! The release of the Slurm that is here, and the one that a plugin is stamped for: the four bytes of its dynamic symbol
//! `plugin_version`, which is all that Slurm compares (docs/facts/slurm.md#version-of-a-plugin).

use super::commands::Installation;
use crate::scheduler::host::Host;
use mpsd_core::trusted::open_trusted;
use object::{Object, ObjectSection, ObjectSymbol};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A local program that prints its version.
const VERSION_DEADLINE: Duration = Duration::from_secs(5);
/// Where slurmd is, and then the commands that every host of a cluster has.
const VERSION_PROGRAMS: [&str; 4] = ["../sbin/slurmd", "slurmd", "sinfo", "srun"];

/// Largest plugin that is read, bytes; ours stays below 1 MiB stripped.
const LARGEST: usize = 64 << 20;
const SYMBOL: &str = "plugin_version";

/// A release of Slurm as far as a plugin depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, derive_more::Display)]
#[display("{major:02}.{minor:02}")]
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
    let [_, minor, major, _] = stamp.to_le_bytes();
    Ok(Release { major, minor })
}

fn stamp(bytes: &[u8]) -> Option<u32> {
    let file = object::File::parse(bytes).ok()?;
    let mut symbols = file.dynamic_symbols();
    let symbol = symbols.find(|symbol| symbol.is_definition() && symbol.name() == Ok(SYMBOL))?;
    let section = file.section_by_index(symbol.section_index()?).ok()?;
    let stamp = section.data_range(symbol.address(), 4).ok()??;
    Some(u32::from_le_bytes(stamp.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    //! Releases as Slurm writes them, and files that are no plugin.

    use super::*;

    #[test]
    fn releases_are_read_as_slurm_writes_them() {
        for (text, release) in [
            ("slurm-wlm 22.05.8\n", "22.05"),
            ("slurm 23.11.10-1", "23.11"),
            ("slurm 25.05.0-0rc1", "25.05"),
        ] {
            assert_eq!(Release::said(text).unwrap().to_string(), release);
        }
        for text in ["2205", "22.5", "22.13", "19.05", "a.b", ""] {
            assert!(Release::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_no_plugin_is_told_and_never_read_past_its_end() {
        assert_eq!(stamp(b""), None);
        assert_eq!(stamp(b"#!/bin/sh\n"), None);
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(stamp(&own), None, "a program has no such symbol");
        for cut in [64, 100, own.len() / 2] {
            assert_eq!(stamp(&own[..cut]), None, "{cut}");
        }
    }
}
