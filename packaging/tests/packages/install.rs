//! Installing, upgrading, removing, by the systems' own package managers.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::root::Root;
use crate::{NAMES, older, package, skip};

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

pub fn put_foreign(root: &Root) {
    for (path, text) in FOREIGN {
        root.write(path, text);
    }
}

#[track_caller]
pub fn foreign_is_as_it_was(root: &Root) {
    for (path, text) in FOREIGN {
        assert_eq!(root.read(path), text, "{path}");
    }
}

/// After an upgrade: the configuration is the administrator's, the programs run, nothing was started.
fn upgraded(root: &Root, configuration: &str) {
    assert_eq!(
        root.read("/etc/mpsd/mpsd.toml"),
        configuration,
        "the administrator's configuration was replaced"
    );
    programs_run(root);
    nothing_is_active(root);
}

pub fn programs_run(root: &Root) {
    for program in PROGRAMS {
        let said = root.run(&[program, "--version"]);
        assert!(said.contains(env!("CARGO_PKG_VERSION")), "{program}: {said}");
    }
    root.run(&["/usr/bin/mpsctl", "config", "show"]);
}

/// Nothing of ours in what a scheduler reads, and no unit is enabled.
pub fn nothing_is_active(root: &Root) {
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

pub fn gone(root: &Root, but: &[&str]) {
    for place in ["/usr/bin", "/usr/libexec", "/usr/lib/mpsd", "/usr/share", "/etc"] {
        let place_in = root.at(place);
        if !place_in.exists() {
            continue;
        }
        let found = Command::new("find")
            .arg(&place_in)
            .args([
                "(",
                "-name",
                "mpsd*",
                "-o",
                "-name",
                "mpsctl*",
                "-o",
                "-name",
                "*-mpsd.sh",
                ")",
            ])
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
        return skip("Debian packages", "this system is not Debian's");
    }
    let debs = NAMES.map(|name| older(name, ".deb"));
    let newer = NAMES.map(|name| package(name, ".deb"));
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
        upgraded(root, &changed);

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
            "/etc/enroot/hooks.d/50-mpsd.sh",
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

/// `rpm VERB FILES` with all dependencies resolved.
pub fn rpm(root: &Root, verb: &str, packages: &[PathBuf]) {
    let files: Vec<String> = packages.iter().map(|package| root.take(package)).collect();
    let mut words = vec!["rpm", verb];
    words.extend(files.iter().map(String::as_str));
    root.run(&words);
}

/// What RPM's records on Debian lack, since the shell and the C library came by another package manager.
pub fn distribution(root: &Root) {
    let spec = "Name: distribution\nVersion: 1\nRelease: 1\nSummary: none\nLicense: none\nBuildArch: noarch\n\
                Provides: /bin/sh, libc.so.6(GLIBC_2.28)(64bit)\n%description\nnone\n%files\n";
    root.write("/root/distribution.spec", spec);
    root.run(&[
        "rpmbuild",
        "-bb",
        "--define",
        "_topdir /root/rpm",
        "/root/distribution.spec",
    ]);
    root.run(&[
        "rpm",
        "--install",
        "/root/rpm/RPMS/noarch/distribution-1-1.noarch.rpm",
    ]);
}

#[test]
fn the_rpm_packages_install_upgrade_and_leave() {
    let rpms = NAMES.map(|name| older(name, ".rpm"));
    let newer = NAMES.map(|name| package(name, ".rpm"));
    Root::with("rpm", move |root| {
        put_foreign(root);
        distribution(root);
        rpm(root, "--install", &rpms);
        programs_run(root);
        nothing_is_active(root);
        root.run(&["rpm", "--verify", "mpsd", "mpsd-slurm", "mpsd-pbs"]);
        let changed = "deadline_s = 25\n";
        root.write("/etc/mpsd/mpsd.toml", changed);
        root.write("/var/lib/mpsd/drains/gpu001", "ours\n");

        rpm(root, "--upgrade", &newer);
        let have = root.run(&[
            "rpm",
            "--query",
            "--qf",
            "%{NAME} %{VERSION}\n",
            "mpsd",
            "mpsd-slurm",
            "mpsd-pbs",
        ]);
        let have: Vec<&str> = have.lines().filter(|line| line.starts_with("mpsd")).collect();
        let expected = ["mpsd", "mpsd-slurm", "mpsd-pbs"];
        let expected = expected.map(|name| format!("{name} {}", env!("CARGO_PKG_VERSION")));
        assert_eq!(have, expected);
        upgraded(root, changed);
        // All but the file that was changed.
        root.run(&["rpm", "--verify", "--noconfig", "mpsd", "mpsd-slurm", "mpsd-pbs"]);

        root.run(&["rpm", "--erase", "mpsd-slurm", "mpsd-pbs", "mpsd"]);
        foreign_is_as_it_was(root);
        assert_eq!(root.read("/etc/mpsd/mpsd.toml.rpmsave"), changed);
        assert_eq!(
            root.read("/var/lib/mpsd/drains/gpu001"),
            "ours\n",
            "a drain of ours was forgotten"
        );
        gone(root, &["/etc/mpsd", "/etc/mpsd/mpsd.toml.rpmsave"]);
    });
}
