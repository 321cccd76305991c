//! `task_init`: the forked child of a task, as the job's user, just before exec.
//!
//! The record that root left on this node decides, not the flags: they are lost on some ways (`sbatch --export=NONE`).
//! What keeps a task from running is reported here, because this line reaches the user's terminal. The child then calls
//! `_exit(1)`: under `optional` Slurm ignores the return value, and a failing init or user_init would end the job
//! COMPLETED without having run (docs/facts/slurm.md#failures).

use crate::arguments::Scope;
use crate::handle::{Item, Level, Node, Slurm, Verdict};
use crate::state::PluginState;
use crate::stepd::{self, StepKind};
use crate::unplugged;
use mpsd_core::config::Settings;
use mpsd_core::environment::{self, Change, Task};
use mpsd_core::partitions::{self, Holder, VARIABLE};
use mpsd_core::ranks::Rank;
use mpsd_core::record::{Record, RecordState};
use mpsd_core::step::{of_step_after, of_tasks};
use mpsd_core::{JobId, Refusal, Request};
use std::path::Path;

/// Attaches the task to its MPS, leaves it alone, or refuses it.
pub fn begin(slurm: &mut dyn Slurm, node: &dyn Node, state: &PluginState) -> Verdict {
    let (Some(kind), Some(job)) = (stepd::kind(slurm), slurm.job()) else {
        return Verdict::Continue;
    };
    unplugged::restore(slurm);
    match changes(slurm, node, state, kind, &job) {
        Ok(changes) => apply(slurm, &job, &changes),
        // One task reports what holds for all tasks of the node.
        Err(why) if !why.of_task && slurm.item(Item::TaskId).is_some_and(|rank| rank != 0) => Verdict::Leave,
        Err(why) => {
            refuse(slurm, &job, &why.text);
            Verdict::Leave
        }
    }
}

/// Why a task does not start.
struct TaskRefusal {
    text: String,
    /// Another task of the node may fare better.
    of_task: bool,
}

impl From<String> for TaskRefusal {
    fn from(text: String) -> Self {
        let of_task = false;
        Self { text, of_task }
    }
}

impl TaskRefusal {
    fn of_task(text: impl ToString) -> Self {
        let (text, of_task) = (text.to_string(), true);
        Self { text, of_task }
    }
}

/// Reports why a task does not start, with the node's name: not every release of Slurm puts it before our line.
fn refuse(slurm: &dyn Slurm, job: &JobId, why: &str) {
    let node = slurm.node_name();
    slurm.log(Level::Error, &format!("job {job}: not started on {node}: {why}"));
}

/// Whether these are the words of a second line in plugstack.conf, behind pyxis' line.
///
/// pyxis enters a container in its own `task_init`, and Slurm calls the plugins in the order of their lines
/// (docs/containers.md#enroot-and-pyxis). Slurm loads the library once for both lines, so this line leaves the state alone.
pub fn is_second_line(words: &[String]) -> bool {
    words.iter().any(|word| word == "look=container")
}

/// `task_init` of that line, in the container. If the container hides the job's MPS, CUDA would run outside it without a word,
/// so the task does not start.
pub fn check_container(slurm: &dyn Slurm, node: &dyn Node) -> Verdict {
    let variables = (
        slurm.job(),
        slurm.job_env(environment::JOB),
        slurm.job_env(environment::PIPE_DIRECTORY),
    );
    let (Some(job), Some(_), Some(pipe)) = variables else {
        return Verdict::Continue;
    };
    if node.exists(Path::new(&pipe)) {
        return Verdict::Continue;
    }
    // The tasks of a node share one container, so only the first reports it.
    if slurm.item(Item::TaskId).is_none_or(|rank| rank == 0) {
        let why = format!(
            "its container does not show '{pipe}', where its MPS is, and it would run outside of that; allowed: a container \
             that has it, by enroot's hook 50-mpsd.sh (the administrator's) or as docs/containers.md says"
        );
        refuse(slurm, &job, &why);
    }
    Verdict::Leave
}

fn apply(slurm: &mut dyn Slurm, job: &JobId, changes: &[Change]) -> Verdict {
    for Change { name, value } in changes {
        // Slurm also refuses to remove a variable that is not there.
        let is_absent = |slurm: &dyn Slurm| value.is_none() && slurm.job_env(name).is_none();
        if !slurm.set_job_env(name, value.as_deref()) && !is_absent(slurm) {
            refuse(slurm, job, &format!("cannot set {name}"));
            return Verdict::Leave;
        }
    }
    Verdict::Continue
}

fn changes(
    slurm: &dyn Slurm,
    node: &dyn Node,
    state: &PluginState,
    kind: StepKind,
    job: &JobId,
) -> Result<Vec<Change>, TaskRefusal> {
    let (arguments, settings) = match (&state.line, &state.settings) {
        (Ok(arguments), Some(Ok(settings))) => (arguments, settings),
        // A plugin in trouble stops only users who asked for MPS.
        (Err(why), _) | (_, Some(Err(why))) if state.asks() => return Err(why.clone().into()),
        _ => return Ok(Vec::new()),
    };
    // srun gives the flags of the last component to the steps of all (22.05, seen). Each has what its own job asked for.
    let has_flags = !stepd::is_component(slurm);
    // A task may fare worse than the others: no descriptor left, no memory.
    let record = find(node, settings, kind, job).map_err(TaskRefusal::of_task)?;
    match record {
        Some(record) if has_flags && state.opts_out() => Ok(opted_out(slurm, &record)?),
        Some(record) if has_no_gpu(slurm, &record, kind) => Ok(marked(slurm, strip(slurm, None))),
        Some(record) => {
            let request = state.request_on().filter(|_| has_flags);
            let changes = attach(slurm, state, &record, kind, request)?;
            let of_task = record.daemons.len() > 1;
            node.expect_listener(&changes)
                .map_err(|text| TaskRefusal { text, of_task })?;
            warn(slurm, &record, kind);
            Ok(marked(slurm, changes))
        }
        None if has_flags && state.asks() && !(arguments.scope == Scope::Step && kind == StepKind::Job) => {
            Err(no_daemon(slurm, state).into())
        }
        None => {
            let changes = strip(slurm, Some(job));
            Ok(match state.request_on() {
                Some(_) if has_prolog(slurm) => marked(slurm, changes),
                _ => changes,
            })
        }
    }
}

/// Shows the record's warnings once a node: the script does it, or else the first step.
fn warn(slurm: &dyn Slurm, record: &Record, kind: StepKind) {
    let first = match kind {
        StepKind::Job => true,
        StepKind::Step(number) => {
            slurm.job().is_some_and(|job| job != record.job) || (number == 0 && !stepd::is_of_script(slurm))
        }
        StepKind::Extern => false,
    };
    if first && slurm.item(Item::TaskId).is_none_or(|rank| rank == 0) {
        for warning in &record.warnings {
            slurm.log(Level::Notice, &format!("job {}: {warning}", record.job));
        }
    }
}

/// Whether mpsd's task prolog runs before a task whose flags ask for MPS. Only the component whose flags srun used runs
/// it; an allocation that asked hands it to its steps on all components.
fn has_prolog(slurm: &dyn Slurm) -> bool {
    !stepd::is_component(slurm) || unplugged::is_handed_on(slurm)
}

fn marked(slurm: &dyn Slurm, mut changes: Vec<Change>) -> Vec<Change> {
    changes.extend((!stepd::is_script(slurm)).then(|| unplugged::mark(slurm)));
    changes
}

fn no_daemon(slurm: &dyn Slurm, state: &PluginState) -> String {
    state.failure.clone().unwrap_or_else(|| {
        let node = slurm.node_name();
        format!(
            "--mps was asked for, and slurmd of {node} has run no prologue of mpsd; tell the administrator: 'mpsctl slurm \
             check' on {node} says what is in the way (a slurmd that began before the plugin was enabled, for one)"
        )
    })
}

/// The record of the job, else of the step; one that is still `starting` is waited for.
fn find(node: &dyn Node, settings: &Settings, kind: StepKind, job: &JobId) -> Result<Option<Record>, String> {
    let record = |job: &JobId| node.settled_record(&settings.paths.job(job).record(), settings.deadline);
    let of_job = record(job)?;
    match (&of_job, kind) {
        (None, StepKind::Step(number)) => record(&job.step(&number.to_string()).map_err(|e| e.to_string())?),
        _ => Ok(of_job),
    }
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

/// Whether this is a step without GPUs (`--gres=none`) in a job whose GPUs Slurm named. For such a step Slurm sets
/// neither variable and removes those of the script around it (22.05). It gets no MPS of the job's GPUs either.
fn has_no_gpu(slurm: &dyn Slurm, record: &Record, kind: StepKind) -> bool {
    let is_empty = |name: &str| slurm.job_env(name).is_none_or(|value| value.is_empty());
    // The step has GPUs that Slurm does not name: `--gpu-bind=none`, or `--gpus-per-task=TYPE:N`, for which it still
    // counts them. srun passes either word to the tasks (22.05, seen; docs/facts/slurm.md#gpus-of-a-job).
    let is_unnamed = || {
        let bind = slurm.job_env("SLURMD_TRES_BIND").unwrap_or_default();
        bind.contains("gpu:none") || bind.contains("gpu:per_task:") && !is_empty("SLURM_GPUS_ON_NODE")
    };
    let is_named_job = record.state == RecordState::Ready && record.named && kind != StepKind::Job;
    is_named_job && is_empty("SLURM_STEP_GPUS") && is_empty(environment::VISIBLE_DEVICES) && !is_unnamed()
}

fn attach(
    slurm: &dyn Slurm,
    state: &PluginState,
    record: &Record,
    kind: StepKind,
    request: Option<&Request>,
) -> Result<Vec<Change>, TaskRefusal> {
    match record.state {
        RecordState::Ready => {}
        RecordState::Refused | RecordState::Failed => {
            let reason = record.reason.as_deref().unwrap_or("no reason is recorded");
            return Err(reason.to_owned().into());
        }
        RecordState::Starting => {
            return Err(TaskRefusal::of_task(format!(
                "its MPS was still being started when the wait for it ended; the node's log has what mps-prologue says of job {}",
                record.job
            )));
        }
    }
    if slurm.item(Item::JobUid).is_some_and(|uid| uid != record.uid) {
        let job = &record.job;
        return Err(
            format!("what is left of another user's job {job} stands in its place on this node").into(),
        );
    }
    if let Some(warning) = environment::warning(slurm.item(Item::TaskId), &|name| slurm.job_env(name)) {
        // Slurm shows the user only errors.
        slurm.log(Level::Error, &warning);
    }
    let own = match request {
        Some(request) => of_step_after(record, &state.limits_set, request)
            .map_err(|refusal| TaskRefusal::from(refusal.to_string()))?,
        // Only what root recorded counts, so a forged flag changes nothing.
        None => record.clone(),
    };
    let own = match (slurm.item(Item::LocalTasks), state.gpus) {
        (Some(tasks), Some(gpus)) => of_tasks(&own, tasks, gpus),
        _ => own,
    };
    with_partitions(slurm, state, own, kind)
}

/// The environment of a task, once its step has the job's static partitions.
///
/// One step has them at a time. The lock is that of a file in the job's directory, of which a rank of `mpsctl exec` takes
/// its part. slurmstepd opens the file and its tasks inherit and lock it, so the lock ends with the step however it
/// ends. The last task's end releases it, because srun returns before slurmstepd has ended.
fn with_partitions(
    slurm: &dyn Slurm,
    state: &PluginState,
    mut record: Record,
    kind: StepKind,
) -> Result<Vec<Change>, TaskRefusal> {
    let changes = |record: &Record| {
        environment::task_environment(record, &task(slurm, record, kind)).map_err(TaskRefusal::of_task)
    };
    let tasks = slurm.item(Item::LocalTasks);
    let partitions = record
        .daemons
        .iter()
        .map(|daemon| daemon.partitions.len())
        .sum::<usize>();
    // A single task that starts MPI's ranks has no partition of its own.
    let starts_ranks = tasks == Some(1) && partitions > 1;
    let has_them = match &state.partitions_lock {
        Some(Err(why)) if !starts_ranks => return Err(TaskRefusal::of_task(why)),
        Some(Ok(lock)) if !starts_ranks => partitions::take(lock, Holder::All)
            .map_err(|e| TaskRefusal::of_task(format!("the lock of the ranks' static partitions: {e}")))?,
        _ => true,
    };
    if has_them {
        return changes(&record);
    }
    if tasks != Some(1) {
        let why = "another step of the job has them on this node";
        let allowed = "one step at a time, or a job for each";
        let refusal = Refusal::new("static partitions by local rank", why, allowed);
        return Err(TaskRefusal::of_task(refusal));
    }
    // The user may only want to look at what the other step does.
    let (job, node) = (&record.job, slurm.node_name());
    slurm.log(
        Level::Notice,
        &format!(
            "job {job}: another step has the static partition of its rank on {node}: CUDA gives this task no context (915)"
        ),
    );
    for daemon in &mut record.daemons {
        daemon.partitions.clear();
    }
    let mut changes = changes(&record)?;
    let (name, value) = (VARIABLE, None);
    changes.push(Change { name, value });
    Ok(changes)
}

/// What Slurm says of this task. Its GPUs are those that `CUDA_VISIBLE_DEVICES` names among those that it may open:
/// slurmstepd confines each task and rewrites the variable before task_init. `SLURM_STEP_GPUS` does not help: under
/// ConstrainDevices it has the step's first GPUs for every task with GPUs of its own (common_gres_set_env, 22.05 to 26.05).
fn task(slurm: &dyn Slurm, record: &Record, kind: StepKind) -> Task {
    let counted = environment::counted(record);
    // A record that names no files has the node's numbers. Slurm gives MIG devices no numbers of NVML's.
    let gpus = match kind {
        _ if counted.is_some() || record.is_mig() => environment::VISIBLE_DEVICES,
        StepKind::Job => "SLURM_JOB_GPUS",
        _ => "SLURM_STEP_GPUS",
    };
    let lookup = |name: &str| slurm.job_env(name);
    // A script is the only task of its step; the job's ranks come later.
    let of = match kind {
        StepKind::Job => Some(1),
        _ => slurm.item(Item::LocalTasks),
    };
    let rank = slurm.item(Item::TaskId).map(|local| Rank { local, of });
    Task {
        rank: rank.or_else(|| Some(environment::rank(&lookup)?.0)),
        // A script and a shell see all GPUs.
        bound: kind == StepKind::Job || environment::is_bound_by_slurm(record, &lookup),
        cpus: None,
        visible: slurm.job_env(gpus),
        counted,
        inherited_job: slurm.job_env(environment::JOB),
    }
}
