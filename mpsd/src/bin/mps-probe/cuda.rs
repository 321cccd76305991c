//! The CUDA driver, through cudarc: the only `unsafe` of this program.
//!
//! cudarc opens `libcuda.so` when it is first used and panics when there is none, so [`library_present`] asks
//! first. Contexts and queries go through cudarc's safe layer; memory goes through `cuMemAlloc` itself, because
//! the safe layer allocates from a pool, whose granularity is not the one the pinned memory limit is known for.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute, CUresult};
use cudarc::driver::{CudaContext, safe};
use serde::Serialize;

/// One MiB in bytes.
pub const MIB: u64 = 1 << 20;

/// Size of one step of [`Device::allocatable`], in MiB.
pub const STEP_MIB: u64 = 64;

/// Bytes that [`Device::memset_checked`] fills and reads back.
const MEMSET_BYTES: usize = 1 << 20;

/// An error of the CUDA driver, in the driver's words and in plain ones.
#[derive(Debug, Clone, Serialize)]
pub struct CudaFailure {
    /// The call that failed.
    pub call: &'static str,
    /// Number of the error (`CUresult`).
    pub code: u32,
    /// The driver's name of it, `CUDA_ERROR_…`.
    pub name: String,
    /// What it means here.
    pub meaning: &'static str,
}

impl CudaFailure {
    fn new(call: &'static str, error: DriverError) -> Self {
        let name = match error.error_name() {
            Ok(name) => name.to_string_lossy().into_owned(),
            Err(_) => format!("{:?}", error.0),
        };
        Self {
            call,
            code: error.0 as u32,
            name,
            meaning: meaning(error.0 as u32),
        }
    }

    /// Whether the error says that this process has no GPU at all, as against one that went wrong.
    pub fn means_no_device(&self) -> bool {
        matches!(self.code, 34 | 100 | 803 | 804)
    }
}

impl fmt::Display for CudaFailure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{}: CUDA error {} {}: {}",
            self.call, self.code, self.name, self.meaning
        )
    }
}

/// Plain words for the errors that a client of MPS meets (CUDA driver API, `CUresult`; the last column of what
/// was recorded of NVIDIA's control daemon 580).
fn meaning(code: u32) -> &'static str {
    match code {
        2 => "no more device memory, or the memory limit of this client is reached",
        3 => "CUDA is not initialised in this process",
        34 => "libcuda.so is a stub and not the driver",
        46 => "the GPU is held by another process: it is in an exclusive compute mode and no MPS was reached",
        100 => "no GPU is visible: CUDA_VISIBLE_DEVICES names none that the driver or the MPS daemon has",
        101 => "no GPU of that index is visible to this process",
        304 => {
            "the operating system refused a call: a pid namespace with a foreign /proc gives this under MPS"
        }
        803 => "the driver in the kernel and libcuda.so are of different releases",
        804 => "libcuda.so is too new for this GPU's driver",
        805 => {
            "the MPS daemon was reached but took no connection: it belongs to another user, or its server failed"
        }
        806 => "the MPS server died or was shut down while this client used it",
        807 => "the MPS server is not ready to take clients",
        808 => "the MPS server has its full number of clients (48 a GPU since Volta, 16 before)",
        809 => "the device has no more connections to give to MPS clients",
        810 => "this client was ended through the MPS daemon (terminate_client)",
        _ => "see the CUDA driver API's table of CUresult",
    }
}

/// What the driver tells of one visible device.
#[derive(Debug, Clone)]
pub struct Facts {
    pub uuid: String,
    pub name: String,
    /// Multiprocessors that this process may use: under MPS its share, else all of them.
    pub sms: u32,
    /// The driver's own word whether contexts here are shared through MPS; none before driver 545.
    pub mps_attribute: Option<bool>,
    /// `cuMemGetInfo`, bytes: under a memory limit, `free` counts down from the limit.
    pub free: u64,
    pub total: u64,
}

/// How far [`Device::allocatable`] came.
#[derive(Debug, Clone, Copy)]
pub struct Allocated {
    pub mib: u64,
    /// The cap ended it, not the driver: there may be more.
    pub capped: bool,
}

/// A device with this process's context on it.
#[derive(Debug)]
pub struct Device {
    context: Arc<CudaContext>,
}

/// Whether `libcuda.so` can be opened at all.
#[allow(unsafe_code)]
pub fn library_present() -> bool {
    // SAFETY: opening a library runs its constructors. It is the vendor's libcuda, found by the loader's own
    // path, and this process does nothing else than use it.
    unsafe { sys::is_culib_present() }
}

/// Number of devices that this process sees.
pub fn device_count() -> Result<u32, CudaFailure> {
    result::init().map_err(|e| CudaFailure::new("cuInit", e))?;
    let count = result::device::get_count().map_err(|e| CudaFailure::new("cuDeviceGetCount", e))?;
    Ok(u32::try_from(count).unwrap_or(0))
}

impl Device {
    /// Opens the context: here the client meets the MPS daemon, or runs without one.
    pub fn open(index: u32) -> Result<Self, CudaFailure> {
        let context = safe::CudaContext::new(index as usize)
            .map_err(|e| CudaFailure::new("cuDevicePrimaryCtxRetain", e))?;
        Ok(Self { context })
    }

    pub fn facts(&self) -> Result<Facts, CudaFailure> {
        let attribute = |name, id| self.context.attribute(id).map_err(|e| CudaFailure::new(name, e));
        let sms = attribute(
            "cuDeviceGetAttribute(MULTIPROCESSOR_COUNT)",
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        )?;
        let uuid = self
            .context
            .uuid()
            .map_err(|e| CudaFailure::new("cuDeviceGetUuid", e))?;
        let (free, total) = self
            .context
            .mem_get_info()
            .map_err(|e| CudaFailure::new("cuMemGetInfo", e))?;
        Ok(Facts {
            uuid: uuid_text(&uuid),
            name: self
                .context
                .name()
                .map_err(|e| CudaFailure::new("cuDeviceGetName", e))?,
            sms: u32::try_from(sms).unwrap_or(0),
            // An older driver does not know the attribute: that is no error of the client.
            mps_attribute: self
                .context
                .attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MPS_ENABLED)
                .ok()
                .map(|value| value != 0),
            free: free as u64,
            total: total as u64,
        })
    }

    /// Fills a MiB with a pattern and reads it back: the context really works. Fresh memory is often zero, so
    /// the pattern is not.
    pub fn memset_checked(&self, pattern: u8) -> Result<bool, CudaFailure> {
        self.bind()?;
        let block = Block::new(MEMSET_BYTES)?;
        let mut back = vec![!pattern; MEMSET_BYTES];
        block.fill(pattern)?;
        block.read(&mut back)?;
        Ok(back.iter().all(|byte| *byte == pattern))
    }

    /// Allocates in steps of [`STEP_MIB`] until the driver refuses or `cap_mib` is reached; everything is freed
    /// before it returns.
    pub fn allocatable(&self, cap_mib: u64) -> Result<Allocated, CudaFailure> {
        self.bind()?;
        let mut held = Vec::new();
        loop {
            let mib = held.len() as u64 * STEP_MIB;
            if mib + STEP_MIB > cap_mib {
                return Ok(Allocated { mib, capped: true });
            }
            match Block::new((STEP_MIB * MIB) as usize) {
                Ok(block) => held.push(block),
                Err(e) if e.code == CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32 => {
                    return Ok(Allocated { mib, capped: false });
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn bind(&self) -> Result<(), CudaFailure> {
        self.context
            .bind_to_thread()
            .map_err(|e| CudaFailure::new("cuCtxSetCurrent", e))
    }
}

/// Device memory of the context that is current when it is made, freed with it.
struct Block {
    pointer: sys::CUdeviceptr,
    bytes: usize,
}

impl Block {
    #[allow(unsafe_code)]
    fn new(bytes: usize) -> Result<Self, CudaFailure> {
        // SAFETY: a plain cuMemAlloc; the pointer lives in the Block alone and is read by the driver only.
        let pointer = unsafe { result::malloc_sync(bytes) }.map_err(|e| CudaFailure::new("cuMemAlloc", e))?;
        Ok(Self { pointer, bytes })
    }

    #[allow(unsafe_code)]
    fn fill(&self, pattern: u8) -> Result<(), CudaFailure> {
        // SAFETY: `pointer` is a live allocation of `bytes` bytes.
        unsafe { result::memset_d8_sync(self.pointer, pattern, self.bytes) }
            .map_err(|e| CudaFailure::new("cuMemsetD8", e))
    }

    #[allow(unsafe_code)]
    fn read(&self, into: &mut [u8]) -> Result<(), CudaFailure> {
        let part = into.len().min(self.bytes);
        // SAFETY: `pointer` is live for `bytes` bytes, and the copy is as long as the shorter of the two.
        unsafe { result::memcpy_dtoh_sync(&mut into[..part], self.pointer) }
            .map_err(|e| CudaFailure::new("cuMemcpyDtoH", e))
    }
}

impl Drop for Block {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // A context that died (806, 810) has freed it already and says so: nothing is left to do then.
        // SAFETY: `pointer` came from cuMemAlloc and is freed here and nowhere else.
        let _ = unsafe { result::free_sync(self.pointer) };
    }
}

/// `GPU-` and the usual five groups.
fn uuid_text(uuid: &sys::CUuuid) -> String {
    let mut text = String::from("GPU-");
    for (place, byte) in uuid.bytes.iter().enumerate() {
        if matches!(place, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{:02x}", *byte as u8));
    }
    text
}

#[cfg(test)]
mod tests;
