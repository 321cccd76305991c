//! Functions about one GPU. Each trusts its caller's pointers, as NVML does.

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_ulonglong};

use crate::node::MIB;
use crate::out;
use crate::processes::contexts;
use crate::{
    Device, INVALID_ARGUMENT, NO_PERMISSION, NOT_FOUND, NOT_SUPPORTED, Return, UNKNOWN, gpu, healthy, mig,
    node, part, returned,
};

/// Compute modes, at the place of their number.
const MODES: [&str; 4] = ["default", "exclusive_thread", "prohibited", "exclusive_process"];

/// Memory that the driver keeps for itself, in MiB.
const RESERVED_MIB: u64 = 600;

#[repr(C)]
#[derive(Debug)]
pub struct Memory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

#[repr(C)]
#[derive(Debug)]
pub struct Memory2 {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

#[repr(C)]
#[derive(Debug)]
pub struct Pci {
    legacy_id: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_id: c_uint,
    subsystem_id: c_uint,
    id: [c_char; 32],
}

/// How many GPUs there are.
///
/// # Safety
/// `count` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> Return {
    // SAFETY: the caller's promise.
    returned(node().and_then(|node| unsafe { out::value(count, node.is.gpu.len() as c_uint) }))
}

/// Writes the handle of the GPU for which `is` holds.
///
/// # Safety
/// `device` points to a handle.
unsafe fn handle(device: *mut Device, is: impl Fn(usize, &crate::node::Gpu) -> bool) -> Return {
    returned(node().and_then(|node| {
        let mut gpus = node.is.gpu.iter().enumerate();
        let (index, gpu) = gpus.find(|(index, gpu)| is(*index, gpu)).ok_or(NOT_FOUND)?;
        healthy(gpu)?;
        // SAFETY: the caller's promise.
        unsafe { out::value(device, std::ptr::without_provenance_mut(index + 1)) }
    }))
}

/// A GPU by its index.
///
/// # Safety
/// `device` points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut Device) -> Return {
    // SAFETY: the caller's promise.
    let found = unsafe { handle(device, |at, _| at == index as usize) };
    if found == NOT_FOUND {
        INVALID_ARGUMENT
    } else {
        found
    }
}

/// A GPU, or a MIG device, by its UUID (nvml.h: "the UUID of the target GPU or MIG instance").
///
/// # Safety
/// `uuid` is a string and `device` points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut Device) -> Return {
    // SAFETY: the caller's promise.
    match unsafe { out::string(uuid) } {
        // SAFETY: the caller's promise.
        Ok(uuid) if uuid.starts_with("MIG-") => unsafe { crate::mig::handle(device, &uuid) },
        // SAFETY: the caller's promise.
        Ok(uuid) => unsafe { handle(device, |_, gpu| gpu.uuid == uuid) },
        Err(error) => error,
    }
}

/// A GPU by its PCI address.
///
/// # Safety
/// `id` is a string and `device` points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(id: *const c_char, device: *mut Device) -> Return {
    // SAFETY: the caller's promise.
    match unsafe { out::string(id) } {
        // SAFETY: the caller's promise.
        Ok(id) => unsafe {
            handle(device, |_, gpu| {
                gpu.pci.to_lowercase().ends_with(&id.to_lowercase())
            })
        },
        Err(error) => error,
    }
}

/// A GPU's index.
///
/// # Safety
/// `index` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetIndex(device: Device, index: *mut c_uint) -> Return {
    // SAFETY: the caller's promise.
    returned(gpu(device).and_then(|(_, _, at)| unsafe { out::value(index, at as c_uint) }))
}

/// A GPU's UUID, or a MIG device's.
///
/// # Safety
/// `uuid` has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(device: Device, uuid: *mut c_char, length: c_uint) -> Return {
    // SAFETY: the caller's promise.
    returned(part(device).and_then(|(_, part)| unsafe { out::text(uuid, length, &part.uuid) }))
}

/// A GPU's product; a MIG device's has its profile (nvml.h: "MIG device names which can be used to identify devices").
///
/// # Safety
/// `name` has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(device: Device, name: *mut c_char, length: c_uint) -> Return {
    // SAFETY: the caller's promise.
    returned(part(device).and_then(|(_, part)| unsafe { out::text(name, length, &part.name) }))
}

/// Total, used and free memory in bytes.
fn memory(device: Device) -> Result<(u64, u64, u64), Return> {
    let (node, gpu) = part(device)?;
    if !gpu.memory_told {
        return Err(NOT_SUPPORTED);
    }
    let used: u64 = contexts(&node, &gpu).iter().map(|c| c.bytes).sum();
    let total = gpu.memory_mib * MIB;
    Ok((total, used, total.saturating_sub(used + RESERVED_MIB * MIB)))
}

/// A GPU's memory.
///
/// # Safety
/// `to` points to room for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: Device, to: *mut Memory) -> Return {
    let all = memory(device).map(|(total, used, free)| Memory { total, free, used });
    // SAFETY: the caller's promise.
    returned(all.and_then(|all| unsafe { out::value(to, all) }))
}

/// A GPU's memory, with what the driver keeps.
///
/// # Safety
/// `to` points to room for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Device, to: *mut Memory2) -> Return {
    let version = size_of::<Memory2>() as c_uint | 2 << 24;
    let reserved = RESERVED_MIB * MIB;
    let all = memory(device).map(|(total, used, free)| Memory2 {
        version,
        total,
        reserved,
        free,
        used,
    });
    // SAFETY: the caller's promise.
    returned(all.and_then(|all| unsafe { out::value(to, all) }))
}

/// A GPU's compute mode; of one in MIG mode only its devices tell (nvml.h: "If MIG is enabled on a GPU, device must be MIG device
/// handle").
///
/// # Safety
/// `mode` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeMode(device: Device, mode: *mut c_uint) -> Return {
    returned(part(device).and_then(|(node, gpu)| {
        if !gpu.mig.is_empty() {
            return Err(NOT_SUPPORTED);
        }
        let now = node.mode(&gpu.uuid);
        let number = MODES.iter().position(|m| *m == now).ok_or(UNKNOWN)?;
        // SAFETY: the caller's promise.
        unsafe { out::value(mode, number as c_uint) }
    }))
}

/// Sets a GPU's compute mode; only root may, and EXCLUSIVE_THREAD is no more (as in NVML). In MIG mode EXCLUSIVE_PROCESS "is not
/// supported" (NVIDIA's MIG guide, "MIG with CUDA MPS"), and the handle must be a MIG device's (nvml.h).
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceSetComputeMode(device: Device, mode: c_uint) -> Return {
    returned(part(device).and_then(|(node, gpu)| {
        let name = MODES
            .get(mode as usize)
            .filter(|m| **m != "exclusive_thread")
            .ok_or(INVALID_ARGUMENT)?;
        if !gpu.mig.is_empty() || mig(device).is_some() && *name == "exclusive_process" {
            return Err(NOT_SUPPORTED);
        }
        if node.is.nvml.set_refused || !nix::unistd::Uid::effective().is_root() {
            return Err(NO_PERMISSION);
        }
        if node.is.nvml.set_ignored {
            return Ok(());
        }
        node.set_mode(&gpu.uuid, name).map_err(|_| UNKNOWN)
    }))
}

/// The number of a GPU's device file.
///
/// # Safety
/// `minor` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMinorNumber(device: Device, minor: *mut c_uint) -> Return {
    // SAFETY: the caller's promise.
    returned(
        gpu(device).and_then(|(_, gpu, at)| unsafe { out::value(minor, gpu.minor.unwrap_or(at as u32)) }),
    )
}

/// The CPUs near a GPU, in bits.
///
/// # Safety
/// `set` has room for `size` words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCpuAffinity(device: Device, size: c_uint, set: *mut c_ulong) -> Return {
    returned(gpu(device).and_then(|(_, gpu, _)| {
        for word in 0..size as usize {
            let bits = if word == 0 { gpu.cpus } else { 0 };
            // SAFETY: the caller's promise.
            unsafe { out::value(set.wrapping_add(word), bits) }?;
        }
        Ok(())
    }))
}

/// A GPU's place on the bus.
///
/// # Safety
/// `to` points to room for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(device: Device, to: *mut Pci) -> Return {
    returned(gpu(device).and_then(|(_, gpu, _)| {
        let number = |at: usize| {
            let part = gpu.pci.split([':', '.']).nth(at).unwrap_or("0");
            c_uint::from_str_radix(part, 16).unwrap_or(0)
        };
        let mut pci = Pci {
            legacy_id: [0; 16],
            domain: number(0),
            bus: number(1),
            device: number(2),
            device_id: 0x2335_10de,
            subsystem_id: 0x18be_10de,
            id: [0; 32],
        };
        let legacy = gpu.pci.trim_start_matches("0000");
        pci.legacy_id
            .iter_mut()
            .zip(legacy.bytes().take(15))
            .for_each(|(to, byte)| *to = byte as c_char);
        pci.id
            .iter_mut()
            .zip(gpu.pci.bytes().take(31))
            .for_each(|(to, byte)| *to = byte as c_char);
        // SAFETY: the caller's promise.
        unsafe { out::value(to, pci) }
    }))
}

/// CUDA compute capability.
///
/// # Safety
/// Both pointers point to an int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: Device,
    major: *mut c_int,
    minor: *mut c_int,
) -> Return {
    returned(gpu(device).and_then(|(_, gpu, _)| {
        // SAFETY: the caller's promise.
        unsafe { out::value(major, gpu.capability.0 as c_int) }?;
        // SAFETY: the caller's promise.
        unsafe { out::value(minor, gpu.capability.1 as c_int) }
    }))
}

/// The architecture, which follows from the compute capability.
///
/// # Safety
/// `to` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetArchitecture(device: Device, to: *mut c_uint) -> Return {
    let number = |capability| match capability {
        (3, _) => 2,
        (5, _) => 3,
        (6, _) => 4,
        (7, 5) => 6,
        (7, _) => 5,
        (8, 9) => 8,
        (8, _) => 7,
        (9, _) => 9,
        (10.., _) => 10,
        _ => c_uint::MAX,
    };
    // SAFETY: the caller's promise.
    returned(gpu(device).and_then(|(_, gpu, _)| unsafe { out::value(to, number(gpu.capability)) }))
}

/// The brand: `NVML_BRAND_NVIDIA`.
///
/// # Safety
/// `brand` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetBrand(device: Device, brand: *mut c_uint) -> Return {
    // SAFETY: the caller's promise.
    returned(gpu(device).and_then(|_| unsafe { out::value(brand, 14) }))
}

/// Whether the driver keeps a GPU's state while nobody uses it.
///
/// # Safety
/// `mode` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPersistenceMode(device: Device, mode: *mut c_uint) -> Return {
    // SAFETY: the caller's promise.
    returned(gpu(device).and_then(|(_, gpu, _)| unsafe { out::value(mode, gpu.persistence.into()) }))
}
