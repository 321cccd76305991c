//! `mpsctl set`: the owner of a job, or root, gives the clients that connect from then on other limits, within the site's ceilings.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use tests::double::Builder;
use tests::double::look::{self, wait_until};
use tests::double::visible::multiprocessors;
use tests::place::{Place, Running, fast, kill};
use tests::scarcity::alone;
use tests::stage::{OTHER_USER, Ran, USER, as_user, finish};
use tests::syslog::Syslog;

const SOON: Duration = Duration::from_secs(20);
const CEILINGS: &str =
    "deadline_s = 6\nmemory_over_limit = \"terminate\"\n[ceilings]\nthreads = 60\nmem = \"6G\"\n";
const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=1G";

fn served(node: Builder, job: &str, account: &str, gpus: &str) -> Place {
    let place = Place::new(node, CEILINGS);
    let ran = place.torque(job, account, gpus);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    place
}

/// `mpsctl` of `user`, root's without one.
fn mpsctl(place: &Place, user: Option<&str>, args: &[&str]) -> Ran {
    let program = place.stage.program("mpsctl");
    let mut command = match user {
        Some(user) => as_user(user, program),
        None => Command::new(program),
    };
    command.arg("--config").arg(place.stage.config()).args(args);
    finish({
        command.env_clear();
        command
    })
}

#[track_caller]
fn done(ran: &Ran, words: &str) {
    assert!(
        ran.code == Some(0) && ran.out.contains(words),
        "'{words}' in {ran:?}"
    );
}

#[track_caller]
fn refused(ran: &Ran, code: i32, words: &str) {
    let one_line = ran.err.lines().count() == 1;
    assert!(
        ran.code == Some(code) && one_line && ran.err.contains(words) && ran.out.is_empty(),
        "'{words}' in {ran:?}"
    );
}

fn log(place: &Place, job: &str) -> String {
    fs::read_to_string(place.stage.job(job).join("log/mpsd.log")).unwrap_or_default()
}

/// The multiprocessors of a client that connects now.
#[track_caller]
fn sms(place: &Place, job: &str) -> u64 {
    let ran = place.stage.client(&[] as &[&str], &[place.pipe(job)]);
    let record: Value = serde_json::from_str(ran.out.lines().last().unwrap_or_default()).expect("a record");
    assert_eq!(record["under_mps"], true, "{record}");
    record["sms"].as_u64().expect("multiprocessors")
}

/// Whether a client that connects now may allocate so many MiB.
fn may_have(place: &Place, job: &str, mib: &str) -> bool {
    let ran = place.stage.client(&["--alloc", mib], &[place.pipe(job)]);
    ran.code == Some(0)
}

fn of_gpu(percent: f64) -> u64 {
    multiprocessors(132, percent).into()
}

#[test]
fn clients_that_connect_from_then_on_have_the_new_limits_and_the_report_says_who_set_them() {
    let (place, job) = (served(fast(1), "480.srv", ACCOUNT, "0"), "480.srv");
    assert_eq!(sms(&place, job), of_gpu(25.0));
    assert!(!may_have(&place, job, "3000"));
    let ran = mpsctl(
        &place,
        Some(USER),
        &["set", job, "--threads", "40", "--mem", "4G"],
    );
    done(
        &ran,
        "clients that connect from now on have threads 40 %, memory 4096M of GPU-",
    );
    assert_eq!(sms(&place, job), of_gpu(40.0));
    assert!(may_have(&place, job, "3000"));

    // As asked, as set, and in force; nobody says that anything was lifted.
    for user in [Some(USER), None] {
        let ran = mpsctl(&place, user, &["status", job]);
        let threads = "active thread percentage: asked 25, set to 40 since, the daemon says 40.0\n";
        assert!(ran.out.contains(threads), "{ran:?}");
        let memory = ": asked 1024M, set to 4096M since, the daemon says 4G\n";
        assert!(ran.out.contains(memory) && !ran.out.contains("NOT"), "{ran:?}");
    }
    // A server that is started anew has them as well.
    let server = place.pids("nvidia-cuda-mps-server")[0];
    kill(server, Signal::SIGKILL);
    assert!(wait_until(SOON, || !look::alive(server)));
    assert_eq!(sms(&place, job), of_gpu(40.0));

    let ran = mpsctl(&place, Some(USER), &["set", job, "--threads", "12.5", "--json"]);
    let told: Value = serde_json::from_str(&ran.out).expect("an object");
    assert_eq!(told["daemons"][0]["threads"], "12.5", "{told}");
    assert_eq!(sms(&place, job), of_gpu(12.5));
    place.assert_ends_clean(job, "limits that were set");

    let ran = mpsctl(&place, None, &["report", job]);
    for words in [
        "limits of each client: threads 25 %, memory 1024M of GPU-",
        "set while the job ran (mpsctl set): active thread percentage: from 25 to 40",
        ": from 1024M to 4096M",
        "from 40 to 12.5",
    ] {
        done(&ran, words);
    }
    assert!(!ran.out.contains("change a limit"), "{ran:?}");
    let ran = mpsctl(&place, None, &["report", job, "--json"]);
    let report: Value = serde_json::from_str(&ran.out).expect("a report");
    assert_eq!(report["said_by_user"]["limits_set"][0]["to"], "40", "{report}");
    assert_eq!(
        report["said_by_user"]["limits_changed"],
        serde_json::json!([]),
        "{report}"
    );
}

#[test]
fn what_is_lifted_by_hand_after_it_is_told_against_what_was_set() {
    let (place, job) = (served(fast(1), "481.srv", ACCOUNT, "0"), "481.srv");
    done(
        &mpsctl(&place, Some(USER), &["set", job, "--threads", "40"]),
        "threads 40 %",
    );
    let mut command = as_user(USER, place.stage.node.control());
    command.env_clear().envs([place.pipe(job)]);
    let mut child = command
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("a session");
    let said = child
        .stdin
        .take()
        .expect("stdin")
        .write_all(b"set_default_active_thread_percentage 90\n");
    said.expect("the session reads");
    assert!(child.wait().is_ok_and(|status| status.success()));
    let told = "was told to change a limit: active thread percentage: 40 was asked for, and it says 90.0";
    assert!(
        wait_until(SOON, || log(&place, job).contains(told)),
        "{}",
        log(&place, job)
    );
    assert_eq!(log(&place, job).matches("was told to change").count(), 1);
    place.assert_ends_clean(job, "a limit lifted by hand");
}

#[test]
fn what_cannot_be_set_is_refused_with_what_can() {
    let (place, job) = (served(fast(2), "482.srv", ACCOUNT, "0,1"), "482.srv");
    let before = log(&place, job);
    for (args, words) in [
        (
            &["--threads", "60.1"][..],
            "--threads 60.1: it is above this site's ceiling; allowed: 1 to 60",
        ),
        (
            &["--threads", "auto"],
            "--threads auto: NVIDIA's daemon has one limit for all clients of a GPU; allowed: one number",
        ),
        (
            &["--threads", "0"],
            "--threads 0: below 1; allowed: one number from 1 to 100",
        ),
        (
            &["--mem", "7G"],
            "=7168M: it is more than this site's ceiling, or than the GPU has; allowed: at most 6144M",
        ),
        (&["--mem", "1=7G"], "=7168M: it is more than this site's ceiling"),
        (
            &["--mem", "2=1G"],
            "--mem 2=1G: the job has 2 GPUs here, from 0; allowed: a size such as 4G",
        ),
        (
            &["--mem", "25%"],
            "--mem 25%: it is a share of a job that begins; allowed: a size",
        ),
        (&["--mem", "1G:2G"], "one limit for all clients of a GPU"),
        (&["--mem", "4"], "--mem 4: "),
        (
            &[],
            "it is not said what to set; allowed: --threads P, --mem M, or both",
        ),
        (
            &["--threads", "10", "--client", "1234"],
            "--client 1234: NVIDIA's control daemon has no limit of a single client",
        ),
    ] {
        let args: Vec<&str> = ["set", job].iter().chain(args).copied().collect();
        for user in [Some(USER), None] {
            refused(&mpsctl(&place, user, &args), 1, words);
        }
    }
    let args = ["set", job, "--threads", "10"];
    refused(
        &mpsctl(&place, Some(OTHER_USER), &args),
        1,
        "its MPS is another user's",
    );
    let of_none = ["set", "999.srv", "--threads", "10"];
    refused(
        &mpsctl(&place, Some(USER), &of_none),
        1,
        "job 999.srv: there is no MPS of it here",
    );
    assert_eq!(sms(&place, job), of_gpu(25.0));
    assert!(
        !log(&place, job)[before.len()..].contains("mpsctl set"),
        "{}",
        log(&place, job)
    );
    place.assert_ends_clean(job, "refused limits");
}

#[test]
fn each_gpu_has_its_own_and_root_sets_them_through_a_process_of_the_users() {
    alone(|| {
        let account = "MPS=per-gpu,MPS_THREADS=25,MPS_MEM=1G";
        let (place, job) = (served(fast(2), "483.srv", account, "0,1"), "483.srv");
        let room = place.stage.path("room");
        fs::create_dir(&room).expect("directory");
        let journal = Syslog::hear_journal(&room);
        let ran = mpsctl(&place, None, &["set", job, "--mem", "1=2G"]);
        done(&ran, "memory 1024M of GPU-");
        done(&ran, "memory 2048M of GPU-");
        place.assert_ends_clean(job, "root's limits");
        let all = journal.lines();
        let uuid = place.stage.node.uuids()[1].to_string();
        let set: Vec<&String> = all
            .iter()
            .filter(|entry| entry.contains("MPSD_EVENT=set\n"))
            .collect();
        let [set] = set[..] else { panic!("{all:?}") };
        assert!(
            set.contains(&format!("MPSD_LIMITS_SET=memory 2048M of {uuid}\n")),
            "{set}"
        );
        assert!(set.contains("SYSLOG_IDENTIFIER=mpsctl\n"), "{set}");
        let end = all
            .iter()
            .find(|entry| entry.contains("MPSD_EVENT=end\n"))
            .expect("an end");
        let said = format!("MPSD_SAID_BY_USER_SET=memory limit of {uuid}: from 1024M to 2048M\n");
        assert!(end.contains(&said), "{end}");
    });
}

#[test]
fn a_client_that_has_more_by_its_own_older_limit_is_not_ended_for_a_lower_one() {
    let account = "MPS=true,MPS_MEM=6G";
    let (place, job) = (served(fast(1), "484.srv", account, "0"), "484.srv");
    let old = place.attached(job, &["--alloc", "5000", "--hold", "60"], &[]);
    done(
        &mpsctl(&place, Some(USER), &["set", job, "--mem", "1G"]),
        "memory 1024M",
    );
    assert!(!may_have(&place, job, "3000"));
    // One that is over every limit proves that the watch looks.
    let over: Running = place.attached(
        job,
        &["--alloc", "8000", "--hold", "60"],
        &[("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "garbage")],
    );
    let told = format!("client {} is over its memory limit", over.0.id());
    assert!(
        wait_until(SOON, || log(&place, job).contains(&told)),
        "{}",
        log(&place, job)
    );
    assert!(look::alive(old.0.id()), "{}", log(&place, job));
    assert!(
        !log(&place, job).contains(&format!("client {} ", old.0.id())),
        "{}",
        log(&place, job)
    );
    drop((old, over));
    place.assert_ends_clean(job, "a lowered memory limit");
}

#[test]
fn without_its_mpsd_and_with_a_daemon_that_does_not_answer_nothing_is_said_to_be_set() {
    let (place, job) = (served(fast(1), "485.srv", ACCOUNT, "0"), "485.srv");
    let server = place.pids("nvidia-cuda-mps-server")[0];
    kill(server, Signal::SIGSTOP);
    let started = Instant::now();
    let ran = mpsctl(&place, Some(USER), &["set", job, "--threads", "40"]);
    refused(&ran, 2, "job 485.srv: nothing is known to be set: ");
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    kill(server, Signal::SIGCONT);
    for mpsd in place.pids("mpsd") {
        kill(mpsd, Signal::SIGKILL);
    }
    assert!(wait_until(SOON, || place.pids("mpsd").is_empty()));
    let ran = mpsctl(&place, Some(USER), &["set", job, "--threads", "40"]);
    refused(&ran, 2, "the job's mpsd cannot be asked: ");
    place.assert_ends_clean(job, "limits that were not set");
}

/// The control daemons by the job's GPUs.
fn control_daemons(place: &Place) -> Vec<u32> {
    let mut all = place.pids("nvidia-cuda-mps-control");
    let of = |pid: &u32, n: usize| {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&environ).contains(&format!("/pipe-{n}"))
    };
    all.sort_by_key(|pid| (0..).find(|n| *n > 8 || of(pid, *n)));
    all
}

/// The multiprocessors of a client of the daemon of GPU `n` that connects now.
#[track_caller]
fn sms_of_gpu(place: &Place, job: &str, n: usize) -> u64 {
    let pipe = place
        .stage
        .job(job)
        .join(format!("pipe-{n}"))
        .display()
        .to_string();
    let ran = place
        .stage
        .client(&[] as &[&str], &[("CUDA_MPS_PIPE_DIRECTORY".to_owned(), pipe)]);
    let record: Value = serde_json::from_str(ran.out.lines().last().unwrap_or_default()).expect("a record");
    assert_eq!(record["under_mps"], true, "{record}");
    record["sms"].as_u64().expect("multiprocessors")
}

/// All or none: what a job had no limit of has none again, where one of its daemons does not do it.
#[test]
fn limits_that_one_daemon_did_not_take_are_taken_back_from_the_others() {
    let (place, job) = (Place::new(fast(2), "deadline_s = 6\n"), "488.srv");
    assert_eq!(place.torque(job, "MPS=per-gpu", "0,1").code, Some(0));
    let whole = sms_of_gpu(&place, job, 0);
    let second = control_daemons(&place)[1];
    kill(second, Signal::SIGSTOP);
    let ran = mpsctl(
        &place,
        Some(USER),
        &["set", job, "--threads", "40", "--mem", "0=1G"],
    );
    refused(&ran, 2, "nothing is known to be set: ");
    kill(second, Signal::SIGCONT);
    assert_eq!(sms_of_gpu(&place, job, 0), whole);
    place.assert_ends_clean(job, "limits that one daemon did not take");
}

/// What the daemons that are left have is told; what only one that has ended could do is not said to be done.
#[test]
fn a_daemon_that_has_ended_keeps_the_others_from_nothing() {
    let account = "MPS=per-gpu,MPS_THREADS=25,MPS_MEM=1G";
    let (place, job) = (served(fast(2), "489.srv", account, "0,1"), "489.srv");
    kill(control_daemons(&place)[0], Signal::SIGKILL);
    assert!(wait_until(SOON, || {
        let log = place.stage.job(job).join("log-0/mpsd.log");
        let log = fs::read_to_string(log).unwrap_or_default();
        log.contains("new steps and 'mpsctl exec' are refused")
    }));
    let ran = mpsctl(&place, Some(USER), &["set", job, "--mem", "0=2G"]);
    refused(&ran, 2, "nothing is known to be set: ");
    for user in [Some(USER), None] {
        let ran = mpsctl(&place, user, &["set", job, "--threads", "40"]);
        done(&ran, "threads 40 %");
    }
    assert_eq!(sms_of_gpu(&place, job, 1), of_gpu(40.0));
    let ran = mpsctl(&place, Some(USER), &["status", job]);
    let threads = "active thread percentage: asked 25, set to 40 since, the daemon says 40.0\n";
    assert!(ran.out.contains(threads) && !ran.out.contains("NOT"), "{ran:?}");
    place.assert_ends_clean(job, "a lost daemon");
}

/// What their own process says in `mpsd`'s place is told as what it is, without escapes, and holds nobody.
#[test]
fn a_socket_of_the_users_own_gets_nothing_onto_roots_terminal_or_into_roots_word() {
    alone(|| {
        let (place, job) = (served(fast(1), "486.srv", ACCOUNT, "0"), "486.srv");
        let room = place.stage.path("room");
        fs::create_dir(&room).expect("directory");
        let journal = Syslog::hear_journal(&room);
        let socket = place.stage.job(job).join("log/mpsd.socket");
        fs::remove_file(&socket).expect("mpsd has made it");
        let own = UnixListener::bind(&socket).expect("a socket");
        let user = nix::unistd::User::from_name(USER)
            .ok()
            .flatten()
            .expect("the user");
        std::os::unix::fs::chown(&socket, Some(user.uid.as_raw()), None).expect("chown");
        let answers = std::thread::spawn(move || {
            let refusal =
                "{\"Err\":{\"Refused\":{\"what\":\"a\\u001b[2Jb\",\"why\":\"c\\nd\",\"allowed\":\"e\"}}}\n";
            for answer in [refusal, "nonsense\n", "{\"Ok\":[]}\n", ""] {
                let (mut stream, _) = own.accept().expect("mpsctl");
                let mut line = String::new();
                let _ = BufReader::new(&stream).read_line(&mut line);
                let _ = stream.write_all(answer.as_bytes());
                if answer.is_empty() {
                    std::thread::sleep(Duration::from_secs(12));
                }
            }
        });
        let set = || mpsctl(&place, None, &["set", job, "--threads", "40"]);
        let ran = set();
        assert!(
            ran.code == Some(1) && !ran.err.contains('\u{1b}') && ran.err.lines().count() == 1,
            "{ran:?}"
        );
        for _ in 0..2 {
            refused(&set(), 2, "nothing is known to be set");
        }
        let started = Instant::now();
        refused(&set(), 2, "nothing is known to be set");
        assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
        answers.join().expect("the socket");
        let all = journal.lines();
        assert!(
            all.iter().all(|entry| !entry.contains("MPSD_EVENT=set")),
            "{all:?}"
        );
        place.assert_ends_clean(job, "a socket in mpsd's place");
    });
}

#[test]
fn who_knocks_and_says_nothing_keeps_neither_mpsd_nor_the_end() {
    let (place, job) = (served(fast(1), "487.srv", ACCOUNT, "0"), "487.srv");
    let socket = place.stage.job(job).join("log/mpsd.socket");
    let silent: Vec<UnixStream> = (0..4)
        .map(|_| UnixStream::connect(&socket).expect("a door"))
        .collect();
    let mut loud = UnixStream::connect(&socket).expect("a door");
    let _ = loud.write_all(&[b'x'; 1 << 16]);
    done(
        &mpsctl(&place, Some(USER), &["set", job, "--threads", "40"]),
        "threads 40 %",
    );
    drop((silent, loud));
    place.assert_ends_clean(job, "silent visitors");
}

/// Nor does the end wait for limits that a stopped server keeps from being set.
#[test]
fn the_end_waits_for_no_limits_that_are_being_set() {
    let (place, job) = (served(fast(1), "490.srv", ACCOUNT, "0"), "490.srv");
    kill(place.pids("nvidia-cuda-mps-server")[0], Signal::SIGSTOP);
    let socket = place.stage.job(job).join("log/mpsd.socket");
    let asked: Vec<UnixStream> = (0..4)
        .map(|_| {
            let mut stream = UnixStream::connect(&socket).expect("a door");
            let wanted = b"{\"threads\":\"40\"}\n";
            stream.write_all(wanted).expect("it is read, or waits");
            stream
        })
        .collect();
    let session = || place.pids("nvidia-cuda-mps-control").len() > 1;
    assert!(wait_until(SOON, session), "nobody sets anything");
    let started = Instant::now();
    place.assert_ends_clean(job, "limits that are being set");
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    drop(asked);
}
