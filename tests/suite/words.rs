//! What a person reads who mistyped something, asked too much, or came to the wrong door.

use tests::double::NodeDouble;
use tests::stage::{Ran, Stage, USER, as_user, finish};

fn stage(gpus: usize) -> Stage {
    let node = NodeDouble::builder().gpus(gpus, "NVIDIA H200").fast().build();
    Stage::new(node.expect("node"), "")
}

/// `mpsctl` as an ordinary user.
fn mpsctl(stage: &Stage, args: &[&str]) -> Ran {
    let mut command = as_user(USER, stage.program("mpsctl"));
    command.arg("--config").arg(stage.config()).args(args).env_clear();
    finish(command)
}

fn plan(stage: &Stage, request: &str) -> Ran {
    mpsctl(
        stage,
        &["plan", "--user", USER, "--gpus", "0", "--request", request],
    )
}

#[test]
fn plan_understands_the_flags_of_a_command_line() {
    let stage = stage(1);
    let tokens = plan(&stage, "MPS=per-gpu,MPS_THREADS=25,MPS_MEM=4G");
    assert_eq!(tokens.code, Some(0), "{tokens:?}");
    let flags = plan(&stage, "--mps=per-gpu --mps-threads=25% --mps-mem 4G");
    assert_eq!((flags.code, &flags.out), (Some(0), &tokens.out), "{flags:?}");
    let off = plan(&stage, "--mps=off");
    assert_eq!(
        (off.code, off.out.as_str()),
        (Some(0), "MPS was not asked for: nothing is done\n")
    );
    for (request, line) in [
        (
            "--mps=50",
            "mpsctl: --mps=50: unknown word (did you mean --mps-threads=50?); allowed: ",
        ),
        (
            "--mps-threads=25",
            "mpsctl: --mps-threads=25: MPS itself is not asked for: add --mps\n",
        ),
        (
            "--mps --mps-mem=4GB",
            "mpsctl: --mps-mem=4GB: decimal units are not accepted: write 4G; allowed: ",
        ),
    ] {
        let ran = plan(&stage, request);
        assert!(
            ran.code == Some(1) && ran.out.is_empty() && ran.err.starts_with(line),
            "{ran:?}"
        );
    }
}

#[test]
fn a_limit_for_a_gpu_that_the_job_has_not_names_those_that_it_has() {
    let stage = stage(2);
    let one = plan(&stage, "MPS=on,MPS_MEM=1=4G");
    let told = "memory limit for GPU 1: the job has one GPU on this node; allowed: 0, or its UUID\n";
    assert_eq!((one.code, one.err), (Some(1), format!("mpsctl: {told}")));
    let two = mpsctl(
        &stage,
        &[
            "plan",
            "--user",
            USER,
            "--gpus",
            "0,1",
            "--request",
            "MPS=on,MPS_MEM=2=4G",
        ],
    );
    let told = "memory limit for GPU 2: the job has 2 GPUs on this node; allowed: 0 to 1, or the UUID of one of them\n";
    assert_eq!((two.code, two.err), (Some(1), format!("mpsctl: {told}")));
}

#[test]
fn a_verb_for_root_says_which_and_why() {
    let stage = stage(1);
    for (args, told) in [
        (
            &["reconcile"][..],
            "reconcile: it changes the node; allowed: root",
        ),
        (
            &["reconcile", "--dry-run"],
            "reconcile --dry-run: it reads the journals of all jobs; allowed: root",
        ),
        (&["undrain"], "undrain: it changes the node; allowed: root"),
    ] {
        let ran = mpsctl(&stage, args);
        assert_eq!(
            (ran.code, ran.err),
            (Some(1), format!("mpsctl: {told}\n")),
            "{args:?}"
        );
    }
    let ran = stage.run("mpsctl", &["undrain", "--node", "n1"], &[]);
    let told = "mpsctl: node 'n1': no drain of ours is remembered on this node; one with another reason is lifted by \
                whoever made it\n";
    assert_eq!((ran.code, ran.err.as_str()), (Some(2), told));
}

#[test]
fn a_draft_of_the_configuration_is_checked_whosever_it_is() {
    let stage = stage(1);
    let draft = stage.path("draft.toml");
    let check = |text: &str, file: &str| {
        std::fs::write(&draft, text).expect("draft");
        std::os::unix::fs::chown(&draft, Some(65534), None).expect("chown");
        let mut command = as_user(USER, stage.program("mpsctl"));
        command
            .args(["config", "check", file])
            .current_dir(stage.path(""))
            .env_clear();
        finish(command)
    };
    let good = check("max_clients = 60\n", "draft.toml");
    assert_eq!(
        (good.code, good.out.as_str()),
        (Some(0), "OK    'draft.toml' can be used\n"),
        "{good:?}"
    );
    let bad = check("[drain]\nenable = true\n", "./draft.toml");
    let line = "FAIL  ./draft.toml:2:1: unknown key 'enable' (did you mean 'enabled'?); known: ";
    assert!(
        bad.code == Some(1) && bad.out.starts_with(line) && bad.err.is_empty(),
        "{bad:?}"
    );
    let unquoted = check("compute_mode = keep\n", "draft.toml");
    assert!(
        unquoted.code == Some(1) && unquoted.out.starts_with("FAIL  draft.toml:1:16: "),
        "{unquoted:?}"
    );
    let none = check("", "no.toml");
    assert!(
        none.code == Some(1) && none.out.contains("cannot open 'no.toml'"),
        "{none:?}"
    );
    // Without a name it is the file in force, which must be root's.
    let whose = stage.run("mpsctl", &["config", "check"], &[]);
    assert_eq!(
        (whose.code, whose.out),
        (
            Some(0),
            format!("OK    '{}' can be used\n", stage.config().display())
        )
    );
    std::os::unix::fs::chown(stage.config(), Some(65534), None).expect("chown");
    let whose = stage.run("mpsctl", &["config", "check"], &[]);
    assert!(
        whose.code == Some(1) && whose.out.contains("belongs to user 65534"),
        "{whose:?}"
    );
}

#[test]
fn who_asked_on_a_node_with_a_broken_configuration_reads_that_it_is_not_his_doing() {
    let stage = stage(1);
    std::fs::write(stage.config(), "compute_mode = keep\n").expect("configuration");
    // Where this node's counters are is not known: those of the usual place are another's.
    let counters = || std::fs::metadata("/var/lib/mpsd/reports/counters").and_then(|file| file.modified());
    let before = counters().ok();
    let ran = stage.torque("21.srv", "MPS=true");
    assert_eq!(counters().ok(), before);
    let node = nix::unistd::gethostname().expect("name");
    let told = format!(
        "mps-prologue: job 21.srv: MPS is misconfigured on {} (not your job), tell your administrator: ",
        node.to_string_lossy()
    );
    assert!(
        ran.code == Some(2) && ran.err.starts_with(&told) && ran.err.contains(":1:16: "),
        "{ran:?}"
    );
}

#[test]
fn an_error_is_explained_to_anybody_and_so_is_a_log() {
    let stage = stage(1);
    let code = mpsctl(&stage, &["explain", "806"]);
    let told = "the server died (CUDA error 806)\n  cause:  ";
    assert!(code.code == Some(0) && code.out.starts_with(told), "{code:?}");
    let transcript = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../docs/facts/mps-580-transcript.txt"
    );
    let log = stage.path("control.log");
    std::fs::copy(transcript, &log).expect("log");
    let log = mpsctl(&stage, &["explain", log.to_str().expect("path")]);
    let line = "\n  line:   CLIENT spin error 806 cudaErrorMpsRpcFailure (and 2 more)\n";
    assert!(log.code == Some(0) && log.out.contains(line), "{log:?}");
    // What has no end is not waited for.
    let fifo = stage.path("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o644)).expect("FIFO");
    for endless in [fifo.to_str().expect("path"), "/dev/zero"] {
        let ran = mpsctl(&stage, &["explain", endless]);
        assert!(
            ran.code == Some(2) && ran.err.contains("no regular file"),
            "{ran:?}"
        );
    }
    let none = mpsctl(&stage, &["explain", "/nonexistent"]);
    assert!(none.code == Some(1) && none.out.is_empty(), "{none:?}");
    let nothing = mpsctl(&stage, &["explain", "-"]);
    assert_eq!(
        (nothing.code, nothing.out.as_str()),
        (Some(0), "nothing in it is known here\n")
    );
}

#[test]
fn a_lone_mps_in_the_account_is_told_to_who_tries_it_and_never_in_a_job() {
    let stage = stage(1);
    for account in ["proj1,MPS", "MPS", "mps"] {
        let ran = stage.torque("22.srv", account);
        assert_eq!(
            (ran.code, ran.err.as_str(), ran.out.as_str()),
            (Some(0), "", ""),
            "{account}: the job did not ask"
        );
    }
    assert!(!stage.path("run/jobs").exists(), "nothing is touched");
    let told = "'MPS' in the account asks for no MPS: this job has none; with one it is submitted as MPS=on";
    let user = ["plan", "--scheduler", "torque", "--user", "root"];
    for (account, note) in [
        ("proj1,MPS", true),
        ("MPS", true),
        ("mps", false),
        ("MPS=off", false),
    ] {
        let plan = mpsctl(&stage, &[&user[..], &["--account", account]].concat());
        let note = if note {
            format!("note: {told}\n")
        } else {
            String::new()
        };
        let text = format!("MPS was not asked for: nothing is done\n{note}");
        assert_eq!((plan.code, plan.out), (Some(0), text), "{account}: {}", plan.err);
    }
    let request = mpsctl(&stage, &["pbs", "request", "--account=proj1,MPS"]);
    let answer = format!("{{\"account\":\"proj1,MPS\",\"note\":\"{told}\",\"resource\":\"\"}}\n");
    assert_eq!((request.code, request.out), (Some(0), answer), "{}", request.err);
}

#[test]
fn the_word_of_a_finding_has_a_colour_on_a_terminal_alone() {
    let stage = stage(1);
    let check = |env: &[(&str, &str)]| stage.run("mpsctl", &["config", "check"], env).out;
    assert!(check(&[]).starts_with("OK    '"), "no terminal");
    // The convention by which a pager is told that it shows to one.
    let forced = check(&[("CLICOLOR_FORCE", "1"), ("TERM", "xterm")]);
    assert!(forced.starts_with("\x1b[32mOK\x1b[0m    '"), "{forced:?}");
    assert!(check(&[("NO_COLOR", "1"), ("TERM", "xterm")]).starts_with("OK    '"));
}

#[test]
fn what_a_script_reads_is_one_object() {
    let stage = stage(2);
    let object = |args: &[&str], code: i32| -> serde_json::Value {
        let ran = stage.run("mpsctl", &[args, &["--json"]].concat(), &[]);
        assert_eq!(
            (ran.code, ran.out.lines().count()),
            (Some(code), 1),
            "{args:?}: {ran:?}"
        );
        serde_json::from_str(&ran.out).unwrap_or_else(|why| panic!("{why}: {ran:?}"))
    };
    let check = object(&["config", "check"], 0);
    assert_eq!(
        (&check["incomplete"], &check["findings"][0]["status"]),
        (&false.into(), &"OK".into())
    );
    assert!(
        check["findings"][0]["text"]
            .as_str()
            .is_some_and(|text| text.starts_with('\'')),
        "{check}"
    );
    let check = object(&["config", "check", "/nonexistent"], 1);
    assert_eq!(
        (&check["incomplete"], &check["findings"][0]["status"]),
        (&true.into(), &"FAIL".into())
    );
    let show = object(&["config", "show", "--node", "n1"], 0);
    let control = show["settings"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|row| row["key"] == "control");
    let control = control.unwrap_or_else(|| panic!("{show}"));
    assert!(
        control["line"].is_u64() && control["value"].is_string(),
        "{control}"
    );
    let asked = ["plan", "--user", USER, "--gpus", "0", "--request"];
    let plan = object(&[&asked[..], &["MPS=on,MPS_THREADS=25"]].concat(), 0);
    assert_eq!((&plan["asked"], &plan["node"].is_string()), (&true.into(), &true));
    assert_eq!(plan["daemons"][0]["gpus"][0], stage.node.uuids()[0], "{plan}");
    assert!(
        plan["effects"][0]["do"]
            .as_str()
            .is_some_and(|text| text.starts_with("claim ")),
        "{plan}"
    );
    assert_eq!(object(&[&asked[..], &["proj1"]].concat(), 0)["asked"], false);
    let reconcile = object(&["reconcile", "--dry-run"], 0);
    assert_eq!(
        (&reconcile["incomplete"], &reconcile["told"]),
        (&false.into(), &serde_json::json!([]))
    );
    std::fs::write(
        stage.config(),
        std::fs::read_to_string(stage.config()).unwrap() + "replicas = 4\n",
    )
    .unwrap();
    let advertise = object(&["advertise", "slurm", "--node", "n1"], 0);
    assert!(
        advertise["lines"]
            .as_array()
            .is_some_and(|lines| !lines.is_empty()),
        "{advertise}"
    );
}

#[test]
fn a_build_that_was_told_no_commit_says_its_release_alone() {
    let stage = stage(1);
    for program in ["mpsctl", "mpsd", "mps-prologue", "mps-epilogue", "mps-probe"] {
        let mut command = std::process::Command::new(stage.program(program));
        command.arg("--version");
        let ran = finish(command);
        assert_eq!(
            ran.out,
            format!("{program} {}\n", env!("CARGO_PKG_VERSION")),
            "{ran:?}"
        );
    }
}
