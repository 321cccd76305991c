//! A second line of this plugin in plugstack.conf, behind pyxis' with the one word `look=container`: whether a task that is in
//! its container by now still sees the MPS that the first line gave it.
//!
//! pyxis enters a container in its own `task_init`, and Slurm calls the plugins in the order of their lines
//! (docs/containers.md#enroot-and-pyxis). CUDA runs outside of MPS without a word where the directory is hidden, so that the
//! task does not start, and its user reads why. The library is loaded once for both lines: this one leaves the state alone.

use crate::handle::{Item, Node, Slurm, Verdict};
use crate::task;
use mpsd_core::environment::{JOB, PIPE_DIRECTORY};
use std::path::Path;

/// The word.
const WORD: &str = "look=container";

/// Whether these are the words of the second line.
pub fn is_look(words: &[String]) -> bool {
    words.iter().any(|word| word == WORD)
}

/// `task_init`, as the job's user, where pyxis has left the task.
pub fn begin(slurm: &dyn Slurm, node: &dyn Node) -> Verdict {
    let (Some(job), Some(_)) = (slurm.job(), slurm.job_env(JOB)) else {
        return Verdict::Continue;
    };
    let Some(pipe) = slurm.job_env(PIPE_DIRECTORY) else {
        return Verdict::Continue;
    };
    if node.has_mark(Path::new(&pipe)) {
        return Verdict::Continue;
    }
    // The tasks of a node share one container, and one says it.
    if slurm.item(Item::TaskId).is_some_and(|rank| rank != 0) {
        return Verdict::Leave;
    }
    let why = format!(
        "its container does not show '{pipe}', where its MPS is, and it would run outside of that; allowed: a container that has \
         it, by enroot's hook 50-mpsd.sh (the administrator's) or as docs/containers.md says"
    );
    task::refuse(slurm, &job, &why);
    Verdict::Leave
}
