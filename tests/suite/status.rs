//! `mpsctl status`: what a user and root see of a job's clients, and of control daemons whose
//! answers the user controls.

use std::time::Duration;

use mpsd_core::paths::JOURNAL;
use nix::sys::signal::Signal;
use tests::double::Builder;
use tests::node_bed::{NodeBed, Running, eventually, fast, kill, side_by_side};
use tests::run::{Ran, USER, as_user};

const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=1G";

fn served(node: Builder, job: &str, gpus: &str) -> NodeBed {
    NodeBed::with_job(node, "deadline_s = 20\n", job, ACCOUNT, gpus)
}

fn status(bed: &NodeBed, user: Option<&str>, args: &[&str], env: &[(&str, &str)]) -> Ran {
    let args = [&["status"], args].concat();
    match user {
        Some(user) => bed.mpsctl_as(user, &args, env),
        None => bed.run("mpsctl", &args, env),
    }
}

fn status_in(bed: &NodeBed, job: &str, args: &[&str]) -> Ran {
    let (name, pipe) = bed.pipe(job);
    let env = [("PBS_JOBID", job), (name.as_str(), pipe.as_str())];
    status(bed, Some(USER), args, &env)
}

fn client(bed: &NodeBed, job: &str, gpu: &str, rank: &str) -> Running {
    let args = ["--hold", "30", "--gpu", gpu];
    bed.attached(job, &args, &[("SLURM_PROCID", rank)])
}

#[test]
fn root_waits_for_no_daemon_and_a_hung_one_is_said_to_be() {
    let bed = served(fast(1), "302.srv", "0");
    let other = bed.torque("303.srv", "MPS=true", "0");
    let control = bed.pids("nvidia-cuda-mps-control")[0];
    kill(control, Signal::SIGSTOP);
    let ran = status(&bed, None, &[], &[]).ok();
    ran.within(Duration::from_secs(8));
    assert_eq!(ran.out.matches("no answer").count(), 1, "{ran:?}");
    if other.code == Some(0) {
        ran.prints("answers; server");
    }
    // A task whose own session hangs.
    let ran = status_in(&bed, "302.srv", &[]).exits(2);
    ran.prints("under MPS: unknown");
    kill(control, Signal::SIGCONT);
    bed.strict_end("303.srv");
    bed.assert_ends_clean("302.srv", "a hung daemon");
}

#[test]
fn a_journal_that_cannot_be_read_hides_no_other_job() {
    let bed = served(fast(2), "306.srv", "0");
    bed.begin("307.srv", ACCOUNT, "1");
    let journal = bed.job("307.srv").join(JOURNAL);
    let whole = std::fs::read(&journal).expect("journal");
    std::fs::write(&journal, "{").expect("journal");
    let ran = status(&bed, None, &[], &[]).exits(2);
    ran.prints("job 306.srv of ").prints("MPS is up");
    let of_it = ran.out.lines().filter(|line| line.contains("307.srv"));
    assert_eq!(of_it.count(), 1, "{ran:?}");
    let told = status(&bed, None, &["--json"], &[]).exits(2).json();
    assert_eq!(told["jobs"][0]["job"], "306.srv", "{told}");
    let unread = told["unread"][0].as_str().expect("a line");
    assert!(unread.contains("307.srv"), "{told}");
    let ran = status(&bed, None, &["307.srv"], &[]).exits(2);
    ran.prints("307.srv");
    std::fs::write(&journal, whole).expect("journal");
    bed.end("307.srv");
    bed.assert_ends_clean("306.srv", "an unreadable journal");
}

fn nonsense() -> [(&'static str, String); 6] {
    let numbers = "1\n-7\n99999999999999999999\n4194304999\n2147483647";
    [
        ("escapes", "\u{1b}[2J\u{1b}]0;owned\u{7}\u{202e}".to_owned()),
        ("nothing", String::new()),
        ("numbers", numbers.to_owned()),
        ("others", format!("1\n{}", std::process::id())),
        ("binary", "\u{0}\u{1}\u{fffd}\r\n\t\u{9b}31m".to_owned()),
        // More than a session reads. Each program of the double parses it, so not much more.
        ("too much", "x".repeat(300 << 10)),
    ]
}

#[test]
fn a_daemon_that_answers_nonsense_gets_no_control_character_onto_a_terminal() {
    const OF_SERVER: [&str; 3] = ["get_server_status", "get_client_list", "ps"];
    let mut tries = Vec::new();
    for (name, text) in nonsense() {
        tries.push((name, text.clone(), &["get_server_list"][..]));
        tries.push((name, text, &OF_SERVER));
    }
    side_by_side(tries, 2, |(name, text, commands)| {
        let node = fast(1).fault(|faults| {
            for command in commands {
                faults.answer.insert((*command).to_owned(), text.clone());
            }
        });
        let bed = served(node, "304.srv", "0");
        let client = client(&bed, "304.srv", "0", "0\u{1b}");
        for args in [&[][..], &["--json"]] {
            let what = format!("{name} for {commands:?}, {args:?}");
            assert_harmless(&status_in(&bed, "304.srv", args), &what);
            assert_harmless(&status(&bed, None, args, &[]), &what);
        }
        drop(client);
        bed.assert_ends_clean("304.srv", name);
    });
}

#[track_caller]
fn assert_harmless(ran: &Ran, what: &str) {
    assert!(matches!(ran.code, Some(0..=2)), "{what}: {ran:?}");
    assert!(ran.out.len() < 20_000, "{what}: {} bytes", ran.out.len());
    assert!(ran.took < Duration::from_secs(12), "{what}: {:?}", ran.took);
    let hidden = |c: char| (c.is_control() && c != '\n') || ('\u{200b}'..='\u{202e}').contains(&c);
    let is_seen = ran.out.contains(hidden) || ran.err.contains(hidden);
    assert!(!is_seen, "{what}: {ran:?}");
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
    let bed = served(fast(1), "1.srv", "0");
    let here = || status_in(&bed, "1.srv", &[]);
    here().ok().prints("under MPS: yes");
    for file in std::fs::read_dir(bed.pipe("1.srv").1).expect("the directory") {
        std::fs::remove_file(file.expect("a file").path()).expect("removed");
    }
    let removed = here().exits(1);
    removed
        .prints("its sockets were removed")
        .lacks("has ended");
    let mut second = as_user(USER, bed.node.control());
    second.arg("-f").env_clear().envs([bed.pipe("1.srv")]);
    let second = Running::start(second.stdout(std::process::Stdio::null()));
    let told = format!("process {}, which mpsd did not start", second.pid());
    let socket = std::path::Path::new(&bed.pipe("1.srv").1).join("control");
    eventually("the second daemon listens", || socket.exists());
    here().prints(&told);
    here().exits(1).lacks("control daemon answers");
    drop(second);
    bed.assert_ends_clean("1.srv", "a second daemon in the job's directory");
}
