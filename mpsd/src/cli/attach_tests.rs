//! What a caller is given, in jobs of Slurm and PBS.

use super::*;
use mpsd_core::record::{Daemon, RecordGpu};

#[test]
fn a_shell_without_a_rank_has_the_lowest_of_a_list() {
    let gpu = GpuUuid::parse("GPU-00000001").unwrap();
    let mut record = Record::closed(
        JobId::parse("7").unwrap(),
        1000,
        RecordState::Ready,
        String::new(),
    );
    record.gpus = vec![RecordGpu {
        index: 0,
        uuid: gpu.clone(),
        cpus: None,
    }];
    record.daemons = vec![Daemon {
        gpus: vec![gpu.clone()],
        pipe: "/p".into(),
        log: "/l".into(),
        threads: None,
        memory: Vec::new(),
        priority: None,
        partitions: Vec::new(),
    }];
    record.rank_threads = ["70", "30"].map(|p| p.parse().unwrap()).to_vec();
    record.rank_memory = vec![vec![(gpu.clone(), 4096)], vec![(gpu, 2048)]];
    let changes = main_shell(&record, &Task::default()).unwrap();
    let value = |name: &str| changes.iter().find(|c| c.name == name)?.value.clone();
    assert_eq!(value("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE").as_deref(), Some("30"));
    assert_eq!(
        value("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT").as_deref(),
        Some("GPU-00000001=2048M")
    );
}

fn ids(job: Option<&str>, env: &[(&str, &str)]) -> Vec<String> {
    let lookup = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
    let caller = Caller {
        config: Path::new("/nonexistent"),
        job,
        env: &lookup,
        uid: 1000,
        main: false,
    };
    caller.ids().unwrap().iter().map(ToString::to_string).collect()
}

#[test]
fn the_job_is_the_schedulers() {
    assert!(ids(None, &[]).is_empty());
    assert_eq!(ids(None, &[("PBS_JOBID", "7.srv")]), ["7.srv"]);
    assert_eq!(
        ids(None, &[("SLURM_JOB_ID", "8"), ("SLURM_STEP_ID", "2")]),
        ["8.2", "8"]
    );
    assert_eq!(ids(Some("9"), &[("SLURM_JOB_ID", "8")]), ["9"]);
    assert!(ids(None, &[("SLURM_JOB_ID", "")]).is_empty());
}

/// Slurm's number is the first component's, whose MPS is another one, or none (docs/facts/slurm.md#callbacks-of-a-plugin).
#[test]
fn a_task_of_a_heterogeneous_job_is_its_own_components() {
    let of = |own, more: &[(&str, &str)]| {
        let het = [("SLURM_JOB_ID", "8"), ("SLURM_HET_SIZE", "2"), (JOB, own)];
        ids(None, &[&het[..], more].concat())
    };
    assert_eq!(of("9", &[]), ["9"]);
    assert_eq!(of("9", &[("SLURM_STEP_ID", "2")]), ["9.2", "9"]);
    // The first itself, and what was inherited from a job that is another one.
    for own in ["8", "7", "10", "9.2", "9.srv", ""] {
        assert_eq!(of(own, &[]), ["8"], "{own}");
    }
    assert_eq!(ids(None, &[("SLURM_JOB_ID", "8"), (JOB, "9")]), ["8"]);
}

#[test]
fn numbers_of_a_slurm_step_are_the_nodes() {
    let visible = |env: &[(&str, &str)]| {
        let lookup = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        Caller {
            config: Path::new("/x"),
            job: None,
            env: &lookup,
            uid: 1000,
            main: false,
        }
        .visible(false)
    };
    let slurm = [
        ("SLURM_JOB_ID", "8"),
        ("SLURM_STEP_GPUS", "3"),
        (VISIBLE_DEVICES, "0"),
    ];
    assert_eq!(visible(&slurm).as_deref(), Some("3"));
    assert_eq!(
        visible(&[
            ("SLURM_JOB_ID", "8"),
            ("SLURM_STEP_GPUS", "3"),
            (VISIBLE_DEVICES, "GPU-1")
        ])
        .as_deref(),
        Some("GPU-1")
    );
    assert_eq!(
        visible(&[("PBS_JOBID", "8"), (VISIBLE_DEVICES, "1")]).as_deref(),
        Some("1")
    );
    assert_eq!(visible(&[]), None);
}

#[test]
fn a_shell_before_its_ranks_keeps_nothing_of_another_jobs_mps() {
    let mut record = two_gpus();
    record.per_gpu = true;
    let removed = |inherited: &str| -> Vec<&str> {
        let task = Task {
            inherited_job: Some(inherited.to_owned()),
            ..Task::default()
        };
        let changes = main_shell(&record, &task).unwrap();
        let removed = changes.iter().filter(|change| change.value.is_none());
        removed.map(|change| change.name).collect()
    };
    for name in [
        PIPE_DIRECTORY,
        LOG_DIRECTORY,
        THREADS,
        MEMORY,
        partitions::VARIABLE,
    ] {
        assert!(removed("6").contains(&name), "{name}");
    }
    assert_eq!(removed("7"), [""; 0]);
}

/// A job of two GPUs, the node's 1 and 2, whose ranks are bound in turn.
fn two_gpus() -> Record {
    let mut record = Record::closed(
        JobId::parse("7").unwrap(),
        1000,
        RecordState::Ready,
        String::new(),
    );
    let gpu = |index: u32| RecordGpu {
        index,
        uuid: GpuUuid::parse(&format!("GPU-0000000{index}")).unwrap(),
        cpus: None,
    };
    record.gpus = [1, 2].map(gpu).to_vec();
    let uuids = record.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    record.daemons = vec![Daemon {
        gpus: uuids,
        pipe: "/p".into(),
        log: "/l".into(),
        threads: None,
        memory: Vec::new(),
        priority: None,
        partitions: Vec::new(),
    }];
    record.bind = "cyclic+peers".parse().ok();
    record.names = Some(DeviceNames::Ordinal);
    record
}

fn daemon(gpu: &GpuUuid) -> Daemon {
    Daemon {
        gpus: vec![gpu.clone()],
        pipe: format!("/p-{gpu}").into(),
        log: "/l".into(),
        threads: None,
        memory: Vec::new(),
        priority: None,
        partitions: Vec::new(),
    }
}

fn visible(record: &Record, main: bool, env: &[(&str, &str)]) -> String {
    let lookup = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
    let caller = Caller {
        config: Path::new("/nonexistent"),
        job: None,
        env: &lookup,
        uid: 1000,
        main,
    };
    let changes = caller.attach(record).unwrap();
    let change = changes.into_iter().find(|change| change.name == VISIBLE_DEVICES);
    change.unwrap().value.unwrap()
}

#[test]
fn ranks_of_a_launcher_are_bound_and_the_shell_before_them_sees_all() {
    let record = two_gpus();
    let rank = |rank| [("PBS_JOBID", "7"), ("OMPI_COMM_WORLD_LOCAL_RANK", rank)];
    assert_eq!(visible(&record, false, &rank("0")), "0,1");
    assert_eq!(visible(&record, false, &rank("1")), "1,0");
    assert_eq!(visible(&record, true, &[("PBS_JOBID", "7")]), "0,1");
    let mut per_gpu = record.clone();
    per_gpu.per_gpu = true;
    per_gpu.daemons = record.gpus.iter().map(|gpu| daemon(&gpu.uuid)).collect();
    assert_eq!(visible(&per_gpu, true, &[("PBS_JOBID", "7")]), "", "outside MPS");
    let of_shell = [
        ("PBS_JOBID", "7"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        (VISIBLE_DEVICES, ""),
    ];
    assert_eq!(visible(&per_gpu, false, &of_shell), "0", "its daemon's only one");
    // The plugin has bound what srun started.
    let of_srun = [
        ("SLURM_JOB_ID", "7"),
        ("SLURM_LOCALID", "1"),
        (VISIBLE_DEVICES, "GPU-00000002"),
    ];
    assert_eq!(visible(&record, false, &of_srun), "1");
}

#[test]
fn numbers_are_the_daemons_once_a_process_is_attached() {
    let attached = |list| {
        [
            ("PBS_JOBID", "7"),
            (JOB, "7"),
            (PIPE_DIRECTORY, "/p"),
            ("MPI_LOCALRANKID", "0"),
            (VISIBLE_DEVICES, list),
        ]
    };
    let record = two_gpus();
    assert_eq!(visible(&record, false, &attached("1")), "1");
    assert_eq!(visible(&record, false, &attached("0")), "0");
    // The scheduler's own, which a mom has written anew: the daemon has no number 2.
    assert_eq!(visible(&record, false, &attached("1,2")), "0,1");
    let by_uuid = Record {
        names: Some(DeviceNames::Uuid),
        ..record
    };
    assert_eq!(visible(&by_uuid, false, &attached("1")), "GPU-00000001");
}
