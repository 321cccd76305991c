//! Debian's packages: a directory for each, `DEBIAN` in it, and `dpkg-deb`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::layout::Package;
use super::release::{Release, date, gzip, manifest, take_over};
use crate::command::{quietly, wrote};
use crate::files::{copy, list, make_dir, read_text, write};
use crate::{cargo, install};

pub fn pack(release: &Release, work: &Path, out: &Path) -> Result<Vec<PathBuf>> {
    install::program("/usr/bin/dpkg-deb", "dpkg", "dpkg")?;
    Package::ALL
        .iter()
        .map(|package| one(release, *package, &work.join("deb"), out))
        .collect()
}

fn one(release: &Release, package: Package, work: &Path, out: &Path) -> Result<PathBuf> {
    let dir = work.join(package.name());
    let architecture = match package {
        // Scripts alone.
        Package::Pbs => "all",
        Package::Base | Package::Slurm => release.machine.debian(),
    };
    // The first packages of a version have the version's own number.
    let version = match release.revision {
        1 => release.version.clone(),
        revision => format!("{}-{revision}", release.version),
    };
    for file in release.files.iter().filter(|file| file.package == package) {
        let relative = file.path.trim_start_matches('/');
        let (from, to) = (release.tree.join(relative), dir.join(relative));
        make_dir(to.parent().unwrap_or(&dir))?;
        match file.mode {
            None => std::os::unix::fs::symlink(fs::read_link(&from)?, &to)?,
            Some(_) => copy(&from, &to)?,
        }
        if relative.starts_with("usr/share/man/") {
            gzip(&to)?;
        }
    }
    documents(release, package, &version, &dir)?;
    control(release, package, [&version, architecture], &dir)?;
    let name = format!("{}_{version}_{architecture}.deb", package.name());
    let made = work.join(&name);
    modes_of_directories(&dir)?;
    let mut command = Command::new("/usr/bin/dpkg-deb");
    command
        .args(["--root-owner-group", "-Zxz", "--build"])
        .args([&dir, &made]);
    quietly(command.env("SOURCE_DATE_EPOCH", release.epoch.to_string()))?;
    take_over(&made, out)
}

fn modes_of_directories(dir: &Path) -> Result<()> {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    for path in list(dir)? {
        if path.is_dir() && !path.is_symlink() {
            modes_of_directories(&path)?;
        }
    }
    Ok(())
}

fn documents(release: &Release, package: Package, version: &str, dir: &Path) -> Result<()> {
    let root = cargo::root()?;
    let doc = dir.join("usr/share/doc").join(package.name());
    make_dir(&doc)?;
    let mit = read_text(root.join("LICENSE-MIT"))?;
    let mit = mit.lines().map(|line| match line {
        "" => " .".to_owned(),
        line => format!(" {line}"),
    });
    let mit: Vec<String> = mit.collect();
    let copyright = read_text(root.join("packaging/deb/copyright"))?;
    let copyright = copyright.replace("@MIT@", &mit.join("\n"));
    write(&doc.join("copyright"), copyright)?;
    let date = date(release.epoch, "-R")?;
    let changelog = format!(
        "mpsd ({version}) unstable; urgency=medium\n\n  * See /usr/share/doc/mpsd/CHANGELOG.md.\n\n -- {}  {date}\n",
        manifest("authors")?
    );
    write(&doc.join("changelog"), changelog)?;
    gzip(&doc.join("changelog"))?;
    let name = format!("{}.lintian-overrides", package.name());
    let overrides = root.join("packaging/deb").join(name);
    if overrides.exists() {
        let to = dir.join("usr/share/lintian/overrides");
        make_dir(&to)?;
        write(&to.join(package.name()), read_text(overrides)?)?;
    }
    Ok(())
}

fn control(
    release: &Release,
    package: Package,
    [version, architecture]: [&str; 2],
    dir: &Path,
) -> Result<()> {
    let recipes = cargo::root()?.join("packaging/deb");
    let recipe = |name: &str| recipes.join(format!("{}.{name}", package.name()));
    let into = dir.join("DEBIAN");
    let (sums, size) = sums_and_size(dir)?;
    make_dir(&into)?;
    let control = read_text(recipe("control"))?
        .replace("@VERSION@", version)
        .replace("@ARCH@", architecture)
        .replace("@MAINTAINER@", &manifest("authors")?)
        .replace("@HOMEPAGE@", &manifest("homepage")?)
        .replace("@SIZE@", &size.to_string());
    write(&into.join("control"), control)?;
    write(&into.join("md5sums"), sums)?;
    let own = release.files.iter().filter(|file| file.package == package);
    let kept = own.filter(|file| file.path.starts_with("/etc/"));
    let kept: String = kept.map(|file| format!("{}\n", file.path)).collect();
    if !kept.is_empty() {
        write(&into.join("conffiles"), kept)?;
    }
    for (name, mode) in [
        ("postinst", 0o755),
        ("prerm", 0o755),
        ("postrm", 0o755),
        ("triggers", 0o644),
    ] {
        let (from, to) = (recipe(name), into.join(name));
        if from.exists() {
            copy(&from, &to)?;
            fs::set_permissions(&to, fs::Permissions::from_mode(mode))?;
        }
    }
    Ok(())
}

/// The sums of the package's files, those that are no configuration's, and the room they take in
/// KiB.
fn sums_and_size(dir: &Path) -> Result<(String, u64)> {
    let mut find = Command::new("find");
    find.args([".", "!", "-type", "d", "-printf", "%y %s %P\\n"]);
    let found = wrote(find.current_dir(dir))?;
    let mut size = 0;
    let mut summed = Vec::new();
    for line in found.lines() {
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        let [kind, bytes, path] = words[..] else {
            continue;
        };
        size += bytes.parse::<u64>()?.div_ceil(1024);
        if kind == "f" && !path.starts_with("etc/") {
            summed.push(path);
        }
    }
    summed.sort_unstable();
    let sums = wrote(Command::new("md5sum").args(summed).current_dir(dir))?;
    Ok((sums, size))
}
