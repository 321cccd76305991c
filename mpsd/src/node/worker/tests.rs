use super::*;

#[test]
fn a_worker_that_comes_too_late_proves_nothing() {
    let late = NvmlWorker::start(Path::new("/bin/true"), "libnvidia-ml.so.1", Duration::ZERO);
    assert!(
        matches!(late.err(), Some(Failure::Undetermined(_))),
        "there was no time"
    );
    let absent = NvmlWorker::start(Path::new("/nowhere/mpsd"), "", Duration::from_secs(5));
    assert!(
        matches!(absent.err(), Some(Failure::Fault(_))),
        "root's own program is gone"
    );
}
