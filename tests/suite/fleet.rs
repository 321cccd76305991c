//! docs/fleets.md: the begin and the end of a job ask no scheduler, with MPS and without.

use std::fs;

use tests::node_bed::{NodeBed, fast};
use tests::run::{Ran, USER, script, slurm_env, uid_of};

const COMMANDS: [&str; 9] = [
    "scontrol", "squeue", "sinfo", "scancel", "sacct", "qstat", "pbsnodes", "qalter", "qmgr",
];

fn watched() -> NodeBed {
    let bed = NodeBed::new(fast(1), "");
    let (bin, calls) = (bed.directory("bin-of-schedulers"), bed.path("calls"));
    for name in COMMANDS {
        let body = format!("echo \"{name} $*\" >>{}", calls.display());
        script(&bin.join(name), &body);
    }
    let (bin, conf) = (bin.display(), bed.path("slurm.conf"));
    fs::write(&conf, "ClusterName=c\n").expect("slurm.conf");
    let (conf, home) = (conf.display(), bed.path("pbs"));
    let slurm = format!("[slurm]\nexec = \"{bin}\"\nconf = \"{conf}\"\n");
    let pbs = format!("exec = \"{bin}\"\nhome = \"{}\"\n", home.display());
    let pbs = format!("[pbs]\nunattached_tasks = \"warn\"\n{pbs}");
    bed.configure(&format!("deadline_s = 6\n{slurm}{pbs}"));
    bed
}

fn calls(bed: &NodeBed) -> String {
    fs::read_to_string(bed.path("calls")).unwrap_or_default()
}

fn prolog(bed: &NodeBed, job: &str, request: &str) -> Ran {
    let args = ["--scheduler", "slurm", "--gpus", "0", "--request", request];
    let uid = uid_of(USER).to_string();
    bed.prologue(&args, &slurm_env(job, &uid, "prolog_slurmd"))
}

#[test]
fn neither_the_begin_nor_the_end_of_a_job_asks_its_scheduler() {
    let bed = watched();
    let uid = uid_of(USER).to_string();
    for (request, of_slurm) in [
        ("MPS=on,MPS_THREADS=25", "MPS=on,MPS_THREADS=25"),
        ("proj42", ""),
    ] {
        bed.begin("490.srv", request, "0");
        bed.assert_ends_clean("490.srv", request);

        bed.openpbs("491.srv", USER, request).ok();
        let end = ["--scheduler", "openpbs", "491.srv", USER, "nogroup"];
        bed.epilogue(&end, &[]).ok();
        // Without place=exclhost only the server knows whether a job has its node alone.
        let asked = calls(&bed);
        let expected: &[&str] = if of_slurm.is_empty() {
            &[]
        } else {
            &["pbsnodes"]
        };
        let commands = asked.lines().filter_map(|line| line.split(' ').next());
        assert_eq!(Vec::from_iter(commands), expected, "{request}: {asked}");
        let _ = fs::remove_file(bed.path("calls"));

        prolog(&bed, "492", of_slurm).ok();
        let epilog = slurm_env("492", &uid, "epilog_slurmd");
        bed.epilogue(&["--strict"], &epilog).ok();
        assert_eq!(calls(&bed), "", "{request}");
    }
    // A fault is reported to the scheduler, which proves that the watch sees calls.
    let broken = || {
        let bed = watched();
        fs::remove_file(bed.node.control()).expect("NVIDIA's daemon");
        bed
    };
    let bed = broken();
    prolog(&bed, "493", "MPS=on");
    assert!(calls(&bed).contains("sinfo "), "{}", calls(&bed));
    let bed = broken();
    bed.torque("494.srv", "MPS=on", "0");
    assert!(calls(&bed).contains("pbsnodes "), "{}", calls(&bed));
}
