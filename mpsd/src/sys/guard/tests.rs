use super::*;
use crate::sys::process::Process;
use crate::sys::testing::{alone, soon};
use nix::fcntl::OFlag;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

/// The tests' own panics are expected: no text of them.
fn quietly(work: impl FnOnce() -> u8) -> impl FnOnce() -> u8 {
    move || {
        std::panic::set_hook(Box::new(|_| ()));
        work()
    }
}

pub(super) fn raise(signal: Signal) -> u8 {
    // Rust's own handler of SIGSEGV takes a raised one for a stray and goes on.
    let _ = raw::reset_signals();
    let _ = nix::sys::signal::raise(signal);
    0
}

#[test]
fn every_end_of_a_worker_becomes_a_code() {
    let _alone = alone();
    assert_eq!(guarded(soon(), || 0), Ok(0));
    assert_eq!(guarded(soon(), || 1), Ok(1));
    for signal in [
        Signal::SIGKILL,
        Signal::SIGSEGV,
        Signal::SIGABRT,
        Signal::SIGTERM,
        Signal::SIGHUP,
    ] {
        let outcome = guarded(soon(), || raise(signal));
        assert_eq!(outcome, Err(GuardError::Died(signal as i32)));
    }
    assert_eq!(guarded(soon(), quietly(|| panic!("worker"))), Ok(FAULT));
    let hook = || {
        let _ = descriptors::all_to_null();
        install_panic_exit("test", FAULT);
        panic!("worker")
    };
    assert_eq!(guarded(soon(), hook), Ok(FAULT));
}

#[test]
fn a_worker_past_its_time_or_stopped_is_killed() {
    let _alone = alone();
    let forever = || -> u8 {
        loop {
            std::thread::sleep(Duration::from_secs(60));
        }
    };
    let began = Instant::now();
    assert_eq!(guarded(Deadline::after_ms(100), forever), Err(GuardError::Late));
    assert_eq!(
        guarded(Deadline::after_ms(100), || raise(Signal::SIGSTOP)),
        Err(GuardError::Late)
    );
    // Deaf to everything but SIGKILL.
    let deaf = || {
        raw::tests::ignore(&[Signal::SIGTERM, Signal::SIGINT]);
        forever()
    };
    assert_eq!(run_guarded("test", Deadline::after_ms(100), deaf), FAULT);
    assert!(began.elapsed() < Duration::from_secs(5));
}

/// Whoever waits for the end of our output does not wait for a worker that hangs.
#[test]
fn a_worker_has_none_of_our_own_streams() {
    let _alone = alone();
    let streams = || [1, 2].map(|fd| std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap());
    let ours = streams();
    let worker = move || u8::from(streams().iter().zip(&ours).any(|(its, ours)| its == ours));
    assert_eq!(guarded(soon(), worker), Ok(0));
}

#[test]
fn what_a_worker_writes_is_passed_on_to_its_last_word() {
    let _alone = alone();
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
    let pid = match raw::fork().unwrap() {
        None => {
            nix::unistd::dup2_stdout(&write).unwrap();
            let code = guarded(soon(), || {
                // More than a pipe takes at once, then the last word just before the end.
                let text = "x".repeat(200_000) + "last";
                // Past the library's own lock, which another thread may have held at the fork.
                u8::from(std::fs::write("/proc/self/fd/1", text).is_err())
            });
            raw::exit_now(code.unwrap_or(9))
        }
        Some(pid) => pid,
    };
    drop(write);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut std::fs::File::from(read), &mut text).unwrap();
    assert_eq!(Child::adopt(pid).wait(soon()), Some(Exit::Code(0)));
    assert!(text.len() == 200_004 && text.ends_with("xlast"), "{}", text.len());
}

/// A guard in a child of its own with these two as its standard streams; how it ended, and after how long.
fn guard_between(
    out: &OwnedFd,
    err: &OwnedFd,
    limit: Deadline,
    worker: impl FnOnce() -> u8,
) -> (Exit, Duration) {
    let began = Instant::now();
    let pid = match raw::fork().unwrap() {
        None => {
            nix::unistd::dup2_stdout(out).unwrap();
            nix::unistd::dup2_stderr(err).unwrap();
            raw::exit_now(guarded(limit, worker).unwrap_or(9))
        }
        Some(pid) => pid,
    };
    let exit = Child::adopt(pid).wait(Deadline::after(Duration::from_secs(20)));
    (exit.expect("the guard ends"), began.elapsed())
}

/// A pipe that takes nothing more.
fn full_pipe() -> (OwnedFd, OwnedFd) {
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).unwrap();
    while nix::unistd::write(&write, &[b'.'; 4096]).is_ok() {}
    (read, write)
}

/// Past the library's own lock, which another thread may have held at the fork.
fn say(fd: i32, bytes: &[u8]) {
    std::fs::OpenOptions::new()
        .write(true)
        .open(format!("/proc/self/fd/{fd}"))
        .and_then(|mut file| file.write_all(bytes))
        .unwrap();
}

#[test]
fn a_stream_that_nobody_reads_does_not_stop_the_other() {
    let _alone = alone();
    let (_unread, stuck) = full_pipe();
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
    let worker = || {
        say(1, b"x");
        // More than a pipe holds: the rest is passed on after the worker's end.
        say(2, &[b'y'; 60_000]);
        say(2, &[b'y'; 60_000]);
        0
    };
    let reader = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        let mut text = Vec::new();
        std::io::Read::read_to_end(&mut std::fs::File::from(read), &mut text).unwrap();
        text.len()
    });
    let (exit, _) = guard_between(&stuck, &write, soon(), worker);
    drop(write);
    assert_eq!(exit, Exit::Code(0));
    assert_eq!(reader.join().unwrap(), 120_000);
}

#[test]
fn what_is_kept_for_nobody_is_bounded() {
    let _alone = alone();
    let (_unread, stuck) = full_pipe();
    let worker = || {
        for _ in 0..64 {
            say(1, &[b'x'; 1 << 16]);
        }
        0
    };
    // It waits as it would without us, and is killed at its deadline.
    let (exit, _) = guard_between(&stuck, &stuck, Deadline::after_ms(700), worker);
    assert_eq!(exit, Exit::Code(9));
}

#[test]
fn a_late_worker_is_killed_before_its_last_words_are_waited_for() {
    let _alone = alone();
    let (_unread, stuck) = full_pipe();
    let place = tempfile::NamedTempFile::new().unwrap();
    let path = place.path().to_owned();
    let worker = || {
        say(1, b"x");
        std::thread::sleep(Duration::from_millis(900));
        std::fs::write(path, "went on").unwrap();
        0
    };
    let (exit, _) = guard_between(&stuck, &stuck, Deadline::after_ms(400), worker);
    assert_eq!(exit, Exit::Code(9));
    assert_eq!(std::fs::read_to_string(place.path()).unwrap(), "");
}

#[test]
fn a_file_takes_every_word_in_order() {
    let _alone = alone();
    let place = tempfile::NamedTempFile::new().unwrap();
    let file = OwnedFd::from(place.reopen().unwrap());
    let worker = || {
        for word in [b"one ".repeat(30_000).as_slice(), b"two ", b"last"] {
            let out = raw::borrow(1);
            let mut rest = word;
            while !rest.is_empty() {
                rest = &rest[nix::unistd::write(out, rest).unwrap()..];
            }
        }
        0
    };
    let (exit, _) = guard_between(&file, &file, soon(), worker);
    assert_eq!(exit, Exit::Code(0));
    let text = std::fs::read_to_string(place.path()).unwrap();
    assert!(
        text.len() == 120_008 && text.ends_with("one two last"),
        "{}",
        text.len()
    );
}

/// A named pipe stands for a file whose server is gone: it has a path, and a write to it does not come back.
#[test]
fn a_file_that_takes_nothing_does_not_hold_the_guard() {
    let _alone = alone();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("hangs");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRUSR).unwrap();
    let open = |flags| {
        nix::fcntl::open(
            &path,
            OFlag::O_RDWR | OFlag::O_CLOEXEC | flags,
            nix::sys::stat::Mode::empty(),
        )
        .unwrap()
    };
    let filler = open(OFlag::O_NONBLOCK);
    while nix::unistd::write(&filler, &[b'.'; 4096]).is_ok() {}
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
    let mut text = String::new();
    std::io::Read::read_to_string(&mut std::fs::File::from(read), &mut text).unwrap();
    assert_eq!((exit, text.as_str()), (Exit::Code(0), "heard"));
    assert!(took < Duration::from_secs(4), "{took:?}");
}

/// Runs a guard in a child of its own, where signals may be sent to it, with the worker's pid told through a pipe.
fn guard_in_child(worker: impl FnOnce() -> u8) -> (Child, i32) {
    let (told, tell) = nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
    let pid = match raw::fork().unwrap() {
        None => {
            let code = guarded(soon(), || {
                let _ = nix::unistd::write(&tell, &nix::unistd::getpid().as_raw().to_ne_bytes());
                worker()
            });
            raw::exit_now(code.unwrap_or(FAULT))
        }
        Some(pid) => pid,
    };
    let mut word = [0u8; 4];
    assert!(descriptors::readable(told.as_fd(), soon()).unwrap());
    nix::unistd::read(&told, &mut word).unwrap();
    (Child::adopt(pid), i32::from_ne_bytes(word))
}

#[test]
fn children_are_counted_though_the_caller_ignored_them() {
    let _alone = alone();
    // In a child, since the action is the whole program's.
    let pid = match raw::fork().unwrap() {
        None => {
            raw::tests::ignore(&[Signal::SIGCHLD]);
            raw::exit_now(guarded(soon(), || 1).unwrap_or(FAULT))
        }
        Some(pid) => pid,
    };
    assert_eq!(Child::adopt(pid).wait(soon()), Some(Exit::Code(1)));
}

#[test]
fn sigterm_reaches_the_worker_who_decides() {
    let _alone = alone();
    // Blocked before the guard, hence still blocked in the worker, which reads it.
    let signals = Signals::block(&[Signal::SIGTERM]).unwrap();
    let (mut guard, _) = guard_in_child(|| {
        let got = descriptors::readable(signals.as_fd(), soon()) == Ok(true);
        let term = signals.read().ok().flatten();
        if got && term == Some(Signal::SIGTERM) {
            7
        } else {
            8
        }
    });
    assert!(guard.signal(Signal::SIGTERM));
    assert_eq!(guard.wait(soon()), Some(Exit::Code(7)));
    drop(signals);
    let (mut guard, _) = guard_in_child(|| {
        nix::unistd::pause();
        0
    });
    assert!(guard.signal(Signal::SIGTERM));
    assert_eq!(
        guard.wait(soon()),
        Some(Exit::Code(FAULT)),
        "the worker died of it, the guard did not"
    );
}

#[test]
fn a_killed_guard_takes_its_worker_along() {
    let _alone = alone();
    let (mut guard, worker) = guard_in_child(|| {
        nix::unistd::pause();
        0
    });
    let worker = Process::find(worker).unwrap();
    guard.kill(soon()).unwrap();
    assert!(worker.wait_gone(soon()));
}
