use super::*;
use crate::job::JobId;
use crate::record::{RecordGpu, State, VERSION};

fn uuid(n: u32) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-0000000{n}")).unwrap()
}

fn record(per_gpu: bool) -> Record {
    let daemon = |name: &str, gpus: Vec<GpuUuid>| Daemon {
        gpus,
        pipe: format!("/run/mpsd/jobs/7/{name}").into(),
        log: "/run/mpsd/jobs/7/log".into(),
        threads: None,
        memory: Vec::new(),
        priority: None,
    };
    Record {
        version: VERSION,
        state: State::Ready,
        reason: None,
        per_gpu,
        gpus: vec![
            RecordGpu {
                index: 1,
                uuid: uuid(1),
            },
            RecordGpu {
                index: 2,
                uuid: uuid(2),
            },
        ],
        daemons: if per_gpu {
            vec![daemon("pipe-0", vec![uuid(1)]), daemon("pipe-1", vec![uuid(2)])]
        } else {
            vec![daemon("pipe", vec![uuid(1), uuid(2)])]
        },
        ..Record::closed(JobId::parse("7").unwrap(), 1000, State::Ready, String::new())
    }
}

fn value(changes: &[Change], name: &str) -> Option<String> {
    changes
        .iter()
        .find(|c| c.name == name)
        .and_then(|c| c.value.clone())
}

#[test]
fn devices_become_uuids_under_either_numbering() {
    let global = Task {
        visible: Some("2".into()),
        ..Task::default()
    };
    let constrained = Task {
        visible: Some("1".into()),
        counted: Some(vec![uuid(1), uuid(2)]),
        ..Task::default()
    };
    for task in [global, constrained] {
        let changes = task_environment(&record(false), &task).unwrap();
        assert_eq!(value(&changes, VISIBLE_DEVICES).as_deref(), Some("GPU-00000002"));
    }
}

#[test]
fn a_foreign_device_is_refused_by_name() {
    let task = Task {
        visible: Some("3".into()),
        ..Task::default()
    };
    let refusal = task_environment(&record(false), &task).unwrap_err();
    assert!(refusal.to_string().contains("'3'"), "{refusal}");
}

#[test]
fn per_gpu_goes_by_the_tasks_own_device_then_by_rank() {
    let own = Task {
        visible: Some("2".into()),
        local_rank: Some(0),
        ..Task::default()
    };
    assert!(
        value(&task_environment(&record(true), &own).unwrap(), PIPE_DIRECTORY)
            .unwrap()
            .ends_with("pipe-1")
    );
    let ranked = Task {
        local_rank: Some(3),
        ..Task::default()
    };
    let changes = task_environment(&record(true), &ranked).unwrap();
    assert!(value(&changes, PIPE_DIRECTORY).unwrap().ends_with("pipe-1"));
    assert_eq!(value(&changes, VISIBLE_DEVICES).as_deref(), Some("GPU-00000002"));
    let refusal = task_environment(&record(true), &Task::default()).unwrap_err();
    assert!(
        refusal.to_string().contains("OMPI_COMM_WORLD_LOCAL_RANK"),
        "{refusal}"
    );
}

#[test]
fn a_ranks_memory_limit_names_only_gpus_it_sees() {
    let mut record = record(false);
    record.rank_memory = vec![vec![(uuid(1), 1024), (uuid(2), 1024)]];
    let task = Task {
        visible: Some("1".into()),
        local_rank: Some(0),
        ..Task::default()
    };
    let changes = task_environment(&record, &task).unwrap();
    assert_eq!(value(&changes, MEMORY).as_deref(), Some("GPU-00000001=1024M"));
}

#[test]
fn another_jobs_variables_go_and_the_users_own_stay() {
    let foreign = Task {
        inherited_job: Some("6".into()),
        ..Task::default()
    };
    let changes = task_environment(&record(false), &foreign).unwrap();
    assert!(changes.contains(&Change::unset(THREADS)));
    let own = Task {
        inherited_job: Some("7".into()),
        ..Task::default()
    };
    assert!(
        !task_environment(&record(false), &own)
            .unwrap()
            .iter()
            .any(|c| c.name == THREADS)
    );
}

#[test]
fn every_program_looks_for_the_same_ranks_in_the_same_order() {
    let both = |name: &str| match name {
        "PALS_LOCAL_RANKID" => Some(" 3\n".to_owned()),
        "SLURM_LOCALID" => Some("0".to_owned()),
        "MPI_LOCALRANKID" => Some("none".to_owned()),
        _ => None,
    };
    assert_eq!(local_rank(&both), Some(3));
    let hook = include_str!("../../../../etc/pbs/hooks/mpsd.py");
    let listed = format!("RANKS = (\"{}\")", LOCAL_RANKS.join("\", \""));
    assert!(hook.contains(&listed), "the hook of OpenPBS has not {listed}");
    let page = include_str!("../../../../packaging/man/mpsctl.1");
    let (last, others) = LOCAL_RANKS.split_last().unwrap();
    let listed = format!("{} or {last}", others.join(", "));
    assert!(page.contains(&listed), "mpsctl(1) has not {listed}");
}

#[test]
fn a_job_without_mps_loses_only_what_another_jobs_mps_left() {
    let env = |name: &str| match name {
        JOB => Some("6".to_owned()),
        PIPE_DIRECTORY => Some("/run/mpsd/jobs/6/pipe".to_owned()),
        LOG_DIRECTORY => Some("/home/u/log".to_owned()),
        _ => None,
    };
    let names: Vec<_> = strip_inherited(Path::new("/run/mpsd/jobs"), Some("8"), &env)
        .iter()
        .map(|c| c.name)
        .collect();
    assert_eq!(names, [JOB, PIPE_DIRECTORY]);
    assert!(strip_inherited(Path::new("/run/mpsd/jobs"), Some("6"), &env).is_empty());
    assert!(strip_inherited(Path::new("/run/mpsd/jobs"), None, &|_| None).is_empty());
}
