//! What waits for its second look, in a file of root's, and the mark that makes the timer bring it.

use crate::job::suspicion::Suspicion;
use crate::sys::deadline::Deadline;
use crate::sys::files::Dir;
use mpsd_core::Paths;
use std::time::Duration;

/// Time for the file's lock.
const LOCK_TIME: Duration = Duration::from_millis(500);
const NAME: &str = "suspicions";
const LOCK: &str = ".suspicions.lock";
/// `mpsd-look-again.path` waits for it.
const LOOK_AGAIN: &str = "look-again";
const LONGEST: usize = 1 << 20;

/// All of them; none where the file is not there or nobody's of ours.
pub fn all(paths: &Paths) -> Vec<Suspicion> {
    Dir::open(paths.run()).map(|run| read(&run)).unwrap_or_default()
}

fn read(run: &Dir) -> Vec<Suspicion> {
    let bytes = run.read_limited(NAME, LONGEST).ok().flatten();
    bytes
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default()
}

/// Enters `suspicion` unless its object stands there already, and asks for a look.
pub fn add(paths: &Paths, suspicion: &Suspicion) {
    change(paths, |known| {
        if !known.iter().any(|other| other.suspect == suspicion.suspect) {
            known.push(suspicion.clone());
        }
    });
    if let Ok(run) = Dir::open(paths.run()) {
        let _ = run.write_whole(LOOK_AGAIN, b"", 0o600);
    }
}

/// Takes out what stands there of its object.
pub fn remove(paths: &Paths, suspicion: &Suspicion) {
    change(paths, |known| {
        known.retain(|other| other.suspect != suspicion.suspect);
    });
}

fn change(paths: &Paths, change: impl FnOnce(&mut Vec<Suspicion>)) {
    let Ok(run) = Dir::open(paths.run()) else { return };
    let Ok(_held) = run.lock(LOCK, Deadline::after(LOCK_TIME)) else {
        return;
    };
    let mut known = read(&run);
    change(&mut known);
    if known.is_empty() {
        // The mark goes with the last of them: on a node without our units nobody else takes it away.
        for name in [NAME, LOOK_AGAIN, LOCK] {
            let _ = run.remove_file(name);
        }
    } else if let Ok(text) = serde_json::to_vec(&known) {
        let _ = run.write_atomic(NAME, &text, 0o600);
    }
}

#[cfg(test)]
mod tests;
