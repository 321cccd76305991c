//! The soak in its short form; `cargo xtask soak` is the full one. In a process of its own, because
//! it counts its descriptors.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use tests::child;
use tests::run::built;

/// How much a long-lived `mpsd` may grow while others begin and end. Kilobytes.
const FLAT_KB: u64 = 512;
/// Far more than 80 jobs take on a busy machine.
const LONGEST: Duration = Duration::from_secs(240);

#[test]
fn many_jobs_at_once_with_random_kills_leave_nothing() {
    let mut soak = Command::new(built("soak"));
    let ran = child::run(soak.args(["80", "16", "20261121"]), "", LONGEST).expect("soak");
    let figure = |line| str::strip_prefix(line, "figure: ")?.split_once(" = ");
    let numbers = ran.stdout.lines().filter_map(figure);
    let numbers = numbers.filter_map(|(name, count)| Some((name, count.parse().ok()?)));
    let figures: BTreeMap<&str, u64> = numbers.collect();
    assert_eq!(ran.code, Some(0), "{}", ran.story());
    let [lost, different] = ["lost", "different"].map(|name| figures[name]);
    assert_eq!((lost, different), (0, 0), "{figures:?}");
    assert!(figures["ready"] >= 30, "most jobs must run: {figures:?}");
    let hurt = figures["killed"] >= 10 && figures["struck"] >= 3;
    assert!(hurt, "{figures:?}");
    assert!(figures["grown_kb"] < FLAT_KB, "mpsd grew: {figures:?}");
}
