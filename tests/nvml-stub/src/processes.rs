//! The lists of processes on one GPU. Each function trusts its caller's pointers, as NVML does.

use std::ffi::{c_uint, c_ulonglong};

use crate::node::{Context, Gpu, MIB, Node};
use crate::out;
use crate::{Device, Return, gpu, part, returned};

/// `nvmlProcessInfo_t`, third version.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Process {
    pid: c_uint,
    memory: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// The contexts on a GPU, or on a MIG device; a GPU in MIG mode has those of all its devices (nvml.h: "if device handle is
/// provided, the API returns aggregate information [...]. Per-instance information can be queried by using specific MIG device
/// handles").
pub fn contexts(node: &Node, gpu: &Gpu) -> Vec<Context> {
    let parts = gpu.mig.iter().map(|mig| mig.uuid.as_str());
    let uuids = [gpu.uuid.as_str()].into_iter().chain(parts);
    uuids.flat_map(|uuid| node.contexts(uuid)).collect()
}

fn processes(device: Device, only_clients: bool) -> Result<Vec<Process>, Return> {
    let (node, gpu) = part(device)?;
    // Recorded: a client that only enumerated this GPU stands, with no memory, in the list of clients alone.
    let listed = |c: &Context| {
        if only_clients {
            c.kind == "mps"
        } else {
            c.bytes > 0
        }
    };
    let none = c_uint::MAX;
    let entry = |pid, memory| Process {
        pid,
        memory,
        gpu_instance: none,
        compute_instance: none,
    };
    let contexts = contexts(&node, &gpu);
    let mut list: Vec<Process> = contexts
        .iter()
        .filter(|c| listed(c))
        .map(|c| entry(c.pid, c.bytes))
        .collect();
    list.extend(
        node.is
            .nvml
            .stale_pid
            .filter(|_| !only_clients)
            .map(|pid| entry(pid, 512 * MIB)),
    );
    Ok(list)
}

/// Processes with a compute context: servers, clients of servers, and others.
///
/// # Safety
/// `count` points to a number and `to` to room for that many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: Device,
    count: *mut c_uint,
    to: *mut Process,
) -> Return {
    // SAFETY: the caller's promise.
    returned(processes(device, false).and_then(|list| unsafe { out::list(count, to, &list) }))
}

/// Clients of MPS servers.
///
/// # Safety
/// `count` points to a number and `to` to room for that many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
    device: Device,
    count: *mut c_uint,
    to: *mut Process,
) -> Return {
    // SAFETY: the caller's promise.
    returned(processes(device, true).and_then(|list| unsafe { out::list(count, to, &list) }))
}

/// Processes that draw: none.
///
/// # Safety
/// `count` points to a number and `to` to room for that many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: Device,
    count: *mut c_uint,
    to: *mut Process,
) -> Return {
    // SAFETY: the caller's promise.
    returned(gpu(device).and_then(|_| unsafe { out::list(count, to, &[]) }))
}
