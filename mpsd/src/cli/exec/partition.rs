//! The static partition of a rank, which one process of the job has at a time: what a second launcher starts would share it.
//!
//! The lock of the rank's byte tells, in a file of the job's user in root's directory, of which a step of Slurm's has all bytes. The
//! descriptor stays open in the command and what it starts, so that the lock ends with them, whatever ends them.

use crate::cli::attach::Caller;
use mpsd_core::environment::Change;
use mpsd_core::partitions::{Holder, VARIABLE, take};
use mpsd_core::{Failure, Refusal};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::sys::stat::{Mode, fstat, stat};
use std::fs::File;

/// The lowest number of the descriptor that the command has: above what a shell's script names.
const LOWEST: i32 = 10;

/// Takes the partition that `changes` name, for this process and the command that it turns into.
///
/// # Errors
/// Another process has it (refusal), or that cannot be told.
pub fn hold(caller: &Caller<'_>, changes: &[Change]) -> Result<(), Failure> {
    let own = changes.iter().find(|change| change.name == VARIABLE);
    let Some(name) = own.and_then(|change| change.value.as_deref()) else {
        return Ok(());
    };
    // Its step has it: the plugin's variable came with the step's lock.
    let of_step = (caller.env)("SLURM_STEP_ID").is_some() && (caller.env)(VARIABLE).as_deref() == Some(name);
    let Some((partition, path)) = caller.partition(name)?.filter(|_| !of_step) else {
        return Ok(());
    };
    let refused = |why: &str, allowed| Refusal::new("static partitions by local rank", why, allowed);
    let cannot = |e: Errno| refused(&format!("cannot lock '{}': {e}", path.display()), "");
    let flags = OFlag::O_RDWR | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = File::from(open(&path, flags, Mode::empty()).map_err(cannot)?);
    let taken = take(&file, Holder::Rank(partition.rank)).map_err(cannot)?;
    if !taken && !is_inherited(&file) {
        let why = format!(
            "another process of the job has that of rank {} on this node",
            partition.rank
        );
        return Err(refused(&why, "one launcher at a time, or a job for each").into());
    }
    // The lock is the open file's, which lives on by this number.
    fcntl(&file, FcntlArg::F_DUPFD(LOWEST))
        .map(drop)
        .map_err(|e| cannot(e).into())
}

/// Whether what this process was started by, as a job starter, holds the lock for it already.
fn is_inherited(own: &File) -> bool {
    let Ok(wanted) = fstat(own).map(|found| (found.st_dev, found.st_ino)) else {
        return false;
    };
    let numbers = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let same =
        numbers.filter(|entry| stat(&entry.path()).is_ok_and(|found| (found.st_dev, found.st_ino) == wanted));
    // One of them is its own.
    same.count() > 1
}
