//! A job's MPS taken down: the journal backwards. Goes on after errors, can be repeated, and says what it found.

use super::claim;
use super::evidence;
use super::journal::Journal;
use super::ladder::Rung;
use super::node::{Member, Node, Role};
use super::store::Store as _;
use crate::plan::effects::Effect;
use mpsd_core::failure::{Fault, Undetermined};
use mpsd_core::text;
use mpsd_core::{Failure, GpuUuid};
use std::time::Instant;

/// What a teardown found.
#[derive(Debug, Default)]
pub struct Findings {
    /// Evidence against the node.
    pub faults: Vec<Fault>,
    /// What did not work and proves nothing.
    pub undetermined: Vec<Undetermined>,
    /// How many of these are about other exporters' files, for which no start waits.
    pub untold: usize,
    /// Lines for the report.
    pub notes: Vec<String>,
}

impl Findings {
    /// Everything is as it was before the job.
    pub fn is_clean(&self) -> bool {
        self.faults.is_empty() && self.undetermined.is_empty()
    }

    /// The same job may begin here again.
    pub fn allows_start(&self) -> bool {
        self.faults.is_empty() && self.undetermined.len() == self.untold
    }

    /// Enters a failure, if there is one; the same one once, as a dead NVML is met at each GPU.
    pub fn take(&mut self, result: Result<(), Failure>) {
        match result {
            Ok(()) => {}
            Err(Failure::Fault(fault)) => push_new(&mut self.faults, fault),
            Err(Failure::Undetermined(u)) => push_new(&mut self.undetermined, u),
            Err(Failure::Refusal(r)) => push_new(&mut self.notes, r.to_string()),
        }
    }
}

fn push_new<T: PartialEq>(list: &mut Vec<T>, entry: T) {
    if !list.contains(&entry) {
        list.push(entry);
    }
}

/// A start that failed, with what its rollback found.
#[derive(Debug)]
pub struct Failed {
    /// Why.
    pub failure: Failure,
    /// What the rollback found; faults in here drain as well.
    pub findings: Findings,
    /// The job's GPUs, as far as they were known.
    pub gpus: Vec<String>,
    /// Its job has ended meanwhile: nobody is to be told, and nothing to be put back into a queue.
    pub job_ended: bool,
}

impl<F: Into<Failure>> From<F> for Failed {
    fn from(failure: F) -> Self {
        Self {
            failure: failure.into(),
            findings: Findings::default(),
            gpus: Vec::new(),
            job_ended: false,
        }
    }
}

/// Undoes what `journal` says was begun, and removes the job's directory when all of it is undone. The caller holds
/// the job's lock.
///
/// What others need comes first, and what a user can make slow comes last: our own processes, accounts and compute modes,
/// then strangers, who are looked at, then what the user left in files.
pub fn undo(node: &mut impl Node, journal: &Journal) -> Findings {
    let mut findings = Findings::default();
    let started = journal.has_begun(&Effect::StartDaemon);
    if started {
        // Of a rollback too: what `mpsd` sees from here on is root's own doing, and no loss that a later end may tell.
        node.take_observations(&journal.job);
        stop_own(node, journal, &mut findings);
    }
    for effect in journal.to_undo() {
        // The account says what to restore, for the claim and for the compute mode set after it.
        if let Effect::ClaimGpu { gpu } = effect {
            match claim::leave(node, &journal.job, gpu) {
                Ok(note) => findings.notes.extend(note),
                Err(failure) => findings.take(Err(failure)),
            }
        }
    }
    if started {
        stop_strangers(node, journal, &mut findings);
        for gpu in &journal.gpus {
            look_for_contexts(node, journal, &gpu.uuid, &mut findings);
        }
    }
    node.dismiss_nvml();
    if journal.has_begun(&Effect::MakeCgroup) {
        findings.take(node.remove_cgroup(journal));
    }
    for effect in journal.to_undo() {
        if let Effect::MakeDirectories { daemon } = effect {
            findings.take(node.remove_directories(journal, *daemon));
        }
    }
    // Where other lines stay, this needs the room that the user has left.
    for effect in journal.to_undo() {
        if let Effect::TellExporter { exporter, directory } = effect {
            match node.strike_job(journal, *exporter, directory) {
                Ok(note) => findings.notes.extend(note),
                Err(failure) => {
                    let before = findings.undetermined.len();
                    findings.take(Err(failure));
                    findings.untold += findings.undetermined.len() - before;
                }
            }
        }
    }
    if findings.is_clean() {
        findings.take(node.remove_job(&journal.job));
    } else if !journal.left {
        let left = true;
        // For whoever counts jobs: one that cannot be written is no finding of its own.
        let _ = node.write_journal(&Journal {
            left,
            ..journal.clone()
        });
    }
    findings
}

/// The ladder, for what root started or proved.
fn stop_own(node: &mut impl Node, journal: &Journal, findings: &mut Findings) {
    let began = Instant::now();
    let survivors = climb(node, journal, findings);
    say_survivors(node, journal, survivors, began, findings);
    let mut defunct = node.own(journal);
    defunct.retain(Member::is_defunct);
    if !defunct.is_empty() {
        findings.notes.push(format!(
            "{}: ended, and its parent has not waited for it",
            list(&defunct)
        ));
    }
}

/// What runs the vendor's files for this job without being known: of a prologue that was killed before it could write a pid
/// down, or of a control daemon that went on starting servers.
fn stop_strangers(node: &mut impl Node, journal: &Journal, findings: &mut Findings) {
    let (began, time) = (Instant::now(), node.settings().teardown / 2);
    for &rung in Rung::all(false) {
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

/// Who survived the ladder, begun at `began`, each under its name.
fn say_survivors(
    node: &mut impl Node,
    journal: &Journal,
    mut survivors: Vec<Member>,
    began: Instant,
    findings: &mut Findings,
) {
    if survivors.iter().any(|m| m.role == Role::Other) {
        let named = node.members(journal);
        let name = |m: &Member| named.iter().find(|n| n.process == m.process).map(|n| n.role);
        survivors
            .iter_mut()
            .for_each(|m| m.role = name(m).unwrap_or(m.role));
    }
    for member in survivors {
        let survivor = evidence::of_survivor(node, journal, &member, began.elapsed());
        findings.undetermined.push(survivor);
    }
}

/// Climbs the ladder as far as it must; who is left has survived its last rung.
fn climb(node: &mut impl Node, journal: &Journal, findings: &mut Findings) -> Vec<Member> {
    let time = node.settings().teardown;
    let mut left = living(node.own(journal));
    // One whose role is not known may be a control daemon.
    let control = |m: &Member| matches!(m.role, Role::Control | Role::Other);
    let rungs = match !left.is_empty() && node.are_locked(journal) {
        // Asked to end, a daemon removes its sockets, and would wait for the lock beyond SIGKILL.
        true => &[Rung::Kill],
        false => Rung::all(left.iter().any(control)),
    };
    for &rung in rungs {
        if left.is_empty() {
            break;
        }
        if rung != Rung::Polite {
            findings.notes.push(format!("{rung:?} for {}", list(&left)));
        }
        left = living(node.climb(journal, rung, rung.time(time)));
    }
    left
}

fn living(mut members: Vec<Member>) -> Vec<Member> {
    members.retain(|m| !m.is_defunct());
    members
}

fn list(members: &[Member]) -> String {
    let all: Vec<String> = members.iter().map(Member::to_string).collect();
    all.join(", ")
}

/// Contexts of the job's user on a GPU of the job. One that no other job explains is reported; it is killed only where
/// the site wants that and root proves whose it is. A GPU that does not answer is a fault.
fn look_for_contexts(node: &mut impl Node, journal: &Journal, gpu: &GpuUuid, findings: &mut Findings) {
    let processes = match node.gpu_processes(gpu) {
        Ok(processes) => processes,
        Err(failure) => return findings.take(Err(failure)),
    };
    for process in processes {
        if node.uid_of(process.pid) != Some(journal.uid) {
            continue;
        }
        let mine = node.is_of_job(journal, process.pid);
        findings.notes.push(format!(
            "process {} of {} has a context on {gpu}{}",
            process.pid,
            text::user(&journal.user),
            if mine { ", and is of this job" } else { "" }
        ));
        if mine && journal.kill_clients {
            node.kill_client(process.pid);
        }
    }
}
