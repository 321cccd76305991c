//! The signed repositories: apt and dnf install from them by the guide's lines, and from no other's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::cluster::Cluster;
use crate::guide::commands;
use crate::install::distribution;
use crate::root::Root;
use crate::stopwatch::Stopwatch;
use crate::{BEFORE, NAMES, arm64, older, package, packages, run, said, skip};

/// Where the guide has it.
const PLACE: &str = "/srv/mpsd";
/// The test's own key.
const KEY: &str = "mpsd test <mpsd@mpsd.invalid>";

/// gpg's directory with a key in it; its agent ends with it.
struct Keys(PathBuf);

impl Keys {
    fn make() -> Keys {
        // Below /tmp, since an agent's socket has no room for a long path.
        let dir = std::env::temp_dir().join(format!("mpsd-keys-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        run(Command::new("chmod").arg("700").arg(&dir));
        let keys = Keys(dir);
        let words = [
            "--batch",
            "--quiet",
            "--passphrase",
            "",
            "--quick-generate-key",
            KEY,
        ];
        run(keys.gpg().args(words).args(["rsa3072", "sign", "never"]));
        keys
    }

    fn gpg(&self) -> Command {
        let mut command = Command::new("gpg");
        command.env("GNUPGHOME", &self.0);
        command
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let mut end = Command::new("gpgconf");
        let _ = end.args(["--kill", "all"]).env("GNUPGHOME", &self.0).output();
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Both repositories, made by the first who asks, of the packages that are there.
pub fn repository() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("repository");
        let _ = fs::remove_dir_all(&dir);
        let keys = Keys::make();
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages-of-repository");
        let _ = fs::remove_dir_all(&out);
        fs::create_dir(&out).unwrap();
        for made in [packages()].into_iter().chain(arm64::made()) {
            run(Command::new("cp").arg("-rT").arg(made).arg(&out));
        }
        command
            .args(["dist", "--packed", "--out"])
            .arg(out)
            .env("GNUPGHOME", &keys.0);
        run(command.arg("--repository").arg(&dir).args(["--key", KEY]));
        dir
    })
}

/// Copies it to where the guide has it.
pub fn place(root: &Root) {
    let to = root.at(PLACE);
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    run(Command::new("cp").arg("-rT").arg(repository()).arg(to));
}

/// On a machine that has nothing of ours, and no other repository within its reach.
pub fn apt_installs_from_it(root: &Root, cluster: &Cluster) {
    root.write("/etc/apt/sources.list", "");
    place(root);
    for step in commands("install.md", "From a repository with apt") {
        cluster.administrator(&step);
    }
    let have = ["dpkg-query", "-W", "-f", "${Status}\n", "mpsd", "mpsd-slurm"];
    let have = cluster.machine.run(&have);
    assert_eq!(have, "install ok installed\ninstall ok installed\n");
    cluster.machine.run(&["mpsctl", "--version"]);
    // Another's signature, and a list that was changed after it was signed.
    let list = format!("{PLACE}/apt/InRelease");
    let changed = root.read(&list).replace("Label: mpsd", "Label: other");
    root.write(&list, &changed);
    let words = ["apt-get", "update", "-o", "APT::Update::Error-Mode=any"];
    let refused = cluster.machine.output(&words);
    let why = said(&refused);
    // apt of Debian 12 verifies by gpgv, of Debian 13 by sqv; each has words of its own.
    assert!(!refused.status.success() && why.contains("ignature"), "{why}");
}

/// On a machine that has nothing of ours, and no other repository within dnf's reach; those lines alone are the stopwatch's.
pub fn dnf_installs_from_it(root: &Root, cluster: &Cluster, watch: &mut Stopwatch) {
    distribution(root);
    place(root);
    fs::create_dir_all(root.at("/etc/yum.repos.d")).unwrap();
    for step in commands("install.md", "From a repository with dnf") {
        watch.take(&step, || cluster.administrator(&step));
    }
    cluster.machine.run(&["rpm", "--verify", "mpsd", "mpsd-slurm"]);
}

#[test]
fn both_repositories_have_the_packages_of_both_machines() {
    if arm64::made().is_none() {
        return skip(
            "arm64 in the repositories",
            "Rust's library for it is not installed",
        );
    }
    let apt = fs::read_to_string(repository().join("apt/Packages")).unwrap();
    let of = |name: &str| {
        let lines = apt
            .lines()
            .filter(|line| line.strip_prefix("Architecture: ") == Some(name));
        lines.count()
    };
    assert_eq!((of("amd64"), of("arm64"), of("all")), (2, 2, 1), "{apt}");
    let release = fs::read_to_string(repository().join("apt/Release")).unwrap();
    assert!(release.contains("Architectures: amd64 arm64\n"), "{release}");
    let mut list = Command::new("sh");
    let dnf = run(list
        .args(["-c", "zcat repodata/*-primary.xml.gz"])
        .current_dir(repository().join("dnf")));
    for (name, count) in [("x86_64", 2), ("aarch64", 2), ("noarch", 1)] {
        assert_eq!(
            dnf.matches(&format!("<arch>{name}</arch>")).count(),
            count,
            "{dnf}"
        );
    }
}

#[test]
fn dnf_installs_from_the_repository_and_from_the_packages() {
    if !Path::new("/usr/bin/dnf").exists() {
        let words = ["install", "-y", "-q", "--no-install-recommends", "dnf"];
        let output = Command::new("apt-get")
            .args(words)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .output();
        match output {
            Ok(output) if output.status.success() => {}
            Ok(output) => return skip("dnf", &said(&output)),
            Err(error) => return skip("dnf", &error.to_string()),
        }
    }
    let rpms = NAMES.map(|name| package(name, ".rpm"));
    let before = NAMES.map(|name| older(name, ".rpm"));
    repository();
    Root::with("dnf", move |root| {
        distribution(root);
        place(root);
        fs::create_dir_all(root.at("/etc/yum.repos.d")).unwrap();
        for file in &rpms {
            fs::create_dir_all(root.at("/root/packages")).unwrap();
            let to = root.at("/root/packages").join(file.file_name().unwrap());
            fs::copy(file, to).unwrap();
        }
        // In a pid namespace of its own, which ends the agent of gpg's that dnf leaves behind.
        const ALONE: [&str; 6] = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-ec"];
        let shell = |line: &str| root.output(&[&ALONE[..], &[line]].concat());
        let typed = |step: &str| {
            let output = shell(&format!("cd /root/packages\n{step}"));
            assert!(output.status.success(), "{step}: {}", said(&output));
        };
        let are_there = || {
            root.run(&["rpm", "--query", "mpsd", "mpsd-slurm"]);
            root.run(&["mpsctl", "--version"]);
            root.run(&["rpm", "--erase", "mpsd-slurm", "mpsd"]);
        };
        for step in commands("install.md", "From a repository with dnf") {
            typed(&step);
        }
        are_there();
        let by_dnf = |steps: Vec<String>| steps.into_iter().filter(|step| step.starts_with("dnf "));
        by_dnf(commands("install.md", "From the packages")).for_each(|step| typed(&step));
        // The older ones in their place.
        for file in &rpms {
            fs::remove_file(root.at("/root/packages").join(file.file_name().unwrap())).unwrap();
        }
        for file in &before {
            fs::copy(file, root.at("/root/packages").join(file.file_name().unwrap())).unwrap();
        }
        by_dnf(commands("install.md", "Back to an older release")).for_each(|step| typed(&step));
        let have = root.run(&["rpm", "--query", "--qf", "%{VERSION}\n", "mpsd", "mpsd-slurm"]);
        assert_eq!(have.matches(BEFORE).count(), 2, "{have}");
        are_there();
        // A list that was changed after it was signed.
        let list = format!("{PLACE}/dnf/repodata/repomd.xml");
        root.write(&list, &(root.read(&list) + "\n"));
        let refused = shell("dnf clean all\ndnf install -y mpsd");
        assert!(
            !refused.status.success() && said(&refused).contains("GPG"),
            "{}",
            said(&refused)
        );
    });
}
