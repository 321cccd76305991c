//! `task_exit` in slurmstepd. A task that fails because its MPS did shows its user a bare CUDA error, and the job's own log
//! goes with the job: what its `mpsd` says of it is told on the step's standard error, once a node and job. And at the last
//! task's end what the MPS was used for, where the job wants to read it. Slurm has closed that standard error when `exit` comes, but
//! for a batch script's. A task that a signal ended is noted for the job's report.

use crate::handle::{Item, Level, Node, Slurm};
use crate::partitions;
use crate::state::State;
use crate::stepd::{self, Kind};
use mpsd_core::killed::KilledTask;
use mpsd_core::record::{Record, RecordState};
use mpsd_core::{JobId, JobPaths};
use std::time::{Duration, Instant};

/// How long the last task of a step is waited for: a client may end before `mpsd` has read why in the log of NVIDIA's daemon.
const LATE: Duration = Duration::from_millis(500);
/// The signal of the out-of-memory killer.
const SIGKILL: i32 = 9;
const LOOK: Duration = Duration::from_millis(20);

/// Tells what befell the MPS of a task that has ended. Of one that ended well only the last of a job with MPS is looked at: what
/// the script itself starts once the control daemon has ended runs outside MPS, and may end well.
pub fn of_task(slurm: &dyn Slurm, node: &dyn Node, state: &mut State) {
    state.ended += 1;
    let is_last = slurm.item(Item::LocalTasks).is_none_or(|all| state.ended >= all);
    if is_last {
        partitions::give_back(state);
    }
    // Its failures are not those of an MPS that it opted out of, whose words wait for whom they concern.
    if state.opts_out() {
        return;
    }
    let status = slurm.item(Item::TaskExitStatus).filter(|status| *status != 0);
    if let Some((status, whose)) = status.and_then(|status| Some((status, whose(slurm, node, state)?))) {
        note_killed(slurm, node, status, &whose);
        if !state.told {
            let limit = if is_last { LATE } else { Duration::ZERO };
            last_words(slurm, node, state, &whose, limit);
        }
    }
    if is_last && state.has_mps && !state.told && ends_job(slurm) {
        let whose = whose(slurm, node, state).filter(|whose| has_lost_daemon(node, whose));
        if let Some(whose) = whose {
            last_words(slurm, node, state, &whose, Duration::ZERO);
        }
    }
    if is_last && wants_report(slurm, state) {
        report(slurm, node, state);
    }
}

/// What nobody else sees of a killed client: NVIDIA's log has it as one that ended. One may be a child of the task that is noted.
fn note_killed(slurm: &dyn Slurm, node: &dyn Node, status: u32, whose: &Whose) {
    let step = match stepd::kind(slurm) {
        Some(Kind::Step(number)) => Some(number),
        _ => None,
    };
    // The core flag aside, a status of wait(2) below 128 is the signal's number.
    let (signal, pid) = ((status & 0x7f).cast_signed(), slurm.item(Item::TaskPid));
    let (1.., Some(pid)) = (signal, pid) else { return };
    let rank = slurm
        .item(Item::TaskGlobalId)
        .or_else(|| slurm.item(Item::TaskId));
    let task = KilledTask {
        step,
        rank: rank.unwrap_or_default(),
        pid: pid.cast_signed(),
        signal,
        oom_kills: if signal == SIGKILL { node.oom_kills() } else { 0 },
    };
    node.note_killed(&whose.paths, &task);
}

fn last_words(slurm: &dyn Slurm, node: &dyn Node, state: &mut State, whose: &Whose, limit: Duration) {
    let Some(job) = slurm.job() else { return };
    let words = untold(node, &whose.paths, limit);
    state.told = !words.is_empty();
    let name = slurm.process_env("SLURMD_NODENAME").unwrap_or_default();
    for line in words {
        slurm.log(
            Level::Told,
            &format!("job {job}: on {name} its mpsd says: {line}"),
        );
    }
}

/// Whether the flags, or else the site, ask for a report at the end of this: of the script, where the job has one.
fn wants_report(slurm: &dyn Slurm, state: &State) -> bool {
    let Some(Ok(settings)) = &state.settings else {
        return false;
    };
    let request = state.request.iter().flatten().find(|request| request.is_on());
    let asked = request.and_then(|request| request.report);
    asked.or(settings.defaults.report) == Some(true) && ends_job(slurm)
}

/// The script, or a step that no script began.
fn ends_job(slurm: &dyn Slurm) -> bool {
    let of_step = || matches!(stepd::kind(slurm), Some(Kind::Step(_))) && !stepd::is_of_script(slurm);
    stepd::is_script(slurm) || of_step()
}

fn has_lost_daemon(node: &dyn Node, whose: &Whose) -> bool {
    let observed = node.observations(&whose.paths);
    observed.is_some_and(|observed| !observed.daemons_lost.is_empty())
}

fn report(slurm: &dyn Slurm, node: &dyn Node, state: &State) {
    let (Some(job), Some(whose)) = (slurm.job(), whose(slurm, node, state)) else {
        return;
    };
    let Some(observed) = whose
        .record
        .report
        .then(|| node.observations(&whose.paths))
        .flatten()
    else {
        return;
    };
    let told = observed.told(&whose.record.gpus).join("; ");
    let name = slurm.process_env("SLURMD_NODENAME").unwrap_or_default();
    slurm.log(
        Level::Told,
        &format!("job {job}: on {name}, by its own mpsd so far: {told}"),
    );
}

/// The MPS that the step's tasks use.
struct Whose {
    record: Record,
    paths: JobPaths,
}

fn whose(slurm: &dyn Slurm, node: &dyn Node, state: &State) -> Option<Whose> {
    let settings = state.settings.as_ref()?.as_ref().ok()?;
    let of = |job: &JobId| {
        let paths = settings.paths.job(job);
        let record = node.record(&paths.record()).ok().flatten()?;
        // What is left of another user's job may stand in this one's place.
        let is_own = slurm.item(Item::JobUid).is_none_or(|uid| uid == record.uid);
        (is_own && record.state == RecordState::Ready).then_some(Whose { record, paths })
    };
    let job = slurm.job()?;
    let own = || match stepd::kind(slurm)? {
        Kind::Step(number) if state.own_daemon => of(&job.step(&number.to_string()).ok()?),
        _ => None,
    };
    of(&job).or_else(own)
}

fn untold(node: &dyn Node, paths: &JobPaths, limit: Duration) -> Vec<String> {
    let begin = Instant::now();
    loop {
        let words = node.untold(paths);
        if !words.is_empty() || begin.elapsed() >= limit {
            return words;
        }
        std::thread::sleep(LOOK);
    }
}
