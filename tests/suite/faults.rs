//! The fault matrix: every fault of the control daemon, its server and NVML has its outcome, within
//! the deadline, with nothing left. Only the node's own faults drain it.

use std::time::Duration;

use nix::sys::signal::Signal;
use tests::double::frozen::Frozen;
use tests::double::node::{Description, NvmlFaults};
use tests::figures;
use tests::place::{Place, eventually, fast, kill, side_by_side};
use tests::stage::{Ran, USER};

/// The configured deadline of every row, and what a busy machine may add.
const CONFIG: &str = "deadline_s = 4\n";
const LATEST: Duration = Duration::from_secs(4 + 4);
const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=4G";

/// The outcome of a start, the fault, and what `node.toml` says of it. `ready`: the job runs and
/// ends. `undetermined`: any user may be the cause. `fault`: the node is drained. The last two are
/// told with these words, by default "MPS did not start".
const FAULTS: &str = r#"
ready         | a slow start | faults = {start = "slow", slow_ms = 400}
undetermined  | no socket | faults.start = "never"
undetermined  | exits at once | faults.start = "exits"
undetermined  | a socket that never answers | faults.start = "hangs"
ready         | a slow server | faults = {server = "slow", slow_ms = 400}
undetermined  | a server that is never ready | faults.server = "never-ready"
undetermined  | a server that never becomes active | faults.server = "initializing"
undetermined  | a server that exits | faults.server = "exits"
# Only a client's fault causes it, and no client comes before the job. So nothing checks for it; a
# job that wants proof has --mps-verify.
ready         | a server in FAULT state | faults.server = "fault-state"
undetermined  | limits accepted and never applied | faults.drop_limits = true
ready         | quit refused | faults.refuse_quit = true
ready         | quit refused, SIGTERM ignored | faults.refuse_quit = true
    faults.ignore_sigterm = true
    faults.server_survives_sigterm = true
ready         | a server that outlives its control daemon | faults.server_survives_control = true
    faults.server_survives_sigterm = true
fault: NVML   | no driver | nvml.init_fails = true
# In user space: nobody can tell whether it hangs or is starved.
undetermined: NVML | NVML hangs as it is loaded | nvml.init_hangs = true
# NVML_ERROR_MEMORY, NVML_ERROR_INSUFFICIENT_RESOURCES, NVML_ERROR_UNKNOWN.
undetermined: NVML | NVML has no memory | nvml.init_answers = 20
undetermined: NVML | NVML has no resources | nvml.init_answers = 23
undetermined: NVML | NVML does not know | nvml.init_answers = 999
undetermined: NVML | NVML hangs later | nvml.calls_hang = true
ready         | a process that is gone is still listed | nvml.stale_pid = 3999999
fault: GPU 0  | a lost GPU | gpu.fault = "lost"
undetermined  | hangs on a limit | faults.hang_on = ["set_default_active_thread_percentage"]
undetermined  | hangs on reading it | faults.hang_on = ["get_default_active_thread_percentage"]
undetermined  | hangs on a memory limit | faults.hang_on = ["set_default_device_pinned_mem_limit"]
undetermined  | hangs on reading it | faults.hang_on = ["get_default_device_pinned_mem_limit"]
undetermined  | hangs on its server's start | faults.hang_on = ["start_server"]
ready         | hangs on the server's state | faults.hang_on = ["get_server_status"]
ready         | hangs on its end | faults.hang_on = ["quit"]
ready         | hangs on its servers | faults.hang_on = ["get_server_list"]
ready         | hangs on its clients | faults.hang_on = ["get_client_list"]
ready         | hangs on a client's end | faults.hang_on = ["terminate_client"]
undetermined  | no limit | faults.answer.get_default_active_thread_percentage = "100.0"
undetermined  | an escape | faults.answer.get_default_active_thread_percentage = "\u001b[31m25.0"
undetermined  | less memory | faults.answer.get_default_device_pinned_mem_limit = "3G"
undetermined  | endless memory |
    faults.answer.get_default_device_pinned_mem_limit = "99999999999999999999T"
undetermined  | no privilege | faults.answer.start_server = "Not enough privilege"
undetermined  | a title | faults.answer.start_server = "\u001b]0;x\u0007"
undetermined  | half a limit | faults.truncate = ["get_default_active_thread_percentage"]
undetermined  | half a memory limit | faults.truncate = ["get_default_device_pinned_mem_limit"]
"#;

/// Lays the values of `change` over those of `is`. A list of tables changes its first.
fn lay_over(is: &mut toml::Value, change: toml::Value) {
    match (is, change) {
        (toml::Value::Table(is), toml::Value::Table(change)) => {
            for (key, value) in change {
                match is.get_mut(&key) {
                    Some(was) => lay_over(was, value),
                    None => drop(is.insert(key, value)),
                }
            }
        }
        (toml::Value::Array(is), change @ toml::Value::Table(_)) => lay_over(&mut is[0], change),
        (is, change) => *is = change,
    }
}

fn changed(node: &mut Description, change: &str) {
    let mut all = toml::Value::try_from(&*node).expect("a description");
    let change = toml::from_str(change).unwrap_or_else(|why| panic!("{change}: {why}"));
    lay_over(&mut all, toml::Value::Table(change));
    *node = all.try_into().expect("a description");
}

#[track_caller]
fn check(row: &str) {
    let [outcome, name, change] = row.splitn(3, '|').map(str::trim).collect::<Vec<_>>()[..] else {
        panic!("{row}")
    };
    let no_start = (outcome, "MPS did not start");
    let (outcome, word) = outcome.split_once(": ").unwrap_or(no_start);
    let node = fast(1).describe(|node| changed(node, &change.replace("; ", "\n")));
    let place = Place::new(node, CONFIG);
    let ran = place.openpbs("50.srv", USER, ACCOUNT);
    println!("{name}: {}", ran.err.trim_end());
    assert!(ran.took < LATEST, "{name}: {ran:?}");
    assert!(!ran.err.contains('\x1b'), "{name}: {ran:?}");
    let drains = place.take_drains();
    let code = if outcome == "ready" { 0 } else { 2 };
    assert_eq!(ran.code, Some(code), "{name}: {ran:?}");
    match outcome {
        "ready" => {
            place.end("50.srv").within(LATEST);
        }
        "undetermined" => {
            assert_eq!(ran.err.lines().count(), 1, "{name}: {ran:?}");
            assert_eq!(drains, Vec::<String>::new(), "{name}");
        }
        "fault" => {
            assert_eq!(drains.len(), 1, "{name}: {ran:?}");
            assert!(drains[0].contains(word), "{name}: {drains:?}");
        }
        _ => panic!("{row}"),
    }
    assert!(code == 0 || ran.err.contains(word), "{name}: {ran:?}");
    place.assert_as_before(name);
}

#[test]
fn every_fault_of_control_daemon_server_and_nvml_has_its_outcome() {
    let faults = FAULTS.replace("\n    ", "; ");
    let rows: Vec<&str> = faults.lines().filter(|line| line.contains('|')).collect();
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
    let refused = place.openpbs("53.srv", USER, ACCOUNT).exits(2);
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
