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
