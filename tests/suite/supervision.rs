//! What may happen to a running MPS: the outcome, and its line in the user's log.

use std::process::Stdio;

use nix::sys::signal::Signal;
use serde_json::Value;
use tests::double::look;
use tests::figures;
use tests::place::{Place, Running, eventually, fast, kernel_tells_of_ends, kill};
use tests::stage::{THREE, USER, uid_of};

const CONFIG: &str = "deadline_s = 6\n";
const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=1G";
const STAYS: [&str; 3] = ["--hold", "20", "--busy"];

fn served(job: &str, config: &str) -> Place {
    Place::with_job(fast(1), &format!("{CONFIG}{config}"), job, ACCOUNT, "0")
}

fn log_of(place: &Place, job: &str) -> String {
    place.log(job, "mpsd.log")
}

/// Waits for a line of the log with these words, and asserts that it is the only one.
#[track_caller]
fn says(place: &Place, job: &str, words: &str) {
    eventually(words, || log_of(place, job).contains(words));
    let log = log_of(place, job);
    let lines = log.lines().filter(|line| line.contains(words)).count();
    assert_eq!(lines, 1, "'{words}' once in:\n{log}");
}

/// A process of the same user stops `mpsd`, and starts the server before it has its limits.
#[test]
fn a_server_that_its_user_starts_before_mpsd_does_harms_that_job_alone() {
    for (job, account, code) in [
        ("87.srv", "MPS=true", 0),
        ("88.srv", "MPS=true,MPS_THREADS=25", 2),
    ] {
        // A failed prologue of Torque uses its whole time.
        let place = Place::new(
            fast(1).times(|times| times.start = 3_000),
            "deadline_s = 10\n",
        );
        let mut prologue = place.start_torque(job, account, "0");
        let started = || !place.pids("nvidia-cuda-mps-control").is_empty();
        eventually("the control daemon starts", started);
        let supervisor = place.pids("mpsd");
        assert_eq!(supervisor.len(), 1, "{supervisor:?}");
        kill(supervisor[0], Signal::SIGSTOP);
        let socket = place.job(job).join("pipe/control");
        eventually("its socket", || socket.exists());
        place.say(job, &format!("start_server -uid {}", uid_of(USER)));
        kill(supervisor[0], Signal::SIGCONT);
        assert_eq!(prologue.wait(), Some(code), "{account}");
        place.torque_end(job).ok();
        place.assert_not_drained(account);
        place.assert_as_before(account);
    }
}

#[track_caller]
fn ends_clean(place: &Place, job: &str, after: &str) {
    place.assert_ends_clean(job, after);
    figures::tell("faults", 1);
}

fn error_of(text: &str) -> Option<u64> {
    let last: Value = serde_json::from_str(text.lines().last()?).ok()?;
    last["cuda"]["code"].as_u64()
}

fn client(place: &Place, job: &str, args: &[&str], env: &[(&str, &str)]) -> Running {
    let mut command = place.cuda(args);
    command.envs([place.pipe(job)]).envs(env.iter().copied());
    let client = Running::start(command.stdin(Stdio::null()).stdout(Stdio::piped()));
    let attached = || {
        let contexts = place.node.contexts();
        contexts
            .iter()
            .any(|(_, context)| context.pid == client.pid())
    };
    eventually("the client attaches", attached);
    client
}

#[track_caller]
fn error(mut client: Running) -> Option<u64> {
    client.wait();
    let out = client.0.stdout.take().expect("stdout");
    error_of(&std::io::read_to_string(out).expect("text"))
}

#[test]
fn a_control_daemon_that_dies_takes_its_server_along_and_the_log_says_what_follows() {
    let place = served("91.srv", "");
    let busy = client(&place, "91.srv", &STAYS, &[]);
    kill(place.pids(THREE[1])[0], Signal::SIGKILL);
    assert_eq!(error(busy), Some(806));
    says(&place, "91.srv", "new steps and 'mpsctl exec' are refused");
    for name in [THREE[2], THREE[0]] {
        eventually(format_args!("{name} ends"), || place.pids(name).is_empty());
    }
    // Its user finds that the socket does not answer. Root, asked by a hook, finds that the proved
    // process is gone.
    let args = ["exec", "--job", "91.srv", "--", "true"];
    let exec = place.mpsctl_as(USER, &args, &[]);
    let root = place.mpsctl(&["env", "--shell", "json", "--job", "91.srv"]);
    for ran in [exec, root] {
        ran.exits(2).complains("it has ended");
    }
    ends_clean(&place, "91.srv", "a control daemon that died");
}

#[test]
fn a_fatal_gpu_error_of_one_client_is_told_to_the_user_and_drains_nothing() {
    let told = "new ones are refused with error 807";
    let place = served("94.srv", "");
    let innocent = client(&place, "94.srv", &STAYS, &[]);
    let culprit = client(&place, "94.srv", &["--hold", "1", "--fault"], &[]);
    assert_eq!(error(innocent), Some(700), "the error of another");
    says(&place, "94.srv", told);
    let refused = place.tried("94.srv", &[]);
    assert_eq!(error_of(&refused.out), Some(807), "{refused:?}");
    assert_eq!(error(culprit), Some(700));
    eventually("with the last of them gone it serves again", || {
        place.tried("94.srv", &[]).code == Some(0)
    });
    ends_clean(&place, "94.srv", "a fatal GPU error");
    // An epilogue while the server still waits for its clients.
    let place = served("95.srv", "");
    let stays = client(&place, "95.srv", &["--hold", "20", "--fault"], &[]);
    says(&place, "95.srv", told);
    place.end("95.srv");
    drop(stays);
    place.assert_as_before("a server in FAULT state");
}

fn greedy(place: &Place, job: &str) -> Running {
    let args = [&["--alloc", "4096"][..], &STAYS].concat();
    let unlimited = ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "garbage");
    client(place, job, &args, &[unlimited])
}

/// A job under this policy, with a client that keeps its limit and one that does not.
fn watched(policy: &str) -> (Place, Running, Running) {
    let config = format!("compute_mode = \"keep\"\nmemory_over_limit = \"{policy}\"\n");
    let place = served("96.srv", &config);
    let small = [&["--alloc", "256"][..], &STAYS].concat();
    let honest = client(&place, "96.srv", &small, &[]);
    let over = greedy(&place, "96.srv");
    (place, honest, over)
}

#[test]
fn a_client_over_its_memory_limit_is_told_or_ended_as_the_site_says() {
    let (place, honest, over) = watched("log");
    // A job of the same user on the same GPU, which may have more. The GPU lists its client for
    // both.
    let other = "98.srv";
    place.begin(other, "MPS=true,MPS_MEM=6G", "0");
    let stranger = greedy(&place, other);
    let lines = |client: &Running| {
        let line = format!("client {} holds ", client.pid());
        log_of(&place, "96.srv").matches(&line).count()
    };
    eventually("the client is told of", || lines(&over) > 0);
    // A line about a second client proves a second look.
    let second = greedy(&place, "96.srv");
    eventually("the second is told of", || lines(&second) > 0);
    assert_eq!([&over, &stranger, &honest].map(lines), [1, 0, 0]);
    says(&place, "96.srv", &format!("client {} holds ", over.pid()));
    assert!(log_of(&place, "96.srv").contains("its limit is 1024 MiB"));
    assert!(look::alive(over.pid()), "left alone");
    drop((second, stranger));
    place.end(other);
    drop((honest, over));
    ends_clean(&place, "96.srv", "log");

    let (place, honest, over) = watched("terminate");
    let pid = over.pid();
    assert_eq!(error(over), Some(810), "{}", log_of(&place, "96.srv"));
    says(&place, "96.srv", &format!("client {pid} holds "));
    says(&place, "96.srv", "terminate_client, it gets error 810");
    assert!(look::alive(honest.pid()), "the other client goes on");
    drop(honest);
    ends_clean(&place, "96.srv", "terminate");
}

/// Two jobs of the user in one MPS.
fn two_jobs() -> Place {
    let place = Place::new(fast(1), "deadline_s = 20\nshared_gpus = true\n");
    for job in SHARERS {
        place.torque_on_gpu_0(job, "MPS=true").ok();
    }
    place
}

const SHARERS: [&str; 2] = ["861.srv", "862.srv"];

/// A `quit` of the user's in a job, which waits for the daemon's end.
fn quits(place: &Place, job: &str) -> Running {
    let exec = ["exec", "--", "/bin/sh", "-c", "echo quit | \"$0\""];
    let mut command = place.mpsctl_of(USER);
    command
        .args(exec)
        .arg(place.node.control())
        .env("PBS_JOBID", job);
    Running::start(command.stdout(Stdio::null()))
}

fn in_job(place: &Place, job: &str) -> Value {
    place.exec(&[], &[("PBS_JOBID", job)]).ok().json()
}

#[test]
fn a_shared_mps_that_a_script_tells_to_quit_comes_back_for_all_its_jobs() {
    for is_busy in [false, true] {
        let place = two_jobs();
        let before = in_job(&place, SHARERS[0])["daemon_pid"].clone();
        let busy = is_busy.then(|| place.sharer(SHARERS[1]));
        let quit = quits(&place, SHARERS[0]);
        let mut after = Value::Null;
        eventually("another daemon serves new programs", || {
            let ran = place.exec(&[], &[("PBS_JOBID", SHARERS[1])]);
            after = ran
                .code
                .filter(|code| *code == 0)
                .map_or(Value::Null, |_| ran.json());
            after["under_mps"] == true && after["daemon_pid"] != before
        });
        assert_eq!(
            in_job(&place, SHARERS[0])["daemon_pid"],
            after["daemon_pid"]
        );
        // It also serves a job that begins now.
        place.torque_on_gpu_0("863.srv", "MPS=true").ok();
        assert_eq!(in_job(&place, "863.srv")["daemon_pid"], after["daemon_pid"]);
        if let Some(busy) = &busy {
            assert!(place.has_context(busy.pid()), "the busy program goes on");
        }
        drop(busy);
        drop(quit);
        let told = "told control daemon";
        for job in SHARERS {
            place.end(job).complains(told);
        }
        place.end("863.srv").lacks(told);
        place.assert_as_before("a shared MPS that was told to quit");
        for job in SHARERS {
            place
                .mpsctl(&["report", job])
                .prints("told to quit; ")
                .prints("told control daemon");
        }
        place.assert_not_drained("a shared MPS that was told to quit");
    }
}

#[test]
fn a_killed_rank_costs_the_next_program_nothing() {
    let place = served("96.srv", "");
    let stays = ["--hold", "20", "--paired"];
    let ranks = [(), ()].map(|()| client(&place, "96.srv", &stays, &[]));
    let [server] = place.pids(THREE[2])[..] else {
        panic!("a server")
    };
    for rank in ranks {
        kill(rank.pid(), Signal::SIGKILL);
        drop(rank);
    }
    if !log_of(&place, "96.srv").contains("was ended by") && !kernel_tells_of_ends() {
        println!("not tried here: this kernel tells of its own children only");
        return;
    }
    says(&place, "96.srv", &format!("server {server} ended by mpsd"));
    assert_eq!(place.served("96.srv", &[]).json()["sms"], 32, "limits");
    let log = log_of(&place, "96.srv");
    assert!(!log.contains(" died "), "{log}");
    ends_clean(&place, "96.srv", "killed ranks");
    place
        .mpsctl(&["report", "96.srv"])
        .lacks("caused a fatal")
        .lacks("was lost");
}

/// As after a module that sets CUDA_MPS_PIPE_DIRECTORY.
#[test]
fn a_program_outside_the_mps_of_its_job_is_named_while_no_program_reaches_it() {
    let config = "compute_mode = \"keep\"\n";
    let place = served("98.srv", config);
    let elsewhere = ("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent");
    let mut command = place.cuda(&["--hold", "60"]);
    command
        .envs([elsewhere])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let outside = Running::start(command);
    let pid = outside.pid();
    let words = format!(
        "process {pid} of its user computes on {} outside it",
        place.node.uuids()[0]
    );
    says(&place, "98.srv", &words);
    drop(outside);
    place
        .end("98.srv")
        .complains("CUDA_MPS_PIPE_DIRECTORY was overwritten or lost there");
    place.assert_as_before("a program outside");
    place
        .mpsctl(&["report", "98.srv"])
        .prints(format!("process {pid} computed outside the job's MPS"));
    // A program that reaches it ends the search.
    place.begin("99.srv", ACCOUNT, "0");
    place.served("99.srv", &[]);
    place.end("99.srv").lacks("outside it");
}
