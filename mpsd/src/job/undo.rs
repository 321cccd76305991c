//! Undoes what a job's journal says was begun. Goes on after errors, can be repeated, and says what
//! it found.

use super::claim;
use super::evidence;
use super::findings::Findings;
use super::journal::Journal;
use super::node::{Member, Node, Role, Rung};
use super::shared;
use super::store::Store as _;
use crate::plan::effects::Effect;
use mpsd_core::text::{self, list};
use mpsd_core::{GpuUuid, JobId};
use std::time::{Duration, Instant};

/// A job that shares several MPS splits the ladder's time among them, into at most this many parts.
/// A node rarely has more GPUs.
const MOST_LADDERS: usize = 8;

/// Undoes what `journal` says was begun, and removes the job's directory when all of it is undone.
/// The caller holds the job's lock.
///
/// What others need comes first, and what a user can make slow comes last: our own processes,
/// accounts and compute modes, then strangers, then what the user left in files.
pub fn undo(node: &mut impl Node, journal: &Journal) -> Findings {
    let mut findings = undo_effects(node, journal);
    remove_or_mark(node, journal, &mut findings);
    findings
}

/// Removes the job's directory if its effects are undone, with what an end has noted in it.
pub(super) fn remove_or_mark(node: &mut impl Node, journal: &Journal, findings: &mut Findings) {
    if findings.is_clean() {
        findings.take(node.remove_job(journal.job()));
    } else if !journal.has_remains {
        let marked = Journal {
            has_remains: true,
            ..journal.clone()
        };
        // Only metrics read this mark, so a failure is no finding.
        let _ = node.write_journal(&marked);
    }
}

/// As [`undo`], but the job's directory stays, with its lock.
pub(super) fn undo_effects(node: &mut impl Node, journal: &Journal) -> Findings {
    let mut findings = Findings::default();
    let started = journal.has_begun(&Effect::StartSupervisor);
    if started {
        // From here on our own teardown ends the daemons. `mpsd` must not report that as a loss.
        node.take_observations(journal.job());
        stop_own(node, journal, &mut findings);
    }
    // One MPS ends after the other, and their user may have stopped them all.
    let many = journal.joined_gpus().count().clamp(1, MOST_LADDERS);
    let time = node.settings().teardown / u32::try_from(many).unwrap_or(1);
    for effect in journal.to_undo() {
        if let Effect::JoinShared { gpu } = effect {
            findings.merge(shared::leave(node, journal, gpu, time, undo));
        }
        // Leaving the account also restores the compute mode, so `SetComputeMode` needs no step of
        // its own.
        if let Effect::ClaimGpu { gpu } = effect {
            findings.take_note(claim::leave(node, journal.job(), gpu));
        }
    }
    if started {
        stop_strangers(node, journal, &mut findings);
    }
    // A server starts only after its GPU is claimed. Without a claim there is no server to look
    // for, and NVML is not asked.
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

/// Takes jobs that do not share it out of the list of the shared MPS `id`, and ends it if no job
/// shares it. The notes say what was done.
pub fn end_unshared(node: &mut impl Node, id: &JobId) -> Findings {
    let time = node.settings().teardown;
    shared::take_out(node, id, None, time, undo)
}

fn stop_own(node: &mut impl Node, journal: &Journal, findings: &mut Findings) {
    let began = Instant::now();
    let time = journal.ladder.unwrap_or(node.settings().teardown);
    let mut left = living(node.known_members(journal));
    // A process whose role is not known may be a control daemon.
    let control = left
        .iter()
        .any(|m| matches!(m.role, Role::Control | Role::Other));
    let kept = !left.is_empty() && node.are_locked(journal);
    for rung in [Rung::Polite, Rung::Terminate, Rung::Kill] {
        // A daemon that is asked to end removes its sockets. It would wait for a kept lock beyond
        // SIGKILL.
        if left.is_empty() || (kept && rung != Rung::Kill) || (rung == Rung::Polite && !control) {
            continue;
        }
        if rung != Rung::Polite {
            findings.notes.push(format!("{rung:?} for {}", list(&left)));
        }
        left = living(node.climb(journal, rung, rung.time(time)));
    }
    say_survivors(node, journal, left, began, findings);
}

/// Ends processes that run NVIDIA's files for this job and are not in the journal. A prologue may
/// have been killed before it wrote a pid down, or a control daemon may have started more servers.
fn stop_strangers(node: &mut impl Node, journal: &Journal, findings: &mut Findings) {
    let time = journal.ladder.unwrap_or(node.settings().teardown) / 2;
    let began = Instant::now();
    for rung in [Rung::Terminate, Rung::Kill] {
        let left = living(node.strangers(journal));
        if left.is_empty() {
            return;
        }
        findings.notes.push(format!("{rung:?} for {}", list(&left)));
        node.end_strangers(&left, rung, rung.time(time));
    }
    let survivors = living(node.strangers(journal));
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

/// Reports contexts of the job's user on a GPU of the job. One is killed only if the site wants
/// that and root proves that it is this job's. A GPU that does not answer is a fault.
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
            node.end_strangers(client.as_slice(), Rung::Kill, Duration::ZERO);
        }
    }
}
