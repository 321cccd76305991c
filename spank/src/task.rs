//! `task_init`: the forked child of a task, as the job's user, just before exec.
//!
//! Decided by what root left on this node, not by the flags: they are lost on some ways (`sbatch --export=NONE`). What
//! keeps a task from running is said here, where it reaches the user's terminal, and by `_exit(1)` of the child: under
//! `optional` Slurm ignores the return value, and a failing init or user_init would end the job COMPLETED without
//! having run (docs/facts/slurm.md#failures).

use crate::arguments::Scope;
use crate::handle::{Item, Level, Node, Slurm, Verdict};
use crate::partitions::{self, Theirs};
use crate::state::State;
use crate::stepd::{self, Kind};
use crate::unplugged;
use mpsd_core::config::Settings;
use mpsd_core::environment::{self, Change, Task};
use mpsd_core::partitions::VARIABLE;
use mpsd_core::ranks::Rank;
use mpsd_core::record::{Record, RecordState};
use mpsd_core::step::{of_step_after, of_tasks};
use mpsd_core::{JobId, Refusal, Request};

/// Attaches the task to its MPS, leaves it alone, or refuses it.
pub fn begin(slurm: &mut dyn Slurm, node: &dyn Node, state: &State) -> Verdict {
    let (Some(kind), Some(job)) = (stepd::kind(slurm), slurm.job()) else {
        return Verdict::Continue;
    };
    unplugged::restore(slurm);
    match changes(slurm, node, state, kind, &job) {
        Ok(changes) => apply(slurm, &job, &changes),
        // What goes for all tasks of the node is said by one.
        Err(why) if !why.of_task && slurm.item(Item::TaskId).is_some_and(|rank| rank != 0) => Verdict::Leave,
        Err(why) => {
            refuse(slurm, &job, &why.text);
            Verdict::Leave
        }
    }
}

/// Why a task does not start.
struct Why {
    text: String,
    /// It is this task's own, or another may fare better.
    of_task: bool,
}

impl From<String> for Why {
    fn from(text: String) -> Self {
        let of_task = false;
        Self { text, of_task }
    }
}

impl Why {
    fn of_task(text: impl ToString) -> Self {
        let (text, of_task) = (text.to_string(), true);
        Self { text, of_task }
    }
}

/// Says why a task does not start, with the node's name: not every release of Slurm puts it before our line.
pub fn refuse(slurm: &dyn Slurm, job: &JobId, why: &str) {
    let node = this_node(slurm);
    slurm.log(Level::Error, &format!("job {job}: not started on {node}: {why}"));
}

fn this_node(slurm: &dyn Slurm) -> String {
    slurm
        .process_env("SLURMD_NODENAME")
        .unwrap_or_else(|| "this node".into())
}

fn apply(slurm: &mut dyn Slurm, job: &JobId, changes: &[Change]) -> Verdict {
    for change in changes {
        let done = match &change.value {
            Some(value) => slurm.set_job_env(change.name, value),
            // A variable that is not there is removed.
            None => slurm.unset_job_env(change.name) || slurm.job_env(change.name).is_none(),
        };
        if !done {
            refuse(slurm, job, &format!("cannot set {}", change.name));
            return Verdict::Leave;
        }
    }
    Verdict::Continue
}

fn changes(
    slurm: &dyn Slurm,
    node: &dyn Node,
    state: &State,
    kind: Kind,
    job: &JobId,
) -> Result<Vec<Change>, Why> {
    let (arguments, settings) = match (&state.line, &state.settings) {
        (Ok(arguments), Some(Ok(settings))) => (arguments, settings),
        // A plugin in trouble stops only who asked.
        (Err(why), _) | (_, Some(Err(why))) => {
            return match state.asks() {
                true => Err(why.clone().into()),
                false => Ok(Vec::new()),
            };
        }
        (Ok(_), None) => return Ok(Vec::new()),
    };
    // srun gives the flags of the last component to the steps of all (22.05, seen): each has what its own job asked for.
    let has_flags = !stepd::is_component(slurm);
    // A task may fare worse than the others: no descriptor left, no memory.
    let record = find(node, settings, kind, job).map_err(Why::of_task)?;
    match record {
        Some(record) if has_flags && state.opts_out() => Ok(opted_out(slurm, &record)?),
        Some(record) if has_no_gpu(slurm, &record, kind) => Ok(marked(slurm, strip(slurm, None))),
        Some(record) => {
            // What root left is in force, not what somebody forged.
            let request = state
                .request
                .iter()
                .flatten()
                .find(|request| has_flags && request.is_on());
            let changes = attach(slurm, state, &record, kind, request)?;
            node.expect_listener(&changes).map_err(|text| Why {
                text,
                of_task: record.daemons.len() > 1,
            })?;
            warn(slurm, &record, kind);
            Ok(marked(slurm, changes))
        }
        None if has_flags && state.asks() && !(arguments.scope == Scope::Step && kind == Kind::Job) => {
            Err(no_daemon(slurm, state).into())
        }
        None => {
            let changes = strip(slurm, Some(job));
            Ok(match state.request.is_ok() && state.asks() && has_prolog(slurm) {
                true => marked(slurm, changes),
                false => changes,
            })
        }
    }
}

/// Says what the job's user should know although it runs: once a node, by the script, or else by the first step.
fn warn(slurm: &dyn Slurm, record: &Record, kind: Kind) {
    let first = match kind {
        Kind::Job => true,
        Kind::Step(number) => {
            slurm.job().is_some_and(|job| job != record.job) || (number == 0 && !stepd::is_of_script(slurm))
        }
        Kind::Extern => false,
    };
    if first && slurm.item(Item::TaskId).is_none_or(|rank| rank == 0) {
        for warning in &record.warnings {
            slurm.log(Level::Told, &format!("job {}: {warning}", record.job));
        }
    }
}

/// Whether our task prolog runs before a task whose flags ask. A component's flags may be those of another one of the same
/// srun, which alone has the prolog then; an allocation that asked hands it to its steps on all components.
fn has_prolog(slurm: &dyn Slurm) -> bool {
    !stepd::is_component(slurm) || unplugged::is_handed_on(slurm)
}

fn marked(slurm: &dyn Slurm, mut changes: Vec<Change>) -> Vec<Change> {
    changes.extend((!stepd::is_script(slurm)).then(|| unplugged::mark(slurm)));
    changes
}

fn no_daemon(slurm: &dyn Slurm, state: &State) -> String {
    state.failure.clone().unwrap_or_else(|| {
        let node = this_node(slurm);
        format!(
            "--mps was asked for, and slurmd of {node} has run no prologue of mpsd; tell the administrator: 'mpsctl slurm \
             check' on {node} says what is in the way (a slurmd that began before the plugin was enabled, for one)"
        )
    })
}

/// The record of the job, else of the step; one that is still `starting` is waited for.
fn find(node: &dyn Node, settings: &Settings, kind: Kind, job: &JobId) -> Result<Option<Record>, String> {
    let of_job = node.settled_record(&settings.paths.job(job).record(), settings.deadline)?;
    let (None, Kind::Step(number)) = (&of_job, kind) else {
        return Ok(of_job);
    };
    let step = job.step(&number.to_string()).map_err(|e| e.to_string())?;
    node.settled_record(&settings.paths.job(&step).record(), settings.deadline)
}

/// `srun --mps=off` in a job with MPS.
fn opted_out(slurm: &dyn Slurm, record: &Record) -> Result<Vec<Change>, String> {
    if record.exclusive {
        return Err(format!(
            "--mps=off: the MPS of job {} holds its GPUs in mode EXCLUSIVE_PROCESS, and no process outside it can use \
             them; allowed: leave --mps=off out, or submit the job without --mps",
            record.job
        ));
    }
    Ok(strip(slurm, None))
}

/// Removes what an MPS of another job left in the environment, or, with no job, any of ours.
fn strip(slurm: &dyn Slurm, job: Option<&JobId>) -> Vec<Change> {
    environment::strip_inherited(job.map(JobId::as_str), &|name| slurm.job_env(name))
}

/// A step without GPUs (`--gres=none`) in a job whose GPUs Slurm named. For such a step it sets neither variable, and takes
/// those of the script around it away (22.05): the MPS of all the job's GPUs is not for it either.
fn has_no_gpu(slurm: &dyn Slurm, record: &Record, kind: Kind) -> bool {
    let ready = record.state == RecordState::Ready && record.named;
    let none = |name: &str| slurm.job_env(name).is_none_or(|value| value.is_empty());
    ready
        && kind != Kind::Job
        && none("SLURM_STEP_GPUS")
        && none(environment::VISIBLE_DEVICES)
        && !is_unnamed(slurm)
}

/// The step has GPUs, and Slurm names none of them to its tasks: `--gpu-bind=none`, and `--gpus-per-task=TYPE:N`, where it counts
/// them still. srun's word for either comes to the tasks in this variable (22.05, seen; docs/facts/slurm.md#gpus-of-a-job).
fn is_unnamed(slurm: &dyn Slurm) -> bool {
    let has = |name: &str| slurm.job_env(name).is_some_and(|count| !count.is_empty());
    slurm.job_env("SLURMD_TRES_BIND").is_some_and(|bind| {
        bind.contains("gpu:none") || bind.contains("gpu:per_task:") && has("SLURM_GPUS_ON_NODE")
    })
}

fn attach(
    slurm: &dyn Slurm,
    state: &State,
    record: &Record,
    kind: Kind,
    request: Option<&Request>,
) -> Result<Vec<Change>, Why> {
    let reason = || {
        record
            .reason
            .clone()
            .unwrap_or_else(|| "no reason is recorded".into())
    };
    match record.state {
        RecordState::Ready if slurm.item(Item::JobUid).is_some_and(|uid| uid != record.uid) => Err(format!(
            "what is left of another user's job {} stands in its place on this node",
            record.job
        )
        .into()),
        RecordState::Ready => {
            let rank = slurm.item(Item::TaskId);
            if let Some(warning) = environment::warning(rank, &|name| slurm.job_env(name)) {
                // Slurm shows the user errors alone.
                slurm.log(Level::Error, &warning);
            }
            let own = match request {
                Some(request) => of_step_after(record, &state.set, request)
                    .map_err(|refusal| Why::from(refusal.to_string())),
                None => Ok(record.clone()),
            };
            let own = own.map(|own| match (slurm.item(Item::LocalTasks), state.gpus) {
                (Some(tasks), Some(gpus)) => of_tasks(&own, tasks, gpus),
                _ => own,
            });
            own.and_then(|own| with_partitions(slurm, state, &own, kind))
        }
        RecordState::Refused | RecordState::Failed => Err(reason().into()),
        RecordState::Starting => Err(Why::of_task(format!(
            "its MPS was still being started when the wait for it ended; the node's log has what mps-prologue says of job {}",
            record.job
        ))),
    }
}

/// The environment of a task of a step, where its ranks may have what they are promised for themselves.
fn with_partitions(
    slurm: &dyn Slurm,
    state: &State,
    record: &Record,
    kind: Kind,
) -> Result<Vec<Change>, Why> {
    let changes =
        |record| environment::task_environment(record, &task(slurm, record, kind)).map_err(Why::of_task);
    let tasks = slurm.item(Item::LocalTasks);
    match partitions::take(state, record, tasks).map_err(Why::of_task)? {
        Theirs::Free => changes(record),
        // Somebody may want to look at what the other step does.
        Theirs::Taken if tasks == Some(1) => {
            let node = this_node(slurm);
            let job = &record.job;
            slurm.log(
                Level::Told,
                &format!(
                    "job {job}: another step has the static partition of its rank on {node}: CUDA gives this task no context (915)"
                ),
            );
            let mut without = record.clone();
            without
                .daemons
                .iter_mut()
                .for_each(|daemon| daemon.partitions.clear());
            let mut changes = changes(&without)?;
            changes.push(Change {
                name: VARIABLE,
                value: None,
            });
            Ok(changes)
        }
        Theirs::Taken => {
            let why = "another step of the job has them on this node";
            let allowed = "one step at a time, or a job for each";
            Err(Why::of_task(Refusal::new(
                "static partitions by local rank",
                why,
                allowed,
            )))
        }
    }
}

/// What Slurm says of this task. Its GPUs are those that `CUDA_VISIBLE_DEVICES` names among those that it may open:
/// slurmstepd confines each task and writes the variable anew for it before task_init. `SLURM_STEP_GPUS` is no help: under
/// ConstrainDevices it has the step's first GPUs for every task with GPUs of its own (common_gres_set_env, 22.05 to 26.05).
fn task(slurm: &dyn Slurm, record: &Record, kind: Kind) -> Task {
    let counted = environment::counted(record);
    // A record of an earlier release names no files; its numbers are the node's. Slurm gives MIG devices no numbers of NVML's.
    let gpus = match kind {
        _ if counted.is_some() || record.is_mig() => environment::VISIBLE_DEVICES,
        Kind::Job => "SLURM_JOB_GPUS",
        _ => "SLURM_STEP_GPUS",
    };
    let lookup = |name: &str| slurm.job_env(name);
    let local = slurm.item(Item::TaskId);
    // The only one of its step, whatever the job's tasks are: they come later, each with what is its own.
    let of = match kind {
        Kind::Job => Some(1),
        _ => slurm.item(Item::LocalTasks),
    };
    let rank = local.map(|local| Rank { local, of });
    Task {
        rank: rank.or_else(|| Some(environment::rank(&lookup)?.0)),
        // A script and a shell see all; the ranks come later.
        bound: kind == Kind::Job || environment::is_bound_by_slurm(record, &lookup),
        cpus: None,
        visible: slurm.job_env(gpus),
        counted,
        inherited_job: slurm.job_env(environment::JOB),
    }
}
