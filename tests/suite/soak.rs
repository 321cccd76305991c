//! The soak in its short form; `cargo xtask soak` is the whole one. In a process of its own: the descriptors that it counts are
//! not those of the other tests.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

use tests::double::look::wait_until;
use tests::place::Running;
use tests::stage::built;

/// What a long-lived `mpsd` may grow by while others come and go. Kilobytes.
const FLAT_KB: u64 = 512;
/// Far more than 80 jobs take on a busy machine.
const LONGEST: Duration = Duration::from_secs(240);

#[test]
fn many_jobs_at_once_with_random_kills_leave_nothing() {
    let child = Command::new(built("soak"))
        .args(["80", "16", "20261121"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("soak");
    let mut soak = Running(child);
    let mut code = None;
    wait_until(LONGEST, || {
        code = soak.0.try_wait().expect("wait").map(|status| status.code());
        code.is_some()
    });
    let mut text = String::new();
    let mut out = soak.0.stdout.take().expect("stdout");
    // A few hundred bytes: they fit into the pipe.
    if code.is_some() {
        std::io::Read::read_to_string(&mut out, &mut text).expect("text");
    }
    assert_eq!(code, Some(Some(0)), "{text}");
    let figures: BTreeMap<&str, u64> = text
        .lines()
        .filter_map(|line| line.strip_prefix("figure: ")?.split_once(" = "))
        .filter_map(|(name, count)| Some((name, count.parse().ok()?)))
        .collect();
    assert_eq!((figures["lost"], figures["different"]), (0, 0), "{text}");
    assert!(figures["ready"] >= 30, "most jobs must have run: {text}");
    assert!(figures["killed"] >= 10 && figures["struck"] >= 3, "{text}");
    assert!(figures["grown_kb"] < FLAT_KB, "a long-lived mpsd grew: {text}");
}
