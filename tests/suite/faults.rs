//! The fault matrix: every fault of the control daemon, its server and NVML has its outcome, within
//! the deadline, with nothing left. Only the node's own faults drain it.

use std::time::Duration;

use nix::sys::signal::Signal;
use tests::double::frozen::Frozen;
use tests::double::node::{Description, Faults, NvmlFaults};
use tests::figures;
use tests::place::{Place, eventually, fast, kill, side_by_side};
use tests::stage::{Ran, USER, openpbs_args};

/// The configured deadline of every row, and what a busy machine may add.
const CONFIG: &str = "deadline_s = 4\n";
const LATEST: Duration = Duration::from_secs(4 + 4);
const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=4G";

/// The outcome of a start under a fault.
#[derive(Clone, Copy)]
enum Comes {
    Ready,
    Undetermined(&'static str),
    Fault(&'static str),
}

use Comes::{Fault, Ready, Undetermined};

/// The job's MPS did not start, and any user may be the cause.
const NO_START: Comes = Undetermined("MPS did not start");

struct Row {
    name: String,
    describe: Box<dyn FnOnce(&mut Description) + Send>,
    comes: Comes,
}

fn control(name: &str, comes: Comes, set: impl FnOnce(&mut Faults) + Send + 'static) -> Row {
    Row {
        name: name.to_owned(),
        describe: Box::new(|d| set(&mut d.faults)),
        comes,
    }
}

fn nvml(name: &str, comes: Comes, set: impl FnOnce(&mut NvmlFaults) + Send + 'static) -> Row {
    Row {
        name: name.to_owned(),
        describe: Box::new(|d| set(&mut d.nvml)),
        comes,
    }
}

fn openpbs(place: &Place, job: &str) -> Ran {
    place.prologue(&openpbs_args(job, USER, ACCOUNT), &[])
}

#[track_caller]
fn check(row: Row) {
    let name = row.name;
    let place = Place::new(fast(1).describe(row.describe), CONFIG);
    let ran = openpbs(&place, "50.srv");
    assert!(ran.took < LATEST, "{name}: {ran:?}");
    assert!(!ran.err.contains('\x1b'), "{name}: {ran:?}");
    let drains = place.take_drains();
    match row.comes {
        Ready => {
            assert_eq!(ran.code, Some(0), "{name}: {ran:?}");
            place.end("50.srv").within(LATEST);
        }
        Undetermined(word) => {
            assert_eq!(ran.code, Some(2), "{name}: {ran:?}");
            assert!(
                ran.err.contains(word),
                "{name}: '{word}' is missing in {ran:?}"
            );
            println!("{name}: {}", ran.err.trim_end());
            assert_eq!(ran.err.lines().count(), 1, "{name}: {ran:?}");
            assert_eq!(drains, Vec::<String>::new(), "{name}");
        }
        Fault(word) => {
            assert_eq!(ran.code, Some(2), "{name}: {ran:?}");
            assert!(
                ran.err.contains(word),
                "{name}: '{word}' is missing in {ran:?}"
            );
            assert_eq!(drains.len(), 1, "{name}: {ran:?}");
            assert!(drains[0].contains(word), "{name}: {drains:?}");
        }
    }
    place.assert_as_before(&name);
}

fn rows() -> Vec<Row> {
    let mut rows = vec![
        control("a slow start", Ready, |f| {
            f.start = "slow".into();
            f.slow_ms = 400;
        }),
        control("no socket", NO_START, |f| f.start = "never".into()),
        control("exits at once", NO_START, |f| f.start = "exits".into()),
        control("a socket that never answers", NO_START, |f| {
            f.start = "hangs".into()
        }),
        control("a slow server", Ready, |f| {
            f.server = "slow".into();
            f.slow_ms = 400;
        }),
        control("a server that is never ready", NO_START, |f| {
            f.server = "never-ready".into();
        }),
        control("a server that never becomes active", NO_START, |f| {
            f.server = "initializing".into();
        }),
        control("a server that exits", NO_START, |f| {
            f.server = "exits".into()
        }),
        // Only a client's fault causes it, and no client comes before the job. So nothing checks
        // for it; a job that wants proof has --mps-verify.
        control("a server in FAULT state", Ready, |f| {
            f.server = "fault-state".into()
        }),
        control("limits accepted and never applied", NO_START, |f| {
            f.drop_limits = true
        }),
        control("quit refused", Ready, |f| f.refuse_quit = true),
        control("quit refused and SIGTERM ignored", Ready, |f| {
            f.refuse_quit = true;
            f.ignore_sigterm = true;
            f.server_survives_sigterm = true;
        }),
        control("a server that outlives its control daemon", Ready, |f| {
            f.server_survives_control = true;
            f.server_survives_sigterm = true;
        }),
        nvml("no driver", Fault("NVML"), |f| f.init_fails = true),
        // In user space: nobody can tell whether it hangs or is starved.
        nvml("NVML hangs as it is loaded", Undetermined("NVML"), |f| {
            f.init_hangs = true
        }),
        // NVML_ERROR_MEMORY, NVML_ERROR_INSUFFICIENT_RESOURCES, NVML_ERROR_UNKNOWN.
        nvml("NVML has no memory", Undetermined("NVML"), |f| {
            f.init_answers = 20
        }),
        nvml("NVML has no resources", Undetermined("NVML"), |f| {
            f.init_answers = 23
        }),
        nvml("NVML does not know", Undetermined("NVML"), |f| {
            f.init_answers = 999
        }),
        nvml("NVML hangs later", Undetermined("NVML"), |f| {
            f.calls_hang = true
        }),
        nvml("a process that is gone is still listed", Ready, |f| {
            f.stale_pid = Some(3_999_999)
        }),
        Row {
            name: "a lost GPU".to_owned(),
            describe: Box::new(|d| d.gpu[0].fault = "lost".into()),
            comes: Fault("GPU 0"),
        },
    ];
    for command in [
        "set_default_active_thread_percentage",
        "get_default_active_thread_percentage",
        "set_default_device_pinned_mem_limit",
        "get_default_device_pinned_mem_limit",
        "start_server",
    ] {
        let name = format!("hangs on {command}");
        rows.push(control(&name, NO_START, move |f| {
            f.hang_on = vec![command.into()];
        }));
    }
    for command in [
        "get_server_status",
        "quit",
        "get_server_list",
        "get_client_list",
        "terminate_client",
    ] {
        rows.push(control(&format!("hangs on {command}"), Ready, move |f| {
            f.hang_on = vec![command.into()];
        }));
    }
    for (command, answer) in [
        ("get_default_active_thread_percentage", "100.0"),
        ("get_default_active_thread_percentage", "\u{1b}[31m25.0"),
        ("get_default_device_pinned_mem_limit", "3G"),
        (
            "get_default_device_pinned_mem_limit",
            "99999999999999999999T",
        ),
        ("start_server", "Not enough privilege"),
        ("start_server", "\u{1b}]0;x\u{7}"),
    ] {
        let name = format!("{command} is answered with {answer:?}");
        rows.push(control(&name, NO_START, move |f| {
            f.answer.insert(command.into(), answer.into());
        }));
    }
    for command in [
        "get_default_active_thread_percentage",
        "get_default_device_pinned_mem_limit",
    ] {
        let name = format!("the answer to {command} is cut");
        rows.push(control(&name, NO_START, move |f| {
            f.truncate = vec![command.into()];
        }));
    }
    rows
}

#[test]
fn every_fault_of_control_daemon_server_and_nvml_has_its_outcome() {
    let rows = rows();
    let count = rows.len() as u64;
    side_by_side(rows, 4, check);
    figures::tell("faults", count);
}

#[test]
fn a_driver_that_refuses_a_compute_mode_proves_nothing_and_one_that_ignores_it_is_seen() {
    for (name, set) in [
        ("refused", (|f| f.set_refused = true) as fn(&mut NvmlFaults)),
        ("ignored", |f| f.set_ignored = true),
    ] {
        let place = Place::new(fast(1).nvml(set), CONFIG);
        let ran = place.torque("51.srv", ACCOUNT, "0");
        ran.exits(2).complains("GPU-");
        place.assert_as_before(name);
        figures::tell("faults", 1);
    }
}

#[test]
fn nvml_that_dies_during_the_job_drains_and_the_next_look_finishes() {
    let (place, end) = without_nvml_at_the_end(|f| f.init_fails = true);
    // The scheduler did not take the drain. Until it does, this node starts no MPS job.
    let refused = openpbs(&place, "53.srv").exits(2);
    refused.complains("waits for its scheduler");
    let drains = place.take_drains();
    assert_eq!(drains.len(), 1, "{end:?}: {drains:?}");
    assert!(drains[0].contains("mpsd: job 52.srv"), "{drains:?}");
    nvml_is_back(place);
}

#[test]
fn nvml_that_is_silent_at_the_end_of_a_job_proves_nothing_unless_the_driver_holds_it() {
    // Its process sleeps in user space, so it might as well be starved.
    let (place, _) = without_nvml_at_the_end(|f| f.init_hangs = true);
    place.assert_not_drained("a silent NVML");
    nvml_is_back(place);
}

#[test]
fn nvml_without_memory_at_the_end_of_a_job_drains_nothing_and_refuses_no_start() {
    for number in [20, 23] {
        let (place, _) = without_nvml_at_the_end(move |f| f.init_answers = number);
        place.assert_not_drained("no memory");
        nvml_is_back(place);
    }
}

/// NVML has a fault at the job's end. The daemons are stopped even so.
fn without_nvml_at_the_end(set: impl Fn(&mut NvmlFaults)) -> (Place, Ran) {
    let mut place = Place::with_job(fast(1), CONFIG, "52.srv", ACCOUNT, "0");
    place.node.change(|d| set(&mut d.nvml));
    let end = place.strict_end("52.srv").exits(2);
    end.within(LATEST);
    assert!(place.pids("nvidia-cuda-mps-control").is_empty(), "{end:?}");
    (place, end)
}

fn nvml_is_back(mut place: Place) {
    place.node.change(|d| d.nvml = NvmlFaults::default());
    place.end("52.srv");
    place.assert_as_before("NVML is back");
    figures::tell("faults", 1);
}

#[test]
fn a_process_that_survives_sigkill_and_that_the_driver_does_not_hold_drains_nothing() {
    let place = Place::with_job(fast(1), CONFIG, "54.srv", ACCOUNT, "0");
    let server = place.pids("nvidia-cuda-mps-server");
    let frozen = match Frozen::new(&server) {
        Ok(frozen) => frozen,
        Err(why) => {
            return println!("not tried here, this machine has no version-1 freezer: {why}");
        }
    };
    let end = place.strict_end("54.srv").exits(2);
    let line = format!("job 54.srv: mps-server {}: state ", server[0]);
    end.within(LATEST).complains(line);
    drop(frozen);
    place.end("54.srv");
    place.assert_as_before("a survivor that ended at last");
    figures::tell("faults", 1);
}

#[test]
fn nvml_that_crashes_is_the_nodes_and_one_that_is_killed_may_be_a_users_who_used_up_the_memory() {
    for (signal, drained) in [
        (Signal::SIGSEGV, 1),
        (Signal::SIGKILL, 0),
        (Signal::SIGABRT, 0),
    ] {
        let place = Place::new(fast(1).nvml(|f| f.init_hangs = true), CONFIG);
        let mut prologue = place.start_torque("55.srv", ACCOUNT, "0");
        eventually("a worker", || place.nvml_worker().is_some());
        let worker = place.nvml_worker().expect("a worker");
        kill(worker, signal);
        if signal == Signal::SIGSEGV {
            // The standard library ignores a first SIGSEGV from outside as a stray. A real crash
            // repeats at once.
            std::thread::sleep(Duration::from_millis(100));
            kill(worker, signal);
        }
        assert_eq!(prologue.wait(), Some(2), "{signal}");
        assert_eq!(place.take_drains().len(), drained, "{signal}");
        place.assert_as_before(signal.as_str());
        figures::tell("faults", 1);
    }
}
