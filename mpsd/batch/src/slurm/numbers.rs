//! Slurm's numbers of GPUs, and which GPUs they are: those that the job would have without us.
//!
//! A number is a place in a list of device files. If a task can open only its own files, CUDA
//! counts those. If a task can open all, CUDA takes the number as its own index. If the two ways
//! lead to different GPUs and it is not certain which way the job takes, the answer is a refusal.

use mpsd_core::failure::{Evidence, Fault};
use mpsd_core::gpu::Mig;
use mpsd_core::record::RecordDevice;
use mpsd_core::{Failure, Gpu, GpuUuid, Inventory, Refusal};
use std::path::PathBuf;

const ALLOWED: &str =
    "a list of all of the node's GPUs with ConstrainDevices=yes; 'mpsctl slurm check' says more";

/// The numbers of one job, in the scheduler's order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbers {
    pub numbers: Vec<Number>,
    /// The list in which they are places.
    pub list: List,
    /// Whether a task can open only its own of the listed files; `None`: not known.
    pub confined: Option<bool>,
    /// Tasks get UUIDs instead of numbers.
    pub by_uuid: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Number {
    pub place: u32,
    pub uuid: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum List {
    Files(Vec<DeviceFile>),
    Found {
        count: usize,
        order: Order,
        only: Option<Vec<DeviceFile>>,
        /// The line of the configuration that has the scheduler look.
        entry: String,
    },
    Unknown(String),
}

/// How a scheduler sorts the GPUs that it found by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Bus,
    Minor,
    Either,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFile {
    pub path: PathBuf,
    pub minor: u32,
    /// The line of the configuration that lists it, for messages.
    pub entry: String,
}

/// A listed GPU; `None`: NVML does not have it.
type Listed<'a> = Vec<(DeviceFile, Option<&'a Gpu>)>;

fn file_of<'l>(list: &'l Listed<'_>, gpu: &Gpu) -> Option<&'l DeviceFile> {
    let mut list = list.iter();
    list.find_map(|(file, listed)| (listed.as_ref()?.uuid == gpu.uuid).then_some(file))
}

impl Numbers {
    pub fn gpus<'a>(&self, inventory: &'a Inventory) -> Result<Vec<&'a Gpu>, Failure> {
        let list = self.list.resolve(inventory);
        let given = |number| given(number, &list, inventory);
        let given = self.numbers.iter().map(given);
        let given = given.collect::<Result<Vec<_>, _>>()?;
        if self.by_uuid || self.confined == Some(true) {
            let own: Vec<&Gpu> = given.into_iter().collect::<Result<_, _>>().map_err(doubt)?;
            return match list {
                Ok(list) if !self.by_uuid => confined(own, &list, inventory),
                _ => Ok(own),
            };
        }
        if let Some(gpu) = inventory.gpus.iter().find(|gpu| gpu.mig == Mig::On) {
            // CUDA shows no whole GPU beside a MIG device (docs/facts/mps-control.md#mig).
            let why = "is in MIG mode, and tasks may open its MIG devices";
            return Err(doubt(format!("GPU {} {why}", gpu.index)));
        }
        let list = list.unwrap_or_default();
        let counted =
            |(number, given): (&Number, _)| self.counted(number.place, given, &list, inventory);
        self.numbers.iter().zip(given).map(counted).collect()
    }

    fn counted<'a>(
        &self,
        place: u32,
        given: Result<&'a Gpu, String>,
        list: &Listed<'_>,
        inventory: &'a Inventory,
    ) -> Result<&'a Gpu, Failure> {
        let more = format!("GPU {place} of Slurm is more than CUDA counts on this node");
        let counted = inventory.by_index(place).ok_or(doubt(more))?;
        // Tasks can open every GPU for certain.
        let free = self.confined.is_some();
        let alike = || inventory.gpus.iter().all(|gpu| gpu.name == counted.name);
        match given {
            Ok(given) if given.uuid == counted.uuid => Ok(given),
            Err(_) if free => Ok(counted),
            Err(why) => Err(doubt(why)),
            Ok(_) if free && alike() && file_of(list, counted).is_some() => Ok(counted),
            Ok(given) => Err(leads_astray(list, Some(given), counted)),
        }
    }

    /// All GPUs of the node in the order of the bus: what a task needs to count as CUDA does.
    pub fn devices(&self, inventory: &Inventory) -> Vec<RecordDevice> {
        let list = self.list.resolve(inventory).unwrap_or_default();
        let device = |gpu: &Gpu| {
            let file = file_of(&list, gpu).map(|file| file.path.clone());
            Some(RecordDevice {
                uuid: gpu.uuid.clone(),
                file: file.or_else(|| Some(format!("/dev/nvidia{}", gpu.minor?).into()))?,
            })
        };
        inventory.gpus.iter().filter_map(device).collect()
    }
}

impl List {
    pub fn resolve<'a>(&self, inventory: &'a Inventory) -> Result<Listed<'a>, String> {
        let minor = |gpu: &'a Gpu| {
            let minor = gpu.minor.map(|minor| (minor, gpu));
            minor.ok_or_else(|| format!("NVML does not tell the minor number of {}", gpu.uuid))
        };
        let mut gpus: Vec<(u32, &Gpu)> =
            inventory.gpus.iter().map(minor).collect::<Result<_, _>>()?;
        let (count, order, only, entry) = match self {
            Self::Unknown(why) => return Err(why.clone()),
            Self::Files(files) => {
                let with = |file: &DeviceFile| gpus.iter().find(|(minor, _)| *minor == file.minor);
                let listed = |file: &DeviceFile| (file.clone(), with(file).map(|(_, gpu)| *gpu));
                return Ok(files.iter().map(listed).collect());
            }
            Self::Found {
                count,
                order,
                only,
                entry,
            } => (count, order, only, entry),
        };
        if let Some(only) = only {
            gpus.retain(|(minor, _)| only.iter().any(|file| file.minor == *minor));
        }
        let have = gpus.len();
        if have != *count {
            return Err(format!(
                "{entry} lets Slurm find its {count} GPUs by itself, and NVML has {have}"
            ));
        }
        let sorted = gpus.is_sorted_by_key(|(minor, _)| *minor);
        match order {
            Order::Bus => {}
            Order::Minor => gpus.sort_by_key(|(minor, _)| *minor),
            Order::Either if sorted => {}
            Order::Either => {
                return Err(format!(
                    "{entry} lets Slurm sort its GPUs by bus or by minor number, which differ here: write AutoDetect=nvml"
                ));
            }
        }
        let file = |(minor, gpu)| {
            let (path, entry) = (format!("/dev/nvidia{minor}").into(), entry.clone());
            (DeviceFile { path, minor, entry }, Some(gpu))
        };
        Ok(gpus.into_iter().map(file).collect())
    }
}

/// The GPU behind the device file or UUID that the scheduler gave; the inner error: neither is
/// known.
fn given<'a>(
    number: &Number,
    list: &Result<Listed<'a>, String>,
    inventory: &'a Inventory,
) -> Result<Result<&'a Gpu, String>, Failure> {
    let lost = |what: String| {
        let others = inventory.gpus.len();
        let why = format!("the scheduler gave it to the job, and NVML lists {others} others");
        Failure::from(Fault::new(Evidence::GpuLost, what, why))
    };
    let place = number.place;
    let listed = match list {
        Err(why) => Err(why.clone()),
        Ok(list) => match list.get(place as usize) {
            Some((_, Some(gpu))) => Ok(*gpu),
            Some((file, None)) => return Err(lost(format!("GPU '{}'", file.path.display()))),
            None => {
                let all = list.len();
                let why = format!("GPU {place} of Slurm is none of the {all} that its files list");
                return Err(doubt(why));
            }
        },
    };
    let Some(uuid) = &number.uuid else {
        return Ok(listed);
    };
    let uuid = GpuUuid::parse(uuid)?;
    let lost = || lost(format!("GPU {uuid}"));
    let named = inventory.by_uuid(&uuid).ok_or_else(lost)?;
    match listed {
        Ok(Gpu { uuid: other, .. }) if *other != uuid => Err(doubt(format!(
            "GPU {place} of Slurm is {uuid} in the prolog's environment, and {other} in its files"
        ))),
        _ => Ok(Ok(named)),
    }
}

/// CUDA counts a task's own GPUs and those that are not listed, so the job's own must come first.
fn confined<'a>(
    own: Vec<&'a Gpu>,
    list: &Listed<'_>,
    inventory: &'a Inventory,
) -> Result<Vec<&'a Gpu>, Failure> {
    let is_own = |gpu: &Gpu| own.iter().any(|one| one.uuid == gpu.uuid);
    let is_open = |gpu: &&Gpu| is_own(gpu) || file_of(list, gpu).is_none();
    let open = inventory.gpus.iter().filter(is_open);
    match open.take(own.len()).find(|gpu| !is_own(gpu)) {
        Some(stranger) => Err(leads_astray(list, own.first().copied(), stranger)),
        None => Ok(own),
    }
}

fn doubt(why: String) -> Failure {
    let why = format!("which GPU is the job's is not certain: {why}");
    Refusal::new("MPS", why, ALLOWED).into()
}

fn leads_astray(list: &Listed<'_>, given: Option<&Gpu>, other: &Gpu) -> Failure {
    let shown = |gpu: &Gpu, unlisted: &str| match file_of(list, gpu) {
        Some(file) => format!("'{}' ({})", file.path.display(), file.entry),
        None => format!("'/dev/nvidia{}'{unlisted}", gpu.minor.unwrap_or(gpu.index)),
    };
    let given = given.map_or_else(String::new, |gpu| shown(gpu, ""));
    let other = shown(other, ", which gres.conf does not list");
    let why = format!("Slurm gave the job {given}, but CUDA would open {other}");
    doubt(why)
}
