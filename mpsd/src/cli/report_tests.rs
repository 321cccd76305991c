use super::*;
use mpsd_core::killed::KilledTask;
use mpsd_core::observations::{DaemonLost, Killed, Observations, OverMemory, Refused, ServerLost};
use mpsd_core::record::{Daemon, RecordGpu};
use mpsd_core::{GpuUuid, Scheduler};

fn gpu(n: usize) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-0000000{n}")).unwrap()
}

fn report() -> JobReport {
    let record_gpu = |n: usize| RecordGpu {
        index: n as u32,
        uuid: gpu(n),
        cpus: None,
    };
    let mut observations = Observations {
        clients: 49,
        most_clients: 48,
        refused: vec![Refused { pid: 999, beside: 48 }],
        servers_lost: vec![ServerLost {
            pid: 691,
            status: 0,
            clients: 48,
        }],
        daemons_lost: vec![DaemonLost {
            pid: 690,
            how: "signal 9".to_owned(),
        }],
        fatal: vec![8349],
        over_memory: vec![OverMemory {
            pid: 17,
            held_mib: 4096,
            limit_mib: 1024,
            terminated: true,
        }],
        ..Observations::default()
    };
    observations.take_memory(&gpu(0), 48, 9000);
    JobReport {
        version: 1,
        job: JobId::parse("7").unwrap(),
        scheduler: Scheduler::Slurm,
        node: "n1".to_owned(),
        user: "alice".to_owned(),
        uid: 1000,
        gpus: vec![record_gpu(0), record_gpu(1)],
        daemons: vec![Daemon {
            threads: Some("25".parse().unwrap()),
            memory: vec![(gpu(0), 1024)],
            ..Daemon::default()
        }],
        auto: None,
        exclusive: true,
        began: 1000,
        ready_ms: Some(210),
        ended: 1060,
        teardown_ms: 120,
        as_before: true,
        undetermined: Vec::new(),
        faults: Vec::new(),
        notes: vec!["Terminate for mps-server 691".to_owned()],
        drain: None,
        drained: false,
        killed: Vec::new(),
        said_by_user: Some(observations),
    }
}

#[test]
fn a_report_names_what_was_lost_with_pid_and_cause() {
    assert_eq!(
        lines(&report()).join("\n"),
        "\
job 7 of alice on n1: ready after 210 ms, ended after 60 s, taken down in 120 ms
  the node is as before, compute modes restored; not drained
  limits of each client: threads 25 %, memory 1024M of GPU-00000000
  at the end: Terminate for mps-server 691
  by the job's own mpsd: 49 clients, 48 at once
    GPU 0: at most 48 clients and 9000 MiB at a look
    GPU 1: no client at any look
    client 999 got no context; 48 others had one
    server 691 was lost (killed or ended with status 0) with 48 clients, which got error 806
    control daemon 690 was lost (signal 9)
    client 8349 caused a fatal GPU error
    client 17 held 4096 MiB over a limit of 1024 MiB, and was ended"
    );
}

#[test]
fn a_killed_task_is_told_once_as_roots_word_if_root_knows_it() {
    let of = |n: u32| KilledTask {
        step: Some(0),
        rank: n,
        pid: 100 + i32::try_from(n).unwrap(),
        signal: 9,
        oom_kills: 1,
    };
    let killed = |pid| Killed { pid, signal: 9 };
    let mut told = report();
    told.killed = vec![of(1), of(2), of(3)];
    let observations = told.said_by_user.as_mut().unwrap();
    (observations.pids, observations.killed) = (vec![101, 7], vec![killed(102), killed(7)]);
    let all = lines(&told);
    let (root, user): (Vec<&str>, Vec<&str>) = all
        .iter()
        .map(String::as_str)
        .filter(|line| line.contains("ended by") || line.contains("out-of-memory"))
        .partition(|line| !line.starts_with("    "));
    assert_eq!(
        root,
        [
            "  client 101 (task 1 of step 0) was ended by signal 9 (SIGKILL)",
            "  client 102 (task 2 of step 0) was ended by signal 9 (SIGKILL)",
            "  task 3 of step 0 (pid 103) was ended by signal 9 (SIGKILL)",
            "  the kernel's out-of-memory killer ended processes of the job: 1",
        ]
    );
    assert_eq!(user, ["    client 7 was ended by signal 9 (SIGKILL)"]);
}

#[test]
fn many_reports_are_summed_up() {
    let mut quiet = report();
    (quiet.said_by_user, quiet.ready_ms, quiet.as_before) = (None, None, false);
    let drain = |drained| JobReport {
        drain: Some("a line".to_owned()),
        drained,
        ..quiet.clone()
    };
    let all = [report(), drain(true), drain(false), drain(false)];
    let text = summary(&all).join("\n");
    for line in [
        "jobs: 4",
        "node not as before: 3",
        "drained: 1",
        "drain not delivered: 2",
        "never ready: 3",
        "lost a server: 1",
        "time to ready: median 210 ms, most 210 ms",
        "a GPU without a client at any look: 1",
    ] {
        assert!(text.lines().any(|other| other == line), "{line}:\n{text}");
    }
    assert_eq!(summary(&[]), ["no job has left a report on this node"]);
}

#[test]
fn a_time_that_is_none_is_refused() {
    assert!(since("2h").unwrap() < since("1h").unwrap());
    assert_eq!(since("99999999999999999d"), Ok(0));
    for none in ["", "h", "2", "2w", "-1h", "1.5h", "é"] {
        assert!(since(none).is_err(), "{none:?}");
    }
}

#[test]
fn a_later_end_adds_how_the_node_is_now_and_takes_nothing_back() {
    let first = JobReport {
        as_before: false,
        faults: vec!["NVML".to_owned()],
        drain: Some("a drain".to_owned()),
        drained: true,
        ..report()
    };
    let later = |as_before| JobReport {
        ended: 1360,
        teardown_ms: 9,
        as_before,
        notes: Vec::new(),
        said_by_user: None,
        ..report()
    };
    let mut joined = later(false).after(first.clone());
    for (again, is) in [(None, "is not"), (Some(true), "is")] {
        joined = again.map_or(joined.clone(), |as_before| later(as_before).after(joined));
        let note = format!("looked at again 300 s later, for 9 ms: the node {is} as before");
        assert_eq!(joined.notes[1..], [note], "of the later looks the last");
    }
    joined.as_before = false;
    joined.notes.clone_from(&first.notes);
    assert_eq!(joined, first);
    // A drain that got through at the second end is the job's, also if the first was lost.
    let taken = JobReport {
        drain: Some("taken".to_owned()),
        drained: true,
        ..later(false)
    };
    let lost = JobReport {
        drained: false,
        ..first
    };
    assert_eq!(taken.after(lost).drain.as_deref(), Some("taken"));
    // A job that was started again in the same second.
    assert_eq!(later(true).after(report()), later(true));
}
