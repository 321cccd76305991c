use super::*;
use mpsd_core::Paths;
use mpsd_core::config::Settings;
use std::sync::atomic::{AtomicBool, Ordering};

/// Two ends of one job at once: while one leaves the mark for a start under way, the other removes the job's directory.
#[test]
fn a_job_whose_directory_goes_while_its_start_is_told_to_give_up_is_no_fault() {
    let place = tempfile::tempdir().unwrap();
    let settings = Settings {
        paths: Paths::new(place.path(), place.path()),
        ..Settings::usual()
    };
    let limit = Duration::from_secs(20);
    let node = || RealNode::new("test", &settings, limit, limit / 2);
    let job = JobId::parse("64.srv").unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut other = node();
            while !over.load(Ordering::Relaxed) {
                other.remove_job(&job).expect("removed");
            }
        });
        let outcomes: Vec<_> = (0..3000).map(|_| node().cancel(&job)).collect();
        over.store(true, Ordering::Relaxed);
        assert_eq!(outcomes.into_iter().find(Result::is_err), None);
    });
}
