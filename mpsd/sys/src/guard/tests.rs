use super::*;
use crate::process::Process;
use crate::spawn::KillReason;
use crate::testing::{alone, forked, soon, wait_until};
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

fn panic_quietly<T>() -> T {
    std::panic::set_hook(Box::new(|_| ()));
    panic!("on purpose")
}

fn raise(signal: Signal) -> u8 {
    // Rust's own handler would return from a SIGSEGV that was raised.
    let _ = raw::reset_signals();
    let _ = nix::sys::signal::raise(signal);
    0
}

fn sleep_long<T: Default>() -> T {
    std::thread::sleep(Duration::from_secs(60));
    T::default()
}

fn pause() -> u8 {
    nix::unistd::pause();
    0
}

fn text_of(read: OwnedFd) -> String {
    std::io::read_to_string(File::from(read)).unwrap()
}

#[test]
fn every_end_of_a_worker_becomes_a_code() {
    use Signal::{SIGABRT, SIGHUP, SIGKILL, SIGSEGV, SIGTERM};
    let _alone = alone();
    assert_eq!(guarded(soon(), || 0), Ok(0));
    assert_eq!(guarded(soon(), || 1), Ok(1));
    for signal in [SIGKILL, SIGSEGV, SIGABRT, SIGTERM, SIGHUP] {
        let outcome = guarded(soon(), || raise(signal));
        assert_eq!(outcome, Err(GuardError::Died(signal as i32)));
    }
    assert_eq!(guarded(soon(), panic_quietly), Ok(FAULT));
    let hook = || {
        let _ = descriptors::all_to_null();
        install_panic_exit("test", FAULT);
        panic!("worker")
    };
    assert_eq!(guarded(soon(), hook), Ok(FAULT));
    // In a child, because the action is the whole program's.
    let mut ignoring = forked(|| {
        raw::tests::ignore(&[Signal::SIGCHLD]);
        guarded(soon(), || 1).unwrap_or(FAULT)
    });
    assert_eq!(ignoring.wait(soon()), Some(Exit::Code(1)));
}

#[test]
fn a_worker_past_its_time_or_stopped_is_killed() {
    let _alone = alone();
    let limit = || Deadline::after_ms(100);
    let began = Instant::now();
    assert_eq!(guarded(limit(), sleep_long), Err(GuardError::Late));
    let stopped = guarded(limit(), || raise(Signal::SIGSTOP));
    assert_eq!(stopped, Err(GuardError::Late));
    let deaf = || {
        raw::tests::ignore(&[Signal::SIGTERM, Signal::SIGINT]);
        sleep_long()
    };
    assert_eq!(run_guarded("test", limit(), deaf), FAULT);
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_worker_has_none_of_our_own_streams() {
    let _alone = alone();
    let streams = || [1, 2].map(|fd| std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap());
    let ours = streams();
    let worker = move || u8::from(streams().iter().zip(&ours).any(|(its, ours)| its == ours));
    assert_eq!(guarded(soon(), worker), Ok(0));
}

/// A guard in a child with these two as its standard streams; how it ended, and after how long.
fn guard_between(
    out: &OwnedFd,
    err: &OwnedFd,
    limit: Deadline,
    worker: impl FnOnce() -> u8,
) -> (Exit, Duration) {
    let began = Instant::now();
    let mut guard = forked(|| {
        nix::unistd::dup2_stdout(out).unwrap();
        nix::unistd::dup2_stderr(err).unwrap();
        guarded(limit, worker).unwrap_or(9)
    });
    let exit = guard.wait(Deadline::after_ms(20_000));
    (exit.expect("the guard ends"), began.elapsed())
}

fn fill(pipe: &OwnedFd) {
    while nix::unistd::write(pipe, &[b'.'; 4096]).is_ok() {}
}

/// A pipe that takes nothing more.
fn full_pipe() -> (OwnedFd, OwnedFd) {
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).unwrap();
    fill(&write);
    (read, write)
}

/// Without the library's own lock, which another thread may have held at the fork.
fn say(fd: i32, bytes: &[u8]) {
    let copy = raw::borrow(fd).try_clone_to_owned().unwrap();
    File::from(copy).write_all(bytes).unwrap();
}

#[test]
fn a_stream_without_a_reader_does_not_stop_the_other() {
    let _alone = alone();
    let (_unread, stuck) = full_pipe();
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
    let worker = || {
        say(1, b"x");
        // More than a pipe holds: the rest is passed on after the worker's end.
        say(2, &[b'y'; 60_000]);
        say(2, &[b'y'; 60_000]);
        say(2, b"last");
        0
    };
    let reader = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        text_of(read)
    });
    let (exit, _) = guard_between(&stuck, &write, soon(), worker);
    drop(write);
    assert_eq!(exit, Exit::Code(0));
    assert!(reader.join().unwrap() == "y".repeat(120_000) + "last");
}

#[test]
fn output_without_a_reader_is_bounded_and_does_not_outlive_the_deadline() {
    let _alone = alone();
    let (_unread, stuck) = full_pipe();
    let endless = || {
        for _ in 0..64 {
            say(1, &[b'x'; 1 << 16]);
        }
        0
    };
    // It waits as it would without the guard, and is killed at its deadline.
    let (exit, _) = guard_between(&stuck, &stuck, Deadline::after_ms(700), endless);
    assert_eq!(exit, Exit::Code(9));
    // A late worker is killed before its last words are waited for.
    let place = tempfile::NamedTempFile::new().unwrap();
    let late = || {
        say(1, b"x");
        std::thread::sleep(Duration::from_millis(900));
        std::fs::write(place.path(), "went on").unwrap();
        0
    };
    let (exit, _) = guard_between(&stuck, &stuck, Deadline::after_ms(400), late);
    assert_eq!(exit, Exit::Code(9));
    assert_eq!(std::fs::read_to_string(place.path()).unwrap(), "");
}

#[test]
fn a_file_takes_every_word_in_order() {
    let _alone = alone();
    let place = tempfile::NamedTempFile::new().unwrap();
    let file = OwnedFd::from(place.reopen().unwrap());
    let words = "one ".repeat(30_000);
    let worker = || {
        for word in [&words, "two ", "last"] {
            say(1, word.as_bytes());
        }
        0
    };
    let (exit, _) = guard_between(&file, &file, soon(), worker);
    assert_eq!(exit, Exit::Code(0));
    let text = std::fs::read_to_string(place.path()).unwrap();
    assert!(text == words + "two last", "{}", text.len());
}

/// A named pipe stands for a file whose server is gone.
#[test]
fn a_file_that_takes_nothing_does_not_hold_the_guard() {
    let _alone = alone();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("hangs");
    nix::unistd::mkfifo(&path, Mode::S_IRUSR).unwrap();
    let open = |flags| {
        let flags = OFlag::O_RDWR | OFlag::O_CLOEXEC | flags;
        nix::fcntl::open(&path, flags, Mode::empty()).unwrap()
    };
    fill(&open(OFlag::O_NONBLOCK));
    let hangs = open(OFlag::empty());
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
    let worker = || {
        say(1, b"lost");
        say(2, b"heard");
        say(1, b"lost as well");
        0
    };
    let (exit, took) = guard_between(&hangs, &write, soon(), worker);
    drop(write);
    assert_eq!((exit, text_of(read).as_str()), (Exit::Code(0), "heard"));
    assert!(took < Duration::from_secs(4), "{took:?}");
}

/// A guard in a child, to which signals may be sent, and its worker's pid.
fn guard_in_child(worker: impl FnOnce() -> u8) -> (Child, i32) {
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
    let guard = forked(|| {
        let code = guarded(soon(), || {
            let _ = nix::unistd::write(&write, &nix::unistd::getpid().as_raw().to_ne_bytes());
            worker()
        });
        code.unwrap_or(FAULT)
    });
    let mut word = [0u8; 4];
    assert!(descriptors::readable(read.as_fd(), soon()).unwrap());
    nix::unistd::read(&read, &mut word).unwrap();
    (guard, i32::from_ne_bytes(word))
}

#[test]
fn sigterm_reaches_the_worker_which_decides() {
    let _alone = alone();
    // Blocked before the guard, hence still blocked in the worker, which reads it.
    let signals = Signals::block(&[Signal::SIGTERM]).unwrap();
    let (mut guard, _) = guard_in_child(|| {
        let got = descriptors::readable(signals.as_fd(), soon()) == Ok(true);
        u8::from(got && signals.read() == Ok(Some(Signal::SIGTERM)))
    });
    assert!(guard.signal(Signal::SIGTERM));
    assert_eq!(guard.wait(soon()), Some(Exit::Code(1)));
    drop(signals);
    // Here the worker dies of it, and the guard does not.
    let (mut guard, _) = guard_in_child(pause);
    assert!(guard.signal(Signal::SIGTERM));
    assert_eq!(guard.wait(soon()), Some(Exit::Code(FAULT)));
}

#[test]
fn a_killed_guard_takes_its_worker_along() {
    let _alone = alone();
    let (mut guard, worker) = guard_in_child(pause);
    let worker = Process::find(worker).unwrap();
    guard.kill(soon()).unwrap();
    assert!(worker.wait_gone(soon()));
}

#[test]
fn a_question_is_answered_up_to_its_bound_without_our_descriptors() {
    let _alone = alone();
    assert_eq!(ask(soon(), || b"four GPUs".to_vec()).unwrap(), b"four GPUs");
    assert_eq!(ask(soon(), Vec::new).unwrap(), b"");
    let most = ask(soon(), || vec![7; MOST_ANSWER]).unwrap();
    assert_eq!(most.len(), MOST_ANSWER);
    let more = ask(soon(), || vec![7; MOST_ANSWER + 1]);
    let too_much = KillReason::TooMuch(MOST_ANSWER);
    assert_eq!(more, Err(AskError::Killed(too_much)));
    let _file = File::open("/dev/null").unwrap();
    let count = || vec![(0..1024).filter(|fd| raw::is_open(*fd)).count() as u8];
    // 0, 1, 2 and the pipe to answer through.
    assert_eq!(ask(soon(), count).unwrap(), [4]);
}

#[test]
fn a_question_may_crash_panic_exit_or_hang() {
    let _alone = alone();
    let place = tempfile::NamedTempFile::new().unwrap();
    // Other tests have children of this process too, so each question notes its own.
    let note = || {
        let mut file = File::options().append(true).open(place.path()).unwrap();
        let _ = writeln!(file, "{}", std::process::id());
    };
    for signal in [Signal::SIGSEGV, Signal::SIGKILL] {
        let crash = ask(soon(), || {
            note();
            vec![raise(signal)]
        });
        assert_eq!(crash, Err(AskError::Ended(Exit::Signal(signal as i32))));
    }
    let exit = |code| Err(AskError::Ended(Exit::Code(code)));
    assert_eq!(ask(soon(), || raw::exit_now(9)), exit(9));
    assert_eq!(ask(soon(), panic_quietly), exit(NOTHING));
    let limit = Duration::from_millis(200);
    for signal in [None, Some(Signal::SIGSTOP)] {
        let hang = || {
            note();
            signal.map(raise);
            sleep_long()
        };
        let outcome = ask(Deadline::after(limit), hang);
        let Err(AskError::Killed(KillReason::Late {
            waited,
            survivor: None,
        })) = outcome
        else {
            panic!("{outcome:?}")
        };
        // The limit began before the question was asked, on a busy machine well before.
        let expected = limit / 4..Duration::from_secs(4);
        assert!(expected.contains(&waited), "{waited:?}");
    }
    let asked = std::fs::read_to_string(place.path()).unwrap();
    assert_eq!(asked.lines().count(), 4, "{asked}");
    for pid in asked.lines().map(|pid| pid.parse().unwrap()) {
        assert_eq!(
            raw::reap(Some(pid)),
            Err(Errno::ECHILD),
            "{pid} is not reaped"
        );
    }
}

/// An end may undo a killed start at once. The start's child must not continue after that.
#[test]
fn a_question_ends_with_its_asker() {
    let _alone = alone();
    let place = tempfile::NamedTempFile::new().unwrap();
    let mut asker = forked(|| {
        let _ = ask(Deadline::after_ms(60_000), || {
            let _ = std::fs::write(place.path(), format!("{}\n", std::process::id()));
            sleep_long()
        });
        0
    });
    let text = || std::fs::read_to_string(place.path()).unwrap();
    wait_until(|| text().ends_with('\n'));
    let asked = Process::find(text().trim().parse().unwrap()).expect("it waits");
    assert!(asker.kill(soon()).is_some());
    assert!(asked.wait_gone(soon()), "it goes on");
}

/// The parent of a vfork waits in state D for its child, which is stopped. (Since Linux 6.3 SIGKILL
/// ends that wait.)
#[test]
fn a_question_in_state_d_is_given_up_in_bounded_time() {
    let _alone = alone();
    let began = Instant::now();
    let outcome = ask(Deadline::after_ms(200), || {
        raw::tests::wait_in_vfork();
        Vec::new()
    });
    let took = began.elapsed();
    let Err(AskError::Killed(KillReason::Late { survivor, .. })) = outcome else {
        panic!("{outcome:?}")
    };
    // Its stopped child is in the question's session, so it was killed as well: what hung ends now.
    wait_until(|| survivor.is_none_or(|pid| raw::reap(Some(pid)) != Ok(None)));
    assert!(took < Duration::from_secs(3), "{took:?}");
}
