//! The installed tree below a directory, file by file as `layout` lists it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use fs_err as fs;
use fs_err::os::unix::fs::symlink;
use object::Object as _;

use super::layout::{self, Entry};
use super::plugin::{self, glibc};
use super::programs::{Built, GLIBC, Machine};
use crate::cargo;
use crate::files::list;

/// Where the guide is installed.
const GUIDE: &str = "/usr/share/doc/mpsd/";

/// Lays out the tree below `dir` and returns its files in order.
pub fn stage(dir: &Path, built: &Built, date: &str) -> Result<Vec<Entry>> {
    fs::create_dir_all(dir)?;
    if !list(dir)?.is_empty() {
        let dir = dir.display();
        bail!("'{dir}' is not empty: a file left there would be packed");
    }
    let mut files = each_file()?;
    files.sort();
    for entry in &files {
        put(dir, entry, built, date)?;
    }
    Ok(files)
}

/// The list with the files of each folder.
fn each_file() -> Result<Vec<Entry>> {
    let mut all = Vec::new();
    for entry in layout::entries()? {
        if entry.kind != "directory" {
            all.push(entry);
            continue;
        }
        let listed = list(&cargo::root()?.join(&entry.from))?.into_iter();
        for file in listed.filter(|path| path.is_file()) {
            let name = file.file_name().and_then(|name| name.to_str());
            let name = name.context("a name that is not text")?;
            all.push(Entry {
                to: format!("{}/{name}", entry.to),
                kind: "repository",
                from: format!("{}/{name}", entry.from),
                ..entry.clone()
            });
        }
    }
    Ok(all)
}

fn put(dir: &Path, entry: &Entry, built: &Built, date: &str) -> Result<()> {
    let path = dir.join(entry.to.trim_start_matches('/'));
    fs::create_dir_all(path.parent().context("no directory")?)?;
    match entry.mode {
        None => symlink(&entry.from, &path)?,
        Some(mode) => {
            fs::write(&path, bytes(entry, built, date)?)?;
            fs::set_permissions(&path, Permissions::from_mode(mode))?;
        }
    }
    Ok(())
}

fn bytes(entry: &Entry, built: &Built, date: &str) -> Result<Vec<u8>> {
    let (name, from) = (entry.to.rsplit('/').next().unwrap_or_default(), &entry.from);
    let repository = || fs::read(from);
    match entry.kind {
        "repository" if entry.to.starts_with(GUIDE) && name.ends_with(".md") => {
            Ok(page(&String::from_utf8(repository()?)?).into_bytes())
        }
        "repository" => Ok(repository()?),
        "rendered" => rendered(&repository()?),
        "program" => program(built, name),
        "plugin" => plugin::stamped(&program(built, "libspank_mps.so")?, from)
            .with_context(|| format!("cannot stamp the plugin for Slurm {from}")),
        "man" => {
            let page = fs::read_to_string(built.manual.join("man").join(name))?;
            let parts = page.split_once("\" \"\" \"mpsd ");
            let (before, after) = parts.context("a title with a date already")?;
            Ok(format!("{before}\" \"{date}\" \"mpsd {after}").into_bytes())
        }
        "completion" => {
            let shell = built.manual.join("completions").join(from);
            Ok(fs::read(shell.join(name))?)
        }
        "crates" => Ok(built.crates.clone().into_bytes()),
        kind => {
            let to = &entry.to;
            bail!("packaging/files.txt: '{to}': no source is a '{kind}'")
        }
    }
}

/// A page as it lies among all others in one folder.
fn page(text: &str) -> String {
    text.replace("](../THREAT-MODEL.md", "](THREAT-MODEL.md")
        .replace("](../CHANGELOG.md", "](CHANGELOG.md")
        .replace("](docs/", "](")
}

fn program(built: &Built, name: &str) -> Result<Vec<u8>> {
    let bytes = fs::read(built.programs.join(name))?;
    runs_there(name, &bytes, built.machine)?;
    Ok(bytes)
}

/// The packages depend on no library but RHEL 8's C library, and have no other machine's code.
fn runs_there(name: &str, bytes: &[u8], machine: Machine) -> Result<()> {
    let elf = plugin::parsed(bytes)?;
    if elf.architecture() != machine.elf() {
        bail!("'{name}' is not built for {}", machine.name());
    }
    let versions = plugin::wanted_versions(&elf)?;
    if let Some(other) = versions.iter().find(|version| glibc(version).is_none()) {
        bail!("'{name}' needs {other}: allowed is the C library alone, and of it what is public");
    }
    match versions.iter().filter_map(|version| glibc(version)).max() {
        None => bail!("'{name}' asks for no version of the C library at all: is it a program?"),
        Some((major, minor)) if (major, minor) > GLIBC => {
            let most = format!("{}.{}", GLIBC.0, GLIBC.1);
            bail!("'{name}' needs GLIBC_{major}.{minor}; allowed is up to GLIBC_{most}")
        }
        Some(_) => Ok(()),
    }
}

fn rendered(text: &[u8]) -> Result<Vec<u8>> {
    let text = std::str::from_utf8(text)?.replace("/usr/bin/mps-", "/usr/libexec/mpsd/mps-");
    let libexec = "PROGRAMS = \"/usr/libexec/mpsd\"";
    let text = text.replace("PROGRAMS = \"/usr/bin\"", libexec);
    match text.contains("/usr/libexec/mpsd") {
        true => Ok(text.into_bytes()),
        false => bail!("the text names none of our programs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    #[test]
    fn links_of_installed_pages_lead_to_installed_files() {
        let all = each_file().unwrap();
        let links = all.iter().filter(|entry| entry.kind == "link");
        let links = links.map(|entry| (&entry.to, plain(&entry.to, &entry.from)));
        let links: Vec<_> = links.collect();
        let there: BTreeSet<_> = all.iter().map(|entry| PathBuf::from(&entry.to)).collect();
        let is_page = |entry: &&Entry| entry.to.starts_with(GUIDE) && entry.to.ends_with(".md");
        let mut found = 0;
        for entry in all.iter().filter(is_page) {
            let text = fs::read_to_string(cargo::root().unwrap().join(&entry.from)).unwrap();
            let text = page(&text);
            let parts = text.split("](").skip(1);
            let targets = parts.filter_map(|rest| rest.split([')', '#']).next());
            for target in targets.filter(|to| !to.is_empty() && !to.contains(':')) {
                let mut path = plain(&entry.to, target);
                if let Some((link, to)) = links.iter().find(|(link, _)| path.starts_with(link)) {
                    path = to.join(path.strip_prefix(link).unwrap());
                }
                assert!(there.contains(&path), "{}: '{target}'", entry.to);
                found += 1;
            }
        }
        assert!(found > 100, "{found}");
    }

    /// `to` as seen from the folder of `from`.
    fn plain(from: &str, to: &str) -> PathBuf {
        let mut path = Path::new(from).parent().unwrap().to_owned();
        for part in to.split('/') {
            match part {
                ".." => assert!(path.pop()),
                part => path.push(part),
            }
        }
        path
    }

    #[test]
    fn a_program_that_needs_a_second_library_is_not_packed() {
        let own = fs::read("/proc/self/exe").unwrap();
        let why = |machine| runs_there("own", &own, machine).unwrap_err().to_string();
        let own = why(Machine::OWN);
        assert!(own.contains("'own' needs GCC_"), "{own}");
        let all = [Machine::X86, Machine::Arm].map(why);
        let is_other = |why: &String| why.starts_with("'own' is not built for ");
        assert!(all.iter().any(is_other), "{all:?}");
    }
}
