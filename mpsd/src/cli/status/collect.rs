//! Collects the status of jobs: a user's from the record and the daemons; root's from the journals, through processes
//! of the user, which may hang in root's place.

use super::super::attach::Caller;
use super::attached::Verdict;
use super::model::{JobStatus, NvmlLists};
use crate::daemon::queries::{self, AnswerError, DaemonAnswer};
use crate::job::Journal;
use crate::job::store::Store as _;
use crate::node::clients::{is_of, tasks};
use crate::node::real::RealNode;
use crate::node::worker::{NvmlWorker, Question};
use crate::scheduler::drain::{Marker, markers};
use mpsd_core::config::Settings;
use mpsd_core::environment::PIPE_DIRECTORY;
use mpsd_core::failure::{Evidence, Fault};
use mpsd_core::record::{self, RecordRead};
use mpsd_core::text::one_line;
use mpsd_core::{Failure, JobId, Refusal};
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest wait for the daemons of one job, and for one answer of NVML.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest line about a job without a status, characters.
const LONGEST_LINE: usize = 300;

type Answers = Vec<Result<DaemonAnswer, AnswerError>>;

/// What `mpsctl status` shows.
#[derive(Debug, Default)]
pub struct Collected {
    /// Whether the calling task is under MPS, if it is in a job.
    pub verdict: Option<Verdict>,
    pub jobs: Vec<JobStatus>,
    /// A line for each job without a status.
    pub unread: Vec<String>,
    /// One job was named.
    pub named: bool,
    /// For root: a line for each drain of this node by us.
    pub drains: Vec<String>,
}

impl Collected {
    fn only(verdict: Verdict) -> Self {
        Self {
            verdict: Some(verdict),
            ..Self::default()
        }
    }
}

/// For a user: the named job, or the job of the calling task.
///
/// # Errors
/// The name is invalid, the job is another user's, or its record cannot be read.
pub fn for_user(caller: &Caller<'_>, worker: &Path) -> Result<Collected, Failure> {
    let ids = caller.ids()?;
    let (settings, broken) = caller.settings();
    let Some(job) = ids.last() else {
        let because = "this is no job: SLURM_JOB_ID and PBS_JOBID are not set";
        return Ok(Collected::only(Verdict::no(because)));
    };
    let mut found = None;
    for id in &ids {
        let path = settings.paths.job(id).record();
        match record::look(&path) {
            Ok(RecordRead::Absent) => continue,
            Ok(RecordRead::Found(record)) => found = Some(*record),
            Ok(RecordRead::Denied(why)) | Err(why) => {
                return Err(
                    Fault::new(Evidence::Storage, format!("record '{}'", path.display()), why).into(),
                );
            }
        }
        break;
    }
    let (record, mut status) = match (found, broken) {
        (Some(record), _) => match JobStatus::new(None, Some(record.clone())) {
            Some(status) => (record, status),
            None => return Ok(Collected::default()),
        },
        (None, Some(error)) => return Err(error.into()),
        (None, None) => {
            return Ok(Collected::only(Verdict::no(format!(
                "job {job} has no MPS on this node"
            ))));
        }
    };
    if record.uid != 0 && record.uid != caller.uid {
        return Err(Refusal::new(format!("job {}", record.job), "its MPS is another user's", "").into());
    }
    let answers = queries::ask_all(&settings.control, &record.daemons, PATIENCE);
    add(&mut status, answers, &settings.nvml, worker);
    let pipe = (caller.env)(PIPE_DIRECTORY).filter(|pipe| !pipe.is_empty());
    // The verdict is for a task of this job only.
    let own = || {
        Caller { job: None, ..*caller }
            .ids()
            .is_ok_and(|own| own.ends_with(&ids))
    };
    let is_own = caller.job.is_none() || own();
    Ok(Collected {
        verdict: is_own.then(|| Verdict::of(&status, pipe.as_deref())),
        jobs: vec![status],
        named: true,
        ..Collected::default()
    })
}

/// For root: the named job, or all jobs of the node.
///
/// # Errors
/// The name is invalid, or our own directories cannot be read.
pub fn for_root(caller: &Caller<'_>, worker: &Path) -> Result<Collected, Failure> {
    let (settings, _) = caller.settings();
    let mut node = RealNode::new(
        super::super::NAME,
        &settings,
        settings.deadline,
        settings.deadline / 2,
    );
    let mut all = Collected {
        named: caller.job.is_some(),
        ..Collected::default()
    };
    let names = match caller.job {
        Some(job) => vec![JobId::parse(job)?.directory_name()],
        None => {
            all.drains = markers::all(&settings.paths).iter().map(drain_line).collect();
            node.job_directories()?
        }
    };
    for name in names {
        match status_of(&mut node, &settings, &name, worker) {
            Ok(status) => all.jobs.extend(status),
            // An unreadable job does not hide the others.
            Err(why) => all
                .unread
                .push(one_line(&format!("job {name}: {why}"), LONGEST_LINE)),
        }
    }
    if let Some(job) = caller
        .job
        .filter(|_| all.jobs.is_empty() && all.unread.is_empty())
    {
        all.verdict = Some(Verdict::no(format!("job {job} has no MPS on this node")));
    }
    Ok(all)
}

/// A drain, by root's own file. The scheduler is not asked: it may be slow, and 'mpsctl doctor' asks it.
fn drain_line(marker: &Marker) -> String {
    let Marker { node, reason, .. } = marker;
    match marker.delivered {
        true => format!(
            "node '{node}' was drained by us ({reason}); 'mpsctl undrain' lifts it after a clean recheck"
        ),
        false => format!(
            "node '{node}' is to be drained ({reason}), and its scheduler has not got that yet; no job gets MPS here until then"
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
    let record = match record::look(&settings.paths.job(&id).record()) {
        Ok(RecordRead::Found(record)) => Some(*record),
        _ => None,
    };
    let Some(mut status) = JobStatus::new(journal.as_ref(), record) else {
        return Ok(None);
    };
    let answers = journal.as_ref().map(|journal| ask_as_user(node, journal));
    let nvml = journal.as_ref().map_or(&settings.nvml, |journal| &journal.nvml);
    add(&mut status, answers.unwrap_or_default(), nvml, worker);
    Ok(Some(status))
}

/// The answers of a job's daemons to a process of its user.
fn ask_as_user(node: &RealNode, journal: &Journal) -> Answers {
    let began = Instant::now();
    let line = node.ask_daemons(journal, PATIENCE);
    let waited = began.elapsed();
    let answers: Option<Answers> = line.and_then(|line| serde_json::from_slice(&line).ok());
    let count = journal.daemons.len();
    answers
        .filter(|answers| answers.len() == count)
        .unwrap_or_else(|| {
            let why = match waited < PATIENCE {
                true => "no answer: its user's process that asks it did not start, or failed".to_owned(),
                false => format!("no answer within {} ms", waited.as_millis()),
            };
            vec![Err(AnswerError::Failed(why)); count]
        })
}

/// Adds the answers to `status`. A daemon may name any pid: those of other users are left out.
fn add(status: &mut JobStatus, mut answers: Answers, nvml: &str, worker: &Path) {
    for answer in answers.iter_mut().flatten() {
        answer.servers.retain(|server| is_of(status.uid, server.pid));
        answer.clients.retain(|client| is_of(status.uid, client.pid));
    }
    let clients = answers.iter().flatten().flat_map(|answer| &answer.clients);
    let pids: Vec<i32> = clients.map(|client| client.pid).collect();
    let lists = match pids.is_empty() {
        true => NvmlLists::new(),
        false => processes(status, nvml, worker),
    };
    status.add_answers(&answers, &lists, &tasks(status.uid, &pids));
}

/// NVML's lists up to its first failure: without them only the memory is not shown.
fn processes(status: &JobStatus, nvml: &str, worker: &Path) -> NvmlLists {
    let Ok(mut worker) = NvmlWorker::start(worker, nvml, PATIENCE) else {
        return NvmlLists::new();
    };
    let mut list = |uuid: &mpsd_core::GpuUuid| worker.ask(&Question::Processes(uuid.clone())).ok();
    let lists = status
        .gpus
        .iter()
        .map_while(|gpu| Some((gpu.uuid.clone(), list(&gpu.uuid)?)));
    lists.collect()
}
