//! What counts against the node: whether a hang is evidence, and the drain. Other evidence is made
//! where it is found ([`Evidence`]).
//!
//! A hang is evidence only of what root itself started or proved: the driver holds the process in
//! each of several samples, and again a minute later ([`super::ledger::Suspicion`]). What is merely
//! left over, slow, starved, stopped or held by something else proves nothing: its user can be the
//! cause.

use super::drain_target::DrainTarget;
use super::journal::{Journal, ProcessRef};
use super::ledger::{self, Ledger, PAUSE_S, Suspect, Suspicion};
use super::node::{Member, Node, Severity, Thread, Waiting};
use super::report::JobOutcome;
use batch::Location;
use batch::drain::Place;
use mpsd_core::Failure;
use mpsd_core::config::Settings;
use mpsd_core::failure::{Evidence, Fault, Undetermined};
use mpsd_sys::deadline::Deadline;
use std::time::Duration;

const SAMPLES: u32 = 5;
const BETWEEN: Duration = Duration::from_millis(200);
const ROOT: u32 = 0;

/// The failure of a start, with whether the job's user may be its cause: by another process here,
/// or by stopping the job's MPS.
pub(super) fn of_failed_start(
    node: &mut impl Node,
    journal: &Journal,
    user_was_here: bool,
    failure: Failure,
) -> Failure {
    let Failure::Undetermined(mut unknown) = failure else {
        return failure;
    };
    if let Some(lacking) = node.lacking(node.settings().paths.run()) {
        unknown.why += &format!("; {lacking}");
    }
    // The process that stopped it may have ended.
    let members = node.known_members(journal);
    let is_stopped = members.iter().any(|member| member.state == 'T');
    unknown.by_user = user_was_here || is_stopped || node.user_is_here(journal);
    unknown.into()
}

/// One thread waits uninterruptibly in the driver, and none for anything else.
fn is_in_driver(threads: &[Thread]) -> bool {
    let waiting = threads.iter().filter(|thread| thread.state == 'D');
    let mut waiting = waiting.peekable();
    waiting.peek().is_some() && waiting.all(|thread| waits_in_driver(&thread.stack))
}

/// Whether a thread waits, inside a call of the driver, for something that a user can withhold:
/// memory behind a FUSE file system, or a lock of the driver. Until a signal such a wait is in S.
fn withholds(threads: &[Thread]) -> bool {
    let below = |thread: &Thread| thread.stack.contains(DRIVER) && !waits_in_driver(&thread.stack);
    let mut threads = threads.iter();
    threads.any(|thread| thread.state != 'R' && below(thread))
}

/// A frame of one of NVIDIA's modules ends in `[nvidia]`, `[nvidia_uvm]` and the like.
pub const DRIVER: &str = "[nvidia";

/// The frames of a wait. The kernel leaves most of them out of a stack (Linux,
/// `kernel/stacktrace.c`, `stack_trace_consume_entry_nosched`).
const WAITS: [&str; 14] = [
    "__schedule",
    "schedule",
    "__down",
    "down",
    "rwsem_down_",
    "__mutex_lock",
    "mutex_lock",
    "wait_for_completion",
    "__wait_for_common",
    "do_wait_for_common",
    "msleep",
    "usleep_range",
    "__rwsem_",
    "rt_mutex_",
];

/// Whether only a wait stands between the scheduler and the driver's own frame. With memory behind
/// a FUSE file system a user can withhold a page from a call of the driver.
fn waits_in_driver(stack: &str) -> bool {
    for frame in stack.lines() {
        let name = frame.split_whitespace().nth(1).unwrap_or("");
        if frame.contains(DRIVER) {
            return true;
        }
        if !WAITS.iter().any(|wait| name.starts_with(wait)) {
            return false;
        }
    }
    false
}

fn is_held_by_driver(node: &mut impl Node, process: ProcessRef, uid: u32) -> bool {
    for number in 0..SAMPLES {
        if number > 0 {
            node.wait_until(Deadline::after(BETWEEN));
        }
        let threads = node.threads(process);
        if !threads.is_some_and(|threads| is_in_driver(&threads)) {
            return false;
        }
    }
    // The user's other processes may share its memory; any process may hold a lock of the driver's.
    let waits = |threads: &[Thread]| threads.iter().any(|thread| thread.state == 'D');
    let may_withhold = |other: &Waiting| {
        withholds(&other.threads)
            || other.uid == uid && waits(&other.threads) && !is_in_driver(&other.threads)
    };
    node.waiting()
        .is_some_and(|all| !all.iter().any(may_withhold))
}

pub(super) fn of_survivor(
    node: &mut impl Node,
    journal: &Journal,
    member: &Member,
    waited: Duration,
) -> Undetermined {
    let target = journal.drain_target();
    let of_mps = match journal.job().is_shared() {
        true => format!(" of shared MPS {}", journal.job()),
        false => String::new(),
    };
    let what = format!("{} {}{of_mps}", member.role, member.process.pid);
    let why = format!("state {} after {:.1} s", member.state, waited.as_secs_f32());
    if !hangs(node, journal, member.process) {
        return Undetermined::new(what, why);
    }
    let process = Suspect::Process(member.process);
    suspect(node, process, &what, target);
    let why = format!("{why}, in the driver: looked at again in {PAUSE_S} s");
    Undetermined::new(what, why)
}

/// Whether the driver holds it, and root started or proved it.
fn hangs(node: &mut impl Node, journal: &Journal, process: ProcessRef) -> bool {
    let is_proved = journal.supervisor == Some(process) || journal.proved.contains(&process);
    is_proved && is_held_by_driver(node, process, journal.uid())
}

pub(super) fn is_hung(node: &mut impl Node, journal: &Journal) -> bool {
    let mut own = node.known_members(journal).into_iter();
    own.any(|member| hangs(node, journal, member.process))
}

pub(super) fn of_silent_nvml(node: &mut impl Node, target: DrainTarget) {
    if silent_nvml_is_held(node) {
        suspect(node, Suspect::Nvml, "NVML", target);
    }
}

fn silent_nvml_is_held(node: &mut impl Node) -> bool {
    let silent = node.silent_nvml();
    silent.is_some_and(|process| is_held_by_driver(node, process, ROOT))
}

fn suspect(node: &mut impl Node, suspect: Suspect, what: &str, target: DrainTarget) {
    let (since, what) = (node.since_boot(), what.to_owned());
    let suspicion = Suspicion {
        suspect,
        what,
        since,
        target,
    };
    ledger::suspect(node, &suspicion);
}

/// Drains for what was suspected [`PAUSE_S`] ago and the driver still holds, with a line each.
pub fn look_again(node: &mut impl Node, settings: &Settings) -> Vec<String> {
    let now = node.since_boot();
    let (mut lines, mut is_drained) = (Vec::new(), false);
    for suspicion in Ledger::read(node).suspicions {
        let age = now.saturating_sub(suspicion.since);
        if age < PAUSE_S {
            ledger::suspect(node, &suspicion);
            continue;
        }
        match still_held(node, &suspicion, age) {
            Some(fault) => {
                let drained = drain(node, &suspicion.target, Location::of(settings), [&fault]);
                is_drained |= drained.as_ref().is_some_and(|(_, delivered)| *delivered);
                lines.extend(drained.map(|(line, _)| line));
            }
            None => {
                let (jobs, what) = (suspicion.target.jobs(), &suspicion.what);
                let line = format!("{jobs}: {what}: the driver has let go of it");
                node.log(Severity::Info, &line);
            }
        }
        ledger::acquit(node, Some(&suspicion));
    }
    if is_drained {
        node.keep(JobOutcome::Drained);
    }
    // An unreadable ledger leaves the mark.
    if node.is_there(&node.settings().paths.look_again()) {
        ledger::acquit(node, None);
    }
    lines
}

fn still_held(node: &mut impl Node, suspicion: &Suspicion, age: u64) -> Option<Fault> {
    let (evidence, held, why) = match suspicion.suspect {
        Suspect::Process(process) => {
            let held = is_held_by_driver(node, process, suspicion.target.uid);
            (Evidence::Survivor, held, format!("state D after {age} s"))
        }
        Suspect::Nvml => {
            let held = node.inventory(None).is_err() && silent_nvml_is_held(node);
            let why = format!("no answer for {age} s, in the driver (state D)");
            (Evidence::Nvml, held, why)
        }
    };
    held.then(|| Fault::new(evidence, &suspicion.what, why))
}

/// Returns a line for the caller, and whether the scheduler has the drain.
pub(super) fn drain<'a>(
    node: &mut impl Node,
    target: &DrainTarget,
    location: Location,
    faults: impl IntoIterator<Item = &'a Fault>,
) -> Option<(String, bool)> {
    let fault = faults.into_iter().find(|fault| fault.drains())?;
    let place = Place {
        scheduler: target.scheduler,
        location: Location {
            slurm_conf: target.slurm_conf.clone().or(location.slurm_conf),
            ..location
        },
        node: &target.node,
    };
    let (line, delivered) = node.drain(&place, target, fault)?;
    node.log(Severity::Error, &line);
    Some((line, delivered))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(threads: &[(char, &str)]) -> Vec<Thread> {
        let thread = |(state, stack): &(char, &str)| Thread {
            state: *state,
            stack: (*stack).to_owned(),
        };
        threads.iter().map(thread).collect()
    }

    const DRIVER_LOCK: &str = "[<0>] down+0x3b/0x60\n[<0>] os_acquire_semaphore+0x1/0x2 [nvidia]\n[<0>] do_syscall_64+0x5c/0x90\n";
    const IOCTL: &str = "[<0>] nvidia_ioctl+0x1/0x2 [nvidia]\n[<0>] __x64_sys_ioctl+0x1/0x2\n";
    const FUSE: &str =
        "[<0>] request_wait_answer+0x11e/0x220\n[<0>] fuse_simple_request+0x18f/0x2f0\n";
    const LOOKUP: &str = "[<0>] d_alloc_parallel+0x3c/0x120\n[<0>] path_openat+0x8f4/0x920\n";
    const FAULT_BELOW: &str = "[<0>] request_wait_answer+0x11e/0x220\n[<0>] filemap_fault+0x1/0x2\n[<0>] nvidia_ioctl+0x1/0x2 [nvidia]\n";
    const MAP_LOCK: &str =
        "[<0>] rwsem_down_read_slowpath+0x1/0x2\n[<0>] uvm_ioctl+0x1/0x2 [nvidia_uvm]\n";

    #[test]
    fn only_a_wait_in_the_driver_alone_is_evidence() {
        for stack in [IOCTL, DRIVER_LOCK, MAP_LOCK] {
            assert!(is_in_driver(&sample(&[('D', stack)])), "{stack}");
            assert!(is_in_driver(&sample(&[('S', ""), ('D', stack)])), "{stack}");
        }
        let refrigerator = "[<0>] __refrigerator+0x3c/0x120\n";
        for stack in ["", FUSE, LOOKUP, FAULT_BELOW, refrigerator] {
            assert!(!is_in_driver(&sample(&[('D', stack)])), "{stack}");
        }
    }

    #[test]
    fn a_thread_that_waits_for_something_else_may_hold_what_the_driver_waits_for() {
        assert!(!is_in_driver(&sample(&[('D', MAP_LOCK), ('D', FUSE)])));
        assert!(withholds(&sample(&[('D', FAULT_BELOW)])));
        assert!(!withholds(&sample(&[('D', IOCTL), ('S', "")])));
    }
}
