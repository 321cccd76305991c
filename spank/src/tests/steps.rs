//! A step's own daemon.

use super::fake::{FakeNode, FakeSlurm, ended, key, record};
use crate::handle::Verdict;
use crate::plugin;
use crate::state::State;
use mpsd_core::record::RecordState;

fn begin(slurm: &mut FakeSlurm, node: &FakeNode, line: &[&str], flags: &[(&str, Option<&str>)]) -> State {
    let line: Vec<String> = line.iter().map(|w| (*w).to_owned()).collect();
    let mut state = State::default();
    plugin::init(slurm, node, &mut state, &line);
    for (name, value) in flags {
        // Before Slurm 24.05 an option's callback runs twice on a node.
        for _ in 0..2 {
            plugin::option(&mut state, key(name), *value, true);
        }
    }
    assert_eq!(
        plugin::init_post_opt(slurm, node, &mut state, &line),
        Verdict::Continue
    );
    state
}

#[test]
fn a_step_that_asks_in_a_job_without_gets_its_own() {
    let node = FakeNode::new();
    let mut slurm = FakeSlurm::step(3);
    let mut state = begin(
        &mut slurm,
        &node,
        &[],
        &[("mps", Some("")), ("mps-mem", Some("4G"))],
    );
    assert!(
        node.words()
            .ends_with("--request MPS=per-node,MPS_MEM=4G --record --wait started"),
        "{}",
        node.words()
    );
    let environment = node.ran.borrow()[0].environment.clone();
    for (name, value) in [
        ("SLURM_JOB_ID", "4711"),
        ("SLURM_STEP_ID", "3"),
        ("SLURM_JOB_UID", "1000"),
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_STEP_NUM_NODES", "1"),
        ("SLURM_STEP_GPUS", "2"),
        ("SLURMD_NODENAME", "n1"),
    ] {
        assert!(
            environment.contains(&(name.to_owned(), value.to_owned())),
            "{name}"
        );
    }
    assert!(
        environment
            .iter()
            .all(|(name, _)| name != "PATH" && name != "SLURM_SCRIPT_CONTEXT")
    );
    plugin::exit(&mut slurm, &node, &mut state, &[]);
    let ran = node.ran.borrow();
    assert_eq!(ran.len(), 2);
    assert!(ran[1].path.ends_with("mps-epilogue") && ran[1].detached);
}

#[test]
fn no_other_step_starts_or_ends_anything() {
    const EXTERN: u32 = 0xffff_fffc;
    const BATCH: u32 = 0xffff_fffb;
    const INTERACTIVE: u32 = 0xffff_fffa;
    let of_job = || FakeNode::new().with_record(record("4711", RecordState::Ready));
    for (step, node, flags) in [
        (0, FakeNode::new(), vec![]),
        (0, FakeNode::new(), vec![("mps", Some("off"))]),
        (EXTERN, FakeNode::new(), vec![("mps", None)]),
        (BATCH, FakeNode::new(), vec![("mps", None)]),
        (INTERACTIVE, FakeNode::new(), vec![("mps", None)]),
        (0, of_job(), vec![("mps", None)]),
        (0, FakeNode::new(), vec![("mps", Some("evil"))]),
    ] {
        let mut slurm = FakeSlurm::step(step);
        let mut state = begin(&mut slurm, &node, &[], &flags);
        plugin::exit(&mut slurm, &node, &mut state, &[]);
        assert!(node.nothing_ran(), "step {step} {flags:?}");
        assert!(slurm.is_silent());
    }
}

#[test]
fn a_component_of_a_het_job_starts_none_of_its_own() {
    let node = FakeNode::new();
    let mut slurm = FakeSlurm::step(0).with_job_env("SLURM_HET_SIZE", "2");
    begin(&mut slurm, &node, &[], &[("mps", None)]);
    assert!(node.nothing_ran());
}

#[test]
fn a_cluster_for_whole_jobs_says_so() {
    let node = FakeNode::new();
    let state = begin(&mut FakeSlurm::step(0), &node, &["scope=job"], &[("mps", None)]);
    assert!(node.nothing_ran());
    assert!(state.failure.unwrap().contains("sbatch or salloc"));
}

#[test]
fn why_it_did_not_start_is_kept_for_the_task_and_cleaned_up_at_the_end() {
    let node = FakeNode::new().answering(ended(2, "log\nthe GPU is busy"), None);
    let mut slurm = FakeSlurm::step(0);
    let mut state = begin(&mut slurm, &node, &[], &[("mps", None)]);
    assert_eq!(state.failure.as_deref(), Some("the GPU is busy"));
    plugin::exit(&mut slurm, &node, &mut state, &[]);
    assert_eq!(node.ran.borrow().len(), 2);
}
