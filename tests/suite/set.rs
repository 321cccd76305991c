//! `mpsctl set`: a job's owner or root gives later clients other limits, within the site's
//! ceilings.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tests::double::Builder;
use tests::double::look;
use tests::double::visible::multiprocessors;
use tests::place::{Place, eventually, fast, kill};
use tests::scarcity::alone;
use tests::stage::{OTHER_USER, Ran, USER, finish, uid_of};
use tests::syslog::Syslog;

const SOON: Duration = Duration::from_secs(20);
const CEILINGS: &str =
    "deadline_s = 6\nmemory_over_limit = \"terminate\"\n[ceilings]\nthreads = 60\nmem = \"6G\"\n";
const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=1G";
const PER_GPU: &str = "MPS=per-gpu,MPS_THREADS=25,MPS_MEM=1G";
const NOT_SET: &str = "nothing is known to be set: ";

fn served(node: Builder, job: &str, account: &str, gpus: &str) -> Place {
    Place::with_job(node, CEILINGS, job, account, gpus)
}

fn mpsctl(place: &Place, user: Option<&str>, args: &[&str]) -> Ran {
    match user {
        Some(user) => place.mpsctl_as(user, args, &[]),
        None => place.mpsctl(args),
    }
}

fn set(place: &Place, job: &str, args: &[&str]) -> Ran {
    mpsctl(place, Some(USER), &[&["set", job], args].concat())
}

#[track_caller]
fn done(ran: &Ran, words: &str) {
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran.prints(words);
}

#[track_caller]
fn refused(ran: Ran, code: i32, words: &str) {
    let ran = ran.exits(code);
    assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
    ran.complains(words).prints_nothing();
}

fn log(place: &Place, job: &str) -> String {
    place.log(job, "mpsd.log")
}

#[track_caller]
fn sms(place: &Place, job: &str) -> u64 {
    let record = place.served(job, &[]).json();
    record["sms"].as_u64().expect("multiprocessors")
}

/// Whether a client that connects now may allocate 3000 MiB.
fn may_have_3000(place: &Place, job: &str) -> bool {
    place.tried(job, &["--alloc", "3000"]).code == Some(0)
}

/// The socket of the job's `mpsd`, made after it is ready.
fn socket(place: &Place, job: &str) -> PathBuf {
    let socket = place.job(job).join("log/mpsd.socket");
    eventually("mpsd has a socket", || socket.exists());
    socket
}

fn of_gpu(percent: f64) -> u64 {
    multiprocessors(132, percent).into()
}

#[test]
fn clients_that_connect_from_then_on_have_the_new_limits_and_the_report_says_who_set_them() {
    let (place, job) = (served(fast(1), "480.srv", ACCOUNT, "0"), "480.srv");
    assert_eq!(sms(&place, job), of_gpu(25.0));
    assert!(!may_have_3000(&place, job));
    let ran = set(&place, job, &["--threads", "40", "--mem", "4G"]);
    let told = "clients that connect from now on have threads 40 %, memory 4096M of GPU-";
    done(&ran, told);
    assert_eq!(sms(&place, job), of_gpu(40.0));
    assert!(may_have_3000(&place, job));

    // As requested, as set, and in force; no line says that a limit was removed.
    for user in [Some(USER), None] {
        let ran = mpsctl(&place, user, &["status", job]);
        ran.prints("active thread percentage: asked 25, set to 40 since, the daemon says 40.0\n");
        ran.prints(": asked 1024M, set to 4096M since, the daemon says 4G\n");
        ran.lacks("NOT");
    }
    // The next server has them as well.
    let server = place.pids("nvidia-cuda-mps-server")[0];
    kill(server, Signal::SIGKILL);
    eventually("the server ends", || !look::alive(server));
    assert_eq!(sms(&place, job), of_gpu(40.0));

    let told = set(&place, job, &["--threads", "12.5", "--json"]).json();
    assert_eq!(told["daemons"][0]["threads"], "12.5", "{told}");
    assert_eq!(sms(&place, job), of_gpu(12.5));
    place.assert_ends_clean(job, "limits that were set");

    let ran = place.mpsctl(&["report", job]).ok();
    for words in [
        "limits of each client: threads 25 %, memory 1024M of GPU-",
        "set while the job ran (mpsctl set): active thread percentage: from 25 to 40",
        ": from 1024M to 4096M",
        "from 40 to 12.5",
    ] {
        ran.prints(words);
    }
    ran.lacks("change a limit");
    let report = place.mpsctl(&["report", job, "--json"]).json();
    let said = &report["said_by_user"];
    assert_eq!(said["limits_set"][0]["to"], "40", "{report}");
    assert_eq!(said["limits_changed"], serde_json::json!([]), "{report}");
}

#[test]
fn a_limit_lifted_by_hand_is_told_against_the_limit_that_was_set() {
    let (place, job) = (served(fast(1), "481.srv", ACCOUNT, "0"), "481.srv");
    done(&set(&place, job, &["--threads", "40"]), "threads 40 %");
    place.say(job, "set_default_active_thread_percentage 90");
    let told =
        "was told to change a limit: active thread percentage: 40 was asked for, and it says 90.0";
    eventually(told, || log(&place, job).contains(told));
    assert_eq!(log(&place, job).matches("was told to change").count(), 1);
    place.assert_ends_clean(job, "a limit lifted by hand");
}

#[test]
fn what_cannot_be_set_is_refused_with_what_can() {
    let (place, job) = (served(fast(2), "482.srv", ACCOUNT, "0,1"), "482.srv");
    let before = log(&place, job);
    for (args, words) in [
        (
            "--threads 60.1",
            "--threads 60.1: it is above this site's ceiling; allowed: 1 to 60",
        ),
        (
            "--threads auto",
            "--threads auto: NVIDIA's daemon has one limit for all clients of a GPU; allowed: one number",
        ),
        (
            "--threads 0",
            "--threads 0: below 1; allowed: one number from 1 to 100",
        ),
        (
            "--mem 7G",
            "=7168M: it is more than this site's ceiling, or than the GPU has; allowed: at most 6144M",
        ),
        ("--mem 1=7G", "=7168M: it is more than this site's ceiling"),
        (
            "--mem 2=1G",
            "--mem 2=1G: the job has 2 GPUs here, from 0; allowed: a size such as 4G",
        ),
        (
            "--mem 25%",
            "--mem 25%: only a job that begins can have a share; allowed: a size",
        ),
        ("--mem 1G:2G", "one limit for all clients of a GPU"),
        ("--mem 4", "--mem 4: "),
        (
            "",
            "no limit is given; allowed: --threads P, --mem M, or both",
        ),
    ] {
        let args: Vec<&str> = ["set", job]
            .into_iter()
            .chain(args.split_whitespace())
            .collect();
        for user in [Some(USER), None] {
            refused(mpsctl(&place, user, &args), 1, words);
        }
    }
    let foreign = mpsctl(&place, Some(OTHER_USER), &["set", job, "--threads", "10"]);
    refused(foreign, 1, "its MPS is another user's");
    let absent = set(&place, "999.srv", &["--threads", "10"]);
    refused(absent, 1, "job 999.srv: it has no MPS on this node");
    assert_eq!(sms(&place, job), of_gpu(25.0));
    let log = log(&place, job);
    assert!(!log[before.len()..].contains("mpsctl set"), "{log}");
    place.assert_ends_clean(job, "refused limits");
}

#[test]
fn each_gpu_has_its_own_and_root_sets_them_through_a_process_of_the_users() {
    alone(|| {
        let (place, job) = (served(fast(2), "483.srv", PER_GPU, "0,1"), "483.srv");
        let journal = Syslog::hear_journal(&place.directory("room"));
        let ran = mpsctl(&place, None, &["set", job, "--mem", "1=2G"]);
        done(&ran, "memory 1024M of GPU-");
        done(&ran, "memory 2048M of GPU-");
        place.assert_ends_clean(job, "root's limits");
        let all = journal.lines();
        let uuid = &place.node.uuids()[1];
        let has = |event: &str, fields: &[&str]| {
            let entries: Vec<&String> = all.iter().filter(|entry| entry.contains(event)).collect();
            let [entry] = entries[..] else {
                panic!("{all:?}")
            };
            let missing: Vec<_> = fields
                .iter()
                .filter(|field| !entry.contains(**field))
                .collect();
            assert!(missing.is_empty(), "{missing:?}: {entry}");
        };
        let limits = format!("MPSD_LIMITS_SET=memory 2048M of {uuid}\n");
        has("MPSD_EVENT=set\n", &[&limits, "SYSLOG_IDENTIFIER=mpsctl\n"]);
        let said = format!("MPSD_SAID_BY_USER_SET=memory limit of {uuid}: from 1024M to 2048M\n");
        has("MPSD_EVENT=end\n", &[&said]);
    });
}

#[test]
fn a_client_that_has_more_by_its_own_older_limit_is_not_ended_for_a_lower_one() {
    let account = "MPS=true,MPS_MEM=6G";
    let (place, job) = (served(fast(1), "484.srv", account, "0"), "484.srv");
    let old = place.attached(job, &["--alloc", "5000", "--hold", "60"], &[]);
    done(&set(&place, job, &["--mem", "1G"]), "memory 1024M");
    assert!(!may_have_3000(&place, job));
    // A client above every limit proves that the watch looks.
    let lifted = [("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "garbage")];
    let over = place.attached(job, &["--alloc", "8000", "--hold", "60"], &lifted);
    let told = format!("client {} is over its memory limit", over.pid());
    eventually(&told, || log(&place, job).contains(&told));
    assert!(look::alive(old.pid()), "{}", log(&place, job));
    let named = log(&place, job).contains(&format!("client {} ", old.pid()));
    assert!(!named, "{}", log(&place, job));
    drop((old, over));
    place.assert_ends_clean(job, "a lowered memory limit");
}

#[test]
fn without_its_mpsd_and_with_a_daemon_that_does_not_answer_nothing_is_said_to_be_set() {
    let (place, job) = (served(fast(1), "485.srv", ACCOUNT, "0"), "485.srv");
    let server = place.pids("nvidia-cuda-mps-server")[0];
    kill(server, Signal::SIGSTOP);
    let ran = set(&place, job, &["--threads", "40"]);
    ran.within(SOON);
    refused(ran, 2, &format!("job {job}: {NOT_SET}"));
    kill(server, Signal::SIGCONT);
    kill(place.pids("mpsd")[0], Signal::SIGKILL);
    eventually("mpsd ends", || place.pids("mpsd").is_empty());
    let ran = set(&place, job, &["--threads", "40"]);
    refused(ran, 2, "the job's mpsd cannot be asked: ");
    place.assert_ends_clean(job, "limits that were not set");
}

fn control_daemon(place: &Place, n: usize) -> u32 {
    let is_it = |pid: &u32| {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&environ).contains(&format!("/pipe-{n}"))
    };
    let pids = place.pids("nvidia-cuda-mps-control");
    pids.into_iter().find(is_it).expect("its daemon")
}

#[track_caller]
fn sms_of_gpu(place: &Place, job: &str, n: usize) -> u64 {
    let pipe = place.job(job).join(format!("pipe-{n}"));
    let mut client = place.cuda(&[]);
    let record = finish(client.env("CUDA_MPS_PIPE_DIRECTORY", pipe))
        .ok()
        .json();
    assert_eq!(record["under_mps"], true, "{record}");
    record["sms"].as_u64().expect("multiprocessors")
}

/// All or none: if one daemon refuses the limits, the others get their old limits back.
#[test]
fn limits_that_one_daemon_did_not_take_are_taken_back_from_the_others() {
    let job = "488.srv";
    let place = Place::with_job(fast(2), "deadline_s = 6\n", job, "MPS=per-gpu", "0,1");
    let whole = sms_of_gpu(&place, job, 0);
    let second = control_daemon(&place, 1);
    kill(second, Signal::SIGSTOP);
    let ran = set(&place, job, &["--threads", "40", "--mem", "0=1G"]);
    refused(ran, 2, NOT_SET);
    kill(second, Signal::SIGCONT);
    assert_eq!(sms_of_gpu(&place, job, 0), whole);
    place.assert_ends_clean(job, "limits that one daemon did not take");
}

/// It reports what the remaining daemons have, and does not claim what only the ended daemon could
/// do.
#[test]
fn a_daemon_that_has_ended_keeps_the_others_from_nothing() {
    let (place, job) = (served(fast(2), "489.srv", PER_GPU, "0,1"), "489.srv");
    kill(control_daemon(&place, 0), Signal::SIGKILL);
    let words = "new steps and 'mpsctl exec' are refused";
    let log = place.job(job).join("log-0/mpsd.log");
    eventually(words, || {
        fs::read_to_string(&log).is_ok_and(|text| text.contains(words))
    });
    refused(set(&place, job, &["--mem", "0=2G"]), 2, NOT_SET);
    for user in [Some(USER), None] {
        let ran = mpsctl(&place, user, &["set", job, "--threads", "40"]);
        done(&ran, "threads 40 %");
    }
    assert_eq!(sms_of_gpu(&place, job, 1), of_gpu(40.0));
    let ran = mpsctl(&place, Some(USER), &["status", job]);
    ran.prints("active thread percentage: asked 25, set to 40 since, the daemon says 40.0\n");
    ran.lacks("NOT");
    place.assert_ends_clean(job, "a lost daemon");
}

/// A user's process answers in `mpsd`'s place. Its answer is shown as the user's word, without
/// escapes, and delays no caller.
#[test]
fn a_socket_of_the_users_own_gets_nothing_onto_roots_terminal_or_into_roots_word() {
    alone(|| {
        let (place, job) = (served(fast(1), "486.srv", ACCOUNT, "0"), "486.srv");
        let journal = Syslog::hear_journal(&place.directory("room"));
        let socket = socket(&place, job);
        fs::remove_file(&socket).expect("mpsd has made it");
        let own = UnixListener::bind(&socket).expect("a socket");
        std::os::unix::fs::chown(&socket, Some(uid_of(USER)), None).expect("chown");
        let answers = std::thread::spawn(move || {
            let refusal = "{\"Err\":{\"Refused\":{\"what\":\"a\\u001b[2Jb\",\"why\":\"c\\nd\",\"allowed\":\"e\"}}}\n";
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
        let ran = set().exits(1);
        assert!(!ran.err.contains('\u{1b}'), "{ran:?}");
        assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
        for _ in 0..3 {
            let ran = set();
            ran.within(SOON);
            refused(ran, 2, NOT_SET);
        }
        answers.join().expect("the socket");
        let all = journal.lines();
        let entries = all.iter().filter(|entry| entry.contains("MPSD_EVENT=set"));
        assert_eq!(entries.count(), 0, "{all:?}");
        place.assert_ends_clean(job, "a socket in mpsd's place");
    });
}

#[test]
fn who_knocks_and_says_nothing_keeps_neither_mpsd_nor_the_end() {
    let (place, job) = (served(fast(1), "487.srv", ACCOUNT, "0"), "487.srv");
    let socket = socket(&place, job);
    let connect = || UnixStream::connect(&socket).expect("a door");
    let silent = [(); 4].map(|()| connect());
    let mut loud = connect();
    let _ = loud.write_all(&[b'x'; 1 << 16]);
    done(&set(&place, job, &["--threads", "40"]), "threads 40 %");
    drop((silent, loud));
    place.assert_ends_clean(job, "silent visitors");
}

/// The end does not wait for limits that a stopped server delays either.
#[test]
fn the_end_waits_for_no_limits_that_are_being_set() {
    let (place, job) = (served(fast(1), "490.srv", ACCOUNT, "0"), "490.srv");
    kill(place.pids("nvidia-cuda-mps-server")[0], Signal::SIGSTOP);
    let socket = socket(&place, job);
    let requests = [(); 4].map(|()| {
        let mut stream = UnixStream::connect(&socket).expect("a door");
        let request = b"{\"threads\":\"40\"}\n";
        stream.write_all(request).expect("it is read, or waits");
        stream
    });
    let sessions = || place.pids("nvidia-cuda-mps-control").len();
    eventually("a session sets a limit", || sessions() > 1);
    let started = Instant::now();
    place.assert_ends_clean(job, "limits that are being set");
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    drop(requests);
}

#[test]
fn a_job_that_shares_its_mps_sets_no_limits_of_the_others() {
    let place = Place::new(fast(1), &format!("shared_gpus = true\n{CEILINGS}"));
    let jobs = ["490.srv", "491.srv"];
    for job in jobs {
        place.torque_on_gpu_0(job, "MPS=true").ok();
    }
    for user in [Some(USER), None] {
        let ran = mpsctl(&place, user, &["set", jobs[0], "--threads", "10"]);
        refused(
            ran,
            1,
            "its daemon has one setting for all jobs that share it; allowed: ",
        );
    }
    let served = place.exec(&[], &[("PBS_JOBID", jobs[1])]).ok().json();
    assert_eq!(served["sms"], of_gpu(60.0));
    for job in jobs {
        place.end(job);
    }
    place.assert_as_before("limits that were not set");
}
