//! The static partitions of a job's ranks, which one step has at a time: the ranks of another one at once would share them.
//!
//! The lock of a file in the job's directory tells, which a rank of `mpsctl exec` takes its part of. slurmstepd opens the file, and its tasks,
//! who inherit it, lock it: so it is the step's, and ends with it whatever ends it. The last task's end gives it back, because srun returns
//! before slurmstepd has ended.

use crate::handle::{Node, Slurm};
use crate::state::State;
use mpsd_core::config::Settings;
use mpsd_core::partitions::{self, Holder};
use mpsd_core::record::Record;
use std::fs::File;

/// What a step of a job with partitions has to lock; `None`: the job has none.
pub fn open(slurm: &dyn Slurm, node: &dyn Node, settings: &Settings) -> Option<Result<File, String>> {
    let paths = settings.paths.job(&slurm.job()?);
    let record = node.record(&paths.record()).ok()??;
    let asked = record.request.is_some_and(|request| request.sms.is_some());
    asked.then(|| node.ranks(&paths))
}

/// Who has the partitions when a task begins.
#[derive(Debug, PartialEq, Eq)]
pub enum Theirs {
    /// Its step, from now on, or nobody: it gets none.
    Free,
    /// Another step.
    Taken,
}

/// Takes the partitions of `record` for the task's step, one of `tasks` on this node.
///
/// # Errors
/// The file that is to be locked cannot be.
pub fn take(state: &State, record: &Record, tasks: Option<u32>) -> Result<Theirs, String> {
    let all = record.daemons.iter().map(|daemon| daemon.partitions.len());
    let starter = tasks == Some(1) && all.sum::<usize>() > 1;
    let Some(file) = state.ranks.as_ref().filter(|_| !starter) else {
        return Ok(Theirs::Free);
    };
    match partitions::take(file.as_ref().map_err(Clone::clone)?, Holder::All) {
        Ok(true) => Ok(Theirs::Free),
        Ok(false) => Ok(Theirs::Taken),
        Err(e) => Err(format!("the lock of the ranks' static partitions: {e}")),
    }
}

/// Gives them back; no trouble where another step has them.
pub fn give_back(state: &State) {
    if let Some(Ok(file)) = &state.ranks {
        partitions::give_back(file);
    }
}
