//! Failed starts of late: when those of two users fail within the window and neither can have been the cause, the node is.
//!
//! A start is brought down by a process of its user (which owns all that it consists of), by whoever holds the GPU, or by
//! whoever filled the file system of the pipe and log directories. Where root sees any of these the start does not count.

use super::members as processes;
use super::real::RealNode;
use crate::job::journal::Journal;
use crate::node::Node;
use crate::sys::deadline::Deadline;
use crate::sys::files::Dir;
use mpsd_core::Failure;
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
/// A start needs less room than this. Bytes.
const ROOM: u64 = 1 << 20;
/// And fewer files.
const FILES: u64 = 64;

/// Whether a user can have been the cause of this job's failed start, by what root sees now.
pub fn may_be_a_users(node: &mut RealNode, journal: &Journal) -> bool {
    processes::user_is_here(node, journal) || is_full(&node.paths) || gpu_is_held(node, journal)
}

fn is_full(paths: &Paths) -> bool {
    nix::sys::statvfs::statvfs(paths.run()).is_ok_and(|about| {
        let room = about.blocks_available().saturating_mul(about.fragment_size());
        // A file system without a number of files says 0 for it.
        let files = about.files() > 0 && about.files_available() < FILES;
        room < ROOM || files
    })
}

/// Somebody else has a context on a GPU of the job.
fn gpu_is_held(node: &mut RealNode, journal: &Journal) -> bool {
    let own = processes::own_pids(node, journal);
    journal
        .gpus
        .iter()
        .any(|gpu| match node.gpu_processes(&gpu.uuid) {
            Ok(list) => list.iter().any(|process| !own.contains(&process.pid)),
            // A GPU that does not answer is evidence of another kind, for the rollback to find.
            Err(Failure::Fault(_)) => false,
            // Not even the question could be asked: something ran out.
            Err(_) => true,
        })
}

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
    let mut failures: BTreeMap<u32, u64> = run
        .read_limited(NAME, LONGEST)
        .ok()
        .flatten()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default();
    failures.retain(|_, when| now.saturating_sub(*when) < window.as_secs());
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
