//! `mpsctl` as an ordinary user and as root: `env` and `exec` in real shells with real tasks,
//! `plan`, `config`, `explain` and the bundle.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::chown;

use serde_json::{Value, json};
use tests::node_bed::{NodeBed, fast};
use tests::run::{OTHER_USER, Ran, USER, as_user, finish, prologue_args, uid_of};

fn bed(gpus: usize) -> NodeBed {
    NodeBed::new(fast(gpus), "")
}

fn with_job(gpus: usize, job: &str, account: &str, on: &str) -> NodeBed {
    NodeBed::with_job(fast(gpus), "", job, account, on)
}

fn mpsctl(bed: &NodeBed, args: &[&str], env: &[(&str, &str)]) -> Ran {
    bed.mpsctl_as(USER, args, env)
}

/// Each verb with its words, `mpsctl` first.
fn each_verb(command: &clap::Command, above: &[String]) -> Vec<(Vec<String>, clap::Command)> {
    let words = [above, &[command.get_name().to_owned()]].concat();
    let below = command.get_subcommands();
    let below: Vec<_> = below.flat_map(|verb| each_verb(verb, &words)).collect();
    match below.is_empty() {
        true => vec![(words, command.clone())],
        false => below,
    }
}

/// An unknown word before the command that looks like an option is a mistyped option.
#[test]
fn an_unknown_option_is_refused_by_every_verb() {
    let all = each_verb(&runner::command(), &[]);
    assert!(all.len() > 20, "{all:?}");
    for (words, _) in all {
        let unknown = ["--no-such-option", "--", "x"].map(str::to_owned);
        let words = [&words[..], &unknown].concat();
        let parsed = runner::command().try_get_matches_from(&words);
        let kind = parsed.expect_err("parsed").kind();
        assert_eq!(kind, clap::error::ErrorKind::UnknownArgument, "{words:?}");
    }
    let bed = bed(1);
    for verb in ["exec", "sweep"] {
        let ran = mpsctl(&bed, &[verb, "true", "--an-option-of-its-own"], &[]);
        ran.complains(format!("mpsctl: {verb}: this is no job"));
    }
}

/// A shell in a job with MPS that evaluates the answer would leave that MPS.
#[test]
fn a_job_that_is_not_there_gives_no_variables_to_leave_an_mps_by() {
    let bed = with_job(1, "3.srv", "MPS=true", "0");
    let pipe = ("CUDA_MPS_PIPE_DIRECTORY", "/home/u/pipe");
    let inherited = [("MPSD_JOB", "3.srv"), pipe];
    let ran = mpsctl(&bed, &["env", "--job", "9999"], &inherited).exits(1);
    ran.complains("job 9999: it has no MPS on this node")
        .complains("on its node while it runs");
    assert_eq!(ran.out, "false\n");
    // OpenPBS' hook asks for every job.
    let hook = ["env", "--job", "9999", "--shell", "json"];
    mpsctl(&bed, &hook, &[]).ok().prints("{}");
}

#[test]
fn help_of_a_verb_is_the_same_in_both_words() {
    let bed = bed(1);
    for verb in ["status", "sweep", "pack"] {
        let [one, other] =
            [["help", verb], [verb, "--help"]].map(|words| mpsctl(&bed, &words, &[]).ok().out);
        assert_eq!(one, other);
    }
}

#[test]
fn another_users_job_is_refused_and_a_missing_command_is_127() {
    let bed = with_job(1, "3.srv", "MPS=true", "0");
    let foreign = bed.mpsctl_as(OTHER_USER, &["env", "--job", "3.srv"], &[]);
    foreign.exits(1).complains("another user's");
    let inherited = [("PBS_JOBID", "3.srv")];
    for args in [
        &["env", "--main"][..],
        &["exec", "--", "/bin/echo", "attached"],
        &["pack", "/dev/null"],
    ] {
        let ran = bed.run("mpsctl", args, &inherited);
        assert_ne!(ran.code, Some(0), "{ran:?}");
        assert!(!ran.out.contains("attached"), "{ran:?}");
        assert!(!ran.out.contains("CUDA_"), "{ran:?}");
    }
    let root = bed.run("mpsctl", &["env"], &inherited).exits(1);
    root.complains("root's environment only inherits the job");
    let absent = ["exec", "--job", "3.srv", "--", "/nonexistent/program"];
    mpsctl(&bed, &absent, &[]).exits(127);
    let without = [("PBS_JOBID", "99.srv")];
    let ran = mpsctl(&bed, &["exec", "--", "true"], &without).exits(1);
    ran.complains("no MPS on this node");
}

#[test]
fn plan_prints_what_root_would_do_and_does_nothing() {
    let bed = bed(2);
    let plan = |args: &[&str]| mpsctl(&bed, &[&["plan", "--user", USER], args].concat(), &[]);
    let request = |text: &str| plan(&["--gpus", "1", "--job", "9", "--request", text]);
    let ran = request("MPS=true,MPS_THREADS=25,MPS_MEM=4G").ok();
    let gpu = &bed.node.uuids()[1];
    for line in [
        &format!("daemon 0: {gpu} threads 25 memory {gpu}=4096M\n"),
        &format!("claim {gpu}"),
        "start mpsd as the job's user",
        "request MPS=per-node,MPS_THREADS=25,MPS_MEM=4G\n",
        "the scheduler does not prove that this job alone holds the GPU",
    ] {
        ran.prints(line);
    }
    let flags = request("--mps --mps-threads=25% --mps-mem 4G").ok();
    assert_eq!(flags.out, ran.out);
    let exclusive = plan(&["--gpus", "1", "--exclusive", "--request", "MPS=true"]);
    exclusive.prints(format!("set compute mode of {gpu} to EXCLUSIVE_PROCESS"));

    let words = ["plan", "--gpus", "0,1"];
    let vector = prologue_args("9.srv", "MPS=per-gpu");
    let ran = mpsctl(&bed, &[&words[..], &vector].concat(), &[]).ok();
    ran.prints("job 9.srv").prints("daemon 1:");

    let nothing = "MPS was not asked for: nothing is done\n";
    plan(&["--request", "proj42"]).prints_only(nothing);
    plan(&["--request", "--mps=off"]).prints_only(nothing);
    for wrong in [
        "MPS=maybe",
        "MPS=true,MPS_THREADS=101",
        "--mps --mps-mem=4GB",
    ] {
        let ran = request(wrong).exits(1);
        ran.prints_nothing().complains("allowed: ");
    }
    let unknown = plan(&["--request", "MPS=true"]).exits(1);
    unknown.complains("GPUs on this node are not known: no --gpus");
    bed.assert_as_before("plans");
    assert!(!bed.path("run/jobs").exists(), "nothing is touched");
}

/// Podman and Docker pass no variable on. Otherwise the container would see all GPUs of its job, in
/// another order.
#[test]
fn a_container_has_the_devices_that_the_scheduler_named_if_they_stay() {
    let bed = NodeBed::without_cgroup(fast(2), "");
    bed.begin_by_site("7.srv", "0,1", "deadline_s = 6\n");
    let env = [("PBS_JOBID", "7.srv"), ("CUDA_VISIBLE_DEVICES", "1")];
    let ran = mpsctl(&bed, &["env", "--container", "podman"], &env).ok();
    ran.prints(" --env CUDA_VISIBLE_DEVICES=1");
    bed.end("7.srv");
}

#[test]
fn a_draft_of_the_configuration_is_checked_whoever_owns_it() {
    let bed = bed(1);
    let draft = bed.path("draft.toml");
    let check = |text: &str, file: &str| {
        fs::write(&draft, text).expect("draft");
        chown(&draft, Some(uid_of(USER)), None).expect("chown");
        let mut command = as_user(USER, bed.program("mpsctl"));
        command.args(["config", "check", file]).env_clear();
        finish(command.current_dir(bed.path("")))
    };
    let good = check("max_clients = 60\n", "draft.toml");
    good.prints_only("OK    'draft.toml' can be used\n");
    let (key, value) = ("[drain]\nenable = true\n", "compute_mode = keep\n");
    for (text, file, line) in [
        (key, "./draft.toml", "FAIL  ./draft.toml:2:1: "),
        (value, "draft.toml", "FAIL  draft.toml:1:16: "),
        ("", "no.toml", "cannot open 'no.toml'"),
    ] {
        check(text, file).exits(2).prints(line);
    }
    // Without a name it checks the file in force, which must be root's.
    let in_force = || bed.mpsctl(&["config", "check"]);
    let can_be_used = format!("OK    '{}' can be used\n", bed.config().display());
    in_force().prints_only(&can_be_used);
    chown(bed.config(), Some(uid_of(USER)), None).expect("chown");
    let owner = format!("belongs to user {}", uid_of(USER));
    in_force().exits(2).prints(owner);
}

#[test]
fn a_file_without_an_end_is_not_explained() {
    let bed = bed(1);
    let fifo = bed.path("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o644)).expect("FIFO");
    for endless in [fifo.to_str().expect("path"), "/dev/zero"] {
        let ran = mpsctl(&bed, &["explain", endless], &[]);
        ran.exits(2).complains("no regular file");
    }
}

#[test]
fn the_word_of_a_finding_has_a_colour_on_a_terminal_alone() {
    let bed = bed(1);
    let terminal = ("TERM", "xterm");
    // The convention by which a pager asks for colors.
    for (env, word) in [
        (&[][..], "OK    '"),
        (
            &[("CLICOLOR_FORCE", "1"), terminal],
            "\x1b[32mOK\x1b[0m    '",
        ),
        (&[("NO_COLOR", "1"), terminal], "OK    '"),
    ] {
        let ran = bed.run("mpsctl", &["config", "check"], env);
        assert!(ran.out.starts_with(word), "{env:?}: {ran:?}");
    }
}

/// Verbs that do their work with `--json` in tests of their own: `report.rs`, `reconcile.rs` and so
/// on, `selftest` on a real Slurm.
const READ_ELSEWHERE: [&str; 7] = [
    "doctor", "pack", "report", "selftest", "status", "sweep", "undrain",
];

#[test]
fn what_a_script_reads_is_one_object() {
    let bed = bed(2);
    let mut read: BTreeSet<String> = READ_ELSEWHERE.map(str::to_owned).into();
    let mut object = |args: &[&str], code: i32| -> Value {
        let ran = bed.mpsctl(&[args, &["--json"]].concat()).exits(code);
        assert_eq!(ran.out.lines().count(), 1, "{args:?}: {ran:?}");
        let json = ran.json();
        if json.get("error").is_none() {
            read.extend((1..=args.len()).map(|end| args[..end].join(" ")));
        }
        json
    };
    let files = [
        ("mpsd.toml", 0, false, "OK"),
        ("/nonexistent", 2, true, "FAIL"),
    ];
    for (file, code, incomplete, status) in files {
        let file = bed.path(file).display().to_string();
        let check = object(&["config", "check", &file], code);
        assert_eq!(check["incomplete"], incomplete, "{check}");
        assert_eq!(check["findings"][0]["status"], status, "{check}");
        assert!(check["findings"][0]["text"].is_string(), "{check}");
    }
    let show = object(&["config", "show", "--node", "n1"], 0);
    let rows = show["settings"].as_array().expect("settings");
    let mut rows = rows.iter();
    let control = rows.find(|row| row["key"] == "control").expect("control");
    assert!(control["line"].is_u64() && control["value"].is_string());
    let request = ["plan", "--user", USER, "--gpus", "0", "--request"];
    let plan = object(&[&request[..], &["MPS=on,MPS_THREADS=25"]].concat(), 0);
    assert_eq!(plan["asked"], true, "{plan}");
    assert_eq!(plan["daemons"][0]["gpus"][0], bed.node.uuids()[0], "{plan}");
    let effects = plan["effects"].as_array().expect("effects").iter();
    let verbs = effects.filter_map(|effect| effect["do"].as_str()?.split(' ').next());
    let verbs = Vec::from_iter(verbs);
    assert_eq!(verbs, ["claim", "make", "make", "start"], "{plan}");
    let nothing = object(&[&request[..], &["proj1"]].concat(), 0);
    assert_eq!(nothing["asked"], false);
    let reconcile = object(&["reconcile", "--dry-run"], 0);
    assert_eq!(reconcile, json!({"incomplete": false, "told": []}));
    assert_eq!(object(&["idle"], 0), json!({"jobs": []}));
    let trouble = &object(&["explain", "806"], 0)["troubles"][0];
    assert_eq!(trouble["codes"], json!([806]), "{trouble}");
    // Also for a failure and an unreadable command line, beside the line on standard error.
    for (args, code, why) in [
        (&["explain", "999"][..], 1, "'999': no known error"),
        (&["undrain"], 2, "mpsd remembers no drain"),
        (&["report", "9.srv"], 1, "job 9.srv: no report on this node"),
        (&["doctor", "--nonsense"], 2, "argument '--nonsense'"),
    ] {
        let failed = object(args, code);
        assert_eq!(failed["exit_status"], code, "{failed}");
        let line = failed["error"].as_str().expect("a line");
        assert!(line.contains(why), "{failed}");
        bed.mpsctl(&[args, &["--json"]].concat()).complains(why);
    }
    bed.configure("replicas = 4\n");
    let advertise = object(&["advertise", "slurm", "--node", "n1"], 0);
    let lines = advertise["lines"].as_array().expect("lines");
    assert!(!lines.is_empty());
    let mut unread = Vec::new();
    for (words, verb) in each_verb(&runner::command(), &[]) {
        let mut arguments = verb.get_arguments();
        let verb = words[1..].join(" ");
        // One place prints the reports of all verbs of a scheduler.
        let of_scheduler = ["slurm", "pbs"].contains(&&*words[1]);
        let has_it = arguments.any(|argument| argument.get_id() == "json");
        unread.extend((has_it && !of_scheduler && !read.contains(&verb)).then_some(verb));
    }
    assert_eq!(unread, [""; 0], "no test reads the JSON of these verbs");
}
