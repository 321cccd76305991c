//! The step of this slurmstepd: what it is, and its own daemon (`srun --mps` in an allocation that
//! was made without it).
//!
//! slurmstepd starts the daemon as root before the tasks and ends it in its exit callback. If it
//! is killed, job_epilog cleans up.

use crate::handle::{Item, Level, Node, Program, ProgramResult, Slurm};
use crate::job_prolog::{self, program};
use crate::state::{PluginState, StepState};
use mpsd_core::Request;
use mpsd_core::by_site;
use mpsd_core::config::Settings;
use mpsd_core::environment::{THREADS, VISIBLE_DEVICES};
use mpsd_core::plugin_line::Arguments;
use mpsd_core::record::{Record, RecordState};
use mpsd_core::request::Mode;
use std::path::Path;

/// `SLURM_EXTERN_CONT`: holds the allocation, sees no option and has no task of the user.
const EXTERN: u32 = 0xffff_fffc;
const BATCH: u32 = 0xffff_fffb;
/// `SLURM_INTERACTIVE_STEP`: salloc's shell on a node.
const INTERACTIVE: u32 = 0xffff_fffa;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    /// The job's own script or shell.
    Job,
    Step(u32),
}

/// `None`: it has no task of the user.
pub fn kind(slurm: &dyn Slurm) -> Option<StepKind> {
    match slurm.item(Item::StepId)? {
        EXTERN => None,
        BATCH | INTERACTIVE => Some(StepKind::Job),
        number => Some(StepKind::Step(number)),
    }
}

/// The batch script itself: no task prolog of the user runs before it.
pub fn is_script(slurm: &dyn Slurm) -> bool {
    slurm.item(Item::StepId) == Some(BATCH)
}

pub fn script(slurm: &dyn Slurm, node: &dyn Node) -> Option<String> {
    let path = slurm.step_command().into_iter().next()?;
    node.text_of(Path::new(&path))
}

/// The batch script or a step of it, by a variable that slurmd sets for the script.
pub fn is_of_script(slurm: &dyn Slurm) -> bool {
    slurm.job_env("ENVIRONMENT").as_deref() == Some("BATCH")
}

/// Whether this is a component of a het job; its flags on a node may be another component's.
pub fn is_component(slurm: &dyn Slurm) -> bool {
    slurm.job_env("SLURM_HET_SIZE").is_some()
}

/// `init_post_opt` in slurmstepd: as root, reads what tasks cannot open themselves, and starts the
/// daemon of a step that asked in a job without MPS.
pub fn begin(slurm: &dyn Slurm, node: &dyn Node, state: &mut PluginState) {
    let (Some(kind), Ok(line)) = (kind(slurm), &state.line) else {
        return;
    };
    let settings = job_prolog::settings(slurm, node, line);
    if let (Some(job), Ok(settings)) = (slurm.job(), &settings) {
        let paths = settings.paths.job(&job);
        let of_job = node.record(&paths.record());
        if let Ok(Some(record)) = &of_job
            && record.by_site.is_some()
            && (is_component(slurm) || !state.asks())
        {
            leave_out(slurm, node, &mut state.step, settings, kind, record);
        }
        // `leave_out` may have replaced it. A step may need MPS although `auto` gave its job none:
        // the job's tasks were not yet known.
        let of_job = node.record(&paths.record());
        let unneeded = matches!(&of_job, Ok(Some(record)) if record.state == RecordState::Unneeded);
        if let StepKind::Step(number) = kind {
            state.step.gpus = gpus_of_step(slurm);
            match &of_job {
                // A job's record holds for its steps, even a refusal.
                Ok(Some(record)) if !unneeded => {
                    state.imply_mode();
                }
                Ok(record) if !is_component(slurm) => {
                    let tasks = slurm.item(Item::LocalTasks).unwrap_or_default();
                    let gpus = state.step.gpus.unwrap_or_default();
                    let helps = |mode| mode != Mode::Auto || Mode::auto_helps(tasks, gpus);
                    match request_of_step(state, record.as_ref()) {
                        Ok(None) => {}
                        Ok(Some((request, _))) if !helps(request.mode) => {
                            state.step.unneeded = Some(Mode::counted(tasks, gpus));
                        }
                        Ok(Some(request)) => {
                            let failure = start(slurm, node, line, settings, number, request);
                            state.step.failure = failure;
                            state.step.own_daemon = true;
                        }
                        Err(why) => state.step.failure = Some(why),
                    }
                }
                _ => {}
            }
        }
        state.step.has_mps = state.step.own_daemon || matches!(of_job, Ok(Some(_)) if !unneeded);
    }
    state.step.settings = Some(settings);
}

/// Of a job that its site brought in. A script that handles MPS itself takes its whole job out,
/// which its record then says.
fn leave_out(
    slurm: &dyn Slurm,
    node: &dyn Node,
    step: &mut StepState,
    settings: &Settings,
    kind: StepKind,
    record: &Record,
) {
    let lookup = |name: &str| slurm.job_env(name);
    let tasks = slurm.item(Item::LocalTasks);
    let (id, why) = match kind {
        StepKind::Job => {
            let text = script(slurm, node).unwrap_or_default();
            let why = by_site::by_words(&text);
            let id = why.as_ref().map(|_| record.job.clone());
            let why = why.or_else(|| by_site::without_ranks(&text));
            (
                id,
                why.or_else(|| by_site::by_environment(record, None, &lookup)),
            )
        }
        StepKind::Step(number) => {
            let why = by_site::by_environment(record, tasks, &lookup);
            let of_step = || record.job.step(&number.to_string()).ok();
            let id = why.as_ref().and_then(|_| of_step());
            (id, why.or_else(|| do_not_meet(slurm, record, tasks)))
        }
    };
    let Some(why) = why else { return };
    let line = Mode::auto_without(&why);
    slurm.log(Level::Info, &format!("job {}: {line}", record.job));
    if let Some(id) = id {
        let mut left = Record::without_mps(id, record.uid, RecordState::Unneeded, line);
        left.by_site = record.by_site;
        let path = settings.paths.job(&left.job).record();
        if let Err(why) = node.write_record(&path, &left) {
            slurm.log(Level::Error, &why);
        }
    }
    step.left_out = Some(why);
}

fn gpus_of_step(slurm: &dyn Slurm) -> Option<u32> {
    let list = slurm.job_env("SLURM_STEP_GPUS")?;
    (!list.is_empty()).then(|| list.split(',').count().try_into().ok())?
}

fn do_not_meet(slurm: &dyn Slurm, record: &Record, tasks: Option<u32>) -> Option<String> {
    record.by_site.filter(|by_site| by_site.if_tasks_meet)?;
    let gpus = gpus_of_step(slurm).or_else(|| record.gpus.len().try_into().ok());
    let (tasks, gpus) = (tasks.unwrap_or(0), gpus.unwrap_or(u32::MAX));
    (!Mode::auto_helps(tasks, gpus)).then(|| Mode::counted(tasks, gpus))
}

/// What a step asks for, and whether its site did. `of_job`: the record of its job, to which `auto`
/// gave nothing.
fn request_of_step(
    state: &PluginState,
    of_job: Option<&Record>,
) -> Result<Option<(Request, bool)>, String> {
    let request = state.request.clone().map_err(|e| e.to_string())?;
    let by_site = request.is_none() && of_job.is_some_and(|record| record.by_site.is_some());
    if by_site && state.step.left_out.is_some() {
        return Ok(None);
    }
    let of_job = of_job.and_then(|record| record.request.clone());
    let request = request.or(of_job).filter(Request::is_on);
    Ok(request.map(|request| (request, by_site)))
}

/// Starts the step's own daemon; returns why that failed.
fn start(
    slurm: &dyn Slurm,
    node: &dyn Node,
    line: &Arguments,
    settings: &Settings,
    number: u32,
    (request, by_site): (Request, bool),
) -> Option<String> {
    let request = request.to_string();
    let mut words = vec!["--request", &request, "--record", "--wait", "started"];
    words.extend(by_site.then_some("--by-site"));
    let mut environment = environment(slurm, number);
    environment.extend(node.sluid().map(|sluid| ("SLURM_JOB_SLUID".into(), sluid)));
    let program = program(&line.prologue, line, settings, &words, environment);
    job_prolog::failure(&run(slurm, node, number, &program))
}

fn run(slurm: &dyn Slurm, node: &dyn Node, number: u32, program: &Program) -> ProgramResult {
    let job = slurm.item(Item::JobId).unwrap_or_default();
    job_prolog::run(slurm, node, &format!("step {job}.{number}"), program)
}

/// `exit` in slurmstepd: ends the step's own daemon.
pub fn end(slurm: &dyn Slurm, node: &dyn Node, state: &PluginState) {
    let step = (kind(slurm), &state.line, &state.step.settings);
    if let (Some(StepKind::Step(number)), Ok(line), Some(Ok(settings))) = step
        && state.step.own_daemon
    {
        let (words, environment) = (["--strict"], environment(slurm, number));
        let mut program = program(&line.epilogue, line, settings, &words, environment);
        program.detached = true;
        run(slurm, node, number, &program);
    }
}

/// Slurm's own items, and variables of the step's environment, where slurmstepd has overwritten
/// what the user had (gres_common_gpu_set_env, 22.05).
fn environment(slurm: &dyn Slurm, number: u32) -> Vec<(String, String)> {
    let item = |item| slurm.item(item).map(|value| value.to_string());
    let of_slurm = [
        ("SLURM_JOB_ID", item(Item::JobId)),
        ("SLURM_STEP_ID", Some(number.to_string())),
        ("SLURM_STEP_NUM_NODES", Some("1".to_owned())),
        ("SLURM_JOB_UID", item(Item::JobUid)),
        ("SLURM_JOB_GID", item(Item::JobGid)),
        ("SLURM_STEP_NUM_TASKS", item(Item::LocalTasks)),
    ];
    let of_step = [
        "SLURM_STEP_GPUS",
        VISIBLE_DEVICES,
        "SLURM_SHARDS_ON_NODE",
        THREADS,
    ];
    let of_process = ["SLURMD_NODENAME", "SLURM_CONF", "SLURM_CLUSTER_NAME"];
    let of_step = of_step.map(|name| (name, slurm.job_env(name)));
    let of_process = of_process.map(|name| (name, slurm.process_env(name)));
    let all = of_slurm.into_iter().chain(of_step).chain(of_process);
    all.filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
}
