//! task_init.

use super::double::{BATCH, NodeDouble, Process, SlurmDouble, record};
use crate::handle::{Item, Level, Verdict};
use crate::plugin::Callback;
use mpsd_core::record::RecordState;
use mpsd_core::testing::device;

const GPUS: &str = "CUDA_VISIBLE_DEVICES";
const PIPE: &str = "CUDA_MPS_PIPE_DIRECTORY";
const BOTH: &str = "GPU-00000002,GPU-00000003";

/// init_post_opt as slurmstepd, then task_init as its child.
fn task(slurm: SlurmDouble, node: &NodeDouble, line: &str, flags: &str) -> (Verdict, SlurmDouble) {
    let (mut process, _) = Process::begin(slurm, node, line, flags);
    (process.call(Callback::TaskInit), process.slurm)
}

/// A task with `--mps` that runs.
fn runs(slurm: SlurmDouble, node: &NodeDouble) -> SlurmDouble {
    let (verdict, slurm) = task(slurm, node, "", "mps");
    assert_eq!(verdict, Verdict::Continue, "{:?}", slurm.errors());
    slurm
}

/// Why a task does not start. The first task reports it for all of the node.
fn refused(slurm: SlurmDouble, node: &NodeDouble, line: &str, flags: &str) -> String {
    let before = slurm.job_env.clone();
    let (verdict, slurm) = task(slurm.with(Item::TaskId, 0), node, line, flags);
    assert_eq!((verdict, &slurm.job_env), (Verdict::EndProcess, &before));
    let errors = slurm.errors();
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors[0].clone()
}

fn value<'a>(slurm: &'a SlurmDouble, name: &str) -> Option<&'a str> {
    slurm.job_env.get(name).map(String::as_str)
}

/// A step whose GPUs Slurm does not name.
fn unnamed() -> SlurmDouble {
    let slurm = SlurmDouble::step(0).job("SLURM_STEP_GPUS", "");
    slurm.job(GPUS, "")
}

#[test]
fn what_holds_for_all_tasks_of_a_node_is_reported_by_one_and_else_by_each() {
    let node = NodeDouble::new().with_record(record("4711", RecordState::Refused));
    let (verdict, second) = task(SlurmDouble::step(0), &node, "", "mps");
    assert_eq!(verdict, Verdict::EndProcess);
    assert!(second.is_silent());
    let mut node = NodeDouble::new();
    node.unreadable = Some("record: Too many open files (os error 24)".into());
    let (verdict, second) = task(SlurmDouble::step(0), &node, "", "mps");
    assert_eq!(verdict, Verdict::EndProcess);
    assert!(second.errors()[0].contains("Too many open files"));
}

#[test]
fn a_ready_record_attaches_the_task_whatever_the_flags_say() {
    // By the node's number 2, not by the 0 that a constrained step counts from.
    let expected = ["4711", "/run/mpsd/jobs/4711/pipe", "GPU-00000002"].map(Some);
    for (het, flags) in [("", "mps"), ("", ""), ("2", "mps=off")] {
        let slurm = SlurmDouble::step(0).job("SLURM_HET_SIZE", het);
        let (verdict, slurm) = task(slurm, &NodeDouble::ready(), "", flags);
        let found = ["MPSD_JOB", PIPE, GPUS].map(|name| value(&slurm, name));
        assert_eq!((verdict, found), (Verdict::Continue, expected));
        assert!(slurm.is_silent());
    }
    // Another step does not get a step's own daemon.
    let of_step = || NodeDouble::new().with_record(record("4711.3", RecordState::Ready));
    let own = runs(SlurmDouble::step(3), &of_step());
    assert_eq!(value(&own, "MPSD_JOB"), Some("4711.3"));
    let (_, other) = task(SlurmDouble::step(4), &of_step(), "", "");
    assert_eq!(value(&other, "MPSD_JOB"), None);
}

/// The environment stays to the byte, but for the mark that lets `mps-task-prolog` go on. Only a
/// user who said `auto` reads why.
#[test]
fn a_task_that_auto_gives_nothing_runs_as_if_nobody_had_asked() {
    let unneeded = || NodeDouble::new().with_record(record("4711", RecordState::Unneeded));
    let asked = || {
        let mut of_user = record("4711", RecordState::Unneeded);
        of_user.warnings = vec!["the reason".to_owned()];
        NodeDouble::new().with_record(of_user)
    };
    // Another component's flags, and our task prolog that the allocation handed on.
    for (step, users, kept) in [(0, "/u", true), (BATCH, "/u", false), (BATCH, "", false)] {
        let slurm = SlurmDouble::step(step).with(Item::LocalTasks, 1);
        let slurm = slurm.job("SLURM_HET_SIZE", "2");
        let slurm = slurm.job("SLURM_TASK_PROLOG", "/x/mps-task-prolog");
        let slurm = slurm.job("SLURM_MPSD_TASK_PROLOG", users);
        let (_, slurm) = task(slurm, &asked(), "", "");
        let has = value(&slurm, "SLURM_TASK_PROLOG").unwrap_or_default();
        assert_eq!(has, users);
        assert_eq!(value(&slurm, "SLURM_MPSD_TASK_PROLOG").is_some(), kept);
        assert_eq!(value(&slurm, "MPSD_TASK").is_some(), step != BATCH);
    }
    let bare = NodeDouble::new();
    let of_step =
        "auto: no MPS, because 1 task on 1 GPU; ask for more tasks than GPUs (-n), or for --mps";
    for (node, step, rank, flags, told) in [
        (bare, 2, 0, "mps=auto", Some(of_step)),
        (unneeded(), 0, 0, "", None),
        (unneeded(), 0, 0, "mps=auto", Some("the reason")),
        (unneeded(), 0, 1, "mps=auto", None),
        (unneeded(), 1, 0, "mps=auto", None),
        (unneeded(), BATCH, 0, "mps=auto", Some("the reason")),
        (unneeded(), 0, 0, "mps=off", None),
    ] {
        let slurm = SlurmDouble::step(step).with(Item::TaskId, rank);
        let slurm = slurm.with(Item::LocalTasks, 1);
        let mut before = slurm.job_env.clone();
        let (verdict, slurm) = task(slurm, &node, "", flags);
        assert_eq!(verdict, Verdict::Continue, "{flags}: {:?}", slurm.errors());
        let marked = slurm.job_env.get("MPSD_TASK").cloned();
        let is_marked = flags == "mps=auto" && step != BATCH;
        assert_eq!(marked.is_some(), is_marked, "{flags}");
        before.extend(marked.map(|mark| ("MPSD_TASK".to_owned(), mark)));
        assert_eq!(slurm.job_env, before, "{flags}");
        let lines = slurm.at_level(Level::Notice);
        assert_eq!(lines.len(), usize::from(told.is_some()), "{lines:?}");
        let expected = told.map(|why| format!("job 4711: on n1: {why}"));
        assert_eq!(lines.first(), expected.as_ref());
        assert!(slurm.errors().is_empty());
    }
    // The step's own MPS, which its tasks needed.
    let node = unneeded().with_record(record("4711.3", RecordState::Ready));
    let (_, slurm) = task(SlurmDouble::step(3), &node, "", "");
    assert_eq!(value(&slurm, "MPSD_JOB"), Some("4711.3"));
    // No prologue has run, so nothing was found.
    let told = refused(SlurmDouble::step(BATCH), &NodeDouble::new(), "", "mps=auto");
    assert!(told.contains("has run no prologue"), "{told}");
}

#[test]
fn the_first_task_reads_of_connections_and_those_that_do_not_fit_are_refused_to_who_asked() {
    for (tasks, rank, connections, flags, told) in [
        (1, 0, "8", "mps", "warning: "),
        (1, 1, "8", "mps", ""),
        (7, 0, "32", "mps", "a GPU takes 3 MPS clients"),
        (7, 0, "32", "", ""),
    ] {
        let slurm = SlurmDouble::step(0).job("CUDA_DEVICE_MAX_CONNECTIONS", connections);
        let slurm = slurm.with(Item::LocalTasks, tasks).with(Item::TaskId, rank);
        let (verdict, slurm) = task(slurm, &NodeDouble::ready(), "", flags);
        let is_refused = tasks == 7 && !told.is_empty();
        assert_eq!(verdict == Verdict::EndProcess, is_refused);
        let errors = slurm.errors().concat();
        assert_eq!(errors.is_empty(), told.is_empty(), "{errors}");
        assert!(errors.contains(told), "{errors}");
        let kept = value(&slurm, "CUDA_DEVICE_MAX_CONNECTIONS");
        assert_eq!(kept, Some(connections));
    }
}

#[test]
fn a_batch_script_that_starts_a_daemon_of_its_own_is_told_once_if_its_user_asked() {
    for (flags, told) in [("mps", 1), ("", 0)] {
        let slurm = SlurmDouble::step(BATCH).with(Item::TaskId, 0);
        let mut slurm = slurm.with(Item::LocalTasks, 1).job("SLURM_JOB_GPUS", "2");
        slurm.step_command = vec!["/spool/script".to_owned()];
        let mut node = NodeDouble::ready();
        let script = "nvidia-cuda-mps-control -d\nsrun ./prog\n";
        node.texts = [("/spool/script", script)].into();
        let (verdict, slurm) = task(slurm, &node, "", flags);
        let is_told = |line: &&String| line.contains("names nvidia-cuda-mps-control");
        let lines = slurm.at_level(Level::Notice).iter().filter(is_told).count();
        assert_eq!((verdict, lines), (Verdict::Continue, told), "{flags}");
    }
}

#[test]
fn a_list_that_repeats_is_told_by_the_first_task_of_a_step() {
    let mut listed = record("4711", RecordState::Ready);
    listed.rank_threads = ["20", "40"].map(|p| p.parse().unwrap()).to_vec();
    let jobs = || NodeDouble::new().with_record(listed.clone());
    let step = |global: u32, tasks: u32| {
        let slurm = SlurmDouble::step(0).with(Item::TaskGlobalId, global);
        slurm.with(Item::LocalTasks, tasks)
    };
    let both = "2 thread percentages and 2 memory limits";
    let ready = NodeDouble::ready;
    let threads = "2 thread percentages by local rank for 4 tasks";
    for (node, flags, global, tasks, told) in [
        (jobs(), "", 0, 4, threads),
        (jobs(), "mps mps-mem=1G:2G", 0, 3, both),
        (ready(), "mps mps-threads=20:30:40", 0, 4, "3 thread"),
        (jobs(), "", 1, 4, ""),
        (jobs(), "", 0, 2, ""),
        (jobs(), "mps mps-threads=20", 0, 4, ""),
    ] {
        let (verdict, slurm) = task(step(global, tasks), &node, "", flags);
        assert_eq!(verdict, Verdict::Continue, "{:?}", slurm.errors());
        let lines = slurm.at_level(Level::Notice).concat();
        assert!(lines.contains(told), "{flags} {lines}");
        assert_eq!(lines.is_empty(), told.is_empty(), "{flags} {lines}");
    }
}

#[test]
fn a_number_is_a_place_among_what_the_task_may_open() {
    let node = |files: [&str; 3]| {
        let mut record = record("4711", RecordState::Ready);
        record.devices = (1..).zip(files).map(|(n, file)| device(n, file)).collect();
        NodeDouble::new().with_record(record)
    };
    let (closed, first, second) = ("/nonexistent/nvidia0", "/dev/null", "/dev/zero");
    let turned = "GPU-00000003,GPU-00000002";
    for (step, visible, files, gpus) in [
        (0, "0", [closed, first, second], "GPU-00000002"),
        (BATCH, "2,1", [first, first, second], turned),
        // Without a number it has the GPUs of the job that it may open.
        (BATCH, "", [first, closed, second], "GPU-00000003"),
    ] {
        let slurm = SlurmDouble::step(step).job("SLURM_STEP_GPUS", visible);
        let slurm = slurm.job(GPUS, visible);
        assert_eq!(value(&runs(slurm, &node(files)), GPUS), Some(gpus));
    }
    // Slurm claims to confine tasks, but this one can open a GPU that is not its job's: CUDA would
    // take that one.
    let all = node([first, first, second]);
    let told = refused(SlurmDouble::step(0), &all, "", "mps");
    assert!(told.contains("'0', which is GPU-00000001 here"), "{told}");
}

/// The mark lets a task pass the task prolog of mpsd.
#[test]
fn a_task_without_mps_is_marked_only_if_the_task_prolog_runs_before_it() {
    const OURS: &str = "/usr/libexec/mpsd/mps-task-prolog";
    for (prolog, flags, is_marked) in [
        (OURS, "mps", true),
        ("/home/u/prolog", "mps", false),
        ("", "mps", false),
        (OURS, "", false),
    ] {
        let slurm = SlurmDouble::step(0).job("SLURM_HET_SIZE", "2");
        let slurm = slurm.job("SLURM_TASK_PROLOG", prolog);
        let (verdict, slurm) = task(slurm, &NodeDouble::new(), "", flags);
        assert_eq!(verdict, Verdict::Continue);
        assert_eq!(value(&slurm, "MPSD_JOB"), None);
        let marked = value(&slurm, "MPSD_TASK").is_some();
        assert_eq!(marked, is_marked, "{flags} {prolog}");
    }
}

#[test]
fn a_task_that_cannot_have_its_mps_is_refused_with_the_reason() {
    let with = |state| NodeDouble::new().with_record(record("4711", state));
    let mut foreign = record("4711", RecordState::Ready);
    foreign.uid = 1001;
    let foreign = NodeDouble::new().with_record(foreign);
    let ended = || {
        let mut node = NodeDouble::ready();
        node.ended = vec!["/run/mpsd/jobs/4711/pipe"];
        node
    };
    for (step, node, line, flags, why) in [
        (0, with(RecordState::Failed), "", "", "on n1: the reason"),
        (
            0,
            with(RecordState::Starting),
            "",
            "",
            "still being started",
        ),
        (0, foreign, "", "", "another user"),
        (BATCH, NodeDouble::new(), "", "mps", "mpsctl slurm check"),
        (0, NodeDouble::new(), "", "mps=evil", "--mps=evil"),
        (0, NodeDouble::new(), "unknown=1", "mps", "'unknown=1'"),
        (0, NodeDouble::broken(), "", "mps", "no such file"),
        // By the kernel's word: the user can write what the job's directory says.
        (0, ended(), "", "", "outside MPS"),
        (BATCH, ended(), "", "", "has ended"),
    ] {
        let told = refused(SlurmDouble::step(step), &node, line, flags);
        let is_told = told.starts_with("job 4711: not started on n1: ") && told.contains(why);
        assert!(is_told, "{told}");
    }
    // Another daemon's end does not matter.
    let mut node = NodeDouble::ready();
    node.ended = vec!["/run/mpsd/jobs/4712/pipe"];
    runs(SlurmDouble::step(0), &node);
}

#[test]
fn a_plugin_in_trouble_stops_only_users_who_asked() {
    for (node, line) in [
        (NodeDouble::new(), ""),
        (NodeDouble::broken(), ""),
        (NodeDouble::new(), "unknown=1"),
    ] {
        for flags in ["", "mps=off"] {
            let before = SlurmDouble::step(0).job_env;
            let (verdict, slurm) = task(SlurmDouble::step(0), &node, line, flags);
            assert_eq!((verdict, slurm.is_silent()), (Verdict::Continue, true));
            assert_eq!(slurm.job_env, before);
        }
    }
}

/// Shown by the script, else by the job's first step, or by the step with its own daemon; always by
/// one task of the node.
#[test]
fn a_warning_is_read_once_a_node() {
    for (job, step, rank, of_script, times) in [
        ("4711", BATCH, 0, "BATCH", 1),
        ("4711", 0, 0, "BATCH", 0),
        ("4711", 0, 0, "", 1),
        ("4711", 0, 1, "", 0),
        ("4711", 1, 0, "", 0),
        ("4711.5", 5, 0, "", 1),
    ] {
        let mut ready = record(job, RecordState::Ready);
        ready.warnings = vec!["too many tasks".into()];
        let node = NodeDouble::new().with_record(ready);
        let slurm = SlurmDouble::step(step).with(Item::TaskId, rank);
        let slurm = runs(slurm.job("ENVIRONMENT", of_script), &node);
        let notices = vec![format!("job {job}: too many tasks"); times];
        let found = slurm.at_level(Level::Notice);
        assert_eq!(found, notices, "{job} {step} {rank}");
        assert_eq!(slurm.lines.borrow().len(), times);
    }
}

#[test]
fn a_script_and_a_step_whose_gpus_slurm_does_not_name_have_all_of_the_jobs() {
    let script = SlurmDouble::step(BATCH).job("SLURM_JOB_GPUS", "2,3");
    let script = script.job("SLURM_STEP_GPUS", "7");
    let unbound = unnamed().job("SLURMD_TRES_BIND", "gpu:none");
    // `--gpus-per-task=TYPE:N`: Slurm counts them.
    let counted = || unnamed().job("SLURMD_TRES_BIND", "gpu:per_task:a:1");
    let mut job_without_names = record("4711", RecordState::Ready);
    job_without_names.named = false;
    let without_names = NodeDouble::new().with_record(job_without_names);
    for (slurm, node) in [
        (script, NodeDouble::ready()),
        (unbound, NodeDouble::ready()),
        (
            counted().job("SLURM_GPUS_ON_NODE", "2"),
            NodeDouble::ready(),
        ),
        (unnamed(), without_names),
    ] {
        assert_eq!(value(&runs(slurm, &node), GPUS), Some(BOTH));
    }
    // The word alone may come from a step around this one, which has none.
    assert_eq!(value(&runs(counted(), &NodeDouble::ready()), GPUS), None);
    // A step without GPUs has none of the job's. The plugin marks it, and nothing else.
    let without = unnamed().job("MPSD_JOB", "4711");
    let without = without.job(PIPE, "/run/mpsd/jobs/4711/pipe");
    let slurm = runs(without, &NodeDouble::ready());
    assert_eq!(slurm.job_env.keys().collect::<Vec<_>>(), ["MPSD_TASK"]);
}

/// `srun --exclusive --mps`: the job has its node's GPUs, and its step has none. A later step, or a
/// script's, may want none.
#[test]
fn a_job_whose_only_step_has_no_gpu_reads_that_it_runs_without_mps() {
    let said = |slurm: SlurmDouble, flags: &str| {
        let (verdict, slurm) = task(slurm.with(Item::TaskId, 0), &NodeDouble::ready(), "", flags);
        assert_eq!(verdict, Verdict::Continue);
        slurm.at_level(Level::Notice)
    };
    let told = said(unnamed(), "mps").concat();
    assert_eq!(told.matches("runs without MPS").count(), 1, "{told}");
    for (slurm, flags) in [
        (unnamed().job("ENVIRONMENT", "BATCH"), "mps"),
        (unnamed().with(Item::StepId, 1), "mps"),
        (unnamed(), ""),
    ] {
        assert_eq!(said(slurm, flags), [""; 0], "{flags}");
    }
}

/// Slurm runs the task in its own container behind task_init, where no plugin can look.
#[test]
fn a_task_in_slurms_own_container_does_not_start_and_under_auto_runs_bare() {
    let contained = || SlurmDouble::step(0).job("SLURM_CONTAINER", "/home/bundle");
    let node = NodeDouble::ready();
    for flags in ["", "mps"] {
        let why = refused(contained(), &node, "", flags);
        assert!(why.starts_with("step 4711.0: not started on n1"), "{why}");
        assert!(why.contains("--container"), "{why}");
    }
    runs(SlurmDouble::step(0).job("SLURM_CONTAINER", ""), &node);
    for (exclusive, flags, lines) in [(false, "", 0), (false, "mps=auto", 1), (true, "", 1)] {
        let mut record = record("4711", RecordState::Ready);
        record.request = "MPS=auto".parse().ok();
        record.exclusive = exclusive;
        let node = NodeDouble::new().with_record(record);
        let (verdict, slurm) = task(contained().with(Item::TaskId, 0), &node, "", flags);
        let right = [Verdict::Continue, Verdict::EndProcess][usize::from(exclusive)];
        let found = (verdict, slurm.lines.borrow().len());
        assert_eq!(found, (right, lines), "{flags} {exclusive}");
        assert_eq!(value(&slurm, PIPE), None);
    }
    let failed = NodeDouble::new().with_record(record("4711", RecordState::Failed));
    assert!(refused(contained(), &failed, "", "mps").contains("the reason"));
}
