//! Nodes that do not load the plugin.

use super::fake::{FakeNode, FakeSlurm, key};
use crate::handle::Context;
use crate::plugin;
use crate::state::State;
use crate::unplugged;

const OURS: &str = "/usr/libexec/mpsd/mps-task-prolog";

fn submit(slurm: &mut FakeSlurm, mps: Option<&str>) {
    let (node, mut state) = (FakeNode::new(), State::default());
    plugin::init(slurm, &node, &mut state, &[]);
    if mps.is_some() {
        plugin::option(&mut state, key("mps"), mps, false);
    }
    plugin::init_post_opt(slurm, &node, &mut state, &[]);
}

fn of<'a>(slurm: &'a FakeSlurm, name: &str) -> Option<&'a str> {
    slurm.process_env.get(name).map(String::as_str)
}

#[test]
fn srun_asks_for_our_task_prolog_and_keeps_the_users() {
    let mut slurm = FakeSlurm::new(Context::Local);
    submit(&mut slurm, Some("on"));
    assert_eq!(slurm.task_prolog.as_deref(), Some(OURS));
    assert_eq!(of(&slurm, "SLURM_MPSD_TASK_PROLOG"), None);
    let mut slurm = FakeSlurm::new(Context::Local);
    slurm.task_prolog = Some("/home/u/prolog".into());
    submit(&mut slurm, Some("on"));
    assert_eq!(slurm.task_prolog.as_deref(), Some(OURS));
    assert_eq!(of(&slurm, "SLURM_MPSD_TASK_PROLOG"), Some("/home/u/prolog"));
}

#[test]
fn a_step_in_an_allocation_keeps_or_drops_what_the_allocation_asked_for() {
    let inside = || {
        let mut slurm = FakeSlurm::new(Context::Local)
            .with_process_env("SLURM_TASK_PROLOG", OURS)
            .with_process_env("SLURM_MPSD_TASK_PROLOG", "/home/u/prolog");
        slurm.task_prolog = Some(OURS.into());
        slurm
    };
    let mut slurm = inside();
    submit(&mut slurm, Some("on"));
    assert_eq!(slurm.task_prolog.as_deref(), Some(OURS));
    assert_eq!(of(&slurm, "SLURM_MPSD_TASK_PROLOG"), Some("/home/u/prolog"));
    for mps in [Some("off"), None] {
        let mut slurm = inside();
        submit(&mut slurm, mps);
        assert_eq!(slurm.task_prolog.as_deref(), Some("/home/u/prolog"), "{mps:?}");
        assert_eq!(of(&slurm, "SLURM_TASK_PROLOG"), Some("/home/u/prolog"));
        assert_eq!(of(&slurm, "SLURM_MPSD_TASK_PROLOG"), None);
    }
}

#[test]
fn what_stops_a_script_is_taken_away_again() {
    for users in [None, Some("/etc/bash.env")] {
        let mut sbatch = FakeSlurm::new(Context::Allocator);
        if let Some(users) = users {
            sbatch = sbatch.with_process_env("BASH_ENV", users);
        }
        submit(&mut sbatch, Some("on"));
        assert_eq!(of(&sbatch, "SLURM_TASK_PROLOG"), Some(OURS));
        assert!(of(&sbatch, "BASH_ENV").is_some_and(|value| value.contains("kill $$")));
        let mut task = FakeSlurm::step(0);
        task.job_env = sbatch.process_env;
        unplugged::restore(&mut task);
        assert_eq!(task.job_env.get("BASH_ENV").map(String::as_str), users);
        assert!(!task.job_env.contains_key("SLURM_MPSD_BASH_ENV"));
    }
}

#[test]
fn a_mark_is_one_tasks_own() {
    let task = |node: &str, pid: &str| {
        let task = FakeSlurm::step(0).with_job_env("SLURMD_NODENAME", node);
        unplugged::mark(&task.with_job_env("SLURM_TASK_PID", pid))
    };
    assert_eq!(task("n1", "7").value.as_deref(), Some("n1:7"));
    assert_ne!(task("n1", "7"), task("n2", "7"));
    assert_ne!(task("n1", "7"), task("n1", "8"));
}
