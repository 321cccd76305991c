//! A second line of this plugin in plugstack.conf, behind pyxis' line, with the one word `look=container`.
//!
//! pyxis enters a container in its own `task_init`, and Slurm calls the plugins in the order of their lines
//! (docs/containers.md#enroot-and-pyxis). If the container hides the job's MPS, CUDA would run outside it without a
//! word. So the task does not start, and its user reads why. Slurm loads the library once for both lines, so this line
//! leaves the state alone.

use crate::handle::{Item, Node, Slurm, Verdict};
use crate::task;
use mpsd_core::environment::{JOB, PIPE_DIRECTORY};
use std::path::Path;

pub fn is_second_line(words: &[String]) -> bool {
    words.iter().any(|word| word == "look=container")
}

/// `task_init`, as the job's user, after pyxis.
pub fn begin(slurm: &dyn Slurm, node: &dyn Node) -> Verdict {
    let variables = (slurm.job(), slurm.job_env(JOB), slurm.job_env(PIPE_DIRECTORY));
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
        task::refuse(slurm, &job, &why);
    }
    Verdict::Leave
}
