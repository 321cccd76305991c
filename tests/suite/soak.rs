//! The soak in its short form; `soak 2000` is the whole one.

use std::sync::atomic::Ordering::Relaxed;
use tests::soak::{Wanted, run};

/// What a long-lived `mpsd` may grow by while others come and go. Kilobytes.
const FLAT_KB: i64 = 512;

#[test]
fn many_jobs_at_once_with_random_kills_leave_nothing() {
    let report = run(Wanted {
        cycles: 80,
        at_once: 16,
        seed: 20_261_121,
    });
    println!("{report:?}");
    assert_eq!(report.lost.load(Relaxed), 0, "{report:?}");
    assert_eq!(report.different, Vec::<String>::new());
    assert!(
        report.ready.load(Relaxed) >= 30,
        "most jobs must have run: {report:?}"
    );
    assert!(
        report.killed.load(Relaxed) >= 10 && report.struck.load(Relaxed) >= 3,
        "{report:?}"
    );
    assert!(report.grown_kb < FLAT_KB, "a long-lived mpsd grew: {report:?}");
}
