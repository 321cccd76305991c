//! What a failure leads to: one line, a record for the job's tasks, a drain on proof, an exit code.

use crate::NAME;
use crate::arguments::Arguments;
use crate::job::Job;
use crate::start::Failed;
use mpsd::cli::asking::Asked;
use mpsd::cli::complain;
use mpsd::node::Node;
use mpsd::node::log::{Severity, line};
use mpsd::node::real::{Reach, RealNode};
use mpsd::scheduler::drain::{self, Place};
use mpsd::scheduler::{Host, Phase, Scheduler, Submission, ThisHost};
use mpsd::sys::deadline::Deadline;
use mpsd_core::config::Config;
use mpsd_core::failure::{FailureKind, Undetermined};
use mpsd_core::record::{Record, State};
use mpsd_core::{Failure, Fault};
use std::time::Duration;

/// How often a held prologue looks at its deadline.
const HOLD_STEP: Duration = Duration::from_millis(200);
/// What a held prologue keeps of its time, to end by itself.
const HOLD_MARGIN: Duration = Duration::from_secs(1);

/// A start failed: says it, drains on proof, and returns the exit code. With `--record` the job's tasks learn it too.
pub fn of_failure(job: &Job, failed: &Failed, deadline: Deadline) -> u8 {
    say(job, &failed.failure);
    let drained = drain_for(job, failed);
    let to_tasks = is_left_to_tasks(&job.asked.submission, &failed.failure);
    if job.record || to_tasks {
        record(job, &failed.failure);
    }
    if to_tasks {
        return 0;
    }
    requeue(job, &failed.failure);
    if failed.failure.kind() != FailureKind::Refusal && drained != Some(true) {
        hold(job, deadline);
    }
    failed.failure.exit_code()
}

/// Whether this is a refusal, or undetermined, on a Torque sister. A prologue.parallel that fails takes its node down and has
/// the job requeued for ever (facts: pbs-live, "Sister nodes"), and no user's mistake or malice may do that. The mother
/// superior refuses the same request where its user reads it; what went wrong on this node alone, the tasks that come here
/// learn from the record.
pub fn is_left_to_tasks(submission: &Submission, failure: &Failure) -> bool {
    submission.scheduler == Scheduler::Torque
        && submission.phase == Phase::ParallelPrologue
        && failure.kind() != FailureKind::Fault
}

/// As [`of_failure`] for the process that goes on after the prologue returned: nobody reads its exit code.
pub fn of_detached(arguments: &Arguments, job: &Job, failed: &Failed, _deadline: Deadline) {
    say(job, &failed.failure);
    drain_for(job, failed);
    if arguments.record {
        record(job, &failed.failure);
    }
    requeue(job, &failed.failure);
}

/// A failure before there was a job to speak of: an unusable configuration, an unknown user.
pub fn of_unprepared(arguments: &Arguments, asked: &Asked, failure: &Failure) -> u8 {
    let text = format!("job {}: {failure}", asked.submission.job);
    complain(NAME, &text);
    line(NAME, severity(failure), &format!("{}: {text}", failure.kind()));
    if arguments.record {
        record_unprepared(arguments, &asked.submission, failure);
    }
    failure.exit_code()
}

fn severity(failure: &Failure) -> Severity {
    match failure.kind() {
        FailureKind::Refusal => Severity::Info,
        FailureKind::Undetermined => Severity::Warning,
        FailureKind::Fault => Severity::Error,
    }
}

fn say(job: &Job, failure: &Failure) {
    let text = format!("job {}: {failure}", job.asked.submission.job);
    complain(NAME, &text);
    line(NAME, severity(failure), &format!("{}: {text}", failure.kind()));
}

/// Drains for the first fault that does; `None`: nothing to drain for, or the site drains nothing. Some(false): the
/// scheduler did not take it.
fn drain_for(job: &Job, failed: &Failed) -> Option<bool> {
    for note in &failed.findings.notes {
        line(
            NAME,
            Severity::Info,
            &format!("job {}: {note}", job.asked.submission.job),
        );
    }
    let own: Option<&Fault> = match &failed.failure {
        Failure::Fault(fault) => Some(fault),
        Failure::Refusal(_) | Failure::Undetermined(_) => None,
    };
    let fault = own
        .into_iter()
        .chain(&failed.findings.faults)
        .find(|fault| fault.drains())?;
    if !job.settings.drain.enabled {
        return None;
    }
    let place = place(job);
    let id = &job.asked.submission.job;
    let (text, delivered) = drain::deliver(
        &job.settings.paths,
        &place,
        &job.settings.drain.prefix,
        id,
        fault,
        failed.gpus.clone(),
    );
    line(NAME, Severity::Error, &text);
    complain(NAME, &text);
    Some(delivered)
}

fn place(job: &Job) -> Place<'_> {
    Place {
        scheduler: job.asked.submission.scheduler,
        site: job.site(),
        node: &job.node,
        slurm_conf: std::env::var("SLURM_CONF").ok(),
    }
}

/// Slurm drains a node whose prolog fails, and nothing proves that this one is broken: so the prolog succeeds, and the batch
/// job is put back into the queue from here. A job of srun or salloc cannot be; its tasks are refused by the record.
fn requeue(job: &Job, failure: &Failure) {
    let submission = &job.asked.submission;
    let ours = submission.scheduler == Scheduler::Slurm && !submission.step && job.settings.slurm.requeue;
    if !ours || failure.kind() != FailureKind::Undetermined {
        return;
    }
    let text = match place(job).slurm().requeue(&submission.job) {
        Ok(()) => format!("job {}: put back into the queue", submission.job),
        Err(why) => format!("job {}: not put back into the queue: {why}", submission.job),
    };
    line(NAME, Severity::Info, &text);
}

/// Torque requeues a job whose prologue exits 2 four times a second, for ever (facts: pbs-live, "What bites"). Where
/// the node could not be taken out of service, the only brake left is to end late.
fn hold(job: &Job, deadline: Deadline) {
    if job.asked.submission.scheduler != Scheduler::Torque || job.asked.submission.interactive {
        return;
    }
    line(
        NAME,
        Severity::Warning,
        "the exit is held back until the deadline, or Torque would try again at once",
    );
    let end = deadline.less(HOLD_MARGIN);
    while end.sleep(HOLD_STEP) {}
}

/// Leaves the failure for the job's tasks.
fn record(job: &Job, failure: &Failure) {
    let reach = job.reach(Duration::from_secs(5));
    write_record(reach, &job.asked.submission, job.user.uid, failure);
}

/// As [`record`], when only the scheduler's words are known.
pub fn record_unprepared(arguments: &Arguments, submission: &Submission, failure: &Failure) {
    let node = submission
        .node
        .clone()
        .filter(|n| !n.is_empty())
        .unwrap_or_else(|| ThisHost.name());
    let Some(settings) = Config::load(&arguments.config)
        .ok()
        .and_then(|c| c.for_node(&node, &[]).ok())
    else {
        return;
    };
    let limit = Duration::from_secs(5);
    write_record(
        Reach::of(NAME, &settings, limit, limit / 3),
        submission,
        0,
        failure,
    );
}

fn write_record(reach: Reach, submission: &Submission, uid: u32, failure: &Failure) {
    let state = if failure.kind() == FailureKind::Refusal {
        State::Refused
    } else {
        State::Failed
    };
    let mut record = Record::closed(submission.job.clone(), uid, state, failure.to_string());
    // Slurm's plugin fails a prolog, and so drains, on the kind `fault`; an unusable configuration does not drain.
    record.kind = Some(match failure {
        Failure::Fault(fault) if !fault.drains() => FailureKind::Undetermined,
        other => other.kind(),
    });
    let written = RealNode::new(reach).and_then(|mut node| {
        let _held = node.open_job(&submission.job)?;
        node.write_record(&record)
    });
    if let Err(error) = written {
        let lost = Undetermined::new("record for the job's tasks", error.to_string());
        line(NAME, Severity::Warning, &lost.to_string());
    }
}
