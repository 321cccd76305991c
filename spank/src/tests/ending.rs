//! What the user of a task that has ended is told of its MPS.

use super::double::{BATCH, NodeDouble, Process, SlurmDouble, ended, record};
use crate::handle::{Item, Level};
use crate::plugin::Callback;
use mpsd_core::by_site::BySite;
use mpsd_core::killed::KilledTask;
use mpsd_core::observations::Observations;
use mpsd_core::record::{Daemon, Record, RecordState};
use mpsd_core::usage::{GpuUsage, Usage};

const LOST: &str = "server 12 died";

/// A slurmstepd whose four tasks have begun; then its node has last words.
fn begin<'a>(slurm: SlurmDouble, node: &'a NodeDouble, flags: &str) -> Process<'a> {
    let process = Process::begin(slurm, node, "", flags).0;
    *node.words.borrow_mut() = vec![LOST];
    process
}

fn exit(process: &mut Process, statuses: &[u32]) {
    for status in statuses {
        process.slurm.items.insert(Item::TaskExitStatus, *status);
        process.call(Callback::TaskExit);
    }
}

fn told(process: &Process) -> Vec<String> {
    process.slurm.at_level(Level::Notice)
}

#[test]
fn the_first_task_that_fails_is_told_why_and_no_other_is() {
    for step in [0, BATCH] {
        let node = NodeDouble::ready();
        let mut process = begin(SlurmDouble::step(step), &node, "mps");
        exit(&mut process, &[0]);
        assert!(process.slurm.is_silent(), "it ended well");
        exit(&mut process, &[256, 256]);
        let line = "job 4711: on n1 its mpsd says: server 12 died";
        assert_eq!(told(&process), [line]);
    }
    // Also of a daemon of the step's own.
    let of_step = Some(record("4711.3", RecordState::Ready));
    let node = NodeDouble::new().answering(ended(0, ""), of_step);
    let mut process = begin(SlurmDouble::step(3), &node, "mps");
    exit(&mut process, &[256]);
    assert_eq!(told(&process).len(), 1);
}

#[test]
fn a_job_that_its_site_brought_in_reads_nothing_unless_its_step_asks() {
    for (flags, lines) in [("", 0), ("mps", 2)] {
        let mut of_site = record("4711", RecordState::Ready);
        (of_site.by_site, of_site.report) = (Some(BySite::default()), true);
        let mut node = NodeDouble::new().with_record(of_site);
        node.observations = Some(Observations::default());
        let mut process = begin(SlurmDouble::step(0), &node, flags);
        exit(&mut process, &[0, 0, 256, 9]);
        assert_eq!(told(&process).len(), lines, "{flags}: {:?}", told(&process));
    }
}

#[test]
fn the_last_task_waits_for_what_mpsd_has_not_read_yet() {
    let node = NodeDouble::ready();
    let mut process = begin(SlurmDouble::step(0), &node, "mps");
    node.words.take();
    exit(&mut process, &[9; 3]);
    assert!(process.slurm.is_silent());
    *node.words.borrow_mut() = vec![LOST];
    node.late.set(true);
    exit(&mut process, &[9]);
    assert_eq!(told(&process).len(), 1);
}

#[test]
fn a_task_of_a_job_without_mps_is_told_nothing_and_costs_one_read_if_it_fails() {
    for step in [0, BATCH] {
        let node = NodeDouble::new();
        let mut process = begin(SlurmDouble::step(step), &node, "");
        let before = node.reads.get();
        exit(&mut process, &[0; 4]);
        assert_eq!(node.reads.get(), before);
        exit(&mut process, &[256]);
        assert_eq!(node.reads.get(), before + 1);
        assert!(process.slurm.is_silent());
    }
}

/// A step that opted out, and another user's job with the same id, neither take the words nor wait,
/// and nothing is noted.
#[test]
fn a_step_without_that_mps_is_told_nothing_of_it() {
    for (flags, uid) in [("mps=off", 1000), ("", 1001), ("mps", 1001)] {
        let mut own = record("4711", RecordState::Ready);
        own.report = true;
        let mut node = NodeDouble::new().with_record(own);
        node.observations = Some(Observations::default());
        let slurm = SlurmDouble::step(0).with(Item::JobUid, uid);
        let slurm = slurm.with(Item::TaskPid, 8349);
        let mut process = begin(slurm, &node, flags);
        exit(&mut process, &[256, 256, 9, 9]);
        assert_eq!(told(&process), Vec::<String>::new(), "{flags} {uid}");
        assert_eq!(*node.words.borrow(), [LOST]);
        assert_eq!(*node.killed.borrow(), []);
    }
}

/// What is told at the end of four tasks. The MPS gave each client a tenth of its only GPU.
fn told_of(
    (step, first_rank): (u32, u32),
    flags: &str,
    clients: u64,
    change: impl FnOnce(&mut Record),
) -> Vec<String> {
    let mut own = record("4711", RecordState::Ready);
    own.daemons = vec![Daemon {
        threads: "10".parse().ok(),
        ..Daemon::default()
    }];
    own.gpus.truncate(1);
    let gpu = GpuUsage {
        busy_percent: Some(92),
        ..GpuUsage::new(own.gpus[0].uuid.clone())
    };
    change(&mut own);
    let mut node = NodeDouble::new().with_record(own);
    node.observations = Some(Observations {
        clients,
        most_clients: clients,
        usage: Some(Usage {
            gpus: vec![gpu],
            ..Usage::default()
        }),
        ..Observations::default()
    });
    let mut process = begin(SlurmDouble::step(step), &node, flags);
    for rank in first_rank..first_rank + 4 {
        assert!(told(&process).is_empty(), "only at the end");
        process.slurm.items.insert(Item::TaskGlobalId, rank);
        exit(&mut process, &[0]);
    }
    told(&process)
}

#[test]
fn who_asked_for_mps_reads_one_line_of_it_at_the_end_and_who_did_not_reads_none() {
    const USED: &str = "4 clients at once, GPU 92 % busy";
    const NONE: &str = "0 clients: no CUDA program used its MPS, GPU 92 % busy";
    const SHARED: &str = "4 clients at once, in all jobs that share its MPS";
    for (summary, shared, clients, task, line) in [
        (true, false, 4, (0, 0), Some(USED)),
        (true, false, 4, (BATCH, 0), Some(USED)),
        (true, false, 0, (0, 0), Some(NONE)),
        (true, true, 4, (0, 0), Some(SHARED)),
        // A step's other nodes, and a job that its site brought in.
        (true, false, 4, (0, 4), None),
        (false, false, 4, (0, 0), None),
    ] {
        let told = told_of(task, "mps", clients, |own| {
            (own.summary, own.shared) = (summary, shared);
        });
        let line = line.map(|line| format!("job 4711: on n1: {line}; mpsctl report 4711"));
        assert_eq!(told, Vec::from_iter(line));
    }
}

#[test]
fn a_report_in_the_jobs_output_ends_with_the_advice() {
    let own = "job 4711: on n1, by its own mpsd so far: ";
    let all = "job 4711: on n1, by the mpsd of all jobs that share it, so far: ";
    let aim = "; advice: 4 clients with 10 % of the threads each could use 40 % of the GPU";
    let none = "0 clients: no CUDA program used its MPS; GPU 92 % busy; advice: no CUDA program used this job's MPS";
    for (shared, clients, begin, words) in [
        (false, 4, own, aim),
        (false, 0, own, none),
        (true, 4, all, "so far: 4 clients, 4 at once"),
    ] {
        let told = told_of((0, 0), "mps mps-report", clients, |own| {
            (own.report, own.shared) = (true, shared);
        });
        assert!(told.len() == 1 && told[0].starts_with(begin), "{told:?}");
        let told = told.concat();
        assert!(told.contains(words), "{told}");
        assert_eq!(told.contains("advice"), !shared, "{told}");
        assert_eq!(told.contains("; GPU 92 % busy"), !shared, "{told}");
    }
}

#[test]
fn a_step_has_its_own_word_for_the_report() {
    for (flags, word) in [
        ("mps", "4 clients at once, GPU 92 % busy"),
        ("mps mps-report", "by its own mpsd so far: 4 clients"),
        ("mps mps-report=off", ""),
    ] {
        let told = told_of((0, 0), flags, 4, |own| own.summary = true).concat();
        assert!(told.contains(word), "{flags}: {told}");
        assert_eq!(told.is_empty(), word.is_empty(), "{flags}: {told}");
    }
}

/// A step from outside ('srun --jobid') inherits nothing of the script.
#[test]
fn a_job_with_a_script_ends_with_it() {
    for (script, step, is_told) in [(true, 7, false), (true, BATCH, true), (false, 7, true)] {
        for report in [false, true] {
            let told = told_of((step, 0), "mps", 4, |own| {
                (own.script, own.report, own.summary) = (script, report, !report);
            });
            assert_eq!(told.len(), usize::from(is_told), "{script} {step}");
        }
    }
}

#[test]
fn a_task_that_a_signal_ended_is_noted_and_one_that_ended_or_failed_is_not() {
    for (step, of) in [(0, Some(0)), (7, Some(7)), (BATCH, None)] {
        let mut node = NodeDouble::ready();
        node.oom_kills = 3;
        let mut process = begin(SlurmDouble::step(step), &node, "mps");
        // SIGKILL, ended well, failed, SIGSEGV with a core; 137 is a shell's code for a signal.
        for (rank, status) in [(3, 9), (4, 0), (5, 256), (6, 128 + 11), (7, 137 << 8)] {
            let ids = [(Item::TaskGlobalId, rank), (Item::TaskPid, 8349 + rank)];
            process.slurm.items.extend(ids);
            exit(&mut process, &[status]);
        }
        let noted = |rank: u32, signal, oom_kills| KilledTask {
            step: of,
            rank,
            pid: 8349 + rank.cast_signed(),
            signal,
            oom_kills,
        };
        let expected = [noted(3, 9, 3), noted(6, 11, 0)];
        assert_eq!(*node.killed.borrow(), expected, "{step}");
    }
}
