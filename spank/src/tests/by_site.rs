//! Jobs that a site brought in: nothing of MPS that they could notice.

use super::double::{BATCH, INTERACTIVE, NodeDouble, Process, SlurmDouble, path_of, record};
use crate::handle::{Item, Level, Verdict};
use crate::plugin::Callback;
use mpsd_core::by_site::BySite;
use mpsd_core::record::{Record, RecordState};
use mpsd_core::testing;

const PIPE: &str = "CUDA_MPS_PIPE_DIRECTORY";
const GPUS: &str = "CUDA_VISIBLE_DEVICES";
const SCRIPT: &str = "/spool/job4711/slurm_script";

fn of_site(state: RecordState) -> Record {
    let mut record = record("4711", state);
    record.request = "MPS=auto".parse().ok();
    record.clients = Some(48);
    record.by_site = Some(BySite {
        tasks: 4,
        if_tasks_meet: true,
    });
    record
}

/// A node on which the site has given job 4711 MPS, with a batch script and the wrapper of a step.
fn node(script: &'static str, wrapper: &'static str) -> NodeDouble {
    let mut node = NodeDouble::new().with_record(of_site(RecordState::Ready));
    node.texts = [(SCRIPT, script), ("./wrapper.sh", wrapper)].into();
    node
}

fn step(tasks: u32) -> SlurmDouble {
    let slurm = SlurmDouble::step(3).with(Item::LocalTasks, tasks);
    let mut slurm = slurm.with(Item::TaskId, 0);
    slurm.step_command = ["./wrapper.sh", "a"].map(str::to_owned).to_vec();
    slurm
}

fn batch() -> SlurmDouble {
    let slurm = SlurmDouble::step(BATCH).with(Item::LocalTasks, 1);
    let mut slurm = slurm.with(Item::TaskId, 0).job(GPUS, "0,1");
    slurm.step_command = vec![SCRIPT.to_owned()];
    slurm
}

/// Whether the task is attached. It runs with its own words for its GPUs, and its user reads
/// nothing.
#[track_caller]
fn is_attached(slurm: SlurmDouble, node: &NodeDouble) -> bool {
    let before = slurm.job_env.clone();
    let (mut process, _) = Process::begin(slurm, node, "", "");
    assert_eq!(process.call(Callback::TaskInit), Verdict::Continue);
    let after = process.slurm.job_env.clone();
    assert_eq!(after.get(GPUS), before.get(GPUS));
    let told = [Level::Error, Level::Notice].map(|level| process.slurm.at_level(level));
    assert!(told.iter().all(Vec::is_empty), "{told:?}");
    let attached = after.contains_key("MPSD_JOB");
    if !attached {
        assert_eq!(after, before);
    }
    let of_job = node.records.borrow()[&path_of(&of_site(RecordState::Ready))].clone();
    if !attached && of_job.state == RecordState::Ready {
        let why = process.slurm.at_level(Level::Info).concat();
        assert_eq!(why.matches("auto: no MPS, because").count(), 1, "{why}");
    }
    attached
}

#[test]
fn a_step_has_mps_if_its_tasks_meet_and_a_server_takes_them() {
    let plain = || node("mpirun a", "exec a");
    let mut beside_others = of_site(RecordState::Ready);
    beside_others.by_site.as_mut().unwrap().if_tasks_meet = false;
    let mut gone = plain();
    gone.ended = vec!["/run/mpsd/jobs/4711/pipe"];
    let after = |state| NodeDouble::new().with_record(of_site(state));
    for (node, tasks, connections, attached) in [
        (plain(), 4, "", true),
        (plain(), 1, "", false),
        (plain().with_record(beside_others), 1, "", true),
        (plain(), 4, "32", false),
        (plain(), 49, "", false),
        // After the daemon's end, or a failed start.
        (gone, 4, "", false),
        (after(RecordState::Failed), 4, "", false),
        (after(RecordState::Refused), 4, "", false),
    ] {
        let slurm = step(tasks).job("CUDA_DEVICE_MAX_CONNECTIONS", connections);
        let found = is_attached(slurm, &node);
        assert_eq!(found, attached, "{tasks} {connections}");
    }
}

#[test]
fn a_user_who_has_a_pipe_directory_keeps_it() {
    let node = node("mpirun a", "exec a");
    assert!(!is_attached(step(4).job(PIPE, "/tmp/own"), &node));
    let mut of_step = of_site(RecordState::Unneeded);
    of_step.job = of_step.job.step("3").unwrap();
    let left = node.records.borrow()[&path_of(&of_step)].clone();
    assert_eq!(left.state, RecordState::Unneeded);
    assert!(left.reason.unwrap().contains(PIPE));
}

#[test]
fn a_task_that_may_open_other_gpus_has_the_numbers_that_it_had() {
    let may_open = |gpus: &[usize]| {
        let mut record = of_site(RecordState::Ready);
        let device = |gpu: &usize| testing::device(gpu, "/dev/null");
        record.devices = gpus.iter().map(device).collect();
        node("srun a", "exec a").with_record(record)
    };
    for (gpus, attached) in [(&[2, 3][..], true), (&[0, 1, 2, 3], false), (&[2], false)] {
        assert_eq!(is_attached(step(4), &may_open(gpus)), attached, "{gpus:?}");
    }
}

/// What would be refused or warned of if its user had asked.
#[test]
fn a_task_reads_no_warning() {
    let mut record = of_site(RecordState::Ready);
    record.rank_threads = ["20", "40"].map(|p| p.parse().unwrap()).to_vec();
    let node = node("srun a", "exec a").with_record(record);
    let mut slurm = step(4).with(Item::TaskGlobalId, 0);
    for name in ["NCCL_NVLS_ENABLE", "NVSHMEM_SYMMETRIC_SIZE"] {
        slurm = slurm.job(name, "1");
    }
    let slurm = slurm.job("CUDA_DEVICE_MAX_CONNECTIONS", "8");
    assert!(is_attached(slurm, &node));
}

#[test]
fn a_script_that_names_nvidias_daemon_takes_its_job_out() {
    for script in [
        "nvidia-cuda-mps-control -d; srun a",
        "echo quit | nvidia-cuda-mps-control\nmpirun a",
    ] {
        let node = node(script, "exec a");
        assert!(!is_attached(batch(), &node), "{script}");
        assert!(!is_attached(step(4), &node), "{script}");
        let left = node.records.borrow()[&path_of(&of_site(RecordState::Ready))].clone();
        assert_eq!((left.state, left.request), (RecordState::Unneeded, None));
    }
    let node = node("srun a", "nvidia-cuda-mps-control -d");
    assert!(!is_attached(step(4), &node));
}

#[test]
fn a_script_that_starts_programs_without_a_launcher_has_none_and_its_steps_have() {
    let script = "for i in $(seq 56); do a & done; wait; srun -n4 a";
    let node = node(script, "exec a");
    assert!(!is_attached(batch(), &node));
    assert!(is_attached(step(4), &node));
    let node = self::node("mpirun -n 4 a", "exec a");
    assert!(is_attached(batch(), &node));
    let shell = SlurmDouble::step(INTERACTIVE).with(Item::TaskId, 0);
    assert!(!is_attached(shell, &node));
}

#[test]
fn a_step_whose_user_asks_is_as_in_any_job() {
    let node = node("srun --mps a", "exec a");
    let slurm = step(1).job("CUDA_DEVICE_MAX_CONNECTIONS", "").job(GPUS, "");
    let (mut process, _) = Process::begin(slurm, &node, "", "mps");
    assert_eq!(process.call(Callback::TaskInit), Verdict::Continue);
    let env = &process.slurm.job_env;
    assert!(env.contains_key(PIPE) && env[GPUS].starts_with("GPU-"));
}

/// srun gives the flags of its last component to the steps of all.
#[test]
fn only_the_step_whose_user_asks_is_free_of_these_rules() {
    let left_out = |slurm: SlurmDouble| {
        let node = NodeDouble::new().with_record(of_site(RecordState::Unneeded));
        let (process, _) = Process::begin(slurm.job(PIPE, "/tmp/own"), &node, "", "mps");
        let lines = process.slurm.at_level(Level::Info);
        lines.iter().any(|line| line.contains("auto: no MPS"))
    };
    assert!(!left_out(step(4)));
    assert!(left_out(step(4).job("SLURM_HET_SIZE", "2")));
}

#[test]
fn a_step_of_its_own_is_begun_in_the_sites_name_and_not_beside_the_users_own() {
    let unneeded = || NodeDouble::new().with_record(of_site(RecordState::Unneeded));
    let node = unneeded();
    let _ = Process::begin(step(4), &node, "", "");
    assert!(node.words().ends_with("--by-site"), "{}", node.words());
    let node = unneeded();
    let _ = Process::begin(step(4).job(PIPE, "/tmp/own"), &node, "", "");
    assert!(node.nothing_ran());
}
