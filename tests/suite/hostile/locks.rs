//! A user or a stranger keeps the locks of directories and files that root must change. No program
//! waits for such a lock.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tests::fuse::{FILE, Hung};
use tests::node_bed::{NodeBed, Running, eventually, fast};
use tests::run::{THREE, USER, as_user, chmod, skip};
use tests::scarcity::{Older, Small, alone};

use super::{ACCOUNT, CONFIG};

const CANNOT_CLEAN: &str = "cannot clean the user's directory";
/// A call that waits for no lock takes less.
const UNHINDERED: Duration = Duration::from_secs(4);

/// Keeps a namespace for `job`, so that it gets no file systems of its own.
fn unbounded(bed: &NodeBed, job: &str) -> Older {
    let mut older = Older::start();
    older.keep_for(&bed.path("containers"), job);
    older
}

/// A process that lists or writes `what`, as `how` says, and keeps its lock: its memory is withheld
/// by the user's file system. Drop that first: until then nothing ends the process. `None` without
/// FUSE.
fn keep(bed: &NodeBed, how: &str, what: &Path) -> Option<(Hung, Running)> {
    let (at, hung) = bed.hung("fuse", Hung::over_reads)?;
    let mut command = as_user(USER, bed.node.control());
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
            let bed = NodeBed::new(fast(2), CONFIG);
            let _hidden = Small::over(&bed.path("run"), 256, 0o755);
            let _older = (!bounded).then(|| unbounded(&bed, "96.srv"));
            bed.begin("96.srv", ACCOUNT, "0");
            let Some(kept) = keep(&bed, "MPS_DOUBLE_LISTS", &bed.job("96.srv").join("pipe")) else {
                return;
            };
            // Reads its output to the end, as a scheduler does.
            let end = bed.strict_end("96.srv");
            end.within(Duration::from_secs(9));
            let holder_only = [vec![], vec![kept.1.pid()], vec![]];
            assert_eq!(THREE.map(|name| bed.pids(name)), holder_only, "{end:?}");
            assert_eq!(bed.node.modes(), ["default", "default"]);
            // The same job again, the timer's work, and another job.
            let again = bed.torque("96.srv", ACCOUNT, "0");
            again.within(Duration::from_secs(10));
            if bounded {
                end.ok();
                again.ok();
            } else {
                end.exits(2).complains(CANNOT_CLEAN);
                again.exits(2);
            }
            let ran = bed.mpsctl(&["reconcile", "--node", "gpu001"]);
            ran.within(Duration::from_secs(15));
            bed.begin("97.srv", ACCOUNT, "1");
            bed.end("97.srv");
            drop(kept);
            bed.assert_ends_clean("96.srv", "a lock that its user let go");
        });
    }
}

/// The user writes to the control daemon's log, and the daemon writes there as it ends.
#[test]
fn a_daemon_whose_log_its_user_keeps_is_told_by_the_exit_code_and_ends_with_that() {
    alone(|| {
        let bed = NodeBed::new(fast(1), CONFIG);
        let _hidden = Small::over(&bed.path("run"), 256, 0o755);
        bed.begin("99.srv", ACCOUNT, "0");
        let log = bed.job("99.srv").join("log/control.log");
        let Some(kept) = keep(&bed, "MPS_DOUBLE_WRITES", &log) else {
            return;
        };
        let end = bed.strict_end("99.srv").exits(2);
        end.within(Duration::from_secs(9))
            .complains("state D after");
        let left = THREE.map(|name| bed.pids(name).len());
        assert_eq!(left, [0, 2, 0], "the daemon, and who keeps it: {end:?}");
        assert_eq!(bed.node.modes(), ["default"]);
        drop(kept);
        bed.assert_ends_clean("99.srv", "a log that its user let go");
    });
}

/// Programs of ours that still run. After a call has returned, these wait for a lock.
fn stuck(bed: &NodeBed) -> usize {
    bed.processes().iter().filter(|p| p.uid == 0).count()
}

/// The site's directory for the jobs' cgroups has mkdir(1)'s mode, so all users may list it.
#[test]
fn a_strangers_lock_on_the_sites_cgroup_directory_holds_no_job() {
    alone(|| {
        let bed = NodeBed::new(fast(2), CONFIG);
        let Some(cgroups) = bed.cgroups.clone() else {
            return skip("suite, a lock on the site's directory", "no cgroups");
        };
        chmod(&cgroups, 0o755);
        let _hidden = Small::over(&bed.path("run"), 1024, 0o755);
        bed.begin("60.srv", ACCOUNT, "0");
        assert!(cgroups.join("60.srv").exists());
        let Some(kept) = keep(&bed, "MPS_DOUBLE_LISTS", &cgroups) else {
            return;
        };
        // Job 61 begins and ends without a cgroup. Only the empty cgroup of job 60 stays.
        for _ in 0..3 {
            bed.begin("61.srv", ACCOUNT, "1").within(UNHINDERED);
            bed.end("61.srv").within(UNHINDERED);
            let end = bed.strict_end("60.srv").exits(2);
            end.within(UNHINDERED).complains("the job's cgroup stays");
            assert!(stuck(&bed) <= 1, "{}", stuck(&bed));
        }
        assert_eq!(bed.node.modes(), ["default", "default"]);
        assert_doctor_names(&bed, &[&cgroups]);
        assert!(stuck(&bed) <= 1, "{}", stuck(&bed));
        drop(kept);
        eventually("no program waits", || stuck(&bed) == 0);
        bed.assert_ends_clean("60.srv", "a cgroup directory that a stranger let go");
    });
}

#[track_caller]
fn assert_doctor_names(bed: &NodeBed, dirs: &[&Path]) {
    let ran = bed.mpsctl(&["doctor", "--node", "gpu001"]);
    ran.within(Duration::from_secs(20));
    for dir in dirs {
        ran.prints(format!("WARN  '{}'", dir.display()));
    }
}

/// A timer runs it each minute.
#[test]
fn a_strangers_lock_on_the_textfile_directory_leaves_one_process_at_most() {
    alone(|| {
        let bed = NodeBed::new(fast(1), CONFIG);
        let dir = bed.directory("textfile");
        let Some(kept) = keep(&bed, "MPS_DOUBLE_LISTS", &dir) else {
            return;
        };
        let write = || bed.mpsctl(&["metrics", "--textfile", dir.to_str().expect("a path")]);
        for _ in 0..3 {
            write().exits(2).within(Duration::from_secs(9));
            assert!(stuck(&bed) <= 1, "{}", stuck(&bed));
        }
        drop(kept);
        eventually("no program waits", || stuck(&bed) == 0);
        write().ok();
        assert!(dir.join("mpsd.prom").exists());
    });
}
