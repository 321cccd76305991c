//! Failed starts of late, in a file of root's: whose, and when. What they prove is [`crate::job::evidence`]'s.

use super::kept::Kept;
use crate::sys::files::Dir;
use mpsd_core::Paths;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How many users' failures are evidence.
const USERS: usize = 2;
const FILE: Kept = Kept("failed-starts");

/// User ids, each with the seconds since 1970 of the last failure.
type Failures = BTreeMap<u32, u64>;

/// Enters a failed start of `uid`; true when two or more users' failures lie within `window`.
pub fn note(paths: &Paths, uid: u32, window: Duration) -> bool {
    let Ok(run) = Dir::open(paths.run()) else {
        return false;
    };
    let noted = FILE.change(&run, |failures: &mut Failures| {
        let now = keep_recent(failures, window);
        failures.insert(uid, now);
    });
    noted.is_some_and(|failures| failures.len() >= USERS)
}

/// How many users' starts failed within `window`, where they are enough to be told.
pub fn of_several(paths: &Paths, window: Duration) -> Option<usize> {
    let mut failures: Failures = FILE.read(&Dir::open(paths.run()).ok()?);
    keep_recent(&mut failures, window);
    (failures.len() >= USERS).then_some(failures.len())
}

/// Forgets what lies longer ago than `window`. The seconds since 1970.
fn keep_recent(failures: &mut Failures, window: Duration) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default().as_secs();
    failures.retain(|_, when| now.saturating_sub(*when) < window.as_secs());
    now
}

/// A start worked: earlier failures were not the node's.
pub fn forget(paths: &Paths) {
    if let Ok(run) = Dir::open(paths.run()) {
        FILE.remove(&run);
    }
}
