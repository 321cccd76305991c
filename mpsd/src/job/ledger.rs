//! The ledger: what root keeps of a node between jobs, in one file under one lock.
//!
//! A ledger that cannot be read, or has another version, counts as empty: no job waits for it.

use super::drain_target::DrainTarget;
use super::journal::ProcessRef;
use super::node::{Files, Members};
use mpsd_core::Inventory;
use mpsd_core::file::Durability;
use mpsd_sys::deadline::Deadline;
use serde::{Deserialize, Deserializer, Serialize};
use std::time::Duration;

pub const VERSION: u32 = 1;
const NAME: &str = "ledger";
const LOCK: &str = ".ledger.lock";
const LOCK_TIME: Duration = Duration::from_millis(500);
const LONGEST: usize = 1 << 20;
const MOST: usize = 256;
const SECRET: u32 = 0o600;

/// `/run/mpsd/ledger`, root 0600, changed under its lock only; absent while it is empty.
///
/// A GPU's account has its own file, so that jobs on different GPUs do not wait for each other. So
/// has the mark `look-again`, which systemd, Slurm's plugin and the hook of OpenPBS only look for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    version: u32,
    #[serde(default)]
    pub suspicions: Vec<Suspicion>,
    /// An NVML process that outlived SIGKILL. `mpsctl metrics` started it, so no job waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hung_worker: Option<ProcessRef>,
    /// The GPUs as NVML last told them to a job's start. Their modes may have changed.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "readable"
    )]
    pub gpus: Option<Inventory>,
}

/// Another release's form of the GPUs does not cost the rest of the ledger.
fn readable<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Inventory>, D::Error> {
    let told = Option::<serde_json::Value>::deserialize(from)?;
    Ok(told.and_then(|told| serde_json::from_slice(told.to_string().as_bytes()).ok()))
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            version: VERSION,
            suspicions: Vec::new(),
            hung_worker: None,
            gpus: None,
        }
    }
}

impl Ledger {
    pub fn read(files: &mut impl Files) -> Self {
        let path = files.settings().paths.run().join(NAME);
        let bytes = files.read(&path, LONGEST).ok().flatten();
        let ledger: Option<Self> = serde_json::from_slice(&bytes.unwrap_or_default()).ok();
        ledger
            .filter(|ledger| ledger.version == VERSION)
            .unwrap_or_default()
    }

    /// `None`: the lock was not free in time.
    fn change<F: Files>(files: &mut F, change: impl FnOnce(&mut Self, &mut F)) -> Option<Self> {
        let [path, lock] = [NAME, LOCK].map(|name| files.settings().paths.run().join(name));
        let _held = files.lock(&lock, Deadline::after(LOCK_TIME)).ok()?;
        // It may only be unreadable now, for example without a free descriptor; it must not be
        // replaced then.
        files.read(&path, LONGEST).ok()?;
        let mut ledger = Self::read(files);
        change(&mut ledger, files);
        if ledger == Self::default() {
            let _ = files.remove_file(&path);
            let _ = files.remove_file(&lock);
        } else if let Ok(text) = serde_json::to_vec(&ledger) {
            let _ = files.write(&path, &text, SECRET, Durability::OnDisk);
        }
        Some(ledger)
    }
}

/// Seconds between the two looks (`mpsd-look-again.timer`).
pub const PAUSE_S: u64 = 60;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Suspect {
    /// A process of a job's MPS that root started or proved, after SIGKILL.
    Process(ProcessRef),
    /// Root's own process that asks NVML, which gave no answer in its time.
    Nvml,
}

/// Evidence only if the driver holds it at the second look, too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspicion {
    pub suspect: Suspect,
    /// As a reason names it: `mps-server 691`.
    pub what: String,
    pub since: u64,
    #[serde(flatten)]
    pub target: DrainTarget,
}

pub(super) fn suspect(files: &mut impl Files, suspicion: &Suspicion) {
    Ledger::change(files, |ledger, _| {
        let known = &mut ledger.suspicions;
        if known.len() < MOST && !known.iter().any(|other| other.suspect == suspicion.suspect) {
            known.push(suspicion.clone());
        }
    });
    let mark = files.settings().paths.look_again();
    let _ = files.write(&mark, b"", SECRET, Durability::Placed);
}

pub(super) fn acquit(files: &mut impl Files, suspicion: Option<&Suspicion>) {
    Ledger::change(files, |ledger, files| {
        let known = &mut ledger.suspicions;
        known.retain(|other| suspicion.is_none_or(|one| other.suspect != one.suspect));
        if ledger.suspicions.is_empty() {
            // On a node without our units nothing else removes the mark.
            let mark = files.settings().paths.look_again();
            let _ = files.remove_file(&mark);
        }
    });
}

pub(super) fn remember_gpus(files: &mut impl Files, gpus: &Inventory) {
    if Ledger::read(files).gpus.as_ref() != Some(gpus) {
        Ledger::change(files, |ledger, _| ledger.gpus = Some(gpus.clone()));
    }
}

/// How many GPUs the node had when it last had all of these.
pub fn gpus_with(files: &mut impl Files, gpus: &[String]) -> Option<usize> {
    let known = Ledger::read(files).gpus?;
    let has = |name: &String| known.all().any(|gpu| gpu.uuid.as_str() == name);
    gpus.iter().all(has).then_some(known.gpus.len())
}

/// While it lives no look starts another: one a minute would fill the node.
pub fn hung_worker(node: &mut (impl Files + Members)) -> Option<ProcessRef> {
    let known = Ledger::read(node).hung_worker?;
    let still = Some(known).filter(|worker| lives(node, *worker));
    if still.is_none() {
        Ledger::change(node, |ledger, _| ledger.hung_worker = None);
    }
    still
}

pub fn remember_worker(node: &mut (impl Files + Members), worker: ProcessRef) {
    if lives(node, worker) {
        Ledger::change(node, |ledger, _| ledger.hung_worker = Some(worker));
    }
}

fn lives(node: &mut impl Members, worker: ProcessRef) -> bool {
    let now = node.process(worker.pid);
    now.is_some_and(|(process, state)| process == worker && !matches!(state, 'Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::testing::node;
    use nix::sys::wait::{Id, WaitPidFlag, waitid};
    use nix::unistd::Pid;

    #[test]
    fn what_another_release_tells_of_gpus_hides_nothing_else() {
        let text =
            r#"{"version":1,"hung_worker":{"pid":5,"start_time":6},"gpus":{"gpus":[{"index":0}]}}"#;
        let ledger: Ledger = serde_json::from_str(text).unwrap();
        assert!(ledger.hung_worker.is_some() && ledger.gpus.is_none());
    }

    #[test]
    fn only_the_very_process_that_was_killed_and_lives_is_remembered() {
        let place = tempfile::tempdir().unwrap();
        let mut node = node(place.path(), Duration::from_secs(20));
        let mut child = std::process::Command::new("/bin/sleep");
        let mut child = child.arg("60").spawn().unwrap();
        let pid = child.id().cast_signed();
        let (worker, _) = node.process(pid).unwrap();
        let mut other = worker;
        other.start_time += 1;
        remember_worker(&mut node, other);
        assert_eq!(hung_worker(&mut node), None, "its pid belongs to another");
        remember_worker(&mut node, worker);
        assert_eq!(hung_worker(&mut node), Some(worker));
        child.kill().unwrap();
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        waitid(Id::Pid(Pid::from_raw(pid)), flags).unwrap();
        assert_eq!(hung_worker(&mut node), None, "a zombie holds nothing");
        child.wait().unwrap();
    }

    #[test]
    fn a_garbled_or_newer_ledger_counts_as_empty_and_one_that_cannot_be_read_now_is_not_replaced() {
        let place = tempfile::tempdir().unwrap();
        let mut node = node(place.path(), Duration::from_secs(20));
        let file = place.path().join(NAME);
        let newer = r#"{"version":2,"hung_worker":{"pid":5,"start_time":6}}"#;
        for text in ["", "{", "[]", newer] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(Ledger::read(&mut node), Ledger::default(), "{text}");
            remember_gpus(&mut node, &Inventory::default());
            let known = Ledger::read(&mut node).gpus;
            assert_eq!(known, Some(Inventory::default()), "{text}");
            Ledger::change(&mut node, |ledger, _| ledger.gpus = None);
            let left = std::fs::read_dir(place.path()).unwrap().count();
            assert_eq!(left, 0, "{text}");
        }
        // Only the read lacks something, here the length: it may say what a job must not forget.
        let long = "{\"version\":1}".to_owned() + &" ".repeat(LONGEST);
        std::fs::write(&file, &long).unwrap();
        remember_gpus(&mut node, &Inventory::default());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), long);
    }
}
