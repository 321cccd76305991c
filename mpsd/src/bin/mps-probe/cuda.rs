//! The CUDA driver, through cudarc: the only `unsafe` of this program.
//!
//! cudarc panics without a `libcuda.so`, so call [`library_present`] first. Memory is from
//! `cuMemAlloc`: cudarc's safe layer has a pool with another granularity than the memory limit's.

use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute, CUresult};
use cudarc::driver::{CudaContext, safe};
use mpsd::cli::programs::STEP_MIB;
use mpsd::cli::troubles::TROUBLES;
use serde::Serialize;

use crate::report::Facts;

pub const MIB: u64 = 1 << 20;

const MEMSET_BYTES: usize = 1 << 20;

#[derive(Debug, Clone, Serialize, thiserror::Error)]
#[error("{call}: CUDA error {code} {name}: {meaning}")]
pub struct CudaFailure {
    pub call: &'static str,
    pub code: u32,
    pub name: String,
    pub meaning: &'static str,
}

impl CudaFailure {
    fn of(call: &'static str) -> impl FnOnce(DriverError) -> Self {
        move |error| Self {
            call,
            code: error.0 as u32,
            name: match error.error_name() {
                Ok(name) => name.to_string_lossy().into_owned(),
                Err(_) => format!("{:?}", error.0),
            },
            meaning: meaning(error.0 as u32),
        }
    }

    pub fn means_no_device(&self) -> bool {
        matches!(self.code, 34 | 100 | 803 | 804)
    }
}

fn meaning(code: u32) -> &'static str {
    match code {
        3 => "CUDA is not initialised in this process",
        34 => "libcuda.so is a stub and not the driver",
        101 => "no GPU of that index is visible to this process",
        803 => "the driver in the kernel and libcuda.so are of different releases",
        804 => "libcuda.so is too new for this GPU's driver",
        _ => match TROUBLES
            .iter()
            .find(|trouble| trouble.codes.contains(&code))
        {
            Some(trouble) => &trouble.cause,
            None => "see the CUDA driver API's table of CUresult",
        },
    }
}

#[derive(Debug)]
pub struct Device {
    context: Arc<CudaContext>,
}

#[allow(unsafe_code)]
pub fn library_present() -> bool {
    // SAFETY: opening a library runs its constructors. It is the vendor's libcuda, found by the
    // loader, and using it is all that this process does.
    unsafe { sys::is_culib_present() }
}

pub fn device_count() -> Result<u32, CudaFailure> {
    result::init().map_err(CudaFailure::of("cuInit"))?;
    let count = result::device::get_count().map_err(CudaFailure::of("cuDeviceGetCount"))?;
    Ok(u32::try_from(count).unwrap_or(0))
}

impl Device {
    /// The client connects to the MPS daemon, or runs without one.
    pub fn open(index: u32) -> Result<Self, CudaFailure> {
        let context = safe::CudaContext::new(index as usize)
            .map_err(CudaFailure::of("cuDevicePrimaryCtxRetain"))?;
        Ok(Self { context })
    }

    pub fn facts(&self) -> Result<Facts, CudaFailure> {
        use CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_MPS_ENABLED as MPS_ENABLED,
            CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as MULTIPROCESSOR_COUNT,
        };
        let context = &self.context;
        let (sms, uuid) = (context.attribute(MULTIPROCESSOR_COUNT), context.uuid());
        let of_sms = "cuDeviceGetAttribute(MULTIPROCESSOR_COUNT)";
        let sms = sms.map_err(CudaFailure::of(of_sms))?;
        let uuid = uuid.map_err(CudaFailure::of("cuDeviceGetUuid"))?;
        let memory = context.mem_get_info();
        let (free, total) = memory.map_err(CudaFailure::of("cuMemGetInfo"))?;
        let name = context.name();
        // An older driver does not know the attribute.
        let mps = context.attribute(MPS_ENABLED);
        Ok(Facts {
            uuid: uuid_text(&uuid),
            name: name.map_err(CudaFailure::of("cuDeviceGetName"))?,
            sms: u32::try_from(sms).unwrap_or(0),
            total_mib: total as u64 / MIB,
            free_mib: free as u64 / MIB,
            mps_attribute: mps.ok().map(|value| value != 0),
        })
    }

    /// Fills a MiB with a pattern, other than the zero of fresh memory, and reads it back.
    pub fn memset_checked(&self, pattern: u8) -> Result<bool, CudaFailure> {
        self.bind()?;
        let block = Block::new(MEMSET_BYTES)?;
        let mut back = vec![!pattern; MEMSET_BYTES];
        block.fill(pattern)?;
        block.read(&mut back)?;
        Ok(back.iter().all(|byte| *byte == pattern))
    }

    /// Allocates in steps of [`STEP_MIB`] until the driver refuses or `cap_mib` is reached, then
    /// frees everything. Returns the MiB, and whether the cap was reached.
    pub fn allocatable(&self, cap_mib: u64) -> Result<(u64, bool), CudaFailure> {
        self.bind()?;
        let mut held = Vec::new();
        loop {
            let mib = held.len() as u64 * STEP_MIB;
            if mib + STEP_MIB > cap_mib {
                return Ok((mib, true));
            }
            match Block::new((STEP_MIB * MIB) as usize) {
                Ok(block) => held.push(block),
                Err(e) if e.code == CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32 => {
                    return Ok((mib, false));
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn bind(&self) -> Result<(), CudaFailure> {
        self.context
            .bind_to_thread()
            .map_err(CudaFailure::of("cuCtxSetCurrent"))
    }
}

/// Memory of the context that is current when it is made.
struct Block {
    pointer: sys::CUdeviceptr,
    bytes: usize,
}

impl Block {
    #[allow(unsafe_code)]
    fn new(bytes: usize) -> Result<Self, CudaFailure> {
        // SAFETY: a plain cuMemAlloc; the pointer is the Block's, and only the driver reads it.
        let pointer =
            unsafe { result::malloc_sync(bytes) }.map_err(CudaFailure::of("cuMemAlloc"))?;
        Ok(Self { pointer, bytes })
    }

    #[allow(unsafe_code)]
    fn fill(&self, pattern: u8) -> Result<(), CudaFailure> {
        // SAFETY: `pointer` is a live allocation of `bytes` bytes.
        unsafe { result::memset_d8_sync(self.pointer, pattern, self.bytes) }
            .map_err(CudaFailure::of("cuMemsetD8"))
    }

    #[allow(unsafe_code)]
    fn read(&self, into: &mut [u8]) -> Result<(), CudaFailure> {
        let part = into.len().min(self.bytes);
        // SAFETY: `pointer` is live for `bytes` bytes, and the copy is no longer.
        unsafe { result::memcpy_dtoh_sync(&mut into[..part], self.pointer) }
            .map_err(CudaFailure::of("cuMemcpyDtoH"))
    }
}

impl Drop for Block {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // A context that died (806, 810) has freed it already. SAFETY: `pointer` came from
        // cuMemAlloc and is freed here and nowhere else.
        let _ = unsafe { result::free_sync(self.pointer) };
    }
}

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
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_nvml_writes_it() {
        let bytes: [u8; 16] = [
            0x20, 0x0b, 0x43, 0x59, 0x55, 0x62, 0x4e, 0x0e, 0xed, 0x46, 0x88, 0xb5, 0x81, 0xaf,
            0x65, 0x24,
        ];
        let uuid = sys::CUuuid {
            bytes: bytes.map(|byte| byte as _),
        };
        assert_eq!(uuid_text(&uuid), "GPU-200b4359-5562-4e0e-ed46-88b581af6524");
    }
}
