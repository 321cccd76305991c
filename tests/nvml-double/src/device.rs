//! Functions about one GPU.

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_uint, c_ulong};
use std::sync::Mutex;
use std::time::Duration;

use nvml_wrapper_sys::bindings::{
    nvmlMemory_v2_t as Memory, nvmlPciInfo_t, nvmlProcessInfo_t as Process,
};

use crate::node::{Context, Gpu, MIB, Node};
use crate::{
    Device, INVALID_ARGUMENT, NO_PERMISSION, NOT_FOUND, NOT_SUPPORTED, Out, Return, UNKNOWN,
    answer, gpu, healthy, list, mig, node, part, put, string, text,
};

/// Compute modes, at the place of their number.
const MODES: [&str; 4] = [
    "default",
    "exclusive_thread",
    "prohibited",
    "exclusive_process",
];

/// Memory that the driver keeps, MiB.
const RESERVED_MIB: u64 = 600;

/// The GPUs at which this process has looked.
static SEEN: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCount_v2(count: Out<c_uint>) -> Return {
    answer(|| put(count, node()?.is.gpu.len() as c_uint))
}

/// Writes the handle of the GPU that `is` chooses.
fn handle(device: Out<Device>, is: impl Fn(usize, &Gpu) -> bool) -> Result<(), Return> {
    let node = node()?;
    let mut gpus = node.is.gpu.iter().enumerate();
    let (index, gpu) = gpus.find(|(index, gpu)| is(*index, gpu)).ok_or(NOT_FOUND)?;
    healthy(gpu)?;
    if SEEN.lock().map_err(|_| UNKNOWN)?.insert(index) {
        std::thread::sleep(Duration::from_millis(node.is.times.nvml_look));
    }
    put(device, std::ptr::without_provenance_mut(index + 1))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<Device>) -> Return {
    answer(|| match handle(device, |at, _| at == index as usize) {
        Err(NOT_FOUND) => Err(INVALID_ARGUMENT),
        found => found,
    })
}

/// Of a GPU or a MIG device (nvml.h: "the UUID of the target GPU or MIG instance").
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: Out<Device>) -> Return {
    // SAFETY: the caller gives a string.
    answer(|| match unsafe { string(uuid) }? {
        uuid if uuid.starts_with("MIG-") => mig::handle(device, &uuid),
        uuid => handle(device, |_, gpu| gpu.uuid == uuid),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    id: *const c_char,
    device: Out<Device>,
) -> Return {
    answer(|| {
        // SAFETY: the caller gives a string.
        let id = unsafe { string(id) }?.to_lowercase();
        handle(device, |_, gpu| gpu.pci.to_lowercase().ends_with(&id))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUUID(
    device: Device,
    uuid: *mut c_char,
    length: c_uint,
) -> Return {
    // SAFETY: the caller gives room for `length` bytes.
    answer(|| unsafe { text(uuid, length, &part(device)?.1.uuid) })
}

/// A MIG device's name has its profile in it (nvml.h: "MIG device names which can be used to
/// identify devices").
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetName(
    device: Device,
    name: *mut c_char,
    length: c_uint,
) -> Return {
    // SAFETY: the caller gives room for `length` bytes.
    answer(|| unsafe { text(name, length, &part(device)?.1.name) })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Device, to: Out<Memory>) -> Return {
    answer(|| {
        let (node, gpu) = part(device)?;
        if !gpu.memory_told {
            return Err(NOT_SUPPORTED);
        }
        let used: u64 = contexts(&node, &gpu).iter().map(|c| c.bytes).sum();
        let (total, reserved) = (gpu.memory_mib * MIB, RESERVED_MIB * MIB);
        let all = Memory {
            version: size_of::<Memory>() as c_uint | 2 << 24,
            total,
            reserved,
            free: total.saturating_sub(used + reserved),
            used,
        };
        put(to, all)
    })
}

/// In MIG mode only a GPU's devices answer (nvml.h: "If MIG is enabled on a GPU, device must be MIG
/// device handle").
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeMode(device: Device, mode: Out<c_uint>) -> Return {
    answer(|| {
        let (node, gpu) = part(device)?;
        if !gpu.mig.is_empty() {
            return Err(NOT_SUPPORTED);
        }
        let now = node.mode(&gpu.uuid);
        let number = MODES.iter().position(|m| *m == now).ok_or(UNKNOWN)?;
        put(mode, number as c_uint)
    })
}

/// Only root may set it, and EXCLUSIVE_THREAD is gone (as in NVML). In MIG mode EXCLUSIVE_PROCESS
/// "is not supported" (NVIDIA's MIG guide, "MIG with CUDA MPS"), and the handle must be a MIG
/// device's (nvml.h).
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceSetComputeMode(device: Device, mode: c_uint) -> Return {
    answer(|| {
        let (node, gpu) = part(device)?;
        let name = MODES.get(mode as usize).copied();
        let name = name.filter(|name| *name != "exclusive_thread");
        let name = name.ok_or(INVALID_ARGUMENT)?;
        if !gpu.mig.is_empty() || mig::place(device).is_some() && name == "exclusive_process" {
            return Err(NOT_SUPPORTED);
        }
        if node.is.nvml.set_refused || !nix::unistd::Uid::effective().is_root() {
            return Err(NO_PERMISSION);
        }
        if node.is.nvml.set_ignored {
            return Ok(());
        }
        node.set_mode(&gpu.uuid, name).map_err(|_| UNKNOWN)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetIndex(device: Device, index: Out<c_uint>) -> Return {
    answer(|| put(index, gpu(device)?.2 as u32))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMinorNumber(device: Device, minor: Out<c_uint>) -> Return {
    answer(|| {
        let (_, gpu, at) = gpu(device)?;
        put(minor, gpu.minor.unwrap_or(at as u32))
    })
}

/// The CPUs near a GPU, in bits.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCpuAffinity(
    device: Device,
    size: c_uint,
    set: *mut c_ulong,
) -> Return {
    answer(|| {
        let (_, gpu, _) = gpu(device)?;
        let mut words = vec![0; size as usize];
        if let Some(first) = words.first_mut() {
            *first = gpu.cpus;
        }
        let mut room = size;
        // SAFETY: the caller gives room for `size` words.
        unsafe { list(Some(&mut room), set, &words) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPciInfo_v3(device: Device, to: Out<nvmlPciInfo_t>) -> Return {
    answer(|| {
        let (_, gpu, _) = gpu(device)?;
        let number = |at: usize| {
            let part = gpu.pci.split([':', '.']).nth(at).unwrap_or("0");
            c_uint::from_str_radix(part, 16).unwrap_or(0)
        };
        let pci = nvmlPciInfo_t {
            busIdLegacy: characters(gpu.pci.trim_start_matches("0000")),
            domain: number(0),
            bus: number(1),
            device: number(2),
            pciDeviceId: 0x2335_10de,
            pciSubSystemId: 0x18be_10de,
            busId: characters(&gpu.pci),
        };
        put(to, pci)
    })
}

/// As much of a text as fits, with a final zero.
fn characters<const N: usize>(text: &str) -> [c_char; N] {
    let bytes = text.as_bytes();
    std::array::from_fn(|at| match bytes.get(at) {
        Some(byte) if at + 1 < N => *byte as c_char,
        _ => 0,
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: Device,
    major: Out<c_int>,
    minor: Out<c_int>,
) -> Return {
    answer(|| {
        let (_, gpu, _) = gpu(device)?;
        put(major, gpu.capability.0 as c_int)?;
        put(minor, gpu.capability.1 as c_int)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPersistenceMode(device: Device, mode: Out<c_uint>) -> Return {
    answer(|| put(mode, gpu(device)?.1.persistence.into()))
}

/// Milliwatts: contexts add to it until eight keep the GPU busy.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPowerUsage(device: Device, power: Out<c_uint>) -> Return {
    answer(|| {
        let (node, gpu) = part(device)?;
        let contexts = contexts(&node, &gpu);
        let clients = contexts.iter().filter(|c| c.kind != "server").count();
        put(power, 100_000 + 50_000 * clients.min(8) as c_uint)
    })
}

/// The contexts on a GPU or a MIG device. A GPU in MIG mode has those of all its devices (nvml.h:
/// "if device handle is provided, the API returns aggregate information [...]. Per-instance
/// information can be queried by using specific MIG device handles").
fn contexts(node: &Node, gpu: &Gpu) -> Vec<Context> {
    let parts = gpu.mig.iter().map(|mig| mig.uuid.as_str());
    let uuids = [gpu.uuid.as_str()].into_iter().chain(parts);
    uuids.flat_map(|uuid| node.contexts(uuid)).collect()
}

fn processes(device: Device, only_clients: bool) -> Result<Vec<Process>, Return> {
    let (node, gpu) = part(device)?;
    // Recorded: a client that only enumerated this GPU is, without memory, only in the list of
    // clients.
    let listed = |c: &Context| match only_clients {
        true => c.kind == "mps",
        false => c.bytes > 0,
    };
    let entry = |pid, memory| Process {
        pid,
        usedGpuMemory: memory,
        gpuInstanceId: c_uint::MAX,
        computeInstanceId: c_uint::MAX,
    };
    let contexts = contexts(&node, &gpu).into_iter().filter(listed);
    let found = contexts.map(|c| entry(c.pid, c.bytes));
    let stale = node.is.nvml.stale_pid.filter(|_| !only_clients);
    let stale = stale.map(|pid| entry(pid, 512 * MIB));
    Ok(found.chain(stale).collect())
}

/// Servers, their clients, and other processes with a compute context.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: Device,
    count: Option<&mut c_uint>,
    to: *mut Process,
) -> Return {
    // SAFETY: the caller gives room for `count` processes.
    answer(|| unsafe { list(count, to, &processes(device, false)?) })
}

/// Clients of MPS servers.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
    device: Device,
    count: Option<&mut c_uint>,
    to: *mut Process,
) -> Return {
    // SAFETY: the caller gives room for `count` processes.
    answer(|| unsafe { list(count, to, &processes(device, true)?) })
}
