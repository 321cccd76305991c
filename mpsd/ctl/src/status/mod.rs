//! `mpsctl status`: a job's MPS as it is now, for its user; for root, that of all jobs of the node.
//! A user's status is from the record and the daemons. Root's is from the journals; daemons may
//! hang, so processes of the user ask them.

mod attached;
pub(super) mod model;
mod text;

use super::attach::{Caller, NO_JOB};
use super::terminal::{say, say_json, width};
use attached::Verdict;
use batch::drain::{Marker, markers};
use model::{GpuStatus, JobStatus, NvmlLists, Phase};
use mpsd::job::Journal;
use mpsd::job::store::Store as _;
use mpsd::node::real::RealNode;
use mpsd::node::tasks::{is_of, tasks};
use mpsd::node::worker::{NvmlWorker, Question};
use mpsd::supervisor::queries::{self, AnswerError, DaemonAnswer};
use mpsd_core::config::Settings;
use mpsd_core::environment::PIPE_DIRECTORY;
use mpsd_core::failure::{EXIT_NODE, EXIT_REFUSED, Evidence, Fault};
use mpsd_core::record::{self, Record, RecordRead};
use mpsd_core::text::one_line;
use mpsd_core::{Failure, JobId, Paths, Refusal};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};
use text::sentence;

/// Longest wait for the daemons of one job, and for one answer of NVML.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, clap::Args)]
pub struct Status {
    /// The job; from the scheduler's variables if not given, and for root all jobs of the node
    #[arg(value_name = "JOB")]
    pub job: Option<String>,
    /// One object instead of text
    #[arg(long)]
    json: bool,
}

impl Status {
    /// Returns the exit code. `worker` is the program `mpsd`, which asks NVML.
    pub fn run(&self, caller: &Caller<'_>, worker: &Path) -> Result<u8, Failure> {
        let report = match caller.uid {
            0 => StatusReport::for_root(caller, worker),
            _ => StatusReport::for_user(caller, worker),
        }?;
        match self.json {
            true => say_json(&report),
            false => say(&(report.lines(width()).join("\n") + "\n")),
        }
        Ok(report.code())
    }
}

type Answers = Vec<Result<DaemonAnswer, AnswerError>>;

/// What `mpsctl status` shows, and the object of `--json`.
#[derive(Debug, Default, Serialize)]
struct StatusReport {
    /// Whether the calling task is under MPS, if it is in a job.
    #[serde(rename = "under_mps", skip_serializing_if = "Option::is_none")]
    verdict: Option<Verdict>,
    jobs: Vec<JobStatus>,
    /// A line for each job without a status.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unread: Vec<String>,
    /// For root: a line for each drain of this node by us.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    drains: Vec<String>,
    #[serde(skip)]
    named: bool,
}

impl StatusReport {
    fn not_attached(because: impl Into<String>) -> Self {
        Self {
            verdict: Some(Verdict::no(because)),
            ..Self::default()
        }
    }

    fn for_user(caller: &Caller<'_>, worker: &Path) -> Result<Self, Failure> {
        let ids = caller.ids()?;
        let (settings, broken) = caller.settings();
        let Some(job) = ids.last() else {
            return Ok(Self::not_attached(NO_JOB));
        };
        let Some(record) = first_record(&settings, &ids)? else {
            return match broken {
                Some(fault) => Err(fault.into()),
                None => {
                    let is_in = caller.is_in(job);
                    Ok(Self::not_attached(none_here(&ids, job.as_str(), is_in)))
                }
            };
        };
        if record.uid != 0 && record.uid != caller.uid {
            let job = format!("job {}", record.job);
            return Err(Refusal::new(job, "its MPS is another user's", "").into());
        }
        let mut status = JobStatus::of_record(&record);
        status.shared_with = shared_with(&settings, &status);
        let answers = queries::ask_all(&settings.control, &record.daemons, PATIENCE);
        let (paths, nvml) = (&settings.paths, &settings.nvml);
        add(&mut status, answers, paths, nvml, worker);
        let pipe = (caller.env)(PIPE_DIRECTORY).filter(|pipe| !pipe.is_empty());
        // The verdict is for a task of this job only.
        let is_own = caller.job.is_none() || caller.own_ids().is_ok_and(|own| own.ends_with(&ids));
        Ok(Self {
            verdict: is_own.then(|| Verdict::of(&status, pipe.as_deref()).limited(caller.env)),
            jobs: vec![status],
            named: true,
            ..Self::default()
        })
    }

    fn for_root(caller: &Caller<'_>, worker: &Path) -> Result<Self, Failure> {
        let (settings, _) = caller.settings();
        let mut node = super::this_node(&settings);
        let mut report = Self {
            named: caller.job.is_some(),
            ..Self::default()
        };
        let names = match caller.job {
            Some(_) => {
                let ids = caller.ids()?;
                let here = ids.iter().find(|id| node.has_directory(id));
                let meant = here.or(ids.last()).into_iter();
                meant.map(JobId::directory_name).collect()
            }
            None => {
                let drains = markers::all(&settings.paths);
                report.drains = drains.iter().map(drain_line).collect();
                node.job_directories()?
            }
        };
        for name in names {
            match status_of(&mut node, &settings, &name, worker) {
                Ok(status) => {
                    let is_told = |job: &JobStatus| report.named || job.phase != Phase::Unneeded;
                    report.jobs.extend(status.filter(is_told));
                }
                // An unreadable job does not hide the others.
                Err(why) => {
                    let line = one_line(&format!("job {name}: {why}"), 300);
                    report.unread.push(line);
                }
            }
        }
        match caller.job {
            Some(job) if report.jobs.is_empty() && report.unread.is_empty() => {
                Ok(Self::not_attached(none_here(&caller.ids()?, job, false)))
            }
            _ => Ok(report),
        }
    }

    fn lines(&self, width: Option<usize>) -> Vec<String> {
        let verdict = self.verdict.as_ref().map(Verdict::to_string);
        let mut lines: Vec<String> = verdict.map_or_else(Vec::new, |text| sentence(&text, width));
        lines.extend(
            self.jobs
                .iter()
                .flat_map(|status| text::lines(status, width)),
        );
        lines.extend(self.unread.iter().cloned());
        if lines.is_empty() {
            lines.push("no job has MPS on this node".to_owned());
        }
        lines.extend(self.drains.iter().cloned());
        lines
    }

    /// 0: under MPS, or the named job's MPS is up; 1: not; 2: not known.
    fn code(&self) -> u8 {
        if let Some(verdict) = &self.verdict {
            return verdict.attached as u8;
        }
        match self.jobs.first().filter(|_| self.named) {
            _ if !self.unread.is_empty() => EXIT_NODE,
            Some(status) if status.phase != Phase::Ready => EXIT_REFUSED,
            Some(status) if status.daemons.iter().any(|daemon| daemon.silent.is_some()) => {
                EXIT_NODE
            }
            _ => 0,
        }
    }
}

fn first_record(settings: &Settings, ids: &[JobId]) -> Result<Option<Record>, Fault> {
    for id in ids {
        let path = settings.paths.job(id).record();
        match record::look(&path) {
            Ok(RecordRead::Absent) => {}
            Ok(RecordRead::Found(record)) => return Ok(Some(*record)),
            Ok(RecordRead::Denied(why)) | Err(why) => {
                let what = format!("record '{}'", path.display());
                return Err(Fault::new(Evidence::Storage, what, why));
            }
        }
    }
    Ok(None)
}

/// The scheduler may be slow and is not asked; 'mpsctl doctor' asks it.
fn drain_line(marker: &Marker) -> String {
    let Marker { node, reason, .. } = marker;
    match marker.delivered {
        true => format!(
            "node '{node}' was drained by us ({reason}); 'mpsctl undrain' lifts it after a clean recheck"
        ),
        false => format!(
            "node '{node}' is to be drained ({reason}), and its scheduler does not know it yet; no job gets MPS here until then"
        ),
    }
}

/// Root's status of one job; `None`: nothing of it is here.
fn status_of(
    node: &mut RealNode,
    settings: &Settings,
    name: &str,
    worker: &Path,
) -> Result<Option<JobStatus>, Failure> {
    let id = JobId::parse(name)?;
    let journal = node.read_journal(&id)?;
    let record = record::found(&settings.paths.job(&id).record());
    let Some(journal) = journal else {
        return Ok(record.map(|record| {
            let mut status = JobStatus::of_record(&record);
            status.add_answers(&[], &NvmlLists::new(), &[]);
            status
        }));
    };
    let mut status = JobStatus::of_journal(&journal, record.as_ref());
    status.shared_with = shared_with(settings, &status);
    let answers = ask_as_user(node, &journal);
    add(&mut status, answers, &settings.paths, &journal.nvml, worker);
    Ok(Some(status))
}

/// The other jobs that share the MPS of this one, by root's lists.
fn shared_with(settings: &Settings, status: &JobStatus) -> BTreeSet<JobId> {
    let sharers = |gpu: &GpuStatus| -> BTreeSet<JobId> {
        let id = JobId::shared(status.uid, &gpu.uuid);
        record::sharers(&settings.paths.job(&id).sharers())
    };
    let gpus = status.gpus.iter().filter(|_| status.shared);
    let mut all: BTreeSet<JobId> = gpus.flat_map(sharers).collect();
    all.remove(&status.job);
    all
}

fn ask_as_user(node: &RealNode, journal: &Journal) -> Answers {
    let began = Instant::now();
    let line = node.ask_mpsd(journal, &["--look"], PATIENCE);
    let waited = began.elapsed();
    let answers: Option<Answers> = line.and_then(|line| serde_json::from_slice(&line).ok());
    let count = journal.record().daemons.len();
    let answers = answers.filter(|answers| answers.len() == count);
    answers.unwrap_or_else(|| {
        let failed = "no answer: its user's process that asks it did not start, or failed";
        let why = match waited < PATIENCE {
            true => failed.to_owned(),
            false => format!("no answer within {} ms", waited.as_millis()),
        };
        vec![Err(AnswerError::Failed(why)); count]
    })
}

/// Adds the answers to `status`. A daemon may name any pid: those of other users are left out.
fn add(status: &mut JobStatus, mut answers: Answers, paths: &Paths, nvml: &str, worker: &Path) {
    for answer in answers.iter_mut().flatten() {
        answer
            .servers
            .retain(|server| is_of(status.uid, server.pid));
        answer
            .clients
            .retain(|client| is_of(status.uid, client.pid));
    }
    let clients = answers.iter().flatten().flat_map(|answer| &answer.clients);
    let pids: Vec<i32> = clients.map(|client| client.pid).collect();
    let lists = match pids.is_empty() {
        true => NvmlLists::new(),
        false => processes(status, nvml, worker),
    };
    let here = || status.shared_with.iter().chain([&status.job]).cloned();
    let record_of = |job: &JobId| paths.job(job).record();
    let by_sluid = |sluid: &str| record::by_sluid(record_of, here(), sluid);
    let tasks = tasks(status.uid, &pids, &by_sluid);
    status.add_answers(&answers, &lists, &tasks);
}

/// NVML's lists up to its first failure. Without them only the memory is missing.
fn processes(status: &JobStatus, nvml: &str, worker: &Path) -> NvmlLists {
    let Ok(mut worker) = NvmlWorker::start(worker, nvml, PATIENCE) else {
        return NvmlLists::new();
    };
    let gpus = status.gpus.iter().map(|gpu| gpu.uuid.clone());
    gpus.map_while(|gpu| Some((gpu.clone(), worker.ask(&Question::Processes(gpu)).ok()?)))
        .collect()
}

/// Why there is nothing of `job`, and where there may be. `inside`: this is one of its nodes. A
/// login node is none. A job of Slurm has a number, which a PBS here would read as one of its own.
fn none_here(ids: &[JobId], job: &str, inside: bool) -> String {
    let is_number = job.bytes().all(|byte| byte.is_ascii_digit());
    let is_of_slurm = |id: &JobId| !id.as_str().contains(|c: char| c.is_ascii_alphabetic());
    let of_slurm = is_number && ids.iter().all(is_of_slurm);
    let hint = match (of_slurm, inside) {
        (true, true) => format!(
            ": submit it with --mps; the MPS of a step that asked: mpsctl status {job}.STEP"
        ),
        (false, true) => ": submit it with -A MPS=true".to_owned(),
        (true, false) => format!(
            "; on its own: srun --jobid={job} --overlap mpsctl status, after its end mpsctl report {job}"
        ),
        (false, false) => format!("; if it has ended: mpsctl report {job}"),
    };
    format!("job {job} has no MPS on this node{hint}")
}
