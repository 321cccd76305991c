//! The list of installed files, `packaging/files.txt`: what, where, with which mode, in which
//! package.

use anyhow::{Context as _, Result, bail};

use super::programs::PROGRAMS;

const LIST: &str = include_str!("../../files.txt");

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Package {
    Base,
    Pbs,
    Slurm,
}

impl Package {
    pub const ALL: [Package; 3] = [Package::Base, Package::Pbs, Package::Slurm];

    pub fn name(self) -> &'static str {
        match self {
            Package::Base => "mpsd",
            Package::Pbs => "mpsd-pbs",
            Package::Slurm => "mpsd-slurm",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    pub to: String,
    pub package: Package,
    /// Links have none.
    pub mode: Option<u32>,
    pub kind: &'static str,
    pub from: String,
}

/// The releases of Slurm that a plugin is made for: major and minor decide (`src/common/plugin.c`,
/// `_verify_syms`).
pub const SLURM: [&str; 9] = [
    "22.05", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05", "26.11",
];

/// The list, each line once for everything that it stands for.
pub fn entries() -> Result<Vec<Entry>> {
    let mut all = Vec::new();
    let is_entry = |line: &&str| !line.is_empty() && !line.starts_with('#');
    for line in LIST.lines().filter(is_entry) {
        let one = entry(line).with_context(|| format!("packaging/files.txt: '{line}'"))?;
        let all_of = [("{program}", &PROGRAMS[..]), ("{release}", &SLURM[..])];
        let marked = all_of.into_iter().find(|(mark, _)| line.contains(mark));
        let (mark, words) = marked.unwrap_or(("", &[""]));
        all.extend(words.iter().map(|word| Entry {
            to: one.to.replace(mark, word),
            from: match one.kind {
                "plugin" => (*word).to_owned(),
                _ => one.from.clone(),
            },
            ..one.clone()
        }));
    }
    Ok(all)
}

fn entry(line: &'static str) -> Result<Entry> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [package, mode, to, kind, ref from @ ..] = words[..] else {
        bail!("not package, mode, path and source");
    };
    let package = match package {
        "base" => Package::Base,
        "pbs" => Package::Pbs,
        "slurm" => Package::Slurm,
        _ => bail!("no package '{package}'"),
    };
    let mode = match mode {
        "-" => None,
        digits => Some(u32::from_str_radix(digits, 8)?),
    };
    Ok(Entry {
        package,
        to: to.to_owned(),
        mode,
        kind,
        from: from.join(" "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_path_is_there_twice_and_the_plugin_looks_where_the_programs_are() {
        let mut seen = BTreeSet::new();
        for entry in entries().unwrap() {
            let to = entry.to;
            assert!(to.starts_with('/') && !to.contains(['{', '}']), "{to}");
            assert!(seen.insert(to.clone()), "{to}");
        }
        let plugin = mpsd_core::plugin_line::Arguments::default();
        for path in [plugin.prologue, plugin.epilogue, plugin.config] {
            assert!(seen.contains(path.to_str().unwrap()), "{}", path.display());
        }
    }
}
