//! `mpsctl doctor`: checks what a node needs to give jobs an MPS, a line each, with what to do. As
//! root it makes a cgroup like a job's and removes it. It changes nothing else.

use super::foreign::{self, Held};
use super::node_places;
use super::site::NVML_DEADLINE;
use super::terminal::{checks_json, say_checks, say_json, worst};
use mpsd::cli::reconcile::{Reconcile, ReportLine};
use mpsd::node::nvml::Driver;
use mpsd::node::worker::{NvmlWorker, Question};
use mpsd_core::config::{DEFAULT_PATH, Settings};
use mpsd_core::failure::EXIT_NODE;
use mpsd_core::gpu::{DRIVER_OF_13_1, GpuProcess, MOST_CLIENTS, Mig};
use mpsd_core::text::list;
use mpsd_core::{ComputeMode, Failure, Inventory};
use nix::unistd::geteuid;
use setup::ADMIN_VERBS;
use setup::CheckLine::{self, Fail, Pass, Warn};
use setup::SetupContext;
use setup::node_check::{
    has_gpu, is_booted, node_check, offered_without_gpu, textfile, unless_proved,
};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;

const PROGRAMS: [&str; 4] = ["mps-prologue", "mps-epilogue", "mpsd", "mpsctl"];

#[derive(Debug, Clone, Default, clap::Args)]
pub struct Doctor {
    /// The node's name in the scheduler; this host's if not given
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Print only what is not OK
    #[arg(long)]
    problems: bool,
    /// Leave out what one edit may break on all nodes: Slurm's files, and an unusable mpsd.toml
    #[arg(long)]
    own: bool,
    /// One JSON object: the worst status, and the status and text of each finding
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub fn print(&self, lines: &[CheckLine]) -> u8 {
        let shown = lines.iter();
        let shown = shown.filter(|line| !self.problems || line.status() != "OK");
        match self.json {
            true => say_json(&checks_json(shown, worst(lines))),
            false => say_checks(&shown.map(|line| format!("{line}\n")).collect::<String>()),
        }
        let is_wrong = lines.iter().any(CheckLine::is_wrong);
        if is_wrong { EXIT_NODE } else { 0 }
    }

    pub fn check(&self, node: &str, context: &SetupContext<'_>) -> Vec<CheckLine> {
        let config = config(node, context);
        if self.own && config.is_wrong() {
            let why = "mpsd.toml cannot be used: the rest of this node was not checked";
            return vec![Warn(why.to_owned())];
        }
        let mut all = Vec::new();
        if !self.own {
            all.push(config);
        }
        all.extend(own(node, context));
        if !self.own && has_gpu(context) {
            all.push(node_places::length(&context.settings.paths));
        }
        all.extend(schedulers(node, context, self.own));
        all.extend((context.standing)(&context.settings));
        // Slurm's line and PBS name some of our programs again.
        let mut told = HashSet::new();
        all.retain(|line| told.insert(line.to_string()));
        all
    }
}

fn config(node: &str, context: &SetupContext<'_>) -> CheckLine {
    // If there is no file, this program has the defaults, and jobs with MPS fail.
    let file = context.config.unwrap_or(Path::new(DEFAULT_PATH));
    let broken = context.broken.clone();
    let broken = broken.or_else(|| Settings::load(file, node).err().map(Failure::from));
    match broken {
        None => Pass("mpsd.toml can be used".to_owned()),
        Some(broken) => CheckLine::unusable_config(&broken),
    }
}

fn own(node: &str, context: &SetupContext<'_>) -> Vec<CheckLine> {
    let program = |name| CheckLine::program(&context.programs.join(name), context.host);
    let mut all = PROGRAMS.map(program).to_vec();
    let worker = context.programs.join("mpsd");
    all.extend(node_check(context, || nvml(&worker, &context.settings)));
    if has_gpu(context) {
        all.extend(places(context));
    }
    // Also without a GPU: the node may have lost its only one, and be drained for that.
    if geteuid().is_root() {
        all.extend(leftovers(node, context));
    } else if has_gpu(context) {
        let why = "cgroups and remains of jobs were not checked: run it as root";
        all.push(Warn(why.to_owned()));
    }
    all
}

fn places(context: &SetupContext<'_>) -> Vec<CheckLine> {
    let settings = &context.settings;
    let mut all = node_places::directories(&settings.paths);
    all.extend(node_places::security());
    if geteuid().is_root() {
        all.push(node_places::cgroup(&settings.paths, &settings.cgroup));
    }
    let textfile = is_booted().then(|| textfile(context.host));
    all.extend(node_places::listed_by_all(settings, textfile.flatten()));
    all
}

fn nvml(worker: &Path, settings: &Settings) -> Vec<CheckLine> {
    let ask = || -> Result<(Inventory, Driver, Vec<Held>), Failure> {
        let mut nvml = NvmlWorker::start(worker, &settings.nvml, NVML_DEADLINE)?;
        let inventory: Inventory = nvml.ask(&Question::Inventory)?;
        let mut held = Vec::new();
        // In MIG mode only its devices may be asked (docs/facts/mps-control.md#mig).
        for gpu in inventory.gpus.iter().filter(|gpu| gpu.mig != Mig::On) {
            let mode: ComputeMode = nvml.ask(&Question::Mode(gpu.uuid.clone()))?;
            if mode == ComputeMode::ExclusiveProcess {
                let on_it: Vec<GpuProcess> = nvml.ask(&Question::Processes(gpu.uuid.clone()))?;
                held.push((gpu.index, on_it.iter().map(|process| process.pid).collect()));
            }
        }
        Ok((inventory, nvml.ask(&Question::Driver)?, held))
    };
    let (inventory, driver, held) = match ask() {
        Ok(answers) => answers,
        Err(failure) => {
            let remedy = "the first job that asks for MPS takes the node out of service; see 'nvidia-smi' and the kernel's log";
            return vec![unless_proved(&failure, || format!("{failure}: {remedy}"))];
        }
    };
    let lost =
        "NVML answers and lists no GPU: see 'nvidia-smi' and the kernel's log for one that is lost";
    let mut all = vec![match inventory.gpus.is_empty() {
        true => Fail(lost.to_owned()),
        false => Pass("NVML answers".to_owned()),
    }];
    let mut counts = BTreeMap::<&str, usize>::new();
    for gpu in &inventory.gpus {
        *counts.entry(&gpu.name).or_default() += 1;
    }
    let products = list(
        counts
            .iter()
            .map(|(name, count)| format!("{count} x {name}")),
    );
    all.push(Pass(format!("driver {}, {products}", driver.version)));
    if inventory.has_driver(DRIVER_OF_13_1) {
        all.push(Pass(format!(
            "{MOST_CLIENTS} clients a GPU: as NVIDIA documents it, not verified; 'cargo xtask hardware' verifies it here"
        )));
    }
    let divided = inventory.gpus.iter().filter(|gpu| gpu.mig == Mig::On);
    let divided = list(divided.map(|gpu| gpu.index));
    if !divided.is_empty() {
        all.push(Warn(format!(
            "GPU {divided} in MIG mode, with {} MIG devices. Each gets its own MPS: documented, not verified: built from \
             NVIDIA's manuals and never tried on such a machine",
            inventory.migs.len()
        )));
    }
    all.push(match driver.forgotten.is_empty() {
        true => Pass("persistence mode is on".to_owned()),
        false => Warn(format!(
            "GPU {} without persistence mode: the driver wakes the GPU for each job, which takes seconds; systemctl enable --now \
             nvidia-persistenced",
            list(&driver.forgotten)
        )),
    });
    if geteuid().is_root() {
        let foreign = foreign::daemons(settings);
        all.extend(foreign.iter().map(|daemon| foreign::line(daemon, &held)));
    }
    all
}

fn leftovers(node: &str, context: &SetupContext<'_>) -> Vec<CheckLine> {
    let dry = Reconcile {
        dry_run: true,
        ..Reconcile::default()
    };
    let report = match dry.run(&context.settings, node, false) {
        Ok(report) => report,
        Err(failure) => {
            let wrong = || format!("remains of jobs cannot be read: {failure}");
            return vec![unless_proved(&failure, wrong)];
        }
    };
    let then = "'mpsctl reconcile' does what it can, and says what it cannot";
    let line = |line: ReportLine| match line {
        ReportLine::Problem(text) => Some(Warn(format!("{text}; {then}"))),
        ReportLine::Drain(text) => Some(Warn(text)),
        ReportLine::Note(_) | ReportLine::Change(_) => None,
    };
    let left: Vec<CheckLine> = report.told.into_iter().filter_map(line).collect();
    match left.is_empty() {
        true => vec![Pass("no job left anything".to_owned())],
        false => left,
    }
}

fn schedulers(node: &str, context: &SetupContext<'_>, own: bool) -> Vec<CheckLine> {
    let found = ADMIN_VERBS.iter().filter_map(|verbs| {
        let mut lines = (verbs.check)(node, context)?;
        // Also without a GPU: the node may have lost its only one.
        let is_own = |line: &CheckLine| verbs.has_own_files || *line == offered_without_gpu();
        lines.retain(|line| !own || is_own(line));
        Some(lines)
    });
    let found: Vec<_> = found.collect();
    if !found.is_empty() {
        return found.concat();
    }
    let none =
        "no Slurm, Torque or OpenPBS is found here: name it under [slurm] or [pbs] of mpsd.toml";
    vec![Warn(none.to_owned())]
}
