//! docs/fleets.md: a job's begin and end ask no scheduler anything, with MPS and without.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use tests::place::{Place, fast};
use tests::stage::{USER, openpbs_args};

/// What asks a scheduler, or tells it something.
const COMMANDS: [&str; 9] = [
    "scontrol", "squeue", "sinfo", "scancel", "sacct", "qstat", "pbsnodes", "qalter", "qmgr",
];

/// A node whose schedulers' commands are written down when they are called.
fn watched() -> Place {
    let place = Place::new(fast(1), "");
    let (bin, calls) = (place.stage.path("bin-of-schedulers"), place.stage.path("calls"));
    fs::create_dir(&bin).expect("directory");
    for name in COMMANDS {
        let text = format!("#!/bin/sh\necho \"{name} $*\" >>{}\n", calls.display());
        fs::write(bin.join(name), text).expect("command");
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).expect("chmod");
    }
    let (bin, conf) = (bin.display(), place.stage.path("slurm.conf"));
    fs::write(&conf, "ClusterName=c\n").expect("slurm.conf");
    place.configure(&format!(
        "deadline_s = 6\n[slurm]\nexec = \"{bin}\"\nconf = \"{}\"\n[pbs]\nunattached_tasks = \"warn\"\nexec = \"{bin}\"\nhome = \"{}\"\n",
        conf.display(),
        place.stage.path("pbs").display(),
    ));
    place
}

fn calls(place: &Place) -> String {
    fs::read_to_string(place.stage.path("calls")).unwrap_or_default()
}

/// Slurm's environment for prolog and epilog of `job`.
fn slurm<'a>(job: &'a str, uid: &'a str, context: &'a str) -> [(&'a str, &'a str); 4] {
    [
        ("SLURM_JOB_ID", job),
        ("SLURM_JOB_UID", uid),
        ("SLURMD_NODENAME", "gpu001"),
        ("SLURM_SCRIPT_CONTEXT", context),
    ]
}

#[test]
fn neither_the_begin_nor_the_end_of_a_job_asks_its_scheduler() {
    let place = watched();
    let uid = nix::unistd::User::from_name(USER)
        .ok()
        .flatten()
        .expect("the user");
    let uid = uid.uid.to_string();
    for request in ["MPS=on,MPS_THREADS=25", "proj42"] {
        assert_eq!(place.torque("490.srv", request, "0").code, Some(0));
        place.assert_ends_clean("490.srv", request);

        let begun = place.stage.prologue(&openpbs_args("491.srv", USER, request), &[]);
        assert_eq!(begun.code, Some(0), "{begun:?}");
        let ended = place
            .stage
            .epilogue(&["--scheduler", "openpbs", "491.srv", USER, "nogroup"], &[]);
        assert_eq!(ended.code, Some(0), "{ended:?}");

        let slurms = if request.starts_with("MPS") { request } else { "" };
        let args = ["--scheduler", "slurm", "--gpus", "0", "--request", slurms];
        let begun = place.stage.prologue(&args, &slurm("492", &uid, "prolog_slurmd"));
        assert_eq!(begun.code, Some(0), "{begun:?}");
        let ended = place
            .stage
            .epilogue(&["--strict"], &slurm("492", &uid, "epilog_slurmd"));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert_eq!(calls(&place), "", "{request}");
    }
    // A fault is told, so that a call would have been seen.
    let broken = || {
        let place = watched();
        fs::remove_file(place.stage.node.control()).expect("NVIDIA's daemon");
        place
    };
    let of_slurm = broken();
    let args = ["--scheduler", "slurm", "--gpus", "0", "--request", "MPS=on"];
    of_slurm
        .stage
        .prologue(&args, &slurm("493", &uid, "prolog_slurmd"));
    assert!(calls(&of_slurm).contains("sinfo "), "{}", calls(&of_slurm));
    let of_torque = broken();
    of_torque.torque("494.srv", "MPS=on", "0");
    assert!(calls(&of_torque).contains("pbsnodes "), "{}", calls(&of_torque));
}
