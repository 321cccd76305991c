//! Which GPUs of the node are the job's.

use super::mig;
use crate::scheduler::{Devices, GpuName, GpuSource};
use mpsd_core::config::GpusUnknown;
use mpsd_core::failure::{Evidence, Fault, Undetermined};
use mpsd_core::gpu::MIG;
use mpsd_core::{Failure, Gpu, GpuUuid, Inventory, Refusal};

/// The job's GPUs, or its MIG devices, in NVML's order, each once. Never silently all of the node's.
pub fn of_job<'a>(
    devices: &Devices,
    inventory: &'a Inventory,
    unknown: GpusUnknown,
) -> Result<Vec<&'a Gpu>, Failure> {
    let given = match &devices.gpus {
        GpuSource::Listed(names) => {
            mig::unmixed(names)?;
            let found = names.iter().map(|name| find(name, inventory));
            found.collect::<Result<Vec<_>, _>>()?
        }
        GpuSource::Numbered(numbers) => numbers.gpus(inventory)?,
        GpuSource::None => {
            return Err(Refusal::new("MPS", "the job has no GPU on this node", "a request with GPUs").into());
        }
        GpuSource::Counted { count, .. } if no_other(*count, devices, inventory) => {
            inventory.gpus.iter().collect()
        }
        GpuSource::Counted { why, .. } => {
            let all = inventory.gpus.len();
            let node = "or the node alone (-l place=exclhost), or GPUs that the scheduler names";
            return Err(unknown_gpus(why, &format!("all {all} GPUs of the node, {node}")));
        }
        GpuSource::Unknown(why) => whole_node(why, devices, inventory, unknown)?,
    };
    let is_given = |gpu: &&Gpu| given.iter().any(|one| one.uuid == gpu.uuid);
    let gpus: Vec<&Gpu> = inventory.all().filter(is_given).collect();
    mig::usable(&gpus)?;
    Ok(gpus)
}

fn find<'a>(name: &GpuName, inventory: &'a Inventory) -> Result<&'a Gpu, Failure> {
    let (found, text) = match name {
        GpuName::Index(index) => (inventory.by_index(*index), index.to_string()),
        GpuName::Uuid(uuid) => (inventory.by_uuid(&GpuUuid::parse(uuid)?), uuid.clone()),
    };
    if found.is_none() && text.starts_with(MIG) {
        // MIG devices come and go while the GPU runs, made by users who may do that: no evidence against the node.
        let why = "the scheduler gave it to the job, and NVML does not list it: the GPU was divided anew since the scheduler \
                   looked, or a user may do that";
        return Err(Undetermined::new(format!("MIG device {text}"), why).into());
    }
    found.ok_or_else(|| {
        let others = inventory.gpus.len();
        let why = format!("the scheduler gave it to the job, and NVML lists {others} others");
        Fault::new(Evidence::GpuLost, format!("GPU {text}"), why).into()
    })
}

/// Whether a job with so many GPUs must have all of the node's: the node has one, or as many, or is the job's alone.
fn no_other(count: u32, devices: &Devices, inventory: &Inventory) -> bool {
    let here = inventory.gpus.len();
    here == 1 || usize::try_from(count).is_ok_and(|count| count == here) || (devices.whole_node && here > 0)
}

fn whole_node<'a>(
    why: &str,
    devices: &Devices,
    inventory: &'a Inventory,
    unknown: GpusUnknown,
) -> Result<Vec<&'a Gpu>, Failure> {
    if unknown != GpusUnknown::WholeNodeIfExclusive {
        let allowed =
            "GPUs that the scheduler assigns, or gpus_unknown = \"whole-node-if-exclusive\" in mpsd.toml";
        return Err(unknown_gpus(why, allowed));
    }
    if !devices.whole_node {
        let why =
            format!("the job's GPUs on this node are not known ({why}), and the node is not the job's alone");
        return Err(Refusal::new("MPS", why, "a job that holds the whole node").into());
    }
    if inventory.gpus.is_empty() {
        return Err(Refusal::new("MPS", "this node has no GPU", "a node with GPUs").into());
    }
    Ok(inventory.gpus.iter().collect())
}

fn unknown_gpus(why: &str, allowed: &str) -> Failure {
    let why = format!("the job's GPUs on this node are not known: {why}");
    Refusal::new("MPS", why, allowed).into()
}
