//! NVML, called directly. Every call may hang in the driver: [`super::worker`] calls it from a
//! process of its own.

use super::unless_scarce;
use mpsd_core::failure::Evidence;
use mpsd_core::gpu::{GpuProcess, Mig};
use mpsd_core::ranks;
use mpsd_core::trusted::open_trusted;
use mpsd_core::{ComputeMode, Gpu, GpuUuid, Inventory};
use nvml_wrapper::enum_wrappers::device::{ComputeMode as WrappedMode, Sampling};
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError as Cause;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, GpmSample, Nvml as Library};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::path::Path;
use std::time::Instant;

/// A list of processes can grow between its count and its content.
const ATTEMPTS: usize = 4;
const NVML: &str = "NVML";
/// A directory for each GPU, named after its place on the bus.
const DRIVER_GPUS: &str = "/proc/driver/nvidia/gpus";
const NVIDIA: &str = "0x10de";
/// Most CPUs that are asked for, in words of 64.
const CPU_WORDS: usize = 128;
/// `NVML_ERROR_INSUFFICIENT_RESOURCES` (nvml.h), which the wrapper has no name for.
const INSUFFICIENT_RESOURCES: u32 = 23;
/// What the loader says of a library that is missing or damaged, but not if it lacks memory.
const CANNOT_BE_LOADED: [&str; 6] = [
    "No such file or directory",
    "invalid ELF header",
    "wrong ELF class",
    "file too short",
    "undefined symbol",
    "version `",
];
const MIB: u64 = 1 << 20;

#[derive(Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{what}: {why}")]
pub struct NvmlError {
    pub what: String,
    pub why: String,
    /// `None`: it may have another cause, such as a permission or a shortage.
    pub evidence: Option<Evidence>,
}

impl NvmlError {
    fn new(
        call: &str,
        what: impl ToString,
        cause: impl ToString,
        evidence: Option<Evidence>,
    ) -> Self {
        // The loader's messages have several lines.
        let cause = mpsd_core::text::one_line(&cause.to_string(), 200);
        Self {
            what: what.to_string(),
            why: format!("{call}: {cause}"),
            evidence,
        }
    }
}

trait Answer<T> {
    /// Its error names the C function.
    fn of(self, call: &str, what: impl ToString) -> Result<T, NvmlError>;
    /// A missing MIG device is no evidence: a user who may divide its GPU can have removed it.
    fn of_device(self, call: &str, gpu: &GpuUuid) -> Result<T, NvmlError>;
    /// Becomes `usual` if this GPU or this driver does not know the call.
    fn or_unknown(self, usual: T) -> Self;
}

impl<T> Answer<T> for Result<T, Cause> {
    fn of(self, call: &str, what: impl ToString) -> Result<T, NvmlError> {
        self.map_err(|cause| {
            let said = match cause {
                Cause::UnexpectedVariant(INSUFFICIENT_RESOURCES) => "insufficient resources".into(),
                _ => cause.to_string(),
            };
            NvmlError::new(call, what, said, proved_by(&cause))
        })
    }

    fn of_device(self, call: &str, gpu: &GpuUuid) -> Result<T, NvmlError> {
        let is_gone = gpu.is_mig() && matches!(self, Err(Cause::NotFound | Cause::InvalidArg));
        self.of(call, gpu).map_err(|error| NvmlError {
            evidence: error.evidence.filter(|_| !is_gone),
            ..error
        })
    }

    fn or_unknown(self, usual: T) -> Self {
        match self {
            Err(Cause::NotSupported | Cause::FunctionNotFound | Cause::FailedToLoadSymbol(_)) => {
                Ok(usual)
            }
            answer => answer,
        }
    }
}

/// Only an error that means "broken" is evidence: memory, resources and time can run out.
fn proved_by(cause: &Cause) -> Option<Evidence> {
    match cause {
        Cause::LibloadingError(_) | Cause::FailedToLoadSymbol(_) => {
            let said = cause.to_string();
            let is_broken = CANNOT_BE_LOADED.iter().any(|words| said.contains(words));
            is_broken.then_some(Evidence::VendorProgram)
        }
        Cause::GpuLost | Cause::ResetRequired | Cause::NotFound => Some(Evidence::GpuLost),
        Cause::DriverNotLoaded
        | Cause::LibRmVersionMismatch
        | Cause::FunctionNotFound
        | Cause::InsufficientPower
        | Cause::IrqIssue
        | Cause::CorruptedInfoROM => Some(Evidence::Nvml),
        _ => None,
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Driver {
    pub version: String,
    /// The indexes of the GPUs without persistence mode: the driver unloads their state when their
    /// last user leaves.
    pub forgotten: Vec<u32>,
}

/// Loaded and initialised (12 ms; docs/facts/mps-control.md#times). It is never shut down, which
/// costs some milliseconds: its process ends soon.
#[derive(Debug, Clone, Copy)]
pub struct Nvml {
    library: &'static Library,
}

/// What the driver has counted of a GPU between two looks. What it does not count is absent.
#[derive(Debug, Default)]
pub struct GpuCounters {
    /// When, microseconds since 1970, and the percent of the time in which a kernel ran.
    pub busy: Vec<(u64, u64)>,
    /// The same of its memory's reads and writes.
    pub memory_busy: Vec<(u64, u64)>,
    pub energy_mj: Option<u64>,
    /// Mean percent of multiprocessors with work, and of the memory's bandwidth.
    pub shares: Option<(f64, f64)>,
    /// Milliseconds; 0: there was no look before.
    pub since_ms: u64,
}

#[derive(Debug, Default)]
pub struct LookEnd {
    /// Of the last samples, microseconds since 1970.
    busy: u64,
    memory_busy: u64,
    energy_mj: Option<u64>,
    performance: Option<GpmSample<'static>>,
    at: Option<Instant>,
}

impl LookEnd {
    /// The next look counts samples after `since`, microseconds since 1970.
    pub fn at(since: u64) -> Self {
        Self {
            busy: since,
            memory_busy: since,
            ..Self::default()
        }
    }
}

impl Nvml {
    /// `library`: a name for the system's loader, or an absolute path of a file that is root's.
    pub fn load(library: &str) -> Result<Self, NvmlError> {
        let path = Path::new(library);
        if path.is_absolute() {
            open_trusted(path).map_err(|error| {
                // The error may name the target of a link.
                let why = match error.to_string() {
                    why if why.contains(library) => why,
                    why => format!("'{library}': {why}"),
                };
                let why = format!("{why} (nvml in mpsd.toml)");
                let evidence = unless_scarce(Evidence::VendorProgram, error.errno());
                NvmlError::new("load", NVML, why, evidence)
            })?;
        }
        let loaded = Library::builder().lib_path(OsStr::new(library)).init();
        let library = Box::leak(Box::new(loaded.of("nvmlInit_v2", NVML)?));
        Ok(Self { library })
    }

    /// A lost GPU is left out: a job that needs it finds it missing.
    pub fn inventory(&self) -> Result<Inventory, NvmlError> {
        let count = self.library.device_count();
        let count = count.of("nvmlDeviceGetCount_v2", NVML)?;
        let mut all = Inventory::default();
        for index in 0..count {
            let device = self.library.device_by_index(index);
            let device = device.of("nvmlDeviceGetHandleByIndex_v2", format!("GPU {index}"));
            match device.and_then(|device| gpu_of(&device, index)) {
                Ok((gpu, migs)) => {
                    all.gpus.push(gpu);
                    all.migs.extend(migs);
                }
                Err(error) if error.evidence == Some(Evidence::GpuLost) => {}
                Err(error) => return Err(error),
            }
        }
        // Without a version, MPS works as with the oldest driver.
        all.driver = self.library.sys_driver_version().unwrap_or_default();
        Ok(all)
    }

    /// As [`Self::inventory`], but looks at `gpus` alone while what is `known` holds of them and
    /// there is no MIG: NVML takes 7 ms for its first look at a GPU.
    pub fn inventory_again(
        &self,
        known: Inventory,
        gpus: &[GpuUuid],
    ) -> Result<Inventory, NvmlError> {
        let count = self.library.device_count();
        let count = count.of("nvmlDeviceGetCount_v2", NVML)?;
        let is_as_known = |uuid: &GpuUuid| {
            let gpu = known.gpus.iter().find(|gpu| gpu.uuid == *uuid)?;
            let device = self.device(uuid).ok()?;
            let (now, migs) = gpu_of(&device, device.index().ok()?).ok()?;
            (migs.is_empty() && now == *gpu).then_some(())
        };
        let holds = count as usize == known.gpus.len()
            && known.migs.is_empty()
            && gpus.iter().all(|uuid| is_as_known(uuid).is_some());
        if !holds {
            return self.inventory();
        }
        Ok(Inventory {
            driver: self.library.sys_driver_version().unwrap_or_default(),
            ..known
        })
    }

    pub fn driver(&self) -> Result<Driver, NvmlError> {
        let version = self.library.sys_driver_version();
        let version = version.of("nvmlSystemGetDriverVersion", NVML)?;
        let mut forgotten = Vec::new();
        for gpu in self.inventory()?.gpus {
            // A device that does not know the mode, such as a vGPU, forgets nothing.
            let device = self.device(&gpu.uuid)?;
            let kept = device.is_in_persistent_mode().or_unknown(true);
            if !kept.of("nvmlDeviceGetPersistenceMode", &gpu.uuid)? {
                forgotten.push(gpu.index);
            }
        }
        Ok(Driver { version, forgotten })
    }

    pub fn compute_mode(&self, gpu: &GpuUuid) -> Result<ComputeMode, NvmlError> {
        // A MIG device keeps its mode, and an end must not depend on one that may be removed.
        if gpu.is_mig() {
            return Ok(ComputeMode::Default);
        }
        let mode = self.device(gpu)?.compute_mode();
        Ok(ours(mode.of("nvmlDeviceGetComputeMode", gpu)?))
    }

    /// The caller reads it back.
    pub fn set_compute_mode(&self, gpu: &GpuUuid, mode: ComputeMode) -> Result<(), NvmlError> {
        let set = self.device(gpu)?.set_compute_mode(theirs(mode));
        set.of("nvmlDeviceSetComputeMode", gpu)
    }

    /// Those with a compute context on `gpu`: MPS servers and clients, too.
    ///
    /// The caller must check that a process is there: NVML still lists it for a moment after its
    /// end, and lists a process of another pid namespace by a number that means nothing here. A MIG
    /// device's handle lists the device's own processes. A device that was removed has none.
    pub fn processes(&self, gpu: &GpuUuid) -> Result<Vec<GpuProcess>, NvmlError> {
        let device = match self.device(gpu) {
            Err(error) if gpu.is_mig() && error.evidence.is_none() => return Ok(Vec::new()),
            device => device?,
        };
        let plain = settled(|| device.running_compute_processes());
        let plain = plain.of_device("nvmlDeviceGetComputeRunningProcesses_v3", gpu)?;
        // With drivers without the call, the plain list has all clients.
        let clients = settled(|| device.mps_running_compute_processes()).or_unknown(Vec::new());
        let clients = clients.of_device("nvmlDeviceGetMPSComputeRunningProcesses_v3", gpu)?;
        Ok(merged(&plain, &clients))
    }

    pub fn power(&self, gpu: &GpuUuid) -> Result<u32, NvmlError> {
        let power = self.device(gpu)?.power_usage();
        power.of_device("nvmlDeviceGetPowerUsage", gpu)
    }

    /// What the driver has counted of `gpu` since `last`, which becomes this look. The driver keeps
    /// samples of some seconds (docs/facts/mps-control.md#what-the-driver-counts).
    pub fn counters(&self, gpu: &GpuUuid, last: &mut LookEnd) -> GpuCounters {
        let Ok(device) = self.device(gpu) else {
            return GpuCounters::default();
        };
        let now = Instant::now();
        let before = last.at.replace(now);
        let since_ms = before.map_or(0, |before| (now - before).as_millis());
        let energy = device.total_energy_consumption().ok();
        let energy_before = std::mem::replace(&mut last.energy_mj, energy);
        let performance = device.gpm_sample().ok();
        let performance_before = std::mem::replace(&mut last.performance, performance);
        let both = performance_before.as_ref().zip(last.performance.as_ref());
        GpuCounters {
            busy: samples(&device, Sampling::GpuUtilization, &mut last.busy),
            memory_busy: samples(&device, Sampling::MemoryUtilization, &mut last.memory_busy),
            // A counter that begins again tells nothing.
            energy_mj: energy
                .zip(energy_before)
                .and_then(|(now, before)| now.checked_sub(before)),
            shares: both.and_then(|(before, now)| self.shares(before, now)),
            since_ms: u64::try_from(since_ms).unwrap_or(u64::MAX),
        }
    }

    fn shares(&self, before: &GpmSample<'static>, now: &GpmSample<'static>) -> Option<(f64, f64)> {
        let wanted = [GpmMetricId::SmUtil, GpmMetricId::DramBwUtil];
        let found = gpm_metrics_get(self.library, before, now, &wanted).ok()?;
        let percent = |place: usize| {
            let value = found.get(place)?.as_ref().ok()?.value;
            (0.0..=100.0).contains(&value).then_some(value)
        };
        Some((percent(0)?, percent(1)?))
    }

    pub fn memory_mib(&self, gpu: &GpuUuid) -> Option<u64> {
        memory_mib(&self.device(gpu).ok()?).ok().flatten()
    }

    /// NVML takes 7 ms for its first look at a GPU. The first question reports a failure.
    pub fn attach(&self, gpu: &GpuUuid) {
        let _ = self.device(gpu);
    }

    fn device(&self, gpu: &GpuUuid) -> Result<Device<'static>, NvmlError> {
        if let Some(device) = self.at_place(gpu) {
            return Ok(device);
        }
        let device = self.library.device_by_uuid(gpu.as_str());
        device.of_device("nvmlDeviceGetHandleByUUID", gpu)
    }

    /// By its place on the bus: for a UUID NVML looks at one GPU after the other, 7 ms each
    /// (docs/facts/mps-control.md#times).
    fn at_place(&self, gpu: &GpuUuid) -> Option<Device<'static>> {
        let place = place_of(gpu, Path::new(DRIVER_GPUS))?;
        let device = self.library.device_by_pci_bus_id(place).ok()?;
        (device.uuid().ok()? == gpu.as_str()).then_some(device)
    }
}

fn gpu_of(device: &Device<'_>, index: u32) -> Result<(Gpu, Vec<Gpu>), NvmlError> {
    let name = format!("GPU {index}");
    let uuid = device.uuid().of("nvmlDeviceGetUUID", &name)?;
    let uuid = GpuUuid::parse(&uuid).map_err(|_| Cause::InvalidArg);
    let capability = device.cuda_compute_capability();
    let capability = capability.of("nvmlDeviceGetCudaComputeCapability", &name)?;
    let number = |part: i32| u32::try_from(part).unwrap_or(0);
    let mig = is_mig(device).of("nvmlDeviceGetMigMode", &name)?;
    let gpu = Gpu {
        index,
        uuid: uuid.of("nvmlDeviceGetUUID", &name)?,
        memory_mib: memory_mib(device).of("nvmlDeviceGetMemoryInfo", &name)?,
        name: device.name().of("nvmlDeviceGetName", &name)?,
        mig: if mig { Mig::On } else { Mig::Off },
        capability: (number(capability.major), number(capability.minor)),
        minor: device.minor_number().ok(),
        cpus: near_cpus(device),
    };
    let migs = mig.then(|| mig_devices(device, &gpu)).transpose()?;
    Ok((gpu, migs.unwrap_or_default()))
}

fn place_of(gpu: &GpuUuid, directory: &Path) -> Option<String> {
    let is_its = |text: &str| {
        let uuid = text.lines().find_map(|line| line.strip_prefix("GPU UUID:"));
        uuid.is_some_and(|uuid| uuid.trim() == gpu.as_str())
    };
    let mut places = std::fs::read_dir(directory).ok()?.flatten();
    let its = places.find(|place| {
        std::fs::read_to_string(place.path().join("information")).is_ok_and(|text| is_its(&text))
    })?;
    its.file_name().into_string().ok()
}

fn samples(device: &Device<'_>, kind: Sampling, last: &mut u64) -> Vec<(u64, u64)> {
    let found = device.samples(kind, *last).unwrap_or_default();
    let percent = |value: &SampleValue| match *value {
        SampleValue::U32(percent) => Some(u64::from(percent)),
        SampleValue::U64(percent) => Some(percent),
        SampleValue::I64(percent) => u64::try_from(percent).ok(),
        SampleValue::F64(_) => None,
    };
    let found = found.iter();
    let all = found.filter_map(|sample| Some((sample.timestamp, percent(&sample.value)?)));
    // NVML may also give older samples, and empty places of its buffer.
    let new: Vec<_> = all
        .filter(|(at, percent)| at > last && *percent <= 100)
        .collect();
    *last = new.iter().map(|(at, _)| *at).max().unwrap_or(*last);
    new
}

fn settled(list: impl Fn() -> Result<Vec<ProcessInfo>, Cause>) -> Result<Vec<ProcessInfo>, Cause> {
    for _ in 1..ATTEMPTS {
        match list() {
            Err(Cause::InsufficientSize(_)) => {}
            answer => return answer,
        }
    }
    list()
}

fn merged(plain: &[ProcessInfo], clients: &[ProcessInfo]) -> Vec<GpuProcess> {
    let is_client = |pid: u32| clients.iter().any(|client| client.pid == pid);
    let only_plain = plain.iter().filter(|process| !is_client(process.pid));
    let of = |process: &ProcessInfo, mps_client| {
        let memory = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        Some(GpuProcess {
            pid: i32::try_from(process.pid).ok()?,
            memory,
            mps_client,
        })
    };
    let clients = clients.iter().filter_map(|process| of(process, true));
    let others = only_plain.filter_map(|process| of(process, false));
    others.chain(clients).collect()
}

/// The kernel's file comes first, because NVML scans the whole machine for its first answer: 10 ms
/// on the host of an H200 (driver 580).
fn near_cpus(device: &Device<'_>) -> Option<String> {
    let by_kernel = device.pci_info().ok().and_then(|pci| cpus_of(&pci.bus_id));
    let by_nvml = || Some(ranks::list(&device.cpu_affinity(CPU_WORDS).ok()?));
    by_kernel.or_else(by_nvml)
}

/// `bus_id`: as NVML writes it, `00000000:3B:00.0`.
fn cpus_of(bus_id: &str) -> Option<String> {
    let (domain, place) = bus_id.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    let device = format!("/sys/bus/pci/devices/{domain:04x}:{}", place.to_lowercase());
    let says = |file: &str| std::fs::read_to_string(format!("{device}/{file}")).ok();
    says("vendor").filter(|vendor| vendor.trim() == NVIDIA)?;
    Some(says("local_cpulist")?.trim().to_owned()).filter(|list| !list.is_empty())
}

/// Without those that are removed meanwhile: a job that needs one finds it missing.
fn mig_devices(device: &Device<'_>, parent: &Gpu) -> Result<Vec<Gpu>, NvmlError> {
    let most = device.mig_device_count();
    let what = format!("GPU {}", parent.index);
    let most = most.of("nvmlDeviceGetMaxMigDeviceCount", what)?;
    let mut all = Vec::new();
    for number in 0..most {
        match mig_device(device, number, most, parent) {
            // Numbers may have gaps, devices may go, and an ordinary user does not see all.
            Err(Cause::NotFound | Cause::InvalidArg | Cause::NoPermission) => {}
            mig => {
                let name = format!("MIG device {number} of GPU {}", parent.index);
                all.push(mig.of("nvmlDeviceGetMigDeviceHandleByIndex", name)?);
            }
        }
    }
    Ok(all)
}

fn mig_device(device: &Device<'_>, number: u32, most: u32, parent: &Gpu) -> Result<Gpu, Cause> {
    let mig = device.mig_device_by_index(number)?;
    // Drivers before 470 give it no UUID, so no scheduler can name it either.
    let uuid = GpuUuid::parse(&mig.uuid()?).map_err(|_| Cause::NotFound)?;
    // A GPU has as many slices as it can have devices.
    let slices = mig.attributes().map(|all| all.compute_instance_slice_count);
    Ok(Gpu {
        uuid,
        name: mig.name()?,
        memory_mib: memory_mib(&mig)?,
        mig: Mig::Device {
            slices: slices.or_unknown(most)?,
            of: most,
        },
        ..parent.clone()
    })
}

/// A GPU that uses the machine's memory tells no size, or zero (docs/facts/mps-control.md#nvml).
fn memory_mib(device: &Device<'_>) -> Result<Option<u64>, Cause> {
    let total = device.memory_info().map(|memory| Some(memory.total / MIB));
    Ok(total.or_unknown(None)?.filter(|mib| *mib > 0))
}

/// GPUs before Ampere, and drivers before MIG, have no such mode.
fn is_mig(device: &Device<'_>) -> Result<bool, Cause> {
    let mode = device.mig_mode().map(|mode| mode.current != 0);
    mode.or_unknown(false)
}

fn ours(mode: WrappedMode) -> ComputeMode {
    match mode {
        WrappedMode::Default => ComputeMode::Default,
        WrappedMode::ExclusiveThread => ComputeMode::ExclusiveThread,
        WrappedMode::Prohibited => ComputeMode::Prohibited,
        WrappedMode::ExclusiveProcess => ComputeMode::ExclusiveProcess,
    }
}

fn theirs(mode: ComputeMode) -> WrappedMode {
    match mode {
        ComputeMode::Default => WrappedMode::Default,
        ComputeMode::ExclusiveThread => WrappedMode::ExclusiveThread,
        ComputeMode::Prohibited => WrappedMode::Prohibited,
        ComputeMode::ExclusiveProcess => WrappedMode::ExclusiveProcess,
    }
}

#[cfg(test)]
#[path = "nvml_tests.rs"]
mod tests;
