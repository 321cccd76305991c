use super::*;
use crate::guard::ask;
use crate::testing::{STRANGER, alone, as_stranger, become_user, soon};
use nix::libc;
use std::process::Command;

/// What a shell line of the job's user prints, confined.
fn confined(line: &str) -> String {
    let mut spawn = as_stranger("/bin/sh", &["-c", line]);
    spawn.confinement = Some(Confinement::of_user());
    spawn.run(soon(), 1 << 16).unwrap().text()
}

#[test]
fn a_confined_program_gets_no_capability_or_namespace_and_neither_do_its_children() {
    let _alone = alone();
    let text = confined("grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status");
    let none = ["Inh", "Prm", "Eff", "Bnd", "Amb"].map(|set| format!("Cap{set}:\t{:016}\n", 0));
    assert_eq!(text, none.concat() + "NoNewPrivs:\t1\nSeccomp:\t2\n");
    let line = "unshare --user true 2>/dev/null || echo none; unshare --mount true 2>/dev/null || echo none; \
                sh -c 'grep Seccomp: /proc/self/status'; echo one | cat | cat; sleep 0.01 & wait; echo end";
    assert_eq!(confined(line), "none\nnone\nSeccomp:\t2\none\nend\n");
}

/// What `calls` return in a child with the user's filter: 0, or the number of the error.
fn filtered(calls: fn() -> Vec<i32>) -> Vec<i32> {
    after(|| Confinement::of_user().enter().unwrap(), calls)
}

/// What `calls` return in a child that has done `first`. No number of an error exceeds a byte.
fn after(first: impl FnOnce(), calls: fn() -> Vec<i32>) -> Vec<i32> {
    let answer = ask(soon(), || {
        first();
        calls().into_iter().map(|number| number as u8).collect()
    });
    answer.unwrap().into_iter().map(i32::from).collect()
}

#[test]
fn what_is_denied_is_denied_to_root_as_well() {
    let _alone = alone();
    let denied = || {
        raw::tests::calls(&[
            (libc::SYS_ptrace, 0),
            (libc::SYS_process_vm_readv, 0),
            (libc::SYS_mount, 0),
            (libc::SYS_umount2, 0),
            (libc::SYS_setns, -1),
            (libc::SYS_unshare, 0),
            (libc::SYS_bpf, 0),
            (libc::SYS_keyctl, 0),
            (libc::SYS_perf_event_open, 0),
            (libc::SYS_userfaultfd, 0),
            (libc::SYS_io_uring_setup, 0),
            (libc::SYS_finit_module, -1),
            (libc::SYS_kexec_load, 0),
            (libc::SYS_clone, libc::CLONE_NEWUSER.into()),
            (libc::SYS_clone, (libc::CLONE_NEWNS | libc::SIGCHLD).into()),
        ])
    };
    assert_eq!(filtered(denied), [libc::EPERM; 15]);
    // So the C library falls back on clone(2), whose flags a filter can read.
    let clone3 = || raw::tests::calls(&[(libc::SYS_clone3, 0)]);
    assert_eq!(filtered(clone3), [libc::ENOSYS]);
}

/// Most of what the vendor's programs do besides reading and writing.
#[test]
fn what_a_daemon_needs_is_allowed() {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    use nix::sys::{epoll, eventfd, memfd};
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener};
    let _alone = alone();
    let needed = || {
        let (unix, packets) = (AddressFamily::Unix, SockType::SeqPacket);
        let name = SocketAddr::from_abstract_name(b"mpsd-unit-test").unwrap();
        let memory = memfd::memfd_create(c"x", memfd::MFdFlags::MFD_CLOEXEC);
        let answers = [
            std::thread::spawn(|| ()).join().is_ok(),
            memory.is_ok_and(|file| std::fs::File::from(file).set_len(4096).is_ok()),
            UnixListener::bind_addr(&name).is_ok(),
            Command::new("/bin/true")
                .status()
                .is_ok_and(|end| end.success()),
            std::net::TcpListener::bind("127.0.0.1:0").is_ok(),
            eventfd::EventFd::from_value(0).is_ok(),
            epoll::Epoll::new(epoll::EpollCreateFlags::empty()).is_ok(),
            nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).is_ok(),
            socketpair(unix, packets, None, SockFlag::empty()).is_ok(),
        ];
        answers.map(i32::from).to_vec()
    };
    assert_eq!(filtered(needed), [1; 9]);
}

#[test]
fn the_worker_executes_nothing_has_no_network_and_writes_in_few_places() {
    let _alone = alone();
    assert_eq!(lacking(), Vec::<&str>::new(), "this machine cannot test it");
    fn code<T>(result: std::io::Result<T>) -> i32 {
        result.map_or_else(|error| error.raw_os_error().unwrap_or(-1), |_| 0)
    }
    fn write(path: &str) -> i32 {
        code(std::fs::OpenOptions::new().append(true).open(path))
    }
    let tried = || {
        vec![
            code(Command::new("/bin/true").status()),
            code(std::net::TcpListener::bind("127.0.0.1:0")),
            code(std::net::UdpSocket::bind("[::1]:0")),
            code(std::os::unix::net::UnixDatagram::unbound()),
            raw::tests::calls(&[(libc::SYS_ptrace, 0)])[0],
            i32::from(std::thread::spawn(|| ()).join().is_err()),
            code(std::fs::File::create("/etc/mpsd-unit-test")),
            write("/etc/passwd"),
            code(std::fs::File::create("/run/mpsd-unit-test")),
            write("/proc/self/comm"),
            code(std::fs::read("/etc/passwd")),
            write("/dev/null"),
            code(tempfile::tempfile()),
            code(nix::sys::signal::kill(nix::unistd::getppid(), None).map_err(Into::into)),
        ]
    };
    let (eperm, eacces) = (libc::EPERM, libc::EACCES);
    let want = [
        eperm, eperm, eperm, 0, eperm, 0, eacces, eacces, eacces, eacces, 0, 0, 0, eperm,
    ];
    assert_eq!(after(|| nvml_worker().unwrap(), tried), want);
    // Landlock by itself keeps it from executing, too.
    let execute = || vec![code(Command::new("/bin/true").status())];
    assert_eq!(after(|| assert!(landlocked().unwrap()), execute), [eacces]);
}

#[test]
fn a_process_that_is_not_dumpable_cannot_be_debugged() {
    let _alone = alone();
    let answer = ask(soon(), || {
        // As the user's own process, and another of the same user's.
        let open = |pid: i32| std::fs::File::open(format!("/proc/{pid}/mem")).is_ok();
        become_user(STRANGER);
        // Changing the user has made it undumpable already; exec would have ended that.
        prctl::set_dumpable(true).unwrap();
        let own = nix::unistd::getpid().as_raw();
        let ask_other = || ask(soon(), || vec![u8::from(open(own))]).map_or(9, |answer| answer[0]);
        let before = ask_other();
        undumpable().unwrap();
        vec![before, ask_other()]
    });
    assert_eq!(answer.unwrap(), [1, 0]);
}
