//! The signed repositories: apt and dnf install from them by the guide's commands, and from no
//! others.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use assert_cmd::assert::OutputAssertExt as _;
use predicates::str::contains;

use crate::guide::commands;
use crate::install::distribution;
use crate::machine::Machine;
use crate::root::Root;
use crate::stopwatch::Stopwatch;
use crate::{
    BEFORE, NAMES, arm64, emptied, older, package, packages, run, said, says, skip, target, try_run,
};

/// The guide's place for it.
const PLACE: &str = "/srv/mpsd";
const KEY: &str = "mpsd test <mpsd@mpsd.invalid>";

struct Keys(PathBuf);

impl Keys {
    fn make(passphrase: &str) -> Keys {
        // Below /tmp, because the path of an agent's socket must be short.
        let name = format!("mpsd-keys-{}{passphrase}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir).unwrap();
        run(Command::new("chmod").arg("700").arg(&dir));
        let keys = Keys(dir);
        let mut make = Command::new("gpg");
        make.args(["--batch", "--quiet", "--passphrase", passphrase]);
        make.args(["--quick-generate-key", KEY, "rsa3072", "sign", "never"]);
        run(make.env("GNUPGHOME", &keys.0));
        keys
    }

    fn end_agent(&self) {
        let mut end = Command::new("gpgconf");
        let end = end.args(["--kill", "all"]).env("GNUPGHOME", &self.0);
        let _ = end.output();
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.end_agent();
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Both repositories with the present packages, made by the first caller.
pub fn repository() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let dir = target("repository");
        let _ = fs::remove_dir_all(&dir);
        let out = emptied("packages-of-repository");
        for made in [packages()].into_iter().chain(arm64::made()) {
            run(Command::new("cp").arg("-rT").args([made, &out]));
        }
        let keys = Keys::make("");
        run(&mut signing(&out, &dir, &keys));
        dir
    })
}

fn signing(packages: &Path, dir: &Path, keys: &Keys) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(["dist", "--packed", "--out"]).arg(packages);
    command.arg("--repository").arg(dir).args(["--key", KEY]);
    command.env("GNUPGHOME", &keys.0);
    command
}

/// Nobody is there to type it, and a build takes minutes.
#[test]
fn a_key_with_a_passphrase_is_refused_first() {
    let (keys, dir) = (Keys::make("secret"), target("repository-unsigned"));
    // The agent would remember it.
    keys.end_agent();
    let refused = signing(packages(), &dir, &keys).assert().failure();
    refused.stderr(contains("a secret key without a passphrase"));
    assert!(!dir.exists(), "it was begun");
}

pub fn place(root: &Root) {
    let to = root.at(PLACE);
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    run(Command::new("cp").arg("-rT").arg(repository()).arg(to));
}

/// On a machine without anything of ours, and with no other repository.
pub fn apt_installs_from_it(root: &Root, cluster: &Machine) {
    root.write("/etc/apt/sources.list", "");
    place(root);
    for step in commands("install.md", "From a repository with apt") {
        cluster.administrator(&step);
    }
    let have = cluster.run("dpkg-query -W -f '${Status}\n' mpsd mpsd-slurm");
    assert_eq!(have, "install ok installed\ninstall ok installed\n");
    cluster.run("mpsctl --version");
    // Another's signature, and a list that was changed after signing.
    let list = format!("{PLACE}/apt/InRelease");
    let changed = root.read(&list).replace("Label: mpsd", "Label: other");
    root.write(&list, &changed);
    let why = cluster.fails("apt-get update -o APT::Update::Error-Mode=any");
    // Debian 12's apt verifies with gpgv, Debian 13's with sqv; their messages differ.
    says(&why, &["ignature"]);
}

/// On a machine without anything of ours, and with no other repository for dnf. The stopwatch
/// measures only those commands.
pub fn dnf_installs_from_it(root: &Root, cluster: &Machine, watch: &mut Stopwatch) {
    distribution(root);
    place(root);
    fs::create_dir_all(root.at("/etc/yum.repos.d")).unwrap();
    for step in commands("install.md", "From a repository with dnf") {
        watch.take(&step, || cluster.administrator(&step));
    }
    cluster.run("rpm --verify mpsd mpsd-slurm");
}

#[test]
fn both_repositories_have_the_packages_of_both_machines() {
    if arm64::made().is_none() {
        return skip("arm64 in the repositories", arm64::NO_LIBRARY);
    }
    let apt = fs::read_to_string(repository().join("apt/Packages")).unwrap();
    let of = |name: &str| apt.matches(&format!("\nArchitecture: {name}\n")).count();
    assert_eq!((of("amd64"), of("arm64"), of("all")), (2, 2, 1), "{apt}");
    let release = fs::read_to_string(repository().join("apt/Release")).unwrap();
    says(&release, &["Architectures: amd64 arm64\n"]);
    let mut list = Command::new("sh");
    list.args(["-c", "zcat repodata/*-primary.xml.gz"]);
    let dnf = run(list.current_dir(repository().join("dnf")));
    let of = |name| dnf.matches(&format!("<arch>{name}</arch>")).count();
    let counts = ["x86_64", "aarch64", "noarch"].map(of);
    assert_eq!(counts, [2, 2, 1], "{dnf}");
}

#[test]
fn dnf_installs_from_the_repository_and_from_the_packages() {
    let install = ["install", "-y", "-q", "--no-install-recommends", "dnf"];
    if !Path::new("/usr/bin/dnf").exists()
        && let Err(why) = try_run(Command::new("apt-get").args(install))
    {
        return skip("dnf", &why);
    }
    let rpms = NAMES.map(|name| package(name, ".rpm"));
    let before = NAMES.map(|name| older(name, ".rpm"));
    repository();
    Root::with("dnf", move |root| {
        distribution(root);
        place(root);
        fs::create_dir_all(root.at("/etc/yum.repos.d")).unwrap();
        let put = |files: &[PathBuf]| {
            let dir = root.at("/root/packages");
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir).unwrap();
            run(Command::new("cp").args(files).arg(dir));
        };
        // In its own pid namespace, which ends the gpg agent that dnf leaves behind.
        const ALONE: [&str; 6] = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-ec"];
        let shell = |line: &str| root.try_words(&[&ALONE[..], &[line]].concat());
        let typed = |step: String| {
            let output = shell(&format!("cd /root/packages\n{step}"));
            assert!(output.status.success(), "{step}: {}", said(&output));
        };
        let by_dnf = |heading| {
            let mut steps = commands("install.md", heading);
            steps.retain(|step| step.starts_with("dnf "));
            steps.into_iter().for_each(typed);
        };
        let are_there = || {
            root.run(
                "rpm --query mpsd mpsd-slurm && mpsctl --version && rpm --erase mpsd-slurm mpsd",
            );
        };
        put(&rpms);
        commands("install.md", "From a repository with dnf")
            .into_iter()
            .for_each(typed);
        are_there();
        by_dnf("From the packages");
        put(&before);
        by_dnf("Back to an older release");
        let have = root.run("rpm --query --qf '%{VERSION}\n' mpsd mpsd-slurm");
        assert_eq!(have.matches(BEFORE).count(), 2, "{have}");
        are_there();
        // A list that was changed after signing.
        let list = format!("{PLACE}/dnf/repodata/repomd.xml");
        root.write(&list, &(root.read(&list) + "\n"));
        let refused = shell("dnf clean all\ndnf install -y mpsd");
        let why = said(&refused);
        assert!(!refused.status.success() && why.contains("GPG"), "{why}");
    });
}
