//! The fault matrix: every fault of the control daemon, its server and NVML has its outcome, within
//! the deadline, with nothing left. Only the node's own faults drain it.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;
use tests::double::frozen::Frozen;
use tests::double::mig;
use tests::double::node::{Description, NvmlFaults};
use tests::figures;
use tests::place::{Place, eventually, fast, kill, side_by_side};
use tests::stage::{THREE, USER, slurm_env, uid_of};

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
undetermined: the control daemon or its server hangs | a socket that never answers | faults.start = "hangs"
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
    for set in [(|f| f.set_refused = true) as fn(&mut NvmlFaults), |f| {
        f.set_ignored = true;
    }] {
        let place = Place::new(fast(1).nvml(set), CONFIG);
        let ran = place.torque("51.srv", ACCOUNT, "0");
        ran.exits(2).complains("GPU-");
        place.assert_as_before("a compute mode that cannot be set");
        figures::tell("faults", 1);
    }
}

/// The daemons are stopped even so, and the next end finishes.
#[test]
fn nvml_that_fails_at_the_end_of_a_job_drains_only_if_the_driver_is_gone() {
    for (name, set, drained) in [
        (
            "gone",
            (|f| f.init_fails = true) as fn(&mut NvmlFaults),
            true,
        ),
        // Its process sleeps in user space, so it might as well be starved.
        ("silent", |f| f.init_hangs = true, false),
        ("without memory", |f| f.init_answers = 20, false),
        ("without resources", |f| f.init_answers = 23, false),
    ] {
        let mut place = Place::with_job(fast(1), CONFIG, "52.srv", ACCOUNT, "0");
        place.node.change(|d| set(&mut d.nvml));
        let end = place.strict_end("52.srv").exits(2);
        end.within(LATEST);
        assert!(place.pids(THREE[1]).is_empty(), "{name}: {end:?}");
        if drained {
            // The scheduler did not take the drain. Until it does, this node starts no MPS job.
            let refused = place.openpbs("53.srv", USER, ACCOUNT).exits(2);
            refused.complains("waits for its scheduler");
            let drains = place.take_drains();
            assert_eq!(drains.len(), 1, "{end:?}: {drains:?}");
            assert!(drains[0].contains("mpsd: job 52.srv"), "{drains:?}");
        }
        place.assert_not_drained(name);
        place.node.change(|d| d.nvml = NvmlFaults::default());
        place.end("52.srv");
        place.assert_as_before(name);
        figures::tell("faults", 1);
    }
}

/// A user whom the site lets divide GPUs can remove a MIG device at any time.
#[test]
fn a_mig_device_that_is_taken_away_is_no_evidence_and_keeps_no_job() {
    let mut place = Place::new(fast(1).divided(0, 3), CONFIG);
    let own = mig(0, 0).uuid;
    let uid = uid_of(USER).to_string();
    let prolog = |place: &Place, job: &str| {
        let gpus = [("SLURM_JOB_GPUS", "4"), ("CUDA_VISIBLE_DEVICES", &*own)];
        let env = [&slurm_env(job, &uid, "prolog_slurmd")[..], &gpus].concat();
        place.prologue(&["--request", ACCOUNT], &env)
    };
    prolog(&place, "4711").ok();
    place.node.change(|node| drop(node.gpu[0].mig.remove(0)));
    let env = slurm_env("4711", &uid, "epilog_slurmd");
    place.epilogue(&["--strict"], &env).ok();
    place.assert_as_before("a MIG device that went away");
    let ran = prolog(&place, "4712").exits(2);
    ran.complains("divided again");
    place.assert_not_drained("a MIG device that is not there");
}

/// Notes in the ledger and asks for a second look, as an epilogue does.
fn note(place: &Place, key: &str, noted: serde_json::Value) -> [PathBuf; 2] {
    let ledger = serde_json::json!({"version": 1, (key): noted});
    let files = ["run/ledger", "run/look-again"].map(|name| place.path(name));
    fs::write(&files[0], ledger.to_string()).expect("ledger");
    fs::write(&files[1], "").expect("mark");
    files
}

/// A process that was in the driver for so long, and has ended since.
fn hung(age_s: u64) -> serde_json::Value {
    let text = fs::read_to_string("/proc/uptime").expect("uptime");
    let up: u64 = text
        .split('.')
        .next()
        .and_then(|up| up.parse().ok())
        .expect("seconds");
    serde_json::json!([{
        "suspect": {"process": {"pid": i32::MAX, "start_time": 1}},
        "what": "mps-server 691", "since": up.saturating_sub(age_s),
        "job": "120.srv", "scheduler": "torque", "node": "gpu001", "uid": 1001, "prefix": "mpsd:", "gpus": [],
    }])
}

/// The job never had MPS. `survivors` tests the verdict.
#[test]
fn the_end_of_any_job_brings_a_second_look() {
    let place = Place::new(fast(1), CONFIG);
    let files = note(&place, "suspicions", hung(61));
    let end = place.torque_end("121.srv").ok();
    assert_eq!(end.err, "", "{end:?}");
    eventually("the second look", || {
        !files.iter().any(|path| path.exists())
    });
    place.assert_as_before("a second look");
}

#[test]
fn the_administrator_is_told_of_what_the_ledger_notes_and_what_to_do() {
    let place = Place::new(fast(1), CONFIG);
    let conf = place.path("slurm.conf");
    fs::write(&conf, "GresTypes=gpu\nPrologFlags=Alloc\n").expect("slurm.conf");
    let conf = conf.display().to_string();
    let check = || place.mpsctl(&["slurm", "check", "--slurm-conf", &conf]).out;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a time");
    let failed = |job: &str, ago| serde_json::json!({"when": now.as_secs() - ago, "job": job});
    let both = serde_json::json!({"5": failed("110.srv", 9), "6": failed("111.srv", 1)});
    let users = "starts of 2 users failed on this node";
    let last = "the last one of job 111.srv";
    for (key, noted, words) in [
        (
            "suspicions",
            hung(400),
            [
                "FAIL  job 120.srv: 6 min ago",
                "run 'mpsctl reconcile' as root",
            ],
        ),
        ("failed_starts", both, ["WARN  ", users]),
    ] {
        assert!(!check().contains(words[1]), "{}", check());
        note(&place, key, noted);
        let out = check();
        let told = |line: &str| words.iter().all(|word| line.contains(word));
        assert!(out.lines().any(told), "{words:?}: {out}");
    }
    assert!(check().contains(last), "{}", check());
    let told = place.mpsctl(&["reconcile"]).exits(2);
    told.prints(users).prints(last);
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
