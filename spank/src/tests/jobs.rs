//! job_prolog and job_epilog.

use super::fake::{FakeNode, FakeSlurm, ended, path_of, record};
use crate::handle::{Context, Ended, Verdict};
use crate::plugin;
use crate::state::State;
use mpsd_core::config::Wait;
use mpsd_core::failure::FailureKind;
use mpsd_core::record::{Record, RecordState};

fn script() -> FakeSlurm {
    FakeSlurm::new(Context::JobScript)
}

fn asking() -> FakeSlurm {
    script()
        .with_option("mps", Some("(null)"))
        .with_option("mps-threads", Some("25"))
}

fn prolog(slurm: &mut FakeSlurm, node: &FakeNode) -> Verdict {
    plugin::job_prolog(slurm, node, &mut State::default(), &[])
}

fn failed(kind: FailureKind) -> Record {
    Record {
        kind: Some(kind),
        ..record("4711", RecordState::Failed)
    }
}

#[test]
fn a_job_that_did_not_ask_starts_nothing_and_says_nothing() {
    let mut broken = FakeNode::new();
    broken.settings = Err("no such file".into());
    for (node, mut slurm) in [
        (FakeNode::new(), script()),
        (broken, script()),
        (
            FakeNode::new(),
            script()
                .with_option("mps", Some("off"))
                .with_option("mps-threads", Some("25")),
        ),
    ] {
        assert_eq!(prolog(&mut slurm, &node), Verdict::Continue);
        assert!(node.nothing_ran() && slurm.is_silent());
    }
}

#[test]
fn the_request_goes_on_in_canonical_form_and_the_environment_cleaned() {
    let node = FakeNode::new();
    let mut slurm = asking()
        .with_process_env("SLURM_JOB_GPUS", "0,1")
        .with_process_env("LD_PRELOAD", "/tmp/x");
    assert_eq!(prolog(&mut slurm, &node), Verdict::Continue);
    assert_eq!(
        node.words(),
        "--scheduler slurm --config /etc/mpsd/mpsd.toml --request MPS=per-node,MPS_THREADS=25 --record --wait ready"
    );
    let ran = node.ran.borrow();
    assert_eq!(ran[0].path.to_str(), Some("/usr/libexec/mpsd/mps-prologue"));
    let names: Vec<_> = ran[0].environment.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["SLURMD_NODENAME", "SLURM_JOB_GPUS"]);
}

#[test]
fn only_a_job_of_srun_is_waited_for_in_its_task() {
    for (by, in_task, wait) in [
        ("srun", true, "started"),
        ("srun", false, "ready"),
        ("allocator", true, "ready"),
    ] {
        let mut node = FakeNode::new();
        node.settings.as_mut().unwrap().slurm.wait = if in_task { Wait::Task } else { Wait::Prolog };
        prolog(&mut asking().with_process_env("SPANK_MPS_SUBMIT", by), &node);
        assert!(node.words().ends_with(&format!("--wait {wait}")), "{by}");
    }
}

#[test]
fn flags_that_nobody_checked_are_refused_by_the_program() {
    let node = FakeNode::new().answering(ended(1, "refused"), Some(record("4711", RecordState::Refused)));
    let mut slurm = script()
        .with_option("mps", None)
        .with_option("mps-mem", Some("4G;MPS=off \n"));
    assert_eq!(prolog(&mut slurm, &node), Verdict::Continue);
    assert!(
        node.words().contains("--request MPS=on,MPS_MEM=4G?MPS=off?? "),
        "{}",
        node.words()
    );
}

#[test]
fn only_a_fault_fails_the_prolog() {
    for (answer, leaves, verdict) in [
        (ended(0, ""), None, Verdict::Continue),
        (
            ended(1, "refused"),
            Some(record("4711", RecordState::Refused)),
            Verdict::Continue,
        ),
        (
            ended(2, "killed"),
            Some(failed(FailureKind::Undetermined)),
            Verdict::Continue,
        ),
        (
            ended(2, "NVML is dead"),
            Some(failed(FailureKind::Fault)),
            Verdict::Leave,
        ),
        // A refusal is never a fault, whatever an older record says.
        (
            ended(1, "refused"),
            Some(failed(FailureKind::Fault)),
            Verdict::Continue,
        ),
    ] {
        let node = FakeNode::new().answering(answer.clone(), leaves.clone());
        let mut slurm = asking();
        assert_eq!(prolog(&mut slurm, &node), verdict, "{answer:?}");
        assert_eq!(slurm.errors().len(), answer.lines.len(), "{answer:?}");
        assert_eq!(
            node.records.borrow().values().cloned().collect::<Vec<_>>(),
            Vec::from_iter(leaves)
        );
    }
}

#[test]
fn where_the_site_drains_nothing_a_fault_does_not_either() {
    let mut node = FakeNode::new().answering(ended(2, "NVML is dead"), Some(failed(FailureKind::Fault)));
    node.settings.as_mut().unwrap().drain.enabled = false;
    assert_eq!(prolog(&mut asking(), &node), Verdict::Continue);
}

#[test]
fn a_program_that_left_no_record_is_recorded_by_the_plugin() {
    let missing = Ended {
        code: Err("cannot run 'x': no such file".into()),
        lines: Vec::new(),
    };
    for (answer, reason) in [
        (missing, "cannot run 'x': no such file"),
        (ended(2, "first\nmps-prologue: job 4711: last: one"), "last: one"),
        (ended(101, ""), "the prologue failed without a word"),
    ] {
        let node = FakeNode::new().answering(answer, None);
        let mut slurm = asking();
        assert_eq!(prolog(&mut slurm, &node), Verdict::Continue);
        assert!(!slurm.errors().is_empty());
        let records = node.records.borrow();
        let left = records
            .get(&path_of(&record("4711", RecordState::Failed)))
            .unwrap();
        assert_eq!(
            (left.state, left.uid, left.reason.as_deref()),
            (RecordState::Failed, 1000, Some(reason))
        );
    }
}

#[test]
fn a_program_that_was_killed_is_not_waited_for_by_the_tasks() {
    let killed = Ended {
        code: Err("did not end within 30 s and was killed".into()),
        lines: Vec::new(),
    };
    let node = FakeNode::new().answering(killed, Some(record("4711", RecordState::Starting)));
    prolog(&mut asking(), &node);
    assert!(
        node.records
            .borrow()
            .values()
            .all(|r| r.state == RecordState::Failed)
    );
}

#[test]
fn the_configuration_asks_for_jobs_of_its_choice() {
    let gres = "auto_gres = true";
    let constraint = "auto_constraint = \"mps\"";
    let partitions = "auto_partitions = [\"shared\"]";
    for (automatic, name, value, asked) in [
        (gres, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50", true),
        (gres, "SLURM_JOB_PARTITION", "shared", false),
        (constraint, "SLURM_JOB_CONSTRAINTS", "[a100*2&mps*1]|h100", true),
        (constraint, "SLURM_JOB_CONSTRAINTS", "mps2&nomps", false),
        (partitions, "SLURM_JOB_PARTITION", "shared", true),
        (partitions, "SLURM_JOB_PARTITION", "share", false),
    ] {
        let node = FakeNode::under(automatic);
        prolog(&mut script().with_process_env(name, value), &node);
        assert_eq!(!node.nothing_ran(), asked, "{name}={value}");
        // Said by the user, it is not overruled.
        let node = FakeNode::under(automatic);
        prolog(
            &mut script()
                .with_process_env(name, value)
                .with_option("mps", Some("off")),
            &node,
        );
        assert!(node.nothing_ran());
    }
}

#[test]
fn a_line_that_is_broken_or_for_steps_only_leaves_jobs_alone() {
    for word in ["scope=step", "unknown=1"] {
        let (node, mut slurm) = (FakeNode::new(), asking());
        let verdict = plugin::job_prolog(&mut slurm, &node, &mut State::default(), &[word.to_owned()]);
        assert_eq!(verdict, Verdict::Continue);
        assert!(node.nothing_ran() && slurm.is_silent());
    }
}

#[test]
fn the_epilog_cleans_what_is_there_whatever_was_asked() {
    for (directories, cleans) in [
        (&[][..], false),
        (&["4711"], true),
        (&["4711.3"], true),
        (&["47110", "47", "4712.0"], false),
    ] {
        let mut node = FakeNode::new();
        node.directories = directories.to_vec();
        let mut slurm = script();
        assert_eq!(
            plugin::job_epilog(&mut slurm, &node, &mut State::default(), &[]),
            Verdict::Continue
        );
        assert_eq!(!node.nothing_ran(), cleans, "{directories:?}");
        assert!(slurm.is_silent());
    }
}

#[test]
fn after_any_job_what_waits_for_its_second_look_gets_it() {
    for look_again in [false, true] {
        let mut node = FakeNode::new();
        node.look_again = look_again;
        plugin::job_epilog(&mut script(), &node, &mut State::default(), &[]);
        assert_eq!(!node.nothing_ran(), look_again);
    }
}

#[test]
fn the_epilog_goes_on_without_a_configuration() {
    let mut node = FakeNode::new();
    node.settings = Err("no such file".into());
    node.directories = vec!["4711"];
    plugin::job_epilog(
        &mut script(),
        &node,
        &mut State::default(),
        &["unknown=1".to_owned()],
    );
    assert!(!node.nothing_ran());
}

#[test]
fn an_epilog_that_fails_is_logged_and_does_not_drain_by_itself() {
    let mut node = FakeNode::new().answering(ended(3, "drained: mps-server in state D"), None);
    node.directories = vec!["4711"];
    let mut slurm = script();
    assert_eq!(
        plugin::job_epilog(&mut slurm, &node, &mut State::default(), &[]),
        Verdict::Continue
    );
    assert_eq!(slurm.errors(), ["job 4711: drained: mps-server in state D"]);
}

#[test]
fn where_a_step_comes_first_its_flags_are_not_its_jobs() {
    for (job, asked) in [
        ("", None),
        ("off", None),
        (
            "MPS=per-node,MPS_THREADS=50",
            Some("--request MPS=per-node,MPS_THREADS=50"),
        ),
    ] {
        let node = FakeNode::new();
        let mut slurm = asking()
            .with_process_env("SPANK_MPS_SUBMIT", "step")
            .with_process_env("SPANK_MPS_JOB", job);
        prolog(&mut slurm, &node);
        match asked {
            Some(request) => assert!(node.words().contains(request), "{}", node.words()),
            None => assert!(node.nothing_ran(), "'{job}'"),
        }
    }
}
