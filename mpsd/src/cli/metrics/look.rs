//! One look at the jobs with MPS on this node. Root's journals, the kernel and NVML are asked, and nothing that a user's process
//! could hold up, or lie in.

use crate::job::Journal;
use crate::job::node::{Gpus as _, Members as _, Role};
use crate::job::store::Store as _;
use crate::node::hung_worker;
use crate::node::real::RealNode;
use mpsd_core::config::Settings;
use mpsd_core::gpu::GpuProcess;
use mpsd_core::{Failure, GpuUuid, JobId};
use std::collections::BTreeMap;

/// What was seen.
#[derive(Debug, Default)]
pub struct NodeSnapshot {
    /// The jobs.
    pub jobs: Vec<SeenJob>,
    /// How many more there are whose journal cannot be read.
    pub unread: usize,
    /// What waits for a second look.
    pub suspicions: usize,
    /// NVML has answered; `None`: it was not asked, as no job has MPS.
    pub nvml: Option<bool>,
    /// What could not be learnt, a line each.
    pub missing: Vec<String>,
}

/// A job with MPS.
#[derive(Debug)]
pub struct SeenJob {
    /// Its id.
    pub job: JobId,
    /// What became of it.
    pub state: JobPhase,
    /// Seconds since 1970 at which it began.
    pub began: u64,
    /// How many of its control daemons are not there; of one that is ready they have ended.
    pub daemons_lost: usize,
    /// Its GPUs.
    pub gpus: Vec<SeenGpu>,
}

/// What became of a job's MPS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
#[display(rename_all = "lowercase")]
pub enum JobPhase {
    /// It is to be proved.
    Starting,
    /// It was proved ready.
    Ready,
    /// It was taken down, and something of it is here still.
    Left,
}

/// A GPU of a job.
#[derive(Debug)]
pub struct SeenGpu {
    /// NVML's index.
    pub index: u32,
    /// Its UUID.
    pub uuid: GpuUuid,
    /// The job's clients on it, and what they hold of its memory, bytes; `None`: NVML has not told.
    pub clients: Option<(usize, u64)>,
}

/// Looks.
///
/// # Errors
/// Our own directories cannot be read.
pub fn look(settings: &Settings) -> Result<NodeSnapshot, Failure> {
    let limit = settings.deadline;
    let mut node = RealNode::new(super::NAME, settings, limit, limit / 2);
    let mut seen = NodeSnapshot::default();
    let mut journals = Vec::new();
    for name in node.job_directories()? {
        match JobId::parse(&name)
            .map_err(Failure::from)
            .and_then(|id| node.read_journal(&id))
        {
            Ok(journal) => journals.extend(journal),
            Err(_) => seen.unread += 1,
        }
    }
    seen.suspicions = node.suspicions().len();
    let hung = hung_worker::earlier(&mut node);
    let lists = match hung.filter(|_| !journals.is_empty()) {
        Some(worker) => {
            let why = format!(
                "NVML is not asked: process {worker}, which an earlier look asked, hangs in it still"
            );
            (seen.nvml, seen.missing) = (Some(false), vec![why]);
            Lists::new()
        }
        None => processes(&mut node, &journals, &mut seen),
    };
    if let Some(silent) = node.silent_nvml() {
        hung_worker::remember(&mut node, silent);
    }
    seen.jobs = journals
        .iter()
        .map(|journal| of_job(&mut node, journal, &journals, &lists))
        .collect();
    Ok(seen)
}

type Lists = BTreeMap<GpuUuid, Vec<GpuProcess>>;

/// NVML's list of each GPU of a job. The first question that it leaves open is the last.
fn processes(node: &mut RealNode, journals: &[Journal], seen: &mut NodeSnapshot) -> Lists {
    let mut lists = Lists::new();
    for journal in journals {
        node.use_nvml(&journal.nvml);
        for gpu in &journal.gpus {
            if lists.contains_key(&gpu.uuid) {
                continue;
            }
            match node.gpu_processes(&gpu.uuid) {
                Ok(list) => drop(lists.insert(gpu.uuid.clone(), list)),
                Err(failure) => {
                    seen.nvml = Some(false);
                    seen.missing.push(failure.to_string());
                    return lists;
                }
            }
            seen.nvml = Some(true);
        }
    }
    lists
}

fn of_job(node: &mut RealNode, journal: &Journal, all: &[Journal], lists: &Lists) -> SeenJob {
    let state = match journal.ready_ms {
        _ if journal.left => JobPhase::Left,
        Some(_) => JobPhase::Ready,
        None => JobPhase::Starting,
    };
    let own = node.own(journal);
    let living = own.iter().filter(|m| m.role == Role::Control && !m.is_defunct());
    let lost = journal.daemons.len().saturating_sub(living.count());
    let gpus = journal.gpus.iter().map(|gpu| SeenGpu {
        index: gpu.index,
        uuid: gpu.uuid.clone(),
        clients: lists
            .get(&gpu.uuid)
            .map(|list| of_gpu(node, journal, all, &gpu.uuid, list)),
    });
    SeenJob {
        job: journal.job.clone(),
        state,
        began: journal.began,
        daemons_lost: lost,
        gpus: gpus.collect(),
    }
}

/// The clients of the job's user; where several jobs of that user have MPS on the GPU, those that root proves to be this one's.
fn of_gpu(
    node: &mut RealNode,
    journal: &Journal,
    all: &[Journal],
    gpu: &GpuUuid,
    list: &[GpuProcess],
) -> (usize, u64) {
    let is_there =
        |other: &&Journal| other.uid == journal.uid && other.gpus.iter().any(|known| known.uuid == *gpu);
    let alone = all.iter().filter(is_there).count() <= 1;
    let mut is_client = |process: &&GpuProcess| {
        process.mps_client
            && node.uid_of(process.pid) == Some(journal.uid)
            && (alone || node.is_of_job(journal, process.pid))
    };
    let clients: Vec<&GpuProcess> = list.iter().filter(|process| is_client(process)).collect();
    let held = clients.iter().filter_map(|process| process.memory);
    (clients.len(), held.fold(0, u64::saturating_add))
}
