//! task_init.

use super::fake::{FakeNode, FakeSlurm, key, record};
use crate::handle::{Item, Level, Slurm as _, Verdict};
use crate::plugin;
use crate::state::State;
use mpsd_core::GpuUuid;
use mpsd_core::bind::{Bind, BindMode};
use mpsd_core::observations::{LimitSet, Observations};
use mpsd_core::partitions::Partition;
use mpsd_core::record::{Daemon, Record, RecordDevice, RecordState};
use std::path::PathBuf;

const BATCH: u32 = 0xffff_fffb;
const INTERACTIVE: u32 = 0xffff_fffa;

type Flags = &'static [(&'static str, Option<&'static str>)];

/// init_post_opt as slurmstepd, then task_init as its child.
fn task(slurm: &mut FakeSlurm, node: &FakeNode, line: &str, flags: Flags) -> Verdict {
    let line: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let mut state = State::default();
    plugin::init(slurm, node, &mut state, &line);
    for (name, value) in flags {
        plugin::option(&mut state, key(name), *value, true);
    }
    plugin::init_post_opt(slurm, node, &mut state, &line);
    plugin::task_init(slurm, node, &mut state, &line)
}

const ON: Flags = &[("mps", None)];
const OFF: Flags = &[("mps", Some("off"))];

fn refused(slurm: &mut FakeSlurm, node: &FakeNode, line: &str, flags: Flags) -> String {
    // The first task speaks for all of the node.
    let rank = slurm.items.iter_mut().find(|(item, _)| *item == Item::TaskId);
    rank.expect("a task has a rank").1 = 0;
    let before = slurm.job_env.clone();
    assert_eq!(task(slurm, node, line, flags), Verdict::Leave);
    assert_eq!(slurm.job_env, before);
    let errors = slurm.errors();
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors[0].clone()
}

#[test]
fn what_goes_for_all_tasks_of_a_node_is_said_by_one() {
    let node = FakeNode::new().with_record(record("4711", RecordState::Refused));
    let mut slurm = FakeSlurm::step(0);
    assert_eq!(task(&mut slurm, &node, "", ON), Verdict::Leave);
    assert!(slurm.is_silent());
}

#[test]
fn a_task_that_cannot_read_the_record_says_so_whatever_its_rank() {
    let mut node = FakeNode::new();
    node.unreadable = Some("record: Too many open files (os error 24)".into());
    let mut slurm = FakeSlurm::step(0);
    assert_eq!(slurm.item(Item::TaskId), Some(1));
    assert_eq!(task(&mut slurm, &node, "", ON), Verdict::Leave);
    assert!(slurm.errors()[0].contains("Too many open files"));
}

#[test]
fn a_ready_record_attaches_the_task_whatever_the_flags_say() {
    for flags in [ON, &[]] {
        let node = FakeNode::new().with_record(record("4711", RecordState::Ready));
        let mut slurm = FakeSlurm::step(0);
        assert_eq!(task(&mut slurm, &node, "", flags), Verdict::Continue);
        assert_eq!(
            slurm.job_env["CUDA_MPS_PIPE_DIRECTORY"],
            "/run/mpsd/jobs/4711/pipe"
        );
        // By the node's number 2, not by the 0 that a constrained step counts from.
        assert_eq!(slurm.job_env["CUDA_VISIBLE_DEVICES"], "GPU-00000002");
        assert_eq!(slurm.job_env["MPSD_JOB"], "4711");
        assert!(slurm.is_silent());
    }
}

#[test]
fn the_first_task_is_warned_of_connections_and_runs() {
    for (rank, warned) in [(0, true), (1, false)] {
        let node = FakeNode::new().with_record(record("4711", RecordState::Ready));
        let mut slurm = FakeSlurm::step(0).with_job_env("CUDA_DEVICE_MAX_CONNECTIONS", "8");
        slurm.items.retain(|(item, _)| *item != Item::TaskId);
        slurm.items.push((Item::TaskId, rank));
        assert_eq!(task(&mut slurm, &node, "", ON), Verdict::Continue);
        let errors = slurm.errors();
        assert_eq!(!errors.is_empty(), warned, "{errors:?}");
        assert!(errors.iter().all(|line| line.starts_with("warning: ")));
        assert_eq!(
            slurm.job_env["CUDA_DEVICE_MAX_CONNECTIONS"], "8",
            "the user's own"
        );
    }
}

/// A job whose ranks have these partitions, and the file that its steps lock, which goes in the end.
fn partitioned(test: &str, ids: &[&str]) -> (FakeNode, Locked) {
    let mut partitioned = record("4711", RecordState::Ready);
    partitioned.request = "MPS=on,MPS_SMS=16:32".parse().ok();
    partitioned.daemons[0].threads = None;
    partitioned.daemons[0].partitions = (0..)
        .zip(ids)
        .map(|(rank, id)| Partition {
            rank,
            gpu: GpuUuid::parse("GPU-00000002").unwrap(),
            sms: 16,
            chunks: 2,
            id: (*id).to_owned(),
        })
        .collect();
    let mut node = FakeNode::new().with_record(partitioned);
    node.ranks = std::env::temp_dir().join(format!("mpsd-spank-ranks-{test}-{}", std::process::id()));
    std::fs::write(&node.ranks, "").unwrap();
    let file = Locked(node.ranks.clone());
    (node, file)
}

struct Locked(PathBuf);

impl Drop for Locked {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A step's slurmstepd, before its tasks.
fn slurmstepd(slurm: &mut FakeSlurm, node: &FakeNode) -> State {
    let mut state = State::default();
    plugin::init(slurm, node, &mut state, &[]);
    plugin::init_post_opt(slurm, node, &mut state, &[]);
    state
}

fn rank_of_step(step: u32, rank: u32, tasks: u32) -> FakeSlurm {
    let mut slurm = FakeSlurm::step(step).with_job_env("CUDA_VISIBLE_DEVICES", "2,3");
    slurm.job_env.insert("SLURM_STEP_GPUS".into(), "2,3".into());
    slurm
        .items
        .retain(|(item, _)| !matches!(item, Item::TaskId | Item::LocalTasks));
    slurm
        .items
        .extend([(Item::TaskId, rank), (Item::LocalTasks, tasks)]);
    slurm
}

#[test]
fn a_step_is_held_to_what_mpsctl_set_gave_since() {
    let set = LimitSet {
        limit: LimitSet::THREADS.to_owned(),
        from: None,
        to: "75".to_owned(),
        at: 1,
    };
    for (limits_set, goes_on) in [(vec![], false), (vec![set], true)] {
        let mut before = record("4711", RecordState::Ready);
        before.request = "MPS=on,MPS_THREADS=25".parse().ok();
        before.daemons[0].threads = "25".parse().ok();
        let mut node = FakeNode::new().with_record(before);
        node.observations = Some(Observations {
            limits_set,
            ..Observations::default()
        });
        let mut slurm = rank_of_step(0, 0, 2);
        let mut state = slurmstepd(&mut slurm, &node);
        state.request = "MPS=on,MPS_THREADS=50".parse().map(Some);
        let verdict = plugin::task_init(&mut slurm, &node, &mut state, &[]);
        assert_eq!(verdict == Verdict::Continue, goes_on, "{:?}", slurm.errors());
    }
}

/// Nobody shares what is promised to each rank alone: of two steps at once the later one does not run.
#[test]
fn one_step_at_a_time_has_the_partitions() {
    let (node, _file) = partitioned("steps", &["A", "B"]);
    let begins = |slurm: &mut FakeSlurm, state: &mut State| plugin::task_init(slurm, &node, state, &[]);
    let mut first = slurmstepd(&mut rank_of_step(0, 0, 2), &node);
    let mut second = slurmstepd(&mut rank_of_step(1, 0, 2), &node);
    for rank in 0..2 {
        assert_eq!(
            begins(&mut rank_of_step(0, rank, 2), &mut first),
            Verdict::Continue
        );
    }
    // Each rank of the other one says it: whether the partitions are free may change between them.
    for rank in 0..2 {
        let mut slurm = rank_of_step(1, rank, 2);
        assert_eq!(begins(&mut slurm, &mut second), Verdict::Leave);
        let said = slurm.errors();
        assert!(
            said[0].contains("another step of the job has them on this node; allowed: one step"),
            "{said:?}"
        );
        plugin::task_exit(&mut slurm, &node, &mut second, &[]);
    }
    // What starts MPI's ranks has no partition anyway, and takes none from others.
    let mut starter = slurmstepd(&mut rank_of_step(2, 0, 1), &node);
    let mut slurm = rank_of_step(2, 0, 1);
    assert_eq!(begins(&mut slurm, &mut starter), Verdict::Continue);
    assert!(slurm.is_silent() && !slurm.job_env.contains_key("CUDA_MPS_SM_PARTITION"));
    // The end of one of two ranks gives nothing back, that of the last one all, while slurmstepd still runs.
    let mut third = slurmstepd(&mut rank_of_step(3, 0, 2), &node);
    for (ended, verdict) in [(0, Verdict::Leave), (1, Verdict::Continue)] {
        plugin::task_exit(&mut rank_of_step(0, ended, 2), &node, &mut first, &[]);
        assert_eq!(begins(&mut rank_of_step(3, 0, 2), &mut third), verdict);
    }
    drop(third);
    // And so does the end of slurmstepd, whatever ended it.
    let mut fourth = slurmstepd(&mut rank_of_step(4, 0, 2), &node);
    assert_eq!(begins(&mut rank_of_step(4, 0, 2), &mut fourth), Verdict::Continue);
}

/// Somebody who looks at what the only rank does gets no context, is told so, and disturbs nothing.
#[test]
fn a_single_task_beside_the_only_rank_runs_without_its_partition() {
    let (node, _file) = partitioned("alone", &["A"]);
    let mut first = slurmstepd(&mut rank_of_step(0, 0, 1), &node);
    let mut slurm = rank_of_step(0, 0, 1);
    assert_eq!(
        plugin::task_init(&mut slurm, &node, &mut first, &[]),
        Verdict::Continue
    );
    assert_eq!(slurm.job_env["CUDA_MPS_SM_PARTITION"], "GPU-00000002/A");
    let mut second = slurmstepd(&mut rank_of_step(1, 0, 1), &node);
    let mut slurm = rank_of_step(1, 0, 1).with_job_env("CUDA_MPS_SM_PARTITION", "inherited");
    assert_eq!(
        plugin::task_init(&mut slurm, &node, &mut second, &[]),
        Verdict::Continue
    );
    assert!(!slurm.job_env.contains_key("CUDA_MPS_SM_PARTITION"));
    let said = slurm.lines.borrow();
    assert!(
        matches!(&said[..], [(Level::Told, line)] if line.contains("another step has the static partition")),
        "{said:?}"
    );
}

#[test]
fn without_the_lock_of_the_partitions_no_rank_runs() {
    let (mut node, _file) = partitioned("unopened", &["A", "B"]);
    node.ranks = "/nonexistent/ranks".into();
    let mut state = slurmstepd(&mut rank_of_step(0, 0, 2), &node);
    let mut slurm = rank_of_step(0, 0, 2);
    assert_eq!(
        plugin::task_init(&mut slurm, &node, &mut state, &[]),
        Verdict::Leave
    );
    assert!(slurm.errors()[0].contains("No such file"), "{:?}", slurm.errors());
}

#[test]
fn a_script_hands_no_ranks_partition_on_and_a_rank_has_its_own() {
    let (node, _file) = partitioned("script", &["A", "B"]);
    for (step, rank, own) in [
        (BATCH, 0, None),
        (INTERACTIVE, 0, None),
        (0, 0, Some("GPU-00000002/A")),
        (0, 1, Some("GPU-00000002/B")),
    ] {
        let mut slurm = FakeSlurm::step(step)
            .with_job_env("SLURM_JOB_GPUS", "2,3")
            .with_job_env("CUDA_MPS_SM_PARTITION", "inherited");
        slurm.items.retain(|(item, _)| *item != Item::TaskId);
        slurm.items.push((Item::TaskId, rank));
        assert_eq!(task(&mut slurm, &node, "", ON), Verdict::Continue);
        let found = slurm.job_env.get("CUDA_MPS_SM_PARTITION").map(String::as_str);
        assert_eq!(found, own, "{step:x} {rank}");
    }
}

/// The task's own view decides: of the node's GPUs the first is closed to it, so that its number 0 is the second one.
#[test]
fn a_number_is_a_place_among_what_the_task_may_open() {
    let device = |n: u32, file: &str| RecordDevice {
        uuid: GpuUuid::parse(&format!("GPU-0000000{n}")).unwrap(),
        file: file.into(),
    };
    let node = |files: [&str; 3]| {
        let mut record = record("4711", RecordState::Ready);
        record.devices = (1..).zip(files).map(|(n, file)| device(n, file)).collect();
        FakeNode::new().with_record(record)
    };
    let closed = "/nonexistent/nvidia0";
    let mut slurm = FakeSlurm::step(0).with_job_env("SLURM_STEP_GPUS", "0");
    assert_eq!(
        task(&mut slurm, &node([closed, "/dev/null", "/dev/zero"]), "", ON),
        Verdict::Continue
    );
    assert_eq!(slurm.job_env["CUDA_VISIBLE_DEVICES"], "GPU-00000002");
    let mut slurm = FakeSlurm::step(BATCH).with_job_env("CUDA_VISIBLE_DEVICES", "2,1");
    assert_eq!(
        task(&mut slurm, &node(["/dev/null", "/dev/null", "/dev/zero"]), "", ON),
        Verdict::Continue
    );
    assert_eq!(slurm.job_env["CUDA_VISIBLE_DEVICES"], "GPU-00000003,GPU-00000002");
    // Slurm says that it confines tasks, and this one can open a GPU that is not its job's: CUDA would take that one.
    let told = refused(
        &mut FakeSlurm::step(0),
        &node(["/dev/null", "/dev/null", "/dev/zero"]),
        "",
        ON,
    );
    assert!(told.contains("'0', which is GPU-00000001 here"), "{told}");
    // Without a number it has those of the job's that it may open.
    let mut slurm = FakeSlurm::step(BATCH).with_job_env("CUDA_VISIBLE_DEVICES", "");
    assert_eq!(
        task(&mut slurm, &node(["/dev/null", closed, "/dev/zero"]), "", ON),
        Verdict::Continue
    );
    assert_eq!(slurm.job_env["CUDA_VISIBLE_DEVICES"], "GPU-00000003");
}

#[test]
fn the_batch_script_has_the_jobs_gpus() {
    let node = FakeNode::new().with_record(record("4711", RecordState::Ready));
    let mut slurm = FakeSlurm::step(BATCH)
        .with_job_env("SLURM_JOB_GPUS", "2,3")
        .with_job_env("SLURM_STEP_GPUS", "7");
    assert_eq!(task(&mut slurm, &node, "", ON), Verdict::Continue);
    assert_eq!(slurm.job_env["CUDA_VISIBLE_DEVICES"], "GPU-00000002,GPU-00000003");
}

#[test]
fn a_step_without_gpus_has_none_of_the_jobs() {
    let node = || FakeNode::new().with_record(record("4711", RecordState::Ready));
    let without = || {
        let mut slurm = FakeSlurm::step(0)
            .with_job_env("MPSD_JOB", "4711")
            .with_job_env("CUDA_MPS_PIPE_DIRECTORY", "/run/mpsd/jobs/4711/pipe");
        slurm.job_env.remove("SLURM_STEP_GPUS");
        slurm.job_env.remove("CUDA_VISIBLE_DEVICES");
        slurm
    };
    let mut slurm = without();
    assert_eq!(task(&mut slurm, &node(), "", ON), Verdict::Continue);
    // Seen by the plugin, and nothing else.
    let names: Vec<&String> = slurm.job_env.keys().collect();
    assert_eq!(names, ["MPSD_TASK"]);
    // A job whose GPUs Slurm does not know: each step has them all.
    let unnamed = Record {
        named: false,
        ..record("4711", RecordState::Ready)
    };
    let mut slurm = without();
    task(&mut slurm, &FakeNode::new().with_record(unnamed), "", ON);
    assert_eq!(slurm.job_env["CUDA_VISIBLE_DEVICES"], "GPU-00000002,GPU-00000003");
}

#[test]
fn a_step_with_unbound_gpus_has_all_of_its_jobs() {
    let mut slurm = FakeSlurm::step(0).with_job_env("SLURMD_TRES_BIND", "gpu:none");
    slurm.job_env.remove("SLURM_STEP_GPUS");
    slurm.job_env.remove("CUDA_VISIBLE_DEVICES");
    let node = FakeNode::new().with_record(record("4711", RecordState::Ready));
    assert_eq!(task(&mut slurm, &node, "", ON), Verdict::Continue);
    assert_eq!(slurm.job_env["CUDA_VISIBLE_DEVICES"], "GPU-00000002,GPU-00000003");
}

/// `--gpus-per-task=TYPE:N`: Slurm names none of them, and counts them.
#[test]
fn a_step_whose_gpus_slurm_only_counts_is_no_step_without_gpus() {
    let visible = |counted: bool| {
        let mut slurm = FakeSlurm::step(0).with_job_env("SLURMD_TRES_BIND", "gpu:per_task:a:1");
        slurm.job_env.remove("SLURM_STEP_GPUS");
        slurm.job_env.remove("CUDA_VISIBLE_DEVICES");
        if counted {
            slurm.job_env.insert("SLURM_GPUS_ON_NODE".into(), "2".into());
        }
        let node = FakeNode::new().with_record(record("4711", RecordState::Ready));
        assert_eq!(task(&mut slurm, &node, "", ON), Verdict::Continue);
        slurm.job_env.get("CUDA_VISIBLE_DEVICES").cloned()
    };
    assert_eq!(visible(true).as_deref(), Some("GPU-00000002,GPU-00000003"));
    // The word alone may come from a step around this one, which has none.
    assert_eq!(visible(false), None);
}

/// Slurm's numbers of MIG devices are places in its own list.
#[test]
fn a_task_on_a_mig_device_goes_by_its_name() {
    let uuid = |text: &str| GpuUuid::parse(text).unwrap();
    let mut own = record("4711", RecordState::Ready);
    for (n, gpu) in own.gpus.iter_mut().enumerate() {
        (gpu.index, gpu.uuid) = (0, uuid(&format!("MIG-0000000{n}")));
    }
    let daemon = own.daemons[0].clone();
    own.per_gpu = true;
    own.daemons = [0, 1]
        .map(|n| Daemon {
            gpus: vec![own.gpus[n].uuid.clone()],
            pipe: format!("/run/mpsd/jobs/4711/pipe-{n}").into(),
            ..daemon.clone()
        })
        .to_vec();
    for (visible, rank, expected) in [
        ("MIG-00000000,MIG-00000001", 0, "0"),
        ("MIG-00000000,MIG-00000001", 1, "1"),
        ("MIG-00000000,MIG-00000001", 2, "0"),
        ("MIG-00000001", 0, "1"),
    ] {
        let mut slurm = FakeSlurm::step(0).with_job_env("SLURM_STEP_GPUS", "4,5");
        slurm
            .job_env
            .insert("CUDA_VISIBLE_DEVICES".into(), visible.into());
        slurm.items.retain(|(item, _)| *item != Item::TaskId);
        slurm.items.push((Item::TaskId, rank));
        let node = FakeNode::new().with_record(own.clone());
        assert_eq!(task(&mut slurm, &node, "", ON), Verdict::Continue);
        let pipe = format!("/run/mpsd/jobs/4711/pipe-{expected}");
        assert_eq!(slurm.job_env["CUDA_MPS_PIPE_DIRECTORY"], pipe, "{visible}");
        assert_eq!(
            slurm.job_env["CUDA_VISIBLE_DEVICES"],
            format!("MIG-0000000{expected}")
        );
    }
}

#[test]
fn the_tasks_of_a_step_are_bound_as_it_asks_and_slurms_own_binding_wins() {
    let visible = |flags: Flags, bind: Option<&str>, kind: u32, rank: u32| {
        let mut slurm = FakeSlurm::step(kind).with_job_env("SLURM_STEP_GPUS", "2,3");
        slurm.job_env.insert("SLURM_JOB_GPUS".into(), "2,3".into());
        slurm.items.retain(|(item, _)| *item != Item::TaskId);
        slurm.items.push((Item::TaskId, rank));
        if let Some(bind) = bind {
            slurm.job_env.insert("SLURMD_TRES_BIND".into(), bind.into());
        }
        let mut record = record("4711", RecordState::Ready);
        record.bind = Some(Bind::of(BindMode::Auto));
        let node = FakeNode::new().with_record(record);
        assert_eq!(task(&mut slurm, &node, "", flags), Verdict::Continue);
        slurm.job_env["CUDA_VISIBLE_DEVICES"].replace("GPU-0000000", "")
    };
    const CYCLIC: Flags = &[("mps", None), ("mps-bind", Some("cyclic"))];
    // Four tasks on two GPUs.
    assert_eq!(visible(ON, None, 0, 1), "3,2");
    assert_eq!(visible(ON, None, 0, 2), "3,2");
    assert_eq!(visible(CYCLIC, None, 0, 1), "3");
    assert_eq!(visible(CYCLIC, Some("gpu:none"), 0, 1), "3");
    for bound in ["gpu:single:2", "gpu:per_task:2", "gpu:verbose,map:0,1"] {
        assert_eq!(visible(ON, Some(bound), 0, 2), "2,3", "{bound}");
        assert_eq!(visible(CYCLIC, Some(bound), 0, 1), "2,3", "{bound}");
    }
    assert_eq!(visible(ON, Some("gpu:none"), 0, 2), "2,3");
    // A script is no rank.
    assert_eq!(visible(CYCLIC, None, BATCH, 0), "2,3");
}

#[test]
fn a_component_of_a_het_job_has_what_its_own_job_asked_for() {
    const OFF: Flags = &[("mps", Some("off"))];
    let component = || FakeSlurm::step(0).with_job_env("SLURM_HET_SIZE", "2");
    let mut slurm = component();
    let node = FakeNode::new().with_record(record("4711", RecordState::Ready));
    assert_eq!(task(&mut slurm, &node, "", OFF), Verdict::Continue);
    assert_eq!(slurm.job_env["MPSD_JOB"], "4711");
    let mut slurm = component();
    assert_eq!(task(&mut slurm, &FakeNode::new(), "", ON), Verdict::Continue);
    assert!(!slurm.job_env.contains_key("MPSD_JOB"), "{:?}", slurm.job_env);
    assert!(!slurm.job_env.contains_key("MPSD_TASK"), "{:?}", slurm.job_env);
}

#[test]
fn a_component_that_did_not_ask_passes_the_task_prolog_of_its_allocation() {
    const OURS: &str = "/usr/libexec/mpsd/mps-task-prolog";
    let cases: [(Flags, &str, bool); 3] = [
        (ON, OURS, true),
        (ON, "/home/u/prolog", false),
        (&[], OURS, false),
    ];
    for (flags, prolog, is_marked) in cases {
        let mut slurm = FakeSlurm::step(0)
            .with_job_env("SLURM_HET_SIZE", "2")
            .with_job_env("SLURM_TASK_PROLOG", prolog);
        assert_eq!(task(&mut slurm, &FakeNode::new(), "", flags), Verdict::Continue);
        assert_eq!(
            slurm.job_env.contains_key("MPSD_TASK"),
            is_marked,
            "{:?}",
            slurm.job_env
        );
    }
}

#[test]
fn a_step_may_lower_its_jobs_limits_and_no_more() {
    let node = || FakeNode::new().with_record(record("4711", RecordState::Ready));
    let lower: Flags = &[
        ("mps", None),
        ("mps-threads", Some("25")),
        ("mps-mem", Some("2G")),
    ];
    let mut slurm = FakeSlurm::step(0);
    assert_eq!(task(&mut slurm, &node(), "", lower), Verdict::Continue);
    assert_eq!(slurm.job_env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], "25");
    assert_eq!(
        slurm.job_env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"],
        "GPU-00000002=2048M"
    );
    let same: Flags = &[("mps", None), ("mps-threads", Some("50"))];
    let mut slurm = FakeSlurm::step(0);
    assert_eq!(task(&mut slurm, &node(), "", same), Verdict::Continue);
    assert!(!slurm.job_env.contains_key("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"));
    // Of a het job's component nobody knows whose flags these are.
    let mut slurm = FakeSlurm::step(0).with_job_env("SLURM_HET_SIZE", "2");
    assert_eq!(task(&mut slurm, &node(), "", lower), Verdict::Continue);
    assert!(!slurm.job_env.contains_key("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"));
    let higher: Flags = &[("mps", None), ("mps-threads", Some("80"))];
    let told = refused(&mut FakeSlurm::step(0), &node(), "", higher);
    assert!(
        told.contains("--mps-threads=80") && told.contains("allowed: 1 to 50"),
        "{told}"
    );
}

#[test]
fn a_step_with_its_own_daemon_uses_that() {
    let node = FakeNode::new().with_record(record("4711.3", RecordState::Ready));
    let mut slurm = FakeSlurm::step(3);
    assert_eq!(task(&mut slurm, &node, "", ON), Verdict::Continue);
    assert_eq!(slurm.job_env["MPSD_JOB"], "4711.3");
    // Its neighbour does not.
    let mut other = FakeSlurm::step(4);
    assert_eq!(task(&mut other, &node, "", &[]), Verdict::Continue);
    assert!(!other.job_env.contains_key("MPSD_JOB"));
}

#[test]
fn refused_and_failed_are_told_to_the_user() {
    for state in [RecordState::Refused, RecordState::Failed] {
        let node = FakeNode::new().with_record(record("4711", state));
        let line = refused(&mut FakeSlurm::step(0), &node, "", &[]);
        assert_eq!(line, "job 4711: not started on n1: the reason");
    }
    let node = FakeNode::new().with_record(record("4711", RecordState::Starting));
    assert!(refused(&mut FakeSlurm::step(0), &node, "", &[]).contains("still being started"));
}

#[test]
fn who_asked_and_has_no_record_does_not_run_without_mps() {
    let cases: [(u32, &str, Flags, &str); 4] = [
        (BATCH, "", ON, "mpsctl slurm check"),
        (0, "scope=job", ON, "whole jobs only"),
        (0, "", &[("mps", Some("evil"))], "--mps=evil"),
        (0, "unknown=1", ON, "'unknown=1'"),
    ];
    for (step, line, flags, reason) in cases {
        let told = refused(&mut FakeSlurm::step(step), &FakeNode::new(), line, flags);
        assert!(told.contains(reason), "{told}");
    }
    let mut node = FakeNode::new();
    node.settings = Err("/etc/mpsd/mpsd.toml: no such file".into());
    assert!(refused(&mut FakeSlurm::step(0), &node, "", ON).contains("no such file"));
}

#[test]
fn a_plugin_in_trouble_stops_nobody_who_did_not_ask() {
    let mut broken = FakeNode::new();
    broken.settings = Err("no such file".into());
    for (node, line) in [
        (FakeNode::new(), ""),
        (broken, ""),
        (FakeNode::new(), "unknown=1"),
    ] {
        for flags in [&[], OFF] {
            let mut slurm = FakeSlurm::step(0);
            let before = slurm.job_env.clone();
            assert_eq!(task(&mut slurm, &node, line, flags), Verdict::Continue);
            assert_eq!(slurm.job_env, before);
            assert!(slurm.is_silent());
        }
    }
}

#[test]
fn under_scope_step_the_batch_script_runs_without() {
    // Before salloc's shell, and not before a script, runs our task prolog.
    for (step, is_marked) in [(BATCH, false), (INTERACTIVE, true)] {
        let mut slurm = FakeSlurm::step(step);
        assert_eq!(
            task(&mut slurm, &FakeNode::new(), "scope=step", ON),
            Verdict::Continue
        );
        assert_eq!(slurm.job_env.contains_key("MPSD_TASK"), is_marked);
    }
}

#[test]
fn off_opts_a_step_out_unless_the_gpus_are_exclusive() {
    let inside = || {
        FakeSlurm::step(0)
            .with_job_env("MPSD_JOB", "4711")
            .with_job_env("CUDA_MPS_PIPE_DIRECTORY", "/run/mpsd/jobs/4711/pipe")
    };
    let shared = FakeNode::new().with_record(record("4711", RecordState::Ready));
    let mut slurm = inside();
    assert_eq!(task(&mut slurm, &shared, "", OFF), Verdict::Continue);
    assert!(
        !slurm.job_env.contains_key("MPSD_JOB") && !slurm.job_env.contains_key("CUDA_MPS_PIPE_DIRECTORY")
    );
    assert_eq!(slurm.job_env["CUDA_VISIBLE_DEVICES"], "0");
    let exclusive = Record {
        exclusive: true,
        ..record("4711", RecordState::Ready)
    };
    let told = refused(&mut inside(), &FakeNode::new().with_record(exclusive), "", OFF);
    assert!(
        told.contains("--mps=off") && told.contains("EXCLUSIVE_PROCESS"),
        "{told}"
    );
}

#[test]
fn variables_of_another_job_do_not_survive_a_submission() {
    let inherited = |slurm: FakeSlurm| {
        slurm
            .with_job_env("MPSD_JOB", "4000")
            .with_job_env("CUDA_MPS_PIPE_DIRECTORY", "/run/mpsd/jobs/4000/pipe")
            .with_job_env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "30")
    };
    let mut without = inherited(FakeSlurm::step(0));
    assert_eq!(task(&mut without, &FakeNode::new(), "", &[]), Verdict::Continue);
    assert_eq!(
        without.job_env.keys().collect::<Vec<_>>(),
        ["CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS"]
    );
    let mut with = inherited(FakeSlurm::step(0));
    task(
        &mut with,
        &FakeNode::new().with_record(record("4711", RecordState::Ready)),
        "",
        &[],
    );
    assert_eq!(with.job_env["MPSD_JOB"], "4711");
    assert!(!with.job_env.contains_key("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"));
}

#[test]
fn another_users_record_is_not_used() {
    let foreign = Record {
        uid: 1001,
        ..record("4711", RecordState::Ready)
    };
    let told = refused(
        &mut FakeSlurm::step(0),
        &FakeNode::new().with_record(foreign),
        "",
        &[],
    );
    assert!(told.contains("another user"), "{told}");
}

/// By the script, or else by the first step of the job or the one whose daemon it is; always by one task of the node.
#[test]
fn a_warning_is_read_once_a_node() {
    let told = |job: &str, step: u32, rank: u32, of_script: bool| {
        let mut ready = record(job, RecordState::Ready);
        ready.warnings = vec!["too many tasks".into()];
        let node = FakeNode::new().with_record(ready);
        let mut slurm = FakeSlurm::step(step);
        let item = slurm.items.iter_mut().find(|(item, _)| *item == Item::TaskId);
        item.expect("a task has a rank").1 = rank;
        if of_script {
            slurm.job_env.insert("ENVIRONMENT".into(), "BATCH".into());
        }
        assert_eq!(task(&mut slurm, &node, "", ON), Verdict::Continue);
        let lines = slurm.lines.borrow();
        let line = (Level::Told, format!("job {job}: too many tasks"));
        assert!(lines.iter().all(|other| *other == line), "{lines:?}");
        lines.len()
    };
    for (job, step, rank, of_script, times) in [
        ("4711", BATCH, 0, true, 1),
        ("4711", 0, 0, true, 0),
        ("4711", 0, 0, false, 1),
        ("4711", 0, 1, false, 0),
        ("4711", 1, 0, false, 0),
        ("4711.5", 5, 0, false, 1),
    ] {
        assert_eq!(
            told(job, step, rank, of_script),
            times,
            "{job} step {step} rank {rank}"
        );
    }
}

/// The kernel's word: what the job's directory says of it is its user's to write.
#[test]
fn a_task_whose_control_daemon_has_ended_does_not_run_outside_of_it() {
    let mut node = FakeNode::new().with_record(record("4711", RecordState::Ready));
    node.ended = vec!["/run/mpsd/jobs/4711/pipe"];
    for mut slurm in [
        FakeSlurm::step(0),
        FakeSlurm::step(BATCH),
        FakeSlurm::step(INTERACTIVE),
    ] {
        let line = refused(&mut slurm, &node, "", &[]);
        assert!(
            line.contains("has ended") && line.contains("outside MPS"),
            "{line}"
        );
    }
    // Another's end is no matter.
    node.ended = vec!["/run/mpsd/jobs/4712/pipe"];
    assert_eq!(task(&mut FakeSlurm::step(0), &node, "", &[]), Verdict::Continue);
}
