use super::*;
use crate::testing::{self, uuid};
use std::collections::BTreeSet;

/// A job on GPUs 1 and 2 of the node.
fn record(per_gpu: bool) -> Record {
    let daemon = |name: &str, gpus: &[u32]| Daemon {
        gpus: gpus.iter().copied().map(uuid).collect(),
        pipe: format!("/run/mpsd/jobs/7/{name}").into(),
        log: "/run/mpsd/jobs/7/log".into(),
        ..Daemon::default()
    };
    Record {
        per_gpu,
        daemons: match per_gpu {
            true => vec![daemon("pipe-0", &[1]), daemon("pipe-1", &[2])],
            false => vec![daemon("pipe", &[1, 2])],
        },
        ..testing::record(&[1, 2])
    }
}

fn bound(bind: &str) -> Record {
    let mut record = record(false);
    record.bind = bind.parse().ok();
    record
}

fn task(local: u32, of: impl Into<Option<u32>>) -> Task {
    let of = of.into();
    let rank = Some(Rank { local, of });
    Task {
        rank,
        ..Task::default()
    }
}

fn sees(list: &str, task: Task) -> Task {
    let visible = Some(list.to_owned());
    Task { visible, ..task }
}

fn may_open(gpus: &[u32], task: Task) -> Task {
    let counted = Some(gpus.iter().copied().map(uuid).collect());
    Task { counted, ..task }
}

fn change(record: &Record, task: &Task, name: &str) -> Option<Change> {
    let changes = task_environment(record, task).unwrap_or_else(|refusal| panic!("{refusal}"));
    changes.into_iter().find(|change| change.name == name)
}

fn value(record: &Record, task: &Task, name: &str) -> Option<String> {
    change(record, task, name)?.value
}

fn left_by_another(mut task: Task) -> Task {
    task.inherited_job = Some("6".to_owned());
    task
}

/// docs/facts/mps-control.md#clients: 15 clients with 8 connections, 3 with 32. The record has two
/// GPUs.
#[test]
fn more_connections_than_the_gpus_have_are_refused_with_numbers() {
    let refused = |tasks, value: &str| {
        let lookup = |name: &str| (name == CONNECTIONS).then(|| value.to_owned());
        let refused = expect_connections(&record(false), tasks, &lookup).err();
        refused.map(|refusal| refusal.to_string())
    };
    for (tasks, value) in [(6, "32"), (30, "8"), (96, "2"), (96, "x"), (6, "64")] {
        assert_eq!(refused(Some(tasks), value), None, "{tasks} {value}");
    }
    let line = refused(Some(7), "32").expect("a refusal");
    let client = "CUDA_DEVICE_MAX_CONNECTIONS=32: a GPU takes 3 MPS clients";
    for words in [client, "7 tasks on 2 GPUs", "allowed: at most 30, or"] {
        assert!(line.contains(words), "{line}");
    }
    assert!(refused(Some(31), "8").is_some() && refused(None, "32").is_none());
}

/// docs/facts/programs.md#nvshmem, docs/facts/mps-control.md#clients
#[test]
fn a_nodes_first_rank_is_warned_of_what_cuda_nccl_and_nvshmem_refuse() {
    let mut quarter = record(false);
    quarter.daemons[0].threads = Some("25".parse().unwrap());
    let open = record(false);
    // Its two GPUs have four ranks each.
    let (nccl, shmem) = ((NCCL_MULTICAST, "1"), (SHMEM[0], "1G"));
    let open_shmem = "the 4 ranks here have 400 %; allowed: --mps-threads=25";
    for (tasks, rank, record, set, warned) in [
        (8, Some(0), &open, nccl, "NCCL_NVLS_ENABLE=1: "),
        (8, Some(0), &open, (NCCL_MULTICAST, "0"), ""),
        (2, Some(0), &open, nccl, ""),
        (8, Some(1), &open, nccl, ""),
        (8, Some(0), &open, shmem, open_shmem),
        (8, Some(0), &quarter, shmem, ""),
        (10, Some(0), &quarter, shmem, "have 125 %"),
        (2, Some(0), &open, shmem, ""),
        (8, Some(0), &open, ("NVSHMEM", "1"), ""),
        (1, Some(0), &open, (CONNECTIONS, "8"), "=8: a GPU takes 15 "),
        (1, None, &open, (CONNECTIONS, " 3 "), "=3: "),
        (1, Some(1), &open, (CONNECTIONS, "8"), ""),
        (1, Some(0), &open, (CONNECTIONS, "2"), ""),
        (1, Some(0), &open, (CONNECTIONS, "x"), ""),
    ] {
        let lookup = |name: &str| (name == set.0).then(|| set.1.to_owned());
        let lines = warnings(record, Some(tasks), rank, &lookup).join("\n");
        assert_eq!(lines.is_empty(), warned.is_empty(), "{set:?} {tasks}");
        assert_eq!(lines.starts_with("warning: "), !warned.is_empty());
        assert!(lines.contains(warned) && !lines.contains('\n'), "{lines}");
    }
}

/// docs/facts/programs.md#jax
#[test]
fn only_a_rank_that_jax_would_leave_without_a_gpu_gets_its_device() {
    let has = |devices: &str, mut task: Task| {
        task.jax_devices = Some(devices.to_owned());
        task
    };
    let of_first = || Some(Change::set(JAX_DEVICES, "0"));
    let unset = Some(Change::unset(JAX_DEVICES));
    for (task, expected) in [
        (sees("1", task(1, 4)), of_first()),
        (sees("2", task(3, None)), of_first()),
        (sees("1", task(0, 4)), None),
        (sees("1,2", task(1, 4)), None),
        (sees("1", Task::default()), None),
        (has("0", sees("1", task(1, 4))), None),
        // Another job's launcher left it to a task that needs none. Any other value is its user's.
        (left_by_another(has("0", task(1, 4))), unset),
        (left_by_another(has("0,1", task(1, 4))), None),
    ] {
        let found = change(&record(false), &task, JAX_DEVICES);
        assert_eq!(found, expected, "{task:?}");
    }
}

#[test]
fn devices_become_uuids_under_either_numbering_and_choose_the_daemon() {
    let plain = |list| sees(list, Task::default());
    for (per_gpu, task, pipe) in [
        (false, plain("2"), "pipe"),
        (false, may_open(&[1, 2], plain("1")), "pipe"),
        // As Slurm's env_uuid writes it, also where the task may open its own GPU alone.
        (false, plain("GPU-00000002"), "pipe"),
        (false, may_open(&[2], plain("GPU-00000002")), "pipe"),
        (true, sees("GPU-00000002", task(0, 4)), "pipe-1"),
        // The task's own device, then its rank.
        (true, sees("2", task(0, 4)), "pipe-1"),
        (true, task(3, 4), "pipe-1"),
    ] {
        let of = |name| value(&record(per_gpu), &task, name).unwrap();
        assert_eq!(of(VISIBLE_DEVICES), "GPU-00000002");
        assert!(of(PIPE_DIRECTORY).ends_with(pipe), "{task:?}");
    }
    let mut limited = record(false);
    limited.rank_memory = vec![vec![(uuid(1), 1024), (uuid(2), 1024)]];
    // Only a GPU that it sees.
    let limit = value(&limited, &sees("1", task(0, 4)), MEMORY);
    assert_eq!(limit.as_deref(), Some("GPU-00000001=1024M"));
}

#[test]
fn another_jobs_variables_are_removed_and_the_users_own_stay() {
    for name in [THREADS, MEMORY] {
        let of_this = Task {
            inherited_job: Some("7".to_owned()),
            ..Task::default()
        };
        for (task, expected) in [
            (left_by_another(Task::default()), Some(Change::unset(name))),
            (of_this, None),
            (Task::default(), None),
        ] {
            assert_eq!(change(&record(false), &task, name), expected);
        }
    }
}

/// A task without its GPU does not run.
#[test]
fn what_cannot_be_carried_out_is_refused() {
    let plain = Task::default();
    let closed = may_open(&[], sees("0", plain.clone()));
    let own = "'0', and this process can open 0 GPUs";
    for (record, task, why) in [
        (&record(false), sees("3", plain.clone()), "'3'"),
        (&record(false), closed, own),
        (&record(true), plain.clone(), "OMPI_COMM_WORLD_LOCAL_RANK"),
        (&bound("cyclic"), plain, "OMPI_COMM_WORLD_LOCAL_RANK"),
        (&bound("block"), task(1, None), "cyclic"),
        (&bound("closest"), task(1, None), "NVML does not tell"),
    ] {
        let refusal = task_environment(record, &task).unwrap_err().to_string();
        assert!(refusal.contains(why), "{refusal}");
    }
}

#[test]
fn the_number_of_a_batch_script_is_no_rank() {
    let local = |step: Option<&'static str>| {
        let env = |name: &str| match name {
            "SLURM_LOCALID" => Some("0".to_owned()),
            "SLURM_STEP_ID" => step.map(str::to_owned),
            _ => None,
        };
        rank(&env).map(|(rank, _)| rank.local)
    };
    assert_eq!(local(Some("3")), Some(0));
    // 22.05, 26.05, and as an unsigned number; an interactive shell.
    for step in [None, Some("-5"), Some("4294967291"), Some("-6")] {
        assert_eq!(local(step), None, "{step:?}");
    }
}

#[test]
fn every_program_looks_for_the_same_ranks_in_the_same_order() {
    let several = |name: &str| match name {
        "PALS_LOCAL_RANKID" => Some(" 3\n".to_owned()),
        "SLURM_LOCALID" | "SLURM_STEP_ID" => Some("0".to_owned()),
        "MPI_LOCALRANKID" => Some("none".to_owned()),
        _ => None,
    };
    assert_eq!(rank(&several).unwrap().0.local, 3);
    let hook = include_str!("../../../etc/pbs/hooks/mpsd.py");
    let ranks = LAUNCHERS.map(|(rank, _)| rank);
    let sizes = LAUNCHERS.map(|(_, size)| size);
    for (name, list) in [("RANKS", &ranks[..]), ("SIZES", &sizes[..3])] {
        let listed = format!("{name} = (\"{}\")", list.join("\", \""));
        assert!(hook.contains(&listed), "the hook has not {listed}");
    }
    // Else the hook hides a user's choice.
    assert!(hook.contains(&format!("\"{JAX_DEVICES}\"")));
    let page = include_str!("../../../packaging/man/mpsctl.1");
    let (last, others) = ranks.split_last().unwrap();
    let listed = format!("{} or {last}", others.join(", "));
    assert!(page.contains(&listed), "mpsctl(1) has not {listed}");
}

#[test]
fn the_hooks_name_each_variable_that_clients_have() {
    let source = include_str!("environment.rs").lines();
    let names = source.filter_map(|line| {
        let (_, value) = line.strip_prefix("pub const ")?.split_once(": &str = \"")?;
        value.strip_suffix("\";")
    });
    let mut ours = BTreeSet::from_iter(names);
    // The user's and Slurm's own.
    assert!(ours.remove(CONNECTIONS) && ours.remove(OF_SLURM));
    let between = |text: &'static str, begin: &str, end: &str| {
        let (_, rest) = text.split_once(begin).unwrap();
        rest.split_once(end).unwrap().0
    };
    let hook = include_str!("../../../etc/pbs/hooks/mpsd.py");
    let passed = between(hook, "\nPASSED = RANKS + SIZES + (", ")");
    let passed = passed.split('"').skip(1).step_by(2);
    assert_eq!(BTreeSet::from_iter(passed), ours);
    let hook = include_str!("../../../etc/enroot/hooks.d/50-mpsd.sh");
    let passed = between(hook, "\nfor name in ", "; do").split_whitespace();
    let passed = passed.filter(|word| *word != "\\");
    // It has a meaning for a later job alone.
    assert!(ours.remove(DEVICES));
    assert_eq!(BTreeSet::from_iter(passed), ours);
}

#[test]
fn a_job_without_mps_loses_only_what_another_jobs_mps_left() {
    let env = |name: &str| match name {
        JOB => Some("6".to_owned()),
        // From a node with another run_dir.
        PIPE_DIRECTORY => Some("/run/elsewhere/jobs/6/pipe".to_owned()),
        LOG_DIRECTORY => Some("/home/u/jobs/66/log".to_owned()),
        JAX_DEVICES => Some("0".to_owned()),
        _ => None,
    };
    let removed = [JOB, PIPE_DIRECTORY, JAX_DEVICES].map(Change::unset);
    assert_eq!(strip_inherited(Some("8"), &env), removed);
    let own = |name: &str| env(name).map(|value| value.replace('0', "0,1"));
    assert_eq!(strip_inherited(Some("8"), &own), removed[..2]);
    assert!(strip_inherited(Some("6"), &env).is_empty());
    assert!(strip_inherited(None, &|_| None).is_empty());
}

#[test]
fn a_list_of_gpus_is_taken_back_only_if_it_is_that_of_another_jobs_mps() {
    let taken = |mark: Option<&str>, own: Option<&str>, scheduled: Option<&str>| {
        let lookup = |name: &str| match name {
            DEVICES => mark.map(str::to_owned),
            VISIBLE_DEVICES => own.map(str::to_owned),
            _ => None,
        };
        strip_devices(&lookup, &|| scheduled.map(str::to_owned))
    };
    let (mark, list) = (Change::unset(DEVICES), Change::unset(VISIBLE_DEVICES));
    let back = |before| [mark.clone(), Change::set(VISIBLE_DEVICES, before)];
    let both = [mark.clone(), list.clone()];
    assert_eq!(taken(Some("0,1"), Some("0,1"), None), both);
    assert_eq!(taken(Some("0,1:"), Some("0,1"), None), back(""));
    assert_eq!(taken(Some("0:2,3"), Some("0"), Some("1")), back("2,3"));
    // A shell before its ranks sees no GPU.
    assert_eq!(taken(Some(":2:3"), Some(""), None), back("2:3"));
    assert_eq!(taken(Some(""), Some(""), None), [mark.clone(), list]);
    let alone = [mark.clone()];
    for own in [Some("1"), Some(""), None] {
        assert_eq!(taken(Some("0:2"), own, None), alone, "{own:?}");
    }
    assert_eq!(taken(Some("0:2"), Some("0"), Some("0")), alone);
    assert_eq!(taken(None, Some("0"), None), []);
}

#[test]
fn a_task_under_mps_can_tell_which_gpus_it_saw_before() {
    let record = record(false);
    let mark = |without_mps| {
        let mut task = task(0, 1);
        task.without_mps = without_mps;
        value(&record, &task, DEVICES)
    };
    let ours = value(&record, &task(0, 1), VISIBLE_DEVICES);
    assert_eq!(mark(None), None);
    assert_eq!(mark(Some(None)), ours);
    let both = format!("{}:0,1", ours.unwrap());
    assert_eq!(mark(Some(Some("0,1".to_owned()))), Some(both));
}

/// `CUDA_VISIBLE_DEVICES` of each rank of a node with `tasks`, each GPU as its last digit.
fn seen(record: &Record, tasks: u32, change: impl Fn(Task) -> Task) -> String {
    let of_rank = |local| value(record, &change(task(local, tasks)), VISIBLE_DEVICES).unwrap();
    let seen: Vec<String> = (0..tasks).map(of_rank).collect();
    seen.join(" ").replace("GPU-0000000", "")
}

#[test]
fn a_bound_rank_sees_its_own_gpu_alone() {
    let plain = |task| task;
    for (bind, tasks, expected) in [
        ("block", 4, "1 1 2 2"),
        ("cyclic", 4, "1 2 1 2"),
        ("block", 3, "1 1 2"),
        ("none", 4, "1,2 1,2 1,2 1,2"),
        // Each task can have a GPU: no task is bound without a request.
        ("auto", 2, "1,2 1,2"),
        // By the first place, by rank modulo two, by blocks of two: two tasks on each GPU.
        ("auto", 4, "1,2 2,1 2,1 1,2"),
        // The only process of a node: a launcher's daemon.
        ("block", 1, "1,2"),
        ("cyclic", 1, "1,2"),
        ("closest", 1, "1,2"),
    ] {
        assert_eq!(seen(&bound(bind), tasks, plain), expected, "{bind}");
    }
    // A rank that is attached a second time keeps what it has.
    let again = |task| sees("GPU-00000002,GPU-00000001", task);
    assert_eq!(seen(&bound("block"), 3, again), "1 1 2");
    assert_eq!(seen(&record(false), 4, plain), "1,2 1,2 1,2 1,2");
    let of_unknown = |known: Task| task(known.rank.unwrap().local, None);
    assert_eq!(seen(&bound("auto"), 4, of_unknown), "1,2 1,2 1,2 1,2");
}

#[test]
fn a_task_that_slurm_has_bound_keeps_its_gpus() {
    let by_slurm = |task| Task {
        bound: true,
        ..task
    };
    for bind in ["auto", "block", "closest"] {
        assert_eq!(seen(&bound(bind), 4, by_slurm), "1,2 1,2 1,2 1,2", "{bind}");
    }
    for (bind, word, is_bound) in [
        ("block", "gpu:single:1", true),
        ("auto", "gpu:none", true),
        ("block", "gpu:none", false),
        ("block", "", false),
    ] {
        let told = |name: &str| (name == OF_SRUN && !word.is_empty()).then(|| word.to_owned());
        let found = is_bound_by_slurm(&bound(bind), &told);
        assert_eq!(found, is_bound, "{bind} {word}");
    }
}

#[test]
fn numbers_are_the_daemons_and_only_where_they_mean_the_same_without_it() {
    use DeviceNames::{Auto, Ordinal, Uuid};
    let case = |names, per_gpu, same_numbers, open: &[u32]| {
        let record = Record {
            names: Some(names),
            bind: "cyclic".parse().ok(),
            same_numbers,
            ..record(per_gpu)
        };
        match open.is_empty() {
            true => seen(&record, 2, |task| task),
            false => seen(&record, 2, |task| may_open(open, task)),
        }
    };
    assert_eq!(case(Ordinal, false, false, &[]), "0 1");
    assert_eq!(case(Uuid, false, false, &[]), "1 2");
    // Number 0 of the node is not the job's.
    assert_eq!(case(Auto, false, false, &[]), "1 2");
    assert_eq!(case(Auto, false, true, &[]), "0 1");
    assert_eq!(case(Auto, false, false, &[1, 2]), "0 1");
    assert_eq!(case(Auto, false, false, &[0, 1, 2]), "1 2");
    // It may open only one of the job's GPUs: how CUDA then counts behind the daemon is not known.
    assert_eq!(case(Auto, false, true, &[2]), "2 2");
    // With a daemon for each GPU, a program that misses its daemon finds another GPU of the job as
    // number 0.
    assert_eq!(case(Auto, true, false, &[1, 2]), "1 2");
    assert_eq!(case(Ordinal, true, false, &[1, 2]), "0 0");
}
