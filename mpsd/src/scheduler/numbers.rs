//! A scheduler's own numbers of GPUs, and which GPUs they are: those that the job would have without us.
//!
//! A number is a place in a list of device files. Where a task can open only its own of them, CUDA counts what is left;
//! where it can open them all, CUDA takes the number as its own index. Where the two ways lead to different GPUs and it is
//! not certain which one the job goes, there is no answer but a refusal.

use mpsd_core::failure::{Evidence, Fault};
use mpsd_core::gpu::Mig;
use mpsd_core::record::RecordDevice;
use mpsd_core::{Failure, Gpu, GpuUuid, Inventory, Refusal};
use std::path::PathBuf;

/// The way out of every doubt.
const ALLOWED: &str =
    "a list of all of the node's GPUs with ConstrainDevices=yes; 'mpsctl slurm check' says more";

/// The numbers of one job, and what is known of their meaning on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbers {
    /// In the scheduler's order.
    pub numbers: Vec<Number>,
    /// The list in which they are places.
    pub list: List,
    /// Whether a task can open only its own of the listed files; `None`: not known.
    pub confined: Option<bool>,
    /// Tasks get UUIDs instead of numbers.
    pub by_uuid: bool,
}

/// One GPU of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Number {
    /// Its place in the list, from 0.
    pub place: u32,
    /// Its UUID, where the scheduler gives it as well.
    pub uuid: Option<String>,
}

/// The scheduler's list of this node's GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum List {
    /// These files, in this order.
    Files(Vec<DeviceFile>),
    /// What the scheduler found by itself: so many GPUs, sorted by their place on the bus or by their minor number.
    Found {
        /// How many.
        count: usize,
        /// Which order.
        order: Order,
        /// Only these, where the site says so.
        only: Option<Vec<DeviceFile>>,
        /// The line that says so.
        said: String,
    },
    /// Not known.
    Unknown(String),
}

/// How a scheduler sorts the GPUs that it found by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// As NVML does.
    Bus,
    /// By the number in the device file's name.
    Minor,
}

/// A device file in a scheduler's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFile {
    /// Its path.
    pub path: PathBuf,
    /// The device's minor number.
    pub minor: u32,
    /// Where it is listed, for messages.
    pub said: String,
}

/// A listed GPU: none where NVML does not have it.
type Listed<'a> = Vec<(DeviceFile, Option<&'a Gpu>)>;

/// Where a GPU is listed.
fn entry<'l>(list: &'l [(DeviceFile, Option<&Gpu>)], gpu: &Gpu) -> Option<&'l DeviceFile> {
    let is_it = |one: &Option<&Gpu>| one.is_some_and(|one| one.uuid == gpu.uuid);
    list.iter().find(|(_, one)| is_it(one)).map(|(file, _)| file)
}

impl Numbers {
    /// The job's GPUs, in the scheduler's order.
    ///
    /// # Errors
    /// A refusal where a doubt remains; a fault where the GPU that the scheduler gave is not in NVML.
    pub fn gpus<'a>(&self, inventory: &'a Inventory) -> Result<Vec<&'a Gpu>, Failure> {
        let list = self.list.resolve(inventory);
        let given = self.numbers.iter().map(|number| given(number, &list, inventory));
        let given = given.collect::<Result<Vec<_>, _>>()?;
        if self.by_uuid || self.confined == Some(true) {
            let own: Result<Vec<&Gpu>, Failure> =
                given.into_iter().collect::<Result<_, String>>().map_err(doubt);
            return confined(own?, &list, inventory, self.by_uuid);
        }
        if let Some(gpu) = inventory.gpus.iter().find(|gpu| gpu.mig == Mig::On) {
            // CUDA shows no whole GPU beside a MIG device (docs/facts/mps-control.md#mig).
            let why = format!(
                "GPU {} is in MIG mode, and tasks may open its MIG devices",
                gpu.index
            );
            return Err(doubt(why));
        }
        let free = self.confined.is_some();
        let pairs = self.numbers.iter().zip(given);
        pairs
            .map(|(number, given)| counted(number.place, given, &list, inventory, free))
            .collect()
    }

    /// All GPUs of the node in the order of the bus, each with its device file: what a task needs to count as CUDA does.
    pub fn devices(&self, inventory: &Inventory) -> Vec<RecordDevice> {
        let list = self.list.resolve(inventory).unwrap_or_default();
        let device = |gpu: &Gpu| {
            let file = entry(&list, gpu).map(|file| file.path.clone());
            Some(RecordDevice {
                uuid: gpu.uuid.clone(),
                file: file.or_else(|| Some(format!("/dev/nvidia{}", gpu.minor?).into()))?,
            })
        };
        inventory.gpus.iter().filter_map(device).collect()
    }
}

impl List {
    /// The list with its GPUs, or why it is not known.
    pub fn resolve<'a>(&self, inventory: &'a Inventory) -> Result<Listed<'a>, String> {
        let minors: Result<Vec<(u32, &Gpu)>, String> = inventory
            .gpus
            .iter()
            .map(|gpu| {
                let minor = gpu.minor.map(|minor| (minor, gpu));
                minor.ok_or_else(|| format!("NVML does not tell the minor number of {}", gpu.uuid))
            })
            .collect();
        let mut minors = minors?;
        let of = |minor: u32| {
            minors
                .iter()
                .find(|(other, _)| *other == minor)
                .map(|(_, gpu)| *gpu)
        };
        match self {
            Self::Files(files) => Ok(files.iter().map(|file| (file.clone(), of(file.minor))).collect()),
            Self::Unknown(why) => Err(why.clone()),
            Self::Found {
                count,
                order,
                only,
                said,
            } => {
                let meant = |minor: u32| {
                    only.as_ref()
                        .is_none_or(|only| only.iter().any(|one| one.minor == minor))
                };
                minors.retain(|(minor, _)| meant(*minor));
                if minors.len() != *count {
                    let have = minors.len();
                    return Err(format!(
                        "{said} lets Slurm find its {count} GPUs by itself, and NVML has {have}"
                    ));
                }
                if *order == Order::Minor {
                    minors.sort_by_key(|(minor, _)| *minor);
                }
                let file = |minor| DeviceFile {
                    path: format!("/dev/nvidia{minor}").into(),
                    minor,
                    said: said.clone(),
                };
                Ok(minors
                    .into_iter()
                    .map(|(minor, gpu)| (file(minor), Some(gpu)))
                    .collect())
            }
        }
    }
}

/// The GPU behind the device file, or the UUID, that the scheduler gave; the inner error: neither is known.
fn given<'a>(
    number: &Number,
    list: &Result<Listed<'a>, String>,
    inventory: &'a Inventory,
) -> Result<Result<&'a Gpu, String>, Failure> {
    let lost = |what: String| {
        let why = format!(
            "the scheduler gave it to the job, and NVML lists {} others",
            inventory.gpus.len()
        );
        Failure::from(Fault::new(Evidence::GpuLost, what, why))
    };
    let place = number.place as usize;
    let beyond = |length| {
        doubt(format!(
            "GPU {place} of Slurm is none of the {length} that its files list"
        ))
    };
    let listed = match list {
        Err(why) => Err(why.clone()),
        Ok(list) => match list.get(place).ok_or_else(|| beyond(list.len()))? {
            (file, None) => return Err(lost(format!("GPU '{}'", file.path.display()))),
            (_, Some(gpu)) => Ok(*gpu),
        },
    };
    let Some(uuid) = &number.uuid else {
        return Ok(listed);
    };
    let uuid = GpuUuid::parse(uuid)?;
    let named = inventory
        .by_uuid(&uuid)
        .ok_or_else(|| lost(format!("GPU {uuid}")))?;
    match listed {
        Ok(gpu) if gpu.uuid != uuid => Err(doubt(format!(
            "GPU {place} of Slurm is {uuid} in the prolog's environment, and {} in its files",
            gpu.uuid
        ))),
        _ => Ok(Ok(named)),
    }
}

/// Tasks can open their own GPUs and those that the scheduler does not list: if CUDA, which counts both, takes the own ones,
/// all is well.
fn confined<'a>(
    own: Vec<&'a Gpu>,
    list: &Result<Listed<'a>, String>,
    inventory: &'a Inventory,
    by_uuid: bool,
) -> Result<Vec<&'a Gpu>, Failure> {
    let Ok(list) = list else {
        return Ok(own);
    };
    let is_own = |gpu: &Gpu| own.iter().any(|one| one.uuid == gpu.uuid);
    let is_open = |gpu: &&Gpu| is_own(gpu) || entry(list, gpu).is_none();
    let open = inventory.gpus.iter().filter(is_open);
    match open.take(own.len()).find(|gpu| !is_own(gpu)) {
        Some(stranger) if !by_uuid => Err(leads_astray(list, own.first().copied(), stranger)),
        _ => Ok(own),
    }
}

/// The number as CUDA's index; `free`: tasks can open every GPU for certain.
fn counted<'a>(
    place: u32,
    given: Result<&'a Gpu, String>,
    list: &Result<Listed<'a>, String>,
    inventory: &'a Inventory,
    free: bool,
) -> Result<&'a Gpu, Failure> {
    let counted = inventory.by_index(place);
    match (given, counted) {
        (Ok(given), Some(counted)) if given.uuid == counted.uuid => Ok(given),
        (_, None) => Err(doubt(format!(
            "GPU {place} of Slurm is more than CUDA counts on this node"
        ))),
        (Err(_), Some(counted)) if free => Ok(counted),
        (Err(why), _) => Err(doubt(why)),
        (Ok(given), Some(counted)) => {
            let alike = inventory.gpus.iter().all(|gpu| gpu.name == counted.name);
            let list = list.as_deref().unwrap_or_default();
            if free && alike && entry(list, counted).is_some() {
                Ok(counted)
            } else {
                Err(leads_astray(list, Some(given), counted))
            }
        }
    }
}

fn doubt(why: String) -> Failure {
    Refusal::new(
        "MPS",
        format!("which GPU is the job's is not certain: {why}"),
        ALLOWED,
    )
    .into()
}

fn leads_astray(list: &[(DeviceFile, Option<&Gpu>)], given: Option<&Gpu>, other: &Gpu) -> Failure {
    let shown = |gpu: &Gpu, unlisted: &str| match entry(list, gpu) {
        Some(listed) => format!("'{}' ({})", listed.path.display(), listed.said),
        None => format!("'/dev/nvidia{}'{unlisted}", gpu.minor.unwrap_or(gpu.index)),
    };
    let given = given.map_or_else(String::new, |gpu| shown(gpu, ""));
    let other = shown(other, ", which gres.conf does not list");
    doubt(format!(
        "Slurm gives it {given}, and its number leads CUDA to {other}"
    ))
}
