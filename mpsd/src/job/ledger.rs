//! Root's small files in `run_dir`, each under a lock of its own: failed starts, and what waits for a second look.

use super::case::Job;
use super::journal::{Journal, ProcessRef};
use super::node::Files;
use crate::sys::deadline::Deadline;
use mpsd_core::replace::Durability;
use mpsd_core::{JobId, Scheduler};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const LOCK_TIME: Duration = Duration::from_millis(500);
/// Longest file that is read. Bytes.
const LONGEST: usize = 1 << 20;
/// How many users' failed starts are told.
const USERS: usize = 2;
const SECRET: u32 = 0o600;

/// One of these files, by its name. The file is absent while there is nothing to say.
#[derive(Debug, Clone, Copy)]
pub struct LedgerFile(pub &'static str);

impl LedgerFile {
    /// Starts that failed, by user id.
    pub const FAILED_STARTS: Self = Self("failed-starts");
    /// What waits for a second look.
    pub const SUSPICIONS: Self = Self("suspicions");

    fn path<F: Files + ?Sized>(self, files: &F) -> PathBuf {
        files.settings().paths.run().join(self.0)
    }

    fn lock(path: &std::path::Path) -> PathBuf {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        path.with_file_name(format!(".{name}.lock"))
    }

    /// What it says; empty if it is not there or is garbled.
    pub fn read<T: Default + DeserializeOwned, F: Files + ?Sized>(self, files: &mut F) -> T {
        let bytes = files.read(&self.path(files), LONGEST).ok().flatten();
        serde_json::from_slice(&bytes.unwrap_or_default()).unwrap_or_default()
    }

    /// Changes it under its lock. Returns what it says then; `None` if the lock is not to be had in time.
    pub fn change<T, F>(self, files: &mut F, change: impl FnOnce(&mut T, &mut F)) -> Option<T>
    where
        T: Default + PartialEq + Serialize + DeserializeOwned,
        F: Files + ?Sized,
    {
        let path = self.path(files);
        let _held = files.lock(&Self::lock(&path), Deadline::after(LOCK_TIME)).ok()?;
        let mut said = self.read(files);
        change(&mut said, files);
        if said == T::default() {
            self.remove(files);
        } else if let Ok(text) = serde_json::to_vec(&said) {
            let _ = files.write(&path, &text, SECRET, Durability::OnDisk);
        }
        Some(said)
    }

    /// Removes it and its lock.
    pub fn remove<F: Files + ?Sized>(self, files: &mut F) {
        let path = self.path(files);
        let _ = files.remove_file(&path);
        let _ = files.remove_file(&Self::lock(&path));
    }
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct LastFailure {
    /// Seconds since 1970.
    when: u64,
    job: JobId,
}

/// By user id.
type LastFailures = BTreeMap<u32, LastFailure>;

/// Starts that failed for several users within the window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeveralFailed {
    /// How many users.
    pub users: usize,
    /// The last failed job.
    pub job: JobId,
    /// How long ago it failed.
    pub age: Duration,
}

/// Enters a failed start. True if the starts of two users or more failed within the window.
pub(super) fn note_failed_start<F: Files + ?Sized>(files: &mut F, uid: u32, job: &JobId) -> bool {
    let window = files.settings().failed_starts_window;
    let noted = LedgerFile::FAILED_STARTS.change(files, |failed: &mut LastFailures, _| {
        let when = now();
        keep_within(failed, when, window);
        let job = job.clone();
        failed.insert(uid, LastFailure { when, job });
    });
    noted.is_some_and(|failed| failed.len() >= USERS)
}

/// The starts that failed within the window before the last one, if several users' did. No start has worked since.
pub fn several_failed<F: Files + ?Sized>(files: &mut F) -> Option<SeveralFailed> {
    let mut failed: LastFailures = LedgerFile::FAILED_STARTS.read(files);
    let last = failed.values().max_by_key(|one| one.when)?.clone();
    keep_within(&mut failed, last.when, files.settings().failed_starts_window);
    (failed.len() >= USERS).then(|| SeveralFailed {
        users: failed.len(),
        job: last.job,
        age: Duration::from_secs(now().saturating_sub(last.when)),
    })
}

fn keep_within(failed: &mut LastFailures, when: u64, window: Duration) {
    failed.retain(|_, one| when.saturating_sub(one.when) < window.as_secs());
}

/// Seconds since 1970.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}

/// Seconds between the two looks. `mpsd-look-again.timer` brings the second one about then. Until then the node takes no
/// job with MPS.
pub const PAUSE_S: u64 = 60;

/// What the driver held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Suspect {
    /// A process of a job's MPS that root started or proved, after SIGKILL.
    Process(ProcessRef),
    /// Root's own process that asks NVML, which gave no answer in its time.
    Nvml,
}

/// What the driver held once. It is evidence only if the driver holds it at the second look, too.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Suspicion {
    /// What the driver held.
    pub suspect: Suspect,
    /// The same as a reason names it: `mps-server 691`.
    pub what: String,
    /// When. Seconds since the boot.
    pub since: u64,
    /// At which job.
    #[serde(flatten)]
    pub place: SuspicionPlace,
}

/// The job at whose begin or end something was suspected, and how its node is drained.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SuspicionPlace {
    /// The job.
    pub job: JobId,
    /// Who schedules the node.
    pub scheduler: Scheduler,
    /// The node's name there.
    pub node: String,
    /// The job's user.
    pub uid: u32,
    /// What a drain's reason begins with; `None` if the site drains nothing.
    pub prefix: Option<String>,
    /// `SLURM_CONF`, if the job's environment named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_conf: Option<String>,
    /// The job's GPUs.
    pub gpus: Vec<String>,
}

impl SuspicionPlace {
    /// At the end of the job of `journal`.
    pub fn end(journal: &Journal) -> Self {
        Self {
            job: journal.job.clone(),
            scheduler: journal.scheduler,
            node: journal.node.clone(),
            uid: journal.uid,
            prefix: journal.drain.enabled.then(|| journal.drain.prefix.clone()),
            slurm_conf: journal.drain.slurm_conf.clone(),
            gpus: journal.gpu_names(),
        }
    }

    /// At the begin of `job`.
    pub fn begin(job: &Job) -> Self {
        let drain = &job.settings.drain;
        Self {
            job: job.submission.job.clone(),
            scheduler: job.submission.scheduler,
            node: job.node.clone(),
            uid: job.user.uid,
            prefix: drain.enabled.then(|| drain.prefix.clone()),
            slurm_conf: job.site.slurm_conf.clone(),
            gpus: Vec::new(),
        }
    }
}

/// Enters `suspicion` unless its object is suspected already, and asks the timer for a second look.
pub(super) fn suspect<F: Files + ?Sized>(files: &mut F, suspicion: &Suspicion) {
    LedgerFile::SUSPICIONS.change(files, |known: &mut Vec<Suspicion>, _| {
        if !known.iter().any(|other| other.suspect == suspicion.suspect) {
            known.push(suspicion.clone());
        }
    });
    let mark = files.settings().paths.look_again();
    let _ = files.write(&mark, b"", SECRET, Durability::Placed);
}

/// Removes what is said of the object of `suspicion`.
pub(super) fn acquit<F: Files + ?Sized>(files: &mut F, suspicion: &Suspicion) {
    LedgerFile::SUSPICIONS.change(files, |known: &mut Vec<Suspicion>, files| {
        known.retain(|other| other.suspect != suspicion.suspect);
        if known.is_empty() {
            // The mark goes with the last one, under the lock. On a node without our units nothing else removes it.
            let mark = files.settings().paths.look_again();
            let _ = files.remove_file(&mark);
        }
    });
}
