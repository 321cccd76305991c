//! What a job's directory can hold: a user can fill the job's own file systems, and nothing else.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tests::double::look;
use tests::fuse::{FILE, Hung};
use tests::node_bed::{NodeBed, Running, eventually, fast};
use tests::run::{OTHER_USER, Ran, USER, as_user, epilogue_args, finish, skip};
use tests::scarcity::{Full, Older, Shared, Small, alone};

const CONFIG: &str = "deadline_s = 6\n";
const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=4G";

/// A process of the user's that keeps the files that `line` opened, until it is dropped.
fn keeper(line: &str, path: &Path) -> Running {
    let mut command = as_user(USER, "/bin/sh");
    let line = format!("{line}; exec sleep 60");
    let kept = Running::silent(command.args(["-c", &line]).arg(path).env_clear());
    let first = || look::process(kept.pid()).and_then(|process| process.args.into_iter().next());
    eventually(&line, || first().is_some_and(|word| word == "sleep"));
    kept
}

#[track_caller]
fn assert_another_is_served(bed: &NodeBed, job: &str) {
    bed.openpbs(job, OTHER_USER, ACCOUNT).ok();
    bed.end(job);
}

#[test]
fn what_a_user_keeps_open_keeps_no_room_from_the_next_job() {
    const FILES: usize = 5000;
    alone(|| {
        let bed = NodeBed::new(fast(1), CONFIG);
        // The file system of `/run`, of 1 MiB.
        let _run = Small::over(&bed.path("run"), 256, 0o755);
        bed.begin("60.srv", ACCOUNT, "0");
        let [pipe, log] = ["pipe", "log"].map(|name| bed.job("60.srv").join(name));
        let without_name = "exec 3>$0/kept; head -c $SIZE /dev/zero >&3; rm $0/kept";
        let kept = [
            keeper(&without_name.replace("$SIZE", "32M"), &pipe),
            keeper(&without_name.replace("$SIZE", "2M"), &log),
        ];
        let made = (0..FILES).take_while(|n| fs::create_dir(log.join(n.to_string())).is_ok());
        assert!(made.count() < FILES, "it takes files without bound");
        let full = fs::write(pipe.join("more"), "x").expect_err("it takes bytes without bound");
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
        bed.end("60.srv");
        assert_another_is_served(&bed, "61.srv");
        bed.assert_as_before("what a user keeps open");
        drop(kept);
    });
}

/// A mount below a shared one is also made in every namespace that copied it, an ordinary user's
/// too.
#[test]
fn who_has_filled_a_mount_namespace_takes_no_bound_of_room_from_a_job() {
    alone(|| {
        let bed = NodeBed::new(fast(1), CONFIG);
        let _run = Shared::at(&bed.path(""));
        let first = Full::of(OTHER_USER);
        // Nothing of this boot has made our directory a private mount. A job without bounds would
        // be worse than none.
        let refused = bed.torque("70.srv", ACCOUNT, "0").exits(2);
        refused.complains("fs.mount-max");
        bed.assert_as_before("a full namespace");
        drop(first);
        bed.begin("71.srv", ACCOUNT, "0");
        bed.end("71.srv");
        let _later = Full::of(OTHER_USER);
        bed.begin("72.srv", ACCOUNT, "0");
        assert_eq!(bed.mounts().len(), 2, "{:?}", bed.mounts());
        bed.assert_ends_clean("72.srv", "a full namespace of later");
    });
}

fn exec_within(older: &Older, bed: &NodeBed, job: &str) -> Ran {
    finish(older.within(&bed.exec_command(&[], &[("PBS_JOBID", job)])))
}

#[test]
fn a_task_that_cannot_see_its_jobs_directories_does_not_run() {
    alone(|| {
        let bed = NodeBed::new(fast(1), CONFIG);
        let older = Older::start();
        bed.begin("64.srv", ACCOUNT, "0");
        let ran = exec_within(&older, &bed, "64.srv");
        assert_ne!(ran.code, Some(0), "{ran:?}");
        ran.complains("this process does not see").prints_nothing();
        let ran = exec_within(&Older::start(), &bed, "64.srv").ok();
        ran.prints("\"under_mps\":true");
        bed.assert_ends_clean("64.srv", "an older namespace");
    });
}

/// Slurm's job_container/tmpfs makes a job's namespace before a step's own daemon starts; with
/// RunInJob, before the prolog runs.
#[test]
fn a_job_whose_namespace_is_there_already_sees_its_directories() {
    alone(|| {
        let bed = NodeBed::new(fast(2), CONFIG);
        let mut older = Older::start();
        older.keep_for(&bed.path("containers"), "65.srv");
        bed.begin("65.srv", ACCOUNT, "0");
        assert!(bed.mounts().is_empty(), "{:?}", bed.mounts());
        let ran = exec_within(&older, &bed, "65.srv").ok();
        ran.prints("\"under_mps\":true");
        // A namespace of another job than this one.
        bed.begin("66.srv", "MPS=true,MPS_THREADS=25", "1");
        assert_eq!(bed.mounts().len(), 2);
        bed.end("66.srv");
        bed.assert_ends_clean("65.srv", "a job's own namespace");
    });
}

/// An epilogue or the timer may not see the prologue's mounts, and other namespaces may have copies
/// of them.
#[test]
fn a_jobs_file_systems_end_in_every_namespace_with_its_directory() {
    alone(|| {
        let bed = NodeBed::new(fast(1), CONFIG);
        let older = Older::start();
        bed.begin("67.srv", ACCOUNT, "0");
        let newer = Older::start();
        let mut epilogue = bed.command("mps-epilogue");
        epilogue.arg("--strict").args(epilogue_args("67.srv"));
        finish(older.within(&epilogue)).ok();
        let copies = finish(newer.within(Command::new("/bin/cat").arg("/proc/self/mounts")));
        copies.prints(" / ").lacks("67.srv");
        bed.assert_as_before("an epilogue in an older namespace");
    });
}

/// A thread of the waiting process serves the file system. That process keeps the lock of the pipe
/// directory, and SIGKILL does not end it.
#[test]
fn a_users_file_system_below_the_jobs_directory_ends_with_the_job_and_frees_whoever_waits_for_it() {
    alone(|| {
        let bed = NodeBed::new(fast(1), CONFIG);
        let _hidden = Small::over(&bed.path("run"), 256, 0o755);
        bed.begin("68.srv", ACCOUNT, "0");
        let pipe = bed.job("68.srv").join("pipe");
        let at = pipe.join("deep/fuse");
        fs::create_dir_all(&at).expect("directory");
        let (hung, device) = match Hung::over_own_reads(&at, tests::run::uid_of(USER)) {
            Ok(both) => both,
            Err(why) => {
                return skip(
                    "suite, a file system of its own",
                    &format!("no FUSE: {why}"),
                );
            }
        };
        let mut command = as_user(USER, bed.node.control());
        command.env_clear().env("MPS_DOUBLE_LISTS", &pipe);
        command.env("MPS_DOUBLE_HANGS_IN", at.join(FILE));
        // The file system is dropped first, because nothing else ends the process.
        let mut both = (hung, Running::start(command.stdin(device)));
        drop(command);
        let (hung, waits) = (&both.0, &mut both.1);
        eventually("the process waits", || hung.holds_somebody());
        waits.0.kill().expect("SIGKILL");
        std::thread::sleep(Duration::from_millis(300));
        assert!(!waits.has_ended(), "SIGKILL ends it: nothing is tried");
        bed.end("68.srv");
        eventually("the process ends", || waits.has_ended());
        bed.assert_as_before("a user's file system");
    });
}
