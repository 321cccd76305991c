//! `mpsctl doctor` on a healthy node and on broken ones: each break is found, and its remedy makes the line OK.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tests::place::{Place, fast};
use tests::stage::{Ran, Stage, USER, as_user, finish};

/// A node as a site has it: cgroups, the vendor's two programs, NVML.
fn place() -> Place {
    Place::new(fast(2), "")
}

fn doctor(stage: &Stage, args: &[&str]) -> Ran {
    stage.run("mpsctl", &[&["doctor", "--node", "n1"], args].concat(), &[])
}

/// The lines that are not OK; some may be of the machine that the test runs on, which has no systemd and no scheduler, or
/// several.
fn problems(stage: &Stage) -> Vec<String> {
    let ran = doctor(stage, &["--problems"]);
    assert!(ran.err.is_empty(), "{ran:?}");
    let lines: Vec<String> = ran.out.lines().map(str::to_owned).collect();
    let has = |word: &str| lines.iter().any(|line| line.starts_with(word));
    let code = match (has("FAIL"), has("WARN")) {
        (true, _) => 2,
        (false, true) => 1,
        (false, false) => 0,
    };
    assert_eq!(ran.code, Some(code), "{ran:?}");
    lines
}

/// A node that is broken by `harm` has this line, and none after `remedy`.
#[track_caller]
fn found(place: &mut Place, line: &str, harm: impl FnOnce(&mut Place), remedy: impl FnOnce(&mut Place)) {
    let says = |place: &Place| {
        let all = problems(&place.stage);
        (all.iter().any(|told| told.contains(line)), all)
    };
    let (told, all) = says(place);
    assert!(!told, "healthy before: {all:#?}");
    harm(place);
    let (told, all) = says(place);
    assert!(told, "'{line}' is not among {all:#?}");
    remedy(place);
    let (told, all) = says(place);
    assert!(!told, "healthy after the remedy: {all:#?}");
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
}

#[test]
fn a_healthy_node_is_told_line_by_line_and_is_left_as_it_was() {
    let place = place();
    let stage = &place.stage;
    let ran = doctor(stage, &[]);
    for line in [
        "OK    mpsd.toml can be used\n",
        "OK    NVML answers\n",
        "OK    driver 580.159.04, 2 x NVIDIA H200\n",
        "OK    persistence mode is on\n",
        "OK    a job's daemons get a cgroup of their own\n",
        "OK    no job left anything\n",
        "nvidia-cuda-mps-server' is a program of root's\n",
    ] {
        assert!(ran.out.contains(line), "{line}: {}", ran.out);
    }
    // Lines of a thousand nodes fold into one: no pid, no host, no time in what is good.
    let good = |ran: &Ran| -> Vec<String> {
        let lines = ran.out.lines().filter(|line| line.starts_with("OK"));
        lines
            .map(|line| line.replace(&stage.path("").display().to_string(), ""))
            .collect()
    };
    assert_eq!(good(&ran), good(&doctor(stage, &[])));
    let json = doctor(stage, &["--json"]);
    let said: serde_json::Value = serde_json::from_str(&json.out).expect("JSON");
    let findings = said["findings"].as_array().expect("findings");
    assert!(
        findings
            .iter()
            .any(|one| one["status"] == "OK" && one["text"] == "NVML answers"),
        "{said}"
    );
    stage.assert_clean();
}

#[test]
fn the_vendors_programs() {
    let mut place = place();
    let control = place.stage.node.control();
    let away = control.with_extension("away");
    found(
        &mut place,
        "FAIL  NVIDIA's MPS: cannot open",
        |_| fs::rename(&control, &away).expect("away"),
        |_| fs::rename(&away, &control).expect("back"),
    );
    let line = "may be written by group or others";
    found(
        &mut place,
        line,
        |_| mode(&control, 0o777),
        |_| mode(&control, 0o755),
    );
}

#[test]
fn a_driver_that_is_dead_and_one_that_forgets() {
    let mut place = place();
    let dead = |is: bool| move |place: &mut Place| place.stage.node.change(|node| node.nvml.init_fails = is);
    let line = "the first job that asks for MPS takes the node out of service; see 'nvidia-smi'";
    found(&mut place, line, dead(true), dead(false));
    let kept =
        |is: bool| move |place: &mut Place| place.stage.node.change(|node| node.gpu[1].persistence = is);
    let line = "WARN  GPU 1 without persistence mode: the driver wakes the GPU for each job";
    found(&mut place, line, kept(false), kept(true));
}

#[test]
fn mps_on_mig_devices_is_said_to_be_unverified() {
    let mut place = place();
    let divided = |count: u32| {
        move |place: &mut Place| {
            let devices = (0..count).map(|number| tests::double::mig(1, number)).collect();
            place.stage.node.change(|node| node.gpu[1].mig = devices);
        }
    };
    let line = "WARN  GPU 1 in MIG mode, with 2 MIG devices, each of which gets its own MPS: documented, not verified";
    found(&mut place, line, divided(2), divided(0));
}

/// As a user does who has used up the memory: nothing is proved against the node, and no health check may take it out of service.
#[test]
fn an_answer_that_did_not_come_is_no_proof() {
    let mut place = place();
    let killed =
        |is: bool| move |place: &mut Place| place.stage.node.change(|node| node.nvml.init_killed = is);
    let line = "WARN  could not be told now: NVML: the process that called it ended by ";
    killed(true)(&mut place);
    let all = problems(&place.stage);
    assert_eq!(
        all.iter().filter(|told| told.contains("NVML")).count(),
        1,
        "{all:#?}"
    );
    killed(false)(&mut place);
    found(&mut place, line, killed(true), killed(false));
}

/// Its scheduler cannot be asked here, so nobody takes it for gone.
#[test]
fn a_job_that_left_something_at_its_end_is_told_and_is_not_up() {
    let mut place = place();
    let status = |place: &Place| place.stage.run("mpsctl", &["status"], &[]).out;
    let leave = |place: &mut Place| {
        assert_eq!(place.torque("12.srv", "MPS=true", "0").code, Some(0));
        assert!(status(place).contains("MPS is up"), "{}", status(place));
        // NVML_ERROR_MEMORY.
        place.stage.node.change(|node| node.nvml.init_answers = 20);
        assert_eq!(place.strict_end("12.srv").code, Some(2));
        place.stage.node.change(|node| node.nvml.init_answers = 0);
        let told = status(place);
        assert!(
            told.contains("its MPS was taken down, and something of it is left"),
            "{told}"
        );
        assert!(!told.contains("MPS is up"), "{told}");
        let one = place.stage.run("mpsctl", &["status", "12.srv", "--json"], &[]);
        assert!(
            one.code == Some(1) && one.out.contains("\"left\":true"),
            "{one:?}"
        );
        let all = doctor(&place.stage, &[]);
        assert!(!all.out.contains("no job left anything"), "{all:?}");
    };
    let line = "WARN  job 12.srv: its end left something of its MPS";
    found(&mut place, line, leave, |place| {
        assert_eq!(place.strict_end("12.srv").code, Some(0));
    });
}

/// One that was killed between the two steps left a cgroup.
#[test]
fn the_cgroup_of_a_doctor_that_was_killed_goes_by_reconcile() {
    let mut place = place();
    // No process has so high a number (PID_MAX_LIMIT).
    let name = "doctor-4194305";
    let line = "of an 'mpsctl doctor' that was killed: would be removed";
    let base = place.cgroups.clone().expect("cgroups");
    let harm = |_: &mut Place| fs::create_dir(base.join(name)).expect("cgroup");
    let remedy = |place: &mut Place| {
        // Another one's, which still runs.
        let other = base.join(format!("doctor-{}", std::process::id()));
        fs::create_dir(&other).expect("cgroup");
        let ran = place.stage.run("mpsctl", &["reconcile", "--node", "n1"], &[]);
        assert!(ran.code == Some(0) && ran.out.contains(name), "{ran:?}");
        assert!(!base.join(name).exists() && other.exists());
        fs::remove_dir(&other).expect("cgroup");
    };
    found(&mut place, line, harm, remedy);
}

#[test]
fn a_configuration_with_a_typo() {
    let mut place = place();
    let write = |extra: &'static str| move |place: &mut Place| place.configure(extra);
    let line = "unknown key 'replicsa' (did you mean 'replicas'?)";
    found(&mut place, line, write("replicsa = 4"), write("replicas = 4"));
}

#[test]
fn no_cgroup_for_a_jobs_daemons() {
    let mut place = place();
    let line = "WARN  a job's daemons get no cgroup of their own (";
    let elsewhere = |place: &mut Place| place.stage.configure("cgroup = \"/nonexistent\"");
    found(&mut place, line, elsewhere, |place| place.configure(""));
}

#[test]
fn a_directory_that_users_cannot_pass() {
    let mut place = place();
    let run = place.stage.path("run");
    let line = "lets users not pass, so that no server starts and no client finds its own; chmod o+x";
    found(&mut place, line, |_| mode(&run, 0o700), |_| mode(&run, 0o755));
}

#[test]
fn what_a_job_left_goes_by_the_verb_that_the_line_names() {
    let mut place = place();
    let line =
        "a lock and no account: would be removed, and the compute mode found restored; 'mpsctl reconcile'";
    let harm = |place: &mut Place| {
        let gpus = place.stage.path("run/gpus");
        fs::create_dir_all(&gpus).expect("directory");
        mode(&gpus, 0o711);
        let uuid = &place.stage.node.uuids()[0];
        fs::write(gpus.join(format!(".{uuid}.lock")), "").expect("lock");
    };
    let remedy = |place: &mut Place| {
        let ran = place.stage.run("mpsctl", &["reconcile", "--node", "n1"], &[]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    };
    found(&mut place, line, harm, remedy);
}

#[test]
fn an_ordinary_user_is_told_what_he_cannot_see() {
    let place = place();
    let mut command = as_user(USER, place.stage.program("mpsctl"));
    command.arg("--config").arg(place.stage.config());
    command.args(["doctor", "--problems"]).env_clear();
    let ran = finish(command);
    assert!(
        ran.code != Some(0) && ran.out.contains("run it as root"),
        "{ran:?}"
    );
}

/// A program in the place of `mpsctl` that says `text` and ends with `code`.
fn said(dir: &Path, text: &str, code: u8) -> std::path::PathBuf {
    let file = dir.join("mpsctl");
    fs::write(&file, format!("#!/bin/sh\nprintf '%s\\n' {text}\nexit {code}\n")).expect("program");
    mode(&file, 0o755);
    file
}

#[test]
fn the_example_for_nhc_takes_out_a_node_on_which_something_fails_and_no_other() {
    let dir = tempfile::tempdir().expect("directory");
    let nhc = format!("{}/../docs/examples/mpsd.nhc", env!("CARGO_MANIFEST_DIR"));
    let run = |text: &str, code: u8| {
        let program = said(dir.path(), text, code);
        // What NHC has: die() writes the reason down and returns.
        let script = "die() { echo \"died $*\"; }; . \"$1\"; check_mpsd; echo \"status $?\"";
        let mut command = std::process::Command::new("/bin/bash");
        command.args(["-c", script, "nhc", &nhc]).env("MPSCTL", program);
        finish(command).out
    };
    assert_eq!(run("''", 0), "status 0\n");
    assert_eq!(run("'WARN  a' 'WARN  b'", 1), "status 0\n");
    // Killed, not found, or a word of the command line that it does not know: no line says that something fails.
    assert_eq!(run("'FAIL  half a line'", 137), "status 0\n");
    assert_eq!(run("''", 127), "status 0\n");
    assert_eq!(run("'WARN  a FAIL  b'", 2), "status 0\n");
    assert_eq!(
        run("'WARN  a' 'FAIL  no daemon' 'FAIL  c'", 2),
        "died 1 check_mpsd:  no daemon\nstatus 1\n"
    );
}

/// ReFrame itself is not here: its names are stood for by the few that the check uses. It was run by ReFrame 4.10.4 as well.
#[test]
fn the_example_for_reframe_finds_what_fails() {
    let dir = tempfile::tempdir().expect("directory");
    let check = format!("{}/../docs/examples/reframe_mpsd.py", env!("CARGO_MANIFEST_DIR"));
    let stand_in = r#"
import builtins, re, sys, types
reframe = types.ModuleType("reframe")
reframe.simple_test = lambda test: tests.append(test) or test
reframe.RunOnlyRegressionTest = object
sanity = types.ModuleType("reframe.utility.sanity")
sanity.all = all
sanity.assert_found = lambda pattern, file: bool(re.search(pattern, open(file).read(), re.M))
sanity.assert_not_found = lambda pattern, file: not re.search(pattern, open(file).read(), re.M)
typecheck = types.ModuleType("reframe.utility.typecheck")
typecheck.List = {str: list}
utility = types.ModuleType("reframe.utility")
utility.sanity, utility.typecheck = sanity, typecheck
sys.modules.update({"reframe": reframe, "reframe.utility": utility})
sys.modules.update({"reframe.utility.sanity": sanity, "reframe.utility.typecheck": typecheck})
builtins.sanity_function = lambda function: function
builtins.run_before = lambda stage: lambda function: function
builtins.variable = lambda type, value: value
tests = []
exec(open(sys.argv[1]).read())
one = tests[0]()
one.words = ["--partition=gpu"]
one.with_words()
assert (one.executable, one.executable_opts) == ("/usr/bin/mpsctl", ["selftest", "--", "--partition=gpu"])
one.stdout = sys.argv[2]
print(one.is_ok())
"#;
    let run = |text: &str| {
        let output = dir.path().join("output");
        fs::write(&output, text).expect("output");
        let mut command = std::process::Command::new("/usr/bin/python3");
        command.args(["-c", stand_in, &check]).arg(&output);
        finish(command)
    };
    assert_eq!(run("OK    a\nOK    selftest\n").out, "True\n");
    assert_eq!(run("FAIL  a\nFAIL  selftest\n").out, "False\n");
    assert_eq!(run("OK    a\n").out, "False\n");
}

#[test]
fn what_a_newer_driver_is_only_documented_for_is_told() {
    let newer = |node: &mut tests::double::node::Description| node.driver_version = "590.44.01".to_owned();
    for (place, told) in [
        (Place::new(fast(1), ""), false),
        (Place::new(fast(1).describe(newer), ""), true),
    ] {
        let ran = doctor(&place.stage, &[]);
        let line =
            "OK    60 clients a GPU and static partitions (MPS_SMS): as NVIDIA documents them, not verified";
        assert_eq!(ran.out.contains(line), told, "{}", ran.out);
    }
}
