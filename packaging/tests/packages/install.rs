//! Installing, upgrading, removing, by the systems' own package managers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::root::Root;
use crate::{NAMES, package, run};

/// Every program, by the path that people and schedulers use.
const PROGRAMS: [&str; 7] = [
    "/usr/bin/mpsctl",
    "/usr/bin/mps-probe",
    "/usr/libexec/mpsd/mpsd",
    "/usr/libexec/mpsd/mpsctl",
    "/usr/libexec/mpsd/mps-probe",
    "/usr/libexec/mpsd/mps-prologue",
    "/usr/libexec/mpsd/mps-epilogue",
];

/// Files of the site's that nobody may touch.
const FOREIGN: [(&str, &str); 3] = [
    (
        "/var/spool/torque/mom_priv/prologue",
        "#!/bin/sh\n# the site's own\nexit 0\n",
    ),
    (
        "/etc/slurm/plugstack.conf",
        "# the site's own\ninclude /etc/slurm/plugstack.conf.d/*.conf\n",
    ),
    ("/etc/mpsd/site-notes", "kept\n"),
];

fn put_foreign(root: &Root) {
    for (path, text) in FOREIGN {
        root.write(path, text);
    }
}

#[track_caller]
fn foreign_is_as_it_was(root: &Root) {
    for (path, text) in FOREIGN {
        assert_eq!(root.read(path), text, "{path}");
    }
}

fn programs_run(root: &Root) {
    for program in PROGRAMS {
        let said = root.run(&[program, "--version"]);
        assert!(said.contains(env!("CARGO_PKG_VERSION")), "{program}: {said}");
    }
    root.run(&["/usr/bin/mpsctl", "config", "show"]);
}

/// Nothing of ours in what a scheduler reads, and no unit is enabled.
fn nothing_is_active(root: &Root) {
    foreign_is_as_it_was(root);
    for dir in [
        "/etc/slurm",
        "/var/spool/torque",
        "/var/spool/pbs",
        "/etc/systemd/system",
    ] {
        let found = Command::new("find")
            .arg(root.at(dir))
            .args(["-name", "*mps*"])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&found.stdout), "", "{dir}");
    }
}

fn gone(root: &Root, but: &[&str]) {
    for place in ["/usr/bin", "/usr/libexec", "/usr/lib/mpsd", "/usr/share", "/etc"] {
        let place_in = root.at(place);
        if !place_in.exists() {
            continue;
        }
        let found = Command::new("find")
            .arg(&place_in)
            .args(["(", "-name", "mpsd*", "-o", "-name", "mpsctl*", ")"])
            .output();
        let text = String::from_utf8(found.unwrap().stdout).unwrap();
        let left: Vec<&str> = text
            .lines()
            .filter(|line| !but.iter().any(|kept| Path::new(line) == root.at(kept)))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn the_debian_packages_install_upgrade_and_leave() {
    if !Path::new("/var/lib/dpkg/status").exists() {
        println!("skipped: Debian packages: this system is not Debian's");
        return;
    }
    let debs = NAMES.map(|name| package(name, ".deb"));
    let newer = NAMES.map(newer);
    Root::with("deb", move |root| {
        put_foreign(root);
        dpkg(root, &debs);
        programs_run(root);
        nothing_is_active(root);
        let changed = format!(
            "{}deadline_s = 25\n",
            root.read("/etc/mpsd/mpsd.toml")
                .split("[defaults]")
                .next()
                .unwrap()
        );
        root.write("/etc/mpsd/mpsd.toml", &changed);

        dpkg(root, &newer);
        assert_eq!(
            root.read("/etc/mpsd/mpsd.toml"),
            changed,
            "the administrator's configuration was replaced"
        );
        programs_run(root);
        nothing_is_active(root);

        root.run(&["dpkg", "--remove", "mpsd-slurm", "mpsd-pbs", "mpsd"]);
        assert_eq!(
            root.read("/etc/mpsd/mpsd.toml"),
            changed,
            "removal took the configuration"
        );
        foreign_is_as_it_was(root);
        let kept = [
            "/etc/mpsd",
            "/etc/mpsd/mpsd.toml",
            "/etc/profile.d/mpsd.sh",
            "/etc/profile.d/mpsd.csh",
        ];
        gone(root, &kept);

        root.write("/var/lib/mpsd/drains/gpu001", "ours\n");
        root.run(&["dpkg", "--purge", "mpsd-slurm", "mpsd-pbs", "mpsd"]);
        gone(root, &["/etc/mpsd"]);
        assert!(!root.at("/var/lib/mpsd").exists());
        foreign_is_as_it_was(root);
    });
}

pub fn dpkg(root: &Root, packages: &[PathBuf]) {
    let files: Vec<String> = packages.iter().map(|package| root.take(package)).collect();
    let mut words = vec!["dpkg", "--install"];
    words.extend(files.iter().map(String::as_str));
    root.run(&words);
}

/// The same package under a higher number.
pub fn newer(name: &str) -> PathBuf {
    let own = format!("newer-{name}-{:?}", std::thread::current().id());
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(own);
    let _ = fs::remove_dir_all(&dir);
    run(Command::new("dpkg-deb")
        .arg("-R")
        .arg(package(name, ".deb"))
        .arg(&dir));
    let control = dir.join("DEBIAN/control");
    let version = env!("CARGO_PKG_VERSION");
    let text = fs::read_to_string(&control)
        .unwrap()
        .replace(version, &format!("{version}+newer"));
    fs::write(&control, text).unwrap();
    let file = dir.with_extension("deb");
    run(Command::new("dpkg-deb")
        .args(["--root-owner-group", "-Znone", "--build"])
        .arg(&dir)
        .arg(&file));
    file
}

#[test]
fn the_rpm_packages_install_and_leave() {
    let rpms = NAMES.map(|name| package(name, ".rpm"));
    Root::with("rpm", move |root| {
        put_foreign(root);
        let files: Vec<String> = rpms.iter().map(|package| root.take(package)).collect();
        // The C library came by another package manager on Debian, so its name is not in this one's records.
        let mut words = vec!["rpm", "--install", "--nodeps"];
        words.extend(files.iter().map(String::as_str));
        root.run(&words);
        programs_run(root);
        nothing_is_active(root);
        root.run(&["rpm", "--verify", "--nodeps", "mpsd", "mpsd-slurm", "mpsd-pbs"]);
        root.write("/etc/mpsd/mpsd.toml", "deadline_s = 25\n");
        root.run(&["rpm", "--erase", "--nodeps", "mpsd-slurm", "mpsd-pbs", "mpsd"]);
        foreign_is_as_it_was(root);
        assert_eq!(root.read("/etc/mpsd/mpsd.toml.rpmsave"), "deadline_s = 25\n");
        gone(root, &["/etc/mpsd", "/etc/mpsd/mpsd.toml.rpmsave"]);
    });
}
