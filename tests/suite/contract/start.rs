//! How the control daemon starts, and what it leaves in its directories.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tests::double::look::{alive, wait_until};
use tests::node_bed::kill;
use tests::run::chmod;

use crate::bench::{Bench, Daemon, PIPE, assert_within};
use crate::client::under_mps;
use crate::processes::USER;

const FILES: [&str; 5] = [
    "control",
    "control_lock",
    "control_privileged",
    "log",
    "nvidia-cuda-mps-control.pid",
];

fn mode(path: &Path) -> u32 {
    let about = fs::symlink_metadata(path);
    about.expect("a file of the daemon's").mode() & 0o777
}

fn modes(daemon: &Daemon) -> [u32; 5] {
    FILES.map(|name| mode(&daemon.pipe.join(name)))
}

#[test]
fn foreground_answers_within_a_second_and_makes_these_files() {
    let mut daemon = Bench::new().directories();
    let begin = Instant::now();
    daemon.start(&[]);
    assert_within(begin.elapsed(), Duration::from_secs(1));
    assert_eq!(daemon.files(), FILES);
    assert_eq!(modes(&daemon), [0o666, 0o666, 0o755, 0o777, 0o666]);
    let kind = |name: &str| {
        fs::symlink_metadata(daemon.pipe.join(name))
            .unwrap()
            .file_type()
    };
    let sockets = ["control", "control_privileged"];
    assert!(sockets.iter().all(|name| kind(name).is_socket()) && kind("log").is_fifo());
    let pid = fs::read_to_string(daemon.pipe.join("nvidia-cuda-mps-control.pid")).unwrap();
    assert_eq!(pid, daemon.pid().to_string());
}

#[test]
fn foreground_writes_both_logs_to_standard_output_and_no_file() {
    let mut daemon = Daemon::new();
    let server = daemon.start_server();
    let pid = daemon.pid();
    let log = daemon.process().stdout_so_far();
    let pipe = daemon.pipe.display();
    for text in [
        format!("Control {pid:>5}] Starting control daemon using socket {pipe}/control"),
        format!("set env CUDA_MPS_PIPE_DIRECTORY={pipe}"),
        format!("Control {pid:>5}] CUDA MPS Control binary version: "),
        format!("Control {server:>5}] Starting new server {server} for user {USER}"),
        format!("Other {server:>5}] Startup"),
        format!("Control {pid:>5}] NEW SERVER {server}: Ready"),
        format!("Server {server:>5}] Server has started"),
    ] {
        assert!(log.contains(&text), "'{text}' is not in\n{log}");
    }
    let first = log.lines().next().unwrap();
    let stamp = [&first[..1], &first[11..12], &first[20..21]];
    assert_eq!(stamp, ["[", " ", "."], "{first}");
    assert_eq!(fs::read_dir(&daemon.log).unwrap().count(), 0);
}

#[test]
fn a_second_daemon_on_the_same_directory_is_refused() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    for option in ["-f", "-d"] {
        let second = bench.control(&[option], &daemon.env());
        assert_eq!(second.code, Some(1), "{second:?}");
        assert_eq!(
            second.said().trim(),
            "An instance of this daemon is already running"
        );
        assert!(daemon.answers());
    }
}

fn background(daemon: &Daemon) -> u32 {
    daemon.bench.control(&["-d"], &daemon.env()).answers("");
    assert!(daemon.answers());
    let pid = fs::read_to_string(daemon.pipe.join(FILES[4])).unwrap();
    pid.parse().unwrap()
}

fn quit(daemon: &Daemon, pid: u32) {
    daemon.say("quit").answers("");
    assert!(wait_until(Duration::from_secs(5), || !alive(pid)));
}

#[test]
fn background_leaves_a_daemon_in_its_own_session_and_a_file_for_each_log() {
    let daemon = Bench::new().directories();
    let pid = background(&daemon);
    let session = nix::unistd::getsid(Some(nix::unistd::Pid::from_raw(pid.cast_signed())));
    assert_eq!(session.unwrap().as_raw().cast_unsigned(), pid);
    assert!(under_mps(daemon.client().run().record()));
    for (log, line) in [
        ("control.log", "NEW SERVER"),
        ("server.log", "Server has started"),
    ] {
        let text = fs::read_to_string(daemon.log.join(log)).unwrap();
        assert!(text.contains(line), "{log}: {text}");
    }
    quit(&daemon, pid);
}

#[test]
fn in_an_emptied_pipe_directory_a_second_daemon_starts_and_serves_and_the_first_lives_on_unreachable()
 {
    let first = Daemon::new();
    for file in first.files() {
        fs::remove_file(first.pipe.join(file)).unwrap();
    }
    assert_eq!(first.say("get_server_list").code, Some(1));
    let second = background(&first);
    assert!(under_mps(first.client().run().record()));
    assert_eq!(first.parent_of_server(), Some(second));
    quit(&first, second);
    assert!(alive(first.pid()));
}

/// A shared MPS that was told to quit comes back by that (mpsd/src/supervisor/comeback.rs).
#[test]
fn without_its_lock_a_second_daemon_takes_over_the_sockets_while_the_first_ends_with_its_clients() {
    let first = Daemon::new();
    let busy = first.client().holding(20).hold();
    fs::remove_file(first.pipe.join("control_lock")).unwrap();
    let second = background(&first);
    assert!(under_mps(first.client().run().record()));
    assert_eq!(first.parent_of_server(), Some(second));
    assert!(alive(first.pid()) && alive(busy.pid()), "the first goes on");
    // While the first was not told to quit, the second one's quit may take for ever.
    kill(second, Signal::SIGKILL);
}

#[test]
fn a_directory_left_by_a_killed_daemon_is_taken_over() {
    let mut daemon = Daemon::new();
    daemon.process().signal(Signal::SIGKILL);
    daemon.ends();
    assert!(daemon.files().contains(&FILES[4].to_owned()));
    daemon.start(&[]);
    assert_eq!(daemon.say("get_server_list").code, Some(0));
}

#[test]
fn a_pipe_directory_that_cannot_be_made_or_not_written_is_named() {
    let bench = Bench::new();
    let foreign = bench.dir.path().join("roots");
    fs::create_dir(&foreign).unwrap();
    chmod(&foreign, 0o755);
    for dir in [bench.dir.path().join("missing"), foreign] {
        // Root owns the parent of the first one, so the daemon cannot make it.
        let dir = dir.to_str().unwrap();
        let env = [(PIPE, dir), ("CUDA_MPS_LOG_DIRECTORY", "/var/tmp")];
        let ended = bench.control(&["-f"], &env);
        assert_eq!(ended.code, Some(1));
        assert_eq!(ended.said().trim(), format!("Cannot access {PIPE}={dir}"));
    }
}

#[test]
fn a_pipe_directory_of_85_bytes_works_and_one_of_90_fails_and_does_not_say_why() {
    let bench = Bench::new();
    for (length, works) in [(85, true), (90, false)] {
        let mut daemon = bench.directories();
        let parent = daemon.pipe.parent().unwrap().to_owned();
        let fill = length - parent.as_os_str().len() - 1;
        let long = parent.join("x".repeat(fill));
        fs::rename(&daemon.pipe, &long).unwrap();
        daemon.pipe = long;
        if works {
            daemon.start(&[]);
            continue;
        }
        let ended = bench.control(&["-f"], &daemon.env());
        // Its usual first two lines or none (580 has done both), and no third.
        assert!(
            ended.code == Some(1) && ended.stderr.is_empty(),
            "{ended:?}"
        );
        assert!(ended.stdout.lines().count() <= 2, "{ended:?}");
    }
}

#[test]
fn sigterm_ends_the_foreground_daemon_and_its_server_at_once() {
    let mut daemon = Daemon::new();
    let server = daemon.start_server();
    daemon.process().signal(Signal::SIGTERM);
    let second = Duration::from_secs(1);
    let status = daemon.process().ended_within(second).expect("its end");
    // It dies of the signal; it does not exit.
    assert_eq!(status.signal(), Some(Signal::SIGTERM as i32));
    assert!(wait_until(second, || !alive(server)), "its server stays");
    assert_eq!(daemon.files(), FILES);
}
