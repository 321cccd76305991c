//! Takes a job's MPS down: the journal backwards. Goes on after errors, can be repeated, and says what it found.

use super::journal::Journal;
use super::ladder::{Ladder, Rung};
use super::node::{Member, Node, Role};
use crate::plan::effects::Effect;
use mpsd_core::failure::{Evidence, Fault, Undetermined};
use mpsd_core::{Failure, GpuUuid, JobId};

/// What a teardown found.
#[derive(Debug, Default)]
pub struct Findings {
    /// Evidence against the node.
    pub faults: Vec<Fault>,
    /// What did not work and proves nothing.
    pub undetermined: Vec<Undetermined>,
    /// Lines for the report.
    pub notes: Vec<String>,
}

impl Findings {
    /// Everything is as it was before the job.
    pub fn is_clean(&self) -> bool {
        self.faults.is_empty() && self.undetermined.is_empty()
    }

    fn take(&mut self, result: Result<(), Failure>) -> bool {
        match result {
            Ok(()) => return true,
            Err(Failure::Fault(fault)) => self.faults.push(fault),
            Err(Failure::Undetermined(u)) => self.undetermined.push(u),
            Err(Failure::Refusal(r)) => self.notes.push(r.to_string()),
        }
        false
    }

    fn merge(&mut self, other: Self) {
        self.faults.extend(other.faults);
        self.undetermined.extend(other.undetermined);
        self.notes.extend(other.notes);
    }
}

/// Undoes what `journal` says was begun, and removes the job's directory when all of it is undone. The caller holds
/// the job's lock.
pub fn undo(node: &mut impl Node, journal: &Journal) -> Findings {
    let mut findings = Findings::default();
    for effect in journal.to_undo() {
        let undone = undo_effect(node, journal, effect);
        findings.merge(undone);
    }
    if findings.is_clean() {
        let removed = node.remove_job(&journal.job);
        findings.take(removed);
    }
    findings
}

fn undo_effect(node: &mut impl Node, journal: &Journal, effect: &Effect) -> Findings {
    let mut findings = Findings::default();
    match effect {
        Effect::StartDaemon => findings = stop_daemons(node, journal),
        Effect::MakeDirectories { daemon } => {
            let removed = node.remove_directories(journal, *daemon);
            findings.take(removed);
        }
        Effect::MakeCgroup => {
            let removed = node.remove_cgroup(journal);
            findings.take(removed);
        }
        // The account says what to restore, for this effect and for the claim before it.
        Effect::SetComputeMode { .. } => {}
        Effect::ClaimGpu { gpu } => {
            let left = leave_account(node, &journal.job, gpu, &mut findings.notes);
            findings.take(left);
        }
    }
    findings
}

/// The ladder, then the proof: nothing of ours alive, no context of the job on its GPUs.
fn stop_daemons(node: &mut impl Node, journal: &Journal) -> Findings {
    let mut findings = Findings::default();
    let ladder = Ladder::within(node.teardown_time());
    let mut left = living(node.members(journal));
    let control = left.iter().any(|m| m.role == Role::Control);
    let mut rung = Some(Ladder::first(control));
    while let Some(now) = rung {
        if left.is_empty() {
            break;
        }
        if now != Rung::Polite {
            findings.notes.push(format!("{now:?} for {}", list(&left)));
        }
        left = living(node.climb(journal, now, ladder.time(now)));
        rung = Ladder::next(now);
    }
    for member in &left {
        let what = format!("{} {}", member.role, member.process.pid);
        let why = format!(
            "state {} after {} s",
            member.state,
            node.teardown_time().as_secs()
        );
        match node.held_by_user(member) {
            Some(how) => findings
                .undetermined
                .push(Undetermined::new(what, format!("{why}: {how}"))),
            None => findings.faults.push(Fault::new(Evidence::Survivor, what, why)),
        }
    }
    let defunct: Vec<Member> = node
        .members(journal)
        .into_iter()
        .filter(Member::is_defunct)
        .collect();
    if !defunct.is_empty() {
        let line = format!("{}: ended, and its parent has not waited for it", list(&defunct));
        if journal.drain.on_defunct {
            findings
                .faults
                .push(Fault::new(Evidence::Survivor, "defunct process", line));
        } else {
            findings.notes.push(line);
        }
    }
    look_for_contexts(node, journal, &mut findings);
    findings
}

fn living(members: Vec<Member>) -> Vec<Member> {
    members.into_iter().filter(|m| !m.is_defunct()).collect()
}

fn list(members: &[Member]) -> String {
    members
        .iter()
        .map(Member::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Contexts of the job's user on its GPUs. One that no other job explains is reported; it is killed only where the
/// site wants that and root proves whose it is. A GPU that does not answer is a fault.
fn look_for_contexts(node: &mut impl Node, journal: &Journal, findings: &mut Findings) {
    for gpu in &journal.gpus {
        let processes = match node.gpu_processes(&gpu.uuid) {
            Ok(processes) => processes,
            Err(failure) => {
                findings.take(Err(failure));
                continue;
            }
        };
        for process in processes {
            if node.uid_of(process.pid) != Some(journal.uid) {
                continue;
            }
            let mine = node.is_of_job(journal, process.pid);
            findings.notes.push(format!(
                "process {} of {} has a context on {}{}",
                process.pid,
                journal.user,
                gpu.uuid,
                if mine { ", and is of this job" } else { "" }
            ));
            if mine && journal.kill_clients {
                node.kill_client(process.pid);
            }
        }
    }
}

/// Takes `job` out of the account of `gpu`; the last user restores the mode found.
///
/// # Errors
/// As the effects: the lock, NVML, the account's file.
pub fn leave_account(
    node: &mut impl Node,
    job: &JobId,
    gpu: &GpuUuid,
    notes: &mut Vec<String>,
) -> Result<(), Failure> {
    let _held = node.lock_gpu(gpu)?;
    let Some(account) = node.read_account(gpu)? else {
        // Nobody's: what is left of it is the lock that we hold.
        return node.write_account(gpu, None);
    };
    if !account.users.contains(job) {
        return Ok(());
    }
    let now = node.compute_mode(gpu)?;
    let leave = account.leave(job, now);
    if let Some(note) = leave.note {
        notes.push(format!("{gpu}: {note}"));
    }
    // The mode first: an account that is gone could not be asked again.
    if let Some(mode) = leave.restore {
        node.set_compute_mode(gpu, mode)?;
    }
    node.write_account(gpu, leave.account.as_ref())
}
