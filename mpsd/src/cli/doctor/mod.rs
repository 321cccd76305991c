//! `mpsctl doctor`: all that keeps a node from giving jobs an MPS, one line each, with what to do. It changes nothing
//! that stays: a cgroup is made as a job's, and removed.

mod place;

use super::reconcile::{Reconcile, ReportLine};
use crate::node::nvml::Driver;
use crate::node::worker::{NvmlWorker, Question};
use crate::scheduler::ADMIN_VERBS;
use crate::scheduler::node_check::{NO_NVML, control, has_gpu, textfile, units, unless_proved, without_gpu};
use crate::scheduler::setup::CheckLine::{self, Fail, Pass, Warn};
use crate::scheduler::setup::SetupContext;
use mpsd_core::gpu::{DRIVER_OF_13_1, MOST_CLIENTS, Mig};
use mpsd_core::{Failure, Inventory};
use std::path::Path;
use std::time::Duration;

/// For each answer of NVML; it loads in 12 ms, and in seconds where the driver has to wake the GPUs first
/// (docs/facts/mps-control.md#times).
const NVML_DEADLINE: Duration = Duration::from_secs(10);
/// The programs that schedulers start, or these.
const PROGRAMS: [&str; 4] = ["mps-prologue", "mps-epilogue", "mpsd", "mpsctl"];

/// `mpsctl doctor`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Doctor {
    /// The node's name in the scheduler; this host's if not given
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Print only what is not OK
    #[arg(long)]
    pub problems: bool,
    /// One JSON object: the worst status, and the status and text of each finding
    #[arg(long)]
    pub json: bool,
}

/// How bad it is, as the exit status: 0 all is well, 1 something could be better, 2 something does not work.
pub fn worst(found: &[CheckLine]) -> u8 {
    let code = |finding: &CheckLine| match finding {
        Pass(_) => 0,
        Warn(_) => 1,
        Fail(_) => 2,
    };
    found.iter().map(code).max().unwrap_or(0)
}

impl Doctor {
    /// The text to print of these findings.
    pub fn text(&self, found: &[CheckLine]) -> String {
        let shown = || {
            found
                .iter()
                .filter(|finding| !self.problems || !matches!(finding, Pass(_)))
        };
        if !self.json {
            return shown().map(|finding| format!("{finding}\n")).collect();
        }
        let one =
            |finding: &CheckLine| serde_json::json!({"status": finding.status(), "text": finding.text()});
        let worst = ["OK", "WARN", "FAIL"][usize::from(worst(found))];
        let all: Vec<_> = shown().map(one).collect();
        format!("{}\n", serde_json::json!({"worst": worst, "findings": all}))
    }
}

/// Looks at this host; `node` is its name in the scheduler.
pub(super) fn look(node: &str, around: &SetupContext<'_>) -> Vec<CheckLine> {
    let mut all = vec![match &around.broken {
        None => Pass("mpsd.toml can be used".to_owned()),
        Some(broken) => Fail(format!(
            "{broken}: every job that asks for MPS is stopped; 'mpsctl config check' tells when it is good"
        )),
    }];
    all.extend(PROGRAMS.map(|name| CheckLine::program(&around.programs.join(name), around.host)));
    match has_gpu(around) {
        true => all.extend(of_gpus(around)),
        false => all.push(without_gpu(around.host)),
    }
    // A node may have lost its only GPU, and be drained for that.
    match nix::unistd::geteuid().is_root() {
        true => all.extend(leftovers(node, around)),
        false if has_gpu(around) => all.push(Warn(
            "cgroups and what jobs left are root's to look at: run it as root".to_owned(),
        )),
        false => {}
    }
    all.extend(schedulers(node, around));
    // What a scheduler's check looks at as well is told once, and why where that is known here.
    let mut told: Vec<CheckLine> = Vec::new();
    for finding in all {
        if !told.contains(&finding) && finding.text() != NO_NVML {
            told.push(finding);
        }
    }
    told
}

/// What a node for jobs needs.
fn of_gpus(around: &SetupContext<'_>) -> Vec<CheckLine> {
    let mut all = control(&around.settings.control, around.host);
    all.extend(nvml(&around.programs.join("mpsd"), &around.settings.nvml));
    all.extend(place::directories(&around.settings.paths));
    all.extend(place::security());
    all.extend(units(around.host, place::is_booted()));
    if nix::unistd::geteuid().is_root() {
        all.push(place::cgroup(&around.settings.paths, &around.settings.cgroup));
    }
    let textfile = place::is_booted().then(|| textfile(around.host)).flatten();
    all.extend(place::listed_by_all(&around.settings, textfile));
    all
}

/// The driver, by its library.
fn nvml(worker: &Path, library: &str) -> Vec<CheckLine> {
    let asked = || -> Result<(Inventory, Driver), Failure> {
        let mut nvml = NvmlWorker::start(worker, library, NVML_DEADLINE)?;
        Ok((nvml.ask(&Question::Inventory)?, nvml.ask(&Question::Driver)?))
    };
    let (inventory, driver) = match asked() {
        Ok(answers) => answers,
        Err(failure) => {
            let wrong = || {
                format!(
                    "{failure}: the first job that asks for MPS takes the node out of service; see 'nvidia-smi' and the kernel's log"
                )
            };
            return vec![unless_proved(&failure, wrong)];
        }
    };
    let mut all = vec![match inventory.gpus.len() {
        0 => Fail(
            "NVML answers and lists no GPU: see 'nvidia-smi' and the kernel's log for one that is lost"
                .to_owned(),
        ),
        _ => Pass("NVML answers".to_owned()),
    }];
    all.push(Pass(format!(
        "driver {}, {}",
        driver.version,
        products(&inventory)
    )));
    if inventory.has_driver(DRIVER_OF_13_1) {
        all.push(Pass(format!(
            "{MOST_CLIENTS} clients a GPU and static partitions (MPS_SMS): as NVIDIA documents them, not verified; 'cargo xtask \
             hardware' verifies them here"
        )));
    }
    all.extend(divided(&inventory));
    all.push(match driver.forgotten.as_slice() {
        [] => Pass("persistence mode is on".to_owned()),
        some => Warn(format!(
            "GPU {} without persistence mode: the driver wakes the GPU for each job, which takes seconds; systemctl enable --now \
             nvidia-persistenced",
            some.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        )),
    });
    all
}

/// What is to be known of GPUs in MIG mode.
fn divided(inventory: &Inventory) -> Option<CheckLine> {
    let gpus = inventory.gpus.iter().filter(|gpu| gpu.mig == Mig::On);
    let gpus: Vec<String> = gpus.map(|gpu| gpu.index.to_string()).collect();
    (!gpus.is_empty()).then(|| {
        Warn(format!(
            "GPU {} in MIG mode, with {} MIG devices, each of which gets its own MPS: documented, not verified, that is built from \
             NVIDIA's manuals and not tried by us on such a machine",
            gpus.join(", "),
            inventory.migs.len()
        ))
    })
}

/// `8 x NVIDIA H200`.
fn products(inventory: &Inventory) -> String {
    let mut counted: Vec<(&str, usize)> = Vec::new();
    for gpu in &inventory.gpus {
        match counted.iter_mut().find(|(name, _)| *name == gpu.name) {
            Some((_, count)) => *count += 1,
            None => counted.push((&gpu.name, 1)),
        }
    }
    let words: Vec<String> = counted
        .iter()
        .map(|(name, count)| format!("{count} x {name}"))
        .collect();
    words.join(", ")
}

/// What jobs left, drains that wait, and second looks, as 'mpsctl reconcile' would find them.
fn leftovers(node: &str, around: &SetupContext<'_>) -> Vec<CheckLine> {
    let dry = Reconcile {
        dry_run: true,
        ..Reconcile::default()
    };
    let report = match dry.run(&around.settings, node, false) {
        Ok(report) => report,
        Err(failure) => {
            let wrong = || format!("what jobs left cannot be told: {failure}");
            return vec![unless_proved(&failure, wrong)];
        }
    };
    let left: Vec<CheckLine> = report
        .told
        .into_iter()
        .filter_map(|told| match told {
            ReportLine::Left(text) => Some(Warn(format!(
                "{text}; 'mpsctl reconcile' does what it can, and says what it cannot"
            ))),
            ReportLine::Drained(text) => Some(Warn(text)),
            ReportLine::Said(_) | ReportLine::Did(_) => None,
        })
        .collect();
    match left.is_empty() {
        true => vec![Pass("no job left anything".to_owned())],
        false => left,
    }
}

/// What the checks of the schedulers find that are here.
fn schedulers(node: &str, around: &SetupContext<'_>) -> Vec<CheckLine> {
    let found: Vec<Vec<CheckLine>> = ADMIN_VERBS
        .iter()
        .filter_map(|verbs| (verbs.check)(node, around))
        .collect();
    match found.is_empty() {
        true => {
            let mut all = (around.standing)(&around.settings);
            all.push(Warn(
                "no Slurm, Torque or OpenPBS is found here: name it under [slurm] or [pbs] of mpsd.toml"
                    .to_owned(),
            ));
            all
        }
        false => found.into_iter().flatten().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_status_is_that_of_the_worst_and_json_says_the_same() {
        let good = || Pass("a".to_owned());
        let better = || Warn("b".to_owned());
        let wrong = || Fail("c".to_owned());
        assert_eq!(worst(&[good(), good()]), 0);
        assert_eq!(worst(&[better(), good()]), 1);
        assert_eq!(worst(&[good(), wrong(), better()]), 2);
        let all = [good(), better()];
        let plain = Doctor::default();
        assert_eq!(plain.text(&all), "OK    a\nWARN  b\n");
        let problems = Doctor {
            problems: true,
            ..Doctor::default()
        };
        assert_eq!(problems.text(&all), "WARN  b\n");
        let json = Doctor {
            json: true,
            ..Doctor::default()
        }
        .text(&all);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let wanted = serde_json::json!({"worst": "WARN", "findings": [
            {"status": "OK", "text": "a"}, {"status": "WARN", "text": "b"},
        ]});
        assert_eq!(json, wanted);
    }
}
