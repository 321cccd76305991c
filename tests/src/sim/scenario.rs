//! Scenarios: a node, a site's settings, a job. From them comes a plan, and from the plan everything else.

use mpsd::job::Journal;
use mpsd::job::journal::{DrainPolicy, JournalDaemon, VERSION};
use mpsd::job::spec::{OverLimit, Spec, SpecDaemon};
use mpsd::plan::effects::Plan;
use mpsd::plan::{self, Case};
use mpsd::scheduler::{Devices, Exclusive, GpuName, GpuSource};
use mpsd_core::config::{Asker, Config};
use mpsd_core::record::RecordGpu;
use mpsd_core::request::Wording;
use mpsd_core::{ComputeMode, Failure, Gpu, GpuUuid, Inventory, JobId, Paths, Refusal, Request, Scheduler};

/// The user of every scenario.
pub const UID: u32 = 1001;

/// A node, a site, a job.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// What it is called, also as the name of its snapshot.
    pub name: &'static str,
    /// The job's words.
    pub account: &'static str,
    /// Lines of `mpsd.toml`.
    pub config: &'static str,
    /// The node.
    pub inventory: Inventory,
    /// What the scheduler gave.
    pub devices: Devices,
    /// A Slurm step's own daemon.
    pub step: bool,
}

/// A GPU of the H200's kind.
pub fn h200(index: u32) -> Gpu {
    Gpu {
        index,
        uuid: GpuUuid::parse(&format!("GPU-{index:08x}-0000-4000-8000-000000000000")).expect("uuid"),
        name: "NVIDIA H200".to_owned(),
        memory_mib: 143_771,
        mode: ComputeMode::Default,
        mig: false,
        capability: (9, 0),
        minor: Some(index),
    }
}

impl Scenario {
    /// A job of `account` that alone holds every GPU of a node with `gpus` of them.
    pub fn new(name: &'static str, account: &'static str, gpus: u32) -> Self {
        Self {
            name,
            account,
            config: "",
            inventory: Inventory {
                gpus: (0..gpus).map(h200).collect(),
            },
            devices: Devices {
                gpus: GpuSource::Listed((0..gpus).map(GpuName::Index).collect()),
                exclusive: Exclusive::GpusAlone,
                whole_node: false,
                tasks_on_node: None,
            },
            step: false,
        }
    }

    /// With these lines in the configuration.
    pub fn config(mut self, config: &'static str) -> Self {
        self.config = config;
        self
    }

    /// With other devices.
    pub fn devices(mut self, change: impl FnOnce(&mut Devices)) -> Self {
        change(&mut self.devices);
        self
    }

    /// With another node.
    pub fn gpus(mut self, change: impl FnOnce(&mut Vec<Gpu>)) -> Self {
        change(&mut self.inventory.gpus);
        self
    }

    /// As a step of a Slurm job.
    pub fn step(mut self) -> Self {
        self.step = true;
        self
    }

    /// The job.
    pub fn job(&self) -> JobId {
        JobId::parse(if self.step { "4711.3" } else { "4711" }).expect("job id")
    }

    /// The plan, made in the prologue's own order: settings of the node's products, GPUs, defaults and ceilings, plan.
    ///
    /// # Errors
    /// As the prologue's.
    pub fn plan(&self) -> Result<Plan, Failure> {
        let products: Vec<&str> = self.inventory.gpus.iter().map(|g| g.name.as_str()).collect();
        let settings = Config::parse(self.config)
            .and_then(|c| c.for_node("gpu001", &products))
            .expect("the scenario's configuration");
        let asked = Request::from_account(self.account)?
            .ok_or_else(|| Refusal::new("scenario", "it does not ask for MPS", ""))?;
        let rules = (&settings).into();
        let gpus = plan::gpus::of_job(&self.devices, &self.inventory, rules)?;
        let tasks = plan::tasks_per_gpu(&self.devices, gpus.len());
        let asker = Asker {
            gpus: &gpus,
            tasks,
            wording: Wording::Account,
        };
        let request = settings.resolve(&asked, &asker)?;
        plan::plan(&Case {
            job: &self.job(),
            uid: UID,
            step: self.step,
            request: &request,
            devices: &self.devices,
            inventory: &self.inventory,
            rules,
        })
    }
}

/// The journal with which a prologue begins `plan`.
pub fn journal(plan: &Plan) -> Journal {
    let paths = Paths::new("/run/mpsd", "/var/lib/mpsd").job(&plan.job);
    let count = plan.daemons.len();
    Journal {
        version: VERSION,
        job: plan.job.clone(),
        scheduler: Scheduler::Slurm,
        node: "gpu001".to_owned(),
        user: "alice".to_owned(),
        uid: plan.uid,
        gid: plan.uid,
        plan: plan.effects.clone(),
        begun: 0,
        gpus: plan
            .gpus()
            .zip(0..)
            .map(|(uuid, index)| RecordGpu {
                index,
                uuid: uuid.clone(),
            })
            .collect(),
        daemons: plan
            .daemons
            .iter()
            .enumerate()
            .map(|(n, d)| JournalDaemon {
                gpus: d.gpus.clone(),
                pipe: paths.pipe(n, count),
                log: paths.log(n, count),
            })
            .collect(),
        control: "/usr/bin/nvidia-cuda-mps-control".into(),
        nvml: "libnvidia-ml.so.1".to_owned(),
        cgroup: None,
        supervisor: None,
        drain: DrainPolicy {
            enabled: true,
            prefix: "mpsd:".to_owned(),
            on_defunct: false,
            slurm_conf: None,
        },
        kill_clients: false,
        began: 0,
    }
}

/// What `mpsd` is told for `plan`.
pub fn spec(plan: &Plan, journal: &Journal) -> Spec {
    Spec {
        job: plan.job.as_str().to_owned(),
        uid: plan.uid,
        control: journal.control.clone(),
        nvml: journal.nvml.clone(),
        daemons: plan
            .daemons
            .iter()
            .zip(&journal.daemons)
            .map(|(plan, place)| SpecDaemon {
                gpus: plan.gpus.clone(),
                pipe: place.pipe.clone(),
                log: place.log.clone(),
                threads: plan.threads,
                memory: plan.memory.clone(),
                priority: plan.priority,
            })
            .collect(),
        start_ms: 1000,
        command_ms: 1000,
        over_limit: OverLimit::Off,
    }
}
