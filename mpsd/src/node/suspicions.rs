//! What waits for its second look, in a file of root's, and the mark that makes the timer, or the end of any job, bring it.

use super::kept::Kept;
use crate::job::suspicion::Suspicion;
use crate::sys::files::Dir;
use mpsd_core::Paths;
use mpsd_core::paths::LOOK_AGAIN;

const FILE: Kept = Kept("suspicions");

/// All of them; none where the file is not there or nobody's of ours.
pub fn all(paths: &Paths) -> Vec<Suspicion> {
    Dir::open(paths.run()).map_or(Vec::new(), |run| FILE.read(&run))
}

/// Enters `suspicion` unless its object stands there already, and asks for a look.
pub fn add(paths: &Paths, suspicion: &Suspicion) {
    if let Ok(run) = Dir::open(paths.run()) {
        FILE.change(&run, |known: &mut Vec<Suspicion>| {
            if !known.iter().any(|other| other.suspect == suspicion.suspect) {
                known.push(suspicion.clone());
            }
        });
        let _ = run.write_whole(LOOK_AGAIN, b"", 0o600);
    }
}

/// Takes out what stands there of its object.
pub fn remove(paths: &Paths, suspicion: &Suspicion) {
    if let Ok(run) = Dir::open(paths.run()) {
        FILE.change(&run, |known: &mut Vec<Suspicion>| {
            known.retain(|other| other.suspect != suspicion.suspect);
            if known.is_empty() {
                // The mark goes with the last of them: on a node without our units nobody else takes it away.
                let _ = run.remove_file(LOOK_AGAIN);
            }
        });
    }
}

#[cfg(test)]
#[path = "suspicions_tests.rs"]
mod tests;
