use super::*;
use mpsd_core::by_site::BySite;
use mpsd_core::environment::DEVICES;
use mpsd_core::record::RecordGpu;
use mpsd_core::testing;
use std::os::unix::net::UnixListener;

type Env<'a> = &'a [(&'a str, &'a str)];

fn with<T>(env: Env<'_>, main: bool, ask: impl FnOnce(&Caller<'_>) -> T) -> T {
    let lookup = |name: &str| {
        let found = env.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    ask(&Caller {
        config: Path::new("/nonexistent"),
        job: None,
        env: &lookup,
        uid: 1000,
        main,
        first: false,
    })
}

fn value<'c>(changes: &'c [Change], name: &str) -> Option<&'c str> {
    let change = changes.iter().find(|change| change.name == name)?;
    change.value.as_deref()
}

#[test]
fn the_job_is_the_schedulers_or_its_own_component() {
    let ids = |env: Env<'_>| with(env, false, |caller| caller.ids().unwrap());
    let het = |own, more: Env<'_>| {
        let het = [("SLURM_JOB_ID", "8"), ("SLURM_HET_SIZE", "2"), (JOB, own)];
        ids(&[&het[..], more].concat())
    };
    let (job, step) = (("SLURM_JOB_ID", "8"), ("SLURM_STEP_ID", "2"));
    for (found, wanted) in [
        (ids(&[]), &[][..]),
        (ids(&[("SLURM_JOB_ID", "")]), &[]),
        (ids(&[("PBS_JOBID", "7.srv")]), &["7.srv"]),
        (ids(&[job, step]), &["8.2", "8"]),
        // Slurm's number is the first component's (docs/facts/slurm.md#callbacks-of-a-plugin).
        (het("9", &[]), &["9"]),
        (het("9", &[step]), &["9.2", "9"]),
        // The first component itself, and ids inherited from another job.
        (het("8", &[]), &["8"]),
        (het("7", &[]), &["8"]),
        (het("10", &[]), &["8"]),
        (het("9.2", &[]), &["8"]),
        (het("", &[]), &["8"]),
        (ids(&[job, (JOB, "9")]), &["8"]),
    ] {
        assert_eq!(found.iter().map(JobId::as_str).collect::<Vec<_>>(), wanted);
    }
    let job_9 = Some("9");
    with(&[job], false, |caller| {
        let named = Caller {
            job: job_9,
            ..*caller
        };
        assert_eq!(named.ids().unwrap()[0].as_str(), "9");
    });
}

#[test]
fn numbers_of_a_slurm_step_are_the_nodes() {
    let visible = |env: Env<'_>| with(env, false, |caller| caller.visible(&two_gpus(), false));
    let (job, step) = (("SLURM_JOB_ID", "8"), ("SLURM_STEP_GPUS", "3"));
    let own = |list| (VISIBLE_DEVICES, list);
    for (env, gpus) in [
        (&[job, step, own("0")][..], Some("3")),
        (&[job, step, own("GPU-1")], Some("GPU-1")),
        (&[("PBS_JOBID", "8"), own("1")], Some("1")),
        (&[], None),
    ] {
        assert_eq!(visible(env).as_deref(), gpus);
    }
}

/// A job of two GPUs, the node's 1 and 2, whose ranks are bound in turn.
fn two_gpus() -> Record {
    let mut record = testing::record(&[1, 2]);
    record.daemons = vec![Daemon {
        gpus: record.gpus.iter().map(|gpu| gpu.uuid.clone()).collect(),
        pipe: "/p".into(),
        ..Daemon::default()
    }];
    record.bind = "cyclic".parse().ok();
    record.names = Some(DeviceNames::Ordinal);
    record
}

fn per_gpu() -> Record {
    let mut record = two_gpus();
    record.per_gpu = true;
    let daemon = |gpu: &RecordGpu| Daemon {
        gpus: vec![gpu.uuid.clone()],
        pipe: format!("/p-{}", gpu.uuid).into(),
        ..Daemon::default()
    };
    record.daemons = record.gpus.iter().map(daemon).collect();
    record
}

/// The plugin gave the batch script the first GPU, and Slurm the number 0.
#[test]
fn the_ranks_that_a_launcher_starts_in_a_batch_script_spread_over_the_gpus() {
    for (names, own) in [
        (DeviceNames::Uuid, "GPU-00000001"),
        (DeviceNames::Ordinal, "0"),
    ] {
        let mut record = per_gpu();
        record.names = Some(names);
        record.rank_threads = ["20", "40"].map(|p| p.parse().unwrap()).to_vec();
        let pipe = record.daemons[0].pipe.to_str().unwrap().to_owned();
        let script = [
            ("SLURM_JOB_ID", "7"),
            ("SLURM_PROCID", "0"),
            ("SLURM_LOCALID", "0"),
            (JOB, "7"),
            (PIPE_DIRECTORY, pipe.as_str()),
            (VISIBLE_DEVICES, own),
        ];
        let rank = |more: Env<'_>| {
            with(&[&script[..], more].concat(), false, |caller| {
                let changes = task_environment(&record, &caller.task(&record));
                let changes = changes.map_err(|why| why.to_string())?;
                let of = |name: &str| value(&changes, name).unwrap_or_default();
                Ok::<_, String>([PIPE_DIRECTORY, THREADS].map(of).join(" "))
            })
        };
        for (number, told) in [
            ("0", "/p-GPU-00000001 20"),
            ("1", "/p-GPU-00000002 40"),
            ("2", "/p-GPU-00000001 20"),
        ] {
            let launcher = [
                ("OMPI_COMM_WORLD_LOCAL_RANK", number),
                ("OMPI_COMM_WORLD_LOCAL_SIZE", "3"),
            ];
            assert_eq!(rank(&launcher).as_deref(), Ok(told), "{names:?}");
        }
        // The number is the script's.
        let alone = rank(&[]).unwrap_err();
        assert!(alone.contains("no local rank"), "{alone}");
        // What the user chose stays.
        let chosen = [("MPI_LOCALRANKID", "0"), (VISIBLE_DEVICES, "GPU-00000002")];
        let env = [&chosen[..], &script].concat();
        let gpus = with(&env, false, |caller| caller.task(&record).visible);
        assert_eq!(gpus.as_deref(), Some("GPU-00000002"));
    }
}

#[test]
fn a_shell_without_a_rank_has_the_lowest_of_a_list() {
    let mut record = two_gpus();
    let gpu = record.gpus[0].uuid.clone();
    record.rank_threads = ["70", "30"].map(|p| p.parse().unwrap()).to_vec();
    record.rank_memory = vec![vec![(gpu.clone(), 4096)], vec![(gpu, 2048)]];
    let changes = main_shell(&record, &Task::default()).unwrap();
    assert_eq!(value(&changes, THREADS), Some("30"));
    // The second GPU has no limit.
    let memory = value(&changes, MEMORY).unwrap();
    assert!(memory.contains("2048M"), "{memory}");
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
    let all = [PIPE_DIRECTORY, LOG_DIRECTORY, THREADS, MEMORY];
    assert_eq!(removed("6"), all);
    assert_eq!(removed("7"), [""; 0]);
}

fn visible(record: &Record, main: bool, env: Env<'_>) -> String {
    let changes = with(env, main, |caller| caller.attach(record).unwrap());
    value(&changes, VISIBLE_DEVICES).unwrap().to_owned()
}

#[test]
fn ranks_of_a_launcher_are_bound_and_the_shell_before_them_sees_all() {
    let (record, job) = (two_gpus(), ("PBS_JOBID", "7"));
    let rank = |rank| ("OMPI_COMM_WORLD_LOCAL_RANK", rank);
    assert_eq!(visible(&record, false, &[job, rank("0")]), "0");
    assert_eq!(visible(&record, false, &[job, rank("1")]), "1");
    assert_eq!(visible(&record, true, &[job]), "0,1");
    assert_eq!(visible(&per_gpu(), true, &[job]), "", "outside MPS");
    // Its daemon's only GPU.
    let of_shell = [job, rank("1"), (VISIBLE_DEVICES, "")];
    assert_eq!(visible(&per_gpu(), false, &of_shell), "0");
    // The plugin has bound the tasks of srun.
    let slurm = [
        ("SLURM_JOB_ID", "7"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_LOCALID", "1"),
    ];
    let of_srun = [&slurm[..], &[(VISIBLE_DEVICES, "GPU-00000002")]].concat();
    assert_eq!(visible(&record, false, &of_srun), "1");
}

#[test]
fn under_pbs_a_process_can_tell_which_gpus_it_would_see_without_mps() {
    let record = two_gpus();
    let mark = |env: Env<'_>| {
        let changes = with(env, false, |caller| caller.attach(&record).unwrap());
        let mut changes = changes.into_iter().filter(|change| change.name == DEVICES);
        changes.next().map(|change| change.value.unwrap())
    };
    let (job, rank) = (("PBS_JOBID", "7"), ("MPI_LOCALRANKID", "1"));
    let sees = |list| (VISIBLE_DEVICES, list);
    assert_eq!(mark(&[("SLURM_JOB_ID", "7"), rank, sees("1,2")]), None);
    assert_eq!(mark(&[job, rank]).as_deref(), Some("1"));
    assert_eq!(mark(&[job, rank, sees("1,2")]).as_deref(), Some("1:1,2"));
    // Its shell is attached already.
    let shell = [job, rank, (JOB, "7"), (PIPE_DIRECTORY, "/p"), sees("0,1")];
    let again = |own| mark(&[&shell[..], &[(DEVICES, own)]].concat());
    assert_eq!(again("0,1:1,2").as_deref(), Some("1:1,2"));
    assert_eq!(again("0,1").as_deref(), Some("1"));
    // Its user's list.
    assert_eq!(again("0").as_deref(), Some("1:0,1"));
}

#[test]
fn another_jobs_gpus_are_not_taken_for_its_own() {
    let record = two_gpus();
    let env = [("PBS_JOBID", "7"), (JOB, "6"), (VISIBLE_DEVICES, "GPU-9")];
    let seen = |mark| visible(&record, true, &[&env[..], &[(DEVICES, mark)]].concat());
    assert_eq!(seen("GPU-9"), "0,1");
    assert_eq!(seen("GPU-9:2"), "1");
    let refused = with(&env, true, |caller| caller.attach(&record).unwrap_err());
    assert!(refused.to_string().contains("names 'GPU-9'"), "{refused}");
    let stripped = |job: &str| {
        let env = [&env[..], &[(DEVICES, "GPU-9:2")]].concat();
        let id = JobId::parse(job).unwrap();
        with(&env, true, |caller| caller.stripped(&id))
    };
    assert!(stripped("7").contains(&Change::set(VISIBLE_DEVICES, "2")));
    assert_eq!(stripped("6"), []);
}

#[test]
fn numbers_are_the_daemons_once_a_process_is_attached() {
    let attached = |record: &Record, list| {
        let job = [("PBS_JOBID", "7"), (JOB, "7"), (PIPE_DIRECTORY, "/p")];
        let task = [("MPI_LOCALRANKID", "0"), (VISIBLE_DEVICES, list)];
        visible(record, false, &[&job[..], &task].concat())
    };
    let mut record = two_gpus();
    assert_eq!(attached(&record, "1"), "1");
    assert_eq!(attached(&record, "0"), "0");
    // The scheduler's own list, written again by a mom: the daemon has no number 2.
    assert_eq!(attached(&record, "1,2"), "0");
    record.names = Some(DeviceNames::Uuid);
    assert_eq!(attached(&record, "1"), "GPU-00000001");
}

#[test]
fn root_is_attached_to_a_users_mps_only_by_name() {
    let record = two_gpus();
    let root = |job| {
        with(&[("PBS_JOBID", "7")], true, |caller| {
            Caller {
                uid: 0,
                job,
                ..*caller
            }
            .must_be_ready(&record)
        })
    };
    let refused = root(None).unwrap_err();
    assert!(matches!(refused, Failure::Refusal(_)), "{refused}");
    assert_eq!(root(Some("7")), Ok(()));
}

/// The site gave the job MPS. A program that could notice it runs as without, and reads nothing.
#[test]
fn a_program_of_a_job_that_did_not_ask_is_attached_if_it_cannot_notice() {
    let directory = tempfile::tempdir_in("/run").unwrap();
    let config = directory.path().join("mpsd.toml");
    let run = directory.path().display();
    std::fs::write(&config, format!("run_dir = \"{run}\"\n")).unwrap();
    let jobs = directory.path().join("jobs/7");
    let pipe = jobs.join("pipe");
    std::fs::create_dir_all(&pipe).unwrap();
    let _listener = UnixListener::bind(pipe.join("control")).unwrap();
    let mut record = two_gpus();
    record.by_site = Some(BySite {
        tasks: 4,
        if_tasks_meet: true,
    });
    record.clients = Some(48);
    record.daemons[0].pipe = pipe;
    record.warnings = vec!["a warning".to_owned()];
    let found = |record: &Record, env: Env<'_>| {
        std::fs::write(jobs.join("record"), record.to_text().unwrap()).unwrap();
        with(&[&[("PBS_JOBID", "7")], env].concat(), true, |caller| {
            let caller = Caller {
                config: &config,
                ..*caller
            };
            assert_eq!(caller.warnings_of_job(), Vec::<String>::new());
            assert_eq!(caller.warnings_of_rank(), Vec::<String>::new());
            caller.find().unwrap()
        })
    };
    let changes_of = |record: &Record, env: Env<'_>| match found(record, env) {
        Attachment::Attached(changes) => changes,
        Attachment::Unneeded(_) => Vec::new(),
        other => panic!("{other:?}"),
    };
    let attached = |record: &Record, env: Env<'_>| {
        let changes = changes_of(record, env);
        let is_kept = |change: &Change| ![VISIBLE_DEVICES, DEVICES].contains(&change.name);
        assert!(changes.iter().all(is_kept), "{changes:?}");
        value(&changes, JOB).is_some()
    };
    assert!(attached(&record, &[]));
    // 'qsub -V' inside another job's MPS.
    let of_other = [(JOB, "6"), (VISIBLE_DEVICES, "0"), (DEVICES, "0:1,2")];
    let changes = changes_of(&record, &of_other);
    assert_eq!(value(&changes, VISIBLE_DEVICES), Some("1,2"));
    assert!(changes.contains(&Change::unset(DEVICES)), "{changes:?}");
    // A rank has the limits of all GPUs that it sees, and JAX its own choice.
    let gpus = record.gpus.iter();
    record.rank_memory = vec![gpus.map(|gpu| (gpu.uuid.clone(), 100)).collect()];
    let rank = [
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
    ];
    let changes = changes_of(&record, &rank);
    let memory = value(&changes, MEMORY).unwrap();
    assert_eq!(memory.matches("100M").count(), 2, "{memory}");
    let mut one = record.clone();
    one.gpus.truncate(1);
    one.daemons[0].gpus.truncate(1);
    one.rank_memory.clear();
    let changes = changes_of(&one, &rank);
    assert_eq!(value(&changes, JOB), Some("7"));
    let is_other = |change: &Change| change.name != environment::JAX_DEVICES;
    assert!(changes.iter().all(is_other), "{changes:?}");
    record.rank_memory.clear();
    let connections = "CUDA_DEVICE_MAX_CONNECTIONS";
    assert!(attached(&record, &[(connections, "8")]));
    assert!(!attached(&record, &[(connections, "32")]));
    assert!(!attached(&record, &[(PIPE_DIRECTORY, "/tmp/own")]));
    for state in [RecordState::Failed, RecordState::Refused] {
        let mut record = record.clone();
        record.state = state;
        assert!(!attached(&record, &[]), "{state:?}");
    }
    let device = |index: &u32| testing::device(index, "/dev/null");
    for (gpus, is_attached) in [(&[1, 2][..], true), (&[0, 1, 2], false)] {
        record.devices = gpus.iter().map(device).collect();
        assert_eq!(attached(&record, &[]), is_attached, "{gpus:?}");
    }
    record.devices.clear();
    record.daemons[0].pipe = "/run/none".into();
    assert!(!attached(&record, &[]), "its daemon has ended");
}
