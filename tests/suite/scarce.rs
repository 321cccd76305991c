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

/// Only lines of its log are lost. Driver 580 needs no shared memory: its server's region is
/// anonymous (contract suite: namespaces).
#[test]
fn a_job_is_served_and_ends_without_room() {
    for (what, pages, is_late) in [
        ("run", 256, true),
        ("state", 16, false),
        ("/dev/shm", 16, false),
    ] {
        alone(|| {
            let place = Place::new(fast(1), CONFIG);
            let mode = if what == "/dev/shm" { 0o1777 } else { 0o755 };
            // An absolute path stays as it is.
            let small = Small::over(&place.path(what), pages, mode);
            let fill = |now: bool| now.then(|| small.leave(0));
            fill(!is_late);
            place.begin("71.srv", ACCOUNT, "0");
            fill(is_late);
            place.served("71.srv", &[]);
            let end = place.strict_end("71.srv");
            small.free();
            end.ok();
            place.assert_as_before(what);
            figures::tell("faults", 1);
        });
    }
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

const SHARED: &str = "deadline_s = 3\nshared_gpus = true\n";
const SHARERS: [&str; 2] = ["74.srv", "75.srv"];

/// Two jobs begin and join an MPS, leave it and end it. `run` runs a program with this little of
/// `what`: ever more for a start, none for an end, which the next end may finish. The other job is
/// always served. A start that fails
/// says one of `words`, with nothing free the first. Returns how many failed.
fn shared_with_little(
    place: &Place,
    what: &str,
    words: &[&str],
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
            let words = &words[..if free == 0 { 1 } else { words.len() }];
            let told = words.iter().any(|word| ran.err.contains(word));
            assert!(told, "{after}: {ran:?}");
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
    type Over = fn(&Path, usize, u32) -> Small;
    type Leave = fn(&Small, usize);
    // What the file system lacks, or the kernel's words for that.
    for (what, words, step, over, leave) in [
        (
            "pages",
            &[
                "of 1024 KiB free",
                "No space left on device",
                "MPS did not start",
            ][..],
            1,
            Small::over as Over,
            Small::leave as Leave,
        ),
        (
            "inodes",
            &["of 256 inodes free"],
            3,
            Small::of_files,
            Small::leave_files,
        ),
    ] {
        alone(|| {
            let place = Place::new(fast(1), SHARED);
            let small = over(&place.path("run"), 256, 0o755);
            let failed = shared_with_little(&place, what, words, step, |free, program, args| {
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
    let failed = shared_with_little(&place, "descriptors", &[""], 2, |free, program, args| {
        // With three the loader cannot open the program's own libraries.
        let limit = format!("--nofile={}", free + 4);
        let mut command = place.command_by(&["/usr/bin/prlimit", &limit], program);
        finish(command.args(args))
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
    let failed = shared_with_little(&place, "processes", &[""], 1, |free, program, args| {
        few.run(free + 1, &place, program, args)
    });
    assert!(failed >= 4, "only {failed} starts lacked processes");
    figures::tell("faults", failed);
}
