//! Several jobs, several epilogues, an administrator's changes: the accounts of the GPUs, and what
//! an epilogue may rely on.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::Signal;
use tests::double::node::Node;
use tests::node_bed::{NodeBed, Running, eventually, fast, kill};
use tests::run::{OTHER_USER, as_user};

const CONFIG: &str = "deadline_s = 6\n";
const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=4G";
/// How often a test tries what only a race can show.
const ROUNDS: u64 = 4;

#[track_caller]
fn assert_served(bed: &NodeBed, job: &str) {
    assert_eq!(bed.served(job, &[]).json()["sms"], 32);
}

/// Root's is named (`doctor::a_daemon_of_roots`).
#[test]
fn another_user_who_holds_an_exclusive_gpu_is_told_by_the_process_alone() {
    let bed = NodeBed::new(fast(1), CONFIG);
    let gpu = bed.node.uuids()[0].clone();
    bed.node.set_mode(&gpu, "exclusive_process");
    let holder = holder(&bed, OTHER_USER);
    let failed = bed.torque("62.srv", ACCOUNT, "0").exits(2);
    failed.complains(&gpu).complains("set the mode to DEFAULT");
    failed
        .complains(format!(", and process {}", holder.pid()))
        .lacks("sleep");
    bed.torque_end("62.srv").ok();
    bed.assert_not_drained("another user's program");
    drop(holder);
    bed.begin("63.srv", ACCOUNT, "0");
    bed.end("63.srv");
    assert_eq!(bed.node.modes(), ["exclusive_process"], "the site's mode");
}

fn holder(bed: &NodeBed, user: &str) -> Running {
    let mut command = as_user(user, "/bin/sleep");
    let running = Running::start(command.arg("60").stdin(Stdio::null()));
    let node = Node::open(bed.node.dir()).expect("the node");
    let made = node.register(&bed.node.uuids()[0], running.pid(), 9 << 20, "bare");
    made.expect("a context");
    running
}

/// A restarted mom, a requeued job and the timer act on one job, all at once.
#[test]
fn beginnings_and_ends_of_one_job_all_at_once_are_no_evidence_and_leave_nothing() {
    let bed = NodeBed::new(fast(1), CONFIG);
    for round in 0..ROUNDS {
        let mut all = Vec::new();
        for other in 0..6 {
            all.push(match (round + other) % 3 {
                0 => bed.start_torque("72.srv", ACCOUNT, "0"),
                _ => bed.start_end("72.srv"),
            });
            std::thread::sleep(Duration::from_millis((7 * round + 13 * other) % 29));
        }
        for program in &mut all {
            assert!(program.wait().is_some(), "no signal");
        }
        bed.assert_ends_clean("72.srv", &format!("six at once, round {round}"));
    }
}

#[test]
fn an_epilogue_needs_nothing_but_the_directories_of_the_configuration() {
    let bed = NodeBed::with_job(fast(1), CONFIG, "66.srv", ACCOUNT, "0");
    // The site's new file has other paths for both vendor files. Each key may appear only once.
    let old = fs::read_to_string(bed.config()).expect("configuration");
    let is_kept = |line: &&str| !line.starts_with("control") && !line.starts_with("nvml");
    let mut lines: Vec<&str> = old.lines().filter(is_kept).collect();
    lines.extend(["control = \"/nowhere/control\"", "nvml = \"/nowhere/nvml\""]);
    lines.push("compute_mode = \"keep\"");
    fs::write(bed.config(), lines.join("\n")).expect("configuration");
    bed.assert_ends_clean("66.srv", "a changed configuration");
}

#[test]
fn an_epilogue_without_a_configuration_says_so_and_looks_in_the_usual_place() {
    let bed = NodeBed::new(fast(1), CONFIG);
    fs::remove_file(bed.config()).expect("remove");
    bed.end("67.srv").complains("usual directories");
}

#[test]
fn a_killed_mpsd_goes_on_serving_and_is_cleaned_up_behind() {
    for made in [NodeBed::new, NodeBed::without_cgroup] {
        let bed = made(fast(1), CONFIG);
        bed.begin("68.srv", ACCOUNT, "0");
        assert_served(&bed, "68.srv");
        let mpsd = bed.pids("mpsd");
        assert_eq!(mpsd.len(), 1);
        kill(mpsd[0], Signal::SIGKILL);
        eventually("mpsd ends", || bed.pids("mpsd").is_empty());
        assert_served(&bed, "68.srv");
        bed.assert_ends_clean("68.srv", "a killed mpsd");
    }
}
