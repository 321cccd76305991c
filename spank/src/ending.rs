//! `task_exit` in slurmstepd: a task that fails because its MPS did shows its user a bare CUDA error, and the job's own log
//! goes with the job. So what its `mpsd` says of it is told on the step's standard error, once a node and job. Slurm has closed
//! that when `exit` comes, but for a batch script's.

use crate::handle::{Item, Level, Node, Slurm};
use crate::state::State;
use crate::stepd::{self, Kind};
use mpsd_core::{JobId, JobPaths};
use std::time::{Duration, Instant};

/// How long the last task of a step is waited for: a client may end before `mpsd` has read why in the log of NVIDIA's daemon.
const LATE: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(20);

/// Tells what befell the MPS of a task that has failed. A task of a job without MPS costs one look, and one that ended well none.
pub fn of_task(slurm: &dyn Slurm, node: &dyn Node, state: &mut State) {
    state.ended += 1;
    if state.told || slurm.item(Item::TaskExitStatus).is_none_or(|status| status == 0) {
        return;
    }
    let (Some(job), Some(paths)) = (slurm.job(), paths(slurm, node, state)) else {
        return;
    };
    let is_last = slurm.item(Item::LocalTasks).is_none_or(|all| state.ended >= all);
    let words = untold(node, &paths, if is_last { LATE } else { Duration::ZERO });
    state.told = !words.is_empty();
    let name = slurm.process_env("SLURMD_NODENAME").unwrap_or_default();
    for line in words {
        slurm.log(
            Level::Told,
            &format!("job {job}: on {name} its mpsd says: {line}"),
        );
    }
}

/// The files of the MPS that the step's tasks use, where they have one.
fn paths(slurm: &dyn Slurm, node: &dyn Node, state: &State) -> Option<JobPaths> {
    let settings = state.settings.as_ref()?.as_ref().ok()?;
    let has_record = |job: &JobId| matches!(node.record(&settings.paths.job(job).record()), Ok(Some(_)));
    let job = slurm.job()?;
    if has_record(&job) {
        return Some(settings.paths.job(&job));
    }
    let Kind::Step(number) = stepd::kind(slurm)? else {
        return None;
    };
    let step = job.step(&number.to_string()).ok()?;
    state.own_daemon.then(|| settings.paths.job(&step))
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
