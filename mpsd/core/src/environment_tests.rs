use super::*;
use crate::job::JobId;
use crate::record::{RecordGpu, RecordState, VERSION};

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
        partitions: Vec::new(),
    };
    Record {
        version: VERSION,
        state: RecordState::Ready,
        reason: None,
        per_gpu,
        gpus: vec![
            RecordGpu {
                index: 1,
                uuid: uuid(1),
                cpus: None,
            },
            RecordGpu {
                index: 2,
                uuid: uuid(2),
                cpus: None,
            },
        ],
        daemons: if per_gpu {
            vec![daemon("pipe-0", vec![uuid(1)]), daemon("pipe-1", vec![uuid(2)])]
        } else {
            vec![daemon("pipe", vec![uuid(1), uuid(2)])]
        },
        ..Record::closed(
            JobId::parse("7").unwrap(),
            1000,
            RecordState::Ready,
            String::new(),
        )
    }
}

fn one_of(local: u32, of: u32) -> Option<Rank> {
    Some(Rank { local, of: Some(of) })
}

fn value(changes: &[Change], name: &str) -> Option<String> {
    changes
        .iter()
        .find(|c| c.name == name)
        .and_then(|c| c.value.clone())
}

/// docs/facts/mps-control.md#clients
#[test]
fn one_rank_is_warned_of_connections_that_cost_clients() {
    let told = |rank, value: Option<&str>| {
        let value = value.map(str::to_owned);
        warning(rank, &|name: &str| {
            value.clone().filter(|_| name == "CUDA_DEVICE_MAX_CONNECTIONS")
        })
    };
    let line = told(Some(0), Some("8")).unwrap();
    assert!(
        line.starts_with("warning: CUDA_DEVICE_MAX_CONNECTIONS=8: above 2 "),
        "{line}"
    );
    assert!(told(None, Some(" 3 ")).is_some());
    for (rank, value) in [
        (Some(1), Some("8")),
        (Some(0), Some("2")),
        (Some(0), Some("x")),
        (None, None),
    ] {
        assert_eq!(told(rank, value), None, "{rank:?} {value:?}");
    }
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
        rank: one_of(0, 4),
        ..Task::default()
    };
    assert!(
        value(&task_environment(&record(true), &own).unwrap(), PIPE_DIRECTORY)
            .unwrap()
            .ends_with("pipe-1")
    );
    let ranked = Task {
        rank: one_of(3, 4),
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
        rank: one_of(0, 4),
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
    assert_eq!(rank(&both).unwrap().0.local, 3);
    let hook = include_str!("../../../etc/pbs/hooks/mpsd.py");
    let ranks = LAUNCHERS.map(|(rank, _)| rank);
    let sizes = LAUNCHERS.map(|(_, size)| size);
    let quoted = |names: &[&str]| format!("(\"{}\")", names.join("\", \""));
    for listed in [
        format!("RANKS = {}", quoted(&ranks)),
        format!("SIZES = {}", quoted(&sizes[..3])),
    ] {
        assert!(hook.contains(&listed), "the hook of OpenPBS has not {listed}");
    }
    let page = include_str!("../../../packaging/man/mpsctl.1");
    let (last, others) = ranks.split_last().unwrap();
    let listed = format!("{} or {last}", others.join(", "));
    assert!(page.contains(&listed), "mpsctl(1) has not {listed}");
}

#[test]
fn a_job_without_mps_loses_only_what_another_jobs_mps_left() {
    let env = |name: &str| match name {
        JOB => Some("6".to_owned()),
        // Of a node whose run_dir is another.
        PIPE_DIRECTORY => Some("/run/elsewhere/jobs/6/pipe".to_owned()),
        LOG_DIRECTORY => Some("/home/u/jobs/66/log".to_owned()),
        _ => None,
    };
    let names = strip_inherited(Some("8"), &env);
    let names: Vec<_> = names.iter().map(|change| change.name).collect();
    assert_eq!(names, [JOB, PIPE_DIRECTORY]);
    assert!(strip_inherited(Some("6"), &env).is_empty());
    assert!(strip_inherited(None, &|_| None).is_empty());
}

/// What `CUDA_VISIBLE_DEVICES` says to each rank of a node with `tasks`, each GPU as its last digit.
fn seen(record: &Record, tasks: u32, change: impl Fn(Task) -> Task) -> Vec<String> {
    let of_rank = |local| {
        let task = change(Task {
            rank: one_of(local, tasks),
            ..Task::default()
        });
        let changes = task_environment(record, &task).unwrap();
        value(&changes, VISIBLE_DEVICES)
            .unwrap()
            .replace("GPU-0000000", "")
    };
    (0..tasks).map(of_rank).collect()
}

fn bound(bind: &str) -> Record {
    Record {
        bind: Some(bind.parse().unwrap()),
        ..record(false)
    }
}

#[test]
fn a_bound_rank_sees_its_own_gpu_alone_or_first() {
    let plain = |task| task;
    assert_eq!(seen(&bound("block"), 4, plain), ["1", "1", "2", "2"]);
    assert_eq!(seen(&bound("cyclic"), 4, plain), ["1", "2", "1", "2"]);
    assert_eq!(seen(&bound("block+peers"), 3, plain), ["1,2", "1,2", "2,1"]);
    assert_eq!(seen(&bound("none"), 4, plain), ["1,2"; 4]);
    // What a rank has already stays when it is attached again.
    let again = |task: Task| Task {
        visible: Some("GPU-00000002,GPU-00000001".into()),
        ..task
    };
    assert_eq!(seen(&bound("block+peers"), 3, again), ["1,2", "1,2", "2,1"]);
    assert_eq!(seen(&record(false), 4, plain), ["1,2"; 4]);
}

#[test]
fn nobody_is_bound_unasked_where_each_task_can_have_a_gpu() {
    let plain = |task| task;
    assert_eq!(seen(&bound("auto"), 2, plain), ["1,2"; 2]);
    // By the first, by rank modulo two, by blocks of two: two on each.
    assert_eq!(seen(&bound("auto"), 4, plain), ["1,2", "2,1", "2,1", "1,2"]);
    let kept = Record {
        names: Some(DeviceNames::Keep),
        ..bound("auto")
    };
    let third = Task {
        rank: Some(Rank {
            local: 2,
            of: Some(4),
        }),
        ..Task::default()
    };
    let changes = task_environment(&kept, &third).unwrap();
    assert_eq!(value(&changes, VISIBLE_DEVICES), None, "it stays as it was set");
    let unknown = |task: Task| Task {
        rank: Some(Rank {
            local: task.rank.unwrap().local,
            of: None,
        }),
        ..task
    };
    assert_eq!(seen(&bound("auto"), 4, unknown), ["1,2"; 4]);
}

#[test]
fn a_task_that_slurm_has_bound_keeps_its_gpus() {
    let by_slurm = |task| Task { bound: true, ..task };
    for bind in ["auto", "block", "closest+peers"] {
        assert_eq!(seen(&bound(bind), 4, by_slurm), ["1,2"; 4], "{bind}");
    }
    let told = |word: &'static str| move |name: &str| (name == OF_SRUN).then(|| word.to_owned());
    assert!(is_bound_by_slurm(&bound("block"), &told("gpu:single:1")));
    assert!(is_bound_by_slurm(&bound("auto"), &told("gpu:none")));
    assert!(!is_bound_by_slurm(&bound("block"), &told("gpu:none")));
    assert!(!is_bound_by_slurm(&bound("block"), &|_| None));
}

#[test]
fn a_binding_that_cannot_be_carried_out_is_refused() {
    let unranked = task_environment(&bound("cyclic"), &Task::default()).unwrap_err();
    assert!(
        unranked.to_string().contains("OMPI_COMM_WORLD_LOCAL_RANK"),
        "{unranked}"
    );
    let ranked = Task {
        rank: Some(Rank { local: 1, of: None }),
        ..Task::default()
    };
    let unknown = task_environment(&bound("block"), &ranked).unwrap_err();
    assert!(unknown.to_string().contains("cyclic"), "{unknown}");
    let far = task_environment(&bound("closest"), &ranked).unwrap_err();
    assert!(far.to_string().contains("NVML does not tell"), "{far}");
    let kept = Record {
        names: Some(DeviceNames::Keep),
        ..bound("cyclic")
    };
    let refused = task_environment(&kept, &ranked).unwrap_err();
    assert!(refused.to_string().contains("MPS_VISIBLE"), "{refused}");
    // Whom Slurm has bound, we do not.
    let by_slurm = Task {
        bound: true,
        ..ranked
    };
    assert!(task_environment(&kept, &by_slurm).is_ok());
}

#[test]
fn the_only_process_of_a_node_keeps_all_gpus() {
    for how in ["block", "cyclic", "closest", "auto", "none"] {
        assert_eq!(
            seen(&bound(how), 1, |task| task),
            ["1,2"],
            "{how}: a launcher's daemon"
        );
    }
}

#[test]
fn per_gpu_shares_as_it_is_told() {
    let pipes = |bind: &str| {
        let record = Record {
            bind: Some(bind.parse().unwrap()),
            ..record(true)
        };
        let pipe = |local| {
            let task = Task {
                rank: one_of(local, 4),
                ..Task::default()
            };
            let pipe = value(&task_environment(&record, &task).unwrap(), PIPE_DIRECTORY).unwrap();
            pipe.chars().last().unwrap()
        };
        (0..4).map(pipe).collect::<String>()
    };
    assert_eq!((pipes("auto"), pipes("block")), ("0101".into(), "0011".into()));
}

#[test]
fn numbers_are_the_daemons_and_only_where_they_mean_the_same_without_it() {
    let named = |names, change: &dyn Fn(&mut Record)| {
        let mut record = Record {
            names: Some(names),
            ..bound("cyclic+peers")
        };
        change(&mut record);
        record
    };
    let plain = |task| task;
    let nothing: &dyn Fn(&mut Record) = &|_| {};
    assert_eq!(
        seen(&named(DeviceNames::Ordinal, nothing), 2, plain),
        ["0,1", "1,0"]
    );
    assert_eq!(seen(&named(DeviceNames::Uuid, nothing), 2, plain), ["1,2", "2,1"]);
    // The job's GPUs are 1 and 2 of the node: number 0 would be another's.
    assert_eq!(seen(&named(DeviceNames::Auto, nothing), 2, plain), ["1,2", "2,1"]);
    let first = named(DeviceNames::Auto, &|record| record.same_numbers = true);
    assert_eq!(seen(&first, 2, plain), ["0,1", "1,0"]);
    let confined = |task| Task {
        counted: Some(vec![uuid(1), uuid(2)]),
        ..task
    };
    assert_eq!(
        seen(&named(DeviceNames::Auto, nothing), 2, confined),
        ["0,1", "1,0"]
    );
    let open = |task| Task {
        counted: Some(vec![uuid(0), uuid(1), uuid(2)]),
        ..task
    };
    assert_eq!(seen(&named(DeviceNames::Auto, nothing), 2, open), ["1,2", "2,1"]);
    // It may open one of its job's: how CUDA then counts behind the daemon is not known.
    let one = |task| Task {
        counted: Some(vec![uuid(2)]),
        ..task
    };
    assert_eq!(seen(&first, 2, one), ["2", "2"]);
    // With a daemon for each GPU number 0 is another GPU of the job to who misses it.
    let own = |record: &mut Record| {
        let bind = record.bind;
        *record = Record {
            names: record.names,
            bind,
            ..self::record(true)
        };
    };
    assert_eq!(seen(&named(DeviceNames::Auto, &own), 2, confined), ["1", "2"]);
    assert_eq!(seen(&named(DeviceNames::Ordinal, &own), 2, confined), ["0", "0"]);
}

/// Three ranks on two GPUs: 0 and 2 on the first, 1 on the second.
fn partitioned(per_gpu: bool) -> Record {
    let mut record = record(per_gpu);
    for (rank, gpu) in [(0, 1), (1, 2), (2, 1)] {
        let of_gpu = record.daemons.iter_mut().find(|d| d.gpus.contains(&uuid(gpu)));
        of_gpu.unwrap().partitions.push(Partition {
            rank,
            gpu: uuid(gpu),
            sms: 16,
            chunks: 2,
            id: format!("D/{rank}=="),
        });
    }
    record
}

#[test]
fn a_rank_gets_its_own_partition_and_sees_that_gpu_alone() {
    for per_gpu in [false, true] {
        for (rank, gpu) in [(0, 1), (1, 2), (2, 1)] {
            let task = Task {
                rank: one_of(rank, 3),
                ..Task::default()
            };
            let changes = task_environment(&partitioned(per_gpu), &task).unwrap();
            let name = format!("{}/D/{rank}==", uuid(gpu));
            assert_eq!(value(&changes, "CUDA_MPS_SM_PARTITION"), Some(name));
            assert_eq!(value(&changes, VISIBLE_DEVICES), Some(uuid(gpu).to_string()));
            let pipe = ["pipe", "pipe-0", "pipe-1"][if per_gpu { gpu as usize } else { 0 }];
            assert!(value(&changes, PIPE_DIRECTORY).unwrap().ends_with(pipe));
        }
    }
}

#[test]
fn a_rank_without_a_partition_of_its_own_does_not_run() {
    let record = partitioned(false);
    let refused = |record: &Record, task: Task| task_environment(record, &task).unwrap_err().to_string();
    let beyond = Task {
        rank: one_of(3, 4),
        ..Task::default()
    };
    assert!(refused(&record, beyond).contains("rank 3 of this node has none"));
    assert!(refused(&record, Task::default()).contains("no local rank"));
    let elsewhere = Task {
        rank: one_of(1, 3),
        visible: Some(uuid(1).to_string()),
        ..Task::default()
    };
    assert!(refused(&record, elsewhere.clone()).contains("it lies on GPU-00000002"));
    let mut unmade = record.clone();
    unmade.daemons[0].partitions[1].id = String::new();
    let whole = Task {
        visible: None,
        ..elsewhere
    };
    assert!(refused(&unmade, whole.clone()).contains("never made"));
    let kept = Record {
        names: Some(DeviceNames::Keep),
        ..record
    };
    assert!(refused(&kept, whole).contains("stays as the scheduler set it"));
}

#[test]
fn what_starts_the_ranks_has_no_partition_to_hand_on() {
    let alone = Task {
        rank: one_of(0, 1),
        ..Task::default()
    };
    let changes = task_environment(&partitioned(false), &alone).unwrap();
    let unset = Change::unset("CUDA_MPS_SM_PARTITION");
    assert!(changes.contains(&unset), "{changes:?}");
    let mut one = partitioned(false);
    one.daemons[0].partitions.truncate(1);
    for task in [alone, Task::default()] {
        let changes = task_environment(&one, &task).unwrap();
        assert!(value(&changes, "CUDA_MPS_SM_PARTITION").is_some());
    }
}

#[test]
fn a_partition_of_another_job_is_taken_away_and_the_users_own_stays() {
    let foreign = Task {
        inherited_job: Some("6".to_owned()),
        ..Task::default()
    };
    let unset = Change::unset("CUDA_MPS_SM_PARTITION");
    assert!(
        task_environment(&record(false), &foreign)
            .unwrap()
            .contains(&unset)
    );
    let own = task_environment(&record(false), &Task::default()).unwrap();
    assert!(own.iter().all(|change| change.name != "CUDA_MPS_SM_PARTITION"));
}
