//! Collects the jobs with MPS on this node, from root's journals, the kernel and NVML.

use super::super::NAME;
use super::super::status::model::{ClientStatus, JobStatus, NvmlLists};
use crate::job::Journal;
use crate::job::ledger::{self, Ledger};
use crate::job::node::{Gpus as _, Members as _, Role};
use crate::job::store::Store as _;
use crate::node::real::RealNode;
use mpsd_core::config::Settings;
use mpsd_core::gpu::GpuProcess;
use mpsd_core::record::RecordState;
use mpsd_core::{Failure, GpuUuid, JobId};

/// The jobs with MPS on this node.
#[derive(Debug, Default)]
pub struct NodeStatus {
    /// The jobs.
    pub jobs: Vec<JobStatus>,
    /// Jobs with an unreadable journal.
    pub unread: usize,
    /// What waits for a second look.
    pub suspicions: usize,
    /// NVML has answered; `None`: it was not asked, as no job has MPS.
    pub nvml: Option<bool>,
    /// What could not be read, a line each.
    pub problems: Vec<String>,
}

impl NodeStatus {
    /// Reads the journals, and asks NVML if a job has MPS.
    ///
    /// # Errors
    /// Our own directories cannot be read.
    pub fn collect(settings: &Settings) -> Result<Self, Failure> {
        let limit = settings.deadline;
        let mut node = RealNode::new(NAME, settings, limit, limit / 2);
        let mut status = Self::default();
        let mut journals = Vec::new();
        for name in node.job_directories()? {
            let id = JobId::parse(&name).map_err(Failure::from);
            match id.and_then(|id| node.read_journal(&id)) {
                Ok(journal) => journals.extend(journal),
                Err(_) => status.unread += 1,
            }
        }
        status.suspicions = Ledger::read(&mut node).suspicions.len();
        let hung = ledger::hung_worker(&mut node).filter(|_| !journals.is_empty());
        let lists = match hung {
            Some(worker) => {
                let why =
                    format!("NVML is not asked: process {worker}, which asked it earlier, still hangs in it");
                (status.nvml, status.problems) = (Some(false), vec![why]);
                NvmlLists::new()
            }
            None => status.ask_nvml(&mut node, &journals),
        };
        if let Some(silent) = node.silent_nvml() {
            ledger::remember_worker(&mut node, silent);
        }
        let jobs = journals
            .iter()
            .filter_map(|journal| job(&mut node, journal, &journals, &lists));
        status.jobs = jobs.collect();
        Ok(status)
    }

    /// NVML's list of each GPU of a job, up to the first question without an answer.
    fn ask_nvml(&mut self, node: &mut RealNode, journals: &[Journal]) -> NvmlLists {
        let mut lists = NvmlLists::new();
        for journal in journals {
            node.use_nvml(&journal.nvml);
            for gpu in &journal.gpus {
                if lists.contains_key(&gpu.uuid) {
                    continue;
                }
                match node.gpu_processes(&gpu.uuid) {
                    Ok(list) => drop(lists.insert(gpu.uuid.clone(), list)),
                    Err(failure) => {
                        self.nvml = Some(false);
                        self.problems.push(failure.to_string());
                        return lists;
                    }
                }
                self.nvml = Some(true);
            }
        }
        lists
    }

    /// How many jobs are in this [`phase`].
    pub fn count(&self, in_phase: &str) -> usize {
        self.jobs.iter().filter(|job| phase(job) == in_phase).count()
    }
}

/// The label `state` of a job.
pub fn phase(job: &JobStatus) -> &'static str {
    match job.state {
        _ if job.left => "left",
        RecordState::Ready => "ready",
        _ => "starting",
    }
}

fn job(node: &mut RealNode, journal: &Journal, all: &[Journal], lists: &NvmlLists) -> Option<JobStatus> {
    let mut job = JobStatus::new(Some(journal), None)?;
    if journal.ready_ms.is_some() {
        job.state = RecordState::Ready;
    }
    let own = node.own(journal);
    let living = own
        .iter()
        .filter(|m| m.role == Role::Control && !m.is_defunct())
        .count();
    job.daemons
        .iter_mut()
        .skip(living)
        .for_each(|daemon| daemon.ended = true);
    for gpu in &mut job.gpus {
        let list = lists.get(&gpu.uuid);
        gpu.clients = list.map(|list| clients(node, journal, all, &gpu.uuid, list));
    }
    Some(job)
}

/// The clients of the job's user on `gpu`. If several jobs of that user have MPS there, those that root proves to be this job's.
fn clients(
    node: &mut RealNode,
    journal: &Journal,
    all: &[Journal],
    gpu: &GpuUuid,
    list: &[GpuProcess],
) -> Vec<ClientStatus> {
    let is_there =
        |other: &&Journal| other.uid == journal.uid && other.gpus.iter().any(|known| known.uuid == *gpu);
    let alone = all.iter().filter(is_there).count() <= 1;
    let mut is_client = |process: &&GpuProcess| {
        process.mps_client
            && node
                .is_of_job(journal, process.pid)
                .is_some_and(|its| alone || its)
    };
    let clients = list.iter().filter(|process| is_client(process));
    let client = |process: &GpuProcess| ClientStatus {
        pid: process.pid,
        memory: process.memory,
        ..ClientStatus::default()
    };
    clients.map(client).collect()
}
