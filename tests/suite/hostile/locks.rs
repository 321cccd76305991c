//! A user or a stranger keeps the locks of directories and files that root must change. No program
//! waits for such a lock.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tests::fuse::{FILE, Hung};
use tests::place::{Place, Running, eventually, fast};
use tests::scarcity::{Older, Small, alone};
use tests::stage::{THREE, USER, as_user, chmod};

use super::{ACCOUNT, CONFIG};

/// What an end says of a directory that it cannot remove.
const CANNOT_CLEAN: &str = "cannot clean the user's directory";
/// A call that waits for no lock takes less.
const UNHINDERED: Duration = Duration::from_secs(4);

/// Keeps a namespace for `job`, so that it gets no file systems of its own.
fn unbounded(place: &Place, job: &str) -> Older {
    let mut older = Older::start();
    older.keep_for(&place.path("containers"), job);
    older
}

/// A process of the user's that keeps the lock of `what`: it lists or writes it, as `how` says,
/// with memory that the user's file system withholds. Drop the file system first: until then
/// nothing ends the process. `None` without FUSE.
fn keep(place: &Place, how: &str, what: &Path) -> Option<(Hung, Running)> {
    let (at, hung) = place.hung("fuse", Hung::over_reads)?;
    let mut command = as_user(USER, place.node.control());
    command.env_clear().env(how, what);
    command.env("MPS_DOUBLE_HANGS_IN", at.join(FILE));
    let holder = Running::start(command.stdin(Stdio::null()));
    eventually("the lock is kept", || hung.holds_somebody());
    Some((hung, holder))
}

/// The user lists the pipe directory into memory that the user's file system withholds. If the
/// job's directories have their own file systems, root removes them without that lock.
#[test]
fn a_directory_whose_lock_its_user_keeps_holds_nobody() {
    for bounded in [true, false] {
        alone(|| {
            let place = Place::new(fast(2), CONFIG);
            let _hidden = Small::over(&place.path("run"), 256, 0o755);
            let _older = (!bounded).then(|| unbounded(&place, "96.srv"));
            place.begin("96.srv", ACCOUNT, "0");
            let Some(kept) = keep(
                &place,
                "MPS_DOUBLE_LISTS",
                &place.job("96.srv").join("pipe"),
            ) else {
                return;
            };
            // Reads its output to the end, as a scheduler does.
            let end = place.strict_end("96.srv");
            end.within(Duration::from_secs(9));
            let holder_only = [vec![], vec![kept.1.pid()], vec![]];
            assert_eq!(THREE.map(|name| place.pids(name)), holder_only, "{end:?}");
            assert_eq!(place.node.modes(), ["default", "default"]);
            // The same job again, the timer's work, and another job.
            let again = place.torque("96.srv", ACCOUNT, "0");
            again.within(Duration::from_secs(10));
            if bounded {
                assert_eq!(
                    (end.code, again.code),
                    (Some(0), Some(0)),
                    "{end:?} {again:?}"
                );
            } else {
                end.exits(2).complains(CANNOT_CLEAN);
                again.exits(2);
            }
            let ran = place.mpsctl(&["reconcile", "--node", "gpu001"]);
            ran.within(Duration::from_secs(15));
            place.begin("97.srv", ACCOUNT, "1");
            place.end("97.srv");
            drop(kept);
            place.assert_ends_clean("96.srv", "a lock that its user let go");
        });
    }
}

/// The user writes to the control daemon's log, and the daemon writes there as it ends.
#[test]
fn a_daemon_whose_log_its_user_keeps_is_told_by_the_exit_code_and_ends_with_that() {
    alone(|| {
        let place = Place::new(fast(1), CONFIG);
        let _hidden = Small::over(&place.path("run"), 256, 0o755);
        place.begin("99.srv", ACCOUNT, "0");
        let log = place.job("99.srv").join("log/control.log");
        let Some(kept) = keep(&place, "MPS_DOUBLE_WRITES", &log) else {
            return;
        };
        let end = place.strict_end("99.srv").exits(2);
        end.within(Duration::from_secs(9))
            .complains("state D after");
        let left = THREE.map(|name| place.pids(name).len());
        assert_eq!(left, [0, 2, 0], "the daemon, and who keeps it: {end:?}");
        assert_eq!(place.node.modes(), ["default"]);
        drop(kept);
        place.assert_ends_clean("99.srv", "a log that its user let go");
    });
}

/// Programs of ours that still run. After a call has returned, these wait for a lock.
fn stuck(place: &Place) -> usize {
    place.processes().iter().filter(|p| p.uid == 0).count()
}

/// The site's directory for the jobs' cgroups has mkdir(1)'s mode, so all users may list it.
#[test]
fn a_strangers_lock_on_the_sites_cgroup_directory_holds_no_job() {
    alone(|| {
        let place = Place::new(fast(2), CONFIG);
        let Some(cgroups) = place.cgroups.clone() else {
            return println!("not tried here, this machine has no cgroups");
        };
        chmod(&cgroups, 0o755);
        let _hidden = Small::over(&place.path("run"), 1024, 0o755);
        place.begin("60.srv", ACCOUNT, "0");
        assert!(cgroups.join("60.srv").exists());
        let Some(kept) = keep(&place, "MPS_DOUBLE_LISTS", &cgroups) else {
            return;
        };
        // Job 61 begins and ends without a cgroup. Only the empty cgroup of job 60 stays.
        for _ in 0..3 {
            place.begin("61.srv", ACCOUNT, "1").within(UNHINDERED);
            place.end("61.srv").within(UNHINDERED);
            let end = place.strict_end("60.srv").exits(2);
            end.within(UNHINDERED).complains("the job's cgroup stays");
            assert!(stuck(&place) <= 1, "{}", stuck(&place));
        }
        assert_eq!(place.node.modes(), ["default", "default"]);
        assert_doctor_names(&place, &[&cgroups]);
        assert!(stuck(&place) <= 1, "{}", stuck(&place));
        drop(kept);
        eventually("no program waits", || stuck(&place) == 0);
        place.assert_ends_clean("60.srv", "a cgroup directory that a stranger let go");
    });
}

#[track_caller]
fn assert_doctor_names(place: &Place, dirs: &[&Path]) {
    let ran = place.mpsctl(&["doctor", "--node", "gpu001"]);
    ran.within(Duration::from_secs(20));
    for dir in dirs {
        ran.prints(format!("WARN  '{}'", dir.display()));
    }
}

/// A timer runs it each minute.
#[test]
fn a_strangers_lock_on_the_textfile_directory_leaves_one_process_at_most() {
    alone(|| {
        let place = Place::new(fast(1), CONFIG);
        let dir = place.directory("textfile");
        let Some(kept) = keep(&place, "MPS_DOUBLE_LISTS", &dir) else {
            return;
        };
        let write = || place.mpsctl(&["metrics", "--textfile", dir.to_str().expect("a path")]);
        for _ in 0..3 {
            write().exits(2).within(Duration::from_secs(9));
            assert!(stuck(&place) <= 1, "{}", stuck(&place));
        }
        drop(kept);
        eventually("no program waits", || stuck(&place) == 0);
        write().ok();
        assert!(dir.join("mpsd.prom").exists());
    });
}
