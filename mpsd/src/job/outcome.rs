//! What a failed start leads to: one line, a record for the job's tasks, a drain on proof, an exit
//! code.

use super::evidence;
use super::findings::FailedStart;
use super::node::{LockGuard, Node, Severity};
use super::prepared::{Job, User};
use super::report::{JobOutcome, JobReport};
use super::store::Store as _;
use batch::drain::Place;
use batch::{ExitPolicy, Requeued, Submission, ThisHost};
use mpsd_core::by_site::BySite;
use mpsd_core::config::Settings;
use mpsd_core::failure::{FailureKind, Undetermined};
use mpsd_core::record::{Record, RecordState};
use mpsd_core::request::Mode;
use mpsd_core::{Failure, JobId};
use mpsd_sys::deadline::Deadline;
use std::time::Duration;

/// What a prologue that ends late keeps of its time.
const EXIT_MARGIN: Duration = Duration::from_secs(1);

/// Exit code of a start that only the node can have failed: like 2, but the try must not count
/// against the job.
pub const UNCOUNTED: u8 = 3;

#[derive(Debug)]
pub struct Failing<'a> {
    pub submission: &'a Submission,
    pub settings: &'a Settings,
    pub place: Place<'a>,
    pub user: Option<&'a User>,
    /// Set once the job was prepared: only then may a failure drain.
    pub prepared: Option<&'a Job>,
    /// A failure is left on the node for the job's tasks.
    pub tells_tasks: bool,
    pub is_recordable: bool,
    /// A caller waits for the exit code.
    pub awaited: bool,
    pub deadline: Deadline,
}

impl<'a> Failing<'a> {
    pub fn of(job: &'a Job, awaited: bool) -> Self {
        Self {
            submission: &job.submission,
            settings: &job.settings,
            place: job.place(),
            user: Some(&job.user),
            prepared: Some(job),
            tells_tasks: job.tells_tasks,
            is_recordable: true,
            awaited,
            deadline: job.deadline,
        }
    }

    fn uid(&self) -> u32 {
        self.user.map_or(0, |user| user.uid)
    }
}

/// Says it, drains on proof, tells the job's tasks, and returns the exit code.
pub fn of_failure(node: &mut impl Node, job: &Failing<'_>, failed: &FailedStart) -> u8 {
    let (submission, failure) = (job.submission, &failed.failure);
    let id = &submission.job;
    let told = &failure.clone().to_user(job.place.node);
    let by_site = job.prepared.is_some_and(|job| job.asked.by_site);
    let is_refusal = failure.kind() == FailureKind::Refusal;
    let system = batch::of(submission.scheduler);
    let to_shell = is_refusal && system.tells_refusals(submission, &job.place.location, &ThisHost);
    log(node, id, failure);
    if !to_shell && !by_site {
        complain(node, id, told);
    }
    if let Some(user) = job.user.filter(|_| !by_site) {
        let (scheduler, name) = (submission.scheduler, job.place.node);
        let report = JobReport::not_started(id, scheduler, name, user, told);
        node.keep(JobOutcome::NotStarted(&report));
    }
    for note in &failed.findings.notes {
        node.log(Severity::Info, &format!("job {id}: {note}"));
    }
    let drained = job.prepared.is_some_and(|job| drain_for(node, job, failed));
    if failed.job_ended {
        return failure.exit_code();
    }
    if by_site {
        record_without_mps(node, id, job.uid(), failure);
        return 0;
    }
    // A node that is drained already must not be taken down as well.
    let to_tasks =
        policy(submission).left_to_tasks && (drained || failure.kind() != FailureKind::Fault);
    let recorded = (job.tells_tasks || to_tasks || to_shell)
        && job.is_recordable
        && record_failure(node, id, job.uid(), told);
    if to_tasks || (to_shell && recorded) {
        return 0;
    }
    if to_shell {
        complain(node, id, told);
    }
    // Requeue first, because the controller may take all the time that is left.
    let lost = job.tells_tasks && job.is_recordable && !recorded;
    let requeued = requeue(node, job, failure, lost);
    tell(node, &job.place, submission, told, requeued.as_ref());
    let is_back = requeued.is_some_and(|done| done.failed.is_none());
    // Under other schedulers the exit code keeps the script from starting.
    if lost && !is_back && policy(submission).requeue {
        end_script(node, job);
    }
    if job.awaited && !is_refusal && !drained {
        delay_exit(node, submission, job.deadline);
    }
    let code = exit_code(submission, job.tells_tasks, failure);
    // Nothing else tells the administrator that the job waits for this node, or that its
    // configuration is unusable.
    let is_unseen = code == UNCOUNTED || is_misconfigured(failure);
    if is_unseen && !drained && job.settings.drain.enabled {
        let line = node.remark(&job.place, failure);
        line.iter()
            .for_each(|line| node.log(Severity::Warning, line));
    }
    code
}

fn is_misconfigured(failure: &Failure) -> bool {
    matches!(failure, Failure::Fault(fault) if !fault.drains())
}

/// The job did not ask, so it runs as if there were no MPS.
pub fn record_without_mps(node: &mut impl Node, id: &JobId, uid: u32, failure: &Failure) {
    let line = Mode::auto_without(&failure.to_string());
    let mut record = Record::without_mps(id.clone(), uid, RecordState::Unneeded, line);
    // Without a request no step of it tries again.
    record.by_site = Some(BySite::default());
    let held = node.open_job(id);
    if let Err(error) = write_without_mps(node, held, &record) {
        let text = format!("job {id}: 'mpsctl status' cannot say why it has no MPS: {error}");
        node.log(Severity::Warning, &text);
    }
}

/// Writes the record of a job that runs without MPS. If it cannot be written, no other record of
/// the job stays, because its tasks would wait for an MPS; what is still to be taken down does.
pub(super) fn write_without_mps(
    node: &mut impl Node,
    held: Result<LockGuard, Failure>,
    record: &Record,
) -> Result<(), Failure> {
    let id = &record.job;
    let written = match &held {
        Ok(_) => node.write_record(record),
        Err(failure) => Err(failure.clone()),
    };
    if written.is_err() {
        let is_ours = held.is_ok() || !node.is_held(id);
        let _ = match node.read_journal(id) {
            Ok(None) if is_ours => node.remove_job(id),
            _ => node.remove_record(id),
        };
    }
    written
}

/// `told`: the caller can tell which tries do not count ([`ExitPolicy::tells_tries`]).
pub fn exit_code(submission: &Submission, told: bool, failure: &Failure) -> u8 {
    match told && !failure.may_be_users() && policy(submission).tells_tries {
        true => UNCOUNTED,
        false => failure.exit_code(),
    }
}

/// Tells the job's user; a step's tasks tell it themselves. It tells aloud if no task can: in an
/// allocation, which starts none by itself, and after a fault, which ends the job before its tasks
/// start.
fn tell(
    node: &mut impl Node,
    place: &Place<'_>,
    submission: &Submission,
    failure: &Failure,
    requeued: Option<&Requeued>,
) {
    if submission.step {
        return;
    }
    let line = failure.to_string();
    let ends_unheard = !submission.interactive && !submission.sister;
    let refused = failure.kind() == FailureKind::Refusal && ends_unheard;
    let ends = matches!(failure, Failure::Fault(fault) if fault.drains());
    let aloud = ends || submission.interactive;
    let number = requeued.and_then(|requeued| requeued.number.as_ref());
    let number = number.map_or_else(String::new, |number| format!("{number}: "));
    let line = format!("{number}{line}");
    let told = node
        .controller(place)
        .tell(&submission.job, &line, aloud, refused);
    said(node, submission, told);
    if let Some(requeued) = requeued.filter(|requeued| requeued.failed.is_none()) {
        let job = &submission.job;
        let then = match requeued.held {
            true => "held: released, it starts again",
            false => "back in the queue: it starts again by itself",
        };
        let text = format!(
            "mps: job {job}: not started on {}: {line}; {then}",
            place.node
        );
        let told = node.note(place, job, &submission.user, &text);
        said(node, submission, told);
    }
}

/// For a job that was tried before.
pub fn of_success(node: &mut impl Node, job: &Job) {
    let submission = &job.submission;
    let told = node.controller(&job.place()).started(&submission.job);
    said(node, submission, told);
}

fn said(node: &mut impl Node, submission: &Submission, told: Result<(), String>) {
    if let Err(why) = told {
        let line = format!("job {}: its user is not told: {why}", submission.job);
        node.log(Severity::Info, &line);
    }
}

fn policy(submission: &Submission) -> ExitPolicy {
    batch::of(submission.scheduler).exit_policy(submission)
}

fn complain(node: &mut impl Node, job: &JobId, failure: &Failure) {
    node.complain(&format!("job {job}: {failure}"));
}

fn log(node: &mut impl Node, job: &JobId, failure: &Failure) {
    let kind = failure.kind();
    let severity = match kind {
        FailureKind::Refusal => Severity::Info,
        FailureKind::Undetermined => Severity::Warning,
        FailureKind::Fault => Severity::Error,
    };
    node.log(severity, &format!("{kind}: job {job}: {failure}"));
    node.keep(JobOutcome::Failed(kind));
}

/// Tells the prologue's caller, who may show it to the user; one who did not ask reads none.
pub fn say_of_node(node: &mut impl Node, job: &Job, line: &str) {
    if !job.asked.by_site {
        node.complain(line);
    }
}

/// Whether the node is drained now, for the failure itself or for what its rollback found.
fn drain_for(node: &mut impl Node, job: &Job, failed: &FailedStart) -> bool {
    evidence::of_silent_nvml(node, job.drain_target(Vec::new()));
    let own = match &failed.failure {
        Failure::Fault(fault) => Some(fault),
        Failure::Refusal(_) | Failure::Undetermined(_) => None,
    };
    let faults = own.into_iter().chain(&failed.findings.faults);
    let target = job.drain_target(failed.gpus.clone());
    let drained = evidence::drain(node, &target, job.location.clone(), faults);
    drained.is_some_and(|(line, delivered)| {
        say_of_node(node, job, &line);
        if delivered {
            node.keep(JobOutcome::Drained);
        }
        delivered
    })
}

/// Requeues the job if that is our task (see [`ExitPolicy::requeue`]). After a fault the plugin
/// fails the prolog by the record, which puts the job back. We do it if the record is `lost`, or if
/// the fault drains no node, such as an unusable configuration.
fn requeue(
    node: &mut impl Node,
    job: &Failing<'_>,
    failure: &Failure,
    lost: bool,
) -> Option<Requeued> {
    let slurm = &job.settings.slurm;
    let ours = policy(job.submission).requeue && slurm.requeue;
    let wanted = match failure {
        Failure::Undetermined(_) => true,
        Failure::Fault(_) => lost || is_misconfigured(failure),
        Failure::Refusal(_) => false,
    };
    if !ours || !wanted {
        return None;
    }
    let id = &job.submission.job;
    let done = node.controller(&job.place).requeue(id, slurm.requeue_limit);
    let text = match &done {
        Ok(Requeued {
            failed: Some(why), ..
        })
        | Err(why) => format!("job {id}: not put back into the queue: {why}"),
        Ok(done) => {
            let held = if done.held { ", and held there" } else { "" };
            let trouble = done.trouble.as_ref().map(|why| format!("; {why}"));
            let trouble = trouble.unwrap_or_default();
            format!("job {id}: put back into the queue{held}{trouble}")
        }
    };
    node.log(Severity::Info, &text);
    done.ok()
}

/// No record could be left for its task, so its script would run without its MPS. A step brings its
/// flags, and its own start fails (docs/facts/slurm.md#options).
fn end_script(node: &mut impl Node, job: &Failing<'_>) {
    let id = &job.submission.job;
    let untold = "its script cannot be told that it has no MPS";
    let text = match node.controller(&job.place).end_script(id) {
        Ok(false) => return,
        Ok(true) => format!("job {id}: ended, as {untold}"),
        Err(why) => format!("job {id}: {untold}, and is not ended: {why}"),
    };
    node.log(Severity::Warning, &text);
}

/// Ends late if nothing else keeps the scheduler from trying again at once
/// ([`batch::SystemFacts::retries_at_once`]). An interactive job is aborted instead.
fn delay_exit(node: &mut impl Node, submission: &Submission, deadline: Deadline) {
    if submission.interactive || !batch::of(submission.scheduler).facts().retries_at_once {
        return;
    }
    let line = "the exit is held back until the deadline, or the scheduler would try again at once";
    node.log(Severity::Warning, line);
    node.wait_until(deadline.less(EXIT_MARGIN));
}

/// Whether the failure could be left for the job's tasks.
pub fn record_failure(node: &mut impl Node, job: &JobId, uid: u32, failure: &Failure) -> bool {
    let state = match failure {
        Failure::Refusal(_) => RecordState::Refused,
        Failure::Fault(_) | Failure::Undetermined(_) => RecordState::Failed,
    };
    let mut record = Record::without_mps(job.clone(), uid, state, failure.to_string());
    // Slurm's plugin drains on the kind `fault`; an unusable configuration does not drain.
    record.of_node = !failure.may_be_users();
    record.kind = Some(match is_misconfigured(failure) {
        true => FailureKind::Undetermined,
        false => failure.kind(),
    });
    let written = node
        .open_job(job)
        .and_then(|_held| node.write_record(&record));
    if let Err(error) = &written {
        let lost = Undetermined::new("record for the job's tasks", error.to_string());
        node.log(Severity::Warning, &lost.to_string());
    }
    written.is_ok()
}
