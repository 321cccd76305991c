//! What every scheduler's check looks at first: without it each of its lines may be good, and the first job that asks for MPS
//! takes the node out of service.

use super::host::Host;
use super::setup::CheckLine::{self, Fail, Pass, Warn};
use super::setup::SetupContext;
use mpsd_core::Failure;
use mpsd_core::trusted::open_trusted;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// NVIDIA's number among the vendors of PCI devices.
const NVIDIA: &str = "0x10de";
/// The server's program, beside the control daemon's (docs/facts/mps-control.md#starting).
const SERVER: &str = "nvidia-cuda-mps-server";
/// The driver has it where it is loaded.
const DRIVER: &str = "/proc/driver/nvidia/version";
/// It has two lines. Bytes.
const MOST_OF_DRIVER: usize = 4096;
/// What a check says of an NVML that does not answer; 'mpsctl doctor' says why.
pub(crate) const NO_NVML: &str = "NVML gives no answer: the first job that asks for MPS takes the node out of service; 'mpsctl doctor' says why";
/// systemd has it where it runs (sd_booted(3)).
const BOOTED: &str = "/run/systemd/system";
const SYSTEMCTL: &str = "/usr/bin/systemctl";
/// For one question to systemd.
const UNIT_DEADLINE: Duration = Duration::from_secs(5);
/// Our units that an administrator enables, and what is missing without each.
const UNITS: [(&str, &str); 2] = [
    (
        "mpsd.service",
        "a restart of slurmd or pbs_mom may end running jobs' MPS",
    ),
    ("mpsd-reconcile.timer", "nobody takes down what a killed job left"),
];

/// Our units that a timer starts, and what is missing while their last run failed.
const RUNS: [(&str, &str); 2] = [
    (
        "mpsd-reconcile.service",
        "what a job left, or a drain of ours that is not delivered, may stay",
    ),
    ("mpsd-metrics.service", "the numbers for Prometheus are old"),
];

/// The node's programs, its NVML, our units; one line where this host has no GPU, as login hosts.
pub(crate) fn ground(node: &str, around: &SetupContext<'_>) -> Vec<CheckLine> {
    if !has_gpu(around) {
        return vec![without_gpu(around.host)];
    }
    let mut all = control(&around.settings.control, around.host);
    all.push(match (around.inventory)(node) {
        Ok(_) => Pass("NVML answers".to_owned()),
        Err(failure) => unless_proved(&failure, || NO_NVML.to_owned()),
    });
    all.extend(units(around.host, Path::new(BOOTED).is_dir()));
    all
}

/// A host without a GPU: a login host, or a node that lost its only one, whose driver is loaded still.
pub(crate) fn without_gpu(host: &dyn Host) -> CheckLine {
    match host.configuration(Path::new(DRIVER), MOST_OF_DRIVER) {
        Ok(None) => Pass("no NVIDIA GPU here: no job gets MPS on this host".to_owned()),
        Ok(Some(_)) | Err(_) => Warn(format!(
            "NVIDIA's driver is loaded ('{DRIVER}') and no GPU is on the bus: no job gets MPS on this host; see the kernel's log \
             for one that is lost"
        )),
    }
}

/// What did not work: wrong where it is proved. All else may come from users' processes, which can use up memory, processes and
/// CPUs, and must not take a node out of service.
pub(crate) fn unless_proved(failure: &Failure, wrong: impl FnOnce() -> String) -> CheckLine {
    match failure {
        Failure::Fault(_) => Fail(wrong()),
        Failure::Refusal(_) | Failure::Undetermined(_) => {
            Warn(format!("could not be told now: {failure}; try it again"))
        }
    }
}

/// Whether this is a host for jobs with GPUs: one of NVIDIA's is on its bus, or the site named another NVML than the usual one.
pub(crate) fn has_gpu(around: &SetupContext<'_>) -> bool {
    let says = |device: &Path, file: &str| std::fs::read_to_string(device.join(file)).unwrap_or_default();
    // Class 0x03: what draws or computes, and no bridge or network card.
    let is_gpu =
        |device: &Path| says(device, "vendor").trim() == NVIDIA && says(device, "class").starts_with("0x03");
    let bus = std::fs::read_dir("/sys/bus/pci/devices")
        .into_iter()
        .flatten()
        .flatten();
    Path::new(&around.settings.nvml).is_absolute() || bus.into_iter().any(|device| is_gpu(&device.path()))
}

/// NVIDIA's two programs.
pub(crate) fn control(control: &Path, host: &dyn Host) -> Vec<CheckLine> {
    let server = control.with_file_name(SERVER);
    let one = |program: &Path, key: &str| match open_trusted(program) {
        Ok(_) if host.executable(program) => Pass(format!("'{}' is a program of root's", program.display())),
        Ok(_) => Fail(format!("'{}' is not executable: chmod 0755", program.display())),
        Err(error) => Fail(format!(
            "NVIDIA's MPS: {error}: the first job that asks for MPS takes the node out of service; install the driver's MPS \
             programs{key}"
        )),
    };
    vec![
        one(control, ", or name this one with control in mpsd.toml"),
        one(&server, " beside the control daemon"),
    ]
}

/// Our units, where systemd runs.
pub(crate) fn units(host: &dyn Host, booted: bool) -> Vec<CheckLine> {
    if !booted {
        return vec![Warn(
            "systemd does not run here: nothing calls 'mpsctl reconcile' by itself; let cron do that every ten minutes".to_owned(),
        )];
    }
    let ask = |verb: &str, unit: &str| {
        let answer = host.run(Path::new(SYSTEMCTL), &[verb, unit], &[], UNIT_DEADLINE);
        answer.map(|answer| answer.text.trim().to_owned())
    };
    let one = |(unit, without): (&str, &str)| match (ask("is-active", unit), ask("is-enabled", unit)) {
        (Err(why), _) | (_, Err(why)) => Warn(format!("{unit}: systemd does not say how it stands: {why}")),
        (Ok(active), _) if active != "active" => Fail(format!(
            "{unit} is {active}: {without}; systemctl enable --now {unit}"
        )),
        (Ok(_), Ok(enabled)) if enabled != "enabled" => Warn(format!(
            "{unit} is active and will not be after the next boot ({enabled}); systemctl enable {unit}"
        )),
        _ => Pass(format!("{unit} is active")),
    };
    // No FAIL: a user's process that cannot be ended makes a run fail, and must not take the node out of service.
    let failed = |(unit, without): (&str, &str)| {
        let answer = ask("is-failed", unit).ok()?;
        (answer == "failed").then(|| {
            Warn(format!(
                "{unit} failed in its last run: {without}; 'journalctl -u {unit}' says why"
            ))
        })
    };
    let runs = RUNS.into_iter().filter_map(failed);
    UNITS.into_iter().map(one).chain(runs).collect()
}

/// Where the metrics' timer writes, where it is active.
pub(crate) fn textfile(host: &dyn Host) -> Option<PathBuf> {
    let ask = |arguments: &[&str]| host.run(Path::new(SYSTEMCTL), arguments, &[], UNIT_DEADLINE);
    let active = ask(&["is-active", "mpsd-metrics.timer"]).ok()?;
    let shown = ask(&["show", "--property=ExecStart", "mpsd-metrics.service"]).ok()?;
    (active.text.trim() == "active").then(|| written_to(&shown.text))?
}

/// `ExecStart={ path=/usr/bin/mpsctl ; argv[]=/usr/bin/mpsctl metrics --textfile DIR ; ... }`.
fn written_to(shown: &str) -> Option<PathBuf> {
    let (_, behind) = shown.rsplit_once("--textfile")?;
    let directory = behind.trim_start_matches(['=', ' ']).split_whitespace().next()?;
    Some(directory.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::testing::Paper;

    /// A host whose units stand so: active and enabled, one after the other.
    fn host(service: [&str; 2], timer: [&str; 2]) -> Paper {
        let said = [("mpsd.service", service), ("mpsd-reconcile.timer", timer)];
        said.into_iter()
            .fold(Paper::default(), |host, (unit, [active, enabled])| {
                host.command(
                    &format!("/usr/bin/systemctl is-active {unit}"),
                    0,
                    &format!("{active}\n"),
                )
                .command(
                    &format!("/usr/bin/systemctl is-enabled {unit}"),
                    0,
                    &format!("{enabled}\n"),
                )
            })
    }

    fn said(host: &Paper) -> Vec<String> {
        units(host, true).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_unit_that_is_off_is_wrong_and_the_line_says_what_switches_it_on() {
        let good = host(["active", "enabled"], ["active", "enabled"]);
        assert_eq!(
            said(&good),
            [
                "OK    mpsd.service is active",
                "OK    mpsd-reconcile.timer is active"
            ]
        );
        let off = host(["active", "enabled"], ["inactive", "disabled"]);
        assert_eq!(
            said(&off)[1],
            "FAIL  mpsd-reconcile.timer is inactive: nobody takes down what a killed job left; systemctl enable --now \
         mpsd-reconcile.timer"
        );
        let once = host(["active", "disabled"], ["active", "enabled"]);
        assert_eq!(
            said(&once)[0],
            "WARN  mpsd.service is active and will not be after the next boot (disabled); systemctl enable mpsd.service"
        );
        // A oneshot is inactive after a good run.
        let run = |state: &str| {
            let good = host(["active", "enabled"], ["active", "enabled"]);
            good.command(
                "/usr/bin/systemctl is-failed mpsd-reconcile.service",
                u8::from(state != "failed").into(),
                &format!("{state}\n"),
            )
        };
        assert_eq!(said(&run("inactive")), said(&good));
        assert_eq!(
            said(&run("failed"))[2],
            "WARN  mpsd-reconcile.service failed in its last run: what a job left, or a drain of ours that is not delivered, may stay; \
         'journalctl -u mpsd-reconcile.service' says why"
        );
        assert!(said(&Paper::default())[0].starts_with("WARN  mpsd.service: systemd does not say"));
        assert!(units(&good, false)[0].to_string().contains("mpsctl reconcile"));
    }

    #[test]
    fn a_node_whose_driver_is_loaded_and_whose_gpu_is_gone_is_no_login_host() {
        let login = without_gpu(&Paper::default()).to_string();
        assert_eq!(login, "OK    no NVIDIA GPU here: no job gets MPS on this host");
        let lost = Paper::default().file(
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64\n",
        );
        let lost = without_gpu(&lost).to_string();
        assert!(lost.starts_with("WARN  NVIDIA's driver is loaded"), "{lost}");
    }

    #[test]
    fn where_the_timer_writes_is_read_from_its_service() {
        let shown = "ExecStart={ path=/usr/bin/mpsctl ; argv[]=/usr/bin/mpsctl metrics --textfile /var/lib/x ; ignore_errors=no ; }\n";
        let host = |active: &str| {
            let timer = Paper::default().command(
                "/usr/bin/systemctl is-active mpsd-metrics.timer",
                u8::from(active != "active").into(),
                &format!("{active}\n"),
            );
            let show = "/usr/bin/systemctl show --property=ExecStart mpsd-metrics.service";
            timer.command(show, 0, shown)
        };
        assert_eq!(textfile(&host("active")), Some(PathBuf::from("/var/lib/x")));
        assert_eq!(textfile(&host("inactive")), None);
        assert_eq!(textfile(&Paper::default()), None);
        assert_eq!(written_to("ExecStart={ argv[]=/usr/bin/mpsctl metrics ; }"), None);
    }
}
