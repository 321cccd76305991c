//! Undoes what a job's journal says was begun. Goes on after errors, can be repeated, and says what
//! it found.

use super::claim;
use super::evidence;
use super::findings::Findings;
use super::journal::Journal;
use super::node::{Member, Node, Role, Rung};
use super::store::Store as _;
use crate::plan::effects::Effect;
use mpsd_core::text::{self, list};
use mpsd_core::{Failure, GpuUuid, JobId};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// A job that shares several MPS splits the ladder's time among them. A node rarely has more GPUs.
const MOST_LADDERS: usize = 8;
/// Time for the lock of a shared MPS that is being begun.
const MOMENT: Duration = Duration::from_secs(1);
/// Time for a foreign process in the cgroup of a shared MPS to end.
const SWEEP_TIME: Duration = Duration::from_secs(1);

/// Removes the job's directory when all is undone. The caller holds the job's lock.
///
/// What others need comes first, and what a user can make slow comes last: our own processes,
/// accounts and compute modes, then strays, then what the user left in files.
pub fn undo(node: &mut impl Node, journal: &Journal) -> Findings {
    undo_start(node, journal).0
}

/// The same, and whether the job ended during its start: the mark of that goes with the directory.
pub(super) fn undo_start(node: &mut impl Node, journal: &Journal) -> (Findings, bool) {
    let mut findings = undo_effects(node, journal);
    let is_over = node.is_cancelled(journal.job());
    remove_or_mark(node, journal, &mut findings);
    (findings, is_over)
}

fn remove_or_mark(node: &mut impl Node, journal: &Journal, findings: &mut Findings) {
    if findings.is_clean() {
        findings.take(node.remove_job(journal.job()));
    } else if !journal.has_remains {
        let marked = Journal {
            has_remains: true,
            ..journal.clone()
        };
        // Only status, metrics and reconcile read it: no finding.
        let _ = node.write_journal(&marked);
    }
}

/// As [`undo`], but the job's directory stays, with its lock.
pub(super) fn undo_effects(node: &mut impl Node, journal: &Journal) -> Findings {
    let mut findings = Findings::default();
    let started = journal.has_begun(&Effect::StartSupervisor);
    if started {
        // `mpsd` must not report as a loss that our own teardown ends the daemons.
        node.take_observations(journal.job());
        stop_own(node, journal, &mut findings);
    }
    // One MPS ends after the other, and their user may have stopped them all.
    let many = journal.joined_gpus().count().clamp(1, MOST_LADDERS);
    let time = node.settings().teardown / u32::try_from(many).unwrap_or(1);
    for effect in journal.to_undo() {
        if let Effect::JoinShared { gpu } = effect {
            let id = JobId::shared(journal.uid(), gpu);
            let left = leave_shared(node, &id, Some(journal), time, &mut findings);
            findings.take(left);
        }
        // Leaving also restores the compute mode, so `SetComputeMode` needs no step of its own.
        if let Effect::ClaimGpu { gpu } = effect {
            match claim::leave(node, journal.job(), gpu) {
                Ok(note) => findings.notes.extend(note),
                Err(failure) => findings.take(Err(failure)),
            }
        }
    }
    if started {
        stop_strays(node, journal, &mut findings);
    }
    // A server starts only after its GPU is claimed.
    let claims = |effect: &Effect| matches!(effect, Effect::ClaimGpu { .. });
    if started && journal.to_undo().any(claims) {
        for gpu in &journal.record().gpus {
            look_for_contexts(node, journal, &gpu.uuid, &mut findings);
        }
    }
    if journal.has_begun(&Effect::MakeCgroup) {
        findings.take(node.remove_cgroup(journal));
    }
    for effect in journal.to_undo() {
        if let Effect::MakeDirectories { daemon } = effect {
            findings.take(node.remove_directories(journal, *daemon));
        }
    }
    findings
}

pub fn end_unused(node: &mut impl Node, id: &JobId) -> Findings {
    let (mut findings, time) = (Findings::default(), node.settings().teardown);
    let done = leave_shared(node, id, None, time, &mut findings);
    findings.take(done);
    findings
}

/// Takes the job of `sharer`, and jobs that no longer share it, off the list of the shared MPS
/// `id`, and ends the clients of `sharer`. Without a job left the MPS ends, with `time` for its
/// ladder.
fn leave_shared(
    node: &mut impl Node,
    id: &JobId,
    sharer: Option<&Journal>,
    time: Duration,
    findings: &mut Findings,
) -> Result<(), Failure> {
    if !node.has_shared(id) {
        return Ok(());
    }
    let leaves = sharer.map(Journal::job);
    let begins = begins(node, id, leaves);
    let moment = MOMENT.min(node.settings().ends.remaining() / 6);
    let held = match begins {
        true => node.lock_shared(id, moment),
        false => node.lock_job(id),
    };
    // The end of the job that begins it takes out those that have left meanwhile.
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
        let note = format!("job {} has left shared MPS {id}", gone.join(", "));
        findings.notes.push(note);
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

/// Whether the start of a job other than `leaves` may hold the lock of the MPS until its proof. Its
/// user can stop it, and no end waits for that.
fn begins(node: &mut impl Node, id: &JobId, leaves: Option<&JobId>) -> bool {
    if !node.is_held(id) {
        return false;
    }
    let sharers = node.look_at_sharers(id).unwrap_or_default();
    let mut others = sharers.iter().filter(|job| Some(*job) != leaves);
    others.any(|job| shares(node, job, id) && !node.is_ready(job))
}

/// Whether `job` shares `id` by its journal, which is written before it enters the list. A job that
/// has left, but could not be taken out of the list, has no journal, or that of a later run.
fn shares(node: &mut impl Node, job: &JobId, id: &JobId) -> bool {
    let is_this = |journal: Journal| {
        let mut gpus = journal.joined_gpus();
        gpus.any(|gpu| JobId::shared(journal.uid(), gpu) == *id)
    };
    // A journal that cannot be read may say so.
    node.read_journal(job)
        .map_or(true, |journal| journal.is_some_and(is_this))
}

/// A drain at the end of the MPS names the jobs that shared it when it began to hang.
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
        node.end_each(&others, Rung::Kill, SWEEP_TIME);
    }
}

fn stop_own(node: &mut impl Node, journal: &Journal, findings: &mut Findings) {
    let began = Instant::now();
    let time = journal.ladder.unwrap_or(node.settings().teardown);
    let mut left = living(node.known_members(journal));
    // A process whose role is not known may be a control daemon.
    let may_be_control = |m: &Member| matches!(m.role, Role::Control | Role::Other);
    let control = left.iter().any(may_be_control);
    let locked = !left.is_empty() && node.has_kept_directories(journal);
    for rung in [Rung::Polite, Rung::Terminate, Rung::Kill] {
        // A daemon that is asked to end removes its sockets: where a user keeps the directory's
        // lock, it would hang beyond SIGKILL.
        if left.is_empty() || (locked && rung != Rung::Kill) || (rung == Rung::Polite && !control) {
            continue;
        }
        if rung != Rung::Polite {
            findings.notes.push(format!("{rung:?} for {}", list(&left)));
        }
        left = living(node.climb(journal, rung, rung.time(time)));
    }
    say_survivors(node, journal, left, began, findings);
}

/// A prologue may have been killed before it wrote a pid down, or a control daemon may have started
/// more servers.
fn stop_strays(node: &mut impl Node, journal: &Journal, findings: &mut Findings) {
    let time = journal.ladder.unwrap_or(node.settings().teardown) / 2;
    let began = Instant::now();
    for rung in [Rung::Terminate, Rung::Kill] {
        let left = living(node.strays(journal));
        if left.is_empty() {
            return;
        }
        findings.notes.push(format!("{rung:?} for {}", list(&left)));
        node.end_each(&left, rung, rung.time(time));
    }
    let survivors = living(node.strays(journal));
    say_survivors(node, journal, survivors, began, findings);
}

fn say_survivors(
    node: &mut impl Node,
    journal: &Journal,
    mut survivors: Vec<Member>,
    began: Instant,
    findings: &mut Findings,
) {
    if survivors.iter().any(|m| m.role == Role::Other) {
        let named = node.members(journal);
        for survivor in &mut survivors {
            let named = named.iter().find(|one| one.process == survivor.process);
            survivor.role = named.map_or(survivor.role, |one| one.role);
        }
    }
    for member in survivors {
        let survivor = evidence::of_survivor(node, journal, &member, began.elapsed());
        findings.undetermined.push(survivor);
    }
}

fn living(mut members: Vec<Member>) -> Vec<Member> {
    members.retain(|m| !m.is_defunct());
    members
}

/// A context of the job's user is killed only if the site wants that and root proves that it is
/// this job's. A GPU that is lost is a fault.
fn look_for_contexts(
    node: &mut impl Node,
    journal: &Journal,
    gpu: &GpuUuid,
    findings: &mut Findings,
) {
    let processes = match node.gpu_processes(gpu) {
        Ok(processes) => processes,
        Err(failure) => return findings.take(Err(failure)),
    };
    for process in processes {
        let Some(mine) = node.is_of_job(journal, process.pid) else {
            continue;
        };
        let (pid, user) = (process.pid, text::user(&journal.user));
        let of_job = if mine { ", and is of this job" } else { "" };
        let note = format!("process {pid} of {user} has a context on {gpu}{of_job}");
        findings.notes.push(note);
        if mine && journal.kill_clients {
            let client = node.member(pid, Role::Other);
            node.end_each(client.as_slice(), Rung::Kill, Duration::ZERO);
        }
    }
}
