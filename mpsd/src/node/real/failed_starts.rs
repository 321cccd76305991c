//! Failed starts of late: when those of two users fail within the window, the users are not the cause.

use crate::model::Paths;
use crate::sys::deadline::Deadline;
use crate::sys::files::Dir;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long a failed start counts. Seconds.
const WINDOW: u64 = 600;
/// How many users' failures are evidence.
const USERS: usize = 2;
/// Time for the file's lock.
const LOCK_TIME: Duration = Duration::from_millis(500);
const NAME: &str = "failed-starts";
const LOCK: &str = ".failed-starts.lock";
const LONGEST: usize = 64 * 1024;

/// Enters a failed start of `uid`; true when two or more users' failures lie within the window.
pub fn note(paths: &Paths, uid: u32) -> bool {
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
    let mut failures: BTreeMap<u32, u64> = run
        .read_limited(NAME, LONGEST)
        .ok()
        .flatten()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default();
    failures.retain(|_, when| now.saturating_sub(*when) < WINDOW);
    failures.insert(uid, now);
    if let Ok(text) = serde_json::to_vec(&failures) {
        let _ = run.write_atomic(NAME, &text, 0o600);
    }
    failures.len() >= USERS
}

/// A start worked: earlier failures were not the node's.
pub fn forget(paths: &Paths) {
    if let Ok(run) = Dir::open(paths.run()) {
        let _ = run.remove_file(NAME);
        let _ = run.remove_file(LOCK);
    }
}
