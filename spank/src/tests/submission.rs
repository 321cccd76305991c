//! srun, sbatch, salloc.

use super::fake::{FakeNode, FakeSlurm, key};
use crate::handle::{Context, Verdict};
use crate::plugin;
use crate::state::State;
use mpsd_core::request::{Flags, Key};

const SUBMITTERS: [(Context, &str); 2] = [(Context::Local, "srun"), (Context::Allocator, "allocator")];

fn submit(context: Context, line: &[&str], flags: &[(&str, Option<&str>)]) -> (Verdict, FakeSlurm) {
    let line: Vec<String> = line.iter().map(|w| (*w).to_owned()).collect();
    let (mut slurm, node, mut state) = (FakeSlurm::new(context), FakeNode::new(), State::default());
    assert_eq!(
        plugin::init(&mut slurm, &node, &mut state, &line),
        Verdict::Continue
    );
    for (name, value) in flags {
        assert_eq!(plugin::option(&mut state, key(name), *value, false), None);
    }
    let verdict = plugin::init_post_opt(&mut slurm, &node, &mut state, &line);
    assert!(node.nothing_ran());
    (verdict, slurm)
}

#[test]
fn the_flags_are_offered_where_options_are_read() {
    for (context, count) in [
        (Context::Local, Key::ALL.len()),
        (Context::Allocator, Key::ALL.len()),
        (Context::Remote, Key::ALL.len()),
        (Context::Slurmd, 0),
        (Context::JobScript, 0),
    ] {
        let mut slurm = FakeSlurm::new(context);
        plugin::init(&mut slurm, &FakeNode::new(), &mut State::default(), &[]);
        assert_eq!(slurm.registered.len(), count, "{context:?}");
        assert!(slurm.is_silent());
    }
}

#[test]
fn who_does_not_ask_notices_nothing() {
    for (context, _) in SUBMITTERS {
        for line in [&[][..], &["unknown=1"]] {
            let (verdict, slurm) = submit(context, line, &[]);
            assert_eq!(verdict, Verdict::Continue);
            assert!(slurm.is_silent() && slurm.script_env.is_empty(), "{line:?}");
        }
    }
}

#[test]
fn the_prolog_is_told_which_command_submitted() {
    for (context, by) in SUBMITTERS {
        let (verdict, slurm) = submit(context, &[], &[("mps", None), ("mps-threads", Some("30,70"))]);
        assert_eq!(verdict, Verdict::Continue);
        assert_eq!(slurm.script_env.get("MPS_SUBMIT").map(String::as_str), Some(by));
        assert!(slurm.is_silent());
    }
}

#[test]
fn flags_that_contradict_each_other_stop_the_submission_under_optional_too() {
    for (context, _) in SUBMITTERS {
        let (verdict, slurm) = submit(context, &[], &[("mps-mem", Some("4G"))]);
        assert_eq!(verdict, Verdict::Leave);
        let errors = slurm.errors();
        assert!(
            errors.len() == 1 && errors[0].starts_with("--mps-mem=4G: "),
            "{errors:?}"
        );
        assert!(slurm.script_env.is_empty());
    }
}

#[test]
fn who_asks_under_a_broken_line_is_told_why_not() {
    let (verdict, slurm) = submit(Context::Local, &["config=/c", "unknown=1"], &[("mps", None)]);
    assert_eq!(verdict, Verdict::Leave);
    assert!(slurm.errors()[0].contains("'unknown=1'"), "{:?}", slurm.errors());
}

#[test]
fn slurmd_says_once_that_its_line_is_broken() {
    let mut slurm = FakeSlurm::new(Context::Slurmd);
    let verdict = plugin::init(
        &mut slurm,
        &FakeNode::new(),
        &mut State::default(),
        &["unknown=1".to_owned()],
    );
    assert_eq!(verdict, Verdict::Continue);
    assert_eq!(slurm.errors().len(), 1);
}

#[test]
fn a_wrong_value_is_refused_by_the_options_callback() {
    let refused = plugin::option(&mut State::default(), key("mps-threads"), Some("NaN"), false);
    assert!(refused.unwrap().starts_with("--mps-threads=NaN: "));
    // On a node it is too late for that: the prolog and the task say it.
    assert_eq!(
        plugin::option(&mut State::default(), key("mps-threads"), Some("NaN"), true),
        None
    );
}

#[test]
fn a_second_load_begins_anew() {
    let mut state = State::default();
    plugin::option(&mut state, key("mps"), None, false);
    plugin::init(
        &mut FakeSlurm::new(Context::Local),
        &FakeNode::new(),
        &mut state,
        &[],
    );
    assert_eq!(state.flags, Flags::default());
}

fn in_an_allocation(job: &[(&str, &str)]) -> FakeSlurm {
    let mut slurm = FakeSlurm::new(Context::Local).with_process_env("SLURM_JOB_ID", "4711");
    for (option, value) in job {
        slurm = slurm.with_process_env(&format!("SLURM_SPANK__SLURM_SPANK_OPTION_mps_{option}"), value);
    }
    slurm
}

fn step(slurm: &mut FakeSlurm, flags: &[(&str, Option<&str>)]) -> Verdict {
    let (node, mut state) = (FakeNode::new(), State::default());
    plugin::init(slurm, &node, &mut state, &[]);
    for (name, value) in flags {
        assert_eq!(plugin::option(&mut state, key(name), *value, false), None);
    }
    plugin::init_post_opt(slurm, &node, &mut state, &[])
}

#[test]
fn the_prolog_is_told_what_the_job_of_a_step_asked_for() {
    for (job, told) in [
        (&[][..], ""),
        (
            &[("mps", "(null)"), ("mps_threads", "50")],
            "MPS=per-node,MPS_THREADS=50",
        ),
        (&[("mps", "off")], "off"),
        (&[("mps", "perhaps")], ""),
    ] {
        let mut slurm = in_an_allocation(job);
        assert_eq!(
            step(&mut slurm, &[("mps", None), ("mps-threads", Some("30"))]),
            Verdict::Continue
        );
        let said = |name: &str| slurm.script_env.get(name).map(String::as_str);
        assert_eq!((said("MPS_SUBMIT"), said("MPS_JOB")), (Some("step"), Some(told)));
    }
}

#[test]
fn a_step_of_a_het_job_without_mps_is_refused_one() {
    let mut slurm = in_an_allocation(&[]).with_process_env("SLURM_HET_SIZE", "2");
    assert_eq!(step(&mut slurm, &[("mps", None)]), Verdict::Leave);
    assert!(
        slurm.errors()[0].contains("allowed: --mps for the component"),
        "{:?}",
        slurm.errors()
    );
    let mut slurm = in_an_allocation(&[("mps", "(null)")]).with_process_env("SLURM_HET_SIZE", "2");
    assert_eq!(step(&mut slurm, &[("mps", None)]), Verdict::Continue);
    assert!(slurm.is_silent());
}

/// What an MPS job's script has in its environment, with srun's copy for the prolog.
fn in_an_mps_job(context: Context, of_job: &[(&str, &str)], words: &[&str]) -> FakeSlurm {
    let mut slurm = FakeSlurm::new(context);
    for (name, value) in of_job {
        slurm = slurm.with_process_env(name, value);
    }
    for name in [
        "_SLURM_SPANK_OPTION_mps_mps",
        "_SLURM_SPANK_OPTION_mps_mps_threads",
        "MPS_SUBMIT",
    ] {
        slurm = slurm.with_process_env(&format!("SLURM_SPANK_{name}"), "50");
        slurm = slurm.with_process_env(name, "50");
        slurm.script_env.insert(name.into(), "50".into());
    }
    slurm.command_line = words.iter().map(|word| (*word).to_owned()).collect();
    plugin::init(&mut slurm, &FakeNode::new(), &mut State::default(), &[]);
    slurm
}

#[test]
fn a_submission_in_a_job_inherits_nothing_and_a_step_of_the_job_does() {
    let job: &[_] = &[("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n1")];
    let element: &[_] = &[
        ("SLURM_JOB_ID", "9"),
        ("SLURM_ARRAY_JOB_ID", "7"),
        ("SLURM_ARRAY_TASK_ID", "2"),
    ];
    let (srun, other) = (Context::Local, Context::Allocator);
    type Case<'a> = (Context, &'a [(&'a str, &'a str)], &'a [&'a str], bool);
    let cases: [Case; 14] = [
        (srun, job, &["srun", "solver"], true),
        (srun, job, &["srun", "--jobid=7", "solver"], true),
        (srun, job, &["srun", "--jobid", "7", "solver"], true),
        (srun, job, &["srun", "--jobid=7+1", "solver"], true),
        (srun, element, &["srun", "--jobid=7_2", "solver"], true),
        (srun, element, &["srun", "--jobid=7_3", "solver"], false),
        (srun, job, &["srun", "--jobid=8", "solver"], false),
        (srun, job, &["srun", "--jobid", "8", "solver"], false),
        (srun, &[("SLURM_JOB_NODELIST", "n1")], &["srun", "solver"], false),
        (srun, &[("MPSD_JOB", "7")], &["srun", "solver"], false),
        (other, job, &["sbatch", "next.sh"], false),
        (other, &[("MPSD_JOB", "7")], &["salloc"], false),
        // Of the user's own making.
        (srun, &[], &["srun", "solver"], true),
        (other, &[], &["sbatch", "next.sh"], true),
    ];
    for (context, of_job, words, inherits) in cases {
        let slurm = in_an_mps_job(context, of_job, words);
        let is_handed_on = |name: &&String| name.contains("SPANK_OPTION") || name.contains("MPS_SUBMIT");
        let left = slurm.process_env.keys().filter(is_handed_on);
        let expected = if inherits { 3 } else { 0 };
        assert_eq!(left.count(), 2 * expected, "{of_job:?} {words:?}");
        assert_eq!(slurm.script_env.len(), expected, "{of_job:?} {words:?}");
    }
}
