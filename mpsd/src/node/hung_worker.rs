//! The process that asked NVML for a mere look and outlived SIGKILL, in a file of root's. As long as it is there no other is
//! started for a look: one a minute would fill the node with them.

use super::kept::Kept;
use crate::job::journal::ProcessRef;
use crate::sys::files::Dir;
use crate::sys::process::State;
use mpsd_core::Paths;

const FILE: Kept = Kept("hung-worker");

/// The one that an earlier look has left, if it is there still.
pub fn earlier(paths: &Paths) -> Option<ProcessRef> {
    let run = Dir::open(paths.run()).ok()?;
    let known: ProcessRef = FILE.read::<Option<ProcessRef>>(&run)?;
    let still = Some(known).filter(|worker| lives(*worker));
    if still.is_none() {
        FILE.remove(&run);
    }
    still
}

/// Remembers `worker`, which was killed, if it is there still.
pub fn remember(paths: &Paths, worker: ProcessRef) {
    if let (true, Ok(run)) = (lives(worker), Dir::open(paths.run())) {
        FILE.change(&run, |known| *known = Some(worker));
    }
}

fn lives(worker: ProcessRef) -> bool {
    let state = worker.open().and_then(|process| process.state());
    !matches!(state, None | Some(State::Defunct | State::Dead))
}
