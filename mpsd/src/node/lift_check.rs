//! What is checked before our drain of a node is lifted.

use crate::job::node::Gpus;
use crate::scheduler::drain::{Marker, markers};
use mpsd_core::gpu::Mig;
use mpsd_core::trusted::open_trusted;
use mpsd_core::{GpuUuid, Paths};
use std::path::Path;

/// What is to be looked at again before a drain is lifted.
#[derive(Debug, Clone, Copy)]
pub struct LiftCheck<'a> {
    /// Our own directories.
    pub paths: &'a Paths,
    /// NVIDIA's control daemon.
    pub control: &'a Path,
    /// Directories of jobs that their scheduler has let go and that could not be taken down: survivors.
    pub left: &'a [String],
}

/// Looks at the node again: NVML answers, the GPUs of the marker are there and tell their mode, the vendor's program is
/// what it should be, and no survivor is left of a job that is gone.
pub fn check_before_lift(node: &mut impl Gpus, marker: &Marker, check: &LiftCheck<'_>) -> Result<(), String> {
    if !check.left.is_empty() {
        return Err(format!(
            "jobs that are gone, or may be, have left something: {}",
            check.left.join(", ")
        ));
    }
    open_trusted(check.control).map_err(|e| format!("NVIDIA's MPS control daemon: {e}"))?;
    let inventory = node.inventory().map_err(|e| e.to_string())?;
    for name in &marker.gpus {
        let uuid = GpuUuid::parse(name).map_err(|e| e.to_string())?;
        // MIG devices do not outlive a boot, nor the next division of their GPU.
        if !uuid.is_mig() && inventory.by_uuid(&uuid).is_none() {
            return Err(format!("NVML does not list GPU {uuid}"));
        }
    }
    for gpu in inventory.gpus.iter().filter(|gpu| gpu.mig != Mig::On) {
        node.compute_mode(&gpu.uuid).map_err(|e| e.to_string())?;
    }
    // A place that could not be written is the evidence of some drains.
    markers::write(check.paths, marker)
}
