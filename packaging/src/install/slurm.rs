//! What the throw-away Slurm needs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::command::{lines, quietly};
use crate::progress::Progress;

/// Programs that the bed starts, each by one of its names (Debian's alternatives).
const PROGRAMS: [&[&str]; 9] = [
    &["munged"],
    &["slurmctld", "slurmctld-wlm"],
    &["slurmd", "slurmd-wlm"],
    &["slurmstepd", "slurmstepd-wlm"],
    &["srun"],
    &["sbatch"],
    &["salloc"],
    &["scontrol"],
    &["sinfo"],
];

/// Services of the packages: the bed has its own, so these must not run.
const SERVICES: [&str; 3] = ["slurmctld", "slurmd", "munge"];

/// A package manager: its program, then the argument lists of its commands, in order.
struct Manager {
    program: &'static str,
    commands: &'static [&'static [&'static str]],
}

const MANAGERS: [Manager; 2] = [
    Manager {
        program: "/usr/bin/apt-get",
        commands: &[
            &["update", "-q"],
            &[
                "install",
                "-y",
                "-q",
                "--no-install-recommends",
                "slurmctld",
                "slurmd",
                "slurm-client",
                "slurm-wlm-basic-plugins",
                "munge",
            ],
        ],
    },
    Manager {
        program: "/usr/bin/dnf",
        commands: &[
            &["install", "-y", "-q", "epel-release"],
            &[
                "install",
                "-y",
                "-q",
                "slurm",
                "slurm-slurmctld",
                "slurm-slurmd",
                "munge",
            ],
        ],
    },
];

/// Installs what is missing. Errors show what the package manager said.
pub fn run() -> Result<()> {
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    let manager = MANAGERS.iter().find(|manager| Path::new(manager.program).exists()).with_context(|| {
        format!(
            "cannot install Slurm: neither apt-get nor dnf is here; install slurmctld, slurmd, the Slurm clients and munge \
             (missing: {})",
            missing.join(", ")
        )
    })?;
    let progress = Progress::start("installing Slurm and munge");
    let quiet_services = NoServices::start()?;
    for arguments in manager.commands {
        let mut command = Command::new(manager.program);
        quietly(command.args(*arguments).env("DEBIAN_FRONTEND", "noninteractive"))?;
    }
    drop(quiet_services);
    stop_services();
    let still = self::missing();
    if !still.is_empty() {
        bail!(
            "'{}' was installed from, but {} are still missing",
            manager.program,
            still.join(", ")
        );
    }
    progress.end("done");
    Ok(())
}

fn missing() -> Vec<&'static str> {
    let dirs = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    let there = |name: &&str| dirs.iter().any(|dir| Path::new(dir).join(name).exists());
    PROGRAMS
        .iter()
        .filter(|names| !names.iter().any(there))
        .map(|names| names[0])
        .collect()
}

/// Debian's packages ask `/usr/sbin/policy-rc.d` before they start a service: 101 means no. A machine that has such a file
/// has decided already, and keeps its own.
struct NoServices(bool);

const POLICY: &str = "/usr/sbin/policy-rc.d";

impl NoServices {
    fn start() -> Result<NoServices> {
        if Path::new(POLICY).exists() || !Path::new("/usr/bin/apt-get").exists() {
            return Ok(NoServices(false));
        }
        fs::write(POLICY, "#!/bin/sh\nexit 101\n").with_context(|| format!("cannot write '{POLICY}'"))?;
        fs::set_permissions(POLICY, fs::Permissions::from_mode(0o755))?;
        Ok(NoServices(true))
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.0
            && let Err(error) = fs::remove_file(POLICY)
        {
            eprintln!("xtask: cannot remove '{POLICY}': {error}");
        }
    }
}

/// Where systemd rules, what was just installed must neither run nor come up with the next boot.
fn stop_services() {
    if !Path::new("/run/systemd/system").is_dir() {
        return;
    }
    for service in SERVICES {
        let mut command = Command::new("/usr/bin/systemctl");
        command.args(["disable", "--now", "--quiet", service]);
        if let Err(error) = lines(&mut command, Duration::from_secs(60), |_| {}) {
            eprintln!("xtask: cannot disable service '{service}': {error:#}");
        }
    }
}
