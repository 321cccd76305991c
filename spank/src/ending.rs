//! `task_exit` in slurmstepd: what a task's user is told of its MPS.
//!
//! A task that fails because its MPS did shows a bare CUDA error, and the job's own log is removed with the job. So the
//! last words of the job's `mpsd` appear on the step's standard error, once a node and job. The last task also shows what
//! the MPS was used for, if the job asked for that. Slurm has closed this standard error when `exit` is called, except a
//! batch script's. A task that a signal ended is noted for the job's report.

use crate::handle::{Item, Level, Node, Slurm};
use crate::state::PluginState;
use crate::stepd::{self, StepKind};
use mpsd_core::deadline::Deadline;
use mpsd_core::killed::KilledTask;
use mpsd_core::record::{Record, RecordState};
use mpsd_core::{JobId, JobPaths, partitions};
use std::time::Duration;

/// How long the last task waits: a client may end before `mpsd` has read why in the log of NVIDIA's daemon.
const LATE: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(20);
/// The signal of the out-of-memory killer.
const SIGKILL: i32 = 9;

/// Tells what happened to the MPS of a task that has ended. Of tasks that ended well only the last of a job with MPS is
/// examined: what a script starts after its control daemon has ended runs outside MPS, and may end well.
pub fn of_task(slurm: &dyn Slurm, node: &dyn Node, state: &mut PluginState) {
    state.ended_tasks += 1;
    let is_last = slurm
        .item(Item::LocalTasks)
        .is_none_or(|all| state.ended_tasks >= all);
    if let (true, Some(Ok(lock))) = (is_last, &state.partitions_lock) {
        partitions::give_back(lock);
    }
    // A step that opted out neither failed by that MPS nor takes its words from the tasks that did.
    if state.opts_out() {
        return;
    }
    let status = slurm.item(Item::TaskExitStatus).filter(|status| *status != 0);
    if let Some(status) = status
        && let Some(mps) = mps_of_step(slurm, node, state)
    {
        note_killed(slurm, node, status, &mps);
        let patience = if is_last { LATE } else { Duration::ZERO };
        last_words(slurm, node, state, &mps, patience);
    }
    if !is_last || !ends_job(slurm) {
        return;
    }
    if state.has_mps && !state.has_told {
        let has_lost_daemon = |mps: &StepMps| {
            let observed = node.observations(&mps.paths);
            observed.is_some_and(|observed| !observed.daemons_lost.is_empty())
        };
        if let Some(mps) = mps_of_step(slurm, node, state).filter(has_lost_daemon) {
            last_words(slurm, node, state, &mps, Duration::ZERO);
        }
    }
    if wants_report(state) {
        report(slurm, node, state);
    }
}

/// Notes what nothing else shows: NVIDIA's log has a killed client as one that ended. The client may be a child of the
/// task that is noted.
fn note_killed(slurm: &dyn Slurm, node: &dyn Node, status: u32, mps: &StepMps) {
    let step = match stepd::kind(slurm) {
        Some(StepKind::Step(number)) => Some(number),
        _ => None,
    };
    // The core flag aside, a status of wait(2) below 128 is the signal's number.
    let (signal, pid) = ((status & 0x7f).cast_signed(), slurm.item(Item::TaskPid));
    let (1.., Some(pid)) = (signal, pid) else { return };
    let rank = slurm.item(Item::TaskGlobalId);
    let task = KilledTask {
        step,
        rank: rank.or_else(|| slurm.item(Item::TaskId)).unwrap_or_default(),
        pid: pid.cast_signed(),
        signal,
        oom_kills: if signal == SIGKILL { node.oom_kills() } else { 0 },
    };
    node.note_killed(&mps.paths, &task);
}

/// Shows the last words of the step's `mpsd`, unless the step has shown some already.
fn last_words(
    slurm: &dyn Slurm,
    node: &dyn Node,
    state: &mut PluginState,
    mps: &StepMps,
    patience: Duration,
) {
    let (Some(job), false) = (slurm.job(), state.has_told) else {
        return;
    };
    let deadline = Deadline::after(patience);
    let mut words = node.take_last_words(&mps.paths);
    while words.is_empty() && deadline.sleep(PAUSE) {
        words = node.take_last_words(&mps.paths);
    }
    state.has_told = !words.is_empty();
    let name = slurm.process_env("SLURMD_NODENAME").unwrap_or_default();
    for line in words {
        slurm.log(
            Level::Notice,
            &format!("job {job}: on {name} its mpsd says: {line}"),
        );
    }
}

/// Whether the flags, or else the site, ask for a report.
fn wants_report(state: &PluginState) -> bool {
    let Some(Ok(settings)) = &state.settings else {
        return false;
    };
    let by_flag = state.request_on().and_then(|request| request.report);
    by_flag.or(settings.defaults.report) == Some(true)
}

/// Whether this is the script, or a step that no script began.
fn ends_job(slurm: &dyn Slurm) -> bool {
    let of_step = || matches!(stepd::kind(slurm), Some(StepKind::Step(_))) && !stepd::is_of_script(slurm);
    stepd::is_script(slurm) || of_step()
}

fn report(slurm: &dyn Slurm, node: &dyn Node, state: &PluginState) {
    let (Some(job), Some(mps)) = (slurm.job(), mps_of_step(slurm, node, state)) else {
        return;
    };
    let Some(observed) = mps.record.report.then(|| node.observations(&mps.paths)).flatten() else {
        return;
    };
    let text = observed.lines(&mps.record.gpus).join("; ");
    let name = slurm.process_env("SLURMD_NODENAME").unwrap_or_default();
    slurm.log(
        Level::Notice,
        &format!("job {job}: on {name}, by its own mpsd so far: {text}"),
    );
}

/// The MPS that the step's tasks use.
struct StepMps {
    record: Record,
    paths: JobPaths,
}

fn mps_of_step(slurm: &dyn Slurm, node: &dyn Node, state: &PluginState) -> Option<StepMps> {
    let settings = state.settings.as_ref()?.as_ref().ok()?;
    let of = |job: &JobId| {
        let paths = settings.paths.job(job);
        let record = node.record(&paths.record()).ok().flatten()?;
        // What is left of another user's job may stand in this one's place.
        let is_own = slurm.item(Item::JobUid).is_none_or(|uid| uid == record.uid);
        (is_own && record.state == RecordState::Ready).then_some(StepMps { record, paths })
    };
    let job = slurm.job()?;
    let own = || match stepd::kind(slurm)? {
        StepKind::Step(number) if state.own_daemon => of(&job.step(&number.to_string()).ok()?),
        _ => None,
    };
    of(&job).or_else(own)
}
