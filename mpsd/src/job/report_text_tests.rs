use super::*;
use mpsd_core::killed::KilledTask;
use mpsd_core::observations::{JobMemory, Killed, Observations};
use mpsd_core::testing::{record_gpu, uuid as gpu};
use mpsd_core::usage::{GpuUsage, Usage};
use mpsd_core::{JobId, Refusal};

fn report() -> JobReport {
    let mut report = crate::job::report::tests::report();
    report.gpus.push(record_gpu(1));
    report.notes = vec!["Terminate for mps-server 691".to_owned()];
    let text = r#"{"clients":49,"most_clients":48,"refused":[{"pid":999,"beside":48}],"fatal":[8349],
        "servers_lost":[{"pid":691,"status":0,"clients":48}],"daemons_lost":[{"pid":690,"how":"signal 9"}],
        "over_memory":[{"pid":17,"held_mib":4096,"limit_mib":1024,"terminated":true}]}"#;
    let mut observations: Observations = serde_json::from_str(text).unwrap();
    observations.take_memory(&gpu(0), &[&[187; 47][..], &[211]].concat());
    report.said_by_user = Some(observations);
    report
}

#[test]
fn of_a_shared_mps_the_last_words_are_told_which_name_the_job_of_a_client() {
    let mut report = report();
    let seen = report.said_by_user.as_mut().unwrap();
    seen.last_words = vec!["by client 8349 of job 8: the vendor's log says: it".to_owned()];
    let own = lines(&report).join("\n");
    report.shared = true;
    let shared = lines(&report).join("\n");
    assert!(!own.contains("of job 8") && own.contains("by the job's own mpsd: 49 clients"));
    assert!(shared.contains("by the mpsd that it shared, of all jobs on it: 49 clients"));
    // Their clients have other limits.
    assert!(own.contains("held at most") && !shared.contains("held at most"));
    assert!(shared.ends_with("    by client 8349 of job 8: the vendor's log says: it"));
}

#[test]
fn of_a_shared_mps_a_job_is_told_what_its_own_clients_held_together() {
    let mut report = report();
    report.shared = true;
    let seen = report.said_by_user.as_mut().unwrap();
    seen.jobs = [("8", 100), ("7", 5000)]
        .map(|(job, held_mib)| JobMemory {
            job: JobId::parse(job).unwrap(),
            gpu: gpu(0),
            held_mib,
            limit_mib: 4096,
        })
        .to_vec();
    let mut told = lines(&report);
    told.retain(|line| line.contains("together"));
    let its = "    GPU 0: its clients held at most 5000 of the 4096 MiB that they may together";
    assert_eq!(told, [its]);
}

#[test]
fn a_report_names_what_was_lost_with_pid_and_cause() {
    let told = lines(&report());
    let own = [
        "job 7 of alice on n1: ready after 210 ms, ended after 60 s, taken down in 120 ms",
        "  the node is as before, compute modes restored; not drained",
        "  limits of each client: threads 25 %, memory 1024M of GPU-00000000",
        "  at the end: Terminate for mps-server 691",
        "  by the job's own mpsd: 49 clients, 48 at once",
        "    GPU 0: at most 48 clients and 9000 MiB at a look",
        "    GPU 1: no client at any look",
        "    client 999 got no context; 48 others had one",
        "    server 691 was lost (killed or ended with status 0) with 48 clients, which got error \
         806",
        "    control daemon 690 was lost (signal 9)",
        "    client 8349 caused a fatal GPU error",
        "    client 17 held 4096 MiB over a limit of 1024 MiB, and was ended",
        "    GPU 0: one client held at most 211 of the 1024 MiB that it may",
    ];
    assert_eq!(told, own);
}

fn advised(mut report: JobReport) -> JobReport {
    report.advice = report.advise();
    report
}

/// Four clients on GPU 0 that need little of it.
fn used() -> JobReport {
    let mut report = report();
    report.gpus.truncate(1);
    report.notes.clear();
    (report.daemons[0].threads, report.daemons[0].memory) = (None, vec![(gpu(0), 4096)]);
    let mut seen = Observations {
        clients: 5,
        most_clients: 4,
        ..Observations::default()
    };
    seen.take_memory(&gpu(0), &[500, 500, 500, 601]);
    seen.usage = Some(Usage {
        began: 1001,
        step_ms: 250,
        clients: [vec![4; 50], vec![1; 6], vec![0; 4]].concat(),
        gpus: vec![GpuUsage {
            memory_mib: Some(143_771),
            busy: vec![Some(97); 60],
            busy_percent: Some(88),
            samples: 140,
            memory_busy_percent: Some(9),
            sm_percent: Some(12),
            bandwidth_percent: Some(6),
            energy_mj: Some(2_987_654),
            energy_ms: 14_000,
            ..GpuUsage::new(gpu(0))
        }],
    });
    report.said_by_user = Some(seen);
    advised(report)
}

#[test]
fn a_report_says_what_the_gpu_did_and_what_to_try() {
    let report = used();
    assert_eq!(
        lines(&report)[3..].join("\n").trim_start(),
        "\
  by the job's own mpsd: 5 clients, 4 at once
    GPU 0: at most 4 clients and 2101 MiB at a look
    GPU 0: 12 % of its multiprocessors in use, 6 % of its memory's bandwidth, 88 % of the time a kernel ran, 9 % of the time its \
     memory was read or written
    GPU 0: 2.9 kJ in 14 s, 213 W
    GPU 0: one client held at most 601 of the 4096 MiB that it may"
    );
    let aim = "advice: 12 % busy with 4 clients: try 12, or mpsctl sweep";
    assert_eq!(advice(&report).unwrap(), format!("  {aim}"));
    let told = paragraph(&report);
    assert!(told.ends_with(&format!("; {aim}")), "{told}");
    let is_long = told.contains('\n') || told.contains("clients     4");
    assert!(!is_long, "{told}");
}

#[test]
fn no_word_of_a_user_reaches_a_terminal_unmade() {
    let mut report = used();
    let text = r#"{"clients":18446744073709551615,"most_clients":18446744073709551615,"gpus":[{"uuid":"GPU-00000000",
        "most_clients":9,"most_memory_mib":18446744073709551615,"most_client_mib":18446744073709551615}],
        "usage":{"step_ms":18446744073709551615,"clients":[18446744073709551615,1],"gpus":[{"uuid":"GPU-00000000",
        "busy":[255,null],"busy_percent":255,"samples":1,"sm_percent":255,"energy_mj":18446744073709551615,"energy_ms":1,
        "memory_mib":1}]},"last_words":["\u001b[2J"],"advice":"\u001b[2J"}"#;
    let text = text.replace('\n', "");
    report.said_by_user = Observations::parse(text.as_bytes());
    assert!(report.said_by_user.is_some());
    let report = advised(report);
    for line in lines(&report).iter().chain([&paragraph(&report)]) {
        let is_short = line.chars().count() < 2000;
        assert!(is_short && !line.contains(char::is_control), "{line:?}");
    }
}

#[test]
fn a_job_that_did_not_start_has_a_report_with_its_reason() {
    let why = Refusal::new("MPS_MEM=999G", "a GPU has 80 GiB", "up to 80G");
    let report = JobReport {
        not_started: Some(why.to_string()),
        ..report()
    };
    let line = format!("job 7 of alice on n1: not started: {why}");
    assert_eq!(lines(&report).join("\n"), line);
    assert_eq!(paragraph(&report), line);
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
    let mut all = lines(&told);
    all.retain(|line| line.contains("ended by") || line.contains("out-of-memory"));
    // Root's words, then the user's.
    let expected = [
        "  client 101 (task 1 of step 0) was ended by signal 9 (SIGKILL)",
        "  client 102 (task 2 of step 0) was ended by signal 9 (SIGKILL)",
        "  task 3 of step 0 (pid 103) was ended by signal 9 (SIGKILL)",
        "  the kernel's out-of-memory killer ended processes of the job: 1",
        "    client 7 was ended by signal 9 (SIGKILL)",
    ];
    all.sort_by_key(|line| line.starts_with("    "));
    assert_eq!(all, expected);
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
    // A drain that got through at the second end is this job's, even if the first was lost.
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

#[test]
fn times_are_short() {
    let told = [0, 15_999, 119_000, 125_000, 12_600_000].map(time);
    assert_eq!(told, ["0 s", "15 s", "119 s", "2 min", "3.5 h"]);
}
