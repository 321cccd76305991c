//! `mpsctl doctor` on a healthy node and on broken ones: each break is found, and its remedy makes
//! the line OK.

use std::fs;
use std::path::Path;
use std::process::Command;

use assert_cmd::assert::OutputAssertExt as _;
use mpsd_core::config::DEFAULT_PATH;
use mpsd_core::environment::{LOG_DIRECTORY, PIPE_DIRECTORY};
use nix::mount::{MsFlags, mount};
use predicates::prelude::PredicateBooleanExt as _;
use predicates::str::contains;
use tests::double::mig;
use tests::node_bed::{NodeBed, Running, eventually, fast};
use tests::run::{Ran, USER, built, chmod, finish, prologue_on_gpu_0, script, skip};
use tests::scarcity::{Small, alone};

fn bed() -> NodeBed {
    NodeBed::new(fast(2), "")
}

fn doctor(bed: &NodeBed, args: &[&str]) -> Ran {
    bed.mpsctl(&[&["doctor", "--node", "n1"], args].concat())
}

fn reconcile(bed: &NodeBed) -> Ran {
    bed.mpsctl(&["reconcile", "--node", "n1"]).ok()
}

/// The machine of the test may add some: it has no systemd, and no scheduler or several.
fn problems(bed: &NodeBed) -> Vec<String> {
    let ran = doctor(bed, &["--problems"]);
    assert!(ran.err.is_empty(), "{ran:?}");
    let lines: Vec<String> = ran.out.lines().map(str::to_owned).collect();
    let has = |word: &str| lines.iter().any(|line| line.starts_with(word));
    let code = if has("FAIL") { 2 } else { 0 };
    assert_eq!(ran.code, Some(code), "{ran:?}");
    lines
}

/// After `harm` the node has this line; after `remedy` it has none.
#[track_caller]
fn found(
    bed: &mut NodeBed,
    line: &str,
    harm: impl FnOnce(&mut NodeBed),
    remedy: impl FnOnce(&mut NodeBed),
) {
    let says = |bed: &NodeBed, expected: bool, when: &str| {
        let all = problems(bed);
        let told = all.iter().any(|told| told.contains(line));
        assert_eq!(told, expected, "'{line}' {when}: {all:#?}");
    };
    says(bed, false, "before");
    harm(bed);
    says(bed, true, "after the harm");
    remedy(bed);
    says(bed, false, "after the remedy");
}

#[test]
fn a_healthy_node_is_told_line_by_line_and_is_left_as_it_was() {
    let bed = bed();
    let ran = doctor(&bed, &[]);
    for line in [
        "OK    mpsd.toml can be used\n",
        "OK    NVML answers\n",
        "OK    driver 580.159.04, 2 x NVIDIA H200\n",
        "OK    persistence mode is on\n",
        "OK    a job's daemons get a cgroup of their own\n",
        "OK    no job left anything\n",
        "nvidia-cuda-mps-server' is a program of root's\n",
    ] {
        ran.prints(line);
    }
    // Equal lines of a thousand nodes must fold into one, so a good line has no pid, host or time.
    let good = |ran: &Ran| -> Vec<String> {
        let lines = ran.out.lines().filter(|line| line.starts_with("OK"));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(good(&ran), good(&doctor(&bed, &[])));
    let said = doctor(&bed, &["--json"]).json();
    let findings = said["findings"].as_array().expect("findings");
    let is_nvml = |one: &serde_json::Value| one["status"] == "OK" && one["text"] == "NVML answers";
    assert!(findings.iter().any(is_nvml), "{said}");
    bed.assert_as_before("a check");
}

#[test]
fn the_vendors_programs_must_be_there_and_roots_alone() {
    let mut bed = bed();
    let control = bed.node.control();
    let away = control.with_extension("away");
    let line = "FAIL  NVIDIA's MPS: cannot open";
    let [remove, restore] = [(&control, &away), (&away, &control)]
        .map(|(from, to)| move |_: &mut NodeBed| fs::rename(from, to).expect("rename"));
    found(&mut bed, line, remove, restore);
    let mode = |mode: u32| {
        let control = &control;
        move |_: &mut NodeBed| chmod(control, mode)
    };
    let line = "may be written by group or others";
    found(&mut bed, line, mode(0o777), mode(0o755));
}

#[test]
fn a_dead_driver_and_a_gpu_without_persistence_mode_are_found() {
    let mut bed = bed();
    let dead =
        |is: bool| move |bed: &mut NodeBed| bed.node.change(|node| node.nvml.init_fails = is);
    let line = "the first job that asks for MPS takes the node out of service; see 'nvidia-smi'";
    found(&mut bed, line, dead(true), dead(false));
    let kept =
        |is: bool| move |bed: &mut NodeBed| bed.node.change(|node| node.gpu[1].persistence = is);
    let line = "WARN  GPU 1 without persistence mode: the driver wakes the GPU for each job";
    found(&mut bed, line, kept(false), kept(true));
}

#[test]
fn mps_on_mig_devices_is_said_to_be_unverified() {
    let divided = |count: u32| {
        move |bed: &mut NodeBed| {
            let devices = (0..count).map(|number| mig(1, number)).collect();
            bed.node.change(|node| node.gpu[1].mig = devices);
        }
    };
    let line = "WARN  GPU 1 in MIG mode, with 2 MIG devices. Each gets its own MPS: documented, not verified";
    found(&mut bed(), line, divided(2), divided(0));
}

/// A user who has used up the memory can cause it, so no health check may drain the node for it.
#[test]
fn an_answer_that_did_not_come_is_no_proof() {
    let mut bed = bed();
    let killed =
        |is: bool| move |bed: &mut NodeBed| bed.node.change(|node| node.nvml.init_killed = is);
    killed(true)(&mut bed);
    let all = problems(&bed);
    let of_nvml = all.iter().filter(|told| told.contains("NVML"));
    assert_eq!(of_nvml.count(), 1, "{all:#?}");
    killed(false)(&mut bed);
    let line = "WARN  could not be told now: NVML: the process that called it ended by ";
    found(&mut bed, line, killed(true), killed(false));
}

/// Its scheduler cannot be asked here, so the job does not count as gone.
#[test]
fn a_job_that_left_something_at_its_end_is_told_and_is_not_up() {
    let status = |bed: &NodeBed| bed.mpsctl(&["status"]);
    let leave = |bed: &mut NodeBed| {
        bed.begin("12.srv", "MPS=true", "0");
        status(bed).prints("MPS is up");
        // NVML_ERROR_MEMORY.
        bed.node.change(|node| node.nvml.init_answers = 20);
        bed.strict_end("12.srv").exits(2);
        bed.node.change(|node| node.nvml.init_answers = 0);
        let told = "its MPS was taken down, and something of it is left";
        status(bed).prints(told).lacks("MPS is up");
        let one = bed.mpsctl(&["status", "12.srv", "--json"]).exits(1);
        one.prints("\"state\":\"left\"");
        doctor(bed, &[]).lacks("no job left anything");
    };
    let line = "WARN  job 12.srv: its end left something of its MPS";
    let remedy = |bed: &mut NodeBed| drop(bed.end("12.srv"));
    found(&mut bed(), line, leave, remedy);
}

#[track_caller]
fn assert_one(told: &[String], is_it: &dyn Fn(&String) -> bool) {
    assert!(told.len() == 1 && told.iter().all(is_it), "{told:?}");
}

/// Such as `nvidia-mps.service`.
#[test]
fn a_daemon_of_roots_is_named_meets_no_job_and_fails_the_node_if_it_holds_an_exclusive_gpu() {
    let bed = NodeBed::new(fast(1), "deadline_s = 6");
    let [pipe, log] = ["pipe", "log"].map(|name| bed.directory(name).display().to_string());
    let env = [(PIPE_DIRECTORY, pipe.as_str()), (LOG_DIRECTORY, &log)];
    let told = || -> Vec<String> {
        let of_it = |line: &String| line.contains(&format!("pipe directory '{pipe}'"));
        problems(&bed).into_iter().filter(of_it).collect()
    };
    let of_root = |program: &Path| {
        let mut command = Command::new(program);
        command.env_clear().envs(env);
        command
    };
    assert_eq!(told(), Vec::<String>::new());
    finish(of_root(&bed.node.control()).arg("-d")).ok();
    let named = |line: &String| line.starts_with("WARN  an MPS daemon of root that is no job's");
    assert_one(&told(), &named);
    // As after an upgrade of its package.
    let (control, new) = (bed.node.control(), bed.path("new"));
    fs::copy(&control, &new).expect("a program");
    fs::rename(new, control).expect("its place");
    assert_one(&told(), &named);

    // slurmd may have its variables.
    let args = prologue_on_gpu_0("1.srv", "MPS=true");
    bed.prologue(&args, &env).ok();
    bed.served("1.srv", &[]);
    let all = problems(&bed);
    let mut lines = all.iter();
    let is_named = lines.any(|line| line.contains(&bed.pipe("1.srv").1));
    assert!(!is_named, "{all:#?}");
    bed.end("1.srv");
    let used = fs::read_to_string(bed.path("log/control.log")).expect("its log");
    assert!(!used.contains("NEW CLIENT"), "{used}");

    let mut client = of_root(&bed.node.client());
    client.arg("--node").arg(bed.node.dir());
    client.args(["--hold", "60"]);
    let client = Running::silent(client);
    eventually("the client attaches", || bed.has_context(client.pid()));
    assert_one(&told(), &named);
    bed.node.set_mode(&bed.node.uuids()[0], "exclusive_process");
    let fails = |line: &String| line.starts_with("FAIL") && line.contains(" holds GPU 0, ");
    assert_one(&told(), &fails);
    let refused = bed.torque_on_gpu_0("2.srv", "MPS=true");
    refused.complains("root's nvidia-cuda-mps-server (process ");
}

/// A doctor that was killed between its two steps leaves a cgroup.
#[test]
fn the_cgroup_of_a_doctor_that_was_killed_is_removed_by_reconcile() {
    let mut bed = bed();
    let base = bed.cgroups.clone().expect("cgroups");
    // No process has a number this high (PID_MAX_LIMIT).
    let dead = base.join("of-4194305");
    let line = "of a program of ours that was killed: would be removed";
    let harm = |_: &mut NodeBed| fs::create_dir(&dead).expect("cgroup");
    let remedy = |bed: &mut NodeBed| {
        // The cgroup of a process that still runs.
        let other = base.join(format!("of-{}", std::process::id()));
        fs::create_dir(&other).expect("cgroup");
        reconcile(bed).prints("of-4194305");
        assert!(!dead.exists() && other.exists());
        fs::remove_dir(&other).expect("cgroup");
    };
    found(&mut bed, line, harm, remedy);
}

/// A job with MPS fails then, too.
#[test]
fn a_missing_configuration_is_no_good_one() {
    if Path::new(DEFAULT_PATH).exists() {
        return skip("suite, a missing configuration", "this machine has one");
    }
    let ran = Command::new(built("mpsctl")).arg("doctor").assert().code(2);
    let ran = ran.stdout(contains("FAIL  configuration: cannot open '/etc/mpsd"));
    let ran = ran.stdout(contains("'mpsctl config check' tells when it is good"));
    ran.stdout(contains("OK    mpsd.toml can be used").not());
}

#[test]
fn a_typo_in_the_configuration_a_missing_cgroup_and_a_closed_directory_are_found() {
    let configure = |extra: &'static str| move |bed: &mut NodeBed| bed.configure(extra);
    let line = "unknown key 'replicsa' (did you mean 'replicas'?)";
    let mut bed = bed();
    let (typo, right) = (configure("replicsa = 4"), configure("replicas = 4"));
    found(&mut bed, line, typo, right);

    let line = "WARN  a job's daemons get no cgroup of their own (";
    let elsewhere = |bed: &mut NodeBed| bed.configure_whole("cgroup = \"/nonexistent\"");
    found(&mut bed, line, elsewhere, configure(""));

    let run = |mode: u32| move |bed: &mut NodeBed| chmod(&bed.path("run"), mode);
    let line =
        "does not let users pass, so that no server starts and no client finds its own; chmod o+x";
    found(&mut bed, line, run(0o700), run(0o755));

    let line = "may be written by group or others (mode 0777): chmod go-w; until then no task";
    found(&mut bed, line, run(0o777), run(0o755));
    let state = |mode: u32| move |bed: &mut NodeBed| chmod(&bed.path("state"), mode);
    let line = "WARN  state_dir: '";
    found(&mut bed, line, state(0o775), state(0o755));
}

#[test]
fn directories_that_are_full_or_read_only_are_found() {
    alone(|| {
        for (name, then) in [
            ("run", "no job's MPS starts here"),
            ("state", "drains and reports are lost"),
        ] {
            let mut bed = bed();
            let path = bed.path(name);
            let small = Small::over(&path, 1024, 0o755);
            // Users can fill it, and a health check drains for FAIL.
            let line = format!("free: {then}");
            found(&mut bed, &line, |_| small.leave(0), |_| small.free());
            let line = format!("FAIL  {name}_dir");
            let remount = |flags: MsFlags| {
                let flags = flags | MsFlags::MS_REMOUNT;
                mount(None::<&str>, &path, None::<&str>, flags, None::<&str>).expect("mount");
            };
            let (closed, open) = (MsFlags::MS_RDONLY, MsFlags::empty());
            found(&mut bed, &line, |_| remount(closed), |_| remount(open));
        }
    });
}

#[test]
fn what_a_job_left_is_removed_by_the_verb_that_the_line_names() {
    let line = "a lock and no account: would be removed, and the compute mode found restored; 'mpsctl reconcile'";
    let harm = |bed: &mut NodeBed| {
        let gpus = bed.directory("run/gpus");
        chmod(&gpus, 0o711);
        let uuid = &bed.node.uuids()[0];
        fs::write(gpus.join(format!(".{uuid}.lock")), "").expect("lock");
    };
    found(&mut bed(), line, harm, |bed| drop(reconcile(bed)));
}

/// A health check goes by it: one edit for all nodes must not drain them all.
#[test]
fn what_is_the_nodes_own_is_told_apart_from_what_an_edit_mends() {
    let own = |bed: &NodeBed| {
        let ran = doctor(bed, &["--own", "--problems"]);
        let lines = ran.out.lines().filter(|line| line.starts_with("FAIL"));
        (ran.code, lines.map(str::to_owned).collect::<Vec<_>>())
    };
    let bed = bed();
    assert_eq!(own(&bed), (Some(0), vec![]));
    let sound = fs::read_to_string(bed.config()).expect("mpsd.toml");
    for shared in ["[slurm]\nconf = \"/no/slurm.conf\"\n", "[slurm]\nno = 1\n"] {
        fs::write(bed.config(), format!("{sound}\n{shared}")).expect("mpsd.toml");
        doctor(&bed, &["--problems"]).prints("FAIL  ");
        assert_eq!(own(&bed), (Some(0), vec![]), "{shared}");
    }
    fs::write(bed.config(), sound).expect("mpsd.toml");
    fs::remove_file(bed.node.control()).expect("NVIDIA's program");
    let (code, lines) = own(&bed);
    assert_eq!((code, lines.len()), (Some(2), 1), "{lines:?}");
    assert!(lines[0].contains("NVIDIA's MPS"), "{lines:?}");
}

#[test]
fn an_ordinary_user_is_told_what_only_root_can_see() {
    let ran = bed().mpsctl_as(USER, &["doctor", "--problems"], &[]);
    ran.prints("run it as root");
}

#[test]
fn the_example_for_nhc_takes_out_a_node_on_which_something_fails_and_no_other() {
    const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/examples/mpsd.nhc");
    const DIED: &str = "died 1 check_mpsd:  no daemon\nstatus 1\n";
    let dir = tempfile::tempdir().expect("directory");
    let mpsctl = dir.path().join("mpsctl");
    for (text, code, outcome) in [
        ("''", 0, "status 0\n"),
        ("'WARN  a' 'WARN  b'", 0, "status 0\n"),
        // Killed, not found, or a misread command line: no line says that something fails.
        ("'FAIL  half a line'", 137, "status 0\n"),
        ("''", 127, "status 0\n"),
        ("'WARN  a FAIL  b'", 2, "status 0\n"),
        ("'WARN  a' 'FAIL  no daemon' 'FAIL  c'", 2, DIED),
    ] {
        let body = format!("[ \"$2\" = --own ] && printf '%s\\n' {text}\nexit {code}");
        script(&mpsctl, &body);
        // NHC's die() writes the reason down and returns.
        let check = "die() { echo \"died $*\"; }; . \"$1\"; check_mpsd; echo \"status $?\"";
        let mut command = Command::new("/bin/bash");
        command.args(["-c", check, "nhc", EXAMPLE]);
        let ran = finish(command.env("MPSCTL", &mpsctl));
        assert_eq!(ran.out, outcome, "{text} {code}");
    }
}

#[test]
fn what_a_newer_driver_is_only_documented_for_is_told() {
    for (driver, told) in [("580.159.04", false), ("590.44.01", true)] {
        let node = fast(1).describe(|node| node.driver_version = driver.to_owned());
        let ran = doctor(&NodeBed::new(node, ""), &[]);
        let line = "OK    60 clients a GPU: as NVIDIA documents it, not verified";
        assert_eq!(ran.out.contains(line), told, "{}", ran.out);
    }
}
