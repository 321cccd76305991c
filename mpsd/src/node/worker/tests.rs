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
fn a_worker_that_gives_up_proves_nothing_and_one_that_dies_does() {
    let ends = |program: &str| {
        let worker = NvmlWorker::start(Path::new(program), "libnvidia-ml.so.1", Duration::from_secs(5));
        worker
            .and_then(|mut worker| worker.ask::<mpsd_core::Inventory>(&Question::Inventory))
            .expect_err("no answer")
    };
    let given_up = ends("/bin/false");
    assert!(matches!(given_up, Failure::Undetermined(_)), "{given_up}");
    assert!(matches!(ends("/bin/true"), Failure::Fault(_)));
}
