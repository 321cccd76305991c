//! docs/fleets.md: the begin and the end of a job ask no scheduler, with MPS and without.

use std::fs;

use tests::place::{Place, fast};
use tests::stage::{Ran, USER, script, slurm_env, uid_of};

const COMMANDS: [&str; 9] = [
    "scontrol", "squeue", "sinfo", "scancel", "sacct", "qstat", "pbsnodes", "qalter", "qmgr",
];

fn watched() -> Place {
    let place = Place::new(fast(1), "");
    let (bin, calls) = (place.directory("bin-of-schedulers"), place.path("calls"));
    for name in COMMANDS {
        script(
            &bin.join(name),
            &format!("echo \"{name} $*\" >>{}", calls.display()),
        );
    }
    let (bin, conf) = (bin.display(), place.path("slurm.conf"));
    fs::write(&conf, "ClusterName=c\n").expect("slurm.conf");
    let (conf, home) = (conf.display(), place.path("pbs"));
    let slurm = format!("[slurm]\nexec = \"{bin}\"\nconf = \"{conf}\"\n");
    let pbs = format!("exec = \"{bin}\"\nhome = \"{}\"\n", home.display());
    place.configure(&format!(
        "deadline_s = 6\n{slurm}[pbs]\nunattached_tasks = \"warn\"\n{pbs}"
    ));
    place
}

fn calls(place: &Place) -> String {
    fs::read_to_string(place.path("calls")).unwrap_or_default()
}

fn prolog(place: &Place, job: &str, request: &str) -> Ran {
    let args = ["--scheduler", "slurm", "--gpus", "0", "--request", request];
    let uid = uid_of(USER).to_string();
    place.prologue(&args, &slurm_env(job, &uid, "prolog_slurmd"))
}

#[test]
fn neither_the_begin_nor_the_end_of_a_job_asks_its_scheduler() {
    let place = watched();
    let uid = uid_of(USER).to_string();
    for (request, of_slurm) in [
        ("MPS=on,MPS_THREADS=25", "MPS=on,MPS_THREADS=25"),
        ("proj42", ""),
    ] {
        place.begin("490.srv", request, "0");
        place.assert_ends_clean("490.srv", request);

        place.openpbs("491.srv", USER, request).ok();
        let end = ["--scheduler", "openpbs", "491.srv", USER, "nogroup"];
        place.epilogue(&end, &[]).ok();
        // Without place=exclhost only the server knows whether a job has its node alone.
        let asked = calls(&place);
        let once = asked.starts_with("pbsnodes ") && asked.lines().count() == 1;
        assert!(
            if of_slurm.is_empty() {
                asked.is_empty()
            } else {
                once
            },
            "{request}: {asked}"
        );
        let _ = fs::remove_file(place.path("calls"));

        prolog(&place, "492", of_slurm).ok();
        let epilog = slurm_env("492", &uid, "epilog_slurmd");
        place.epilogue(&["--strict"], &epilog).ok();
        assert_eq!(calls(&place), "", "{request}");
    }
    // A fault is reported to the scheduler, which proves that the watch sees calls.
    let broken = || {
        let place = watched();
        fs::remove_file(place.node.control()).expect("NVIDIA's daemon");
        place
    };
    let place = broken();
    prolog(&place, "493", "MPS=on");
    assert!(calls(&place).contains("sinfo "), "{}", calls(&place));
    let place = broken();
    place.torque("494.srv", "MPS=on", "0");
    assert!(calls(&place).contains("pbsnodes "), "{}", calls(&place));
}
