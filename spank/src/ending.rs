//! `task_exit` in slurmstepd: what a task's user is told of its MPS.
//!
//! A task that fails because its MPS did shows a bare CUDA error, and the job's own log goes with
//! the job. So the last words of the job's `mpsd` appear on the step's standard error, once a node
//! and job. The last task also shows what the MPS was used for, if the job asked for that. Slurm
//! has closed this standard error when `exit` is called, except a batch script's. A task that a
//! signal ended is noted for the job's report.

use crate::handle::{Item, Level, Node, Slurm};
use crate::state::PluginState;
use crate::step::{self, StepKind};
use mpsd_core::advice::{self, Facts};
use mpsd_core::deadline::Deadline;
use mpsd_core::killed::KilledTask;
use mpsd_core::observations::Observations;
use mpsd_core::paths::SeenPaths;
use mpsd_core::record::{Record, RecordState};
use mpsd_core::{JobId, JobPaths};
use std::time::Duration;

/// The last task waits: a client may end before `mpsd` has read why in NVIDIA's log.
const LATE: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(20);
const SIGKILL: i32 = 9;

/// A task that ended well counts only if it is the last of a job with MPS: a program that starts
/// after the control daemon's end runs outside MPS, and may end well.
pub fn of_task(slurm: &dyn Slurm, node: &dyn Node, state: &mut PluginState) {
    state.step.ended_tasks += 1;
    let tasks = slurm.item(Item::LocalTasks);
    let is_last = tasks.is_none_or(|all| state.step.ended_tasks >= all);
    let status = slurm.item(Item::TaskExitStatus);
    let status = status.filter(|status| *status != 0);
    let mut ends_job = is_last && (ends_job(slurm) || state.step.own_daemon);
    state.step.first_task_ended |= slurm.item(Item::TaskGlobalId).is_none_or(|rank| rank == 0);
    // A step that opted out did not fail by that MPS, and must not take the words that other tasks
    // are to show.
    if state.opts_out() || status.is_none() && !(ends_job && state.step.has_mps) {
        return;
    }
    let Some(mps) = mps_of_step(slurm, node, state) else {
        return;
    };
    // A step from outside, as of 'srun --jobid', inherits nothing of the script.
    ends_job &= !mps.record.script || state.step.own_daemon || step::is_script(slurm);
    if let Some(status) = status {
        note_killed(slurm, node, status, &mps);
    }
    // A user who did not ask reads nothing of MPS.
    if mps.record.by_site.is_some() && (step::is_component(slurm) || !state.asks()) {
        return;
    }
    if status.is_some() {
        let patience = if is_last { LATE } else { Duration::ZERO };
        last_words(slurm, node, state, &mps, patience);
    }
    if !ends_job {
        return;
    }
    let is_told = mps.record.report || mps.record.summary && state.step.first_task_ended;
    let Some(observed) = observed(node, &mps, if is_told { LATE } else { Duration::ZERO }) else {
        return;
    };
    if !observed.daemons_lost.is_empty() || !observed.outside.is_empty() {
        last_words(slurm, node, state, &mps, Duration::ZERO);
    }
    if is_told {
        tell_use(slurm, &mps.record, &observed);
    }
}

/// What `mpsd` saw so far. If it saw no client, that may be late.
fn observed(node: &dyn Node, mps: &StepMps, patience: Duration) -> Option<Observations> {
    let deadline = Deadline::after(patience);
    loop {
        let seen = mps.seen.iter().filter_map(|seen| node.observations(seen));
        let all = seen.reduce(Observations::and)?;
        if all.clients > 0 || !deadline.sleep(PAUSE) {
            return Some(all);
        }
    }
}

fn tell_use(slurm: &dyn Slurm, record: &Record, observed: &Observations) {
    if !record.report {
        let text = observed.summary(&record.gpus, record.shared);
        let job = record.job.whole();
        return notice(slurm, &format!(": {text}; mpsctl report {job}"));
    }
    let facts = Facts {
        gpus: &record.gpus,
        daemons: &record.daemons,
        takes_turns: record.takes_turns,
        seen: observed,
    };
    let advice = advice::of(&facts).filter(|_| !record.shared);
    let advice = advice.map(|advice| format!("advice: {}", advice.text));
    let busy = observed.busy(&record.gpus, record.shared);
    let text = observed.lines(&record.gpus).into_iter();
    let text: Vec<String> = text.chain(busy).chain(advice).collect();
    let by = match record.shared {
        true => "the mpsd of all jobs that share it,",
        false => "its own mpsd",
    };
    notice(slurm, &format!(", by {by} so far: {}", text.join("; ")));
}

fn notice(slurm: &dyn Slurm, text: &str) {
    let job = slurm.item(Item::JobId).unwrap_or_default();
    let name = slurm.node_name();
    slurm.log(Level::Notice, &format!("job {job}: on {name}{text}"));
}

/// NVIDIA's log has a killed client, which may be a child of the task, as one that ended.
fn note_killed(slurm: &dyn Slurm, node: &dyn Node, status: u32, mps: &StepMps) {
    let step = match step::kind(slurm) {
        Some(StepKind::Step(number)) => Some(number),
        _ => None,
    };
    // The core flag aside, a status of wait(2) below 128 is the signal's number.
    let (signal, pid) = ((status & 0x7f).cast_signed(), slurm.item(Item::TaskPid));
    let (1.., Some(pid)) = (signal, pid) else {
        return;
    };
    let rank = slurm.item(Item::TaskGlobalId);
    let rank = rank.or_else(|| slurm.item(Item::TaskId));
    let oom_kills = (signal == SIGKILL).then(|| node.oom_kills()).flatten();
    let task = KilledTask {
        step,
        rank: rank.unwrap_or_default(),
        pid: pid.cast_signed(),
        signal,
        oom_kills: oom_kills.unwrap_or_default(),
    };
    let _ = node.note_killed(&mps.paths, &task);
}

fn last_words(
    slurm: &dyn Slurm,
    node: &dyn Node,
    state: &mut PluginState,
    mps: &StepMps,
    patience: Duration,
) {
    let deadline = Deadline::after(patience);
    while !state.step.has_told {
        let seen = mps.seen.iter();
        let words = seen.filter_map(|seen| node.take_last_words(seen));
        let words: Vec<String> = words.flatten().collect();
        if words.is_empty() && !deadline.sleep(PAUSE) {
            return;
        }
        state.step.has_told = !words.is_empty();
        for line in words {
            notice(slurm, &format!(" its mpsd says: {line}"));
        }
    }
}

fn ends_job(slurm: &dyn Slurm) -> bool {
    match step::kind(slurm) {
        Some(StepKind::Step(_)) => !step::is_of_script(slurm),
        _ => step::is_script(slurm),
    }
}

struct StepMps {
    record: Record,
    paths: JobPaths,
    seen: Vec<SeenPaths>,
}

fn mps_of_step(slurm: &dyn Slurm, node: &dyn Node, state: &PluginState) -> Option<StepMps> {
    let settings = state.step.settings.as_ref()?.as_ref().ok()?;
    let of = |job: &JobId| {
        let paths = settings.paths.job(job);
        let record = node.record(&paths.record()).ok().flatten()?;
        // What another user's job with this id left may still be here.
        let is_own = slurm.item(Item::JobUid).is_none_or(|uid| uid == record.uid);
        let gpus = record.gpus.iter().filter(|_| record.shared);
        let gpus = gpus.map(|gpu| &gpu.uuid);
        let seen = settings.paths.seen(job, record.uid, gpus);
        let mut mps = StepMps {
            record,
            paths,
            seen,
        };
        // A step's own word, where it did not inherit it from another component.
        let own = state.request_on().filter(|_| !step::is_component(slurm));
        if let Some(report) = own.and_then(|request| request.report) {
            (mps.record.report, mps.record.summary) = (report, false);
        }
        (is_own && mps.record.state == RecordState::Ready).then_some(mps)
    };
    let job = slurm.job()?;
    let own = || match step::kind(slurm)? {
        StepKind::Step(number) if state.step.own_daemon => {
            of(&job.step(&number.to_string()).ok()?)
        }
        _ => None,
    };
    of(&job).or_else(own)
}
