//! The plugin's package beside the Slurm of this machine: enabled by one command, right again after an upgrade of Slurm, gone
//! with the package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::install::{distribution, dpkg, rpm};
use crate::root::Root;
use crate::{NAMES, older, package, run, said, skip};

const SNIPPET: &str = "/etc/slurm/plugstack.conf.d/mpsd.conf";
const STACK: (&str, &str) = (
    "/etc/slurm/plugstack.conf",
    "# the site's own\ninclude /etc/slurm/plugstack.conf.d/*.conf\n",
);
const OTHERS: (&str, &str) = ("/etc/slurm/plugstack.conf.d/site.conf", "# another's line\n");
/// A release that this machine's Slurm is not.
const WRONG: &str = "26.05";

/// The release of the Slurm in `root`, as in 22.05.
fn release(root: &Root) -> String {
    let said = root.run(&["srun", "-V"]);
    let version = said
        .lines()
        .find_map(|line| line.strip_prefix("slurm")?.split(' ').nth(1));
    version.unwrap_or_else(|| panic!("{said}"))[..5].to_owned()
}

/// Whether srun knows the flag: only if Slurm itself has loaded the plugin.
fn is_loaded(root: &Root) -> bool {
    let output = root.output(&["srun", "--help"]);
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8_lossy(&output.stdout).contains("--mps-threads")
}

fn site(root: &Root) {
    root.write(
        "/etc/slurm/slurm.conf",
        "ClusterName=site\nSlurmctldHost=localhost\nNodeName=localhost\n",
    );
    for (path, text) in [STACK, OTHERS] {
        root.write(path, text);
    }
}

fn site_is_as_it_was(root: &Root) {
    for (path, text) in [STACK, OTHERS] {
        assert_eq!(root.read(path), text, "{path}");
    }
    assert!(!root.at(SNIPPET).exists());
}

fn names(root: &Root, release: &str) -> bool {
    root.read(SNIPPET)
        .lines()
        .any(|line| line == format!("optional /usr/lib/mpsd/spank/{release}/spank_mps.so"))
}

/// Our line as it stands after Slurm went to another release.
fn outdate(root: &Root, release: &str) {
    let text = root.read(SNIPPET);
    root.write(SNIPPET, &text.replace(release, WRONG));
    assert!(!is_loaded(root), "Slurm {release} took a plugin for {WRONG}");
}

#[test]
fn the_debian_package_follows_slurm() {
    if !Path::new("/var/lib/dpkg/status").exists() {
        return skip("Debian's trigger", "this system is not Debian's");
    }
    let debs = NAMES.map(|name| older(name, ".deb"));
    let newer = NAMES.map(|name| package(name, ".deb"));
    let slurmd = slurm_of_tomorrow();
    Root::with("slurm-deb", move |root| {
        site(root);
        dpkg(root, &debs);
        site_is_as_it_was(root);
        assert!(!is_loaded(root), "installing was enough");

        let release = release(root);
        root.run(&["mpsctl", "slurm", "enable"]);
        assert!(names(root, &release), "{}", root.read(SNIPPET));
        assert!(is_loaded(root), "Slurm {release} did not load the plugin");

        outdate(root, &release);
        dpkg(root, &[slurmd]);
        assert!(
            names(root, &release),
            "the trigger did not fire: {}",
            root.read(SNIPPET)
        );
        assert!(is_loaded(root));

        dpkg(root, &newer);
        assert!(
            names(root, &release) && is_loaded(root),
            "an upgrade lost the line"
        );
        root.run(&["dpkg", "--remove", "mpsd-slurm"]);
        site_is_as_it_was(root);
        assert!(!is_loaded(root));
    });
}

#[test]
fn the_rpm_package_follows_slurm() {
    let rpms = NAMES.map(|name| older(name, ".rpm"));
    let newer = NAMES.map(|name| package(name, ".rpm"));
    Root::with("slurm-rpm", move |root| {
        site(root);
        distribution(root);
        rpm(root, "--install", &rpms);
        site_is_as_it_was(root);
        let release = release(root);
        root.run(&["mpsctl", "slurm", "enable"]);
        assert!(names(root, &release) && is_loaded(root), "{}", root.read(SNIPPET));
        outdate(root, &release);
        // The same trigger as for slurmd's own file: a new file below one of its paths.
        rpm(root, "--upgrade", &newer);
        assert!(
            names(root, &release) && is_loaded(root),
            "the trigger did not fire: {}",
            root.read(SNIPPET)
        );
        root.run(&["rpm", "--erase", "mpsd-slurm"]);
        site_is_as_it_was(root);
        assert!(!is_loaded(root));
    });
}

/// A package that brings a slurmd, as an upgrade of Slurm does.
fn slurm_of_tomorrow() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("slurm-of-tomorrow");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(dir.join("DEBIAN")).unwrap();
    fs::create_dir_all(dir.join("usr/sbin")).unwrap();
    let control = "Package: slurm-of-tomorrow\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@invalid>\n\
                   Description: a slurmd\n";
    fs::write(dir.join("DEBIAN/control"), control).unwrap();
    let program = dir.join("usr/sbin/slurmd");
    fs::write(&program, "#!/bin/sh\nexec /usr/sbin/slurmd-wlm \"$@\"\n").unwrap();
    run(Command::new("chmod").arg("755").arg(&program));
    let file = dir.with_extension("deb");
    run(Command::new("dpkg-deb")
        .args(["--root-owner-group", "--build"])
        .arg(&dir)
        .arg(&file));
    file
}
