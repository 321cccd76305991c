//! The node itself.

use mpsd::job::account::Account;
use mpsd::job::journal::{Journal, ProcessRef};
use mpsd::job::ladder::Rung;
use mpsd::node::Role;
use mpsd_core::record::Record;
use mpsd_core::{ComputeMode, GpuUuid, Inventory, JobId};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// A process of a job's MPS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Living {
    /// Its place in the three.
    pub role: Role,
    /// Its job.
    pub job: JobId,
    /// Its user.
    pub uid: u32,
    /// The GPUs it has a context on.
    pub gpus: Vec<GpuUuid>,
    /// The highest rung of the ladder that does not end it.
    pub survives: Option<Rung>,
    /// `R`, `S`, `D`, `T`, `Z`.
    pub state: char,
}

/// A job's directory.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Job {
    /// Its journal.
    pub journal: Option<Journal>,
    /// Its record.
    pub record: Option<Record>,
    /// The user's directories in it.
    pub directories: BTreeSet<String>,
}

/// All that there is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct World {
    /// The GPUs with their compute modes.
    pub inventory: Inventory,
    /// Their accounts.
    pub accounts: BTreeMap<GpuUuid, Account>,
    /// Accounts that somebody began to write beside the old ones.
    pub half_written: BTreeSet<GpuUuid>,
    /// The lock files of accounts.
    pub gpu_locks: BTreeSet<GpuUuid>,
    /// The jobs' directories.
    pub jobs: BTreeMap<JobId, Job>,
    /// The lock files of jobs.
    pub job_locks: BTreeSet<JobId>,
    /// The cgroups.
    pub cgroups: BTreeSet<PathBuf>,
    /// The processes, by pid.
    pub processes: BTreeMap<i32, Living>,
    /// Contexts of others: GPU and pid.
    pub foreign: Vec<(GpuUuid, i32)>,
    /// What the next process of a job survives.
    pub stubborn: Option<Rung>,
    /// What a user holds those with that survive.
    pub held_by_user: Option<&'static str>,
    /// Nobody starts processes on this node: `mpsd` ends at once.
    pub stillborn: bool,
    /// This node has cgroups.
    pub has_cgroups: bool,
    /// Lines logged.
    pub log: Vec<String>,
    /// The locks that are held now.
    pub held: BTreeSet<String>,
    /// Users whose starts failed of late.
    pub failed_starts: BTreeSet<u32>,
    next_pid: i32,
}

impl World {
    /// A node with these GPUs, nothing on it.
    pub fn new(inventory: Inventory) -> Self {
        Self {
            inventory,
            has_cgroups: true,
            next_pid: 1000,
            ..Self::default()
        }
    }

    /// A new process.
    pub fn spawn(&mut self, living: Living) -> i32 {
        self.next_pid += 1;
        self.processes.insert(self.next_pid, living);
        self.next_pid
    }

    /// Sets a compute mode behind everybody's back.
    pub fn set_mode(&mut self, gpu: &GpuUuid, mode: ComputeMode) {
        for known in &mut self.inventory.gpus {
            if known.uuid == *gpu {
                known.mode = mode;
            }
        }
    }

    /// What a living `mpsd` does by itself, nobody waiting: it starts what its job still lacks, where the directories
    /// are still there. One that finds its directories gone ends.
    pub fn settle(&mut self) {
        let supervisors: Vec<(i32, Living)> = self
            .processes
            .iter()
            .filter(|(_, p)| p.role == Role::Supervisor && p.state == 'S')
            .map(|(pid, p)| (*pid, p.clone()))
            .collect();
        for (pid, mpsd) in supervisors {
            let has = |world: &Self, role| {
                world
                    .processes
                    .values()
                    .any(|p| p.role == role && p.job == mpsd.job)
            };
            let directories = self
                .jobs
                .get(&mpsd.job)
                .is_some_and(|j| !j.directories.is_empty());
            if !directories {
                self.processes.remove(&pid);
            } else if !has(self, Role::Control) && !self.stillborn {
                for role in [Role::Control, Role::Server] {
                    let gpus = if role == Role::Server {
                        mpsd.gpus.clone()
                    } else {
                        Vec::new()
                    };
                    self.spawn(Living {
                        role,
                        gpus,
                        ..mpsd.clone()
                    });
                }
            }
        }
    }

    /// What a reviewer compares: everything but pids given out, log lines and the evidence of failed starts.
    pub fn picture(&self) -> Self {
        Self {
            log: Vec::new(),
            failed_starts: BTreeSet::new(),
            next_pid: 0,
            stubborn: None,
            held_by_user: None,
            stillborn: false,
            ..self.clone()
        }
    }
}

/// What cannot be mistaken for another process: here pids are never used again.
pub fn reference(pid: i32) -> ProcessRef {
    ProcessRef {
        pid,
        start_time: pid.unsigned_abs().into(),
    }
}
