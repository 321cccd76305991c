use super::*;
use crate::process::Process;
use crate::testing::{STRANGER, alone, as_stranger, forked, soon};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use std::io::Write as _;
use std::time::Instant;

fn sh(line: &str) -> Spawn {
    let mut spawn = Spawn::trusted(Path::new("/bin/sh")).unwrap();
    spawn.args = vec!["-c".into(), line.into()];
    spawn
}

fn run(line: &str, deadline: Deadline) -> Result<ChildOutput, RunError> {
    sh(line).run(deadline, 4096)
}

/// Runs a shell line as `change` says, and returns its output and end.
fn shell(line: &str, change: impl FnOnce(&mut Spawn)) -> (String, Exit) {
    let mut spawn = sh(line);
    change(&mut spawn);
    let output = spawn.run(soon(), 1 << 16).unwrap();
    (output.text(), output.exit)
}

fn stranger(groups: &[u32]) -> Option<Identity> {
    let identity = as_stranger("", &[]).identity?;
    let groups = groups.to_vec();
    Some(Identity { groups, ..identity })
}

#[test]
fn devices_that_cannot_be_hidden_are_told() {
    let hidden = |behind: &str| {
        let mut spawn = sh("exit 0");
        let files = vec!["/dev/no-such-device".into()];
        spawn.hidden = Some(Hidden {
            files,
            behind: behind.into(),
        });
        spawn.start(soon()).unwrap().unhidden()
    };
    assert_eq!(hidden("/dev/null"), None);
    assert_eq!(hidden("/no/such/file"), Some(Errno::ENOENT));
}

#[test]
fn the_environment_is_exact_and_mask_directory_signals_and_session_are_set() {
    let _alone = alone();
    let env = vec![("ONLY".into(), "this one".into())];
    let line = "/usr/bin/env | grep -vE '^(PWD|_)='; umask; pwd";
    let (text, end) = shell(line, |s| s.env = env);
    assert_eq!((&*text, end), ("ONLY=this one\n0077\n/\n", Exit::Code(0)));
    let blocked = SigSet::from(Signal::SIGTERM);
    blocked.thread_block().unwrap();
    let line = "grep -E 'Sig(Blk|Ign)' /proc/self/status; ps -o sid= -p $$; echo $$";
    let (text, _) = shell(line, |_| ());
    blocked.thread_unblock().unwrap();
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let none = ["SigBlk", "SigIgn"].map(|name| format!("{name}:\t0000000000000000"));
    assert_eq!(lines[..2], none);
    assert_eq!(lines[2], lines[3], "leader of its session");
}

#[test]
fn the_ways_to_end_differ_and_what_cannot_start_says_why() {
    let _alone = alone();
    // A real-time signal has no name in nix.
    for (line, end) in [
        ("exit 1", Exit::Code(1)),
        ("kill -9 $$", Exit::Signal(9)),
        ("kill -40 $$", Exit::Signal(40)),
    ] {
        assert_eq!(shell(line, |_| ()).1, end);
    }
    let missing = Spawn::new("/nowhere/program").start(soon()).unwrap_err();
    let why = "cannot start '/nowhere/program': it cannot be executed: ENOENT: No such file";
    assert!(missing.to_string().starts_with(why), "{missing}");
    let directory = Spawn::new("/etc").start(soon()).unwrap_err();
    assert_eq!(directory.errno(), Some(Errno::EACCES));
    let mut bad = Spawn::new("/bin/sh");
    bad.env = vec![("A=B".into(), "x".into())];
    for spawn in [Spawn::new("sh"), bad] {
        let error = spawn.start(soon()).unwrap_err();
        assert!(matches!(error.why, StartFailure::Invalid(_)), "{error}");
    }
}

#[test]
fn the_identity_is_dropped_and_proved() {
    let _alone = alone();
    let line = "id -u; id -g; id -G; grep -E '^Cap(Inh|Prm|Eff|Amb)' /proc/self/status";
    let (text, _) = shell(line, |s| s.identity = stranger(&[54_323, 54_322, 54_323]));
    let none = ["Inh", "Prm", "Eff", "Amb"].map(|set| format!("Cap{set}:\t{:016}\n", 0));
    let ids = "54321\n54321\n54321 54322 54323\n";
    assert_eq!(text, ids.to_owned() + &none.concat());
    let many: Vec<u32> = (60_000..60_200).collect();
    let (text, _) = shell("id -G", |s| s.identity = stranger(&many));
    assert_eq!(text.split_whitespace().count(), 201);
    // None: the caller's groups are gone too.
    let line = "grep Groups: /proc/self/status";
    let (text, _) = shell(line, |s| s.identity = stranger(&[]));
    assert_eq!(text.trim(), "Groups:");
}

#[test]
fn no_descriptor_leaks_and_the_named_ones_arrive_where_they_should() {
    let _alone = alone();
    let leaky: Vec<_> = (0..40).map(|_| descriptors::null().unwrap()).collect();
    for file in &leaky {
        fcntl(file, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    }
    let file = |text: &str| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        OwnedFd::from(file)
    };
    // Crossed on purpose: each gets the number that the other has here.
    let (first, second) = (file("first"), file("second"));
    let (one, two) = (first.as_raw_fd(), second.as_raw_fd());
    // 0, 1, 2, these two, and ls's own of the directory.
    let fd = "/proc/self/fd";
    let line = format!("head -c9 {fd}/{one}; head -c9 {fd}/{two}; ls {fd} | wc -l");
    let (text, _) = shell(&line, |s| s.inherit = vec![(first, two), (second, one)]);
    assert_eq!(text, "secondfirst6\n");
}

#[test]
fn open_files_are_raised_never_lowered() {
    let _alone = alone();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    for (nofile, soft) in [(hard + 5, hard), (1 << 40, hard), (1, soft)] {
        let (text, _) = shell("ulimit -Sn; ulimit -Hn", |s| s.nofile = Some(nofile));
        assert_eq!(text, format!("{soft}\n{hard}\n"));
    }
}

#[test]
fn a_protected_score_is_reset_and_a_positive_one_stays() {
    let _alone = alone();
    // Children inherit the score: set our own for a moment, under the lock.
    let path = "/proc/self/oom_score_adj";
    let before = std::fs::read_to_string(path).unwrap();
    // A container may forbid the protection; then 0 comes out all the same.
    let protected = std::fs::write(path, "-500");
    let (reset, _) = shell("cat /proc/self/oom_score_adj", |_| ());
    std::fs::write(path, "300").unwrap();
    let (kept, _) = shell("cat /proc/self/oom_score_adj", |_| ());
    std::fs::write(path, before.trim()).unwrap();
    let found = (reset.trim(), kept.trim());
    assert_eq!(found, ("0", "300"), "protected: {protected:?}");
}

#[test]
fn a_user_with_too_many_processes_is_named_as_the_cause() {
    let _alone = alone();
    let own_user = |program: &str| {
        let mut spawn = as_stranger(program, &["60"]);
        let identity = spawn.identity.as_mut().unwrap();
        (identity.uid, identity.gid) = (STRANGER + 1, STRANGER + 1);
        spawn.start(soon())
    };
    let (limit, hard) = getrlimit(Resource::RLIMIT_NPROC).unwrap();
    let sleepers = [own_user("/bin/sleep"), own_user("/bin/sleep")];
    setrlimit(Resource::RLIMIT_NPROC, 1, hard).unwrap();
    let error = own_user("/bin/true").unwrap_err();
    setrlimit(Resource::RLIMIT_NPROC, limit, hard).unwrap();
    for sleeper in sleepers {
        sleeper.unwrap().kill(soon());
    }
    assert_eq!(error.errno(), Some(Errno::EAGAIN));
    let why = error.to_string();
    assert!(why.contains("it cannot be executed"), "{why}");
}

#[test]
fn a_child_that_cannot_be_ready_in_time_is_given_up() {
    let _alone = alone();
    let (mut report, answer) = Output::pipe().unwrap();
    // As a child whose program lies on a file system that does not answer.
    let child = forked(|| {
        nix::unistd::pause();
        0
    });
    drop(answer);
    let (pid, began) = (child.pid(), Instant::now());
    let outcome = follow(child, &mut report, Deadline::after_ms(50));
    assert!(began.elapsed() < Duration::from_secs(2));
    assert!(matches!(outcome, Err(StartFailure::Late)), "{outcome:?}");
    // It was killed and reaped.
    assert_eq!(raw::reap(Some(pid)), Err(Errno::ECHILD));
}

#[test]
fn dropping_an_ended_child_leaves_no_zombie() {
    let _alone = alone();
    let child = Spawn::new("/bin/true").start(soon()).unwrap();
    let id = child.id().unwrap();
    assert!(id.open().unwrap().wait_gone(soon()));
    assert!(id.open().is_some(), "defunct until reaped");
    drop(child);
    assert!(id.open().is_none());
}

#[test]
fn a_program_run_to_its_end_returns_its_end_and_both_outputs() {
    let _alone = alone();
    let mut spawn = sh("cat; echo no >&2; exit 3");
    spawn.input(b"said\n").unwrap();
    let ended = spawn.run(soon(), 4096).unwrap();
    let outputs = (&*ended.out, &*ended.err, ended.exit);
    assert_eq!(outputs, (&b"said\n"[..], &b"no\n"[..], Exit::Code(3)));
    assert_eq!(ended.text(), "said\nno\n");
    let quiet = run("exec >&- 2>&-; sleep 0.1; exit 4", soon()).unwrap();
    assert_eq!(quiet.exit, Exit::Code(4));
    let missing = Spawn::new("/nowhere/program").run(soon(), 10);
    assert!(matches!(missing, Err(RunError::Start(_))));
    // What does not fit into a pipe is not cut.
    let error = Spawn::new("/bin/cat").input(&vec![0; 1 << 21]).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EAGAIN));
}

/// Waits until `pid` has ended; init may not have reaped it.
fn gone(pid: &str) {
    if let Some(process) = Process::find(pid.trim().parse().unwrap()) {
        assert!(process.wait_gone(soon()), "{pid} is still there");
    }
}

#[test]
fn what_a_program_has_started_ends_with_it() {
    let _alone = alone();
    let place = tempfile::NamedTempFile::new().unwrap();
    let line = format!("sleep 600 & echo $! > '{}'; wait", place.path().display());
    let began = Instant::now();
    let error = run(&line, Deadline::after_ms(300)).unwrap_err().to_string();
    let is_late = error.contains("did not end within") && error.ends_with(" ms");
    assert!(is_late, "{error}");
    assert!((300..5000).contains(&began.elapsed().as_millis()));
    gone(&std::fs::read_to_string(place.path()).unwrap());
    // It keeps a copy of the pipe.
    let began = Instant::now();
    let ended = run("sleep 600 & echo $!", soon()).unwrap();
    let took = began.elapsed();
    assert!(took < Duration::from_secs(5), "it waited for the pipe");
    assert_eq!(ended.exit, Exit::Code(0));
    gone(&ended.text());
}

#[test]
fn a_program_is_killed_as_soon_as_its_caller_has_something_to_read() {
    let _alone = alone();
    let stop = descriptors::holding(b"x").unwrap();
    let ended = sh("sleep 600").run_unless(Some(stop.as_fd()), soon(), 4096);
    let error = ended.unwrap_err().to_string();
    assert!(error.ends_with("something else came first"), "{error}");
}

#[test]
fn an_answer_without_end_is_no_answer() {
    let _alone = alone();
    for line in ["while :; do echo more; done", "head -c 5000 /dev/zero"] {
        let error = run(line, soon()).unwrap_err();
        assert_eq!(error.to_string(), "'/bin/sh' wrote more than 4096 bytes");
    }
    let just = run("head -c 4096 /dev/zero", soon()).unwrap();
    assert_eq!(just.out.len(), 4096);
}

#[test]
fn a_program_that_another_user_could_have_put_there_is_not_started() {
    use std::os::unix::fs::PermissionsExt;
    let _alone = alone();
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("squeue");
    std::fs::write(&program, "#!/bin/sh\necho $0\n").unwrap();
    let set = |mode| std::fs::set_permissions(&program, PermissionsExt::from_mode(mode)).unwrap();
    set(0o775);
    assert!(Spawn::trusted(&program).is_err());
    set(0o755);
    let ended = Spawn::trusted(&program).unwrap().run(soon(), 4096).unwrap();
    let name = program.display().to_string();
    assert_eq!(ended.text().trim(), name, "a script knows its name");
}

#[test]
fn a_child_that_its_user_stops_before_exec_is_given_up_at_the_deadline() {
    let _alone = alone();
    let line = "while :; do kill -STOP -1; done 2>/dev/null";
    let mut stopper = as_stranger("/bin/sh", &["-c", line]).start(soon()).unwrap();
    let limit = Duration::from_millis(300);
    let mut given_up = 0;
    let begin = Instant::now();
    while given_up < 3 && begin.elapsed() < Duration::from_secs(40) {
        let start = Instant::now();
        let outcome = as_stranger("/bin/true", &[]).start(Deadline::after(limit));
        let took = start.elapsed();
        assert!(took < limit + REAP + Duration::from_secs(2), "{took:?}");
        match outcome {
            Ok(mut child) => drop(child.kill(soon())),
            Err(error) => given_up += u32::from(matches!(error.why, StartFailure::Late)),
        }
    }
    stopper.kill(soon());
    assert_eq!(given_up, 3, "none was stopped in time to tell");
}
