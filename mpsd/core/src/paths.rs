//! The only module that builds paths of mpsd.

use super::gpu::GpuUuid;
use super::job::JobId;
use super::observations::Observations;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Paths {
    run: PathBuf,
    state: PathBuf,
}

impl Paths {
    pub fn new(run: impl Into<PathBuf>, state: impl Into<PathBuf>) -> Self {
        let (run, state) = (run.into(), state.into());
        Self { run, state }
    }

    pub fn run(&self) -> &Path {
        &self.run
    }

    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Directory of all jobs, root 0711.
    pub fn jobs(&self) -> PathBuf {
        self.run.join(JOBS)
    }

    /// Directory of the GPU accounts, root 0711.
    pub fn gpus(&self) -> PathBuf {
        self.run.join("gpus")
    }

    /// The account of one GPU: users, compute mode found before the first of them.
    pub fn gpu(&self, uuid: &GpuUuid) -> PathBuf {
        self.gpus().join(uuid.as_str())
    }

    pub fn drains(&self) -> PathBuf {
        self.state.join("drains")
    }

    /// Something waits for its second look: `mpsd-look-again.path` and every epilogue check for it.
    pub fn look_again(&self) -> PathBuf {
        self.run.join("look-again")
    }

    /// Job reports, root 0700.
    pub fn reports(&self) -> PathBuf {
        self.state.join("reports")
    }

    /// Copies of job reports for the jobs' users, root 0711, by uid.
    pub fn own_reports(&self) -> PathBuf {
        self.run.join("reports")
    }

    /// Directory of the MPS that jobs of one user share on a GPU, root 0711.
    pub fn shared(&self) -> PathBuf {
        self.run.join(SHARED)
    }

    /// One set for the job's own MPS, or one for each GPU on which it shares one.
    pub fn seen<'a>(
        &self,
        job: &JobId,
        uid: u32,
        shared: impl IntoIterator<Item = &'a GpuUuid>,
    ) -> Vec<SeenPaths> {
        let own = self.job(job);
        let of = |gpu: &GpuUuid| SeenPaths {
            now: self.job(&JobId::shared(uid, gpu)).file(OBSERVATIONS),
            before: Some(own.file(&format!("{BEFORE}{gpu}"))),
            told: own.file(&format!("{TOLD}-{gpu}")),
        };
        let mut all: Vec<SeenPaths> = shared.into_iter().map(of).collect();
        if all.is_empty() {
            let (now, before, told) = (own.file(OBSERVATIONS), None, own.file(TOLD));
            all.push(SeenPaths { now, before, told });
        }
        all
    }

    pub fn job(&self, job: &JobId) -> JobPaths {
        let above = if job.is_shared() { SHARED } else { JOBS };
        let directory = self.run.join(above).join(job.directory_name());
        JobPaths { directory }
    }
}

pub const JOBS: &str = "jobs";
pub const SHARED: &str = "shared";
/// Name of the journal, root 0600.
pub const JOURNAL: &str = "journal";
/// Name of the file by which an epilogue tells a start under way that its job has ended.
pub const CANCELLED: &str = "cancelled";
/// Name of the file with the observations of the job's `mpsd`, root 0600.
pub const OBSERVATIONS: &str = "observations";
/// Name of the file that lies over device files that the job's daemons may not open, root 0000.
pub const CLOSED: &str = "closed";
/// Name of the file that counts the last words that the job's user has been told, root 0600.
pub const TOLD: &str = "told";
/// Before a GPU's name: what `mpsd` had seen when the job began to share that MPS, root 0600.
const BEFORE: &str = "before-";
/// Name of the file with the tasks that a signal ended, root 0600 ([`crate::killed`]).
pub const KILLED: &str = "killed";

/// The files that tell a job's user what happened to its MPS on a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenPaths {
    pub now: PathBuf,
    pub before: Option<PathBuf>,
    pub told: PathBuf,
}

impl SeenPaths {
    pub fn seen(&self, mut read: impl FnMut(&Path) -> Option<Vec<u8>>) -> Option<Observations> {
        let now = Observations::parse(&read(&self.now)?)?;
        let before = self.before.as_deref().and_then(read);
        let before = before.and_then(|bytes| Observations::parse(&bytes));
        Some(now.since(&before.unwrap_or_default()))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobPaths {
    directory: PathBuf,
}

impl JobPaths {
    /// The job's directory, root 0711.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The record for the job's tasks, root 0644.
    pub fn record(&self) -> PathBuf {
        self.file("record")
    }

    /// The lock of the job or the shared MPS. It must outlive the directory, so it lies beside it.
    pub fn lock(&self) -> PathBuf {
        self.beside("lock")
    }

    /// The list of the jobs that share this MPS, root 0644. It outlives the directory.
    pub fn sharers(&self) -> PathBuf {
        self.beside("sharers")
    }

    fn beside(&self, what: &str) -> PathBuf {
        let name = self.directory.file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        self.directory.with_file_name(format!(".{name}.{what}"))
    }

    /// Names of daemon `n`'s pipe and log directories in the job's, both the user's, 0700.
    pub fn daemon_names(n: usize, count: usize) -> (String, String) {
        match count {
            1 => ("pipe".into(), "log".into()),
            _ => (format!("pipe-{n}"), format!("log-{n}")),
        }
    }
}
