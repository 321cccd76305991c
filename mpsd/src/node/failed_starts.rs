//! Failed starts of late, in a file of root's: whose, and when. What they prove is [`crate::job::evidence`]'s.

use super::kept::Kept;
use crate::sys::files::Dir;
use mpsd_core::{JobId, Paths};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How many users' failures are evidence.
const USERS: usize = 2;
const FILE: Kept = Kept("failed-starts");

/// The last failure of a user.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Failed {
    /// Seconds since 1970.
    when: u64,
    job: JobId,
}

/// By user id.
type Failures = BTreeMap<u32, Failed>;

/// Starts that failed for several users within the window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Several {
    /// How many users.
    pub users: usize,
    /// The last one's job.
    pub job: JobId,
    /// How long ago that was.
    pub age: Duration,
}

/// Enters a failed start of `job` of `uid`; true when two or more users' failures lie within `window`.
pub fn note(paths: &Paths, uid: u32, job: &JobId, window: Duration) -> bool {
    let Ok(run) = Dir::open(paths.run()) else {
        return false;
    };
    let noted = FILE.change(&run, |failures: &mut Failures| {
        let when = now();
        keep(failures, when, window);
        let job = job.clone();
        failures.insert(uid, Failed { when, job });
    });
    noted.is_some_and(|failures| failures.len() >= USERS)
}

/// The starts that failed within `window` of the last one, where they are enough to be told; whenever that was: no start has
/// worked since.
pub fn of_several(paths: &Paths, window: Duration) -> Option<Several> {
    let mut failures: Failures = FILE.read(&Dir::open(paths.run()).ok()?);
    let last = failures.values().max_by_key(|failed| failed.when)?.clone();
    keep(&mut failures, last.when, window);
    (failures.len() >= USERS).then(|| Several {
        users: failures.len(),
        job: last.job,
        age: Duration::from_secs(now().saturating_sub(last.when)),
    })
}

/// Forgets what lies longer before `when` than `window`.
fn keep(failures: &mut Failures, when: u64, window: Duration) {
    failures.retain(|_, failed| when.saturating_sub(failed.when) < window.as_secs());
}

/// Seconds since 1970.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}

/// A start worked: earlier failures were not the node's.
pub fn forget(paths: &Paths) {
    if let Ok(run) = Dir::open(paths.run()) {
        FILE.remove(&run);
    }
}
