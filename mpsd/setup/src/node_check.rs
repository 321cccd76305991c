//! What `mpsctl doctor` and every scheduler's check say of the node: its programs, its NVML, its
//! directories and our units. Without them every other line can pass, and the first job that asks
//! for MPS still drains the node.

use crate::room::room;
use crate::verbs::CheckLine::{self, Fail, Pass, Warn};
use crate::verbs::SetupContext;
use anyhow::{Error, Result};
use batch::gpu_host::{DRIVER, NO_GPU_HOST, is_gpu_host};
use batch::host::Host;
use mpsd_core::config::Settings;
use mpsd_core::trusted::open_trusted;
use mpsd_core::{Failure, Paths};
use std::path::{Path, PathBuf};
use std::time::Duration;

const SYSTEMCTL: &str = "/usr/bin/systemctl";
const DRAINS: &str = "the first job that asks for MPS takes the node out of service";
/// Our units that an administrator enables, and what is missing without each.
const UNITS: [(&str, &str); 2] = [
    (
        "mpsd.service",
        "a restart of slurmd or pbs_mom may end running jobs' MPS",
    ),
    (
        "mpsd-reconcile.timer",
        "nothing takes down what a killed job left",
    ),
];

/// Our units that a timer starts, and what is missing while their last run failed.
const RUNS: [(&str, &str); 2] = [
    (
        "mpsd-reconcile.service",
        "what a job left, or an undelivered drain by mpsd, may stay",
    ),
    ("mpsd-metrics.service", "the numbers for Prometheus are old"),
];

/// Our units that write in run_dir and state_dir.
const SANDBOXED: [&str; 2] = ["mpsd-boot.service", "mpsd-reconcile.service"];

/// The scheduler's `own` lines, then those of the node: `mpsctl slurm check`, `mpsctl pbs check`.
pub fn with_node(own: Vec<CheckLine>, node: &str, ctx: &SetupContext<'_>) -> Vec<CheckLine> {
    let wrong = || format!("NVML gives no answer: {DRAINS}; 'mpsctl doctor' says why");
    let nvml = || match (ctx.inventory)(node) {
        Ok(_) => vec![Pass("NVML answers".to_owned())],
        Err(failure) => vec![unless_proved(&failure, wrong)],
    };
    [own, node_check(ctx, nvml), (ctx.standing)(&ctx.settings)].concat()
}

/// `nvml`: the lines about NVML, on a host with a GPU.
pub fn node_check(ctx: &SetupContext<'_>, nvml: impl FnOnce() -> Vec<CheckLine>) -> Vec<CheckLine> {
    if !has_gpu(ctx) {
        return vec![without_gpu(ctx.host)];
    }
    let mut all = control(&ctx.settings.control, ctx.host);
    all.extend(nvml());
    all.extend(room(&ctx.settings.paths));
    all.extend(units(ctx.host, is_booted()));
    if is_booted() {
        all.extend(sandboxes(ctx.host, &ctx.settings.paths));
    }
    all
}

/// sd_booted(3) looks for this directory.
pub fn is_booted() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// A host without a GPU: a login host, or a node that lost its only GPU and still has the driver.
fn without_gpu(host: &dyn Host) -> CheckLine {
    let most_bytes = 4096;
    match host.configuration(Path::new(DRIVER), most_bytes) {
        Ok(None) => Pass("no NVIDIA GPU here: no job gets MPS on this host".to_owned()),
        Ok(Some(_)) | Err(_) => Warn(format!(
            "NVIDIA's driver is loaded ('{DRIVER}') and no GPU is on the bus: no job gets MPS on this host; see the kernel's log \
             for one that is lost"
        )),
    }
}

/// The same host, to which a scheduler sends jobs with GPUs.
pub fn offered_without_gpu() -> CheckLine {
    Fail(format!(
        "this node: {NO_GPU_HOST}; jobs with MPS are not started here"
    ))
}

/// Users' processes can cause the other failures, and must not drain the node.
pub fn unless_proved(failure: &Failure, wrong: impl FnOnce() -> String) -> CheckLine {
    match failure {
        Failure::Fault(_) => Fail(wrong()),
        Failure::Refusal(_) | Failure::Undetermined(_) => {
            Warn(format!("could not be told now: {failure}; try it again"))
        }
    }
}

pub fn has_gpu(ctx: &SetupContext<'_>) -> bool {
    is_gpu_host(&ctx.settings.nvml)
}

fn control(control: &Path, host: &dyn Host) -> Vec<CheckLine> {
    // It stands beside the control daemon's program (docs/facts/mps-control.md#starting).
    let server = control.with_file_name("nvidia-cuda-mps-server");
    let one = |program: &Path, means: &str, remedy: &str| match open_trusted(program) {
        Ok(_) if host.executable(program) => {
            Pass(format!("'{}' is a program of root's", program.display()))
        }
        Ok(_) => Fail(format!(
            "'{}' is not executable: chmod 0755",
            program.display()
        )),
        Err(error) => Fail(format!(
            "NVIDIA's MPS: {error}: {means}; install the driver's MPS programs{remedy}"
        )),
    };
    let named = ", or name this one with control in mpsd.toml";
    // A server that does not start is no proof against the node.
    let not_ready = "no job's MPS becomes ready here";
    vec![
        one(control, DRAINS, named),
        one(&server, not_ready, " beside the control daemon"),
    ]
}

fn units(host: &dyn Host, booted: bool) -> Vec<CheckLine> {
    if !booted {
        return vec![Warn(
            "systemd does not run here: nothing calls 'mpsctl reconcile' by itself; let cron do that every ten minutes".to_owned(),
        )];
    }
    let ask = |verb: &str, unit: &str| systemctl(host, &[verb, unit]);
    // No FAIL: jobs with MPS run without it.
    let one = |(unit, without): (&str, &str)| {
        let state = ask("is-active", unit).and_then(|state| Ok((state, ask("is-enabled", unit)?)));
        match state {
            Err(why) => Warn(format!("{unit}: systemd does not say how it stands: {why}")),
            Ok((active, _)) if active != "active" => Warn(format!(
                "{unit} is {active}: {without}; systemctl enable --now {unit}"
            )),
            Ok((_, enabled)) if enabled != "enabled" => Warn(format!(
                "{unit} is active and will not be after the next boot ({enabled}); systemctl enable {unit}"
            )),
            Ok(_) => Pass(format!("{unit} is active")),
        }
    };
    // No FAIL either: a user's process that cannot be ended makes a run fail, and must not drain
    // the node.
    let failed = |(unit, without): (&str, &str)| {
        let text =
            format!("{unit} failed in its last run: {without}; 'journalctl -u {unit}' says why");
        (ask("is-failed", unit).ok()? == "failed").then_some(Warn(text))
    };
    let runs = RUNS.into_iter().filter_map(failed);
    UNITS.into_iter().map(one).chain(runs).collect()
}

/// The site may choose another run_dir or state_dir. Warns of units that may not write there.
fn sandboxes(host: &dyn Host, paths: &Paths) -> Vec<CheckLine> {
    let usual = Settings::usual().paths;
    let pairs = [(paths.run(), usual.run()), (paths.state(), usual.state())];
    let chosen = pairs.into_iter().filter(|(path, usual)| path != usual);
    let one = |(path, unit): (&Path, &str)| {
        let shown = systemctl(host, &["show", "--property=ReadWritePaths", unit]).ok()?;
        let (_, writable) = shown.split_once('=')?;
        let mut writable = writable.split_whitespace();
        let holds = |above: &str| path.starts_with(above.trim_start_matches(['-', '+']));
        let path = path.display();
        (!writable.any(holds)).then(|| {
            Warn(format!(
                "{unit} may not write '{path}': what is left there stays; add it to ReadWritePaths= by 'systemctl edit {unit}'"
            ))
        })
    };
    let pairs = chosen.flat_map(|(path, _)| SANDBOXED.map(|unit| (path, unit)));
    pairs.filter_map(one).collect()
}

fn systemctl(host: &dyn Host, arguments: &[&str]) -> Result<String> {
    let deadline = Duration::from_secs(5);
    let answer = host.run(Path::new(SYSTEMCTL), arguments, &[], deadline);
    Ok(answer.map_err(Error::msg)?.text.trim().to_owned())
}

/// Where an active metrics timer writes:
/// `ExecStart={ path=/usr/bin/mpsctl ; argv[]=/usr/bin/mpsctl metrics --textfile DIR ; ... }`.
pub fn textfile(host: &dyn Host) -> Option<PathBuf> {
    let active = systemctl(host, &["is-active", "mpsd-metrics.timer"]).ok()?;
    let question = ["show", "--property=ExecStart", "mpsd-metrics.service"];
    let shown = systemctl(host, &question).ok()?;
    let (_, behind) = shown
        .rsplit_once("--textfile")
        .filter(|_| active == "active")?;
    let mut words = behind.trim_start_matches('=').split_whitespace();
    Some(words.next()?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use batch::testing::TextHost;

    fn systemd(answers: &[(&str, &str)]) -> TextHost {
        let answer = |host: TextHost, (question, text): &(&str, &str)| {
            host.command(&format!("{SYSTEMCTL} {question}"), 0, &format!("{text}\n"))
        };
        answers.iter().fold(TextHost::default(), answer)
    }

    #[test]
    fn a_unit_that_is_off_or_failed_is_told_and_keeps_no_job_from_its_mps() {
        let first_words = |host: &TextHost, booted| -> Vec<_> {
            units(host, booted).iter().map(CheckLine::status).collect()
        };
        // A oneshot is inactive after a good run.
        for (states, expected) in [
            ("active enabled active inactive", &["OK", "OK"][..]),
            ("active enabled inactive inactive", &["OK", "WARN"]),
            ("inactive enabled active inactive", &["WARN", "OK"]),
            ("active disabled active inactive", &["WARN", "OK"]),
            ("active enabled active failed", &["OK", "OK", "WARN"]),
        ] {
            let questions = [
                "is-active mpsd.service",
                "is-enabled mpsd.service",
                "is-active mpsd-reconcile.timer",
                "is-failed mpsd-reconcile.service",
            ];
            let answers = questions.into_iter().zip(states.split(' '));
            let enabled = [("is-enabled mpsd-reconcile.timer", "enabled")];
            let host = systemd(&answers.chain(enabled).collect::<Vec<_>>());
            assert_eq!(first_words(&host, true), expected);
        }
        assert_eq!(first_words(&TextHost::default(), true), ["WARN", "WARN"]);
        assert_eq!(first_words(&TextHost::default(), false), ["WARN"]);
    }

    #[test]
    fn a_unit_that_may_not_write_the_sites_run_dir_is_told() {
        let told = |run: &str, writable: &str| {
            let shown = format!("ReadWritePaths={writable}");
            let questions = SANDBOXED.map(|unit| format!("show --property=ReadWritePaths {unit}"));
            let answers = questions.each_ref().map(|question| (&**question, &*shown));
            let lines = sandboxes(&systemd(&answers), &Paths::new(run, "/var/lib/mpsd"));
            lines.iter().map(CheckLine::status).collect::<Vec<_>>()
        };
        let shipped = "-/run/mpsd -/sys/fs/cgroup/mpsd";
        assert_eq!(told("/run/mpsd", shipped), [""; 0]);
        assert_eq!(told("/run/other", shipped), ["WARN", "WARN"]);
        assert_eq!(told("/run/other", "-/run/mpsd -/run/other"), [""; 0]);
        assert_eq!(told("/run/site/n1", "-/run/site"), [""; 0]);
    }

    #[test]
    fn a_node_with_a_driver_and_without_a_gpu_is_no_login_host() {
        assert!(matches!(without_gpu(&TextHost::default()), Pass(_)));
        let lost = TextHost::default().file(DRIVER, "NVRM version: NVIDIA UNIX x86_64\n");
        assert!(matches!(without_gpu(&lost), Warn(_)));
    }

    #[test]
    fn the_timers_directory_is_read_from_its_service() {
        let shown = "ExecStart={ path=/usr/bin/mpsctl ; argv[]=/usr/bin/mpsctl metrics --textfile /var/lib/x ; ignore_errors=no ; }";
        let of = |active, shown| {
            textfile(&systemd(&[
                ("is-active mpsd-metrics.timer", active),
                ("show --property=ExecStart mpsd-metrics.service", shown),
            ]))
        };
        assert_eq!(of("active", shown), Some("/var/lib/x".into()));
        assert_eq!(of("inactive", shown), None);
        let without = "ExecStart={ argv[]=/usr/bin/mpsctl metrics ; }";
        assert_eq!(of("active", without), None);
    }
}
