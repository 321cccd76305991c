//! The NVML process of a mere look that outlived SIGKILL. While it lives no other is started for a look: one a
//! minute would fill the node.

use super::real::RealNode;
use crate::job::journal::ProcessRef;
use crate::job::ledger::LedgerFile;
use crate::sys::process::State;

const FILE: LedgerFile = LedgerFile("hung-worker");

/// The process that an earlier look left, if it still lives.
pub fn earlier(node: &mut RealNode) -> Option<ProcessRef> {
    let known: ProcessRef = FILE.read::<Option<ProcessRef>, _>(node)?;
    let still = Some(known).filter(|worker| lives(*worker));
    if still.is_none() {
        FILE.remove(node);
    }
    still
}

/// Remembers `worker`, which was killed, if it still lives.
pub fn remember(node: &mut RealNode, worker: ProcessRef) {
    if lives(worker) {
        FILE.change(node, |known, _| *known = Some(worker));
    }
}

fn lives(worker: ProcessRef) -> bool {
    let state = worker.open().and_then(|process| process.state());
    !matches!(state, None | Some(State::Defunct | State::Dead))
}
