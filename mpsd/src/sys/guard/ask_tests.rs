use super::*;
use crate::sys::guard::tests::raise;
use crate::sys::process::{Process, ProcessTable};
use crate::sys::testing::{alone, soon};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

#[test]
fn a_question_is_answered_up_to_its_bound() {
    let _alone = alone();
    assert_eq!(ask(soon(), || b"four GPUs".to_vec()).unwrap(), b"four GPUs");
    assert_eq!(ask(soon(), Vec::new).unwrap(), b"");
    let most = ask(soon(), || vec![7; MOST_ANSWER]).unwrap();
    assert_eq!(most.len(), MOST_ANSWER);
    let more = ask(soon(), || vec![7; MOST_ANSWER + 1]);
    assert_eq!(more, Err(AskError::Killed(KillReason::TooMuch(MOST_ANSWER))));
}

#[test]
fn a_question_may_crash_panic_exit_or_hang() {
    let _alone = alone();
    let place = tempfile::tempdir().unwrap();
    // Other tests have children of this process too, so each question notes its own.
    let path = place.path().join("asked");
    let note = || {
        let mut file = std::fs::File::options().create(true).append(true).open(&path);
        let _ = file.as_mut().map(|file| writeln!(file, "{}", std::process::id()));
    };
    for signal in [Signal::SIGSEGV, Signal::SIGKILL] {
        let crash = ask(soon(), move || {
            note();
            vec![raise(signal)]
        });
        assert_eq!(crash, Err(AskError::Ended(Exit::Signal(signal as i32))));
    }
    let exit = |code| Err(AskError::Ended(Exit::Code(code)));
    assert_eq!(ask(soon(), || raw::exit_now(9)), exit(9));
    let panic = || -> Vec<u8> {
        std::panic::set_hook(Box::new(|_| ()));
        panic!("question")
    };
    assert_eq!(ask(soon(), panic), exit(NOTHING));
    let began = Instant::now();
    let limit = Duration::from_millis(200);
    for signal in [None, Some(Signal::SIGSTOP)] {
        let hang = move || {
            note();
            signal.map(raise);
            std::thread::sleep(Duration::from_secs(60));
            Vec::new()
        };
        let Err(AskError::Killed(KillReason::Late {
            waited,
            survivor: None,
        })) = ask(Deadline::after(limit), hang)
        else {
            panic!("it answered, or was not killed and reaped")
        };
        // The limit began before the question was asked, on a busy machine well before.
        assert!(
            (limit / 4..Duration::from_secs(4)).contains(&waited),
            "{waited:?}"
        );
    }
    assert!(began.elapsed() < Duration::from_secs(5));
    let asked = std::fs::read_to_string(&path).unwrap();
    let own = nix::unistd::getpid().as_raw();
    let table = ProcessTable::scan().unwrap();
    let here: Vec<i32> = table.children(own).map(|child| child.stat.id.pid).collect();
    assert_eq!(asked.lines().count(), 4, "{asked}");
    let left = asked.lines().filter(|pid| here.contains(&pid.parse().unwrap()));
    assert_eq!(left.count(), 0, "each is reaped");
}

/// A start that is killed, and undone by an end at once, must not go on in its child behind that.
#[test]
fn a_question_ends_with_whoever_asked_it() {
    let _alone = alone();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("asked");
    let Some(asker) = raw::fork().unwrap() else {
        let _ = ask(Deadline::after_ms(60_000), || {
            let _ = std::fs::write(&path, std::process::id().to_string() + "\n");
            std::thread::sleep(Duration::from_secs(60));
            Vec::new()
        });
        raw::exit_now(0)
    };
    let deadline = soon();
    let asked = loop {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        if let Some(pid) = text.strip_suffix('\n') {
            break pid.parse::<i32>().unwrap();
        }
        assert!(deadline.sleep(Duration::from_millis(5)), "nobody was asked");
    };
    let asked = Process::find(asked).expect("it waits");
    assert!(Child::adopt_as_ours(asker).kill(soon()).is_some());
    assert!(asked.wait_gone(soon()), "it goes on");
}

/// Uninterruptible for real: the parent of a vfork waits in state D until its child ends, and the child is stopped. (Since
/// Linux 6.3 SIGKILL ends that wait.)
#[test]
fn a_question_in_state_d_is_given_up_in_bounded_time() {
    let _alone = alone();
    let began = Instant::now();
    let outcome = ask(Deadline::after_ms(200), || {
        crate::sys::raw::tests::wait_in_vfork();
        Vec::new()
    });
    let took = began.elapsed();
    let Err(AskError::Killed(KillReason::Late { survivor, .. })) = outcome else {
        panic!("{outcome:?}")
    };
    // Its stopped child has a session of the question's own, so it was killed as well: what hung ends now.
    let deadline = soon();
    while survivor.is_some_and(|pid| raw::reap(pid) == Ok(None)) {
        assert!(
            deadline.sleep(Duration::from_millis(5)),
            "the process in state D did not end"
        );
    }
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[test]
fn what_a_question_has_started_ends_with_it() {
    let _alone = alone();
    let answer = ask(soon(), || {
        let sleeper = crate::sys::spawn::Spawn {
            args: vec!["600".into()],
            ..crate::sys::spawn::Spawn::new("/bin/sleep")
        };
        sleeper
            .start(soon())
            .map_or(Vec::new(), |child| child.pid().to_ne_bytes().to_vec())
    });
    let pid = i32::from_ne_bytes(answer.unwrap().try_into().unwrap());
    if let Some(left) = Process::find(pid) {
        assert!(left.wait_gone(soon()));
    }
}

#[test]
fn a_question_holds_none_of_our_descriptors() {
    let _alone = alone();
    let file = std::fs::File::open("/dev/null").unwrap();
    let number = file.as_raw_fd();
    let count = move || {
        let open: Vec<i32> = (0..1024).filter(|fd| raw::is_open(*fd)).collect();
        vec![u8::from(open.contains(&number)), open.len() as u8]
    };
    // 0, 1, 2 and the pipe to answer through.
    assert_eq!(ask(soon(), count).unwrap(), [0, 4]);
}
