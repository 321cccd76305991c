//! A step's own daemon, and the second line for a step in a container.

use super::double::{BATCH, INTERACTIVE, NodeDouble, Process, SlurmDouble, ended, record};
use crate::handle::{Context, Item, Verdict};
use crate::plugin::Callback;
use mpsd_core::record::{Record, RecordState};

#[test]
fn a_step_that_asks_in_a_job_without_gets_its_own() {
    let node = NodeDouble::new();
    let (mut process, _) = Process::begin(SlurmDouble::step(3), &node, "", "mps= mps-mem=4G");
    let words = node.words();
    let request = "--request MPS=per-node,MPS_MEM=4G --record --wait started";
    assert!(words.ends_with(request), "{words}");
    let environment = node.ran.borrow()[0].environment.clone();
    let expected = "SLURM_JOB_ID=4711 SLURM_STEP_ID=3 SLURM_STEP_NUM_NODES=1 SLURM_JOB_UID=1000 SLURM_JOB_GID=100 \
                    SLURM_STEP_NUM_TASKS=4 SLURM_STEP_GPUS=2 CUDA_VISIBLE_DEVICES=0 SLURMD_NODENAME=n1 SLURM_JOB_SLUID=sEKNKTV3WPV500";
    let line = |(name, value): &(String, String)| format!("{name}={value}");
    let environment: Vec<_> = environment.iter().map(line).collect();
    assert_eq!(environment.join(" "), expected);
    process.call(Callback::Exit);
    let ran = node.ran.borrow();
    assert_eq!(ran.len(), 2);
    assert!(ran[1].path.ends_with("mps-epilogue") && ran[1].detached);
}

fn unneeded(request: &str) -> Record {
    let mut record = record("4711", RecordState::Unneeded);
    record.request = request.parse().ok();
    record
}

/// The flags are the step's own or its job's; without any its job's record says what the site asked
/// for.
#[test]
fn under_auto_a_step_with_more_tasks_than_gpus_gets_its_own() {
    let auto = || Some(unneeded("MPS=auto"));
    let limited = Some(unneeded("MPS=auto,MPS_THREADS=25"));
    let flags_of_step = "mps=auto mps-mem=4G";
    let (of_step, all) = (Some("MPS=auto,MPS_MEM=4G"), Some("MPS=auto,MPS_THREADS=25"));
    for (tasks, gpus, of_job, flags, request) in [
        (2, "2", auto(), "", Some("MPS=auto")),
        (2, "2", auto(), flags_of_step, of_step),
        (2, "2", None, "mps=auto", Some("MPS=auto")),
        (3, "0,1", limited, "", all),
        // No GPU has two of its tasks, or it has none.
        (1, "2", auto(), "", None),
        (2, "0,1", auto(), "mps=auto", None),
        (2, "", auto(), "", None),
        (1, "2", None, "mps=auto", None),
        // The step's own word counts.
        (2, "2", auto(), "mps=off", None),
        (1, "2", auto(), "mps", Some("MPS=per-node")),
    ] {
        let none = NodeDouble::new();
        let node = of_job.into_iter().fold(none, NodeDouble::with_record);
        let slurm = SlurmDouble::step(3).with(Item::LocalTasks, tasks);
        let slurm = slurm.job("SLURM_STEP_GPUS", gpus);
        let (mut process, _) = Process::begin(slurm, &node, "", flags);
        let what = format!("{tasks} tasks on '{gpus}' {flags}");
        assert_eq!(node.nothing_ran(), request.is_none(), "{what}");
        if let Some(request) = request {
            let words = node.words();
            assert!(words.contains(&format!("--request {request} ")), "{words}");
        }
        assert_eq!(process.state.step.has_mps, request.is_some(), "{what}");
        assert_eq!(process.state.step.failure, None, "{what}");
        process.call(Callback::Exit);
        let programs = node.ran.borrow().len();
        assert_eq!(programs, 2 * usize::from(request.is_some()), "{what}");
    }
}

#[test]
fn no_other_step_starts_or_ends_anything() {
    const EXTERN: u32 = 0xffff_fffc;
    for (step, het, node, flags, why) in [
        (0, "", NodeDouble::new(), "", ""),
        (0, "", NodeDouble::new(), "mps=off", ""),
        (EXTERN, "", NodeDouble::new(), "mps", ""),
        (BATCH, "", NodeDouble::new(), "mps", ""),
        (INTERACTIVE, "", NodeDouble::new(), "mps", ""),
        (0, "", NodeDouble::ready(), "mps", ""),
        (0, "2", NodeDouble::new(), "mps", ""),
        (0, "", NodeDouble::new(), "mps=evil", "--mps=evil"),
    ] {
        let slurm = SlurmDouble::step(step).job("SLURM_HET_SIZE", het);
        let (mut process, _) = Process::begin(slurm, &node, "", flags);
        process.call(Callback::Exit);
        assert!(node.nothing_ran() && process.slurm.is_silent(), "{flags}");
        let failure = process.state.step.failure.unwrap_or_default();
        assert_eq!(failure.is_empty(), why.is_empty(), "{failure}");
        assert!(failure.contains(why), "{failure}");
    }
}

#[test]
fn a_failed_start_is_kept_for_the_task_and_cleaned_up_at_the_end() {
    let node = NodeDouble::new().answering(ended(2, "log\nthe GPU is busy"), None);
    let (mut process, _) = Process::begin(SlurmDouble::step(0), &node, "", "mps");
    let failure = process.state.step.failure.as_deref();
    assert_eq!(failure, Some("the GPU is busy"));
    process.call(Callback::Exit);
    assert_eq!(node.ran.borrow().len(), 2);
}

#[test]
fn a_task_whose_container_hides_its_mps_does_not_start() {
    const PIPE: &str = "/run/mpsd/jobs/4711/pipe";
    const OTHER: &str = "/tmp/nvidia-mps";
    let own = SlurmDouble::step(3).job("CUDA_MPS_PIPE_DIRECTORY", OTHER);
    let with = |pipe| {
        let slurm = SlurmDouble::step(3).job("MPSD_JOB", "4711");
        slurm.job("CUDA_MPS_PIPE_DIRECTORY", pipe)
    };
    let of_job = || with(PIPE);
    // As CSCS' CDI file sets it for skybox.
    let by_cdi = with("/tmp/nvidia-mps/pipe");
    let cases = [
        (of_job(), 0, true, Verdict::EndProcess, 1),
        (of_job(), 1, true, Verdict::EndProcess, 0),
        (of_job(), 0, false, Verdict::Continue, 0),
        (by_cdi, 0, false, Verdict::EndProcess, 1),
        (own, 0, true, Verdict::Continue, 0),
        (SlurmDouble::step(3), 0, true, Verdict::Continue, 0),
    ];
    for (slurm, rank, hides, verdict, lines) in cases {
        let mut node = NodeDouble::new();
        node.hides = hides;
        let mut process = Process::new(slurm.with(Item::TaskId, rank), &node, "look=container");
        assert_eq!(process.call(Callback::TaskInit), verdict);
        assert!(node.nothing_ran());
        let errors = process.slurm.errors();
        assert_eq!(errors.len(), lines, "{errors:?}");
        for line in errors {
            let begin = "job 4711: not started on n1";
            assert!(line.starts_with(begin) && line.contains("/pipe'"), "{line}");
        }
    }
}

/// Slurm loads the library once, so both lines share one state.
#[test]
fn the_second_line_leaves_the_first_lines_state_alone() {
    use Callback::{Exit, Init, InitPostOpt, JobEpilog, JobProlog, TaskExit};
    let node = NodeDouble::new();
    use Context::{Allocator, JobScript, Local, Remote, Slurmd};
    for context in [Local, Allocator, Remote, Slurmd, JobScript] {
        let slurm = SlurmDouble::new(context).asking("mps");
        let mut process = Process::new(slurm, &node, "config=/etc/other.toml");
        process.call(Init);
        let (registered, line) = (process.slurm.registered.len(), process.state.line.clone());
        process.line = vec!["look=container".into()];
        for callback in [Init, InitPostOpt, JobProlog, JobEpilog, TaskExit, Exit] {
            assert_eq!(process.call(callback), Verdict::Continue);
        }
        assert_eq!(process.slurm.registered.len(), registered);
        assert_eq!(process.state.line, line);
        assert!(node.nothing_ran() && process.slurm.is_silent());
    }
}
