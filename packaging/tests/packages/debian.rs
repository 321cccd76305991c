//! A Debian made by debootstrap, with systemd and Slurm from Debian's packages. It is made once and
//! kept in the target directory; each test gets a copy.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{kept, try_run};

/// Added to the smallest Debian: what starts services, what a cluster's only node runs, and what
/// Ansible needs.
const INCLUDED: &str = "systemd,dbus,iproute2,munge,slurmctld,slurmd,slurm-client,slurm-wlm-basic-plugins,python3,python3-apt";
const WITH_DNF: &str = "dnf,rpm";
const LIMIT: &str = "900";
/// debootstrap's messages if no package can be had. Then there is no system, and the test is
/// skipped.
const OFFLINE: [&str; 4] = [
    "Failed getting release file",
    "Couldn't download",
    "Couldn't retrieve",
    "Unable to retrieve",
];

/// The directory with the system of a release, by its code name; the error says why there is none.
pub fn base(suite: &str) -> Result<PathBuf, String> {
    let included = match suite {
        "bookworm" => format!("{INCLUDED},{WITH_DNF}"),
        _ => INCLUDED.to_owned(),
    };
    let place = kept(&format!("debian-{suite}"), &included, |place| {
        install()?;
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", LIMIT, "debootstrap", "--variant=minbase"]);
        command.args([&*format!("--include={included}"), suite]);
        command.arg(place.join("root"));
        let Err(why) = try_run(command.env("LC_ALL", "C")) else {
            return Ok(());
        };
        let is_offline = OFFLINE.iter().any(|word| why.contains(word));
        assert!(is_offline, "debootstrap: {why}");
        let last = why.lines().rev().find(|line| line.starts_with("E: "));
        let last = last.unwrap_or_default();
        Err(format!("debootstrap cannot get Debian's packages: {last}"))
    })?;
    Ok(place.join("root"))
}

fn install() -> Result<(), String> {
    if Path::new("/usr/sbin/debootstrap").exists() {
        return Ok(());
    }
    let packages = ["debootstrap", "debian-archive-keyring"];
    try_run(Command::new("apt-get").args(["update", "-q"]))?;
    let mut install = Command::new("apt-get");
    try_run(install.args(["install", "-y", "-q"]).args(packages))
}
