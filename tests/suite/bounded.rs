//! What a job's directory can hold: a user keeps room of their own job's file system, and of nothing else.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tests::double::look::{self, wait_until};
use tests::figures;
use tests::fuse::{FILE, Hung};
use tests::place::{Place, Running, fast};
use tests::scarcity::{Older, Small, alone};
use tests::stage::{OTHER_USER, Ran, USER, as_user, finish, openpbs_args};

const CONFIG: &str = "deadline_s = 6\n";
const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=4G";

/// A process of the user's outside of any job that runs `line` with `path`, and then keeps what it has open until it is dropped.
fn keeper(line: &str, path: &Path) -> Running {
    let mut command = as_user(USER, "/bin/sh");
    command.arg("-c").arg(format!("{line}; exec sleep 60")).arg(path);
    command.env_clear().stdin(Stdio::null()).stderr(Stdio::null());
    let kept = Running(command.spawn().expect("a process"));
    let sleeps =
        || look::process(kept.0.id()).is_some_and(|p| p.args.first().is_some_and(|arg| arg == "sleep"));
    assert!(
        wait_until(Duration::from_secs(20), sleeps),
        "it does not get to keep anything"
    );
    kept
}

/// The next job of another user, from begin to end.
#[track_caller]
fn assert_another_is_served(place: &Place, job: &str) {
    let ran = place.stage.prologue(&openpbs_args(job, OTHER_USER, ACCOUNT), &[]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(place.strict_end(job).code, Some(0));
}

#[test]
fn what_a_user_keeps_open_keeps_no_room_from_the_next_job() {
    const FILES: usize = 5000;
    alone(|| {
        let place = Place::new(fast(1), CONFIG);
        // The file system of `/run`, of 1 MiB.
        let _run = Small::over(&place.stage.path("run"), 256, 0o755);
        let ran = place.torque("60.srv", ACCOUNT, "0");
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let (pipe, log) = (
            place.stage.job("60.srv").join("pipe"),
            place.stage.job("60.srv").join("log"),
        );
        let without_name = "exec 3>$0/kept; head -c $SIZE /dev/zero >&3; rm $0/kept";
        let kept = [
            keeper(&without_name.replace("$SIZE", "32M"), &pipe),
            keeper(&without_name.replace("$SIZE", "2M"), &log),
        ];
        let made = (0..FILES).take_while(|n| fs::create_dir(log.join(n.to_string())).is_ok());
        assert!(made.count() < FILES, "it takes files without bound");
        let full = fs::write(pipe.join("more"), "x").expect_err("it takes bytes without bound");
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
        let end = place.strict_end("60.srv");
        assert_eq!(end.code, Some(0), "{end:?}");
        assert_another_is_served(&place, "61.srv");
        place.assert_not_drained("what a user keeps open");
        place.assert_as_before("what a user keeps open");
        drop(kept);
        figures::tell("faults", 1);
    });
}

#[test]
fn the_file_of_the_ranks_locks_keeps_no_room_either() {
    alone(|| {
        let node = fast(1).describe(|node| node.driver_version = "590.44.01".to_owned());
        let place = Place::new(node, CONFIG);
        let _run = Small::over(&place.stage.path("run"), 256, 0o755);
        let ran = place.torque("62.srv", "MPS=true,MPS_SMS=16:32", "0");
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let lock = place.stage.job("62.srv").join("partitions/lock");
        let kept = keeper("exec 3>$0; head -c 2M /dev/zero >&3", &lock);
        assert!(lock.metadata().expect("the lock").len() < 1 << 20);
        let end = place.strict_end("62.srv");
        assert_eq!(end.code, Some(0), "{end:?}");
        assert_another_is_served(&place, "63.srv");
        place.assert_as_before("a lock that its user has filled");
        drop(kept);
    });
}

/// A CUDA program of `job`'s user by `mpsctl exec`, in the namespace `older`.
fn exec_within(older: &Older, place: &Place, job: &str) -> Ran {
    let mut command = as_user(USER, place.stage.program("mpsctl"));
    command.arg("--config").arg(place.stage.config());
    command.args(["exec", "--"]).arg(place.stage.node.client());
    command.arg("--node").arg(place.stage.node.dir());
    command.env_clear().env("PBS_JOBID", job);
    finish(older.within(&command))
}

#[test]
fn a_task_that_cannot_see_its_jobs_directories_does_not_run() {
    alone(|| {
        let place = Place::new(fast(1), CONFIG);
        let older = Older::start();
        let ran = place.torque("64.srv", ACCOUNT, "0");
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let ran = exec_within(&older, &place, "64.srv");
        assert_ne!(ran.code, Some(0), "{ran:?}");
        assert!(
            ran.err.contains("this process does not see") && ran.out.is_empty(),
            "{ran:?}"
        );
        let ran = exec_within(&Older::start(), &place, "64.srv");
        assert!(
            ran.code == Some(0) && ran.out.contains("\"under_mps\":true"),
            "{ran:?}"
        );
        place.assert_ends_clean("64.srv", "an older namespace");
    });
}

/// Under Slurm's job_container/tmpfs a job's namespace is there before a step's own daemon starts, and with RunInJob before the prolog runs.
#[test]
fn a_job_whose_namespace_is_there_already_sees_its_directories() {
    alone(|| {
        let place = Place::new(fast(1), CONFIG);
        let mut older = Older::start();
        older.keep_for(&place.stage.path("containers"), "65.srv");
        let ran = place.torque("65.srv", ACCOUNT, "0");
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(place.stage.mounts().is_empty(), "{:?}", place.stage.mounts());
        let ran = exec_within(&older, &place, "65.srv");
        assert!(
            ran.code == Some(0) && ran.out.contains("\"under_mps\":true"),
            "{ran:?}"
        );
        // Another job's namespace is none of this one's.
        let ran = place.torque("66.srv", "MPS=true,MPS_THREADS=25", "0");
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert_eq!(place.stage.mounts().len(), 2);
        assert_eq!(place.strict_end("66.srv").code, Some(0));
        place.assert_ends_clean("65.srv", "a job's own namespace");
    });
}

/// An epilogue, or the timer, may run where the prologue's mounts are not to be seen, and another namespace may have copies of them.
#[test]
fn a_jobs_file_systems_end_in_every_namespace_with_its_directory() {
    alone(|| {
        let place = Place::new(fast(1), CONFIG);
        let older = Older::start();
        let ran = place.torque("67.srv", ACCOUNT, "0");
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let newer = Older::start();
        let mut epilogue = Command::new(place.stage.program("mps-epilogue"));
        epilogue.arg("--config").arg(place.stage.config()).arg("--strict");
        epilogue.args(tests::stage::epilogue_args("67.srv"));
        let end = finish(older.within(&epilogue));
        assert_eq!(end.code, Some(0), "{end:?}");
        let mut mounts = Command::new("/bin/cat");
        mounts.arg("/proc/self/mounts");
        let copies = finish(newer.within(&mounts)).out;
        assert!(copies.contains(" / ") && !copies.contains("67.srv"), "{copies}");
        place.assert_as_before("an epilogue in an older namespace");
    });
}

/// Its server is a thread of the process that waits for it: that process keeps the lock of the pipe directory, and SIGKILL does not end it.
#[test]
fn a_users_file_system_below_the_jobs_directory_ends_with_the_job_and_frees_whoever_waits_for_it() {
    alone(|| {
        let place = Place::new(fast(1), CONFIG);
        let _hidden = Small::over(&place.stage.path("run"), 256, 0o755);
        let ran = place.torque("68.srv", ACCOUNT, "0");
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let pipe = place.stage.job("68.srv").join("pipe");
        let at = pipe.join("deep/fuse");
        fs::create_dir_all(&at).expect("directory");
        let user = nix::unistd::User::from_name(USER).expect("users").expect("user");
        let (hung, device) = match Hung::over_own_reads(&at, user.uid.as_raw()) {
            Ok(both) => both,
            Err(why) => return println!("not tried here, this machine has no FUSE: {why}"),
        };
        let mut command = as_user(USER, place.stage.node.control());
        command
            .env_clear()
            .env("FAKE_MPS_LISTS", &pipe)
            .env("FAKE_MPS_HANGS_IN", at.join(FILE));
        // The file system is dropped first: nothing else ends the process.
        let mut both = (hung, Running(command.stdin(device).spawn().expect("a process")));
        drop(command);
        let (hung, waits) = (&both.0, &mut both.1);
        assert!(wait_until(Duration::from_secs(5), || hung.holds_somebody()));
        waits.0.kill().expect("SIGKILL");
        std::thread::sleep(Duration::from_millis(300));
        assert!(
            waits.0.try_wait().expect("a child").is_none(),
            "SIGKILL ends it, and nothing is tried here"
        );
        let end = place.strict_end("68.srv");
        assert_eq!(end.code, Some(0), "{end:?}");
        let ended = || waits.0.try_wait().is_ok_and(|end| end.is_some());
        assert!(
            wait_until(Duration::from_secs(5), ended),
            "it waits still: {end:?}"
        );
        place.assert_not_drained("a user's file system");
        place.assert_as_before("a user's file system");
    });
}
