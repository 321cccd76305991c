//! `mpsctl env` and `mpsctl exec` as an ordinary user, in real shells, with real tasks.

use serde_json::Value;
use std::path::Path;
use tests::double::NodeDouble;
use tests::stage::{OTHER_USER, Ran, Stage, USER, as_user, finish};

fn stage(gpus: usize) -> Stage {
    let node = NodeDouble::builder()
        .gpus(gpus, "NVIDIA H200")
        .fast()
        .build()
        .expect("node");
    Stage::new(node, "")
}

/// A job of [`USER`] that ends with the test, whatever happens.
struct Job<'a> {
    stage: &'a Stage,
    id: &'a str,
}

impl<'a> Job<'a> {
    #[track_caller]
    fn start(stage: &'a Stage, id: &'a str, account: &str, gpus: &str) -> Self {
        let ran = stage.torque_on(id, account, gpus);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        Self { stage, id }
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        let _ = self.stage.torque_end(self.id);
    }
}

/// A command as `user`, with exactly these variables.
fn run_as(user: &str, program: impl AsRef<Path>, args: &[&str], env: &[(&str, &str)]) -> Ran {
    let mut command = as_user(user, program.as_ref());
    command.args(args).env_clear().envs(env.iter().copied());
    finish(command)
}

fn mpsctl(stage: &Stage, args: &[&str], env: &[(&str, &str)]) -> Ran {
    let config = stage.config().display().to_string();
    let all: Vec<&str> = ["--config", &config]
        .into_iter()
        .chain(args.iter().copied())
        .collect();
    run_as(USER, stage.program("mpsctl"), &all, env)
}

#[track_caller]
fn client_record(ran: &Ran) -> Value {
    assert_eq!(ran.code, Some(0), "{ran:?}");
    serde_json::from_str(ran.out.lines().next().unwrap_or_default())
        .unwrap_or_else(|e| panic!("{e}: {ran:?}"))
}

/// The words that run a client of the simulated CUDA.
fn client(stage: &Stage) -> String {
    format!(
        "{} --node {}",
        stage.node.client().display(),
        stage.node.dir().display()
    )
}

#[test]
fn every_shell_is_attached_by_what_is_printed_for_it() {
    let stage = stage(1);
    let _job = Job::start(&stage, "4711.srv", "MPS=true,MPS_THREADS=25", "0");
    let (mpsctl, config) = (stage.program("mpsctl"), stage.config());
    let env = format!("{} --config {} env", mpsctl.display(), config.display());
    let mut tried = 0;
    for (shell, script) in [
        ("/bin/sh", format!("eval \"$({env})\" && {}", client(&stage))),
        (
            "/bin/bash",
            format!("set -eu; eval \"$({env} --shell sh)\"; {}", client(&stage)),
        ),
        ("/usr/bin/zsh", format!("eval \"$({env})\"; {}", client(&stage))),
        (
            "/usr/bin/tcsh",
            format!("eval `{env} --shell csh`; {}", client(&stage)),
        ),
        (
            "/usr/bin/csh",
            format!("eval `{env} --shell csh`; {}", client(&stage)),
        ),
    ] {
        if !Path::new(shell).exists() {
            continue;
        }
        tried += 1;
        let ran = run_as(
            USER,
            shell,
            &["-c", &script],
            &[("PBS_JOBID", "4711.srv"), ("PATH", "/usr/bin:/bin")],
        );
        let record = client_record(&ran);
        assert_eq!(record["under_mps"], true, "{shell}: {record}");
        assert_eq!(record["sms"], 32, "{shell}: {record}");
    }
    assert!(tried >= 2, "sh and bash are everywhere");
}

#[test]
fn json_names_the_jobs_own_directories_and_gpus() {
    let stage = stage(2);
    let _job = Job::start(&stage, "7.srv", "MPS=true", "1");
    let ran = mpsctl(
        &stage,
        &["env", "--shell", "json"],
        &[("PBS_JOBID", "7.srv"), ("CUDA_VISIBLE_DEVICES", "1")],
    );
    let said = client_record(&ran);
    let wanted = serde_json::json!({
        "CUDA_MPS_PIPE_DIRECTORY": stage.job("7.srv").join("pipe"),
        "CUDA_MPS_LOG_DIRECTORY": stage.job("7.srv").join("log"),
        "CUDA_VISIBLE_DEVICES": stage.node.uuids()[1],
        "MPSD_JOB": "7.srv",
    });
    assert_eq!(said, wanted);
}

#[test]
fn nothing_outside_a_job_or_without_mps_and_another_jobs_variables_go() {
    let stage = stage(1);
    for env in [
        &[][..],
        &[("PBS_JOBID", "8.srv")],
        &[("SLURM_JOB_ID", "8"), ("SLURMD_NODENAME", "n1")],
    ] {
        let ran = mpsctl(&stage, &["env"], env);
        assert_eq!(
            (ran.code, ran.out.as_str(), ran.err.as_str()),
            (Some(0), "", ""),
            "{env:?}"
        );
    }
    let pipe = stage.job("7.srv").join("pipe").display().to_string();
    let inherited = [
        ("PBS_JOBID", "8.srv"),
        ("MPSD_JOB", "7.srv"),
        ("CUDA_MPS_PIPE_DIRECTORY", pipe.as_str()),
        ("CUDA_MPS_LOG_DIRECTORY", "/home/u/log"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "10"),
    ];
    let ran = mpsctl(&stage, &["env"], &inherited);
    let gone = "unset MPSD_JOB\nunset CUDA_MPS_PIPE_DIRECTORY\nunset CUDA_MPS_ACTIVE_THREAD_PERCENTAGE\n";
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), gone), "{ran:?}");
}

#[test]
fn a_refused_job_cannot_go_on_unnoticed() {
    let stage = stage(1);
    let torque = [
        "--scheduler",
        "torque",
        "--record",
        "--gpus",
        "0",
        "9.srv",
        USER,
        "nogroup",
        "j",
        "r",
        "q",
    ];
    let args: Vec<&str> = torque.into_iter().chain(["MPS=true,MPS_THREADS=101"]).collect();
    assert_eq!(stage.prologue(&args, &[]).code, Some(1));
    let job = [("PBS_JOBID", "9.srv"), ("PATH", "/usr/bin:/bin")];
    let ran = mpsctl(&stage, &["env"], &job);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), "false\n"), "{ran:?}");
    assert!(
        ran.err.starts_with("mpsctl: job 9.srv: MPS refused: ") && ran.err.contains("MPS_THREADS=101"),
        "{ran:?}"
    );
    let line = format!(
        "{} --config {} env",
        stage.program("mpsctl").display(),
        stage.config().display()
    );
    let script = format!("set -e; eval \"$({line})\"; echo went on");
    let ran = run_as(USER, "/bin/sh", &["-c", &script], &job);
    assert!(ran.code == Some(1) && ran.out.is_empty(), "{ran:?}");
    let ran = mpsctl(&stage, &["exec", "--", "/bin/echo", "went on"], &job);
    assert!(
        ran.code == Some(1) && ran.out.is_empty() && ran.err.contains("MPS_THREADS=101"),
        "{ran:?}"
    );
    assert_eq!(stage.torque_end("9.srv").code, Some(0));
    stage.assert_clean();
}

#[test]
fn a_starting_job_is_waited_for_within_its_deadline() {
    let stage = stage(1);
    let dir = stage.job("5.srv");
    std::fs::create_dir_all(&dir).expect("job directory");
    let record = |state: &str| {
        let text = serde_json::json!({
            "version": 1, "job": "5.srv", "uid": 65534, "state": state, "deadline_s": 1,
            "gpus": [], "daemons": [{"gpus": [], "pipe": dir.join("pipe"), "log": dir.join("log")}],
        });
        std::fs::write(dir.join("record.new"), text.to_string()).expect("record");
        std::fs::rename(dir.join("record.new"), dir.join("record")).expect("record");
    };
    // What listens there in the control daemon's place.
    std::fs::create_dir(dir.join("pipe")).expect("pipe directory");
    let socket = dir.join("pipe/control");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("socket");
    std::fs::set_permissions(&socket, std::os::unix::fs::PermissionsExt::from_mode(0o666)).expect("mode");
    record("starting");
    let ran = mpsctl(&stage, &["env"], &[("PBS_JOBID", "5.srv")]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(
        ran.err.contains("not ready in time") && ran.took.as_millis() >= 1000,
        "{ran:?}"
    );
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(300));
            record("ready");
        });
        let ran = mpsctl(&stage, &["env"], &[("PBS_JOBID", "5.srv")]);
        assert!(
            ran.code == Some(0) && ran.out.contains("CUDA_MPS_PIPE_DIRECTORY"),
            "{ran:?}"
        );
    });
    std::fs::remove_dir_all(&dir).expect("clean up");
}

#[test]
fn exec_applies_lists_and_per_gpu_by_the_launchers_rank() {
    let stage = stage(2);
    let job = Job::start(&stage, "6.srv", "MPS=per-gpu,MPS_THREADS=25:50", "0,1");
    let client = client(&stage);
    let words: Vec<&str> = client.split(' ').collect();
    let command: Vec<&str> = ["exec", "--"].into_iter().chain(words).collect();
    for (rank, variable) in [
        ("0", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("1", "MPI_LOCALRANKID"),
        ("1", "PALS_LOCAL_RANKID"),
        ("0", "SLURM_LOCALID"),
    ] {
        let record = client_record(&mpsctl(
            &stage,
            &command,
            &[("PBS_JOBID", "6.srv"), (variable, rank)],
        ));
        let pipe = stage.job("6.srv").join(format!("pipe-{rank}"));
        assert_eq!(
            record["pipe_directory"],
            pipe.display().to_string(),
            "{variable}: {record}"
        );
        assert_eq!(record["under_mps"], true, "{variable}: {record}");
        assert_eq!(
            record["sms"],
            if rank == "0" { 32 } else { 66 },
            "{variable}: {record}"
        );
    }
    let ran = mpsctl(&stage, &command, &[("PBS_JOBID", "6.srv")]);
    assert!(ran.code == Some(1) && ran.out.is_empty(), "{ran:?}");
    for variable in [
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "MPI_LOCALRANKID",
        "PALS_LOCAL_RANKID",
        "SLURM_LOCALID",
    ] {
        assert!(ran.err.contains(variable), "{ran:?}");
    }
    let main = mpsctl(&stage, &["env", "--main"], &[("PBS_JOBID", "6.srv")]);
    assert!(
        main.code == Some(0) && !main.out.contains("PIPE") && main.out.contains("MPSD_JOB"),
        "{main:?}"
    );
    drop(job);
    stage.assert_clean();
}

/// The words of the command begin with the command: what looks like an option before it is one, mistyped.
#[test]
fn an_unknown_option_is_refused_by_every_verb() {
    fn verbs(command: &clap::Command, above: &[String], all: &mut Vec<Vec<String>>) {
        let words = [above, &[command.get_name().to_owned()]].concat();
        command
            .get_subcommands()
            .for_each(|verb| verbs(verb, &words, all));
        if !command.has_subcommands() {
            all.push(words);
        }
    }
    let mut all = Vec::new();
    verbs(&mpsd::cli::mpsctl::command(), &[], &mut all);
    assert!(all.len() > 20, "{all:?}");
    for words in all {
        let words = [&words[..], &["--no-such-option", "--", "x"].map(str::to_owned)].concat();
        let error = mpsd::cli::mpsctl::command()
            .try_get_matches_from(&words)
            .expect_err("parsed");
        assert_eq!(error.kind(), clap::error::ErrorKind::UnknownArgument, "{words:?}");
    }
    let stage = stage(1);
    for verb in ["exec", "sweep"] {
        let ran = mpsctl(&stage, &[verb, "true", "--an-option-of-its-own"], &[]);
        assert!(
            ran.err.starts_with(&format!("mpsctl: {verb}: this is no job")),
            "{ran:?}"
        );
    }
}

#[test]
fn another_user_is_told_whose_it_is_and_a_missing_command_is_127() {
    let stage = stage(1);
    let _job = Job::start(&stage, "3.srv", "MPS=true", "0");
    let config = stage.config().display().to_string();
    let args = ["--config", &config, "env", "--job", "3.srv"];
    let ran = run_as(OTHER_USER, stage.program("mpsctl"), &args, &[]);
    assert!(
        ran.code == Some(1) && ran.err.contains("another user's"),
        "{ran:?}"
    );
    let ran = mpsctl(
        &stage,
        &["exec", "--job", "3.srv", "--", "/nonexistent/program"],
        &[],
    );
    assert_eq!(ran.code, Some(127), "{ran:?}");
    let ran = mpsctl(&stage, &["exec", "--", "true"], &[("PBS_JOBID", "99.srv")]);
    assert!(
        ran.code == Some(1) && ran.err.contains("no MPS on this node"),
        "{ran:?}"
    );
}

#[test]
fn plan_prints_what_root_would_do_and_does_nothing() {
    let stage = stage(2);
    let plan = |args: &[&str]| mpsctl(&stage, &[&["plan"], args].concat(), &[]);
    let asked = [
        "--user",
        USER,
        "--request",
        "MPS=true,MPS_THREADS=25,MPS_MEM=4G",
        "--gpus",
        "1",
        "--job",
        "9",
    ];
    let ran = plan(&asked);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let gpu = &stage.node.uuids()[1];
    for line in [
        &format!("daemon 0: {gpu} threads 25 memory {gpu}=4096M\n"),
        &format!("claim {gpu}"),
        "start mpsd as the job's user",
        "request MPS=per-node,MPS_THREADS=25,MPS_MEM=4G\n",
        "the scheduler does not prove that this job alone holds the GPU",
    ] {
        assert!(ran.out.contains(line), "{line}: {ran:?}");
    }
    let ran = plan(&[&asked[..], &["--exclusive"]].concat());
    assert!(
        ran.out
            .contains(&format!("set compute mode of {gpu} to EXCLUSIVE_PROCESS")),
        "{ran:?}"
    );

    let vector = ["9.srv", USER, "nogroup", "j", "nodes=1", "batch", "MPS=per-gpu"];
    let ran = plan(&[&["--scheduler", "torque", "--gpus", "0,1"], &vector[..]].concat());
    assert!(
        ran.code == Some(0) && ran.out.contains("job 9.srv") && ran.out.contains("daemon 1:"),
        "{ran:?}"
    );

    let ran = plan(&["--user", USER, "--request", "proj42"]);
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (Some(0), "MPS was not asked for: nothing is done\n"),
        "{ran:?}"
    );
    for wrong in ["MPS=maybe", "MPS=true,MPS_THREADS=101"] {
        let ran = plan(&["--user", USER, "--request", wrong, "--gpus", "0"]);
        assert!(
            ran.code == Some(1) && ran.out.is_empty() && ran.err.starts_with("mpsctl: MPS"),
            "{ran:?}"
        );
    }
    let ran = plan(&["--user", USER, "--request", "MPS=true"]);
    assert!(
        ran.code == Some(1) && ran.err.contains("GPUs on this node are not known: no --gpus"),
        "{ran:?}"
    );
    stage.assert_clean();
    assert!(!stage.path("run/jobs").exists(), "nothing is touched");
}

/// The bundle of a node with a job on it: what root's programs and files say, in root's file, and nothing of the user's.
#[test]
fn a_support_bundle_has_what_the_node_says_and_nothing_of_the_users() {
    let stage = stage(1);
    let job = Job::start(&stage, "40.srv", "MPS=true", "0");
    let secret = "the-users-own-words";
    std::fs::write(stage.job(job.id).join("log/note"), secret).expect("note");
    let out = stage.path("bundle.tar");
    let name = out.display().to_string();
    let ran = stage.run("mpsctl", &["support-bundle", "--out", &name], &[]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&out).expect("bundle"));
    assert_eq!(mode & 0o7777, 0o600);
    let bytes = std::fs::read(&out).expect("bundle");
    assert!(bytes.len() < 5 << 20, "{}", bytes.len());
    let text = String::from_utf8_lossy(&bytes);
    let shipped = env!("CARGO_PKG_VERSION");
    for piece in [
        "version",
        "mpsd.toml",
        "config-show",
        "doctor",
        "slurm-check",
        "pbs-check",
        "reconcile-dry-run",
        "units",
        "log",
    ] {
        assert!(text.contains(&format!("mpsd-support/{piece}\0")), "no {piece}");
    }
    for word in [&format!("mpsd {shipped}\n"), "deadline_s", "40.srv"] {
        assert!(text.contains(word), "no '{word}'");
    }
    assert!(!text.contains(secret) && !text.contains(&format!("'{USER}'")));
    let listed = finish({
        let mut tar = std::process::Command::new("tar");
        tar.args(["--list", "--file", &name]);
        tar
    });
    assert!(
        listed.code == Some(0) && listed.out.lines().count() >= 10,
        "{listed:?}"
    );

    // What is there stays, and so does what a link leads to.
    let ran = stage.run("mpsctl", &["support-bundle", "--out", &name], &[]);
    assert!(ran.code == Some(2) && ran.err.contains(&name), "{ran:?}");
    let (link, target) = (stage.path("link.tar"), stage.path("target"));
    std::os::unix::fs::symlink(&target, &link).expect("link");
    let ran = stage.run(
        "mpsctl",
        &["support-bundle", "--out", &link.display().to_string()],
        &[],
    );
    assert!(ran.code == Some(2) && !target.exists(), "{ran:?}");
    let ran = mpsctl(&stage, &["support-bundle"], &[]);
    assert!(ran.code == Some(1) && ran.err.contains("root"), "{ran:?}");
}

/// Podman and Docker pass no variable on: without it the container would see all GPUs of its job, in another order.
#[test]
fn a_container_has_the_devices_that_the_scheduler_named_where_they_stay() {
    let place = tests::place::Place::without_cgroup(tests::place::fast(2), "deadline_s = 6\n");
    let ran = place.torque("7.srv", "MPS=true,MPS_VISIBLE=keep", "0,1");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let mut command = as_user(USER, place.stage.program("mpsctl"));
    command.arg("--config").arg(place.stage.config());
    command.args(["env", "--container", "podman"]).env_clear();
    command.envs([("PBS_JOBID", "7.srv"), ("CUDA_VISIBLE_DEVICES", "1")]);
    let ran = finish(command);
    assert!(
        ran.code == Some(0) && ran.out.contains(" --env CUDA_VISIBLE_DEVICES=1"),
        "{ran:?}"
    );
    assert_eq!(place.strict_end("7.srv").code, Some(0));
}
