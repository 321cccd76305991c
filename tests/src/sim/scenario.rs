//! Scenarios: a node, a site's settings, a job. From them comes a plan, and from the plan
//! everything else.

use super::{SharedWorld, World, paths};
use batch::{
    Devices, Exclusive, GpuName, GpuSource, Location, Part, Submission, Unattached, UserRef,
};
use mpsd::job::{Ending, Job, ReturnWhen, Scheduled, User};
use mpsd::plan::effects::Plan;
use mpsd::plan::{Asked, decide};
use mpsd_core::config::Settings;
use mpsd_core::gpu::Mig;
use mpsd_core::request::Syntax;
use mpsd_core::{
    ComputeMode, Failure, Gpu, GpuUuid, Inventory, JobId, Refusal, Request, Scheduler,
};
use mpsd_sys::deadline::Deadline;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

const NODE: &str = "gpu001";
pub const UID: u32 = 1001;
const PART: Part = Part {
    own: 2,
    all: 16,
    of_threads: false,
};

#[derive(Debug, Clone)]
pub struct Scenario {
    pub name: &'static str,
    pub number: u32,
    pub account: &'static str,
    pub config: &'static str,
    pub inventory: Inventory,
    /// Its first GPU is found in EXCLUSIVE_PROCESS.
    pub exclusive: bool,
    pub devices: Devices,
    pub step: bool,
    pub scheduler: Scheduler,
    pub sister: bool,
    /// Its tasks could run outside its MPS; whether its user has no way round that.
    pub unattached: Option<bool>,
    pub when: ReturnWhen,
    pub record: bool,
    pub by_site: bool,
    /// Its batch script, where the scheduler has placed it already.
    pub script: Option<&'static str>,
    /// How the ledger's GPUs differ from `inventory`.
    pub remembered: Option<fn(&mut Gpu)>,
}

pub fn h200(index: u32) -> Gpu {
    let uuid = format!("GPU-{index:08x}-0000-4000-8000-000000000000");
    Gpu {
        index,
        uuid: GpuUuid::parse(&uuid).expect("uuid"),
        name: "NVIDIA H200".to_owned(),
        memory_mib: Some(143_771),
        mig: Mig::Off,
        capability: (9, 0),
        minor: Some(index),
        cpus: None,
    }
}

/// 1, 2 and 4 of 7 slices, and as many eighths of the memory (profiles 1g.18gb, 2g.35gb and 4g.71gb
/// of an H200; NVIDIA's guide, "Supported MIG profiles").
pub fn mig(gpu: &Gpu, number: u32) -> Gpu {
    let (slices, eighths) = (1 << number, 1 << number);
    let uuid = format!("MIG-{:08x}-{number:04x}-5000-8000-000000000000", gpu.index);
    Gpu {
        uuid: GpuUuid::parse(&uuid).expect("uuid"),
        name: format!("{} MIG {slices}g.{}gb", gpu.name, 18 * eighths),
        memory_mib: gpu.memory_mib.map(|all| all * eighths / 8),
        mig: Mig::Device {
            slices: slices as u32,
            of: 7,
        },
        ..gpu.clone()
    }
}

impl Scenario {
    /// In words: the number of GPUs, the account string, and how it differs from a job that has all
    /// GPUs of its node alone. `script=` and `config=` take the rest of the line.
    pub fn new(name: &'static str, text: &str) -> Self {
        let text: &'static str = text.to_owned().leak();
        let (text, config) = text.split_once(" config=").unwrap_or((text, ""));
        let script = text.split_once(" script=");
        let mut words = script.map_or(text, |(words, _)| words).split_whitespace();
        let gpus = words.next().and_then(|gpus| gpus.parse().ok());
        let gpus: u32 = gpus.expect("a number of GPUs");
        let scenario = Self {
            name,
            number: 4711,
            account: words.next().expect("an account string"),
            config: config.replace("; ", "\n").leak(),
            inventory: Inventory {
                gpus: (0..gpus).map(h200).collect(),
                driver: "580.159.04".to_owned(),
                migs: Vec::new(),
            },
            exclusive: false,
            devices: Devices {
                gpus: GpuSource::Listed((0..gpus).map(GpuName::Index).collect()),
                exclusive: Exclusive::GpusAlone,
                whole_node: false,
                tasks_on_node: None,
                uneven: false,
            },
            step: false,
            scheduler: Scheduler::Slurm,
            sister: false,
            unattached: None,
            when: ReturnWhen::Ready,
            record: false,
            by_site: false,
            script: script.map(|(_, script)| script),
            remembered: None,
        };
        words.fold(scenario, Self::word)
    }

    fn word(mut self, word: &'static str) -> Self {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let number = || value.parse().unwrap_or_else(|_| panic!("{word}"));
        let names = || GpuName::parse_list(value).expect("GPUs");
        match key {
            "tasks" => self.devices.tasks_on_node = Some(number()),
            "shared" => self.devices.exclusive = Exclusive::Shared(None),
            "part" => self.devices.exclusive = Exclusive::Shared(Some(PART)),
            "perhaps-shared" => self.devices.exclusive = Exclusive::Unknown,
            "whole-node" => self.devices.whole_node = true,
            "no-gpu" => self.devices.gpus = GpuSource::None,
            "unknown" => self.devices.gpus = GpuSource::Unknown("no file".to_owned()),
            "counted" => {
                let (count, why) = (number(), "no names".to_owned());
                self.devices.gpus = GpuSource::Counted { count, why };
            }
            "listed" => self.devices.gpus = GpuSource::Listed(names()),
            "and" => match &mut self.devices.gpus {
                GpuSource::Listed(listed) => listed.extend(names()),
                _ => panic!("{word}"),
            },
            // As `1:0/1,0/2`: how many GPUs have three MIG devices each, and which of these the job
            // has.
            "divided" => {
                let (divided, given) = value.split_once(':').expect("GPUs and parts");
                let divided = divided.parse().expect("a number");
                let Inventory { gpus, migs, .. } = &mut self.inventory;
                for gpu in gpus.iter_mut().take(divided) {
                    gpu.mig = Mig::On;
                    migs.extend((0..3).map(|number| mig(gpu, number)));
                }
                let name = |part: &str| {
                    let (gpu, number) = part.split_once('/')?;
                    let gpu: usize = gpu.parse().ok()?;
                    let device = mig(&gpus[gpu], number.parse().ok()?);
                    Some(GpuName::Uuid(device.uuid.to_string()))
                };
                let given = given.split(',').filter_map(name).collect();
                self.devices.gpus = GpuSource::Listed(given);
            }
            "old" => {
                let gpu = &mut self.inventory.gpus[number() as usize];
                (gpu.name, gpu.capability) = ("Tesla P100".to_owned(), (6, 0));
                gpu.memory_mib = Some(16_384);
            }
            "unlike" => self.inventory.gpus[1].name = "NVIDIA H100 PCIe".to_owned(),
            "driver" => self.inventory.driver = value.to_owned(),
            "torque" => self.scheduler = Scheduler::Torque,
            "openpbs" => self.scheduler = Scheduler::OpenPbs,
            "sister" => self.sister = true,
            "unattached" => self.unattached = Some(true),
            "by-hand" => self.unattached = Some(false),
            "step" => self.step = true,
            "site" => self.by_site = true,
            "recorded" => self.record = true,
            // As Slurm's plugin calls us: another process finishes the start, and the tasks read
            // failures.
            "detached" => (self.when, self.record) = (ReturnWhen::Started, true),
            // As OpenPBS's hook calls us: the record says from the beginning that it is under way.
            "announced" => (self.when, self.record) = (ReturnWhen::Announced, true),
            "found-exclusive" => self.exclusive = true,
            "remembered" => self.remembered = Some(|_| {}),
            "number" => self.number = number(),
            _ => panic!("{word}"),
        }
        self
    }

    /// An earlier job began here, when the GPUs were as `otherwise` makes them.
    pub fn remembered(mut self, otherwise: fn(&mut Gpu)) -> Self {
        self.remembered = Some(otherwise);
        self
    }

    pub fn node(&self) -> SharedWorld {
        Rc::new(RefCell::new(self.world()))
    }

    pub fn world(&self) -> World {
        let mut world = World::new(self.inventory.clone());
        if self.exclusive {
            let uuid = &self.inventory.gpus[0].uuid;
            world.set_mode(uuid, ComputeMode::ExclusiveProcess);
        }
        if let Some(ledger) = self.ledger() {
            world.put(paths().run().join("ledger"), ledger);
        }
        world
    }

    pub fn ledger(&self) -> Option<String> {
        let otherwise = self.remembered?;
        let mut known = self.inventory.clone();
        known.gpus.iter_mut().for_each(otherwise);
        Some(serde_json::json!({"version": 1, "gpus": known}).to_string())
    }

    pub fn id(&self) -> JobId {
        let step = if self.step { ".3" } else { "" };
        JobId::parse(&format!("{}{step}", self.number)).expect("job id")
    }

    /// The id under which its daemons run: its own, or that of its user's shared MPS.
    pub fn mps_id(&self) -> JobId {
        match self.plan().expect("a plan").shared_plans.first() {
            Some(shared) => shared.record.job.clone(),
            None => self.id(),
        }
    }

    pub fn settings(&self) -> Settings {
        Settings::parse(self.config, NODE).expect("the scenario's configuration")
    }

    pub fn job(&self) -> Result<Job, Failure> {
        let request = Request::from_account(self.account)?
            .ok_or_else(|| Refusal::new("scenario", "it does not ask for MPS", ""))?;
        Ok(Job {
            submission: self.submission(),
            asked: Asked {
                request,
                syntax: Syntax::Account,
                by_site: self.by_site,
            },
            settings: self.settings(),
            user: User {
                name: "alice".to_owned(),
                uid: UID,
                gid: UID,
            },
            node: NODE.to_owned(),
            location: Location::default(),
            tells_tasks: self.record,
            deadline: Deadline::after(Duration::from_secs(20)),
        })
    }

    fn submission(&self) -> Submission {
        Submission {
            scheduler: self.scheduler,
            sister: self.sister,
            job: self.id(),
            user: UserRef::Uid(UID),
            account: None,
            resource: None,
            queue: None,
            node: None,
            interactive: false,
            script: false,
            step: self.step,
            sluid: None,
        }
    }

    pub fn ending<'a>(&self, settings: &'a Settings) -> Ending<'a> {
        Ending {
            settings,
            scheduler: self.scheduler,
            node: NODE,
        }
    }

    pub fn plan(&self) -> Result<Plan, Failure> {
        let job = self.job()?;
        decide(&job.case(&self.devices, &self.inventory))
    }
}

impl Scheduled for Scenario {
    fn script(&self) -> Option<String> {
        self.script.map(str::to_owned)
    }

    fn unattached(&self) -> Option<Unattached> {
        self.unattached.map(|no_way_round| Unattached {
            why: "no starter".to_owned(),
            remedy: "'mpsctl pbs install'".to_owned(),
            no_way_round,
        })
    }

    fn devices(&self) -> Result<Devices, Failure> {
        Ok(self.devices.clone())
    }
}
