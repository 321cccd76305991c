//! What a caller is given, in jobs of Slurm and PBS.

use super::*;
use mpsd_core::record::{Daemon, RecordGpu};

#[test]
fn a_shell_without_a_rank_has_the_lowest_of_a_list() {
    let gpu = GpuUuid::parse("GPU-00000001").unwrap();
    let mut record = Record::closed(JobId::parse("7").unwrap(), 1000, State::Ready, String::new());
    record.gpus = vec![RecordGpu {
        index: 0,
        uuid: gpu.clone(),
    }];
    record.daemons = vec![Daemon {
        gpus: vec![gpu.clone()],
        pipe: "/p".into(),
        log: "/l".into(),
        threads: None,
        memory: Vec::new(),
        priority: None,
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
