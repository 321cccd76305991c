//! A node that has run out of something: any user can be the cause, so nothing is drained, and a
//! line names what ran out.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tests::double::look::wait_until;
use tests::figures;
use tests::node_bed::{NodeBed, fast};
use tests::run::{Ran, USER, finish, openpbs_args, strict_epilogue_args};
use tests::scarcity::{Small, alone};

/// A start that lacks something often takes its whole time.
const CONFIG: &str = "deadline_s = 2\n";
const SHARED: &str = "deadline_s = 2\nshared_gpus = true\n";
const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=4G";

/// What a node has little of, and one of which words the line of a failed start has.
#[derive(Clone, Copy)]
struct Scarce {
    what: &'static str,
    words: &'static [&'static str],
    /// From one start to the next there is so much more of it.
    step: usize,
    /// A start needs more than at least so many tries had.
    least: u64,
}

/// `run` runs a program with this little of it: ever more for a start, none for an end, which the
/// next end may finish. The other job is always served.
fn with_little(
    config: &str,
    scarce: Scarce,
    prepare: impl FnOnce(&NodeBed) -> Option<Small>,
    run: impl Fn(&NodeBed, Option<&Small>, usize, &str, &[&str]) -> Ran,
) {
    let bed = NodeBed::new(fast(1), config);
    let small = prepare(&bed);
    let what = scarce.what;
    let run = |free, program: &str, args: &[&str]| {
        let ran = run(&bed, small.as_ref(), free, program, args);
        println!("{free} {what} for {program}: {ran:?}");
        bed.assert_not_drained(what);
        ran
    };
    let is_served = |job: &str| drop(bed.exec(&[], &[("PBS_JOBID", job)]).ok());
    let jobs = &["74.srv", "75.srv"][..if config == SHARED { 2 } else { 1 }];
    // Without a process nothing can be undone before the job's end, and sometimes not without
    // descriptors.
    let can_undo = small.is_some() || what == "descriptors" && config == SHARED;
    let mut failed = 0;
    for job in jobs {
        let mut begin = |free| {
            let ran = run(free, "mps-prologue", &openpbs_args(job, USER, ACCOUNT));
            if ran.code == Some(0) {
                return true;
            }
            failed += 1;
            let told = scarce.words.iter().any(|word| ran.err.contains(word));
            assert_eq!((ran.code, ran.err.lines().count()), (Some(2), 1), "{ran:?}");
            // With none at all the file system is named, too.
            let has_some = free > 0 || small.is_none();
            let is_named = ran.err.contains("/run'") && ran.err.contains(" free");
            assert!(told && (has_some || is_named), "{ran:?}");
            assert!(!can_undo || !bed.job(job).exists(), "{free} {what}");
            bed.end(job);
            match *job == jobs[0] {
                true => bed.assert_as_before(what),
                false => is_served(jobs[0]),
            }
            false
        };
        let begins = (0..64).step_by(scarce.step).any(&mut begin);
        assert!(begins, "{job}, {what}");
        is_served(job);
    }
    for job in jobs {
        let ran = run(0, "mps-epilogue", &strict_epilogue_args(job));
        assert!(ran.code == Some(0) || !can_undo, "{ran:?}");
        if *job != jobs[jobs.len() - 1] {
            is_served(jobs[1]);
        }
        bed.end(job);
    }
    bed.assert_as_before(what);
    assert!(failed >= scarce.least, "{what}: {failed} moments only");
    figures::tell("faults", failed);
}

#[test]
fn a_node_without_room_refuses_a_job_names_the_file_system_and_disturbs_no_other_job() {
    type Kind = (fn(&Path, usize, u32) -> Small, fn(&Small, usize));
    let pages: Kind = (Small::over, Small::leave);
    let inodes: Kind = (Small::of_files, Small::leave_files);
    // The kernel's words for a full file system.
    let of_pages = &["No space left on device", "MPS did not start"];
    let of_inodes = &["of 256 inodes free"];
    for (config, what, words, step, least, kind) in [
        (CONFIG, "pages", &of_pages[..], 1, 3, pages),
        (CONFIG, "inodes", of_inodes, 1, 8, inodes),
        (SHARED, "pages", of_pages, 1, 4, pages),
        (SHARED, "inodes", of_inodes, 3, 4, inodes),
    ] {
        let (over, leave) = kind;
        let scarce = Scarce {
            what,
            words,
            step,
            least,
        };
        alone(|| {
            let prepare = |bed: &NodeBed| Some(over(&bed.path("run"), 256, 0o755));
            let run = |bed: &NodeBed, small: Option<&Small>, free, program: &str, args: &[&str]| {
                let small = small.expect("a file system");
                leave(small, free);
                let ran = bed.run(program, args, &[]);
                small.free();
                ran
            };
            with_little(config, scarce, prepare, run);
        });
    }
}

#[test]
fn a_start_without_descriptors_is_given_up_and_disturbs_no_other_job() {
    for (config, step, least) in [(CONFIG, 1, 3), (SHARED, 2, 4)] {
        let scarce = Scarce {
            what: "descriptors",
            words: &[""],
            step,
            least,
        };
        let run = |bed: &NodeBed, _: Option<&Small>, free: usize, program: &str, args: &[&str]| {
            // With three the loader cannot open the program's own libraries.
            let limit = format!("--nofile={}", free + 4);
            finish(
                bed.command_by(&["/usr/bin/prlimit", &limit], program)
                    .args(args),
            )
        };
        with_little(config, scarce, |_| None, run);
    }
}

#[test]
fn a_shared_mps_without_processes_refuses_a_job_and_disturbs_no_other() {
    let few = Few::new();
    let scarce = Scarce {
        what: "processes",
        words: &[""],
        step: 1,
        least: 4,
    };
    let run = |bed: &NodeBed, _: Option<&Small>, free, program: &str, args: &[&str]| {
        few.run(free + 1, bed, program, args)
    };
    with_little(SHARED, scarce, |_| None, run);
}

/// Driver 580 needs no shared memory: its server's region is anonymous (contract suite:
/// namespaces).
#[test]
fn a_file_system_that_is_full_costs_a_job_that_is_served_lines_of_its_log_and_no_more() {
    let places = [
        ("run", 0o755, false),
        ("state", 0o755, true),
        ("/dev/shm", 0o1777, true),
    ];
    for (at, mode, begins_full) in places {
        alone(|| {
            let bed = NodeBed::new(fast(1), CONFIG);
            let small = Small::over(&bed.path(at), 256, mode);
            if begins_full {
                small.leave(0);
            }
            bed.begin("71.srv", ACCOUNT, "0");
            small.leave(0);
            bed.served("71.srv", &[]);
            let end = bed.strict_end("71.srv");
            small.free();
            end.ok();
            bed.assert_as_before(at);
            figures::tell("faults", 1);
        });
    }
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

    fn run(&self, most: usize, bed: &NodeBed, program: &str, args: &[&str]) -> Ran {
        fs::write(self.0.join("pids.max"), most.to_string()).expect("a bound of processes");
        let procs = self.0.join("cgroup.procs").display().to_string();
        let enter = ["/bin/sh", "-c", "echo $$ >\"$0\" && exec \"$@\"", &procs];
        finish(bed.command_by(&enter, program).args(args))
    }
}

impl Drop for Few {
    fn drop(&mut self) {
        wait_until(Duration::from_secs(5), || fs::remove_dir(&self.0).is_ok());
    }
}
