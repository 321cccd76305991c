//! Checks the places of jobs' daemons: directories, cgroups, security modules.

use mpsd::node::directories::{self, other_users_may};
use mpsd::node::site_directory;
use mpsd_core::Paths;
use mpsd_core::config::{Cgroup as Rule, Settings};
use mpsd_sys::cgroup::Cgroup;
use setup::CheckLine::{self, Fail, Pass, Warn};
use std::fs;
use std::path::PathBuf;

/// Longest path of a pipe directory, bytes. With a longer one NVIDIA's daemon ends without a
/// message (docs/facts/mps-control.md#starting).
const LONGEST_PIPE: usize = 85;
/// Longest names of a job's directory and a pipe directory in it, bytes.
const LONGEST_NAMES: usize = "/".len() + 40 + "/pipe-15".len();
/// The same of an MPS that jobs share: its user's number, and its GPU's UUID.
const LONGEST_SHARED: usize = "/4294967295-".len() + 40 + "/pipe".len();

pub(super) fn length(paths: &Paths) -> CheckLine {
    let run = paths.run().display();
    let told = |of: &str, bytes: usize| {
        format!(
            "a pipe directory of {of} below run_dir '{run}' may have {bytes} bytes, and NVIDIA's daemon ends without a word \
             above {LONGEST_PIPE}: name a shorter run_dir in mpsd.toml"
        )
    };
    let longest = paths.jobs().as_os_str().len() + LONGEST_NAMES;
    if longest > LONGEST_PIPE {
        return Fail(told("a job", longest));
    }
    let longest = paths.shared().as_os_str().len() + LONGEST_SHARED;
    if longest > LONGEST_PIPE {
        return Warn(told("jobs that share a GPU", longest));
    }
    Pass(format!(
        "pipe directories below '{run}' are short enough for the vendor"
    ))
}

pub(super) fn directories(paths: &Paths) -> Vec<CheckLine> {
    let run = directories::run(paths).map(|one| one.map_or_else(Fail, Pass));
    let state = directories::state(paths).map_or_else(Warn, Pass);
    run.into_iter().chain([state]).collect()
}

pub(super) fn cgroup(paths: &Paths, rule: &Rule) -> CheckLine {
    let risk = "a restart of the scheduler's daemon may end running jobs' MPS";
    if *rule == Rule::None {
        return Warn(format!("cgroup is \"none\" in mpsd.toml: {risk}"));
    }
    let removed = |path: PathBuf| match Cgroup::open(&path) {
        Ok(Some(cgroup)) => site_directory::remove_cgroup(paths, &cgroup),
        Ok(None) => Ok(()),
        Err(error) => Err(error.to_string()),
    };
    let why = match site_directory::make_cgroup(paths, rule, &Cgroup::passing()) {
        Ok(Some(path)) => match removed(path) {
            Ok(()) => return Pass("a job's daemons get a cgroup of their own".to_owned()),
            Err(why) => why,
        },
        Ok(None) => "no hierarchy here can be used".to_owned(),
        Err(why) => why,
    };
    Warn(format!(
        "a job's daemons get no cgroup of their own ({why}): {risk}; systemctl enable --now mpsd.service"
    ))
}

/// Checks that not every user can list the site's directories; `textfile` is that of the metrics'
/// timer.
pub(super) fn listed_by_all(settings: &Settings, textfile: Option<PathBuf>) -> Vec<CheckLine> {
    let below = match &settings.cgroup {
        Rule::Below(base) => Some(base.clone()),
        Rule::None | Rule::Auto => None,
    };
    let all = [
        (
            below,
            "cgroup",
            "jobs then have no cgroup of their own; chmod 0711",
        ),
        (
            textfile,
            "mpsctl metrics --textfile",
            "the numbers then stay old; chmod 0750 and the exporter's group",
        ),
    ];
    let line = |(path, what, then): (Option<PathBuf>, &str, &str)| {
        let path = path.filter(|path| other_users_may(path, 0o004) == Some(true))?;
        let path = path.display();
        Some(Warn(format!(
            "'{path}' ({what}): every user may list it, and who lists it can keep its lock: {then}"
        )))
    };
    all.into_iter().filter_map(line).collect()
}

pub(super) fn security() -> Vec<CheckLine> {
    let text = |file: &str| fs::read_to_string(file).ok();
    let selinux = selinux(text("/sys/fs/selinux/enforce"));
    let apparmor = apparmor(text("/sys/kernel/security/apparmor/profiles"));
    selinux.into_iter().chain(apparmor).collect()
}

/// We ship no policy. If another denies something, its log names the program.
fn selinux(enforce: Option<String>) -> Option<CheckLine> {
    let how = "'ausearch -m avc -c nvidia-cuda-mps' shows what it denies to a start";
    (enforce?.trim() == "1").then(|| Pass(format!("SELinux enforces: {how}")))
}

fn apparmor(profiles: Option<String>) -> Option<CheckLine> {
    let profiles = profiles?;
    let names = ["nvidia-cuda-mps", "mps-prologue", "mps-epilogue", "mpsd"];
    let mut enforced = profiles.lines().filter(|line| line.ends_with("(enforce)"));
    let profile = enforced.find(|line| names.iter().any(|name| line.contains(name)))?;
    Some(Warn(format!(
        "AppArmor confines '{profile}': a start that it denies fails; aa-complain, and see the kernel's log"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_the_vendor_cannot_take_is_wrong() {
        let usual = length(&Paths::new("/run/mpsd", "/var/lib/mpsd"));
        assert_eq!(usual.status(), "OK", "{usual}");
        let shared = length(&Paths::new("/run/long-enough-to-matter", "/var/lib/mpsd"));
        assert_eq!(shared.status(), "WARN", "{shared}");
        let long = format!("/run/{}", "x".repeat(30));
        let long = length(&Paths::new(long, "/var/lib/mpsd")).to_string();
        assert!(long.starts_with("FAIL"), "{long}");
        assert!(long.contains("may have 89 bytes"), "{long}");
    }

    #[test]
    fn a_module_that_confines_programs_is_told() {
        assert_eq!(selinux(None), None);
        assert_eq!(selinux(Some("0".to_owned())), None);
        assert!(matches!(selinux(Some("1".to_owned())), Some(Pass(_))));
        let profile = |line: &str| apparmor(Some(format!("man_filter (enforce)\n{line}\n")));
        assert_eq!(profile("/usr/sbin/ntpd (enforce)"), None);
        assert_eq!(profile("/usr/bin/nvidia-cuda-mps-control (complain)"), None);
        let enforced = "nvidia-cuda-mps-control (enforce)";
        let confined = profile(&format!("/usr/bin/{enforced}"));
        assert!(matches!(confined, Some(Warn(text)) if text.contains(enforced)));
    }
}
