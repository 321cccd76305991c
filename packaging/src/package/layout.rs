//! The only list of installed files: what, where, with which mode, in which package.
//!
//! All programs lie in one directory, since each finds the others beside its own file; what people type is a link into it.

/// A package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Package {
    /// Programs, configuration, units, man pages.
    Base,
    /// What Torque and OpenPBS need.
    Pbs,
    /// The plugin for each release of Slurm.
    Slurm,
}

impl Package {
    /// All of them, the one that the others need first.
    pub const ALL: [Package; 3] = [Package::Base, Package::Pbs, Package::Slurm];

    /// Its name, the same in both formats.
    pub fn name(self) -> &'static str {
        match self {
            Package::Base => "mpsd",
            Package::Pbs => "mpsd-pbs",
            Package::Slurm => "mpsd-slurm",
        }
    }
}

/// Where a file's bytes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A program of the build.
    Program,
    /// A file of the repository.
    Repository(&'static str),
    /// A file of the repository that names our programs below /usr/bin: they are put where they are installed.
    Rendered(&'static str),
    /// Every file of a directory of the repository.
    Directory(&'static str),
    /// A man page, by its file's name.
    Man,
    /// A completion: the shell's directory of `manual`'s output.
    Completion(&'static str),
    /// A symbolic link to this place.
    Link(&'static str),
    /// The plugin, stamped for this release of Slurm.
    Plugin(&'static str),
    /// The list of the crates in the programs with their licences.
    Crates,
}

/// One line of the list.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Its package.
    pub package: Package,
    /// Absolute path on the node; a directory for [`Source::Directory`].
    pub to: &'static str,
    /// Mode; links have none.
    pub mode: u32,
    /// Where it comes from.
    pub from: Source,
}

/// The releases of Slurm that a plugin is made for: major and minor decide (`src/common/plugin.c`, `_verify_syms`).
pub const SLURM: [&str; 8] = [
    "22.05", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05",
];

const PROGRAM: u32 = 0o755;
const FILE: u32 = 0o644;

const fn entry(package: Package, to: &'static str, mode: u32, from: Source) -> Entry {
    Entry {
        package,
        to,
        mode,
        from,
    }
}

macro_rules! plugin {
    ($release:literal) => {
        entry(
            Package::Slurm,
            concat!("/usr/lib/mpsd/spank/", $release, "/spank_mps.so"),
            FILE,
            Source::Plugin($release),
        )
    };
}

macro_rules! completions {
    ($name:literal) => {
        [
            entry(
                Package::Base,
                concat!("/usr/share/bash-completion/completions/", $name),
                FILE,
                Source::Completion("bash"),
            ),
            entry(
                Package::Base,
                concat!("/usr/share/zsh/vendor-completions/_", $name),
                FILE,
                Source::Completion("zsh"),
            ),
            entry(
                Package::Base,
                concat!("/usr/share/fish/vendor_completions.d/", $name, ".fish"),
                FILE,
                Source::Completion("fish"),
            ),
        ]
    };
}

/// The list.
pub fn entries() -> Vec<Entry> {
    let mut all = BASE.to_vec();
    all.extend(completions!("mpsctl"));
    all.extend(completions!("mps-probe"));
    all.extend(completions!("mps-prologue"));
    all.extend(completions!("mps-epilogue"));
    all.extend(completions!("mpsd"));
    all.extend(PBS);
    all.extend(PLUGINS);
    all
}

const BASE: [Entry; 26] = {
    use Package::Base;
    use Source::{Crates, Directory, Link, Man, Program, Repository};
    [
        entry(Base, "/usr/libexec/mpsd/mpsd", PROGRAM, Program),
        entry(Base, "/usr/libexec/mpsd/mpsctl", PROGRAM, Program),
        entry(Base, "/usr/libexec/mpsd/mps-probe", PROGRAM, Program),
        entry(Base, "/usr/libexec/mpsd/mps-prologue", PROGRAM, Program),
        entry(Base, "/usr/libexec/mpsd/mps-epilogue", PROGRAM, Program),
        entry(
            Base,
            "/usr/libexec/mpsd/mps-task-prolog",
            PROGRAM,
            Repository("etc/slurm/mps-task-prolog"),
        ),
        entry(Base, "/usr/bin/mpsctl", 0, Link("../libexec/mpsd/mpsctl")),
        entry(Base, "/usr/bin/mps-probe", 0, Link("../libexec/mpsd/mps-probe")),
        entry(
            Base,
            "/etc/mpsd/mpsd.toml",
            FILE,
            Repository("etc/mpsd/mpsd.toml"),
        ),
        // Inert where there is no enroot.
        entry(
            Base,
            "/etc/enroot/hooks.d/50-mpsd.sh",
            PROGRAM,
            Repository("etc/enroot/hooks.d/50-mpsd.sh"),
        ),
        entry(
            Base,
            "/usr/lib/systemd/system",
            FILE,
            Directory("etc/systemd/system"),
        ),
        entry(Base, "/usr/lib/tmpfiles.d", FILE, Directory("etc/tmpfiles.d")),
        entry(
            Base,
            "/usr/share/mpsd/examples/mpsd.rules.yml",
            FILE,
            Repository("docs/examples/mpsd.rules.yml"),
        ),
        entry(
            Base,
            "/usr/share/mpsd/examples/mpsd.dashboard.json",
            FILE,
            Repository("docs/examples/mpsd.dashboard.json"),
        ),
        entry(Base, "/usr/share/man/man1/mpsctl.1", FILE, Man),
        entry(Base, "/usr/share/man/man1/mps-probe.1", FILE, Man),
        entry(Base, "/usr/share/man/man5/mpsd.toml.5", FILE, Man),
        entry(Base, "/usr/share/man/man8/mpsd.8", FILE, Man),
        entry(Base, "/usr/share/man/man8/mps-prologue.8", FILE, Man),
        entry(Base, "/usr/share/man/man8/mps-epilogue.8", FILE, Man),
        entry(
            Base,
            "/usr/share/doc/mpsd/LICENSE-MIT",
            FILE,
            Repository("LICENSE-MIT"),
        ),
        entry(
            Base,
            "/usr/share/doc/mpsd/LICENSE-APACHE",
            FILE,
            Repository("LICENSE-APACHE"),
        ),
        entry(
            Base,
            "/usr/share/doc/mpsd/CHANGELOG.md",
            FILE,
            Repository("CHANGELOG.md"),
        ),
        entry(Base, "/usr/share/doc/mpsd/crates.txt", FILE, Crates),
        entry(
            Base,
            "/usr/share/mpsd/examples/mpsd.nhc",
            FILE,
            Repository("docs/examples/mpsd.nhc"),
        ),
        entry(
            Base,
            "/usr/share/mpsd/examples/reframe_mpsd.py",
            FILE,
            Repository("docs/examples/reframe_mpsd.py"),
        ),
    ]
};

const PBS: [Entry; 7] = {
    use Package::Pbs;
    use Source::{Rendered, Repository};
    [
        entry(
            Pbs,
            "/etc/profile.d/mpsd.sh",
            FILE,
            Repository("etc/profile.d/mpsd.sh"),
        ),
        entry(
            Pbs,
            "/etc/profile.d/mpsd.csh",
            FILE,
            Repository("etc/profile.d/mpsd.csh"),
        ),
        entry(
            Pbs,
            "/usr/share/mpsd/pbs/torque/prologue",
            PROGRAM,
            Rendered("etc/pbs/torque/prologue"),
        ),
        entry(
            Pbs,
            "/usr/share/mpsd/pbs/torque/epilogue",
            PROGRAM,
            Rendered("etc/pbs/torque/epilogue"),
        ),
        entry(
            Pbs,
            "/usr/share/mpsd/pbs/openpbs/prologue",
            PROGRAM,
            Rendered("etc/pbs/openpbs/prologue"),
        ),
        entry(
            Pbs,
            "/usr/share/mpsd/pbs/openpbs/epilogue",
            PROGRAM,
            Rendered("etc/pbs/openpbs/epilogue"),
        ),
        entry(
            Pbs,
            "/usr/share/mpsd/pbs/openpbs/mpsd.py",
            FILE,
            Rendered("etc/pbs/hooks/mpsd.py"),
        ),
    ]
};

const PLUGINS: [Entry; 10] = [
    plugin!("22.05"),
    plugin!("23.02"),
    plugin!("23.11"),
    plugin!("24.05"),
    plugin!("24.11"),
    plugin!("25.05"),
    plugin!("25.11"),
    plugin!("26.05"),
    entry(
        Package::Slurm,
        "/usr/share/mpsd/plugstack.conf.d/mpsd.conf",
        FILE,
        Source::Repository("etc/slurm/plugstack.conf.d/mpsd.conf"),
    ),
    entry(
        Package::Slurm,
        "/usr/share/man/man8/spank_mps.8",
        FILE,
        Source::Man,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_path_is_there_twice_and_each_is_clean() {
        let mut seen = BTreeSet::new();
        for entry in entries() {
            assert!(seen.insert(entry.to), "{}", entry.to);
            assert!(
                entry.to.starts_with('/') && !entry.to.contains("/../"),
                "{}",
                entry.to
            );
        }
    }

    #[test]
    fn every_release_has_its_plugin() {
        let stamped: Vec<&str> = entries()
            .iter()
            .filter_map(|entry| match entry.from {
                Source::Plugin(release) => Some(release),
                _ => None,
            })
            .collect();
        assert_eq!(stamped, SLURM);
    }

    #[test]
    fn every_file_of_the_repository_is_there() {
        let root = crate::cargo::root().unwrap();
        for entry in entries() {
            if let Source::Repository(path) | Source::Rendered(path) = entry.from {
                assert!(root.join(path).is_file(), "{path}");
            }
        }
    }

    /// The plugin's defaults are where the programs are put.
    #[test]
    fn the_plugin_looks_where_the_programs_are() {
        let plugin = include_str!("../../../spank/src/arguments.rs");
        for program in [
            "/usr/libexec/mpsd/mps-prologue",
            "/usr/libexec/mpsd/mps-epilogue",
            "/etc/mpsd/mpsd.toml",
        ] {
            assert!(plugin.contains(&format!("\"{program}\".into()")), "{program}");
            assert!(entries().iter().any(|entry| entry.to == program), "{program}");
        }
    }
}
