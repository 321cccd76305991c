//! Debian's packages: a directory for each, `DEBIAN` in it, and `dpkg-deb`.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use fs_err as fs;

use super::layout::Package;
use super::release::{HOMEPAGE, MAINTAINER, Release, date, gzip, take_over};
use crate::command::{command, quietly, wrote};
use crate::install;

pub fn pack(release: &Release, work: &Path, out: &Path) -> Result<Vec<PathBuf>> {
    install::program("/usr/bin/dpkg-deb", "dpkg")?;
    let packages = Package::ALL.into_iter();
    packages
        .map(|package| one(release, package, &work.join("deb"), out))
        .collect()
}

fn one(release: &Release, package: Package, work: &Path, out: &Path) -> Result<PathBuf> {
    let dir = work.join(package.name());
    let (architecture, compression) = match package {
        // Scripts alone.
        Package::Pbs => ("all", 6),
        Package::Base | Package::Slurm => (release.machine.debian(), release.compression),
    };
    let version = &release.version;
    fs::create_dir_all(&dir)?;
    let own = release.files.iter().filter(|file| file.package == package);
    let paths = own.map(|file| file.to.trim_start_matches('/'));
    let paths: Vec<&str> = paths.collect();
    let words = "--no-dereference --preserve=mode --parents --target-directory";
    let mut copy = command("cp", words);
    quietly(copy.arg(&dir).args(&paths).current_dir(&release.tree))?;
    let pages = paths
        .iter()
        .filter(|path| path.starts_with("usr/share/man/"));
    for page in pages {
        gzip(&dir.join(page))?;
    }
    documents(release, package, version, &dir)?;
    control(release, package, [version, architecture], &dir)?;
    let name = format!("{}_{version}_{architecture}.deb", package.name());
    let made = work.join(&name);
    let words = "-type d -exec chmod 755 {} +";
    quietly(Command::new("find").arg(&dir).args(words.split(' ')))?;
    let mut command = Command::new("/usr/bin/dpkg-deb");
    command.args(["--root-owner-group", "-Zxz", &format!("-z{compression}")]);
    command.arg("--build").args([&dir, &made]);
    quietly(command.env("SOURCE_DATE_EPOCH", release.epoch.to_string()))?;
    take_over(&made, out)
}

fn documents(release: &Release, package: Package, version: &str, dir: &Path) -> Result<()> {
    let doc = dir.join("usr/share/doc").join(package.name());
    fs::create_dir_all(&doc)?;
    let mit = fs::read_to_string("LICENSE-MIT")?;
    let mit = mit.lines().map(|line| match line {
        "" => " .".to_owned(),
        line => format!(" {line}"),
    });
    let mit: Vec<String> = mit.collect();
    let copyright = fs::read_to_string("packaging/deb/copyright")?;
    let copyright = copyright.replace("@MIT@", &mit.join("\n"));
    fs::write(doc.join("copyright"), copyright)?;
    let date = date(release.epoch, "-R")?;
    let changelog = format!(
        "mpsd ({version}) unstable; urgency=medium\n\n  * See /usr/share/doc/mpsd/CHANGELOG.md.\n\n -- {}  {date}\n",
        MAINTAINER
    );
    fs::write(doc.join("changelog"), changelog)?;
    gzip(&doc.join("changelog"))?;
    let name = format!("{}.lintian-overrides", package.name());
    let overrides = Path::new("packaging/deb").join(name);
    if overrides.exists() {
        let to = dir.join("usr/share/lintian/overrides");
        fs::create_dir_all(&to)?;
        fs::write(to.join(package.name()), fs::read_to_string(overrides)?)?;
    }
    Ok(())
}

fn control(
    release: &Release,
    package: Package,
    [version, architecture]: [&str; 2],
    dir: &Path,
) -> Result<()> {
    let recipes = Path::new("packaging/deb");
    let recipe = |name: &str| recipes.join(format!("{}.{name}", package.name()));
    let into = dir.join("DEBIAN");
    let (sums, size) = sums_and_size(dir)?;
    fs::create_dir_all(&into)?;
    let control = fs::read_to_string(recipe("control"))?
        .replace("@VERSION@", version)
        .replace("@ARCH@", architecture)
        .replace("@MAINTAINER@", MAINTAINER)
        .replace("@HOMEPAGE@", HOMEPAGE)
        .replace("@SIZE@", &size.to_string());
    fs::write(into.join("control"), control)?;
    fs::write(into.join("md5sums"), sums)?;
    let own = release.files.iter().filter(|file| file.package == package);
    let kept = own.filter(|file| file.to.starts_with("/etc/"));
    let kept: String = kept.map(|file| format!("{}\n", file.to)).collect();
    if !kept.is_empty() {
        fs::write(into.join("conffiles"), kept)?;
    }
    for name in ["postinst", "prerm", "postrm", "triggers"] {
        let mode = if name == "triggers" { 0o644 } else { 0o755 };
        let (from, to) = (recipe(name), into.join(name));
        if from.exists() {
            fs::copy(&from, &to)?;
            fs::set_permissions(&to, Permissions::from_mode(mode))?;
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
