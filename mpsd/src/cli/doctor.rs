//! `mpsctl doctor`: checks what a node needs to give jobs an MPS, a line each, with what to do. As root it makes a cgroup
//! as a job's and removes it; it changes nothing else.

use super::node_places;
use super::reconcile::{Reconcile, ReportLine};
use super::terminal::{checks_json, say, say_checks, worst};
use crate::node::nvml::Driver;
use crate::node::worker::{NvmlWorker, Question};
use crate::scheduler::ADMIN_VERBS;
use crate::scheduler::node_check::{NO_NVML, control, has_gpu, textfile, units, unless_proved, without_gpu};
use crate::scheduler::setup::CheckLine::{self, Fail, Pass, Warn};
use crate::scheduler::setup::SetupContext;
use mpsd_core::failure::EXIT_NODE;
use mpsd_core::gpu::{DRIVER_OF_13_1, MOST_CLIENTS, Mig};
use mpsd_core::{Failure, Inventory};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Longest wait for an answer of NVML. It loads in 12 ms, or in seconds if the driver has to wake the GPUs
/// (docs/facts/mps-control.md#times).
const NVML_DEADLINE: Duration = Duration::from_secs(10);
/// The programs that schedulers and these programs start.
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

/// The exit code: a WARN works, so it is 0 as in the schedulers' checks; 2: something does not work.
pub fn exit_code(found: &[CheckLine]) -> u8 {
    match found.iter().any(CheckLine::is_wrong) {
        true => EXIT_NODE,
        false => 0,
    }
}

impl Doctor {
    /// Prints the lines.
    pub fn print(&self, found: &[CheckLine]) {
        let shown = found
            .iter()
            .filter(|line| !self.problems || line.status() != "OK");
        match self.json {
            true => say(&checks_json(shown, worst(found))),
            false => say_checks(&shown.map(|line| format!("{line}\n")).collect::<String>()),
        }
    }
}

/// Looks at this host; `node` is its name in the scheduler.
pub(super) fn check(node: &str, around: &SetupContext<'_>) -> Vec<CheckLine> {
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
    // Also without a GPU: the node may have lost its only one, and be drained for that.
    match nix::unistd::geteuid().is_root() {
        true => all.extend(leftovers(node, around)),
        false if has_gpu(around) => all.push(Warn(
            "cgroups and what jobs left are root's to look at: run it as root".to_owned(),
        )),
        false => {}
    }
    all.extend(schedulers(node, around));
    // The schedulers' checks repeat some lines.
    let mut told: Vec<CheckLine> = Vec::new();
    for finding in all {
        if !told.contains(&finding) && finding.text() != NO_NVML {
            told.push(finding);
        }
    }
    told
}

fn of_gpus(around: &SetupContext<'_>) -> Vec<CheckLine> {
    let mut all = control(&around.settings.control, around.host);
    all.extend(nvml(&around.programs.join("mpsd"), &around.settings.nvml));
    all.extend(node_places::directories(&around.settings.paths));
    all.extend(node_places::security());
    all.extend(units(around.host, node_places::is_booted()));
    if nix::unistd::geteuid().is_root() {
        all.push(node_places::cgroup(
            &around.settings.paths,
            &around.settings.cgroup,
        ));
    }
    let textfile = node_places::is_booted().then(|| textfile(around.host)).flatten();
    all.extend(node_places::listed_by_all(&around.settings, textfile));
    all
}

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

/// A note on GPUs in MIG mode.
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
    let mut counts = BTreeMap::<&str, usize>::new();
    for gpu in &inventory.gpus {
        *counts.entry(&gpu.name).or_default() += 1;
    }
    let words = counts.iter().map(|(name, count)| format!("{count} x {name}"));
    words.collect::<Vec<_>>().join(", ")
}

/// What 'mpsctl reconcile' would find: remains of jobs, drains, second looks.
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

/// The checks of the schedulers on this host.
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
