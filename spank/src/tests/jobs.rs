//! job_prolog and job_epilog.

use super::double::{NodeDouble, Process, SlurmDouble, ended, path_of, record};
use crate::handle::{Context, ProgramResult, Verdict};
use crate::plugin::Callback;
use mpsd_core::failure::FailureKind;
use mpsd_core::record::RecordState;

fn script() -> SlurmDouble {
    SlurmDouble::new(Context::JobScript)
}

fn asking() -> SlurmDouble {
    script().asking("mps=(null) mps-threads=25")
}

fn prolog(slurm: SlurmDouble, node: &NodeDouble) -> (Verdict, SlurmDouble) {
    let mut process = Process::new(slurm, node, "");
    (process.call(Callback::JobProlog), process.slurm)
}

#[test]
fn a_job_that_did_not_ask_starts_nothing_and_prints_nothing() {
    let of_step = |job| {
        let step = asking().process("SPANK_MPS_SUBMIT", "step");
        step.process("SPANK_MPS_JOB", job)
    };
    let off = script().asking("mps=off mps-threads=25");
    for (node, line, slurm) in [
        (NodeDouble::new(), "", script()),
        (NodeDouble::broken(), "", script()),
        (NodeDouble::new(), "", off),
        // A step came first, and its flags are not its job's.
        (NodeDouble::new(), "", of_step("")),
        (NodeDouble::new(), "", of_step("off")),
        (NodeDouble::new(), "unknown=1", asking()),
    ] {
        let mut process = Process::new(slurm, &node, line);
        assert_eq!(process.call(Callback::JobProlog), Verdict::Continue);
        assert!(node.nothing_ran() && process.slurm.is_silent(), "'{line}'");
    }
}

#[test]
fn the_request_goes_on_in_canonical_form_and_the_environment_cleaned() {
    let node = NodeDouble::new();
    let slurm = asking().process("SLURM_JOB_GPUS", "0,1");
    let slurm = slurm.process("LD_PRELOAD", "/tmp/x");
    assert_eq!(prolog(slurm, &node).0, Verdict::Continue);
    let words = node.words();
    let common = "--scheduler slurm --config /etc/mpsd/mpsd.toml --request ";
    let rest = words.strip_prefix(common).unwrap();
    assert_eq!(rest, "MPS=per-node,MPS_THREADS=25 --record --wait ready");
    let ran = node.ran.borrow();
    assert_eq!(ran[0].path.to_str(), Some("/usr/libexec/mpsd/mps-prologue"));
    let names = ran[0].environment.iter().map(|(name, _)| name.as_str());
    assert!(names.eq(["SLURMD_NODENAME", "SLURM_JOB_GPUS"]));
    // For a step that comes first, its job's request counts, and the program refuses flags that
    // nothing has checked.
    let step = asking().process("SPANK_MPS_SUBMIT", "step");
    let step = step.process("SPANK_MPS_JOB", "MPS=per-node,MPS_THREADS=50");
    let mut forged = script().asking("mps mps-mem=x");
    forged.options[1].1 = Some("4G;MPS=off \n".into());
    let whole = "MPS=per-node,MPS_THREADS=50 ";
    for (slurm, request) in [(step, whole), (forged, "MPS=on,MPS_MEM=4G?MPS=off?? ")] {
        let refused = Some(record("4711", RecordState::Refused));
        let node = NodeDouble::new().answering(ended(1, "refused"), refused);
        assert_eq!(prolog(slurm, &node).0, Verdict::Continue);
        let words = node.words();
        assert!(words.contains(&format!("--request {request}")), "{words}");
    }
}

#[test]
fn only_a_job_of_srun_is_waited_for_in_its_task() {
    for (by, wait) in [("srun", "started"), ("sbatch", "ready")] {
        let node = NodeDouble::new();
        prolog(asking().process("SPANK_MPS_SUBMIT", by), &node);
        assert!(node.words().ends_with(&format!("--wait {wait}")), "{by}");
    }
}

#[test]
fn only_a_fault_on_a_site_that_drains_fails_the_prolog() {
    let failed = |kind| {
        let mut failed = record("4711", RecordState::Failed);
        failed.kind = Some(kind);
        Some(failed)
    };
    let fault = || failed(FailureKind::Fault);
    let unknown = failed(FailureKind::Undetermined);
    let refused = || Some(record("4711", RecordState::Refused));
    for (code, lines, leaves, drains, verdict) in [
        (0, "", None, true, Verdict::Continue),
        (1, "refused", refused(), true, Verdict::Continue),
        (2, "killed", unknown, true, Verdict::Continue),
        (2, "NVML is dead", fault(), true, Verdict::EndProcess),
        (2, "NVML is dead", fault(), false, Verdict::Continue),
        // A refusal is never a fault, whatever an older record says.
        (1, "refused", fault(), true, Verdict::Continue),
    ] {
        let answer = ended(code, lines);
        let mut node = NodeDouble::new().answering(answer.clone(), leaves.clone());
        node.settings.as_mut().unwrap().drain.enabled = drains;
        let (outcome, slurm) = prolog(asking(), &node);
        assert_eq!(outcome, verdict, "{answer:?}");
        assert_eq!(slurm.errors().len(), answer.lines.len(), "{answer:?}");
        let records: Vec<_> = node.records.borrow().values().cloned().collect();
        assert_eq!(records, Vec::from_iter(leaves));
    }
}

#[test]
fn a_program_that_left_no_settled_record_is_recorded_by_the_plugin() {
    let without = |why: &str| ProgramResult {
        code: Err(why.into()),
        lines: Vec::new(),
    };
    let missing = "cannot run 'x': no such file";
    let killed = "did not end within 30 s and was killed";
    let broke = "mps-prologue: job 4711: it broke";
    let several = "first\nmps-prologue: job 4711: last: one";
    let starting = || Some(record("4711", RecordState::Starting));
    for (answer, leaves, reason) in [
        (without(missing), None, missing),
        // No task waits for it.
        (without(killed), starting(), killed),
        (ended(2, broke), starting(), "it broke"),
        (ended(2, several), None, "last: one"),
        (ended(101, ""), None, "the prologue failed without a word"),
    ] {
        let node = NodeDouble::new().answering(answer, leaves);
        let (verdict, slurm) = prolog(asking(), &node);
        assert_eq!(verdict, Verdict::Continue);
        assert!(!slurm.errors().is_empty());
        let left = node.records.borrow()[&path_of(&record("4711", RecordState::Failed))].clone();
        assert_eq!((left.state, left.uid), (RecordState::Failed, 1000));
        assert_eq!(left.reason.as_deref(), Some(reason));
    }
}

#[test]
fn the_configuration_gives_mps_to_jobs_of_its_choice() {
    let gres = "auto_gres = true";
    let constraint = "auto_constraint = \"mps\"";
    let partitions = "auto_partitions = [\"shared\"]";
    let script = || script().process("SLURM_JOB_GPUS", "0");
    let (partition, features) = ("SLURM_JOB_PARTITION", "SLURM_JOB_CONSTRAINTS");
    for (automatic, name, value, gets_mps) in [
        (gres, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50", true),
        (gres, partition, "shared", false),
        (constraint, features, "[a100*2&mps*1]|h100", true),
        (constraint, features, "mps2&nomps", false),
        (partitions, partition, "shared", true),
        (partitions, partition, "share", false),
    ] {
        let node = NodeDouble::under(automatic);
        prolog(script().process(name, value), &node);
        assert_eq!(!node.nothing_ran(), gets_mps, "{name}={value}");
        // The user's own word wins.
        let node = NodeDouble::under(automatic);
        prolog(script().process(name, value).asking("mps=off"), &node);
        assert!(node.nothing_ran());
    }
}

#[test]
fn the_sites_mode_is_auto_unless_it_says_another_and_a_job_without_gpus_costs_nothing() {
    for (config, request) in [
        ("", "MPS=auto"),
        ("[defaults]\nmode = \"on\"", "MPS=per-node"),
        ("[defaults]\nmode = \"own\"", "MPS=own"),
    ] {
        let node = NodeDouble::under(&format!("auto_partitions = [\"shared\"]\n{config}"));
        let slurm = || script().process("SLURM_JOB_PARTITION", "shared");
        prolog(slurm().process("SLURM_JOB_GPUS", ""), &node);
        assert!(node.nothing_ran());
        prolog(slurm().process("SLURM_JOB_GPUS", "0"), &node);
        let words = node.words();
        assert!(words.contains(&format!("--request {request} ")), "{words}");
        assert!(words.ends_with(" --by-site"), "{words}");
    }
}

#[test]
fn the_epilog_cleans_what_is_there_whatever_was_asked() {
    for (directories, look_again, settings, cleans) in [
        ("", false, Ok(()), false),
        ("4711", false, Ok(()), true),
        ("4711.3", false, Ok(()), true),
        ("47110 47 4712.0", false, Ok(()), false),
        ("", true, Ok(()), true),
        ("4711", false, Err(()), true),
    ] {
        let mut node = match settings {
            Ok(()) => NodeDouble::new(),
            Err(()) => NodeDouble::broken(),
        };
        node.directories = directories.split_whitespace().collect();
        node.look_again = look_again;
        let mut process = Process::new(script(), &node, "unknown=1");
        assert_eq!(process.call(Callback::JobEpilog), Verdict::Continue);
        assert_eq!(!node.nothing_ran(), cleans, "{directories:?} {look_again}");
        assert!(process.slurm.is_silent());
        // It drains by itself; the plugin only logs that.
        node.answer = Some(ended(3, "drained: mps-server in state D"));
        let mut process = Process::new(script(), &node, "");
        assert_eq!(process.call(Callback::JobEpilog), Verdict::Continue);
        let line = "job 4711: drained: mps-server in state D";
        assert_eq!(process.slurm.errors(), vec![line; usize::from(cleans)]);
    }
}
