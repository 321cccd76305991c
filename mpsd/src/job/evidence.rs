//! What counts against the node: the one place where a failed start, or a process that is left over, becomes a fault.

use super::journal::Journal;
use super::node::{Member, Node, Role, Sample, State};
use mpsd_core::Failure;
use mpsd_core::failure::{Evidence, Fault, Undetermined};
use std::collections::BTreeSet;
use std::time::Duration;

/// A start that failed. Starts of two users that fail within the window are evidence, where no user can have been the cause:
/// a start is brought down by a process of its user, which owns all that it consists of, by whoever holds the GPU, or by
/// whoever filled the file system of the pipe and log directories. Where root sees any of these the start does not count.
pub fn of_failed_start(
    node: &mut impl Node,
    journal: &Journal,
    user_was_here: bool,
    failure: Failure,
) -> Failure {
    let Failure::Undetermined(unknown) = failure else {
        return failure;
    };
    let a_users = user_was_here || node.user_is_here(journal) || node.is_full() || gpu_is_held(node, journal);
    if a_users || !node.note_failed_start(journal.uid) {
        return unknown.into();
    }
    // First: a scheduler cuts the reason of a drain.
    let what = "starts of several users failed";
    let why = format!("{}: {}", unknown.what, unknown.why);
    Fault::new(Evidence::RepeatedStarts, what, why).into()
}

/// Somebody else has a context on a GPU of the job.
fn gpu_is_held(node: &mut impl Node, journal: &Journal) -> bool {
    let own: BTreeSet<i32> = node
        .members(journal)
        .iter()
        .filter(|member| member.role != Role::Other)
        .map(|member| member.process.pid)
        .collect();
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

/// What a user keeps the process from ending with.
fn held_by_user(sample: &Sample) -> Option<&'static str> {
    match sample.state {
        State::Stopped => Some("a tracer holds it"),
        _ => sample.stacks.as_deref().and_then(held_as_stacks_say),
    }
}

/// What `member` is that survived SIGKILL for `time`: a fault, unless a user holds it.
pub fn of_survivor(member: &Member, sample: Option<&Sample>, time: Duration) -> Failure {
    let what = format!("{} {}", member.role, member.process.pid);
    let why = format!("state {} after {} s", member.state, time.as_secs());
    match sample.and_then(held_by_user) {
        Some(how) => Undetermined::new(what, format!("{why}: {how}")).into(),
        None => Fault::new(Evidence::Survivor, what, why).into(),
    }
}

/// What the frames wait for that a user can withhold: an answer of FUSE's (which is waited for without regard to signals;
/// Linux, `fs/fuse/dev.c`, `request_wait_answer`), a lock of a directory whose holder waits so, a request of io_uring's to
/// such a file. A frame of the driver's is stronger: then the GPU is what keeps the process.
fn held_as_stacks_say(stacks: &str) -> Option<&'static str> {
    const FILE_SYSTEM: &str = "it waits for a file system that a user's process serves (FUSE)";
    const LOCK: &str = "it waits for a lock or a request that a user's file system can withhold";
    if stacks.contains("[nvidia") {
        return None;
    }
    let frames = || stacks.lines().filter_map(|line| line.split_whitespace().nth(1));
    let any = |starts: &[&str]| frames().any(|frame| starts.iter().any(|start| frame.starts_with(start)));
    if any(&["fuse_", "request_wait_answer+"]) {
        return Some(FILE_SYSTEM);
    }
    any(&[
        "rwsem_down_",
        "down_read",
        "down_write",
        "__mutex_lock",
        "mutex_lock",
        "io_uring_",
        "io_wq_",
    ])
    .then_some(LOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_user_can_withhold_is_told_from_the_driver_and_from_all_else() {
        let fuse = "[<0>] request_wait_answer+0x11e/0x220\n[<0>] fuse_simple_request+0x18f/0x2f0\n";
        assert!(held_as_stacks_say(fuse).is_some_and(|how| how.contains("FUSE")));
        let lock = "[<0>] rwsem_down_write_slowpath+0x2a/0x5f0\n[<0>] down_write+0x5b/0x70\n[<0>] path_openat+0x1/0x2\n";
        assert!(held_as_stacks_say(lock).is_some_and(|how| how.contains("lock")));
        let ring = "[<0>] io_uring_cancel_generic+0x1/0x2\n[<0>] do_exit+0x1/0x2\n";
        assert!(held_as_stacks_say(ring).is_some());
        for other in [
            "",
            "[<0>] __refrigerator+0x3c/0x120\n[<0>] get_signal+0x8f4/0x920\n",
            "[<0>] nv_fuse_x+0x1/0x2 [nvidia]\n",
            "[<0>] down_write+0x5b/0x70\n[<0>] rm_ioctl+0x1/0x2 [nvidia]\n",
            "[<0>] down_read+0x5b/0x70\n[<0>] uvm_ioctl+0x1/0x2 [nvidia_uvm]\n[<0>] fuse_x+0x1/0x2\n",
        ] {
            assert_eq!(held_as_stacks_say(other), None, "{other}");
        }
    }
}
