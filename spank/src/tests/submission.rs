//! srun, sbatch, salloc, and the task prolog for nodes that do not load the plugin.

use super::double::{Env, NodeDouble, Process, SlurmDouble};
use crate::handle::{Context, Level, Verdict};
use crate::plugin::Callback;
use crate::state::PluginState;
use crate::submission::MAY_GIVE_GPUS;
use crate::unplugged;
use mpsd_core::request::Key;

const SUBMITTERS: [(Context, &str); 3] = [
    (Context::Local, "srun"),
    (Context::Allocator, "sbatch"),
    (Context::Allocator, "salloc"),
];
const OURS: &str = "/usr/libexec/mpsd/mps-task-prolog";

fn submit(slurm: SlurmDouble, line: &str, flags: &str) -> (Verdict, SlurmDouble) {
    let node = NodeDouble::new();
    let (process, verdict) = Process::begin(slurm, &node, line, flags);
    assert!(node.nothing_ran());
    (verdict, process.slurm)
}

#[test]
fn the_flags_are_offered_where_options_are_read_and_slurmd_reports_a_broken_line() {
    let all = Key::ALL.len();
    for (context, count, errors) in [
        (Context::Local, all, 0),
        (Context::Allocator, all, 0),
        (Context::Remote, all, 0),
        (Context::Slurmd, 0, 1),
        (Context::JobScript, 0, 0),
    ] {
        for (line, errors) in [("", 0), ("unknown=1", errors)] {
            let node = NodeDouble::new();
            let mut process = Process::new(SlurmDouble::new(context), &node, line);
            assert_eq!(process.call(Callback::Init), Verdict::Continue);
            assert_eq!(process.slurm.registered.len(), count, "{context:?}");
            assert_eq!(process.slurm.lines.borrow().len(), errors, "{context:?}");
        }
    }
}

#[test]
fn a_submission_without_flags_changes_nothing_and_one_with_them_tells_the_prolog_who_submitted() {
    for (context, by) in SUBMITTERS {
        for line in ["", "unknown=1"] {
            let (verdict, slurm) = submit(SlurmDouble::new(context), line, "");
            assert_eq!(verdict, Verdict::Continue);
            assert!(slurm.is_silent() && slurm.script_env.is_empty(), "{line:?}");
        }
        let mut slurm = SlurmDouble::new(context);
        slurm.command_line = vec![by.to_owned()];
        let (verdict, slurm) = submit(slurm, "", "mps mps-threads=30,70");
        assert_eq!(verdict, Verdict::Continue);
        assert_eq!(slurm.script_env["MPS_SUBMIT"], by);
        assert!(slurm.is_silent());
    }
}

#[test]
fn refused_flags_stop_the_submission_under_optional_too() {
    for (context, _) in SUBMITTERS {
        for (line, flags, why) in [
            ("", "mps-mem=4G", "--mps-mem=4G: "),
            ("config=/c unknown=1", "mps", "'unknown=1'"),
        ] {
            let (verdict, slurm) = submit(SlurmDouble::new(context), line, flags);
            assert_eq!(verdict, Verdict::EndProcess);
            let errors = slurm.errors();
            assert!(errors.len() == 1 && errors[0].contains(why), "{errors:?}");
            assert!(slurm.script_env.is_empty());
        }
    }
    let mut state = PluginState::new(&[]);
    let mut option = |remote| state.take(Key::Threads, Some("NaN"), remote);
    assert_eq!(option(false).unwrap().what, "--mps-threads=NaN");
    // On a node it is too late for that: the prolog and the task refuse.
    assert_eq!(option(true), None);
}

#[test]
fn a_job_that_asks_for_no_gpu_is_told_at_submission_and_one_that_may_have_one_is_not() {
    let told = |slurm: SlurmDouble, given: &[(&str, &str)], flags: &str| {
        let (verdict, slurm) = submit(slurm.given(given), "", flags);
        assert_eq!(verdict, Verdict::Continue);
        assert!(slurm.errors().is_empty());
        let told = slurm.at_level(Level::Notice);
        let is_right = |line: &String| line.contains("--gres=gpu:1");
        assert!(told.iter().all(is_right), "{told:?}");
        told.len()
    };
    for (context, _) in SUBMITTERS {
        let new = || SlurmDouble::new(context);
        for given in [&[][..], &[("gres", "tmpfs:10G")], &[("ntasks", "4")]] {
            // Under `auto` the job then runs without MPS.
            for (flags, lines) in [("mps", 1), ("mps=auto", 0), ("mps=off", 0), ("", 0)] {
                assert_eq!(told(new(), given, flags), lines, "{given:?} {flags}");
            }
        }
        let option = MAY_GIVE_GPUS.map(|option| (option.to_str().unwrap(), ""));
        let mut may_give = option.to_vec();
        may_give.extend(["gpu:1", "tmpfs:1,gres/shard:2", "mps:25"].map(|gres| ("gres", gres)));
        for given in may_give {
            assert_eq!(told(new(), &[given], "mps"), 0, "{given:?}");
        }
    }
    assert_eq!(told(step_of(&[]), &[], "mps"), 0, "a step");
    let mut unknown = SlurmDouble::new(Context::Local);
    unknown.given = None;
    assert!(submit(unknown, "", "mps").1.is_silent());
    // The second component has the flags of the first.
    let node = NodeDouble::new();
    let slurm = SlurmDouble::new(Context::Allocator);
    let (mut process, _) = Process::begin(slurm, &node, "", "mps");
    process.slurm.given = Some(Env::new());
    assert_eq!(process.call(Callback::InitPostOpt), Verdict::Continue);
    assert!(process.slurm.is_silent());
}

/// srun in an allocation that gave these options.
fn step_of(options: &[(&str, &str)]) -> SlurmDouble {
    let slurm = SlurmDouble::new(Context::Local).process("SLURM_JOB_ID", "4711");
    let name = |option: &str| format!("SLURM_SPANK__SLURM_SPANK_OPTION_mps_{option}");
    let set =
        |slurm: SlurmDouble, (option, value): &(&str, &str)| slurm.process(&name(option), value);
    options.iter().fold(slurm, set)
}

#[test]
fn the_prolog_is_told_what_the_job_of_a_step_asked_for() {
    let both = [("mps", "(null)"), ("mps_threads", "50")];
    for (job, told) in [
        (&[][..], ""),
        (&both, "MPS=per-node,MPS_THREADS=50"),
        (&[("mps", "off")], "off"),
        (&[("mps", "perhaps")], ""),
    ] {
        let (verdict, slurm) = submit(step_of(job), "", "mps mps-threads=30");
        assert_eq!(verdict, Verdict::Continue);
        assert_eq!(slurm.script_env["MPS_SUBMIT"], "step");
        assert_eq!(slurm.script_env["MPS_JOB"], told);
    }
}

#[test]
fn a_step_of_a_het_job_without_mps_is_refused() {
    let (verdict, slurm) = submit(step_of(&[]).process("SLURM_HET_SIZE", "2"), "", "mps");
    assert_eq!(verdict, Verdict::EndProcess);
    let error = slurm.errors().concat();
    let allowed = "allowed: --mps for the component";
    assert!(error.contains(allowed), "{error}");
    let with_mps = step_of(&[("mps", "(null)")]).process("SLURM_HET_SIZE", "2");
    let (verdict, slurm) = submit(with_mps, "", "mps");
    assert_eq!(verdict, Verdict::Continue);
    assert!(slurm.is_silent());
}

#[test]
fn a_submission_in_a_job_inherits_nothing_and_a_step_of_the_job_does() {
    let job = "SLURM_JOB_ID=7 SLURM_JOB_NODELIST=n1";
    let element = "SLURM_JOB_ID=9 SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=2";
    let (srun, other) = (Context::Local, Context::Allocator);
    for (context, of_job, words, inherits) in [
        (srun, job, "srun solver", true),
        (srun, job, "srun --jobid 7 solver", true),
        (srun, job, "srun --jobid=7+1 solver", true),
        (srun, element, "srun --jobid=7_2 solver", true),
        (srun, element, "srun --jobid=7_3 solver", false),
        (srun, job, "srun --jobid=8 solver", false),
        (srun, job, "srun --jobid 8 solver", false),
        (srun, "SLURM_JOB_NODELIST=n1", "srun solver", false),
        (srun, "MPSD_JOB=7", "srun solver", false),
        (other, job, "sbatch next.sh", false),
        (other, "MPSD_JOB=7", "salloc", false),
        // The user set the variables.
        (srun, "", "srun solver", true),
        (other, "", "sbatch next.sh", true),
    ] {
        let mut slurm = SlurmDouble::new(context);
        for word in of_job.split_whitespace() {
            let (name, value) = word.split_once('=').unwrap();
            slurm = slurm.process(name, value);
        }
        let option = "_SLURM_SPANK_OPTION_mps_mps";
        let options = [option, &format!("{option}_threads"), "MPS_SUBMIT"];
        for name in options {
            slurm = slurm.process(&format!("SLURM_SPANK_{name}"), "50");
            slurm = slurm.process(name, "50");
            slurm.script_env.insert(name.into(), "50".into());
        }
        slurm.command_line = words.split(' ').map(str::to_owned).collect();
        let node = NodeDouble::new();
        let mut process = Process::new(slurm, &node, "");
        process.call(Callback::Init);
        let is_option = |name: &&String| options.iter().any(|option| name.ends_with(option));
        let left = process.slurm.process_env.keys().filter(is_option).count();
        let expected = if inherits { options.len() } else { 0 };
        let found = (left, process.slurm.script_env.len());
        assert_eq!(found, (2 * expected, expected), "{of_job:?} {words:?}");
    }
}

fn variable<'a>(slurm: &'a SlurmDouble, name: &str) -> Option<&'a str> {
    slurm.process_env.get(name).map(String::as_str)
}

#[test]
fn a_step_in_an_allocation_keeps_or_drops_the_task_prolog_of_the_allocation() {
    let users = Some("/home/u/prolog");
    for (flags, option, allocations, kept) in [
        ("mps=on", Some(OURS), Some(OURS), users),
        ("mps=off", users, users, None),
        ("", users, users, None),
    ] {
        let slurm = SlurmDouble::new(Context::Local).process("SLURM_TASK_PROLOG", OURS);
        let mut slurm = slurm.process("SLURM_MPSD_TASK_PROLOG", "/home/u/prolog");
        slurm.task_prolog = Some(OURS.into());
        let (_, slurm) = submit(slurm, "", flags);
        assert_eq!(slurm.task_prolog.as_deref(), option, "{flags}");
        let found = ["SLURM_TASK_PROLOG", "SLURM_MPSD_TASK_PROLOG"];
        let found = found.map(|name| variable(&slurm, name));
        assert_eq!(found, [allocations, kept], "{flags}");
    }
}

#[test]
fn what_stops_a_script_is_removed_again() {
    for users in [None, Some("/etc/bash.env")] {
        let mut slurm = SlurmDouble::new(Context::Allocator);
        if let Some(users) = users {
            slurm = slurm.process("BASH_ENV", users);
        }
        let (_, sbatch) = submit(slurm, "", "mps=on");
        assert_eq!(variable(&sbatch, "SLURM_TASK_PROLOG"), Some(OURS));
        assert!(variable(&sbatch, "BASH_ENV").is_some_and(|value| value.contains("kill $$")));
        let mut task = SlurmDouble::step(0);
        task.job_env = sbatch.process_env;
        unplugged::restore(&mut task);
        assert_eq!(task.job_env.get("BASH_ENV").map(String::as_str), users);
        assert!(!task.job_env.contains_key("SLURM_MPSD_BASH_ENV"));
    }
}

#[test]
fn mps_in_slurms_own_container_is_refused_before_anything_is_submitted() {
    for (context, _) in SUBMITTERS {
        for (flags, verdict) in [
            ("mps", Verdict::EndProcess),
            ("mps-threads=50", Verdict::EndProcess),
            ("mps=auto", Verdict::Continue),
            ("mps=off", Verdict::Continue),
            ("", Verdict::Continue),
        ] {
            let given = [("gres", "gpu:1"), ("container", "/home/bundle")];
            let slurm = SlurmDouble::new(context).given(&given);
            let (found, slurm) = submit(slurm, "", flags);
            assert_eq!(found, verdict, "{flags}");
            assert_eq!(slurm.errors().is_empty(), verdict == Verdict::Continue);
        }
    }
}
