//! The fault matrix: every fault of the control daemon, its server and NVML has its outcome, within
//! the deadline, with nothing left. Only the node's own faults drain it.

use std::time::Duration;

use nix::sys::signal::Signal;
use tests::double::mig;
use tests::double::node::{Description, NvmlFaults};
use tests::figures;
use tests::node_bed::{NodeBed, fast, kill, side_by_side};
use tests::run::{USER, openpbs_args};

/// The configured deadline of every row, and what a busy machine may add.
const CONFIG: &str = "deadline_s = 4\n";
const LATEST: Duration = Duration::from_secs(4 + 4);
const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=4G";

/// The outcome of a start, the fault, and what `node.toml` says of it. `ready`: the job runs and
/// ends. `undetermined`: any user may be the cause. `fault`: the node is drained. The last two are
/// told with these words, by default "MPS did not start". After `end` the fault is there at the
/// job's end alone.
const FAULTS: &str = r#"
ready         | a slow start | faults = {start = "slow", slow_ms = 400}
undetermined  | no socket | faults.start = "never"
undetermined  | exits at once | faults.start = "exits"
undetermined: the control daemon or its server hangs | no answers | faults.start = "hangs"
ready         | a slow server | faults = {server = "slow", slow_ms = 400}
undetermined  | a server that is never ready | faults.server = "never-ready"
undetermined  | a server that never becomes active | faults.server = "initializing"
undetermined  | a server that exits | faults.server = "exits"
# Only a client's fault causes it, and no client comes before the job. So nothing checks for it; a
# job that wants proof runs mps-probe.
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
undetermined: GPU- | the driver refuses a compute mode | nvml.set_refused = true
undetermined: GPU- | the driver ignores a compute mode | nvml.set_ignored = true
end fault: mpsd: job 50.srv: | NVML dies | nvml.init_fails = true
# Its process sleeps in user space, so it might as well be starved.
end undetermined: NVML | NVML is silent | nvml.init_hangs = true
end undetermined: NVML | NVML has no memory | nvml.init_answers = 20
end undetermined: NVML | NVML has no resources | nvml.init_answers = 23
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
    let (outcome, word) = match outcome.split_once(": ") {
        None => (outcome, "MPS did not start"),
        Some(both) => both,
    };
    let change = change.replace("; ", "\n");
    if let Some(outcome) = outcome.strip_prefix("end ") {
        return check_end(outcome, word, name, &change);
    }
    let node = fast(1).describe(|node| changed(node, &change));
    let bed = NodeBed::new(node, CONFIG);
    // Only a job that is proved to be alone has the mode of its GPU changed.
    let ran = match change.starts_with("nvml.set_") {
        true => bed.torque("50.srv", ACCOUNT, "0"),
        false => bed.openpbs("50.srv", USER, ACCOUNT),
    };
    println!("{name}: {}", ran.err.trim_end());
    assert!(ran.took < LATEST, "{name}: {ran:?}");
    assert!(!ran.err.contains('\x1b'), "{name}: {ran:?}");
    if outcome == "ready" {
        ran.ok();
        bed.end("50.srv").within(LATEST);
    } else {
        assert_eq!(outcome == "fault", is_drained(&bed, word), "{name}");
        ran.clone().exits(2).complains(word);
        // A fault has a second line: no scheduler takes the drain.
        let lines = if outcome == "fault" { 2 } else { 1 };
        assert_eq!(ran.err.lines().count(), lines, "{ran:?}");
    }
    bed.assert_as_before(name);
}

fn check_end(outcome: &str, word: &str, name: &str, change: &str) {
    let mut bed = NodeBed::with_job(fast(1), CONFIG, "50.srv", ACCOUNT, "0");
    bed.node.change(|node| changed(node, change));
    let end = bed.strict_end("50.srv").exits(2);
    end.within(LATEST);
    // The daemons are stopped even so.
    assert!(bed.pids("nvidia-cuda-mps-control").is_empty(), "{end:?}");
    if outcome == "fault" {
        // The scheduler did not take the drain. Until it does, this node starts no MPS job.
        let refused = bed.torque("53.srv", ACCOUNT, "0").exits(2);
        refused.complains("waits for its scheduler");
    }
    assert_eq!(outcome == "fault", is_drained(&bed, word), "{name}");
    bed.node.change(|node| node.nvml = NvmlFaults::default());
    bed.end("50.srv");
    bed.assert_as_before(name);
}

/// Whether the node is drained, with this word of the reason.
fn is_drained(bed: &NodeBed, word: &str) -> bool {
    let drains = bed.take_drains();
    let are_right = drains.iter().all(|drain| drain.contains(word));
    assert!(are_right && drains.len() <= 1, "{drains:?}");
    !drains.is_empty()
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
fn nvml_that_crashes_is_the_nodes_and_one_that_is_killed_may_be_a_users_who_used_up_the_memory() {
    let signals = [
        (Signal::SIGSEGV, 1),
        (Signal::SIGKILL, 0),
        (Signal::SIGABRT, 0),
    ];
    for (signal, drained) in signals {
        let bed = NodeBed::new(fast(1).nvml(|f| f.init_hangs = true), CONFIG);
        let mut prologue = bed.start_torque("55.srv", ACCOUNT, "0");
        let worker = bed.nvml_worker_comes();
        kill(worker, signal);
        if signal == Signal::SIGSEGV {
            // The standard library ignores a first SIGSEGV from outside as a stray. A real crash
            // repeats at once.
            std::thread::sleep(Duration::from_millis(100));
            kill(worker, signal);
        }
        assert_eq!(prologue.wait(), Some(2), "{signal}");
        assert_eq!(bed.take_drains().len(), drained, "{signal}");
        bed.assert_as_before(signal.as_str());
        figures::tell("faults", 1);
    }
}

/// A user whom the site lets divide GPUs can remove a MIG device at any time.
#[test]
fn a_mig_device_that_is_taken_away_is_no_evidence_and_keeps_no_job() {
    let mut bed = NodeBed::new(fast(1).divided(0, 3), CONFIG);
    let device = mig(0, 0).uuid;
    let begin = |bed: &NodeBed, job: &str| {
        let mut args = openpbs_args(job, USER, ACCOUNT);
        let gpus = args.iter().position(|word| *word == "--gpus").unwrap();
        args[gpus + 1] = &device;
        bed.prologue(&args, &[])
    };
    begin(&bed, "56.srv").ok();
    bed.node.change(|node| drop(node.gpu[0].mig.remove(0)));
    bed.end("56.srv");
    begin(&bed, "57.srv").exits(2).complains("divided again");
    bed.assert_as_before("a MIG device that went away");
    figures::tell("faults", 1);
}
