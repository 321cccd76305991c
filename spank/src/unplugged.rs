//! Nodes that do not load this plugin, because of another plugstack.conf or a plugin of another
//! release.
//!
//! Nothing of mpsd runs there, so the submitting side requests a task prolog (`srun
//! --task-prolog`), which every slurmstepd runs. `mps-task-prolog` lets a task start that
//! `task_init` has marked, says why another does not, and then runs the user's own. A node without
//! the file fails the task, and names the file.
//!
//! A batch script has no task prolog. `BASH_ENV` stops bash, until `task_init` removes it. Nothing
//! stops another interpreter, nor a script without the environment (`sbatch --export=NONE`, or a
//! list without `ALL`).

use crate::handle::{Context, Slurm};
use mpsd_core::environment::Change;
use std::path::Path;

const PROGRAM: &str = "mps-task-prolog";
const VARIABLE: &str = "SLURM_TASK_PROLOG";
/// Under `--export=NONE` Slurm keeps variables that begin with `SLURM_`.
const USERS: &str = "SLURM_MPSD_TASK_PROLOG";
const MARK: &str = "MPSD_TASK";
const BASH: &str = "BASH_ENV";
const USERS_BASH: &str = "SLURM_MPSD_BASH_ENV";
/// The value of `BASH_ENV`, which bash expands before it reads a script.
const STOP: &str = "$(echo \"mps: job $SLURM_JOB_ID: not started on $SLURMD_NODENAME: --mps was asked for, and Slurm there \
                    did not load the plugin of mpsd; tell the administrator: 'mpsctl slurm check' on that node\" >&2; kill $$)";

/// Keeps tasks that asked for MPS from nodes without the plugin; `prologue`: `mps-prologue`.
pub fn require(slurm: &mut dyn Slurm, prologue: &Path) {
    let ours = prologue.with_file_name(PROGRAM).display().to_string();
    let users = match slurm.context() {
        Context::Local => slurm.task_prolog(),
        _ => slurm.process_env(VARIABLE),
    };
    match users.filter(|users| !users.is_empty()) {
        // From the allocation around this step.
        Some(users) if is_ours(&users) => {}
        users => slurm.set_process_env(USERS, users.as_deref()),
    }
    if slurm.context() == Context::Local {
        slurm.set_task_prolog(&ours);
        return;
    }
    slurm.set_process_env(VARIABLE, Some(&ours));
    let bash = slurm.process_env(BASH);
    if slurm.is_batch() && bash.as_deref() != Some(STOP) {
        slurm.set_process_env(USERS_BASH, bash.as_deref());
        slurm.set_process_env(BASH, Some(STOP));
    }
}

/// Undoes [`require`] for a step that does not ask, in an allocation that did.
pub fn release(slurm: &mut dyn Slurm) {
    let users = slurm.process_env(USERS);
    if slurm.context() == Context::Local && slurm.task_prolog().is_some_and(|path| is_ours(&path)) {
        slurm.set_task_prolog(users.as_deref().unwrap_or_default());
    }
    let path = slurm.process_env(VARIABLE);
    if path.is_some_and(|path| is_ours(&path)) {
        slurm.set_process_env(VARIABLE, users.as_deref());
        slurm.set_process_env(USERS, None);
    }
}

/// A task without MPS gets the environment that it would have without us: its steps ask for the
/// task prolog themselves. Before a task other than a script, `mps-task-prolog` still needs the
/// user's own.
pub fn handed_back(slurm: &dyn Slurm, is_script: bool) -> Vec<Change> {
    if !is_handed_on(slurm) {
        return Vec::new();
    }
    let users = slurm.job_env(USERS);
    let forgets = is_script && users.is_some();
    let forgotten = forgets.then(|| Change::unset(USERS));
    let name = VARIABLE;
    let restored = Change { name, value: users };
    forgotten.into_iter().chain([restored]).collect()
}

pub fn is_mark(change: &Change) -> bool {
    change.name == MARK
}

/// Whether the allocation around a task asked for our task prolog.
pub fn is_handed_on(slurm: &dyn Slurm) -> bool {
    slurm.job_env(VARIABLE).is_some_and(|path| is_ours(&path))
}

fn is_ours(path: &str) -> bool {
    Path::new(path).file_name() == Some(PROGRAM.as_ref())
}

/// The plugin has seen this task. No other task has the same mark.
pub fn mark(slurm: &dyn Slurm) -> Change {
    let of = |name| slurm.job_env(name).unwrap_or_default();
    let (node, pid) = (of("SLURMD_NODENAME"), of("SLURM_TASK_PID"));
    Change::set(MARK, format!("{node}:{pid}"))
}

pub fn restore(slurm: &mut dyn Slurm) {
    if slurm.job_env(BASH).as_deref() == Some(STOP) {
        let users = slurm.job_env(USERS_BASH);
        slurm.set_job_env(BASH, users.as_deref());
        slurm.set_job_env(USERS_BASH, None);
    }
}
