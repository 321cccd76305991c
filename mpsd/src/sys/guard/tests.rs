use super::*;
use crate::sys::testing::alone;
use std::time::Instant;

fn soon() -> Deadline {
    Deadline::after_ms(10_000)
}

/// The tests' own panics are expected: no text of them.
fn quietly(work: impl FnOnce() -> u8) -> impl FnOnce() -> u8 {
    move || {
        std::panic::set_hook(Box::new(|_| ()));
        work()
    }
}

fn raise(signal: Signal) -> u8 {
    // Rust's own handler of SIGSEGV takes a raised one for a stray and goes on.
    let _ = raw::reset_signals();
    let _ = nix::sys::signal::raise(signal);
    0
}

#[test]
fn every_end_of_a_worker_becomes_a_code() {
    let _alone = alone();
    assert_eq!(guarded(soon(), || 0), Guarded::Returned(0));
    assert_eq!(guarded(soon(), || 1), Guarded::Returned(1));
    for signal in [
        Signal::SIGKILL,
        Signal::SIGSEGV,
        Signal::SIGABRT,
        Signal::SIGTERM,
        Signal::SIGHUP,
    ] {
        let outcome = guarded(soon(), || raise(signal));
        assert_eq!((outcome, outcome.code()), (Guarded::Died(signal as i32), FAULT));
    }
    assert_eq!(
        guarded(soon(), quietly(|| panic!("worker"))),
        Guarded::Returned(FAULT)
    );
    let hook = || {
        let _ = descriptors::all_to_null();
        install_panic_exit("test", FAULT);
        panic!("worker")
    };
    assert_eq!(guarded(soon(), hook), Guarded::Returned(FAULT));
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
    assert_eq!(
        guarded(Deadline::after_ms(100), forever),
        Guarded::Deadline { gone: true }
    );
    assert_eq!(
        guarded(Deadline::after_ms(100), || raise(Signal::SIGSTOP)),
        Guarded::Deadline { gone: true }
    );
    // Deaf to everything but SIGKILL.
    let deaf = || {
        let _ = crate::sys::signals::ignore(&[Signal::SIGTERM, Signal::SIGINT]);
        forever()
    };
    assert_eq!(run_guarded("test", Deadline::after_ms(100), deaf), FAULT);
    assert!(began.elapsed() < Duration::from_secs(5));
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
            raw::exit_now(code.code())
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
            let _ = crate::sys::signals::ignore(&[Signal::SIGCHLD]);
            raw::exit_now(guarded(soon(), || 1).code())
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
        let term = signals.read().ok().flatten().and_then(|r| r.signal());
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
    let worker = Process::find(worker).unwrap().unwrap();
    guard.kill(soon()).unwrap();
    assert!(worker.wait_gone(soon()).unwrap());
}

#[test]
fn an_isolated_call_answers_up_to_its_bound() {
    let _alone = alone();
    assert_eq!(isolate(soon(), || b"four GPUs".to_vec()).unwrap(), b"four GPUs");
    assert_eq!(isolate(soon(), Vec::new).unwrap(), b"");
    assert_eq!(isolate(soon(), || vec![7; MAX_ANSWER]).unwrap().len(), MAX_ANSWER);
    assert_eq!(
        isolate(soon(), || vec![7; MAX_ANSWER + 1]),
        Err(Isolated::TooLong)
    );
}

#[test]
fn an_isolated_call_may_crash_panic_exit_or_hang() {
    let _alone = alone();
    let crash = |signal| isolate(soon(), move || vec![raise(signal)]);
    assert_eq!(
        crash(Signal::SIGSEGV),
        Err(Isolated::Died(Signal::SIGSEGV as i32))
    );
    assert_eq!(
        crash(Signal::SIGKILL),
        Err(Isolated::Died(Signal::SIGKILL as i32))
    );
    assert_eq!(isolate(soon(), || raw::exit_now(9)), Err(Isolated::Exited(9)));
    let panic = || -> Vec<u8> {
        std::panic::set_hook(Box::new(|_| ()));
        panic!("call")
    };
    assert_eq!(isolate(soon(), panic), Err(Isolated::Exited(FAULT)));
    assert_eq!(
        Isolated::Deadline { hangs: false, pid: 1 }.to_string(),
        "no answer in time"
    );
    let hangs = Isolated::Deadline { hangs: true, pid: 1 }.to_string();
    assert_eq!(hangs, "no answer in time, and its process survives SIGKILL");
    let began = Instant::now();
    for signal in [None, Some(Signal::SIGSTOP)] {
        let hang = move || {
            signal.map(raise);
            std::thread::sleep(Duration::from_secs(60));
            Vec::new()
        };
        let outcome = isolate(Deadline::after_ms(100), hang).unwrap_err();
        let Isolated::Deadline { hangs: false, pid } = outcome else {
            panic!("{outcome:?}")
        };
        assert!(Process::find(pid).unwrap().is_none(), "killed and reaped");
    }
    assert!(began.elapsed() < Duration::from_secs(5));
}

/// Uninterruptible for real: the parent of a vfork waits in state D until its child ends, and the child is stopped.
#[test]
fn a_call_in_state_d_is_left_behind_in_bounded_time() {
    let _alone = alone();
    let began = Instant::now();
    let outcome = isolate(Deadline::after_ms(200), || {
        crate::sys::raw::tests::wait_in_vfork();
        Vec::new()
    });
    let took = began.elapsed();
    let Err(Isolated::Deadline { pid, hangs }) = outcome else {
        panic!("{outcome:?}")
    };
    let stopped = crate::sys::process::ProcessTable::scan().unwrap();
    for entry in stopped.descendants(pid) {
        if let Some(process) = entry.stat.id.open().unwrap() {
            process.signal(Signal::SIGKILL).unwrap();
        }
    }
    let deadline = soon();
    while raw::reap(pid) == Ok(None) {
        assert!(
            deadline.sleep(Duration::from_millis(5)),
            "the process in state D did not end"
        );
    }
    assert!(took < Duration::from_secs(3), "{took:?}");
    // Newer kernels let SIGKILL end the wait of a vfork; then it does not hang, and nothing was left behind.
    assert!(hangs || Process::find(pid).unwrap().is_none());
}

#[test]
fn an_isolated_call_holds_none_of_our_descriptors_but_the_named() {
    let _alone = alone();
    let file = std::fs::File::open("/dev/null").unwrap();
    let (number, other) = (file.as_raw_fd(), tempfile::tempfile().unwrap());
    let other_number = other.as_raw_fd();
    let count = move || {
        let open: Vec<i32> = (0..1024).filter(|fd| raw::is_open(*fd)).collect();
        vec![
            u8::from(open.contains(&number)),
            u8::from(open.contains(&other_number)),
            open.len() as u8,
        ]
    };
    // 0, 1, 2 and the pipe to answer through.
    assert_eq!(isolate(soon(), count).unwrap(), [0, 0, 4]);
    assert_eq!(
        isolate_keeping(&[other.as_fd()], soon(), count).unwrap(),
        [0, 1, 5]
    );
}
