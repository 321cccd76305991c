//! A Debian made from nothing by debootstrap, with systemd and Slurm out of Debian's own packages.
//!
//! It is made once and kept in the target directory; tests get a copy each and write into a file system in memory over it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::said;

/// Beside the smallest Debian: what starts services, what a cluster's only node runs, and what Ansible wants to find.
const INCLUDED: &str =
    "systemd,dbus,iproute2,munge,slurmctld,slurmd,slurm-client,slurm-wlm-basic-plugins,python3,python3-apt";
/// And dnf, by which the RPM packages come to a Slurm.
const WITH_DNF: &str = "dnf,rpm";
/// Longest that making it may take.
const LIMIT: &str = "900";
/// What debootstrap says when no package can be had: then there is nothing to test on, which is no fault of ours.
const OFFLINE: [&str; 4] = [
    "Failed getting release file",
    "Couldn't download",
    "Couldn't retrieve",
    "Unable to retrieve",
];

/// The directory with the system of a release, by its code name; why there can be none.
pub fn base(suite: &str) -> Result<PathBuf, String> {
    let included = match suite {
        "bookworm" => format!("{INCLUDED},{WITH_DNF}"),
        _ => INCLUDED.to_owned(),
    };
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("debian-{suite}"));
    let (root, note) = (place.join("root"), place.join("included"));
    if fs::read_to_string(&note).is_ok_and(|text| text == included) {
        return Ok(root);
    }
    program()?;
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(&place).unwrap();
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", LIMIT, "debootstrap", "--variant=minbase"]);
    command.arg(format!("--include={included}")).arg(suite).arg(&root);
    let output = command.env("LC_ALL", "C").output().unwrap();
    if !output.status.success() {
        let why = said(&output);
        let last = why.lines().rev().find(|line| line.starts_with("E: "));
        let offline = OFFLINE.iter().any(|word| why.contains(word));
        let line = last
            .filter(|_| offline)
            .unwrap_or_else(|| panic!("debootstrap: {why}"));
        return Err(format!("debootstrap cannot get Debian's packages: {line}"));
    }
    // Last: a system that was not finished is made again.
    fs::write(note, included).unwrap();
    Ok(root)
}

/// debootstrap, from the system's package manager if it is missing.
fn program() -> Result<(), String> {
    if Path::new("/usr/sbin/debootstrap").exists() {
        return Ok(());
    }
    for words in [
        ["update", "-q"].as_slice(),
        &["install", "-y", "-q", "debootstrap", "debian-archive-keyring"],
    ] {
        let mut command = Command::new("apt-get");
        command.args(words).env("DEBIAN_FRONTEND", "noninteractive");
        let output = command
            .output()
            .map_err(|error| format!("no debootstrap, and no apt-get: {error}"))?;
        if !output.status.success() {
            return Err(format!("debootstrap cannot be installed: {}", said(&output)));
        }
    }
    Ok(())
}
