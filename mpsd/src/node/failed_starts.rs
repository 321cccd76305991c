//! Failed starts of late, in a file of root's: whose, and when. What they prove is [`crate::job::evidence`]'s.

use crate::sys::deadline::Deadline;
use crate::sys::files::Dir;
use mpsd_core::Paths;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How many users' failures are evidence.
const USERS: usize = 2;
/// Time for the file's lock.
const LOCK_TIME: Duration = Duration::from_millis(500);
const NAME: &str = "failed-starts";
const LOCK: &str = ".failed-starts.lock";
const LONGEST: usize = 64 * 1024;

/// Enters a failed start of `uid`; true when two or more users' failures lie within `window`.
pub fn note(paths: &Paths, uid: u32, window: Duration) -> bool {
    let Ok(run) = Dir::open(paths.run()) else {
        return false;
    };
    let Ok(_held) = run.lock(LOCK, Deadline::after(LOCK_TIME)) else {
        return false;
    };
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let mut failures = recent(&run, window);
    failures.insert(uid, now);
    if let Ok(text) = serde_json::to_vec(&failures) {
        let _ = run.write_atomic(NAME, &text, 0o600);
    }
    failures.len() >= USERS
}

/// How many users' starts failed within `window`, where they are enough to be told.
pub fn of_several(paths: &Paths, window: Duration) -> Option<usize> {
    let run = Dir::open(paths.run()).ok()?;
    let users = recent(&run, window).len();
    (users >= USERS).then_some(users)
}

fn recent(run: &Dir, window: Duration) -> BTreeMap<u32, u64> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let mut failures: BTreeMap<u32, u64> = run
        .read_limited(NAME, LONGEST)
        .ok()
        .flatten()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default();
    failures.retain(|_, when| now.saturating_sub(*when) < window.as_secs());
    failures
}

/// A start worked: earlier failures were not the node's.
pub fn forget(paths: &Paths) {
    if let Ok(run) = Dir::open(paths.run()) {
        let _ = run.remove_file(NAME);
        let _ = run.remove_file(LOCK);
    }
}
