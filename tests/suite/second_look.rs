//! What hung in the driver waits for a second look. These tests say who looks if no timer does;
//! `survivors` tests the verdict.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use tests::node_bed::{NodeBed, eventually, fast};

const CONFIG: &str = "deadline_s = 6\n";
const FILES: [&str; 2] = ["run/ledger", "run/look-again"];

fn up() -> u64 {
    let text = fs::read_to_string("/proc/uptime").expect("uptime");
    let whole = text.split('.').next().expect("seconds");
    whole.parse().expect("seconds")
}

/// An epilogue noted, `age_s` ago, a process in the driver that has ended since.
fn noted(age_s: u64) -> NodeBed {
    let bed = NodeBed::new(fast(1), CONFIG);
    note(&bed, age_s);
    bed
}

fn note(bed: &NodeBed, age_s: u64) {
    let ledger = json!({"version": 1, "suspicions": [{
        "suspect": {"process": {"pid": i32::MAX, "start_time": 1}},
        "what": "mps-server 691", "since": up().saturating_sub(age_s),
        "job": "120.srv", "scheduler": "torque", "node": "gpu001", "uid": 1001, "prefix": "mpsd:", "gpus": [],
    }]});
    let files = files(bed);
    fs::write(&files[0], ledger.to_string()).expect("ledger");
    fs::write(&files[1], "").expect("mark");
}

fn files(bed: &NodeBed) -> [PathBuf; 2] {
    FILES.map(|name| bed.path(name))
}

#[test]
fn the_end_of_any_job_brings_it() {
    // On a machine that has just booted nothing is so old.
    std::thread::sleep(Duration::from_secs(62u64.saturating_sub(up())));
    let bed = noted(61);
    // The end of a job that never had MPS.
    let end = bed.torque_end("121.srv").ok();
    assert_eq!(end.err, "", "{end:?}");
    let looked = || !files(&bed).iter().any(|path| path.exists());
    eventually("the second look", looked);
    bed.assert_as_before("a second look");
    // Too early, it stays.
    note(&bed, 10);
    bed.torque_end("122.srv").ok();
    std::thread::sleep(Duration::from_millis(500));
    assert!(files(&bed).iter().all(|path| path.exists()));
}

fn check(bed: &NodeBed, words: &str) -> String {
    let conf = bed.path("slurm.conf");
    fs::write(&conf, "GresTypes=gpu\nPrologFlags=Alloc\n").expect("slurm.conf");
    let conf = conf.display().to_string();
    let ran = bed.mpsctl(&["slurm", "check", "--slurm-conf", &conf]);
    let line = ran.out.lines().find(|line| line.contains(words));
    line.unwrap_or_default().to_owned()
}

#[test]
fn the_administrator_is_told_of_it_and_what_to_do_where_nobody_looks() {
    let check = |bed: &NodeBed| check(bed, "mps-server 691");
    let early = check(&noted(20));
    assert!(early.starts_with("WARN  job 120.srv: 2"), "{early}");
    let hung = " s ago mps-server 691 hung in the driver";
    assert!(early.contains(hung), "{early}");
    let late = check(&noted(400));
    assert!(late.starts_with("FAIL  job 120.srv: 6 min ago"), "{late}");
    assert!(late.contains("run 'mpsctl reconcile' as root"), "{late}");
    assert_eq!(check(&NodeBed::new(fast(1), CONFIG)), "");
}
