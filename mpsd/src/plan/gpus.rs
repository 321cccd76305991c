//! Which GPUs of the node are the job's, and what MIG changes (docs/facts/mps-control.md#mig). A
//! process sees one MIG device, so each device has its own daemon, and each rank one device. The
//! compute mode stays, and no whole GPU is visible beside it.

use super::draft::Draft;
use batch::{Devices, GpuName, GpuSource};
use mpsd_core::bind::{Bind, DeviceNames};
use mpsd_core::config::GpusUnknown;
use mpsd_core::failure::{Evidence, Fault, Undetermined};
use mpsd_core::gpu::{MIG, Mig};
use mpsd_core::request::Key;
use mpsd_core::{Failure, Gpu, GpuUuid, Inventory, Refusal};

/// In NVML's order, each once. Unknown GPUs never silently mean all of the node's.
pub fn of_job<'a>(
    devices: &Devices,
    inventory: &'a Inventory,
    unknown: GpusUnknown,
) -> Result<Vec<&'a Gpu>, Failure> {
    let given = match &devices.gpus {
        GpuSource::Listed(names) => {
            unmixed(names)?;
            let found = names.iter().map(|name| find(name, inventory));
            found.collect::<Result<Vec<_>, _>>()?
        }
        GpuSource::Numbered(numbers) => numbers.gpus(inventory)?,
        GpuSource::None => {
            let allowed =
                "a request with GPUs on each node, or auto, which leaves a node without GPUs out";
            return Err(Refusal::new("MPS", "the job has no GPU on this node", allowed).into());
        }
        GpuSource::Counted { count, .. } if no_other(*count, devices, inventory) => {
            inventory.gpus.iter().collect()
        }
        GpuSource::Counted { why, .. } => {
            let all = inventory.gpus.len();
            let node = "or the node alone (-l place=exclhost), or GPUs that the scheduler names";
            let allowed = format!("all {all} GPUs of the node, {node}");
            return Err(unknown_gpus(why, &allowed));
        }
        GpuSource::Unknown(why) => whole_node(why, devices, inventory, unknown)?,
    };
    let is_given = |gpu: &&Gpu| given.iter().any(|one| one.uuid == gpu.uuid);
    let gpus: Vec<&Gpu> = inventory.all().filter(is_given).collect();
    usable(&gpus)?;
    Ok(gpus)
}

fn find<'a>(name: &GpuName, inventory: &'a Inventory) -> Result<&'a Gpu, Failure> {
    let (found, text) = match name {
        GpuName::Index(index) => (inventory.by_index(*index), index.to_string()),
        GpuName::Uuid(uuid) => (inventory.by_uuid(&GpuUuid::parse(uuid)?), uuid.clone()),
    };
    if found.is_none() && text.starts_with(MIG) {
        // No evidence against the node: users who may do that divide a GPU while it runs.
        let why = "the scheduler gave it to the job, and NVML does not list it: the GPU was divided again since the \
                   scheduler looked, or a user may do that";
        return Err(Undetermined::new(format!("MIG device {text}"), why).into());
    }
    found.ok_or_else(|| {
        let others = inventory.gpus.len();
        let why = format!("the scheduler gave it to the job, and NVML lists {others} others");
        Fault::new(Evidence::GpuLost, format!("GPU {text}"), why).into()
    })
}

/// Whether the job has all GPUs: the node has one, or as many, or is the job's alone.
fn no_other(count: u32, devices: &Devices, inventory: &Inventory) -> bool {
    let here = inventory.gpus.len();
    here == 1
        || usize::try_from(count).is_ok_and(|count| count == here)
        || (devices.whole_node && here > 0)
}

fn whole_node<'a>(
    why: &str,
    devices: &Devices,
    inventory: &'a Inventory,
    unknown: GpusUnknown,
) -> Result<Vec<&'a Gpu>, Failure> {
    if unknown != GpusUnknown::WholeNodeIfExclusive {
        let allowed = "GPUs that the scheduler assigns, or gpus_unknown = \"whole-node-if-exclusive\" in mpsd.toml";
        return Err(unknown_gpus(why, allowed));
    }
    if !devices.whole_node {
        let why = format!(
            "the job's GPUs on this node are not known ({why}), and the node is not the job's alone"
        );
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

/// Only names tell: a number beside MIG devices counts both.
pub fn unmixed(names: &[GpuName]) -> Result<(), Refusal> {
    let is_mig = |name: &&GpuName| matches!(name, GpuName::Uuid(uuid) if uuid.starts_with(MIG));
    let migs = names.iter().filter(is_mig).count();
    let whole = names.len() - migs;
    if migs == 0 || whole == 0 {
        return Ok(());
    }
    let why = format!(
        "the job has MIG devices ({migs}) and whole GPUs ({whole}) on this node, and no process \
         sees both"
    );
    Err(Refusal::new("MPS", why, "either of them"))
}

/// Nothing can run on a GPU in MIG mode without a MIG device.
pub fn usable(gpus: &[&Gpu]) -> Result<(), Refusal> {
    let Some(gpu) = gpus.iter().find(|gpu| gpu.mig == Mig::On) else {
        return Ok(());
    };
    Err(Refusal::new(
        format!("GPU {} ({})", gpu.index, gpu.uuid),
        "MIG mode is on, and the scheduler names none of its MIG devices",
        "MIG devices that the scheduler names by UUID, or a GPU without MIG",
    ))
}

pub fn has_mig(gpus: &[&Gpu]) -> bool {
    gpus.iter().any(|gpu| gpu.uuid.is_mig())
}

pub fn kind(gpus: &[&Gpu]) -> &'static str {
    match has_mig(gpus) {
        true => "MIG device",
        false => "GPU",
    }
}

pub fn binding(draft: &Draft<'_>) -> Result<(Bind, DeviceNames), Refusal> {
    let bind = draft.filled.bind.unwrap_or(Bind::DEFAULT);
    let usual = draft.settings.cuda_visible_devices;
    let names = draft.filled.visible.unwrap_or(usual);
    if !has_mig(&draft.gpus) {
        return Ok((bind, names));
    }
    let several = draft.gpus.len() > 1;
    let refused = |key, value: String, why: &str, allowed: &str| {
        let word = draft.asked.syntax.token(key, Some(&value));
        Err(Refusal::new(word, why, allowed))
    };
    match (draft.asked.request.bind, draft.asked.request.visible) {
        (Some(bind), _) if several && bind == Bind::None => {
            let why = "a process sees one MIG device, and the job has several";
            refused(Key::Bind, bind.to_string(), why, "block, cyclic, closest")
        }
        (_, Some(DeviceNames::Ordinal)) => {
            let why = "a MIG device is named by its UUID";
            refused(Key::Visible, "ordinal".to_owned(), why, "auto, uuid")
        }
        _ => Ok((bind, DeviceNames::Uuid)),
    }
}
