//! What a hostile user may try with an MPS that several of the user's jobs share.

use super::*;
use tests::run::{openpbs_args, uid_of};

const JOBS: [&str; 2] = ["851.srv", "852.srv"];
const SITE: &str = "deadline_s = 20\nshared_gpus = true\n";

fn shared() -> (NodeBed, PathBuf) {
    let bed = NodeBed::new(fast(1), SITE);
    JOBS.into_iter().for_each(begins(&bed));
    let id = format!("{}-{}", uid_of(USER), bed.node.uuids()[0]);
    let mps = bed.path("run/shared").join(id);
    (bed, mps)
}

fn begins(bed: &NodeBed) -> impl Fn(&str) {
    |job| drop(bed.torque_on_gpu_0(job, "MPS=true").ok())
}

/// The first job has a client, and its end asks the stopped daemon to end that client.
#[test]
fn stopped_processes_of_a_shared_mps_hold_no_begin_and_no_end() {
    for names in [&THREE[..1], &THREE[1..2], &THREE[2..], &THREE[..]] {
        let (bed, _) = shared();
        let client = bed.sharer(JOBS[0]);
        for pid in names.iter().flat_map(|name| bed.pids(name)) {
            kill(pid, Signal::SIGSTOP);
        }
        begins(&bed)("853.srv");
        for job in [JOBS[0], JOBS[1], "853.srv"] {
            bed.end(job).within(Duration::from_secs(10));
        }
        drop(client);
        bed.assert_as_before("stopped processes");
    }
}

/// The user's other jobs wait for nobody: one ends at once, and the start of another that gives up
/// counts.
#[test]
fn a_stopped_begin_of_a_shared_mps_is_the_users_and_holds_no_end() {
    let (mut bed, mps) = shared();
    for pid in THREE.iter().flat_map(|name| bed.pids(name)) {
        kill(pid, Signal::SIGKILL);
    }
    bed.node
        .change(|node| node.times.server_ready = (3000, 3000));
    let start = |job| {
        let args = [&["--record"], &openpbs_args(job, USER, "MPS=true")[..]].concat();
        Running::start(bed.command("mps-prologue").args(args).stderr(Stdio::null()))
    };
    let mut stopped = start("853.srv");
    let begins = || !bed.pids(THREE[1]).is_empty() && mps.exists();
    eventually("it begins", begins);
    for pid in THREE[..2].iter().flat_map(|name| bed.pids(name)) {
        kill(pid, Signal::SIGSTOP);
    }
    let mut waits = start("854.srv");
    for job in JOBS {
        bed.end(job).within(Duration::from_secs(6));
    }
    let codes = [waits.wait(), stopped.wait()];
    assert_eq!(codes, [Some(2); 2], "3 means: only the node");
    for job in ["853.srv", "854.srv"] {
        let record = fs::read_to_string(bed.job(job).join("record")).expect("a record");
        assert!(!record.contains("of_node"), "{record}");
        bed.end(job);
    }
    bed.assert_as_before("a stopped begin");
}

/// The end of a job on several GPUs leaves several MPS, one after the other.
#[test]
fn a_job_that_stops_all_its_shared_mps_is_taken_down_in_one_end() {
    let bed = NodeBed::new(fast(8), SITE);
    bed.begin(JOBS[0], "MPS=true", "0,1,2,3,4,5,6,7");
    for pid in THREE.iter().flat_map(|name| bed.pids(name)) {
        kill(pid, Signal::SIGSTOP);
    }
    bed.end(JOBS[0]).within(Duration::from_secs(20));
    bed.assert_as_before("eight stopped MPS");
}

#[test]
fn a_process_that_nobody_can_look_at_hides_no_client_of_a_job_that_leaves_a_shared_mps() {
    alone(|| {
        let (bed, _) = shared();
        let Some((at, hung)) = bed.hung("fuse", Hung::over_writes) else {
            return;
        };
        let hidden = hides_in(&bed.node.control(), &at, &hung, &[]);
        assert!(!can_be_read(hidden.pid(), "environ"), "it holds no lock");
        let mut clients = JOBS.map(|job| bed.sharer(job));
        bed.end(JOBS[0]);
        let ends = wait_until(Duration::from_secs(5), || clients[0].has_ended());
        let ended = [ends, clients[1].has_ended()];
        drop((hung, hidden, clients));
        assert_eq!(ended, [true, false]);
        bed.end(JOBS[1]);
        bed.assert_as_before("a process that hides");
    });
}
