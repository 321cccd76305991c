use super::*;
use mpsd_core::paths::{OBSERVATIONS, TOLD};
use mpsd_core::record::RecordState;
use std::sync::mpsc;
use std::time::Instant;

/// A place of the test's own, and the paths of a job in it.
fn place() -> (tempfile::TempDir, JobPaths) {
    // A record of another owner is not read.
    assert!(nix::unistd::geteuid().is_root(), "run as root, as CI does");
    let place = tempfile::tempdir().unwrap();
    let job = mpsd_core::Paths::new(place.path(), place.path()).job(&JobId::parse("4711").unwrap());
    (place, job)
}

fn record(state: RecordState) -> Record {
    let mut record = Record::without_mps(JobId::parse("4711").unwrap(), 1000, state, "why".into());
    record.deadline_s = 20;
    record
}

#[test]
fn a_task_is_told_at_once_when_the_start_settles_even_by_way_of_nothing() {
    for gap in [false, true] {
        let (_place, job) = place();
        let path = job.record();
        let leave = |state| ThisNode.write_record(&path, &record(state)).unwrap();
        leave(RecordState::Starting);
        let (tell, told) = mpsc::channel();
        let waits = || told.recv_timeout(Duration::from_millis(100)).is_err();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let settled = ThisNode.settled_record(&path, Duration::from_secs(20));
                tell.send(settled).unwrap();
            });
            assert!(waits(), "while it starts");
            if gap {
                std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
                assert!(waits(), "for what follows");
            }
            let begin = Instant::now();
            leave(RecordState::Failed);
            let settled = told.recv_timeout(Duration::from_secs(5)).unwrap().unwrap();
            assert_eq!(settled.map(|r| r.state), Some(RecordState::Failed));
            // The kernel tells, without a poll.
            let took = begin.elapsed();
            assert!(gap || took < Duration::from_millis(250), "{took:?}");
        });
    }
}

#[test]
fn a_steps_directory_counts_as_its_jobs() {
    let (place, _) = place();
    let job = JobId::parse("47").unwrap();
    for (name, counts) in [("471", false), (".47.lock", false), ("47.0", true)] {
        std::fs::create_dir(place.path().join(name)).unwrap();
        let found = ThisNode.has_directories(place.path(), &job);
        assert_eq!(found, counts, "{name}");
    }
    assert!(!ThisNode.has_directories(&place.path().join("none"), &job));
}

#[test]
fn last_words_are_told_once_and_only_where_root_has_made_room_for_their_number() {
    let (_place, job) = place();
    std::fs::create_dir_all(job.directory()).unwrap();
    let seen = SeenPaths {
        now: job.file(OBSERVATIONS),
        before: None,
        told: job.file(TOLD),
    };
    let says = |words: &[&str]| {
        let all = Observations {
            last_words: words.iter().map(|word| (*word).to_owned()).collect(),
            ..Observations::default()
        };
        std::fs::write(job.file(OBSERVATIONS), all.line()).unwrap();
    };
    assert_eq!(ThisNode.take_last_words(&seen), None, "nothing is there");
    says(&["one\x1b[31m"]);
    assert!(ThisNode.take_last_words(&seen).is_none() && !job.file(TOLD).exists());
    std::fs::write(job.file(TOLD), "").unwrap();
    let first = Some(vec!["one?[31m".into()]);
    assert_eq!(ThisNode.take_last_words(&seen), first);
    assert_eq!(ThisNode.take_last_words(&seen), None);
    says(&["one", "two"]);
    let elsewhere = File::options().write(true).open(job.file(TOLD)).unwrap();
    let held = Flock::lock(elsewhere, FlockArg::LockExclusive).unwrap();
    // Another step tells it.
    assert_eq!(ThisNode.take_last_words(&seen), None);
    drop(held);
    assert_eq!(ThisNode.take_last_words(&seen), Some(vec!["two".into()]));
}

#[test]
fn killed_tasks_are_noted_where_the_job_has_a_file_for_them_until_it_is_full() {
    let (place, job) = place();
    let task = KilledTask {
        step: Some(0),
        rank: 3,
        pid: 8349,
        signal: 9,
        oom_kills: 0,
    };
    let _ = ThisNode.note_killed(&job, &task);
    assert!(!job.file(KILLED).exists(), "nothing is made");
    std::fs::create_dir_all(job.directory()).unwrap();
    let elsewhere = place.path().join("elsewhere");
    std::fs::write(&elsewhere, "").unwrap();
    std::os::unix::fs::symlink(&elsewhere, job.file(KILLED)).unwrap();
    let _ = ThisNode.note_killed(&job, &task);
    let behind = std::fs::read(&elsewhere).unwrap();
    assert_eq!(behind, b"", "no link is followed");
    std::fs::remove_file(job.file(KILLED)).unwrap();
    std::fs::write(job.file(KILLED), "").unwrap();
    for _ in 0..1000 {
        let _ = ThisNode.note_killed(&job, &task);
    }
    let file = std::fs::read(job.file(KILLED)).unwrap();
    assert!(file.len() <= mpsd_core::killed::LONGEST, "{}", file.len());
    let noted = mpsd_core::killed::parse(&file);
    assert!(noted.len() > 100 && noted.iter().all(|one| *one == task));
}

#[test]
fn the_out_of_memory_killer_is_asked_in_the_jobs_cgroup_of_version_2_alone() {
    let (place, _) = place();
    for name in ["job_12", "sEKNKTV3WPV500"] {
        let scope = place.path().join("system.slice/slurmstepd.scope");
        let of_job = scope.join(name);
        std::fs::create_dir_all(&of_job).unwrap();
        let events = "low 0\noom 5\noom_kill 2\noom_group_kill 1\n";
        std::fs::write(of_job.join("memory.events"), events).unwrap();
        let own = format!("0::/system.slice/slurmstepd.scope/{name}/step_0/slurm\n");
        assert_eq!(oom_kills(&own, place.path()), Some(2));
    }
    for other in [
        "0::/system.slice/slurmd.service\n",
        "0::/system.slice/slurmstepd.scope/job_13/step_0/slurm\n",
        "4:memory:/slurm/uid_0/job_12/step_0\n0::/\n",
        "",
    ] {
        assert_eq!(oom_kills(other, place.path()), None, "{other}");
    }
}
