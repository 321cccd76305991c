//! A node that has run out of something: any user can be the cause, so nothing is drained, and a
//! line names what ran out.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use tests::double::look::wait_until;
use tests::figures;
use tests::place::{Place, fast};
use tests::scarcity::{Small, alone};
use tests::stage::{Ran, THREE, USER, finish, openpbs_args, strict_epilogue_args};

const CONFIG: &str = "deadline_s = 3\n";
const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=4G";
/// The kernel's words for a full file system.
const FULL: &str = "No space left on device";

/// A start failed for lack of something: one line says so, nothing is drained, and nothing is left.
#[track_caller]
fn gave_up(place: &Place, ran: &Ran, words: &[&str], after: &str) {
    assert_eq!(ran.code, Some(2), "{after}: {ran:?}");
    assert_eq!(ran.err.lines().count(), 1, "{after}: {ran:?}");
    let told = words.iter().any(|word| ran.err.contains(word));
    assert!(told, "{after}: {ran:?}");
    place.assert_as_before(after);
}

/// Starts with none of `what` free, then with one more each time, until a start is ready. Returns
/// how many failed.
fn until_it_starts(
    place: &Place,
    small: &Small,
    what: &str,
    leave: impl Fn(&Small, usize),
    judge: impl Fn(&Ran, &str),
) -> u64 {
    for free in 0..64 {
        leave(small, free);
        let after = format!("{free} free {what}");
        let ran = place.openpbs("70.srv", USER, ACCOUNT);
        small.free();
        if ran.code == Some(0) {
            place.assert_ends_clean("70.srv", &after);
            return free as u64;
        }
        println!("{after}: {}", ran.err.trim_end());
        judge(&ran, &after);
    }
    panic!("a job needs 64 {what}");
}

#[test]
fn a_file_system_that_is_full_at_any_moment_of_the_start_is_not_the_nodes_fault() {
    alone(|| {
        let place = Place::new(fast(1), CONFIG);
        let small = Small::over(&place.path("run"), 256, 0o755);
        let judge =
            |ran: &Ran, after: &str| gave_up(&place, ran, &[FULL, "MPS did not start"], after);
        let failed = until_it_starts(&place, &small, "pages", Small::leave, judge);
        assert!(failed >= 3, "full at {failed} moments only");
        figures::tell("faults", failed);
    });
}

#[test]
fn a_start_that_finds_no_room_tells_which_file_system_lacks_what() {
    alone(|| {
        let place = Place::new(fast(1), CONFIG);
        let run = place.path("run");
        let small = Small::of_files(&run, 256, 0o755);
        let judge = |ran: &Ran, after: &str| {
            gave_up(&place, ran, &["of 256 inodes free"], after);
            ran.complains(format!("'{}'", run.display()));
        };
        let failed = until_it_starts(&place, &small, "inodes", Small::leave_files, judge);
        assert!(failed >= 8, "too few at {failed} moments only");
        figures::tell("faults", failed);
    });
    alone(|| {
        let place = Place::new(fast(1), CONFIG);
        let small = Small::over(&place.path("run"), 256, 0o755);
        small.leave(0);
        let ran = place.openpbs("70.srv", USER, ACCOUNT);
        small.free();
        gave_up(&place, &ran, &["of 1024 KiB free"], "no room");
    });
}

#[test]
fn a_file_system_that_fills_while_a_job_is_served_costs_lines_of_its_log_and_no_more() {
    alone(|| {
        let place = Place::new(fast(1), CONFIG);
        let small = Small::over(&place.path("run"), 256, 0o755);
        place.begin("71.srv", ACCOUNT, "0");
        small.leave(0);
        place.served("71.srv", &[]);
        let end = place.strict_end("71.srv");
        small.free();
        end.ok();
        place.assert_as_before("a file system that filled");
        figures::tell("faults", 1);
    });
}

#[test]
fn a_state_directory_without_room_does_not_keep_a_job_from_its_mps() {
    alone(|| {
        let place = Place::new(fast(1), CONFIG);
        let small = Small::over(&place.path("state"), 16, 0o755);
        small.leave(0);
        place.begin("72.srv", ACCOUNT, "0");
        let end = place.strict_end("72.srv");
        small.free();
        end.ok();
        place.assert_as_before("no room in the state directory");
        figures::tell("faults", 1);
    });
}

/// Driver 580 needs none: its server's region is anonymous (contract suite: namespaces).
#[test]
fn full_shared_memory_keeps_nobody_from_starting_or_being_served() {
    alone(|| {
        let place = Place::new(fast(1), CONFIG);
        let small = Small::over(Path::new("/dev/shm"), 16, 0o1777);
        small.leave(0);
        place.begin("73.srv", ACCOUNT, "0");
        place.served("73.srv", &[]);
        place.assert_ends_clean("73.srv", "full shared memory");
        figures::tell("faults", 1);
    });
}

fn with_descriptors(place: &Place, soft: u64, hard: u64) -> Ran {
    let limit = format!("--nofile={soft}:{hard}");
    let mut command = place.command_by(&["/usr/bin/prlimit", &limit], "mps-prologue");
    finish(command.args(openpbs_args("70.srv", USER, ACCOUNT)))
}

fn descriptors_of(pid: u32) -> (u64, u64) {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("limits");
    let line = limits.lines().find(|l| l.starts_with("Max open files"));
    let words = line.expect("open files").split_whitespace();
    let mut numbers = words.filter_map(|word| word.parse().ok());
    (numbers.next().expect("soft"), numbers.next().expect("hard"))
}

#[test]
fn the_three_may_open_16384_files_or_as_many_as_the_hard_limit_allows() {
    let place = Place::new(fast(1), CONFIG);
    // Not every root may raise its hard limit.
    let (_, own) = getrlimit(Resource::RLIMIT_NOFILE).expect("own limit");
    for (soft, hard) in [(64, own), (1024, own.min(4096)), (own, own)] {
        let got = own.min(hard).min(16_384).max(soft);
        with_descriptors(&place, soft, hard).ok();
        for name in THREE {
            let limits = descriptors_of(place.pids(name)[0]);
            assert_eq!(limits, (got, hard), "{name} of {soft}:{hard}");
        }
        place.assert_ends_clean("70.srv", &format!("{soft}:{hard} descriptors"));
    }
}

#[test]
fn a_start_without_descriptors_is_given_up_and_leaves_nothing() {
    let place = Place::new(fast(1), CONFIG);
    let mut given_up = 0;
    // With three the loader cannot open the program's own libraries.
    for most in (4..24).rev() {
        let after = format!("at most {most} descriptors");
        let ran = with_descriptors(&place, most, most);
        println!("{after}: {:?} {}", ran.code, ran.err.trim_end());
        if ran.code != Some(0) {
            ran.exits(2);
            given_up += 1;
        }
        place.assert_ends_clean("70.srv", &after);
    }
    assert!(given_up >= 3, "only {given_up} starts lacked descriptors");
    figures::tell("faults", given_up);
}

const SHARED: &str = "deadline_s = 3\nshared_gpus = true\n";
const SHARERS: [&str; 2] = ["74.srv", "75.srv"];

/// Two jobs begin and join an MPS, leave it and end it. `run` runs a program with this little of
/// `what`: ever more for a start, none for an end, which the next end may finish. The other job is
/// always served. Returns how many starts failed.
fn shared_with_little(
    place: &Place,
    what: &str,
    step: usize,
    run: impl Fn(usize, &str, &[&str]) -> Ran,
) -> u64 {
    let is_served = |job: &str| drop(place.exec(&[], &[("PBS_JOBID", job)]).ok());
    let mut failed = 0;
    for job in SHARERS {
        let mut begin = |free| {
            let ran = run(free, "mps-prologue", &openpbs_args(job, USER, ACCOUNT));
            let after = format!("{free} {what} for the start of {job}");
            println!("{after}: {:?} {}", ran.code, ran.err.trim_end());
            if ran.code == Some(0) {
                return true;
            }
            failed += 1;
            assert_eq!((ran.code, ran.err.lines().count()), (Some(2), 1), "{after}");
            place.assert_not_drained(&after);
            // Without a process nothing can be undone before the job's end.
            assert!(what == "processes" || !place.job(job).exists(), "{after}");
            place.end(job);
            match job == SHARERS[0] {
                true => place.assert_as_before(&after),
                false => is_served(SHARERS[0]),
            }
            false
        };
        assert!((0..64).step_by(step).any(&mut begin), "{job}, {what}");
        is_served(job);
    }
    for job in SHARERS {
        let ran = run(0, "mps-epilogue", &strict_epilogue_args(job));
        println!(
            "no {what} for the end of {job}: {:?} {}",
            ran.code,
            ran.err.trim_end()
        );
        assert!(ran.code == Some(0) || what == "processes", "{ran:?}");
        place.assert_not_drained(what);
        if job == SHARERS[0] {
            is_served(SHARERS[1]);
        }
        place.end(job);
    }
    place.assert_not_drained(what);
    place.assert_as_before(what);
    failed
}

#[test]
fn a_shared_mps_without_room_refuses_a_job_and_disturbs_no_other() {
    for (what, step, over, leave) in [
        (
            "pages",
            1,
            Small::over as fn(&Path, usize, u32) -> Small,
            Small::leave as fn(&Small, usize),
        ),
        ("inodes", 3, Small::of_files, Small::leave_files),
    ] {
        alone(|| {
            let place = Place::new(fast(1), SHARED);
            let small = over(&place.path("run"), 256, 0o755);
            let failed = shared_with_little(&place, what, step, |free, program, args| {
                leave(&small, free);
                let ran = place.run(program, args, &[]);
                small.free();
                ran
            });
            assert!(failed >= 4, "too few {what} at {failed} moments");
            figures::tell("faults", failed);
        });
    }
}

#[test]
fn a_shared_mps_without_descriptors_refuses_a_job_and_disturbs_no_other() {
    let place = Place::new(fast(1), SHARED);
    let failed = shared_with_little(&place, "descriptors", 2, |free, program, args| {
        // With three the loader cannot open the program's own libraries.
        let limit = format!("--nofile={}", free + 4);
        finish(
            place
                .command_by(&["/usr/bin/prlimit", &limit], program)
                .args(args),
        )
    });
    assert!(failed >= 4, "only {failed} starts lacked descriptors");
    figures::tell("faults", failed);
}

/// A cgroup that allows this many processes.
struct Few(PathBuf);

impl Few {
    fn new() -> Self {
        let name = format!("mpsd-few-{}", std::process::id());
        let tops = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(Path::new);
        let top = tops.iter().find(|top| top.join("cgroup.procs").exists());
        let own = top.expect("a hierarchy for processes").join(name);
        fs::create_dir(&own).expect("a cgroup");
        Self(own)
    }

    fn run(&self, most: usize, place: &Place, program: &str, args: &[&str]) -> Ran {
        fs::write(self.0.join("pids.max"), most.to_string()).expect("a bound of processes");
        let procs = self.0.join("cgroup.procs").display().to_string();
        let enter = ["/bin/sh", "-c", "echo $$ >\"$0\" && exec \"$@\"", &procs];
        finish(place.command_by(&enter, program).args(args))
    }
}

impl Drop for Few {
    fn drop(&mut self) {
        wait_until(Duration::from_secs(5), || fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
fn a_shared_mps_without_processes_refuses_a_job_and_disturbs_no_other() {
    let few = Few::new();
    let place = Place::new(fast(1), SHARED);
    let failed = shared_with_little(&place, "processes", 1, |free, program, args| {
        few.run(free + 1, &place, program, args)
    });
    assert!(failed >= 4, "only {failed} starts lacked processes");
    figures::tell("faults", failed);
}
