//! RPM packages: a spec filled in with the staged tree's files, and `rpmbuild`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::layout::Package;
use super::release::{Release, date, gzip, same_if_there};
use crate::command::quietly;
use crate::{cargo, install};

/// Where Debian's and the RPM systems' shells look for completions that packages bring.
const SHELLS: [(&str, &str); 1] = [(
    "/usr/share/zsh/vendor-completions/",
    "/usr/share/zsh/site-functions/",
)];

/// Their files are compressed, as brp-compress does it.
const MAN: &str = "/usr/share/man/";

/// Makes the packages in `out`, working below `work`.
pub fn pack(release: &Release, work: &Path, out: &Path) -> Result<Vec<PathBuf>> {
    install::program("/usr/bin/rpmbuild", "rpm", "rpm-build")?;
    let top = work.join("rpm");
    let tree = top.join("tree");
    fs::create_dir_all(&top)?;
    quietly(Command::new("cp").arg("-a").arg(&release.tree).arg(&tree))?;
    for (debian, here) in SHELLS {
        let (from, to) = (inside(&tree, debian), inside(&tree, here));
        fs::create_dir_all(to.parent().context("no parent")?)?;
        fs::rename(&from, &to).with_context(|| format!("cannot move '{}'", from.display()))?;
    }
    for page in release.files.iter().filter(|file| file.path.starts_with(MAN)) {
        gzip(&inside(&tree, &page.path))?;
    }
    let spec = top.join("mpsd.spec");
    fs::write(&spec, text(release, &tree)?)?;
    let macros = [
        format!("_topdir {}", top.display()),
        format!("_rpmdir {}", top.join("made").display()),
        "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm".to_owned(),
        "_buildhost localhost".to_owned(),
        // Of what is for every machine too, so that it is the same wherever it is built, and for whichever.
        "_target_platform linux".to_owned(),
        "optflags -O2".to_owned(),
        "use_source_date_epoch_as_buildtime 1".to_owned(),
        "clamp_mtime_to_source_date_epoch 1".to_owned(),
    ];
    let mut command = Command::new("/usr/bin/rpmbuild");
    command
        .arg("-bb")
        .arg("--nodeps")
        .arg(format!("--target={}-linux", release.machine.name()))
        .env("SOURCE_DATE_EPOCH", release.epoch.to_string());
    for line in &macros {
        command.args(["--define", line]);
    }
    quietly(command.arg(&spec))?;
    collect(&top.join("made"), out)
}

fn inside(tree: &Path, path: &str) -> PathBuf {
    tree.join(path.trim_start_matches('/').trim_end_matches('/'))
}

fn collect(made: &Path, out: &Path) -> Result<Vec<PathBuf>> {
    let mut packages = Vec::new();
    for entry in fs::read_dir(made).with_context(|| format!("cannot list '{}'", made.display()))? {
        let from = entry?.path();
        let to = out.join(from.file_name().context("no name")?);
        if to.to_string_lossy().ends_with(".noarch.rpm") {
            let mut bytes = fs::read(&from)?;
            settle_lead(&mut bytes)?;
            fs::write(&from, bytes)?;
        }
        same_if_there(&from, &to)?;
        fs::rename(&from, &to).with_context(|| format!("cannot move '{}'", from.display()))?;
        packages.push(to);
    }
    if packages.len() != Package::ALL.len() {
        bail!(
            "rpmbuild made {} packages, not {}",
            packages.len(),
            Package::ALL.len()
        );
    }
    Ok(packages)
}

/// The number of a machine in what stands before RPM's header, which rpm and its sums leave out: of a package for every machine it is that of the one
/// it was packed beside. x86_64's stands for all.
fn settle_lead(package: &mut [u8]) -> Result<()> {
    const MAGIC: [u8; 4] = [0xed, 0xab, 0xee, 0xdb];
    let machine = package.get_mut(8..10).context("a package without a lead")?;
    machine.copy_from_slice(&[0, 1]);
    match package.starts_with(&MAGIC) {
        true => Ok(()),
        false => bail!("what rpmbuild made is no RPM package"),
    }
}

fn text(release: &Release, tree: &Path) -> Result<String> {
    let spec = fs::read_to_string(cargo::root()?.join("packaging/rpm/mpsd.spec"))?;
    let stage = tree.to_str().context("a path that is not text")?;
    Ok(spec
        .replace("@VERSION@", &release.version)
        .replace("@REVISION@", &release.revision.to_string())
        .replace("@STAGE@", stage)
        .replace("@DATE@", &date(release.epoch, "+%a %b %d %Y")?)
        .replace("@FILES_BASE@", &files(release, Package::Base))
        .replace("@FILES_PBS@", &files(release, Package::Pbs))
        .replace("@FILES_SLURM@", &files(release, Package::Slurm)))
}

fn files(release: &Release, package: Package) -> String {
    let mut lines = vec!["%defattr(-,root,root,755)".to_owned()];
    let mut directories = BTreeSet::new();
    for file in release.files.iter().filter(|file| file.package == package) {
        let mut path = file.path.clone();
        for (debian, here) in SHELLS {
            path = path.replace(debian, here);
        }
        if path.starts_with(MAN) {
            path.push_str(".gz");
        }
        let ancestors = Path::new(&path).ancestors().skip(1);
        directories.extend(
            ancestors
                .filter(|directory| is_ours(directory))
                .map(Path::to_owned),
        );
        let mode = file
            .mode
            .map_or(String::new(), |mode| format!("%attr({mode:04o},root,root) "));
        let kept = if path.starts_with("/etc/") {
            "%config(noreplace) "
        } else {
            ""
        };
        lines.push(format!("{mode}{kept}{path}"));
    }
    lines.extend(
        directories
            .iter()
            .map(|directory| format!("%dir {}", directory.display())),
    );
    lines.join("\n")
}

/// A directory with our name in its path goes with the last package that has a file in it; enroot's as well, which is there
/// for nobody else where enroot is not.
fn is_ours(directory: &Path) -> bool {
    let ours = |name| directory.components().any(|part| part.as_os_str() == name);
    ours("mpsd") || ours("enroot")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_packages_that_differ_in_their_machine_alone_become_one() {
        let packed_for =
            |number: u8| [&[0xed, 0xab, 0xee, 0xdb, 3, 0, 0, 0, 0, number][..], b"mpsd-pbs"].concat();
        let (mut x86, mut arm) = (packed_for(1), packed_for(19));
        settle_lead(&mut x86).unwrap();
        settle_lead(&mut arm).unwrap();
        assert_eq!((&x86, &arm), (&packed_for(1), &x86));
        assert!(settle_lead(&mut [0; 12]).is_err() && settle_lead(&mut [0xed, 0xab]).is_err());
    }

    #[test]
    fn only_directories_of_ours_go_with_the_package() {
        for ours in [
            "/usr/lib/mpsd/spank/22.05",
            "/etc/mpsd",
            "/usr/share/mpsd",
            "/etc/enroot/hooks.d",
        ] {
            assert!(is_ours(Path::new(ours)), "{ours}");
        }
        for foreign in ["/usr/lib", "/", "/usr/share/man/man8", "/etc/profile.d"] {
            assert!(!is_ours(Path::new(foreign)), "{foreign}");
        }
    }
}
