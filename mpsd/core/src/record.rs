//! The record: what root leaves on the node for the job's tasks to read.
//!
//! `/run/mpsd/jobs/<job>/record`, root 0644. The plugin's `task_init`, `mpsctl env` and `mpsctl exec` decide by it and
//! by nothing else: an option may be lost on the way (`sbatch --export=NONE`; docs/facts/slurm.md#options).

use super::bind::{Bind, DeviceNames};
use super::failure::FailureKind;
use super::gpu::GpuUuid;
use super::job::JobId;
use super::limits::{Percent, Priority};
use super::partitions::Partition;
use super::request::Request;
use super::trusted::open_trusted;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Version of the format; a reader refuses any other.
pub const VERSION: u32 = 1;
/// Longest record that a reader takes, bytes.
const LONGEST: usize = 1 << 20;
/// How long a record may be away while its job starts: a start that fails is undone, directory and all, before the record
/// that says so is written.
const AWAY: Duration = Duration::from_secs(3);

/// How long a change may stay unseen if the kernel does not tell (no inotify instance left for this user).
const UNSEEN: Duration = Duration::from_millis(250);

/// How far the job's MPS is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordState {
    /// Being started; a task waits.
    Starting,
    /// Proved ready.
    Ready,
    /// The request was refused; a task says why and does not run.
    Refused,
    /// It did not start; a task says why and does not run.
    Failed,
}

/// A GPU of the job.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RecordGpu {
    /// NVML's index on this node.
    pub index: u32,
    /// Its UUID.
    pub uuid: GpuUuid,
    /// The CPUs near it, as the kernel lists them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
}

/// A GPU of the node and its device file.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RecordDevice {
    /// Its UUID.
    pub uuid: GpuUuid,
    /// `/dev/nvidiaN`.
    pub file: PathBuf,
}

/// A control daemon of the job: its GPUs, its place, and what it gives to each of its clients. The same value stands in
/// plan, journal, record and the specification of `mpsd`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Daemon {
    /// The GPUs it is confined to, in NVML's order.
    pub gpus: Vec<GpuUuid>,
    /// Its pipe directory.
    pub pipe: PathBuf,
    /// Its log directory.
    pub log: PathBuf,
    /// Default active thread percentage; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<Percent>,
    /// Default pinned device memory limit, MiB by GPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<(GpuUuid, u64)>,
    /// Default client priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Its static partitions, by rank; empty: it shares its GPUs' multiprocessors out as they are asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<Partition>,
}

/// The limits of each client: the most that a job may have, what its owner sets while it runs, or what is in force then.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct ClientLimits {
    /// Active thread percentage.
    pub threads: Option<Percent>,
    /// Pinned device memory, MiB by GPU.
    pub memory: Vec<(GpuUuid, u64)>,
}

impl ClientLimits {
    /// The memory limit on `gpu`, MiB.
    pub fn memory_of(&self, gpu: &GpuUuid) -> Option<u64> {
        let mut limits = self.memory.iter();
        limits.find(|(uuid, _)| uuid == gpu).map(|(_, mib)| *mib)
    }
}

impl Daemon {
    /// What it gives to each client.
    pub fn limits(&self) -> ClientLimits {
        ClientLimits {
            threads: self.threads,
            memory: self.memory.clone(),
        }
    }

    /// The same daemon with those of `limits` that are for it.
    pub fn with(&self, limits: &ClientLimits) -> Self {
        let mut own = self.clone();
        own.threads = limits.threads.or(self.threads);
        for gpu in &self.gpus {
            if let Some(mib) = limits.memory_of(gpu) {
                own.memory.retain(|(uuid, _)| uuid != gpu);
                own.memory.push((gpu.clone(), mib));
            }
        }
        own
    }
}

/// By how many tasks `auto` has divided each GPU, where it was asked for: what a step with fewer GPUs has to lower.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct AutoDivisors {
    /// For the thread percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// For the memory limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u32>,
}

impl AutoDivisors {
    fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// What the job's tasks need to know.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// [`VERSION`].
    pub version: u32,
    /// The job, or the step with a daemon of its own.
    pub job: JobId,
    /// The job's user.
    pub uid: u32,
    /// How far it is.
    pub state: RecordState,
    /// One line for the user when refused or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What the failure was when `failed`: Slurm's job_prolog fails on a fault only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<FailureKind>,
    /// Nothing but the node can have failed the start: OpenPBS's hook has the try not counted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_node: bool,
    /// The job made its GPUs EXCLUSIVE_PROCESS: a process outside its MPS cannot use them.
    #[serde(default)]
    pub exclusive: bool,
    /// Seconds from which a task may still wait while `starting`.
    #[serde(default)]
    pub deadline_s: u32,
    /// One daemon a GPU.
    #[serde(default)]
    pub per_gpu: bool,
    /// What the job asked for: a step that says the same has inherited it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Request>,
    /// The scheduler named the job's GPUs, so that a step for which it names none has none.
    #[serde(default)]
    pub named: bool,
    /// The job's GPUs on this node.
    #[serde(default)]
    pub gpus: Vec<RecordGpu>,
    /// All GPUs of the node in the order of the bus, where a task must count as CUDA does: it sees those whose file it may
    /// open, and the numbers in its `CUDA_VISIBLE_DEVICES` are places among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<RecordDevice>,
    /// The daemons.
    #[serde(default)]
    pub daemons: Vec<Daemon>,
    /// Thread percentage by local rank, repeated when there are more ranks; empty: the daemon's.
    #[serde(default)]
    pub rank_threads: Vec<Percent>,
    /// Memory limits by local rank, MiB by GPU; empty: the daemon's.
    #[serde(default)]
    pub rank_memory: Vec<Vec<(GpuUuid, u64)>>,
    /// What `auto` assumed.
    #[serde(default, skip_serializing_if = "AutoDivisors::is_none")]
    pub divided: AutoDivisors,
    /// How `CUDA_VISIBLE_DEVICES` names the GPUs; `None`: by UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<DeviceNames>,
    /// Without its MPS, number i of a process that may open every GPU of the node is the i-th GPU of the job.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub same_numbers: bool,
    /// Which GPU a rank sees; `None`: all of the job's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bind: Option<Bind>,
    /// MPS clients that each of the GPUs takes, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients: Option<u32>,
    /// What its user should read although it runs, a line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Its user reads at the end what it was used for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub report: bool,
}

impl Record {
    /// A record that says only that the job is refused or failed.
    pub fn closed(job: JobId, uid: u32, state: RecordState, reason: String) -> Self {
        Self {
            version: VERSION,
            job,
            uid,
            state,
            reason: Some(reason),
            kind: None,
            of_node: false,
            exclusive: false,
            deadline_s: 0,
            per_gpu: false,
            request: None,
            named: false,
            gpus: Vec::new(),
            devices: Vec::new(),
            daemons: Vec::new(),
            rank_threads: Vec::new(),
            rank_memory: Vec::new(),
            divided: AutoDivisors::default(),
            names: None,
            same_numbers: false,
            bind: None,
            clients: None,
            warnings: Vec::new(),
            report: false,
        }
    }

    /// Whether the job's GPUs are MIG devices. Its tasks have their names in `CUDA_VISIBLE_DEVICES`, whatever numbers stand
    /// elsewhere (docs/facts/slurm.md#gpus-of-a-job).
    pub fn is_mig(&self) -> bool {
        self.gpus.iter().any(|gpu| gpu.uuid.is_mig())
    }

    /// How `CUDA_VISIBLE_DEVICES` names the GPUs.
    pub fn names(&self) -> DeviceNames {
        self.names.unwrap_or(DeviceNames::Uuid)
    }

    /// Reads a record's text.
    ///
    /// # Errors
    /// One line: not JSON of this version.
    pub fn parse(text: &str) -> Result<Self, String> {
        #[derive(serde::Deserialize)]
        struct Head {
            version: u32,
        }
        let unreadable = |error| format!("unreadable record: {error}");
        // The number first: what another format has beside it is no matter of ours.
        let Head { version } = serde_json::from_str(text).map_err(unreadable)?;
        if version != VERSION {
            return Err(format!(
                "record of version {version}, this program reads {VERSION}: the packages on this node are of two releases"
            ));
        }
        serde_json::from_str(text).map_err(unreadable)
    }

    /// The record's text.
    ///
    /// # Errors
    /// When a path is not UTF-8.
    pub fn to_text(&self) -> Result<String, String> {
        serde_json::to_string_pretty(self)
            .map(|t| t + "\n")
            .map_err(|e| format!("unwritable record: {e}"))
    }
}

/// The outcome of one read of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordRead {
    /// No record.
    Absent,
    /// This user may not pass the directory at the moment, and why.
    Denied(String),
    /// A record that only root can have written.
    Found(Box<Record>),
}

/// Reads the record at `path`, once.
///
/// # Errors
/// One line: something stands there that cannot be trusted or understood. A job whose directory is not there has no
/// record, whatever else is wrong on the way: no job that did not ask may be stopped by it.
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

/// Whether nothing stands there for sure.
fn is_absent(path: &Path) -> bool {
    let absent = [ErrorKind::NotFound, ErrorKind::NotADirectory];
    path.symlink_metadata()
        .is_err_and(|error| absent.contains(&error.kind()))
}

/// The record at `path` once it no longer stands at `starting`; `None`: there is no MPS. One that is still `starting` was not
/// ready in time, or went away for good. For a record that does not say itself how long it may be `starting`, `limit` holds.
///
/// # Errors
/// One line: as [`look`], or the directory stayed closed to this user.
pub fn settled(path: &Path, limit: Duration) -> Result<Option<Record>, String> {
    let begin = Instant::now();
    let mut waiting = Waiting::new(limit);
    loop {
        // Watched before it is read, so that no change falls between.
        let watch = watch(path);
        match waiting.step(look(path)?, begin.elapsed()) {
            Step::Over(settled) => return settled.map(|record| record.map(|record| *record)),
            Step::Wait(left) => wait(watch.as_ref(), left.min(UNSEEN)),
        }
    }
}

/// A watch on the file itself: it is replaced by rename, which takes the old one's last name. Its directory cannot be
/// watched, since the user may pass it (0711) but not read it.
fn watch(path: &Path) -> Option<Inotify> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok()?;
    let flags = AddWatchFlags::IN_ATTRIB | AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_CLOSE_WRITE;
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

/// One reader's wait for a record that may still be `starting`. It decides and does nothing else: the reader looks,
/// tells what it saw and when, and waits where it is told to.
#[derive(Debug)]
struct Waiting {
    limit: Duration,
    starting: Option<Box<Record>>,
    away_since: Option<Duration>,
}

/// What a reader is to do after a look.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// Read it again within this time.
    Wait(Duration),
    /// What [`settled`] returns.
    Over(Result<Option<Box<Record>>, String>),
}

impl Waiting {
    fn new(limit: Duration) -> Self {
        Self {
            limit,
            starting: None,
            away_since: None,
        }
    }

    /// What follows from `seen`, `elapsed` after the reader began.
    fn step(&mut self, seen: RecordRead, elapsed: Duration) -> Step {
        let end = match &seen {
            RecordRead::Found(record) if record.state != RecordState::Starting => {
                return Step::Over(Ok(Some(record.clone())));
            }
            RecordRead::Found(record) => {
                self.away_since = None;
                self.starting = Some(record.clone());
                match record.deadline_s {
                    0 => self.limit,
                    own => Duration::from_secs(own.into()),
                }
            }
            RecordRead::Absent if self.starting.is_none() => return Step::Over(Ok(None)),
            RecordRead::Absent | RecordRead::Denied(_) => *self.away_since.get_or_insert(elapsed) + AWAY,
        };
        match (end.checked_sub(elapsed), seen, self.starting.take()) {
            (Some(left), _, starting) if !left.is_zero() => {
                self.starting = starting;
                Step::Wait(left)
            }
            (_, RecordRead::Denied(why), _) => Step::Over(Err(why)),
            (_, _, starting) => Step::Over(Ok(starting)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(state: RecordState, deadline_s: u32) -> RecordRead {
        let job = JobId::parse("4711").unwrap();
        let mut record = Record::closed(job, 1000, state, "why".to_owned());
        record.deadline_s = deadline_s;
        RecordRead::Found(Box::new(record))
    }

    fn denied() -> RecordRead {
        RecordRead::Denied("closed".to_owned())
    }

    /// What comes of looks at these seconds.
    fn steps(looks: &[(u64, RecordRead)]) -> Vec<String> {
        let mut waiting = Waiting::new(Duration::from_secs(20));
        let mut short =
            |(at, look): &(u64, RecordRead)| match waiting.step(look.clone(), Duration::from_secs(*at)) {
                Step::Wait(left) => format!("wait {}", left.as_secs()),
                Step::Over(Ok(None)) => "without".to_owned(),
                Step::Over(Ok(Some(record))) => format!("{:?}", record.state),
                Step::Over(Err(why)) => why,
            };
        looks.iter().map(&mut short).collect()
    }

    #[test]
    fn a_start_is_waited_for_as_long_as_its_record_says_and_through_a_gap() {
        let starting = |own| record(RecordState::Starting, own);
        assert_eq!(steps(&[(0, RecordRead::Absent)]), ["without"]);
        assert_eq!(steps(&[(0, record(RecordState::Refused, 9))]), ["Refused"]);
        assert_eq!(
            steps(&[(0, starting(0)), (19, starting(0)), (20, starting(0))]),
            ["wait 20", "wait 1", "Starting"]
        );
        assert_eq!(
            steps(&[(0, starting(5)), (2, record(RecordState::Ready, 5))]),
            ["wait 5", "Ready"]
        );
        assert_eq!(
            steps(&[
                (0, starting(9)),
                (8, RecordRead::Absent),
                (10, record(RecordState::Failed, 0))
            ]),
            ["wait 9", "wait 3", "Failed"]
        );
        assert_eq!(
            steps(&[(0, starting(9)), (1, RecordRead::Absent), (4, RecordRead::Absent)]),
            ["wait 9", "wait 3", "Starting"]
        );
        assert_eq!(
            steps(&[(0, denied()), (2, denied()), (3, denied())]),
            ["wait 3", "wait 1", "closed"]
        );
        assert_eq!(steps(&[(0, denied()), (1, starting(9))]), ["wait 3", "wait 8"]);
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
        assert!(
            look(&path)
                .unwrap_err()
                .contains("may be written by group or others")
        );
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(look(&path).unwrap_err().contains("unreadable record"));
    }
}
