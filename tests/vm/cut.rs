//! A node that loses its power while a job runs. `cargo xtask machine --power-cuts` runs these, one
//! after the other in a machine that keeps its disk.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tests::child::Running;

use super::{CLIENT, PACKAGES, Site, said, shell, until, user};

/// Has the milliseconds between srun and the cut, and `drains` for a job that drains the node.
const CUT: &str = "/disk/cut";

/// Of a drain that slurmctld has taken, its own disk decides: it may have lost its power, too.
fn is_to_deliver() -> bool {
    let marker = fs::read_to_string("/var/lib/mpsd/drains/slurm-gpu001").unwrap_or_default();
    let marker = serde_json::from_str::<serde_json::Value>(&marker).unwrap_or_default();
    marker["delivered"] == false
}

fn is_wanted(test: &str) -> bool {
    let wanted = std::env::args().any(|word| word == format!("cut::{test}"));
    if !wanted {
        println!("not tried here: 'cargo xtask machine --power-cuts' does");
    }
    wanted
}

#[test]
fn a_node_is_installed() {
    if is_wanted("a_node_is_installed") && Path::new(PACKAGES).is_dir() {
        let site = Site::install();
        assert!(site.client("--gres=gpu:1 --mps").under_mps);
        site.nothing_is_left();
        said("systemctl stop slurmd slurmctld");
    }
}

#[test]
fn a_node_loses_its_power() {
    if !is_wanted("a_node_loses_its_power") {
        return;
    }
    let site = Site::boot().start();
    let when = fs::read_to_string(CUT).expect("when it is cut");
    let (after_ms, then) = when.split_once(' ').expect("two words");
    let after = Duration::from_millis(after_ms.parse().expect("milliseconds"));
    if then == "drains" {
        fs::remove_file(site.vendor.control()).expect("the control daemon");
    }
    let client = format!("exec {CLIENT} --hold 0.5");
    said("sync");
    let mut command = user("srun --gres=gpu:1 --mps", &client);
    let mut srun = Running::start(&mut command, "").expect("srun");
    std::thread::sleep(after);
    let has_ended = srun.ended_within(Duration::ZERO).is_some();
    let has_begun = fs::read_dir("/run/mpsd/jobs").is_ok_and(|jobs| jobs.flatten().count() > 0);
    let has_client = srun.stdout_so_far().contains('\n');
    let doing = match (has_begun, has_client, has_ended) {
        _ if is_to_deliver() => "with a drain to deliver",
        (false, false, false) => "before its start",
        (true, false, false) => "during its start",
        (true, true, false) => "while it runs",
        (true, _, true) => "during its end",
        (false, ..) => "after the job",
    };
    println!("the power is cut: {doing}");
    // Nothing is written to a disk any more (sysrq of the kernel's documentation).
    fs::write("/proc/sysrq-trigger", "b").expect("the power");
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_node_that_lost_its_power_boots_without_a_trace_of_the_job() {
    if !is_wanted("a_node_that_lost_its_power_boots_without_a_trace_of_the_job") {
        return;
    }
    until("our units", || {
        let state = shell("systemctl is-active mpsd.service mpsd-reconcile.timer").stdout;
        state == "active\nactive\n"
    });
    let is_to_deliver = is_to_deliver();
    let site = Site::boot();
    said("systemctl start munge slurmctld slurmd");
    // Slurm ends or requeues what the node lost.
    said("scancel --user=games");
    let drained = || {
        let node = shell("scontrol -o show node gpu001").stdout;
        node.contains("Reason=mpsd: job ")
    };
    if is_to_deliver {
        until("the drain", drained);
    }
    if drained() {
        said("mpsctl undrain");
    }
    site.idle();
    site.nothing_is_left();
    said("mpsctl doctor && mpsctl reconcile && mpsctl slurm check");
    assert!(site.client("--gres=gpu:1 --mps").under_mps);
    site.nothing_is_left();
    let drains = fs::read_dir("/var/lib/mpsd/drains").map_or(0, Iterator::count);
    assert_eq!(drains, 0);
}
