use super::*;

#[test]
fn a_worker_that_comes_too_late_proves_nothing() {
    // A child can be faster than its parent looks; never in all of these.
    let start = |_| NvmlWorker::start(Path::new("/bin/true"), "libnvidia-ml.so.1", Duration::ZERO).err();
    let late = (0..100).find_map(start);
    assert!(matches!(late, Some(Failure::Undetermined(_))), "{late:?}");
    let absent = NvmlWorker::start(Path::new("/nowhere/mpsd"), "", Duration::from_secs(5));
    assert!(
        matches!(absent.err(), Some(Failure::Fault(_))),
        "root's own program is gone"
    );
}

#[test]
fn a_worker_proves_nothing_but_by_a_crash() {
    let ends = |program: &str| {
        let worker = NvmlWorker::start(Path::new(program), "libnvidia-ml.so.1", Duration::from_secs(5));
        worker
            .and_then(|mut worker| worker.ask::<mpsd_core::Inventory>(&Question::Inventory))
            .expect_err("no answer")
    };
    for program in ["/bin/false", "/bin/true"] {
        let given_up = ends(program);
        assert!(matches!(given_up, Failure::Undetermined(_)), "{given_up}");
    }
    for signal in [Signal::SIGSEGV, Signal::SIGILL, Signal::SIGFPE] {
        assert!(is_crash(&Exit::Signal(signal as i32)), "{signal}");
    }
    // What ran out: memory, pages, time, room. Or it was confined too much, or ended from outside.
    for signal in [
        Signal::SIGKILL,
        Signal::SIGABRT,
        Signal::SIGBUS,
        Signal::SIGXCPU,
        Signal::SIGXFSZ,
        Signal::SIGSYS,
        Signal::SIGTERM,
    ] {
        assert!(!is_crash(&Exit::Signal(signal as i32)), "{signal}");
    }
    assert!(!is_crash(&Exit::Code(127)));
}
