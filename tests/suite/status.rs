//! `mpsctl status`: what a user and root see of a job's clients, and of control daemons that say what their user wants.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mpsd_core::paths::JOURNAL;
use nix::pty::{Winsize, openpty};
use nix::sys::signal::Signal;
use nix::sys::termios::{LocalFlags, tcgetattr};
use serde_json::Value;
use tests::double::Builder;
use tests::double::look::wait_until;
use tests::place::{Place, Running, fast, kill, side_by_side};
use tests::stage::{OTHER_USER, Ran, USER, as_user, finish};

const CONFIG: &str = "deadline_s = 20\n";
const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=1G";
const SOON: Duration = Duration::from_secs(20);

fn served(node: Builder, job: &str, gpus: &str) -> Place {
    let place = Place::new(node, CONFIG);
    let ran = place.torque(job, ACCOUNT, gpus);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    place
}

/// `mpsctl status` of `user`, root's without one.
fn status(place: &Place, user: Option<&str>, args: &[&str], env: &[(&str, &str)]) -> Ran {
    let program = place.stage.program("mpsctl");
    let mut command = match user {
        Some(user) => as_user(user, program),
        None => Command::new(program),
    };
    command
        .arg("--config")
        .arg(place.stage.config())
        .arg("status")
        .args(args);
    finish({
        command.env_clear().envs(env.iter().copied());
        command
    })
}

#[track_caller]
fn object(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {ran:?}"))
}

/// A client of the job on this GPU of it, attached.
fn client(place: &Place, job: &str, gpu: &str, rank: &str) -> Running {
    place.attached(job, &["--hold", "30", "--gpu", gpu], &[("SLURM_PROCID", rank)])
}

#[test]
fn eight_clients_are_shown_to_their_user_and_to_root_and_so_is_the_gpu_without_one() {
    let place = served(fast(2), "300.srv", "0,1");
    let clients: Vec<Running> = (0..8)
        .map(|n| client(&place, "300.srv", "1", &n.to_string()))
        .collect();
    let pipe = place.pipe("300.srv");
    let env = [("PBS_JOBID", "300.srv"), (pipe.0.as_str(), pipe.1.as_str())];
    let uuids = place.stage.node.uuids();
    for (user, env) in [(Some(USER), &env[..]), (None, &[])] {
        let ran = status(&place, user, &["--json"], env);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let told = object(&ran);
        let job = &told["jobs"][0];
        assert_eq!(job["job"], "300.srv");
        assert_eq!(job["without_client"], serde_json::json!([uuids[0]]), "{told}");
        let shown = job["gpus"][1]["clients"].as_array().expect("clients");
        let of = |key: &str| -> Vec<u64> { shown.iter().filter_map(|c| c[key].as_u64()).collect() };
        let pids: Vec<u64> = clients.iter().map(|client| u64::from(client.0.id())).collect();
        assert_eq!(of("rank"), (0..8).collect::<Vec<u64>>(), "{told}");
        assert_eq!(of("pid"), pids, "{told}");
        assert!(
            of("memory_mib").iter().all(|mib| *mib > 0) && of("memory_mib").len() == 8,
            "{told}"
        );
        let is_client = |c: &Value| c["command"].as_str().is_some_and(|c| c.contains("--hold 30"));
        assert!(shown.iter().all(is_client), "{told}");
        let limits = job["daemons"][0]["limits"].as_array().expect("limits");
        assert!(
            limits.len() == 3 && limits.iter().all(|limit| limit["holds"] == true),
            "{told}"
        );
        assert_eq!(job["daemons"][0]["servers"][0]["state"], "ACTIVE");
    }
    assert_eq!(
        object(&status(&place, Some(USER), &["--json"], &env))["under_mps"]["attached"],
        "yes"
    );
    let text = status(&place, Some(USER), &[], &env);
    assert!(
        text.out.contains("under MPS: yes") && text.out.contains("no client uses GPU 0"),
        "{text:?}"
    );
    drop(clients);
    place.assert_ends_clean("300.srv", "status");
}

#[test]
fn a_task_is_told_why_it_is_not_under_mps() {
    let place = served(fast(1), "301.srv", "0");
    let job = ("PBS_JOBID", "301.srv");
    let elsewhere = ("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps");
    for (env, words) in [
        (&[][..], "this is no job"),
        (
            &[("PBS_JOBID", "399.srv")][..],
            "job 399.srv has no MPS on this node",
        ),
        (&[job][..], "CUDA_MPS_PIPE_DIRECTORY is not set here"),
        (
            &[job, elsewhere][..],
            "'/tmp/nvidia-mps', which is no daemon's of job 301.srv",
        ),
    ] {
        let ran = status(&place, Some(USER), &[], env);
        assert!(ran.code == Some(1) && ran.out.contains(words), "{words}: {ran:?}");
    }
    // Whoever names a job asks for that job.
    let ran = status(&place, Some(USER), &["301.srv"], &[]);
    assert!(ran.code == Some(0) && ran.out.contains("MPS is up"), "{ran:?}");
    let ran = status(&place, Some(OTHER_USER), &["301.srv"], &[]);
    assert!(
        ran.code == Some(1) && ran.err.contains("another user's"),
        "{ran:?}"
    );
    // Its daemon dies.
    let pipe = place.pipe("301.srv");
    let env = [job, (pipe.0.as_str(), pipe.1.as_str())];
    assert_eq!(status(&place, Some(USER), &[], &env).code, Some(0));
    kill(place.pids("nvidia-cuda-mps-control")[0], Signal::SIGKILL);
    let ended = || status(&place, Some(USER), &[], &env).code == Some(1);
    assert!(wait_until(SOON, ended), "its socket goes with it");
    let ran = status(&place, Some(USER), &[], &env);
    assert!(
        ran.code == Some(1) && ran.out.contains("outside MPS, or not at all"),
        "{ran:?}"
    );
    place.assert_ends_clean("301.srv", "status");
}

#[test]
fn root_waits_for_no_daemon_and_a_hung_one_is_said_to_be() {
    let place = served(fast(1), "302.srv", "0");
    let other = place.torque("303.srv", "MPS=true", "0");
    let control = place.pids("nvidia-cuda-mps-control");
    kill(control[0], Signal::SIGSTOP);
    let began = Instant::now();
    let ran = status(&place, None, &[], &[]);
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    assert_eq!(
        (ran.code, ran.out.matches("no answer").count()),
        (Some(0), 1),
        "{ran:?}"
    );
    if other.code == Some(0) {
        assert!(
            ran.out.contains("answers; server"),
            "the other job's is told: {ran:?}"
        );
    }
    // And one whose process that asks is stopped as well.
    let pipe = place.pipe("302.srv");
    let env = [("PBS_JOBID", "302.srv"), (pipe.0.as_str(), pipe.1.as_str())];
    let ran = status(&place, Some(USER), &[], &env);
    assert!(
        ran.code == Some(2) && ran.out.contains("under MPS: unknown"),
        "{ran:?}"
    );
    kill(control[0], Signal::SIGCONT);
    let _ = place.strict_end("303.srv");
    place.assert_ends_clean("302.srv", "a hung daemon");
}

#[test]
fn a_journal_that_cannot_be_read_hides_no_other_job() {
    let place = served(fast(2), "306.srv", "0");
    let other = place.torque("307.srv", ACCOUNT, "1");
    assert_eq!(other.code, Some(0), "{other:?}");
    let journal = place.stage.job("307.srv").join(JOURNAL);
    let whole = std::fs::read(&journal).expect("journal");
    std::fs::write(&journal, "{").expect("journal");
    let ran = status(&place, None, &[], &[]);
    assert!(
        ran.code == Some(2) && ran.out.contains("job 306.srv of ") && ran.out.contains("MPS is up"),
        "{ran:?}"
    );
    let of_it = ran.out.lines().filter(|line| line.contains("307.srv"));
    assert_eq!(of_it.count(), 1, "{ran:?}");
    let ran = status(&place, None, &["--json"], &[]);
    let told = object(&ran);
    assert!(
        ran.code == Some(2) && told["jobs"][0]["job"] == "306.srv",
        "{ran:?}"
    );
    assert!(
        told["unread"][0]
            .as_str()
            .is_some_and(|line| line.contains("307.srv")),
        "{told}"
    );
    let ran = status(&place, None, &["307.srv"], &[]);
    assert!(ran.code == Some(2) && ran.out.contains("307.srv"), "{ran:?}");
    std::fs::write(&journal, whole).expect("journal");
    assert_eq!(place.strict_end("307.srv").code, Some(0));
    place.assert_ends_clean("306.srv", "an unreadable journal");
}

/// What a user's own control daemon may answer.
fn nonsense() -> [(&'static str, String); 6] {
    let megabytes = "x".repeat(3 << 20);
    [
        ("escapes", "\u{1b}[2J\u{1b}]0;owned\u{7}\u{202e}".to_owned()),
        ("nothing", String::new()),
        (
            "numbers",
            "1\n-7\n99999999999999999999\n4194304999\n2147483647".to_owned(),
        ),
        ("others", format!("1\n{}", std::process::id())),
        ("binary", "\u{0}\u{1}\u{fffd}\r\n\t\u{9b}31m".to_owned()),
        ("megabytes", megabytes),
    ]
}

#[test]
fn a_daemon_that_answers_nonsense_gets_no_control_character_onto_a_terminal() {
    let mut tries = Vec::new();
    for (name, text) in nonsense() {
        tries.push((name, text.clone(), &["get_server_list"][..]));
        tries.push((name, text, &["get_server_status", "get_client_list", "ps"][..]));
    }
    side_by_side(tries, 2, |(name, text, commands)| {
        let node = fast(1).fault(|faults| {
            for command in commands {
                faults.answer.insert((*command).to_owned(), text.clone());
            }
        });
        let place = served(node, "304.srv", "0");
        let client = client(&place, "304.srv", "0", "0\u{1b}");
        let pipe = place.pipe("304.srv");
        let env = [("PBS_JOBID", "304.srv"), (pipe.0.as_str(), pipe.1.as_str())];
        for (user, env) in [(Some(USER), &env[..]), (None, &[])] {
            for args in [&[][..], &["--json"]] {
                let ran = status(&place, user, args, env);
                let what = format!("{name} for {commands:?}, {user:?} {args:?}");
                assert_harmless(&ran, &what);
                assert_names_nobody_else(&ran, &what);
            }
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
    assert!(!(ran.out.clone() + &ran.err).contains(hidden), "{what}: {ran:?}");
    // Pid 1 and the test itself are no clients, whatever the daemon says.
    assert!(
        !ran.out.contains("/suite") && !ran.out.contains("init"),
        "{what}: {ran:?}"
    );
}

/// Pid 1 and the test itself are neither a server nor a client of the job's user, whatever the daemon says.
#[track_caller]
fn assert_names_nobody_else(ran: &Ran, what: &str) {
    for pid in [1, std::process::id()] {
        for named in [format!("\"pid\":{pid},"), format!("server {pid} ")] {
            assert!(!ran.out.contains(&named), "{what}: {named}: {ran:?}");
        }
        let is_row = |line: &str| line.split_whitespace().nth(1) == Some(&pid.to_string());
        assert!(!ran.out.lines().any(is_row), "{what}: {pid}: {ran:?}");
    }
}

/// `mpsctl status --watch` of the job's user on a terminal of its own.
struct Watch {
    child: Child,
    terminal: OwnedFd,
    _other: OwnedFd,
    seen: String,
}

impl Watch {
    fn start(place: &Place, job: &str) -> Self {
        let size = Winsize {
            ws_row: 20,
            ws_col: 60,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pty = openpty(&size, None).expect("terminal");
        let mut command = as_user(USER, place.stage.program("mpsctl"));
        command
            .arg("--config")
            .arg(place.stage.config())
            .args(["status", "--watch"]);
        command.env_clear().env("PBS_JOBID", job).envs([place.pipe(job)]);
        let end = || Stdio::from(pty.slave.try_clone().expect("descriptor"));
        let child = command
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .process_group(0)
            .spawn();
        let flags = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK);
        nix::fcntl::fcntl(&pty.master, flags).expect("terminal");
        Self {
            child: child.expect("mpsctl"),
            terminal: pty.master,
            _other: pty.slave,
            seen: String::new(),
        }
    }

    /// Whether it shows this, within a moment.
    fn shows(&mut self, words: &str) -> bool {
        wait_until(SOON * 2, || {
            let mut block = [0_u8; 8192];
            while let Ok(n @ 1..) = nix::unistd::read(self.terminal.as_fd(), &mut block) {
                self.seen.push_str(&String::from_utf8_lossy(&block[..n]));
            }
            self.seen.contains(words)
        })
    }

    fn types(&self, text: &str) {
        nix::unistd::write(self.terminal.as_fd(), text.as_bytes()).expect("terminal");
    }

    /// Whether the terminal has its echo and line discipline.
    fn is_usual(&self) -> bool {
        let flags = tcgetattr(self.terminal.as_fd()).expect("terminal").local_flags;
        flags.contains(LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG)
    }

    /// Its end, after which the terminal must be as before.
    #[track_caller]
    fn ends(mut self, how: &str) -> Option<i32> {
        let ended = wait_until(SOON, || self.child.try_wait().is_ok_and(|end| end.is_some()));
        assert!(ended, "{how}: it goes on");
        assert!(self.shows("\u{1b}[?25h\u{1b}[?1049l"), "{how}: {:?}", self.seen);
        assert!(self.is_usual(), "{how}: the terminal is not as before");
        self.child.wait().expect("wait").code()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_live_view_is_redrawn_in_place_and_gives_the_terminal_back() {
    let place = served(fast(1), "305.srv", "0");
    let first = client(&place, "305.srv", "0", "0");
    for (how, end) in [
        ("q", None),
        ("Ctrl-C", None),
        ("SIGTERM", Some(Signal::SIGTERM)),
        ("SIGHUP", Some(Signal::SIGHUP)),
        ("SIGINT", Some(Signal::SIGINT)),
    ] {
        let mut watch = Watch::start(&place, "305.srv");
        assert!(watch.is_usual() || watch.shows("\u{1b}[?1049h"));
        assert!(
            watch.shows("under MPS: yes") && watch.shows("GPU     PID"),
            "{how}: {:?}",
            watch.seen
        );
        assert!(!watch.is_usual(), "{how}: it reads single keys");
        let longest = watch
            .seen
            .split("\r\n")
            .map(|line| line.replace("\u{1b}[K", "").replace("\u{1b}[H", ""));
        let longest = longest.map(|line| line.chars().count()).max();
        assert!(longest <= Some(60 + 20), "{how}: {:?}", watch.seen);
        match (how, end) {
            ("q", _) => watch.types("q"),
            ("Ctrl-C", _) => watch.types("\u{3}"),
            (_, Some(signal)) => kill(watch.child.id(), signal),
            _ => {}
        }
        assert_eq!(watch.ends(how), Some(0), "{how}");
    }
    // A client that comes is there at the next look.
    let mut watch = Watch::start(&place, "305.srv");
    assert!(watch.shows("GPU     PID"));
    let second = client(&place, "305.srv", "0", "1");
    watch.seen.clear();
    assert!(watch.shows(&second.0.id().to_string()), "{:?}", watch.seen);
    watch.types("q");
    assert_eq!(watch.ends("a client that came"), Some(0));
    // Without a terminal it is refused.
    let ran = status(&place, Some(USER), &["--watch"], &[("PBS_JOBID", "305.srv")]);
    assert!(ran.code == Some(1) && ran.err.contains("no terminal"), "{ran:?}");
    drop((first, second));
    place.assert_ends_clean("305.srv", "a live view");
}
