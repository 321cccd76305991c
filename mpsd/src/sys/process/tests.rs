use super::*;
use crate::sys::spawn::{Identity, Spawn};
use crate::sys::testing::{STRANGER, alone, soon};

fn sleeper() -> crate::sys::spawn::Child {
    let mut spawn = Spawn::new("/bin/sleep");
    spawn.args = vec!["60".into()];
    spawn.env = vec![("MARK".into(), "a b".into()), ("OTHER".into(), "x".into())];
    spawn.identity = Some(Identity {
        uid: STRANGER,
        gid: STRANGER,
        groups: vec![],
    });
    spawn.start(soon()).unwrap()
}

#[test]
fn a_name_with_parentheses_does_not_shift_the_fields() {
    let line = b"12 (a) b (\n) Z 7 8 9 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 0 0\n";
    let stat = Stat::parse(line).unwrap();
    assert_eq!(
        stat.id,
        ProcessId {
            pid: 12,
            start_time: 4711
        }
    );
    assert_eq!((stat.state, stat.parent), (State::Defunct, 7));
    assert_eq!((stat.name.to_str(), stat.threads), (Some("a) b (\n"), 1));
    assert_eq!(Stat::parse(b"12 (a) Z 7"), None);
    assert_eq!(Stat::parse(b""), None);
}

#[test]
fn a_live_process_is_read_and_a_recycled_pid_is_not() {
    let _alone = alone();
    let mut child = sleeper();
    let process = child.id().unwrap().open().unwrap();
    assert_eq!(
        process.uids().unwrap(),
        Uids {
            real: STRANGER,
            effective: STRANGER
        }
    );
    assert_eq!(process.environment_variable("MARK", 4096).unwrap(), "a b");
    assert_eq!(process.environment_variable("MAR", 4096), None);
    let file = std::fs::metadata("/bin/sleep").unwrap();
    let exe = process.executable().unwrap();
    use std::os::unix::fs::MetadataExt;
    assert_eq!((exe.file.device, exe.file.inode), (file.dev(), file.ino()));
    assert!(!process.cgroups().unwrap().is_empty());
    let other = ProcessId {
        start_time: child.id().unwrap().start_time + 1,
        ..child.id().unwrap()
    };
    assert!(other.open().is_none(), "same pid, another process");

    let table = ProcessTable::scan().unwrap();
    let own = nix::unistd::getpid().as_raw();
    assert!(
        table
            .children(own)
            .any(|e| Some(e.stat.id) == child.id() && e.uid == STRANGER)
    );
    assert!(table.of_user(STRANGER).any(|e| Some(e.stat.id) == child.id()));
    assert!(table.descendants(1).iter().any(|e| Some(e.stat.id) == child.id()));

    assert!(!process.wait_gone(Deadline::after_ms(20)));
    assert!(process.signal(Signal::SIGSTOP));
    let deadline = Deadline::after_ms(5000);
    while process.state() != Some(State::Stopped) {
        assert!(deadline.sleep(Duration::from_millis(1)));
    }
    assert!(process.signal(Signal::SIGKILL), "a stopped process can be killed");
    assert!(process.wait_gone(deadline));
    assert_eq!(process.state(), Some(State::Defunct));
    assert_eq!(process.executable(), None);
    child.wait(deadline).unwrap();
    assert_eq!(process.state(), None);
    assert!(!process.signal(Signal::SIGKILL));
    assert!(process.id().open().is_none());
}

#[test]
fn ids_travel_as_json() {
    let id = Process::find(nix::unistd::getpid().as_raw()).unwrap().id();
    let text = serde_json::to_string(&id).unwrap();
    assert_eq!(serde_json::from_str::<ProcessId>(&text).unwrap(), id);
    assert!(Process::find(-1).is_none());
    assert!(Process::find(0).is_none());
}

/// As on kernels before 5.3, RHEL 8's for one.
#[test]
fn without_pidfds_the_answers_are_the_same() {
    let _alone = alone();
    let mut child = sleeper();
    let mut process = child.id().unwrap().open().unwrap();
    process.pidfd = None;
    assert!(!process.wait_gone(Deadline::after_ms(20)));
    assert!(process.signal(Signal::SIGKILL));
    assert!(process.wait_gone(Deadline::after_ms(5000)));
    child.pidfd = None;
    assert_eq!(
        child.wait(Deadline::after_ms(5000)),
        Some(crate::sys::Exit::Signal(9))
    );
    assert!(!process.signal(Signal::SIGKILL));
    assert!(process.wait_gone(Deadline::after_ms(0)));
    let mut child = sleeper();
    child.pidfd = None;
    assert_eq!(child.wait(Deadline::after_ms(20)), None);
    assert_eq!(
        child.kill(Deadline::after_ms(5000)),
        Some(crate::sys::Exit::Signal(9))
    );
    assert!(!child.signal(Signal::SIGTERM));
}

/// As a server that was killed while a thread of it waits in the driver: `ps` shows it as defunct.
#[test]
fn a_process_lives_while_any_of_its_threads_does() {
    let _alone = alone();
    let own = nix::unistd::getpid();
    let pid = match raw::fork().unwrap() {
        None => {
            let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
            if nix::unistd::getppid() != own {
                raw::exit_now(1);
            }
            std::thread::spawn(|| std::thread::sleep(Duration::from_secs(60)));
            raw::tests::end_this_thread()
        }
        Some(pid) => pid,
    };
    let mut child = crate::sys::spawn::Child::adopt(pid);
    let process = Process::find(pid).unwrap();
    let deadline = Deadline::after_ms(5000);
    while process.stat().unwrap().state != State::Defunct {
        assert!(deadline.sleep(Duration::from_millis(1)));
    }
    while process.state() != Some(State::Sleeping) {
        assert!(deadline.sleep(Duration::from_millis(1)), "{:?}", process.state());
    }
    let exe = process.executable().unwrap();
    assert_eq!(exe.path, std::env::current_exe().unwrap());
    // The living thread sleeps, which its stack says where the kernel shows stacks; else there is none to see.
    let threads = process.threads().unwrap();
    assert_eq!((threads.len(), threads[0].state), (1, 'S'));
    let stacks = &threads[0].stack;
    match std::fs::read("/proc/self/stack") {
        Ok(_) => assert!(stacks.contains("nanosleep"), "{stacks}"),
        Err(_) => assert_eq!(stacks, ""),
    }
    assert!(!process.wait_gone(Deadline::after_ms(20)));
    assert!(process.signal(Signal::SIGKILL));
    assert!(process.wait_gone(deadline));
    assert_eq!(process.state(), Some(State::Defunct));
    assert_eq!(child.wait(deadline), Some(crate::sys::Exit::Signal(9)));
}
