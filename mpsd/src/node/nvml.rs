//! NVML, called directly. Every call may hang in the driver: [`super::worker`] calls it from a process of its own.

use crate::sys::files::FileError;
use mpsd_core::failure::Evidence;
use mpsd_core::gpu::GpuProcess;
use mpsd_core::trusted::open_trusted;
use mpsd_core::{ComputeMode, Gpu, GpuUuid, Inventory};
use nvml_wrapper::enum_wrappers::device::ComputeMode as WrappedMode;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError as Cause;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml as Library};
use std::ffi::OsStr;
use std::path::Path;

/// How often a list of processes is asked for again when it grew between the count and the list.
const ATTEMPTS: usize = 4;
/// MiB in bytes.
const MIB: u64 = 1 << 20;

/// A call of NVML that failed.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}", self.object(), self.reason())]
pub struct NvmlError {
    /// The C function, or what was done to the library itself.
    pub call: &'static str,
    /// The GPU it was about, in words (`GPU-…`, `GPU 3`).
    pub gpu: Option<String>,
    /// What NVML or the loader said.
    pub error: Problem,
}

/// The cause of an [`NvmlError`].
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The configured file is missing, or not one that root may load.
    #[error("'{path}': {error}")]
    Untrusted {
        /// The configured path.
        path: String,
        /// What is wrong with it, or with what it leads through.
        error: FileError,
    },
    /// NVML's own error, or the loader's.
    #[error(transparent)]
    Nvml(#[from] Cause),
}

impl NvmlError {
    fn library(call: &'static str, error: impl Into<Problem>) -> Self {
        Self {
            call,
            gpu: None,
            error: error.into(),
        }
    }

    fn gpu(call: &'static str, gpu: impl ToString, error: Cause) -> Self {
        Self {
            call,
            gpu: Some(gpu.to_string()),
            error: error.into(),
        }
    }

    /// What failed: the GPU, where there is one, else NVML.
    pub fn object(&self) -> String {
        self.gpu.clone().unwrap_or_else(|| "NVML".to_owned())
    }

    /// Why, in one line: the call and what it answered.
    pub fn reason(&self) -> String {
        let cause = self.error.to_string();
        // The loader's messages have several lines.
        format!("{}: {}", self.call, mpsd_core::text::one_line(&cause, 200))
    }

    /// What it proves about the node; `None` where another user of the GPU, or a missing permission, may be the cause.
    pub fn evidence(&self) -> Option<Evidence> {
        match &self.error {
            Problem::Untrusted { .. } => Some(Evidence::VendorProgram),
            Problem::Nvml(cause) => match cause {
                Cause::LibloadingError(_) | Cause::FailedToLoadSymbol(_) => Some(Evidence::VendorProgram),
                Cause::GpuLost | Cause::ResetRequired | Cause::NotFound => Some(Evidence::GpuLost),
                Cause::InUse | Cause::NoPermission | Cause::NotSupported | Cause::InsufficientSize(_) => None,
                _ => Some(Evidence::Nvml),
            },
        }
    }

    /// Whether this GPU has gone, or must be reset before anyone can use it.
    pub fn is_lost(&self) -> bool {
        self.evidence() == Some(Evidence::GpuLost)
    }
}

/// NVML, loaded and initialised (12 ms; docs/facts/mps-control.md#times).
#[derive(Debug)]
pub struct Nvml {
    library: Library,
}

impl Nvml {
    /// Loads `library`: a name for the system's loader, or an absolute path of a file that is root's.
    ///
    /// # Errors
    /// The library is missing, not root's, too old, or the driver is not loaded.
    pub fn load(library: &str) -> Result<Self, NvmlError> {
        let path = Path::new(library);
        if path.is_absolute() {
            open_trusted(path).map_err(|error| {
                NvmlError::library(
                    "load",
                    Problem::Untrusted {
                        path: library.to_owned(),
                        error,
                    },
                )
            })?;
        }
        let loaded = Library::builder().lib_path(OsStr::new(library)).init();
        Ok(Self {
            library: loaded.map_err(|cause| NvmlError::library("nvmlInit_v2", cause))?,
        })
    }

    /// All GPUs that answer. One that is lost is left out: whoever needs it finds it missing.
    ///
    /// # Errors
    /// NVML itself fails, or a GPU for another reason than being lost.
    pub fn inventory(&self) -> Result<Inventory, NvmlError> {
        const COUNT: &str = "nvmlDeviceGetCount_v2";
        let count = self
            .library
            .device_count()
            .map_err(|cause| NvmlError::library(COUNT, cause))?;
        let mut gpus = Vec::new();
        for index in 0..count {
            match self.gpu(index) {
                Ok(gpu) => gpus.push(gpu),
                Err(error) if error.is_lost() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Inventory { gpus })
    }

    fn gpu(&self, index: u32) -> Result<Gpu, NvmlError> {
        let failed = |call| move |cause| NvmlError::gpu(call, format!("GPU {index}"), cause);
        let device = self
            .library
            .device_by_index(index)
            .map_err(failed("nvmlDeviceGetHandleByIndex_v2"))?;
        let uuid = device.uuid().map_err(failed("nvmlDeviceGetUUID"))?;
        let uuid = GpuUuid::parse(&uuid).map_err(|_| failed("nvmlDeviceGetUUID")(Cause::InvalidArg))?;
        let capability = device
            .cuda_compute_capability()
            .map_err(failed("nvmlDeviceGetCudaComputeCapability"))?;
        let memory = device.memory_info().map_err(failed("nvmlDeviceGetMemoryInfo"))?;
        Ok(Gpu {
            index,
            uuid,
            name: device.name().map_err(failed("nvmlDeviceGetName"))?,
            memory_mib: memory.total / MIB,
            mode: ours(
                device
                    .compute_mode()
                    .map_err(failed("nvmlDeviceGetComputeMode"))?,
            ),
            mig: is_mig(&device).map_err(failed("nvmlDeviceGetMigMode"))?,
            capability: (
                u32::try_from(capability.major).unwrap_or(0),
                u32::try_from(capability.minor).unwrap_or(0),
            ),
            minor: device.minor_number().ok(),
        })
    }

    /// The compute mode of `gpu`.
    ///
    /// # Errors
    /// The GPU is unknown or lost, or NVML fails.
    pub fn compute_mode(&self, gpu: &GpuUuid) -> Result<ComputeMode, NvmlError> {
        const CALL: &str = "nvmlDeviceGetComputeMode";
        let mode = self.device(gpu)?.compute_mode();
        mode.map(ours).map_err(|cause| NvmlError::gpu(CALL, gpu, cause))
    }

    /// Sets the compute mode of `gpu`; the caller reads it back.
    ///
    /// # Errors
    /// As [`Nvml::compute_mode`]; the caller is not root; the driver refuses.
    pub fn set_compute_mode(&self, gpu: &GpuUuid, mode: ComputeMode) -> Result<(), NvmlError> {
        const CALL: &str = "nvmlDeviceSetComputeMode";
        let set = self.device(gpu)?.set_compute_mode(theirs(mode));
        set.map_err(|cause| NvmlError::gpu(CALL, gpu, cause))
    }

    /// The processes with a compute context on `gpu`: the plain list, which has the MPS servers, and the MPS clients.
    ///
    /// NVML goes on listing a process for a moment after its end, and one of another pid namespace by a number that
    /// means nothing here: whether it is there is the caller's to find out.
    ///
    /// # Errors
    /// As [`Nvml::compute_mode`].
    pub fn processes(&self, gpu: &GpuUuid) -> Result<Vec<GpuProcess>, NvmlError> {
        let device = self.device(gpu)?;
        let plain = settled(|| device.running_compute_processes())
            .map_err(|cause| NvmlError::gpu("nvmlDeviceGetComputeRunningProcesses_v3", gpu, cause))?;
        let clients = match settled(|| device.mps_running_compute_processes()) {
            Ok(clients) => clients,
            // Before Volta, and drivers without the call: their clients all stand in the plain list.
            Err(Cause::NotSupported | Cause::FunctionNotFound | Cause::FailedToLoadSymbol(_)) => Vec::new(),
            Err(cause) => {
                return Err(NvmlError::gpu(
                    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
                    gpu,
                    cause,
                ));
            }
        };
        Ok(merged(&plain, &clients))
    }

    fn device(&self, gpu: &GpuUuid) -> Result<Device<'_>, NvmlError> {
        let device = self.library.device_by_uuid(gpu.as_str());
        device.map_err(|cause| NvmlError::gpu("nvmlDeviceGetHandleByUUID", gpu, cause))
    }
}

/// Asks again while the list grows between NVML's count and its answer.
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
    only_plain
        .filter_map(|process| of(process, false))
        .chain(clients)
        .collect()
}

fn is_mig(device: &Device<'_>) -> Result<bool, Cause> {
    match device.mig_mode() {
        Ok(mode) => Ok(mode.current != 0),
        // Before Ampere, and drivers before MIG.
        Err(Cause::NotSupported | Cause::FunctionNotFound | Cause::FailedToLoadSymbol(_)) => Ok(false),
        Err(cause) => Err(cause),
    }
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
mod tests;
