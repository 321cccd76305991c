//! Debian's packages: a directory for each, `DEBIAN` in it, and `dpkg-deb`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::layout::Package;
use super::release::{Release, date, gzip, same_if_there};
use crate::command::quietly;
use crate::{cargo, install};

/// No person, and no host that takes mail: reports go to the repository.
const MAINTAINER: &str = "The mpsd authors <mpsd@mpsd.invalid>";

/// Makes the packages in `out`, working below `work`.
pub fn pack(release: &Release, work: &Path, out: &Path) -> Result<Vec<PathBuf>> {
    install::program("/usr/bin/dpkg-deb", "dpkg", "dpkg")?;
    Package::ALL
        .iter()
        .map(|package| one(release, *package, work, out))
        .collect()
}

/// Debian's name of the machine; scripts have none.
fn architecture(release: &Release, package: Package) -> &'static str {
    match package {
        Package::Pbs => "all",
        Package::Base | Package::Slurm => release.machine.debian(),
    }
}

/// Debian's number of the packages: the first ones of a version have the version's own.
fn version(release: &Release) -> String {
    match release.revision {
        1 => release.version.clone(),
        revision => format!("{}-{revision}", release.version),
    }
}

fn one(release: &Release, package: Package, work: &Path, out: &Path) -> Result<PathBuf> {
    let dir = work.join("deb").join(package.name());
    fs::create_dir_all(&dir)?;
    copy(release, package, &dir)?;
    documents(release, package, &dir)?;
    control(release, package, &dir)?;
    modes_of_directories(&dir)?;
    let name = format!(
        "{}_{}_{}.deb",
        package.name(),
        version(release),
        architecture(release, package)
    );
    let (made, file) = (work.join("deb").join(&name), out.join(&name));
    let mut command = Command::new("/usr/bin/dpkg-deb");
    command
        .args(["--root-owner-group", "-Zxz", "--build"])
        .arg(&dir)
        .arg(&made);
    quietly(command.env("SOURCE_DATE_EPOCH", release.epoch.to_string()))?;
    same_if_there(&made, &file)?;
    fs::rename(&made, &file).with_context(|| format!("cannot move '{}'", made.display()))?;
    Ok(file)
}

fn copy(release: &Release, package: Package, dir: &Path) -> Result<()> {
    for file in release.files.iter().filter(|file| file.package == package) {
        let relative = file.path.trim_start_matches('/');
        let (from, to) = (release.tree.join(relative), dir.join(relative));
        fs::create_dir_all(to.parent().unwrap_or(dir))?;
        match file.mode {
            None => std::os::unix::fs::symlink(fs::read_link(&from)?, &to)?,
            Some(_) => {
                fs::copy(&from, &to).with_context(|| format!("cannot copy '{}'", from.display()))?;
            }
        }
        if relative.starts_with("usr/share/man/") {
            gzip(&to)?;
        }
    }
    Ok(())
}

/// What Debian wants of every package: copyright, changelog, and why lintian is overridden.
fn documents(release: &Release, package: Package, dir: &Path) -> Result<()> {
    let root = cargo::root()?;
    let doc = dir.join("usr/share/doc").join(package.name());
    fs::create_dir_all(&doc)?;
    let mit = fs::read_to_string(root.join("LICENSE-MIT"))?;
    let mit: Vec<String> = mit
        .lines()
        .map(|line| {
            if line.is_empty() {
                " .".to_owned()
            } else {
                format!(" {line}")
            }
        })
        .collect();
    let copyright = fs::read_to_string(root.join("packaging/deb/copyright"))?;
    file(
        &doc.join("copyright"),
        &copyright.replace("@MIT@", &mit.join("\n")),
        0o644,
    )?;
    let changelog = format!(
        "mpsd ({}) unstable; urgency=medium\n\n  * See /usr/share/doc/mpsd/CHANGELOG.md.\n\n -- {MAINTAINER}  {}\n",
        version(release),
        date(release.epoch, "-R")?
    );
    let path = doc.join("changelog");
    file(&path, &changelog, 0o644)?;
    gzip(&path)?;
    let overrides = root.join(format!("packaging/deb/{}.lintian-overrides", package.name()));
    if overrides.exists() {
        let to = dir.join("usr/share/lintian/overrides");
        fs::create_dir_all(&to)?;
        file(&to.join(package.name()), &fs::read_to_string(overrides)?, 0o644)?;
    }
    Ok(())
}

fn control(release: &Release, package: Package, dir: &Path) -> Result<()> {
    let recipes = cargo::root()?.join("packaging/deb");
    let into = dir.join("DEBIAN");
    let (sums, size) = sums_and_size(dir)?;
    fs::create_dir_all(&into)?;
    let read = |name: &str| fs::read_to_string(recipes.join(format!("{}.{name}", package.name())));
    let control = read("control")?
        .replace("@VERSION@", &version(release))
        .replace("@ARCH@", architecture(release, package))
        .replace("@MAINTAINER@", MAINTAINER)
        .replace("@SIZE@", &size.to_string());
    file(&into.join("control"), &control, 0o644)?;
    file(&into.join("md5sums"), &sums, 0o644)?;
    let kept: Vec<&str> = release
        .files
        .iter()
        .filter(|file| file.package == package && file.path.starts_with("/etc/"))
        .map(|file| file.path.as_str())
        .collect();
    if !kept.is_empty() {
        file(&into.join("conffiles"), &format!("{}\n", kept.join("\n")), 0o644)?;
    }
    for (name, mode) in [
        ("postinst", 0o755),
        ("prerm", 0o755),
        ("postrm", 0o755),
        ("triggers", 0o644),
    ] {
        if let Ok(text) = read(name) {
            file(&into.join(name), &text, mode)?;
        }
    }
    Ok(())
}

/// The sums of the package's files, those that are no configuration's, and the room they take in KiB.
fn sums_and_size(dir: &Path) -> Result<(String, u64)> {
    let mut found = Vec::new();
    walk(dir, &mut found)?;
    found.sort();
    let size = found
        .iter()
        .filter_map(|path| fs::symlink_metadata(path).ok())
        .map(|meta| meta.len().div_ceil(1024))
        .sum();
    let mut command = Command::new("md5sum");
    command.current_dir(dir);
    for path in &found {
        let relative = path.strip_prefix(dir)?;
        if !relative.starts_with("etc") && !path.is_symlink() {
            command.arg(relative);
        }
    }
    let output = command.output().context("cannot start md5sum")?;
    Ok((String::from_utf8(output.stdout)?, size))
}

fn walk(dir: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            walk(&entry.path(), found)?;
        } else {
            found.push(entry.path());
        }
    }
    Ok(())
}

/// Whatever the umask.
fn modes_of_directories(dir: &Path) -> Result<()> {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            modes_of_directories(&entry.path())?;
        }
    }
    Ok(())
}

fn file(path: &Path, text: &str, mode: u32) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write '{}'", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(())
}
