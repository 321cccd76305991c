//! `mpsctl status`: what a user and root see of a job's clients, and of control daemons whose
//! answers the user controls.

use std::time::Duration;

use mpsd_core::paths::JOURNAL;
use nix::sys::signal::Signal;
use serde_json::Value;
use tests::double::Builder;
use tests::place::{Place, Running, eventually, fast, kill, side_by_side};
use tests::stage::{OTHER_USER, Ran, USER, as_user};

const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=1G";

fn served(node: Builder, job: &str, gpus: &str) -> Place {
    Place::with_job(node, "deadline_s = 20\n", job, ACCOUNT, gpus)
}

/// `mpsctl status` of `user`, or of root.
fn status(place: &Place, user: Option<&str>, args: &[&str], env: &[(&str, &str)]) -> Ran {
    let args = [&["status"], args].concat();
    match user {
        Some(user) => place.mpsctl_as(user, &args, env),
        None => place.run("mpsctl", &args, env),
    }
}

fn status_in(place: &Place, job: &str, args: &[&str]) -> Ran {
    let (name, pipe) = place.pipe(job);
    let env = [("PBS_JOBID", job), (name.as_str(), pipe.as_str())];
    status(place, Some(USER), args, &env)
}

fn client(place: &Place, job: &str, gpu: &str, rank: &str) -> Running {
    let args = ["--hold", "30", "--gpu", gpu];
    place.attached(job, &args, &[("SLURM_PROCID", rank)])
}

#[test]
fn eight_clients_are_shown_to_their_user_and_to_root_and_so_is_the_gpu_without_one() {
    let (place, job) = (served(fast(2), "300.srv", "0,1"), "300.srv");
    let ranks: Vec<u64> = (0..8).collect();
    let clients: Vec<Running> = ranks
        .iter()
        .map(|rank| client(&place, job, "1", &rank.to_string()))
        .collect();
    let pids: Vec<u64> = clients.iter().map(|client| client.pid().into()).collect();
    let of_task = status_in(&place, job, &["--json"]);
    let of_root = status(&place, None, &["--json"], &[]);
    assert_eq!(of_task.json()["under_mps"]["attached"], "yes");
    for ran in [of_task, of_root] {
        let told = ran.ok().json();
        let shown = &told["jobs"][0];
        assert_eq!(shown["job"], job);
        let idle = serde_json::json!([place.node.uuids()[0]]);
        assert_eq!(shown["without_client"], idle, "{told}");
        let all = shown["gpus"][1]["clients"].as_array().expect("clients");
        let of = |key: &str| -> Vec<u64> { all.iter().filter_map(|c| c[key].as_u64()).collect() };
        assert_eq!(of("rank"), ranks, "{told}");
        assert_eq!(of("pid"), pids, "{told}");
        assert_eq!(of("memory_mib").len(), 8, "{told}");
        assert!(of("memory_mib").iter().all(|mib| *mib > 0), "{told}");
        let is_client = |c: &Value| {
            c["command"]
                .as_str()
                .is_some_and(|c| c.contains("--hold 30"))
        };
        assert!(all.iter().all(is_client), "{told}");
        let daemon = &shown["daemons"][0];
        let limits = daemon["limits"].as_array().expect("limits");
        let holds: Vec<bool> = limits.iter().map(|limit| limit["holds"] == true).collect();
        assert_eq!(holds, [true; 3], "{told}");
        assert_eq!(daemon["servers"][0]["state"], "ACTIVE");
    }
    let text = status_in(&place, job, &[]);
    text.prints("under MPS: yes").prints("no client uses GPU 0");
    drop(clients);
    place.assert_ends_clean(job, "status");
}

#[test]
fn a_task_is_told_why_it_is_not_under_mps() {
    let (place, job) = (served(fast(1), "301.srv", "0"), "301.srv");
    let elsewhere = ("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps");
    let of_job = ("PBS_JOBID", job);
    for (env, words) in [
        (&[][..], "this is no job"),
        (
            &[("PBS_JOBID", "399.srv")],
            "job 399.srv has no MPS on this node: submit it with -A MPS=true",
        ),
        (
            &[("SLURM_JOB_ID", "34"), ("SLURMD_NODENAME", "n1")],
            "job 34 has no MPS on this node: submit it with --mps; the MPS of a step that asked: mpsctl status 34.STEP",
        ),
        // The shell of salloc on a login node.
        (
            &[("SLURM_JOB_ID", "34")],
            "on its own: srun --jobid=34 --overlap mpsctl status, after its end mpsctl report 34",
        ),
        (&[of_job], "CUDA_MPS_PIPE_DIRECTORY is not set here"),
        (
            &[of_job, elsewhere],
            "'/tmp/nvidia-mps', which is no daemon's of job 301.srv",
        ),
    ] {
        let ran = status(&place, Some(USER), &[], env).exits(1);
        ran.prints(words);
    }
    // With a job's name the question is about that job.
    let named = |user| status(&place, Some(user), &[job], &[]);
    named(USER).ok().prints("MPS is up");
    named(OTHER_USER).exits(1).complains("another user's");
    // Its daemon dies.
    status_in(&place, job, &[]).ok();
    kill(place.pids("nvidia-cuda-mps-control")[0], Signal::SIGKILL);
    eventually("its socket is gone", || {
        status_in(&place, job, &[]).code == Some(1)
    });
    status_in(&place, job, &[]).prints("outside MPS, or not at all");
    place.assert_ends_clean(job, "status");
}

#[test]
fn root_waits_for_no_daemon_and_a_hung_one_is_said_to_be() {
    let place = served(fast(1), "302.srv", "0");
    let other = place.torque("303.srv", "MPS=true", "0");
    let control = place.pids("nvidia-cuda-mps-control")[0];
    kill(control, Signal::SIGSTOP);
    let ran = status(&place, None, &[], &[]).ok();
    ran.within(Duration::from_secs(8));
    assert_eq!(ran.out.matches("no answer").count(), 1, "{ran:?}");
    if other.code == Some(0) {
        ran.prints("answers; server");
    }
    // A task whose own session hangs.
    let ran = status_in(&place, "302.srv", &[]).exits(2);
    ran.prints("under MPS: unknown");
    kill(control, Signal::SIGCONT);
    place.strict_end("303.srv");
    place.assert_ends_clean("302.srv", "a hung daemon");
}

#[test]
fn a_journal_that_cannot_be_read_hides_no_other_job() {
    let place = served(fast(2), "306.srv", "0");
    place.begin("307.srv", ACCOUNT, "1");
    let journal = place.job("307.srv").join(JOURNAL);
    let whole = std::fs::read(&journal).expect("journal");
    std::fs::write(&journal, "{").expect("journal");
    let ran = status(&place, None, &[], &[]).exits(2);
    ran.prints("job 306.srv of ").prints("MPS is up");
    let of_it = ran.out.lines().filter(|line| line.contains("307.srv"));
    assert_eq!(of_it.count(), 1, "{ran:?}");
    let told = status(&place, None, &["--json"], &[]).exits(2).json();
    assert_eq!(told["jobs"][0]["job"], "306.srv", "{told}");
    let unread = told["unread"][0].as_str().expect("a line");
    assert!(unread.contains("307.srv"), "{told}");
    let ran = status(&place, None, &["307.srv"], &[]).exits(2);
    ran.prints("307.srv");
    std::fs::write(&journal, whole).expect("journal");
    place.end("307.srv");
    place.assert_ends_clean("306.srv", "an unreadable journal");
}

fn nonsense() -> [(&'static str, String); 6] {
    let numbers = "1\n-7\n99999999999999999999\n4194304999\n2147483647";
    [
        ("escapes", "\u{1b}[2J\u{1b}]0;owned\u{7}\u{202e}".to_owned()),
        ("nothing", String::new()),
        ("numbers", numbers.to_owned()),
        ("others", format!("1\n{}", std::process::id())),
        ("binary", "\u{0}\u{1}\u{fffd}\r\n\t\u{9b}31m".to_owned()),
        ("megabytes", "x".repeat(3 << 20)),
    ]
}

#[test]
fn a_daemon_that_answers_nonsense_gets_no_control_character_onto_a_terminal() {
    let mut tries = Vec::new();
    for (name, text) in nonsense() {
        tries.push((name, text.clone(), &["get_server_list"][..]));
        tries.push((
            name,
            text,
            &["get_server_status", "get_client_list", "ps"][..],
        ));
    }
    side_by_side(tries, 2, |(name, text, commands)| {
        let node = fast(1).fault(|faults| {
            for command in commands {
                faults.answer.insert((*command).to_owned(), text.clone());
            }
        });
        let place = served(node, "304.srv", "0");
        let client = client(&place, "304.srv", "0", "0\u{1b}");
        for args in [&[][..], &["--json"]] {
            let what = format!("{name} for {commands:?}, {args:?}");
            assert_harmless(&status_in(&place, "304.srv", args), &what);
            assert_harmless(&status(&place, None, args, &[]), &what);
        }
        drop(client);
        place.assert_ends_clean("304.srv", name);
    });
}

#[track_caller]
fn assert_harmless(ran: &Ran, what: &str) {
    assert!(matches!(ran.code, Some(0..=2)), "{what}: {ran:?}");
    assert!(ran.out.len() < 20_000, "{what}: {} bytes", ran.out.len());
    assert!(ran.took < Duration::from_secs(12), "{what}: {:?}", ran.took);
    let hidden = |c: char| (c.is_control() && c != '\n') || ('\u{200b}'..='\u{202e}').contains(&c);
    assert!(
        !(ran.out.clone() + &ran.err).contains(hidden),
        "{what}: {ran:?}"
    );
    // Pid 1 and the test itself are neither a server nor a client of the job's user.
    for name in ["/suite", "init"] {
        assert!(!ran.out.contains(name), "{what}: {ran:?}");
    }
    for pid in [1, std::process::id()] {
        for named in [format!("\"pid\":{pid},"), format!("server {pid} ")] {
            assert!(!ran.out.contains(&named), "{what}: {named}: {ran:?}");
        }
        let is_row = |line: &str| line.split_whitespace().nth(1) == Some(&pid.to_string());
        assert!(!ran.out.lines().any(is_row), "{what}: {pid}: {ran:?}");
    }
}

/// A script's `rm -rf $CUDA_MPS_PIPE_DIRECTORY/*; nvidia-cuda-mps-control -d`.
#[test]
fn a_directory_that_a_script_empties_or_takes_over_is_told() {
    let place = served(fast(1), "1.srv", "0");
    let here = || status_in(&place, "1.srv", &[]);
    here().ok().prints("under MPS: yes");
    for file in std::fs::read_dir(place.pipe("1.srv").1).expect("the directory") {
        std::fs::remove_file(file.expect("a file").path()).expect("removed");
    }
    here()
        .exits(1)
        .prints("its sockets were removed")
        .lacks("has ended");
    let mut second = as_user(USER, place.node.control());
    second.arg("-f").env_clear().envs([place.pipe("1.srv")]);
    let second = Running::start(second.stdout(std::process::Stdio::null()));
    let told = format!("process {}, which mpsd did not start", second.pid());
    let socket = std::path::Path::new(&place.pipe("1.srv").1).join("control");
    eventually("the second daemon listens", || socket.exists());
    here().prints(&told);
    here().exits(1).lacks("control daemon answers");
    drop(second);
    place.assert_ends_clean("1.srv", "a second daemon in the job's directory");
}
