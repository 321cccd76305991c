//! RPM packages: a spec filled in with the staged tree's files, and `rpmbuild`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use fs_err as fs;

use super::layout::Package;
use super::release::{HOMEPAGE, MAINTAINER, Release, date, gzip, take_over};
use crate::command::{command, quietly};
use crate::files::list;
use crate::install;

const DEBIANS_ZSH: &str = "/usr/share/zsh/vendor-completions";
const RPMS_ZSH: &str = "/usr/share/zsh/site-functions";

/// Its files are compressed, as brp-compress does it.
const MAN: &str = "/usr/share/man/";

pub fn pack(release: &Release, work: &Path, out: &Path) -> Result<Vec<PathBuf>> {
    install::program("/usr/bin/rpmbuild", "rpm")?;
    let top = work.join("rpm");
    let tree = top.join("tree");
    fs::create_dir_all(&top)?;
    quietly(Command::new("cp").arg("-a").args([&release.tree, &tree]))?;
    let inside = |path: &str| tree.join(path.trim_start_matches('/'));
    fs::rename(inside(DEBIANS_ZSH), inside(RPMS_ZSH))?;
    let pages = release.files.iter();
    for page in pages.filter(|file| file.to.starts_with(MAN)) {
        gzip(&inside(&page.to))?;
    }
    let spec = top.join("mpsd.spec");
    fs::write(&spec, text(release, &tree)?)?;
    let made = top.join("made");
    let words = format!("-bb --nodeps --target={}-linux", release.machine.name());
    let mut command = command("/usr/bin/rpmbuild", &words);
    for line in [
        &*format!("_topdir {}", top.display()),
        &format!("_rpmdir {}", made.display()),
        "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
        "_buildhost localhost",
        // Also for packages for all machines, so that they are the same wherever and for whichever
        // machine they are built.
        "_target_platform linux",
        "optflags -O2",
        "use_source_date_epoch_as_buildtime 1",
        "clamp_mtime_to_source_date_epoch 1",
    ] {
        command.args(["--define", line]);
    }
    command.env("SOURCE_DATE_EPOCH", release.epoch.to_string());
    quietly(command.arg(&spec))?;
    let packages = list(&made)?;
    let (is, wanted) = (packages.len(), Package::ALL.len());
    if is != wanted {
        bail!("rpmbuild made {is} packages, not {wanted}");
    }
    let packages = packages.iter();
    packages.map(|package| collect(package, out)).collect()
}

fn collect(package: &Path, out: &Path) -> Result<PathBuf> {
    if package.to_string_lossy().ends_with(".noarch.rpm") {
        let mut bytes = fs::read(package)?;
        settle_lead(&mut bytes)?;
        fs::write(package, bytes)?;
    }
    take_over(package, out)
}

/// Sets the machine's number in the lead, which rpm and its sums ignore. A package for all machines
/// would have that of the machine that it was packed beside. x86_64's stands for all.
fn settle_lead(package: &mut [u8]) -> Result<()> {
    const MAGIC: [u8; 4] = [0xed, 0xab, 0xee, 0xdb];
    if !package.starts_with(&MAGIC) {
        bail!("what rpmbuild made is no RPM package");
    }
    let machine = package.get_mut(8..10).context("a package without a lead")?;
    machine.copy_from_slice(&[0, 1]);
    Ok(())
}

fn text(release: &Release, tree: &Path) -> Result<String> {
    let spec = fs::read_to_string("packaging/rpm/mpsd.spec")?;
    Ok(spec
        .replace("@VERSION@", &release.version)
        .replace("@MAINTAINER@", MAINTAINER)
        .replace("@HOMEPAGE@", HOMEPAGE)
        .replace("@STAGE@", tree.to_str().context("a path that is not text")?)
        .replace("@COMPRESSION@", &release.compression.to_string())
        .replace("@DATE@", &date(release.epoch, "+%a %b %d %Y")?)
        .replace("@FILES_BASE@", &files(release, Package::Base))
        .replace("@FILES_PBS@", &files(release, Package::Pbs))
        .replace("@FILES_SLURM@", &files(release, Package::Slurm)))
}

fn files(release: &Release, package: Package) -> String {
    let mut lines = vec!["%defattr(-,root,root,755)".to_owned()];
    let mut directories = BTreeSet::new();
    for file in release.files.iter().filter(|file| file.package == package) {
        let mut path = file.to.replace(DEBIANS_ZSH, RPMS_ZSH);
        if path.starts_with(MAN) {
            path.push_str(".gz");
        }
        let ours = Path::new(&path).ancestors().skip(1);
        let ours = ours.filter(|directory| is_ours(directory));
        directories.extend(ours.map(|directory| format!("%dir {}", directory.display())));
        let mode = file
            .mode
            .map(|mode| format!("%attr({mode:04o},root,root) "));
        let kept = path.starts_with("/etc/").then_some("%config(noreplace) ");
        let (mode, kept) = (mode.unwrap_or_default(), kept.unwrap_or_default());
        lines.push(format!("{mode}{kept}{path}"));
    }
    lines.extend(directories);
    lines.join("\n")
}

/// A directory with our name in its path leaves with the last package that has a file in it. So
/// does enroot's, which exists for our file alone if enroot is not installed.
fn is_ours(directory: &Path) -> bool {
    let mut parts = directory.iter();
    parts.any(|part| part == "mpsd" || part == "enroot")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_packages_that_differ_in_their_machine_alone_become_one() {
        let packed_for = |number: u8| {
            let lead = [0xed, 0xab, 0xee, 0xdb, 3, 0, 0, 0, 0, number];
            [&lead[..], b"mpsd-pbs"].concat()
        };
        let mut arm = packed_for(19);
        settle_lead(&mut arm).unwrap();
        assert_eq!(arm, packed_for(1));
        assert!(settle_lead(&mut [0; 12]).is_err() && settle_lead(&mut [0xed, 0xab]).is_err());
    }
}
