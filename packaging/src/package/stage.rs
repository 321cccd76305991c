//! `cargo xtask stage DIR`: the installed tree, file by file as `layout` lists it.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::layout::{self, Entry, Package, Source};
use super::machine::Machine;
use super::programs::{self, GLIBC};
use super::{elf, plugin};
use crate::cargo;

/// A file as it lies in the tree.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Staged {
    /// Absolute path on the node.
    pub path: String,
    /// Its package.
    pub package: Package,
    /// Its mode; none for a link.
    pub mode: Option<u32>,
}

/// `stage`'s options.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Where the tree is made; must not exist, or be empty
    dir: PathBuf,
    /// Take the programs of the dev profile, for this machine only: quick, to look at
    #[arg(long)]
    debug: bool,
}

/// Builds, then lays out the tree.
pub fn run(options: &Options) -> Result<()> {
    let profile = if options.debug {
        programs::Profile::Debug
    } else {
        programs::Profile::Portable
    };
    let built = programs::everything(profile, Machine::OWN)?;
    let files = stage(&options.dir, &built)?;
    println!("{} files below '{}'", files.len(), options.dir.display());
    Ok(())
}

/// Lays out the tree below `dir` and returns its files in order.
///
/// # Errors
/// A file that is missing or cannot be written; a program of the portable build that needs a newer C library.
pub fn stage(dir: &Path, built: &programs::Built) -> Result<Vec<Staged>> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make '{}'", dir.display()))?;
    if fs::read_dir(dir)?.next().is_some() {
        bail!(
            "'{}' is not empty: a file left there would be packed",
            dir.display()
        );
    }
    let mut files = Vec::new();
    for entry in layout::entries() {
        match entry.from {
            Source::Directory(from) => files.extend(directory(dir, &entry, from)?),
            _ => files.push(one(dir, &entry, built)?),
        }
    }
    files.sort();
    Ok(files)
}

fn one(dir: &Path, entry: &Entry, built: &programs::Built) -> Result<Staged> {
    let root = cargo::root()?;
    let name = entry.to.rsplit('/').next().unwrap_or_default();
    let bytes = match entry.from {
        Source::Link(target) => return link(dir, entry, target),
        Source::Program => program(built, name)?,
        Source::Plugin(release) => plugin::stamped(&program(built, "libspank_mps.so")?, release)
            .with_context(|| format!("cannot stamp the plugin for Slurm {release}"))?,
        Source::Repository(from) => read(&root.join(from))?,
        Source::Rendered(from) => rendered(&read(&root.join(from))?)?,
        Source::Man => read(&built.manual.join("man").join(name))?,
        Source::Completion(shell) => read(&built.manual.join("completions").join(shell).join(name))?,
        Source::Crates => built.crates.clone().into_bytes(),
        Source::Directory(_) => bail!("'{}' is a directory", entry.to),
    };
    put(dir, entry.to, entry.mode, entry.package, &bytes)
}

fn program(built: &programs::Built, name: &str) -> Result<Vec<u8>> {
    let bytes = read(&built.programs.join(name))?;
    if built.profile != programs::Profile::Debug {
        runs_there(name, &bytes, built.machine)?;
    }
    Ok(bytes)
}

/// Another machine's code nowhere, nothing that RHEL 8's C library does not have, and no other library, as GCC's for unwinding: the
/// packages depend on none.
fn runs_there(name: &str, bytes: &[u8], machine: Machine) -> Result<()> {
    let elf = elf::Elf::parse(bytes)?;
    if elf.machine()? != machine.elf() {
        bail!("'{name}' is not built for {}", machine.name());
    }
    let versions = elf.wanted_versions()?;
    if let Some(other) = versions.iter().find(|version| elf::glibc(version).is_none()) {
        bail!("'{name}' needs {other}: allowed is the C library alone, and of it what is public");
    }
    let newest = versions.iter().filter_map(|version| elf::glibc(version)).max();
    match newest {
        None => bail!("'{name}' asks for no version of the C library at all: is it a program?"),
        Some(newest) if newest > GLIBC => bail!(
            "'{name}' needs GLIBC_{}.{}; allowed is up to GLIBC_{}.{}",
            newest.0,
            newest.1,
            GLIBC.0,
            GLIBC.1
        ),
        Some(_) => Ok(()),
    }
}

/// The text with our programs where they are installed, as `mpsctl pbs install` writes it.
fn rendered(text: &[u8]) -> Result<Vec<u8>> {
    let text = std::str::from_utf8(text)?;
    let text = text
        .replace("/usr/bin/mps-", "/usr/libexec/mpsd/mps-")
        .replace("PROGRAMS = \"/usr/bin\"", "PROGRAMS = \"/usr/libexec/mpsd\"");
    Ok(text.into_bytes())
}

fn directory(dir: &Path, entry: &Entry, from: &str) -> Result<Vec<Staged>> {
    let from = cargo::root()?.join(from);
    let mut files = Vec::new();
    if !from.exists() {
        return Ok(files);
    }
    let listed = fs::read_dir(&from).with_context(|| format!("cannot list '{}'", from.display()))?;
    for found in listed {
        let found = found?;
        let name = found
            .file_name()
            .into_string()
            .ok()
            .context("a name that is not text")?;
        let to = format!("{}/{name}", entry.to);
        files.push(put(dir, &to, entry.mode, entry.package, &read(&found.path())?)?);
    }
    Ok(files)
}

fn link(dir: &Path, entry: &Entry, target: &str) -> Result<Staged> {
    let path = parent(dir, entry.to)?;
    symlink(target, &path).with_context(|| format!("cannot make the link '{}'", path.display()))?;
    Ok(Staged {
        path: entry.to.to_owned(),
        package: entry.package,
        mode: None,
    })
}

fn put(dir: &Path, to: &str, mode: u32, package: Package, bytes: &[u8]) -> Result<Staged> {
    let path = parent(dir, to)?;
    fs::write(&path, bytes).with_context(|| format!("cannot write '{}'", path.display()))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    Ok(Staged {
        path: to.to_owned(),
        package,
        mode: Some(mode),
    })
}

/// The place of `to` below `dir`, with its directories made, whatever the umask.
fn parent(dir: &Path, to: &str) -> Result<PathBuf> {
    let relative = Path::new(to).strip_prefix("/")?;
    let mut at = dir.to_owned();
    fs::set_permissions(&at, fs::Permissions::from_mode(0o755))?;
    for part in relative.parent().into_iter().flat_map(Path::components) {
        at.push(part);
        if !at.is_dir() {
            fs::create_dir(&at).with_context(|| format!("cannot make '{}'", at.display()))?;
            fs::set_permissions(&at, fs::Permissions::from_mode(0o755))?;
        }
    }
    Ok(dir.join(relative))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read '{}'", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_needs_a_second_library_is_not_packed() {
        let own = fs::read("/proc/self/exe").unwrap();
        let why = |machine| runs_there("own", &own, machine).unwrap_err().to_string();
        assert!(
            why(Machine::OWN).contains("'own' needs GCC_"),
            "{}",
            why(Machine::OWN)
        );
        let other = [Machine::X86, Machine::Arm].map(why);
        assert!(
            other.iter().any(|why| why.starts_with("'own' is not built for ")),
            "{other:?}"
        );
    }

    #[test]
    fn the_shipped_texts_name_the_installed_programs() {
        let root = cargo::root().unwrap();
        for entry in layout::entries() {
            if let Source::Rendered(from) = entry.from {
                let text = String::from_utf8(rendered(&read(&root.join(from)).unwrap()).unwrap()).unwrap();
                assert!(text.contains("/usr/libexec/mpsd"), "{from}");
                assert!(!text.contains("/usr/bin/mps-"), "{from}");
            }
        }
    }
}
