//! The MPS that jobs of one user share on a GPU. It has a job's life under an id of its own
//! ([`JobId::shared`]), with journal, record and lock. A list has the jobs that share it. The first
//! job begins it, and the last job to leave ends it.
//!
//! A job enters the list before it uses the MPS, and leaves it before the end of the MPS removes
//! anything. A program that finds an MPS without a list ends it. The list is changed only under the
//! lock of the MPS, which is taken after the job's own lock and before the lock of a GPU.

use super::evidence;
use super::findings::{FailedStart, Findings};
use super::journal::Journal;
use super::node::{LockGuard, Member, Node, Role, Rung, Severity};
use super::store::Store as _;
use crate::plan::effects::Plan;
use mpsd_core::failure::Undetermined;
use mpsd_core::{Failure, GpuUuid, JobId};
use std::collections::BTreeSet;
use std::time::Duration;

/// Another job may end the MPS between two tries.
const TRIES: usize = 5;
/// Time for the lock of an MPS that is being begun.
const MOMENT: Duration = Duration::from_secs(1);
/// Time for a process that does not belong into the cgroup of a shared MPS to end.
const SWEEP_TIME: Duration = Duration::from_secs(1);

/// Lets `job` join the shared MPS `id`, and returns the journal of the MPS. If the MPS is not
/// there, `begin` begins it under its lock. `undo` takes it down.
pub(super) fn join<N: Node>(
    node: &mut N,
    job: &JobId,
    id: &JobId,
    begin: impl Fn(&mut N, LockGuard) -> Result<Journal, FailedStart>,
    undo: impl Fn(&mut N, &Journal) -> Findings,
) -> Result<Journal, FailedStart> {
    for _ in 0..TRIES {
        let held = node.open_job(id)?;
        let mut sharers = node.read_sharers(id)?;
        let journal = node.read_journal(id)?;
        let is_up = journal.as_ref().is_some_and(|journal| is_up(node, journal));
        if sharers.insert(job.clone()) {
            node.write_sharers(id, &sharers)?;
        }
        let Some(mut journal) = journal else {
            return begin(node, held);
        };
        if is_up {
            return Ok(journal);
        }
        sharers.remove(job);
        journal.sharers.extend(sharers);
        let line = format!("shared MPS {id}: it has ended: taken down, and begun again");
        node.log(Severity::Info, &line);
        let why = "what is left of it cannot be taken down";
        undo(node, &journal).allow_start(format!("shared MPS {id}"), why)?;
        // The teardown removed the directory, and the lock with it.
    }
    Err(Undetermined::new(format!("shared MPS {id}"), "it ends again and again").into())
}

/// Whether a job with this plan only joins, and nothing is to be begun. The server of a shared MPS
/// keeps the driver loaded and its GPU undivided, so what the ledger says of the GPU holds.
pub(super) fn are_up(node: &mut impl Node, plan: &Plan) -> bool {
    let mut is_up = |plan: &Plan| {
        let journal = node.read_journal(&plan.record.job).ok().flatten();
        journal.is_some_and(|journal| is_up(node, &journal))
    };
    !plan.shared_plans.is_empty() && plan.shared_plans.iter().all(&mut is_up)
}

/// Whether the control daemon that root has proved still runs, which starts a lost server again, or
/// one that took its place after a job told it to quit. Without a list the end of the MPS has
/// begun.
pub fn is_up(node: &mut impl Node, journal: &Journal) -> bool {
    if !node.is_there(&node.job_files(journal.job()).sharers()) {
        return false;
    }
    let serves = |m: &Member| m.role == Role::Control && !m.is_defunct() && m.state != 'T';
    // A start that was killed before its proof left a daemon that nobody has proved.
    let was_up = !journal.proved.is_empty();
    node.known_members(journal).iter().any(serves)
        || was_up && node.members(journal).iter().any(serves)
}

/// Takes the job of `sharer` out of its user's MPS on `gpu`, and ends its clients there. The last
/// job ends the MPS, by `undo`, with `time` for its ladder.
pub(super) fn leave<N: Node>(
    node: &mut N,
    sharer: &Journal,
    gpu: &GpuUuid,
    time: Duration,
    undo: impl Fn(&mut N, &Journal) -> Findings,
) -> Findings {
    let id = JobId::shared(sharer.uid(), gpu);
    take_out(node, &id, Some(sharer), time, undo)
}

/// Takes `sharer` out of the list of `id`, and all jobs that do not share it.
pub(super) fn take_out<N: Node>(
    node: &mut N,
    id: &JobId,
    sharer: Option<&Journal>,
    time: Duration,
    undo: impl Fn(&mut N, &Journal) -> Findings,
) -> Findings {
    let mut findings = Findings::default();
    let done = try_take_out(node, id, sharer, time, undo, &mut findings);
    findings.take(done);
    findings
}

fn try_take_out<N: Node>(
    node: &mut N,
    id: &JobId,
    sharer: Option<&Journal>,
    time: Duration,
    undo: impl Fn(&mut N, &Journal) -> Findings,
    findings: &mut Findings,
) -> Result<(), Failure> {
    if !node.has_shared(id) {
        return Ok(());
    }
    let leaves = sharer.map(|sharer| sharer.job());
    let begins = begins(node, id, leaves);
    let moment = MOMENT.min(node.settings().ends.remaining() / 6);
    let held = match begins {
        true => node.lock_shared(id, moment),
        false => node.lock_job(id),
    };
    // The job that begins it is in the list, so its own end takes out those that have left
    // meanwhile.
    if begins && let Err(Failure::Undetermined(_)) = held {
        let note =
            format!("shared MPS {id} is being begun for another job: its list is written later");
        findings.notes.push(note);
        return Ok(());
    }
    let _held = held?;
    let before = node.read_sharers(id)?;
    let mut sharers = before.clone();
    sharers.retain(|job| Some(job) != leaves && shares(node, job, id));
    let shared = node.read_journal(id)?;
    if sharers.is_empty() {
        node.write_sharers(id, &sharers)?;
        return match shared {
            Some(mut shared) => {
                shared.sharers.extend(before);
                shared.ladder = Some(time);
                node.prepare_nvml(&shared.gpu_uuids());
                findings.sharers.extend(shared.sharers.clone());
                findings.merge(undo(node, &shared));
                Ok(())
            }
            None => node.remove_job(id),
        };
    }
    if let Some(shared) = &shared {
        if let Some(sharer) = sharer {
            node.end_clients(shared, sharer);
        }
        sweep(node, shared, findings);
        remember_hang(node, shared, &before);
    }
    if sharers != before {
        let gone: Vec<&str> = before.difference(&sharers).map(JobId::as_str).collect();
        findings
            .notes
            .push(format!("job {} has left shared MPS {id}", gone.join(", ")));
        match node.write_sharers(id, &sharers) {
            // An end needs no room.
            Err(Failure::Undetermined(why)) => findings.notes.push(format!(
                "the jobs of shared MPS {id} are listed again at the next end: {why}"
            )),
            written => written?,
        }
    }
    Ok(())
}

/// Whether the start of a job other than `leaves` may hold the lock of the MPS `id` until its
/// proof. Its user can stop it, and no end waits for that.
fn begins(node: &mut impl Node, id: &JobId, leaves: Option<&JobId>) -> bool {
    if !node.is_held(id) {
        return false;
    }
    let sharers = node.look_at_sharers(id).unwrap_or_default();
    let mut others = sharers.iter().filter(|job| Some(*job) != leaves);
    others.any(|job| shares(node, job, id) && !node.is_ready(job))
}

/// Whether the journal of `job` says that it shares the MPS `id`. The journal is written before the
/// job enters the list. A job that has left, but could not be taken out of the list, has no
/// journal, or that of a later run.
fn shares(node: &mut impl Node, job: &JobId, id: &JobId) -> bool {
    let is_this = |journal: Journal| {
        journal
            .joined_gpus()
            .any(|gpu| JobId::shared(journal.uid(), gpu) == *id)
    };
    // A journal that cannot be read may say so.
    node.read_journal(job)
        .map_or(true, |journal| journal.is_some_and(is_this))
}

/// A hang becomes evidence only at the end of the MPS. A drain then names the jobs that shared it
/// when it began to hang.
fn remember_hang(node: &mut impl Node, shared: &Journal, sharers: &BTreeSet<JobId>) {
    let sharers = match (evidence::is_hung(node, shared), shared.sharers.is_empty()) {
        (true, true) => sharers.clone(),
        (false, false) => BTreeSet::new(),
        _ => return,
    };
    let shared = shared.clone();
    // Only a drain's reason has them, so a failure is no finding.
    let _ = node.write_journal(&Journal { sharers, ..shared });
}

/// Ends what is in the cgroup of a shared MPS and is none of its programs: it would outlive its
/// job's limits.
fn sweep(node: &mut impl Node, shared: &Journal, findings: &mut Findings) {
    let mut others = node.known_members(shared);
    others.retain(|member| member.role == Role::Other && !member.is_defunct());
    if others.is_empty() {
        return;
    }
    let processes: Vec<_> = others.iter().map(|member| member.process).collect();
    let known = node.roles(shared, &processes);
    others.retain(|member| !known.iter().any(|(process, _)| *process == member.process));
    if !others.is_empty() {
        let count = others.len();
        findings.notes.push(format!(
            "{count} processes that are not of MPS in the cgroup of shared MPS {}: killed",
            shared.job()
        ));
        node.end_strangers(&others, Rung::Kill, SWEEP_TIME);
    }
}
