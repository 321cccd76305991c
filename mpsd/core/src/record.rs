//! `/run/mpsd/jobs/<job>/record`, root 0644: what root leaves on the node for the job's tasks.
//! Tasks read nothing else, because options may be lost on the way (`sbatch --export=NONE`;
//! docs/facts/slurm.md#options).

use super::bind::{Bind, DeviceNames};
use super::failure::FailureKind;
use super::gpu::GpuUuid;
use super::job::JobId;
use super::limits::{Percent, Priority};
use super::request::Request;
use super::trusted::open_trusted;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::ops::ControlFlow::{self, Break, Continue};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Rises with another format. A new field needs no rise: a reader that lacks it refuses the record.
pub const VERSION: u32 = 1;
const LONGEST: usize = 1 << 20;
/// How long a record may be absent: a failed start removes the directory, then writes one.
const AWAY: Duration = Duration::from_secs(3);

const UNSEEN: Duration = Duration::from_millis(250);

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordState {
    /// It is being started; a task waits.
    Starting,
    Ready,
    /// A task says why and does not run.
    Refused,
    /// A task says why and does not run.
    Failed,
    /// `MPS=auto` gives none here. The tasks run as in a job that did not ask.
    Unneeded,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RecordGpu {
    pub index: u32,
    pub uuid: GpuUuid,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RecordDevice {
    pub uuid: GpuUuid,
    /// `/dev/nvidiaN`.
    pub file: PathBuf,
}

/// Plan, journal, record and the specification of `mpsd` hold the same value.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Daemon {
    pub gpus: Vec<GpuUuid>,
    pub pipe: PathBuf,
    pub log: PathBuf,
    /// Default active thread percentage; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<Percent>,
    /// Default pinned device memory limit, MiB by GPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<(GpuUuid, u64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
}

/// The parts that `auto` made of each GPU: a step with fewer GPUs must lower its share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct AutoDivisors {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u32>,
}

impl AutoDivisors {
    fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BySite {
    /// Its tasks on this node; 0: not known.
    pub tasks: u32,
    /// It has MPS only if tasks meet on a GPU, or other jobs use it.
    pub if_tasks_meet: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    pub version: u32,
    /// The job, or the step with a daemon of its own.
    pub job: JobId,
    pub uid: u32,
    /// Slurm's second name for the job (docs/facts/slurm.md#cgroups-of-a-job).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sluid: Option<String>,
    pub state: RecordState,
    /// For the user: why it was refused, failed or is not needed, or why `MPS=auto` gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Of a failure: Slurm's job_prolog fails on a fault only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<FailureKind>,
    /// Only the node can have failed the start: OpenPBS's hook then does not count the try.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_node: bool,
    /// The job made its GPUs EXCLUSIVE_PROCESS: a process outside its MPS cannot use them.
    pub exclusive: bool,
    /// Seconds for which a task waits while `starting`; 0: the reader's own limit.
    pub deadline_s: u32,
    pub per_gpu: bool,
    /// Its daemons serve the user's other jobs too: its limits are in its tasks' environment alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// The job's request. A step with the same words has inherited them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Request>,
    /// The scheduler named the job's GPUs. If it names none for a step, the step has none.
    pub named: bool,
    pub gpus: Vec<RecordGpu>,
    /// All GPUs of the node in the order of the bus, for a task that counts only those that it may
    /// open, as CUDA does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<RecordDevice>,
    pub daemons: Vec<Daemon>,
    /// Thread percentage by local rank, repeated when there are more ranks; empty: the daemon's.
    pub rank_threads: Vec<Percent>,
    /// Memory limits by local rank, MiB by GPU; empty: the daemon's.
    pub rank_memory: Vec<Vec<(GpuUuid, u64)>>,
    /// What the job's clients may hold together, MiB by GPU; empty: nothing says so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub job_memory: Vec<(GpuUuid, u64)>,
    #[serde(default, skip_serializing_if = "AutoDivisors::is_none")]
    pub divided: AutoDivisors,
    /// How `CUDA_VISIBLE_DEVICES` names the GPUs; `None`: by UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<DeviceNames>,
    /// Outside the job's MPS, a process that can open every GPU finds the job's i-th as number i.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub same_numbers: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bind: Option<Bind>,
    /// MPS clients that each of the GPUs takes, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The site brought the job in, and its user did not ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_site: Option<BySite>,
    /// The scheduler may give its GPUs to other jobs, and its MPS is its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub takes_turns: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub report: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub summary: bool,
    /// Slurm: a job of sbatch, which ends with its script. A step of `srun --jobid` cannot tell.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub script: bool,
}

/// What each client of `daemons` may hold of `gpu`, MiB.
pub fn memory_limit(daemons: &[Daemon], gpu: &GpuUuid) -> Option<u64> {
    let mut daemons = daemons.iter();
    daemons.find_map(|daemon| limit_on(&daemon.memory, gpu))
}

/// MiB.
pub fn limit_on(limits: &[(GpuUuid, u64)], gpu: &GpuUuid) -> Option<u64> {
    let limit = limits.iter().find(|(of, _)| of == gpu);
    limit.map(|(_, mib)| *mib)
}

impl Record {
    pub fn without_mps(job: JobId, uid: u32, state: RecordState, reason: String) -> Self {
        Self {
            version: VERSION,
            job,
            uid,
            sluid: None,
            state,
            reason: Some(reason),
            kind: None,
            of_node: false,
            exclusive: false,
            deadline_s: 0,
            per_gpu: false,
            shared: false,
            request: None,
            named: false,
            gpus: Vec::new(),
            devices: Vec::new(),
            daemons: Vec::new(),
            rank_threads: Vec::new(),
            rank_memory: Vec::new(),
            job_memory: Vec::new(),
            divided: AutoDivisors::default(),
            names: None,
            same_numbers: false,
            bind: None,
            clients: None,
            warnings: Vec::new(),
            by_site: None,
            takes_turns: false,
            report: false,
            summary: false,
            script: false,
        }
    }

    pub fn gpu_uuids(&self) -> Vec<GpuUuid> {
        self.gpus.iter().map(|gpu| gpu.uuid.clone()).collect()
    }

    /// `CUDA_VISIBLE_DEVICES` of MIG devices has names, not numbers
    /// (docs/facts/slurm.md#gpus-of-a-job).
    pub fn is_mig(&self) -> bool {
        self.gpus.iter().any(|gpu| gpu.uuid.is_mig())
    }

    pub fn names(&self) -> DeviceNames {
        self.names.unwrap_or(DeviceNames::Uuid)
    }

    pub fn parse(text: &str) -> Result<Self, String> {
        let unreadable = |error| format!("unreadable record: {error}");
        let version = version_of(text).map_err(unreadable)?;
        if version != VERSION {
            let why = "the packages on this node are of two releases";
            return Err(format!(
                "record of version {version}, this program reads {VERSION}: {why}"
            ));
        }
        serde_json::from_slice(text.as_bytes()).map_err(unreadable)
    }

    /// Fails if a path is not UTF-8.
    pub fn to_text(&self) -> Result<String, String> {
        let text = serde_json::to_string_pretty(self);
        text.map(|text| text + "\n")
            .map_err(|e| format!("unwritable record: {e}"))
    }
}

/// The version of a record's or journal's text: another format may have any other keys.
pub fn version_of(text: &str) -> serde_json::Result<u32> {
    #[derive(serde::Deserialize)]
    struct Head {
        version: u32,
    }
    serde_json::from_slice::<Head>(text.as_bytes()).map(|head| head.version)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordRead {
    Absent,
    /// This user may not pass the directory at the moment, and why.
    Denied(String),
    Found(Box<Record>),
}

/// The jobs that share an MPS, by root's list of them.
pub fn sharers(list: &Path) -> BTreeSet<JobId> {
    let file = open_trusted(list).ok();
    let text = file.and_then(|file| file.read(LONGEST).ok());
    serde_json::from_slice(&text.unwrap_or_default()).unwrap_or_default()
}

pub fn found(path: &Path) -> Option<Record> {
    match look(path) {
        Ok(RecordRead::Found(record)) => Some(*record),
        _ => None,
    }
}

pub fn by_sluid(
    path: impl Fn(&JobId) -> PathBuf,
    jobs: impl IntoIterator<Item = JobId>,
    sluid: &str,
) -> Option<JobId> {
    let has_it = |job: &JobId| found(&path(job))?.sluid.filter(|own| own == sluid);
    let mut jobs = jobs.into_iter();
    Some(jobs.find(|job| has_it(job).is_some())?.whole())
}

/// A job without a directory has no record, even if the way there is damaged: it must run.
pub fn look(path: &Path) -> Result<RecordRead, String> {
    let file = match open_trusted(path) {
        Ok(file) => file,
        Err(error) if error.is_absent() || path.parent().is_some_and(is_absent) => {
            return Ok(RecordRead::Absent);
        }
        Err(error) if error.errno() == Some(Errno::EACCES) => {
            return Ok(RecordRead::Denied(error.to_string()));
        }
        Err(error) => return Err(error.to_string()),
    };
    let bytes = file.read(LONGEST).map_err(|error| error.to_string())?;
    let record = Record::parse(&String::from_utf8_lossy(&bytes));
    let record = record.map_err(|why| format!("'{}': {why}", path.display()))?;
    Ok(RecordRead::Found(Box::new(record)))
}

/// Whether nothing is at `path`; other errors say nothing of that.
pub fn is_absent(path: &Path) -> bool {
    let absent = [ErrorKind::NotFound, ErrorKind::NotADirectory];
    path.symlink_metadata()
        .is_err_and(|error| absent.contains(&error.kind()))
}

/// Waits while the record is `starting`; `None`: there is no MPS. If it still is, the MPS was not
/// ready in time, or the record was removed. `limit`: for a record without its own.
pub fn settled(path: &Path, limit: Duration) -> Result<Option<Record>, String> {
    let begin = Instant::now();
    let mut waiting = Waiting::default();
    loop {
        // The watch begins before the read, so that no change falls between them.
        let watch = watch(path);
        match waiting.next(look(path)?, begin.elapsed(), limit) {
            Break(settled) => return settled.map(|record| record.map(|record| *record)),
            Continue(left) => wait(watch.as_ref(), left.min(UNSEEN)),
        }
    }
}

/// Watches the file, because the user may not read the directory (0711). A rename takes the old
/// file's last name.
fn watch(path: &Path) -> Option<Inotify> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok()?;
    let flags =
        AddWatchFlags::IN_ATTRIB | AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_CLOSE_WRITE;
    inotify.add_watch(path, flags).ok()?;
    Some(inotify)
}

fn wait(watch: Option<&Inotify>, limit: Duration) {
    let Some(watch) = watch else {
        return std::thread::sleep(limit.min(UNSEEN / 10));
    };
    let mut fds = [PollFd::new(watch.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::ZERO);
    let _ = poll(&mut fds, timeout);
}

/// One reader's wait for a record. It only decides: the reader reads, and waits.
#[derive(Debug, Default)]
struct Waiting {
    starting: Option<Box<Record>>,
    away_since: Option<Duration>,
}

impl Waiting {
    /// How long to wait, `elapsed` after the reader began, or what [`settled`] returns.
    fn next(
        &mut self,
        seen: RecordRead,
        elapsed: Duration,
        limit: Duration,
    ) -> ControlFlow<Result<Option<Box<Record>>, String>, Duration> {
        let end = match &seen {
            RecordRead::Found(record) if record.state != RecordState::Starting => {
                return Break(Ok(Some(record.clone())));
            }
            RecordRead::Found(record) => {
                self.away_since = None;
                self.starting = Some(record.clone());
                match record.deadline_s {
                    0 => limit,
                    own => Duration::from_secs(own.into()),
                }
            }
            RecordRead::Absent if self.starting.is_none() => return Break(Ok(None)),
            RecordRead::Absent | RecordRead::Denied(_) => {
                *self.away_since.get_or_insert(elapsed) + AWAY
            }
        };
        match (end.saturating_sub(elapsed), seen) {
            (Duration::ZERO, RecordRead::Denied(why)) => Break(Err(why)),
            (Duration::ZERO, _) => Break(Ok(self.starting.take())),
            (left, _) => Continue(left),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(state: RecordState, deadline_s: u32) -> RecordRead {
        let job = JobId::parse("4711").unwrap();
        let mut record = Record::without_mps(job, 1000, state, "why".to_owned());
        record.deadline_s = deadline_s;
        RecordRead::Found(Box::new(record))
    }

    fn steps(reads: &[(u64, RecordRead)]) -> String {
        let mut waiting = Waiting::default();
        let mut next = |(at, read): &(u64, RecordRead)| {
            let [at, limit] = [*at, 20].map(Duration::from_secs);
            match waiting.next(read.clone(), at, limit) {
                Continue(left) => format!("wait {}", left.as_secs()),
                Break(Ok(None)) => "without".to_owned(),
                Break(Ok(Some(record))) => format!("{:?}", record.state),
                Break(Err(why)) => why,
            }
        };
        reads.iter().map(&mut next).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn a_reader_waits_for_a_start_as_long_as_its_record_says_and_through_a_gap() {
        use RecordRead::Absent;
        let read = |word: &str| match word.split_at(1) {
            ("s", own) => record(RecordState::Starting, own.parse().unwrap()),
            ("r", _) => record(RecordState::Ready, 5),
            ("f", _) => record(RecordState::Failed, 0),
            ("x", _) => record(RecordState::Refused, 9),
            ("d", _) => RecordRead::Denied("closed".to_owned()),
            _ => Absent,
        };
        // Seconds and what was read then; 's9': starting, with its own limit of 9 s.
        let table = "
            0 - -> without
            0 x -> Refused
            0 s0 19 s0 20 s0 -> wait 20, wait 1, Starting
            0 s5 2 r -> wait 5, Ready
            0 s9 8 - 10 f -> wait 9, wait 3, Failed
            0 s9 1 - 4 - -> wait 9, wait 3, Starting
            0 d 2 d 3 d -> wait 3, wait 1, closed
            0 d 1 s9 -> wait 3, wait 8";
        for row in table.trim().lines() {
            let (reads, expected) = row.trim().split_once(" -> ").unwrap();
            let words: Vec<&str> = reads.split(' ').collect();
            let pair = |pair: &[&str]| (pair[0].parse().unwrap(), read(pair[1]));
            let reads: Vec<_> = words.chunks(2).map(pair).collect();
            assert_eq!(steps(&reads), expected, "{row}");
        }
    }

    #[test]
    fn only_roots_record_is_read_and_no_directory_means_no_record() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("4711/record");
        assert_eq!(look(&path), Ok(RecordRead::Absent));
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        assert_eq!(look(&path), Ok(RecordRead::Absent));
        let RecordRead::Found(written) = record(RecordState::Ready, 0) else {
            panic!()
        };
        std::fs::write(&path, written.to_text().unwrap()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(look(&path), Ok(RecordRead::Found(written)));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        let open = look(&path).unwrap_err();
        assert!(open.contains("may be written by group or others"), "{open}");
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(look(&path).unwrap_err().contains("unreadable record"));
    }
}
