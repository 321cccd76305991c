//! Learns what a job's MPS is now: its user from root's record and the own daemons, root from the journals, through
//! processes that may hang in its place.

use super::super::attach::Caller;
use super::view::{Learnt, Subject, View, view};
use super::whether::{Whether, whether};
use crate::daemon::inquiry::{self, Said, Silence};
use crate::job::Journal;
use crate::job::store::Store as _;
use crate::node::clients::{is_of, tasks};
use crate::node::real::RealNode;
use crate::node::worker::{NvmlWorker, Question};
use crate::scheduler::drain::{Marker, markers};
use mpsd_core::config::Settings;
use mpsd_core::environment::PIPE_DIRECTORY;
use mpsd_core::failure::{Evidence, Fault};
use mpsd_core::gpu::GpuProcess;
use mpsd_core::record::{self, Record, RecordRead};
use mpsd_core::text::one_line;
use mpsd_core::{Failure, GpuUuid, JobId, Refusal};
use std::path::Path;
use std::time::{Duration, Instant};

/// Time for the daemons of one job to answer.
const ASK_TIME: Duration = Duration::from_secs(2);
/// Time for one answer of NVML.
const NVML_TIME: Duration = Duration::from_secs(2);
/// Longest line about a job of which nothing can be told. Characters.
const LONGEST_LINE: usize = 300;

/// What there is to tell.
#[derive(Debug, Default)]
pub struct Gathered {
    /// Whether the calling task is under MPS, where it is in a job.
    pub whether: Option<Whether>,
    /// The jobs.
    pub jobs: Vec<View>,
    /// A line for each job of which nothing can be told.
    pub unread: Vec<String>,
    /// One job was asked for.
    pub asked: bool,
    /// Our drains of this node, a line each; root's to know.
    pub drains: Vec<String>,
}

/// For a user: the job that he names, or the one that the calling task is in.
///
/// # Errors
/// The name is no job's, the job is another user's, or its record cannot be read.
pub fn of_user(caller: &Caller<'_>, worker: &Path) -> Result<Gathered, Failure> {
    let ids = caller.ids()?;
    let (settings, broken) = caller.settings();
    let own = caller.job.is_none()
        || Caller { job: None, ..*caller }
            .ids()
            .is_ok_and(|own| own.ends_with(&ids));
    let Some(job) = ids.last() else {
        let because = "this is no job: SLURM_JOB_ID and PBS_JOBID are not set";
        return Ok(Gathered {
            whether: Some(Whether::no(because)),
            ..Gathered::default()
        });
    };
    let Some(record) = find(&ids, &settings)? else {
        if let Some(error) = broken {
            return Err(error.into());
        }
        return Ok(Gathered {
            whether: Some(Whether::no(format!("job {job} has no MPS on this node"))),
            ..Gathered::default()
        });
    };
    if record.uid != 0 && record.uid != caller.uid {
        return Err(Refusal::new(format!("job {}", record.job), "its MPS is another user's", "").into());
    }
    let subject = of_record(record);
    let said = inquiry::ask_all(&settings.control, &subject.daemons, ASK_TIME);
    let learnt = learn(&subject, said, &settings.nvml, worker);
    let view = view(&subject, &learnt);
    let pipe = (caller.env)(PIPE_DIRECTORY).filter(|pipe| !pipe.is_empty());
    Ok(Gathered {
        whether: own.then(|| whether(&subject, &view, pipe.as_deref())),
        jobs: vec![view],
        asked: true,
        ..Gathered::default()
    })
}

/// The first record among those of `ids`.
fn find(ids: &[JobId], settings: &Settings) -> Result<Option<Record>, Failure> {
    for id in ids {
        let path = settings.paths.job(id).record();
        match record::look(&path) {
            Ok(RecordRead::Absent) => {}
            Ok(RecordRead::Found(record)) => return Ok(Some(*record)),
            Ok(RecordRead::Denied(why)) | Err(why) => return Err(unread(&path, why)),
        }
    }
    Ok(None)
}

fn unread(path: &Path, why: String) -> Failure {
    Fault::new(Evidence::Storage, format!("record '{}'", path.display()), why).into()
}

/// For root: the job named, or all of the node.
///
/// # Errors
/// The name is no job's, or our own directories cannot be read.
pub fn of_node(caller: &Caller<'_>, worker: &Path) -> Result<Gathered, Failure> {
    let (settings, _) = caller.settings();
    let mut node = RealNode::new(
        super::super::NAME,
        &settings,
        settings.deadline,
        settings.deadline / 2,
    );
    let names = match caller.job {
        Some(job) => vec![JobId::parse(job)?.directory_name()],
        None => node.job_directories()?,
    };
    let drains = match caller.job {
        Some(_) => Vec::new(),
        None => markers::all(&settings.paths).iter().map(drained).collect(),
    };
    let (mut jobs, mut unread) = (Vec::new(), Vec::new());
    for name in names {
        match of_job(&mut node, &settings, &name, worker) {
            Ok(view) => jobs.extend(view),
            // Whatever became of one job's files, the others are told.
            Err(why) => unread.push(one_line(&format!("job {name}: {why}"), LONGEST_LINE)),
        }
    }
    let asked = caller.job.is_some();
    let none = (asked && jobs.is_empty() && unread.is_empty()).then(|| {
        Whether::no(format!(
            "job {} has no MPS on this node",
            caller.job.unwrap_or_default()
        ))
    });
    Ok(Gathered {
        whether: none,
        jobs,
        unread,
        asked,
        drains,
    })
}

/// What root's own file says of a drain. The scheduler is not asked: it may be slow, and 'mpsctl doctor' does that.
fn drained(marker: &Marker) -> String {
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

/// Root's view of one job; `None`: nothing of it is here.
fn of_job(
    node: &mut RealNode,
    settings: &Settings,
    name: &str,
    worker: &Path,
) -> Result<Option<View>, Failure> {
    let named = JobId::parse(name)?;
    let journal = node.read_journal(&named)?;
    let record = match record::look(&settings.paths.job(&named).record()) {
        Ok(RecordRead::Found(record)) => Some(*record),
        _ => None,
    };
    let Some(subject) = of_journal(journal.as_ref(), record) else {
        return Ok(None);
    };
    let said = match &journal {
        Some(journal) => heard(node, journal),
        None => Vec::new(),
    };
    let nvml = journal.as_ref().map_or(&settings.nvml, |journal| &journal.nvml);
    Ok(Some(view(&subject, &learn(&subject, said, nvml, worker))))
}

/// What a job's daemons say to a process of its user.
fn heard(node: &RealNode, journal: &Journal) -> Vec<Result<Said, Silence>> {
    let began = Instant::now();
    let line = node.ask_daemons(journal, ASK_TIME);
    let waited = began.elapsed();
    let said: Option<Vec<Result<Said, Silence>>> = line.and_then(|line| serde_json::from_slice(&line).ok());
    let count = journal.daemons.len();
    said.filter(|said| said.len() == count).unwrap_or_else(|| {
        let none = match waited < ASK_TIME {
            true => "no answer: its user's process that asks it did not start, or failed".to_owned(),
            false => format!("no answer within {} ms", waited.as_millis()),
        };
        vec![Err(Silence::NoAnswer(none)); count]
    })
}

fn of_record(record: Record) -> Subject {
    Subject {
        job: record.job,
        uid: record.uid,
        user: None,
        began: None,
        state: record.state,
        left: false,
        reason: record.reason,
        gpus: record.gpus,
        daemons: record.daemons,
    }
}

/// `None`: neither is there.
fn of_journal(journal: Option<&Journal>, record: Option<Record>) -> Option<Subject> {
    let Some(journal) = journal else {
        return record.map(of_record);
    };
    Some(Subject {
        job: journal.job.clone(),
        uid: journal.uid,
        user: Some(journal.user.clone()),
        began: Some(journal.began),
        // A journal without a record is a start that has not come so far, or an end under way.
        state: record
            .as_ref()
            .map_or(record::RecordState::Starting, |record| record.state),
        left: journal.left,
        reason: record.and_then(|record| record.reason),
        gpus: journal.gpus.clone(),
        daemons: journal.daemons.clone(),
    })
}

/// What the daemons said, as far as their user can know it: a pid of somebody else's is no server or client of the job.
fn learn(subject: &Subject, mut said: Vec<Result<Said, Silence>>, nvml: &str, worker: &Path) -> Learnt {
    for said in said.iter_mut().flatten() {
        said.servers.retain(|server| is_of(subject.uid, server.pid));
        said.clients.retain(|client| is_of(subject.uid, client.pid));
    }
    let clients = said.iter().flatten().flat_map(|said| &said.clients);
    let pids: Vec<i32> = clients.map(|client| client.pid).collect();
    Learnt {
        nvml: match pids.is_empty() {
            true => Vec::new(),
            false => counted(subject, nvml, worker),
        },
        tasks: tasks(subject.uid, &pids),
        said,
    }
}

/// NVML's lists, as far as it answers: it tells memory, and nothing else is lost without it.
fn counted(subject: &Subject, nvml: &str, worker: &Path) -> Vec<(GpuUuid, Vec<GpuProcess>)> {
    let Ok(mut worker) = NvmlWorker::start(worker, nvml, NVML_TIME) else {
        return Vec::new();
    };
    let mut lists = Vec::new();
    for gpu in &subject.gpus {
        match worker.ask(&Question::Processes(gpu.uuid.clone())) {
            Ok(list) => lists.push((gpu.uuid.clone(), list)),
            Err(_) => break,
        }
    }
    lists
}
