//! `mpsctl doctor` on a healthy node and on broken ones: each break is found, and its remedy makes
//! the line OK.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use assert_cmd::assert::OutputAssertExt as _;
use mpsd_core::config::DEFAULT_PATH;
use mpsd_core::environment::{LOG_DIRECTORY, PIPE_DIRECTORY};
use nix::mount::{MsFlags, mount};
use predicates::prelude::PredicateBooleanExt as _;
use predicates::str::contains;
use tests::double::mig;
use tests::place::{Place, Running, eventually, fast};
use tests::scarcity::{Small, alone};
use tests::stage::{Ran, USER, built, chmod, finish, prologue_on_gpu_0, script};

/// A node as at a site: cgroups, the vendor's two programs, NVML.
fn place() -> Place {
    Place::new(fast(2), "")
}

fn doctor(place: &Place, args: &[&str]) -> Ran {
    place.mpsctl(&[&["doctor", "--node", "n1"], args].concat())
}

fn reconcile(place: &Place) -> Ran {
    place.mpsctl(&["reconcile", "--node", "n1"]).ok()
}

/// The lines that are not OK. The machine of the test may add some: it has no systemd, and no
/// scheduler or several.
fn problems(place: &Place) -> Vec<String> {
    let ran = doctor(place, &["--problems"]);
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
    place: &mut Place,
    line: &str,
    harm: impl FnOnce(&mut Place),
    remedy: impl FnOnce(&mut Place),
) {
    let says = |place: &Place, expected: bool, when: &str| {
        let all = problems(place);
        let told = all.iter().any(|told| told.contains(line));
        assert_eq!(told, expected, "'{line}' {when}: {all:#?}");
    };
    says(place, false, "before");
    harm(place);
    says(place, true, "after the harm");
    remedy(place);
    says(place, false, "after the remedy");
}

#[test]
fn a_healthy_node_is_told_line_by_line_and_is_left_as_it_was() {
    let place = place();
    let ran = doctor(&place, &[]);
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
    assert_eq!(good(&ran), good(&doctor(&place, &[])));
    let said = doctor(&place, &["--json"]).json();
    let findings = said["findings"].as_array().expect("findings");
    let is_nvml = |one: &serde_json::Value| one["status"] == "OK" && one["text"] == "NVML answers";
    assert!(findings.iter().any(is_nvml), "{said}");
    place.assert_as_before("a check");
}

#[test]
fn the_vendors_programs_must_be_there_and_roots_alone() {
    let mut place = place();
    let control = place.node.control();
    let away = control.with_extension("away");
    let line = "FAIL  NVIDIA's MPS: cannot open";
    let [remove, restore] = [(&control, &away), (&away, &control)]
        .map(|(from, to)| move |_: &mut Place| fs::rename(from, to).expect("rename"));
    found(&mut place, line, remove, restore);
    let mode = |mode: u32| {
        let control = &control;
        move |_: &mut Place| chmod(control, mode)
    };
    let line = "may be written by group or others";
    found(&mut place, line, mode(0o777), mode(0o755));
}

#[test]
fn a_dead_driver_and_a_gpu_without_persistence_mode_are_found() {
    let mut place = place();
    let dead =
        |is: bool| move |place: &mut Place| place.node.change(|node| node.nvml.init_fails = is);
    let line = "the first job that asks for MPS takes the node out of service; see 'nvidia-smi'";
    found(&mut place, line, dead(true), dead(false));
    let kept =
        |is: bool| move |place: &mut Place| place.node.change(|node| node.gpu[1].persistence = is);
    let line = "WARN  GPU 1 without persistence mode: the driver wakes the GPU for each job";
    found(&mut place, line, kept(false), kept(true));
}

#[test]
fn mps_on_mig_devices_is_said_to_be_unverified() {
    let divided = |count: u32| {
        move |place: &mut Place| {
            let devices = (0..count).map(|number| mig(1, number)).collect();
            place.node.change(|node| node.gpu[1].mig = devices);
        }
    };
    let line = "WARN  GPU 1 in MIG mode, with 2 MIG devices. Each gets its own MPS: documented, not verified";
    found(&mut place(), line, divided(2), divided(0));
}

/// A user who has used up the memory can cause it, so no health check may drain the node for it.
#[test]
fn an_answer_that_did_not_come_is_no_proof() {
    let mut place = place();
    let killed =
        |is: bool| move |place: &mut Place| place.node.change(|node| node.nvml.init_killed = is);
    killed(true)(&mut place);
    let all = problems(&place);
    let of_nvml = all.iter().filter(|told| told.contains("NVML"));
    assert_eq!(of_nvml.count(), 1, "{all:#?}");
    killed(false)(&mut place);
    let line = "WARN  could not be told now: NVML: the process that called it ended by ";
    found(&mut place, line, killed(true), killed(false));
}

/// Its scheduler cannot be asked here, so the job does not count as gone.
#[test]
fn a_job_that_left_something_at_its_end_is_told_and_is_not_up() {
    let status = |place: &Place| place.mpsctl(&["status"]);
    let leave = |place: &mut Place| {
        place.begin("12.srv", "MPS=true", "0");
        status(place).prints("MPS is up");
        // NVML_ERROR_MEMORY.
        place.node.change(|node| node.nvml.init_answers = 20);
        place.strict_end("12.srv").exits(2);
        place.node.change(|node| node.nvml.init_answers = 0);
        let told = "its MPS was taken down, and something of it is left";
        status(place).prints(told).lacks("MPS is up");
        let one = place.mpsctl(&["status", "12.srv", "--json"]).exits(1);
        one.prints("\"state\":\"left\"");
        doctor(place, &[]).lacks("no job left anything");
    };
    let line = "WARN  job 12.srv: its end left something of its MPS";
    let remedy = |place: &mut Place| drop(place.end("12.srv"));
    found(&mut place(), line, leave, remedy);
}

/// Such as `nvidia-mps.service`.
#[test]
fn a_daemon_of_roots_is_named_meets_no_job_and_fails_the_node_if_it_holds_an_exclusive_gpu() {
    let place = Place::new(fast(1), "deadline_s = 6");
    let [pipe, log] = ["pipe", "log"].map(|name| place.directory(name).display().to_string());
    let env = [(PIPE_DIRECTORY, pipe.as_str()), (LOG_DIRECTORY, &log)];
    let told = || -> Vec<String> {
        let of_it = |line: &String| line.contains(&format!("pipe directory '{pipe}'"));
        problems(&place).into_iter().filter(of_it).collect()
    };
    let of_root = |program: &Path| {
        let mut command = Command::new(program);
        command.env_clear().envs(env);
        command
    };
    assert_eq!(told(), Vec::<String>::new());
    finish(of_root(&place.node.control()).arg("-d")).ok();
    let named = |line: &String| line.starts_with("WARN  an MPS daemon of root that is no job's");
    assert!(
        told().len() == 1 && told().iter().all(named),
        "{:?}",
        told()
    );

    // slurmd may have its variables.
    let args = prologue_on_gpu_0("1.srv", "MPS=true");
    place.prologue(&args, &env).ok();
    place.served("1.srv", &[]);
    let all = problems(&place);
    let daemons = all
        .iter()
        .filter(|line| line.contains(&place.pipe("1.srv").1));
    assert_eq!(daemons.count(), 0, "{all:#?}");
    place.end("1.srv");
    let used = fs::read_to_string(place.path("log/control.log")).expect("its log");
    assert!(!used.contains("NEW CLIENT"), "{used}");

    let mut client = of_root(&place.node.client());
    client
        .arg("--node")
        .arg(place.node.dir())
        .args(["--hold", "60"]);
    let client = Running::start(client.stdout(Stdio::null()));
    eventually("the client attaches", || place.has_context(client.pid()));
    assert!(
        told().len() == 1 && told().iter().all(named),
        "{:?}",
        told()
    );
    place
        .node
        .set_mode(&place.node.uuids()[0], "exclusive_process");
    let fails = |line: &String| line.starts_with("FAIL") && line.contains(" holds GPU 0, ");
    assert!(
        told().len() == 1 && told().iter().all(fails),
        "{:?}",
        told()
    );
    let refused = place.torque_on_gpu_0("2.srv", "MPS=true");
    refused.complains("root's nvidia-cuda-mps-server (process ");
}

/// A doctor that was killed between its two steps leaves a cgroup.
#[test]
fn the_cgroup_of_a_doctor_that_was_killed_is_removed_by_reconcile() {
    let mut place = place();
    let base = place.cgroups.clone().expect("cgroups");
    // No process has a number this high (PID_MAX_LIMIT).
    let dead = base.join("of-4194305");
    let line = "of a program of ours that was killed: would be removed";
    let harm = |_: &mut Place| fs::create_dir(&dead).expect("cgroup");
    let remedy = |place: &mut Place| {
        // The cgroup of a process that still runs.
        let other = base.join(format!("of-{}", std::process::id()));
        fs::create_dir(&other).expect("cgroup");
        reconcile(place).prints("of-4194305");
        assert!(!dead.exists() && other.exists());
        fs::remove_dir(&other).expect("cgroup");
    };
    found(&mut place, line, harm, remedy);
}

/// A job with MPS fails then, too.
#[test]
fn a_missing_configuration_is_no_good_one() {
    if Path::new(DEFAULT_PATH).exists() {
        return println!("not tried here: this machine has a configuration");
    }
    let ran = Command::new(built("mpsctl")).arg("doctor").assert().code(2);
    ran.stdout(
        contains("FAIL  configuration: cannot open '/etc/mpsd")
            .and(contains("'mpsctl config check' tells when it is good"))
            .and(contains("OK    mpsd.toml can be used").not()),
    );
}

#[test]
fn a_typo_in_the_configuration_a_missing_cgroup_and_a_closed_directory_are_found() {
    let configure = |extra: &'static str| move |place: &mut Place| place.configure(extra);
    let line = "unknown key 'replicsa' (did you mean 'replicas'?)";
    let mut place = place();
    found(
        &mut place,
        line,
        configure("replicsa = 4"),
        configure("replicas = 4"),
    );

    let line = "WARN  a job's daemons get no cgroup of their own (";
    let elsewhere = |place: &mut Place| place.configure_whole("cgroup = \"/nonexistent\"");
    found(&mut place, line, elsewhere, configure(""));

    let run = |mode: u32| move |place: &mut Place| chmod(&place.path("run"), mode);
    let line =
        "does not let users pass, so that no server starts and no client finds its own; chmod o+x";
    found(&mut place, line, run(0o700), run(0o755));

    let line = "may be written by group or others (mode 0777): chmod go-w; until then no task";
    found(&mut place, line, run(0o777), run(0o755));
    let state = |mode: u32| move |place: &mut Place| chmod(&place.path("state"), mode);
    let line = "WARN  state_dir: '";
    found(&mut place, line, state(0o775), state(0o755));
}

#[test]
fn directories_that_are_full_or_read_only_are_found() {
    alone(|| {
        for (name, then) in [
            ("run", "no job's MPS starts here"),
            ("state", "drains and reports are lost"),
        ] {
            let mut place = place();
            let path = place.path(name);
            let small = Small::over(&path, 1024, 0o755);
            let [fill, free] =
                [(|small| small.leave(0)) as fn(&Small), Small::free].map(|change| {
                    let small = &small;
                    move |_: &mut Place| change(small)
                });
            // Users can fill it, and a health check drains for FAIL.
            found(&mut place, &format!("free: {then}"), fill, free);
            let line = format!("FAIL  {name}_dir");
            let remount = |flags: MsFlags| {
                let path = path.clone();
                move |_: &mut Place| {
                    let flags = flags | MsFlags::MS_REMOUNT;
                    mount(None::<&str>, &path, None::<&str>, flags, None::<&str>).expect("mount");
                }
            };
            let [closed, open] = [MsFlags::MS_RDONLY, MsFlags::empty()].map(remount);
            found(&mut place, &line, closed, open);
        }
    });
}

#[test]
fn what_a_job_left_is_removed_by_the_verb_that_the_line_names() {
    let line = "a lock and no account: would be removed, and the compute mode found restored; 'mpsctl reconcile'";
    let harm = |place: &mut Place| {
        let gpus = place.directory("run/gpus");
        chmod(&gpus, 0o711);
        let uuid = &place.node.uuids()[0];
        fs::write(gpus.join(format!(".{uuid}.lock")), "").expect("lock");
    };
    found(&mut place(), line, harm, |place| drop(reconcile(place)));
}

/// A health check goes by it: one edit for all nodes must not drain them all.
#[test]
fn what_is_the_nodes_own_is_told_apart_from_what_an_edit_mends() {
    let own = |place: &Place| {
        let ran = doctor(place, &["--own", "--problems"]);
        let lines = ran.out.lines().filter(|line| line.starts_with("FAIL"));
        (ran.code, lines.map(str::to_owned).collect::<Vec<_>>())
    };
    let place = place();
    assert_eq!(own(&place), (Some(0), vec![]));
    let sound = fs::read_to_string(place.config()).expect("mpsd.toml");
    for shared in ["[slurm]\nconf = \"/no/slurm.conf\"\n", "[slurm]\nno = 1\n"] {
        fs::write(place.config(), format!("{sound}\n{shared}")).expect("mpsd.toml");
        doctor(&place, &["--problems"]).prints("FAIL  ");
        assert_eq!(own(&place), (Some(0), vec![]), "{shared}");
    }
    fs::write(place.config(), sound).expect("mpsd.toml");
    fs::remove_file(place.node.control()).expect("NVIDIA's program");
    let (code, lines) = own(&place);
    assert_eq!((code, lines.len()), (Some(2), 1), "{lines:?}");
    assert!(lines[0].contains("NVIDIA's MPS"), "{lines:?}");
}

#[test]
fn an_ordinary_user_is_told_what_only_root_can_see() {
    let ran = place().mpsctl_as(USER, &["doctor", "--problems"], &[]);
    ran.prints("run it as root");
}

fn example(name: &str) -> String {
    format!("{}/../docs/examples/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_example_for_nhc_takes_out_a_node_on_which_something_fails_and_no_other() {
    let dir = tempfile::tempdir().expect("directory");
    let mpsctl = dir.path().join("mpsctl");
    for (text, code, outcome) in [
        ("''", 0, "status 0\n"),
        ("'WARN  a' 'WARN  b'", 0, "status 0\n"),
        // Killed, not found, or a misread command line: no line says that something fails.
        ("'FAIL  half a line'", 137, "status 0\n"),
        ("''", 127, "status 0\n"),
        ("'WARN  a FAIL  b'", 2, "status 0\n"),
        (
            "'WARN  a' 'FAIL  no daemon' 'FAIL  c'",
            2,
            "died 1 check_mpsd:  no daemon\nstatus 1\n",
        ),
    ] {
        script(
            &mpsctl,
            &format!("[ \"$2\" = --own ] && printf '%s\\n' {text}\nexit {code}"),
        );
        // NHC's die() writes the reason down and returns.
        let check = "die() { echo \"died $*\"; }; . \"$1\"; check_mpsd; echo \"status $?\"";
        let mut command = std::process::Command::new("/bin/bash");
        command.args(["-c", check, "nhc", &example("mpsd.nhc")]);
        let ran = finish(command.env("MPSCTL", &mpsctl));
        assert_eq!(ran.out, outcome, "{text} {code}");
    }
}

#[test]
fn what_a_newer_driver_is_only_documented_for_is_told() {
    for (driver, told) in [("580.159.04", false), ("590.44.01", true)] {
        let node = fast(1).describe(|node| node.driver_version = driver.to_owned());
        let ran = doctor(&Place::new(node, ""), &[]);
        let line = "OK    60 clients a GPU: as NVIDIA documents it, not verified";
        assert_eq!(ran.out.contains(line), told, "{}", ran.out);
    }
}
