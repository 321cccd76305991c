use super::run::ChildOutput;
use super::*;
use crate::sys::process::Process;
use crate::sys::raw::Exit;
use crate::sys::testing::{STRANGER, alone, soon};
use nix::sys::signal::Signal;
use std::io::Read;
use std::time::Instant;

/// Runs a shell line (a test's convenience, never the product's) and returns its output and end.
fn shell(line: &str, change: impl FnOnce(&mut Spawn)) -> (String, Exit) {
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
    let mut spawn = Spawn::new("/bin/sh");
    spawn.args = vec!["-c".into(), line.into()];
    spawn.stdout = Some(write);
    change(&mut spawn);
    let mut child = spawn.start(soon()).unwrap();
    let mut text = String::new();
    std::fs::File::from(read).read_to_string(&mut text).unwrap();
    (text, child.wait(soon()).unwrap())
}

fn stranger(groups: &[u32]) -> Option<Identity> {
    Some(Identity {
        uid: STRANGER,
        gid: STRANGER,
        groups: groups.to_vec(),
    })
}

#[test]
fn the_environment_is_exact_and_the_mask_and_directory_are_set() {
    let _alone = alone();
    let env = vec![("ONLY".into(), "this one".into())];
    let (text, end) = shell("/usr/bin/env; umask; pwd", |s| s.env = env);
    let lines: Vec<_> = text
        .lines()
        .filter(|l| !l.starts_with("PWD=") && !l.starts_with("_="))
        .collect();
    assert_eq!(lines, ["ONLY=this one", "0077", "/"]);
    assert_eq!(end, Exit::Code(0));
}

#[test]
fn the_ways_to_end_differ() {
    let _alone = alone();
    assert_eq!(shell("exit 1", |_| ()).1, Exit::Code(1));
    assert_eq!(shell("kill -9 $$", |_| ()).1, Exit::Signal(9));
    assert_eq!(
        shell("kill -40 $$", |_| ()).1,
        Exit::Signal(40),
        "a real-time signal has no name in nix"
    );
    let missing = Spawn::new("/nowhere/program").start(soon()).unwrap_err();
    assert_eq!(missing.errno(), Some(Errno::ENOENT));
    assert_eq!(
        missing.to_string(),
        "cannot start '/nowhere/program': it cannot be executed: ENOENT: No such file or directory"
    );
    let directory = Spawn::new("/etc").start(soon()).unwrap_err();
    assert_eq!(directory.errno(), Some(Errno::EACCES));
    let invalid = |spawn: Spawn| matches!(spawn.start(soon()).unwrap_err().why, Why::Invalid(_));
    assert!(invalid(Spawn::new("sh")));
    let mut bad = Spawn::new("/bin/sh");
    bad.env = vec![("A=B".into(), "x".into())];
    assert!(invalid(bad));
}

#[test]
fn the_identity_is_dropped_and_proved() {
    let _alone = alone();
    let line = "id -u; id -g; id -G; grep -E '^Cap(Inh|Prm|Eff|Amb)' /proc/self/status";
    let (text, _) = shell(line, |s| s.identity = stranger(&[54_323, 54_322, 54_323]));
    let zero = "0000000000000000";
    let want = format!(
        "54321\n54321\n54321 54322 54323\nCapInh:\t{zero}\nCapPrm:\t{zero}\nCapEff:\t{zero}\nCapAmb:\t{zero}\n"
    );
    assert_eq!(text, want);
    // More groups than the 32 of which others' buffers are made.
    let many: Vec<u32> = (60_000..60_200).collect();
    let (text, _) = shell("id -G", |s| s.identity = stranger(&many));
    assert_eq!(text.split_whitespace().count(), 201);
    // None: the caller's groups are gone too.
    let (text, _) = shell("grep Groups: /proc/self/status", |s| s.identity = stranger(&[]));
    assert_eq!(text.trim(), "Groups:");
}

#[test]
fn no_descriptor_leaks_and_the_named_ones_arrive_where_they_should() {
    let _alone = alone();
    let leaky: Vec<_> = (0..40)
        .map(|_| std::fs::File::open("/dev/null").unwrap())
        .collect();
    for file in &leaky {
        nix::fcntl::fcntl(file, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty())).unwrap();
    }
    let (first, second) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    std::io::Write::write_all(&mut &first, b"first").unwrap();
    std::io::Write::write_all(&mut &second, b"second").unwrap();
    // Crossed on purpose: each goes to the number that the other has here.
    let (first, second): (OwnedFd, OwnedFd) = (first.into(), second.into());
    let (one, two) = (first.as_raw_fd(), second.as_raw_fd());
    let names = [one, two].map(|n| format!("/proc/self/fd/{n}"));
    let line = format!(
        "ls /proc/self/fd; head -c9 {}; echo; head -c9 {}",
        names[0], names[1]
    );
    let (text, _) = shell(&line, |s| s.inherit = vec![(first, two), (second, one)]);
    let mut lines: Vec<_> = text.lines().collect();
    let words = lines.split_off(lines.len() - 2);
    assert_eq!(words, ["second", "first"]);
    let mut numbers: Vec<i32> = lines.iter().map(|l| l.parse().unwrap()).collect();
    // ls's own descriptor of the directory is the one more.
    numbers.retain(|n| ![0, 1, 2, one, two].contains(n));
    assert_eq!(numbers.len(), 1, "{text}");
}

#[test]
fn signals_are_as_new_and_the_session_its_own() {
    let _alone = alone();
    let mut mask = nix::sys::signal::SigSet::empty();
    mask.add(Signal::SIGTERM);
    mask.thread_block().unwrap();
    let (text, _) = shell(
        "grep -E 'Sig(Blk|Ign|Cgt)' /proc/self/status; ps -o sid= -p $$; echo $$",
        |s| {
            s.session = true;
            s.nofile = Some(1 << 40);
        },
    );
    mask.thread_unblock().unwrap();
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    assert_eq!(
        &lines[..2],
        ["SigBlk:\t0000000000000000", "SigIgn:\t0000000000000000"]
    );
    assert_eq!(lines[3], lines[4], "leader of its session");
}

#[test]
fn open_files_are_raised_never_lowered() {
    let _alone = alone();
    let (soft, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    let line = "ulimit -Sn; ulimit -Hn";
    let (text, _) = shell(line, |s| s.nofile = Some(hard + 5));
    assert_eq!(text, format!("{hard}\n{hard}\n"));
    let (text, _) = shell(line, |s| s.nofile = Some(1));
    assert_eq!(text, format!("{soft}\n{hard}\n"));
}

#[test]
fn a_protected_score_is_reset_and_a_positive_one_stays() {
    let _alone = alone();
    // The score goes by inheritance: set our own for a moment, under the lock.
    let path = "/proc/self/oom_score_adj";
    let before = std::fs::read_to_string(path).unwrap();
    // A container may forbid the protection itself; then there is none to reset and 0 is what must come out.
    let protected = std::fs::write(path, "-500");
    let (reset, _) = shell("cat /proc/self/oom_score_adj", |_| ());
    std::fs::write(path, "300").unwrap();
    let (kept, _) = shell("cat /proc/self/oom_score_adj", |_| ());
    std::fs::write(path, before.trim()).unwrap();
    assert_eq!(
        (reset.trim(), kept.trim()),
        ("0", "300"),
        "protected: {protected:?}"
    );
}

#[test]
fn a_user_with_too_many_processes_is_named_as_the_cause() {
    let _alone = alone();
    let uid = STRANGER + 1;
    let identity = || {
        Some(Identity {
            uid,
            gid: uid,
            groups: vec![],
        })
    };
    let (limit, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NPROC).unwrap();
    let sleeper = || {
        let mut sleeper = Spawn::new("/bin/sleep");
        sleeper.args = vec!["60".into()];
        sleeper.identity = identity();
        sleeper.start(soon()).unwrap()
    };
    let sleepers = [sleeper(), sleeper()];
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NPROC, 1, hard).unwrap();
    let mut second = Spawn::new("/bin/true");
    second.identity = identity();
    let refused = second.start(soon());
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NPROC, limit, hard).unwrap();
    for mut sleeper in sleepers {
        sleeper.kill(soon());
    }
    let error = refused.unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EAGAIN));
    assert!(error.to_string().contains("it cannot be executed"), "{error}");
}

#[test]
fn a_child_that_cannot_be_ready_in_time_is_given_up() {
    let _alone = alone();
    let (report, answer) = nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
    // As a child whose program lies on a file system that does not answer.
    let pid = match raw::fork().unwrap() {
        None => loop {
            nix::unistd::pause();
        },
        Some(pid) => pid,
    };
    drop(answer);
    let began = std::time::Instant::now();
    let outcome = follow(Child::adopt(pid), &report, Deadline::after_ms(50));
    assert!(began.elapsed() < Duration::from_secs(2));
    assert_eq!(
        outcome.unwrap_err().to_string(),
        "its process was not ready in time"
    );
    assert_eq!(raw::reap(pid), Err(Errno::ECHILD), "killed and reaped");
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

fn run(line: &str, deadline: Deadline, change: impl FnOnce(&mut Spawn)) -> Result<ChildOutput, RunError> {
    let mut spawn = Spawn::trusted(Path::new("/bin/sh")).unwrap();
    spawn.args = vec!["-c".into(), line.into()];
    change(&mut spawn);
    spawn.run(deadline, 4096)
}

#[test]
fn a_program_run_to_its_end_tells_its_end_and_both_outputs() {
    let _alone = alone();
    let ended = run("cat; echo no >&2; exit 3", soon(), |s| {
        s.input(b"said\n").unwrap();
    })
    .unwrap();
    assert_eq!(ended.exit, Exit::Code(3));
    assert_eq!((&*ended.out, &*ended.err), (&b"said\n"[..], &b"no\n"[..]));
    assert_eq!(ended.text(), "said\nno\n");
    assert_eq!(run("kill -40 $$", soon(), |_| ()).unwrap().exit, Exit::Signal(40));
    let quiet = run("exec >&- 2>&-; sleep 0.1; exit 4", soon(), |_| ()).unwrap();
    assert_eq!(quiet.exit, Exit::Code(4));
    let mut missing = Spawn::new("/nowhere/program");
    missing.stdin = None;
    assert!(matches!(missing.run(soon(), 10), Err(RunError::Start(_))));
}

#[test]
fn a_program_run_past_its_deadline_is_killed_with_what_it_started() {
    let _alone = alone();
    let place = tempfile::tempdir().unwrap();
    let told = place.path().join("pid");
    let line = format!("sleep 600 & echo $! > '{}'; wait", told.display());
    let began = std::time::Instant::now();
    let error = run(&line, Deadline::after_ms(300), |_| ()).unwrap_err();
    assert!(
        matches!(
            error,
            RunError::Killed {
                why: KillReason::Late { survivor: None, .. },
                ..
            }
        ),
        "{error}"
    );
    assert!((300..5000).contains(&began.elapsed().as_millis()));
    let pid: i32 = std::fs::read_to_string(told).unwrap().trim().parse().unwrap();
    gone(pid);
}

#[test]
fn a_program_is_killed_as_soon_as_its_caller_has_something_to_read() {
    let _alone = alone();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut spawn = Spawn::new("/bin/sh");
    spawn.args = vec!["-c".into(), "echo $$; sleep 600".into()];
    std::io::Write::write_all(&mut writer, b"x").unwrap();
    let error = spawn.run_unless(Some(reader.as_fd()), soon(), 4096).unwrap_err();
    assert!(
        matches!(
            error,
            RunError::Killed {
                why: KillReason::Interrupted,
                ..
            }
        ),
        "{error}"
    );
}

/// Waits until `pid` has ended; init may not have reaped it.
fn gone(pid: i32) {
    if let Some(process) = Process::find(pid) {
        assert!(process.wait_gone(soon()), "{pid} is still there");
    }
}

#[test]
fn a_program_that_leaves_another_behind_with_its_pipe_ends_all_the_same() {
    let _alone = alone();
    let began = std::time::Instant::now();
    let ended = run("sleep 600 & echo $!", soon(), |_| ()).unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "it waited for the pipe");
    assert_eq!(ended.exit, Exit::Code(0));
    gone(ended.text().trim().parse().unwrap());
}

#[test]
fn an_answer_without_end_is_no_answer() {
    let _alone = alone();
    let error = run("while :; do echo more; done", soon(), |_| ()).unwrap_err();
    assert_eq!(error.to_string(), "'/bin/sh' wrote more than 4096 bytes");
    let at_its_end = run("head -c 5000 /dev/zero", soon(), |_| ()).unwrap_err();
    assert!(matches!(
        at_its_end,
        RunError::Killed {
            why: KillReason::TooMuch(4096),
            ..
        }
    ));
    let just = run("head -c 4096 /dev/zero", soon(), |_| ()).unwrap();
    assert_eq!(just.out.len(), 4096);
}

#[test]
fn a_program_that_somebody_else_could_have_put_there_is_not_started() {
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("squeue");
    std::fs::write(&program, "#!/bin/sh\necho $0\n").unwrap();
    let mode = |mode| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(0o775);
    let error = Spawn::trusted(&program).unwrap_err();
    assert!(
        error.to_string().contains("may be written by group or others"),
        "{error}"
    );
    mode(0o755);
    let _alone = alone();
    let ended = Spawn::trusted(&program).unwrap().run(soon(), 4096).unwrap();
    assert_eq!(
        ended.text().trim(),
        program.display().to_string(),
        "a script knows its name"
    );
}

#[test]
fn what_does_not_fit_into_a_pipe_is_not_cut() {
    let error = Spawn::new("/bin/cat").input(&vec![0; 1 << 21]).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EAGAIN));
}

#[test]
fn a_child_that_its_user_stops_before_exec_is_given_up_at_the_deadline() {
    let _alone = alone();
    let line = "while :; do kill -STOP -1; done 2>/dev/null";
    let mut stopper = Spawn::new("/bin/sh");
    stopper.args = vec!["-c".into(), line.into()];
    stopper.identity = stranger(&[]);
    let mut stopper = stopper.start(soon()).unwrap();
    let limit = Duration::from_millis(300);
    let mut given_up = 0;
    let begin = Instant::now();
    while given_up < 3 && begin.elapsed() < Duration::from_secs(40) {
        let mut program = Spawn::new("/bin/true");
        program.identity = stranger(&[]);
        let start = Instant::now();
        let outcome = program.start(Deadline::after(limit));
        assert!(
            start.elapsed() < limit + REAP + Duration::from_secs(2),
            "{:?}",
            start.elapsed()
        );
        match outcome {
            Ok(mut child) => drop(child.kill(soon())),
            Err(error) => given_up += u32::from(error.to_string().ends_with("was not ready in time")),
        }
    }
    stopper.kill(soon());
    assert_eq!(given_up, 3, "none was stopped in time to tell");
}
