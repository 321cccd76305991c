//! A Slurm on this host: its commands, its release, and the release that a plugin is stamped for.
//!
//! The stamp is the four bytes of the dynamic symbol `plugin_version`, which is all that Slurm
//! compares (docs/facts/slurm.md#version-of-a-plugin).

use super::slurmd::Slurmd;
use crate::call::Location;
use crate::host::{Host, ThisHost};
use mpsd_core::trusted::open_trusted;
use object::{Object, ObjectSection, ObjectSymbol};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const COMMANDS: [&str; 4] = [
    "/usr/bin",
    "/usr/local/bin",
    "/opt/slurm/bin",
    "/usr/local/slurm/bin",
];
const SIDE_BY_SIDE: [&str; 3] = ["/opt", "/opt/slurm", "/opt/aws/pcs/scheduler"];
const VERSION_DEADLINE: Duration = Duration::from_secs(5);
/// Where slurmd is, and then the commands that every host of a cluster has.
const VERSION_PROGRAMS: [&str; 4] = ["../sbin/slurmd", "slurmd", "sinfo", "srun"];
const LARGEST: usize = 64 << 20;
const SYMBOL: &str = "plugin_version";

#[derive(Debug, Clone)]
pub struct Installation {
    pub commands: PathBuf,
    pub daemon: Option<Slurmd>,
    /// `SLURM_CONF` for its commands, if it is not what they find by themselves.
    conf: Option<PathBuf>,
    is_named: bool,
}

impl Installation {
    /// The one that the site names, else the running slurmd's, else one in a usual place.
    pub fn find(location: &Location, node: &str) -> Self {
        let conf = location.slurm_conf.as_deref().map(Path::new);
        let daemon = Slurmd::find(node, conf);
        let of_daemon = || {
            let directory = daemon.as_ref()?.program.as_ref()?.parent()?;
            let places = [directory.parent()?.join("bin"), directory.to_owned()];
            places.into_iter().find_map(with_commands)
        };
        // PREFIX/etc/slurm.conf or PREFIX/etc/slurm/slurm.conf.
        let of_conf = || {
            let above = conf?.ancestors().skip(2).take(2);
            let mut prefixes = above.filter(|dir| dir.parent().is_some());
            prefixes.find_map(|dir| with_commands(dir.join("bin")))
        };
        let named = location.slurm_exec.as_ref();
        let named = named.map(|dir| with_commands(dir.join("bin")).unwrap_or_else(|| dir.clone()));
        let usual = || directories().into_iter().next();
        let found = named.or_else(of_daemon).or_else(of_conf).or_else(usual);
        let of_running = || daemon.as_ref()?.named();
        Self {
            commands: found.unwrap_or_else(|| COMMANDS[0].into()),
            conf: conf.map(PathBuf::from).or_else(of_running),
            is_named: location.slurm_exec.is_some(),
            daemon,
        }
    }

    pub fn is_named_wrong(&self) -> bool {
        self.is_named && !has_commands(&self.commands)
    }

    pub fn is_a_guess(&self) -> bool {
        !self.is_named && self.daemon.is_none() && directories().len() > 1
    }

    /// Why this Slurm cannot be asked before the site names its slurm.conf.
    pub fn untrusted(&self) -> Option<String> {
        let daemon = self.daemon.as_ref().filter(|_| self.conf.is_none());
        daemon?.untrusted(&ThisHost)
    }

    pub fn ask(
        &self,
        program: &str,
        arguments: &[&str],
        deadline: Duration,
    ) -> Result<String, String> {
        self.untrusted().map_or(Ok(()), Err)?;
        let conf = self.conf.as_ref().and_then(|conf| conf.to_str());
        let conf: Vec<(&str, &str)> = conf.map(|conf| ("SLURM_CONF", conf)).into_iter().collect();
        let answer = ThisHost.run(&self.commands.join(program), arguments, &conf, deadline)?;
        answer.accepted(program)
    }

    pub fn conf(&self, host: &dyn Host) -> Option<PathBuf> {
        let of_daemon = || self.daemon.as_ref()?.conf(host);
        let beside =
            |name: &str| Some(self.commands.parent()?.join(name)).filter(|path| path.exists());
        let usual = || beside("etc/slurm.conf").or_else(|| beside("etc/slurm/slurm.conf"));
        self.conf.clone().or_else(of_daemon).or_else(usual)
    }

    /// What each of its programs says, the running daemon's first.
    pub fn releases(&self, host: &dyn Host) -> Vec<Release> {
        let daemon = self.daemon.iter();
        let daemon = daemon.filter_map(|daemon| daemon.program.clone());
        let beside = VERSION_PROGRAMS.iter().map(|name| self.commands.join(name));
        let release = |program: PathBuf| {
            let ask = || host.run(&program, &["-V"], &[], VERSION_DEADLINE);
            Release::in_version(&program.exists().then(ask)?.ok()?.text)
        };
        let mut found: Vec<_> = daemon.chain(beside).filter_map(release).collect();
        found.dedup();
        found
    }
}

fn with_commands(dir: PathBuf) -> Option<PathBuf> {
    has_commands(&dir).then_some(dir)
}

fn has_commands(dir: &Path) -> bool {
    dir.join("scontrol").exists()
}

pub fn directories() -> Vec<PathBuf> {
    let side_by_side = SIDE_BY_SIDE.iter().flat_map(|dir| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let mut found: Vec<PathBuf> = entries.map(|entry| entry.path().join("bin")).collect();
        found.sort();
        found.reverse();
        found
    });
    let mut found: Vec<PathBuf> = Vec::new();
    let all = COMMANDS.iter().map(PathBuf::from).chain(side_by_side);
    for dir in all.filter_map(with_commands) {
        let same = |other: &PathBuf| other.canonicalize().ok() == dir.canonicalize().ok();
        if !found.iter().any(same) {
            found.push(dir);
        }
    }
    found
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, derive_more::Display)]
#[display("{major:02}.{minor:02}")]
pub struct Release {
    major: u8,
    minor: u8,
}

impl Release {
    /// The first whose cgroups have SLUIDs for names, and whose flag DeferBatch implies Alloc.
    pub const SLUIDS: Self = Self {
        major: 26,
        minor: 5,
    };

    /// Reads `23.11`, `23.11.5` or `23.11.0-1rc1`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.split('.');
        let mut number = |range: std::ops::Range<u8>| {
            let number = parts.next().filter(|part| part.len() == 2)?.parse().ok();
            number.filter(|number| range.contains(number))
        };
        let release = number(20..100).zip(number(1..13));
        let release = release.map(|(major, minor)| Self { major, minor });
        release.ok_or_else(|| format!("'{text}' is no release; allowed: 22.05 and the like"))
    }

    fn in_version(text: &str) -> Option<Self> {
        Self::parse(text.split_whitespace().nth(1)?).ok()
    }
}

/// The release of the plugin in `file`, which must be root's: slurmd loads it.
pub fn stamp_of(file: &Path) -> Result<Release, String> {
    let read = open_trusted(file).and_then(|file| file.read(LARGEST));
    let bytes = read.map_err(|error| error.to_string())?;
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
    use super::*;

    #[test]
    fn releases_are_read_as_slurm_writes_them() {
        for (text, release) in [
            ("slurm-wlm 22.05.8\n", Some("22.05")),
            ("slurm 23.11.10-1", Some("23.11")),
            ("slurm 25.05.0-0rc1", Some("25.05")),
            ("slurm 2205", None),
            ("slurm 22.5", None),
            ("slurm 22.13", None),
            ("slurm 19.05", None),
            ("slurm a.b", None),
            ("", None),
        ] {
            let read = Release::in_version(text).map(|release| release.to_string());
            assert_eq!(read.as_deref(), release, "{text}");
        }
    }

    #[test]
    fn a_file_that_is_no_plugin_has_no_stamp_and_is_not_read_past_its_end() {
        let own = fs::read("/proc/self/exe").unwrap();
        let cut = [64, 100, own.len() / 2, own.len()].map(|length| &own[..length]);
        for bytes in [&b""[..], b"#!/bin/sh\n"].into_iter().chain(cut) {
            assert_eq!(stamp(bytes), None, "{} bytes", bytes.len());
        }
    }
}
