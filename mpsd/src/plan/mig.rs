//! What MIG changes of a plan (docs/facts/mps-control.md#mig): a process sees one MIG device, so each has a daemon of its own and
//! each rank one of them; the compute mode stays; and CUDA shows no whole GPU to a process that sees a MIG device.

use super::draft::Draft;
use crate::scheduler::GpuName;
use mpsd_core::bind::{Bind, DeviceNames};
use mpsd_core::gpu::{MIG, Mig};
use mpsd_core::request::Key;
use mpsd_core::{Gpu, Refusal};

/// Refuses a job that was given MIG devices and whole GPUs. By names alone: a number beside them counts both.
pub fn unmixed(names: &[GpuName]) -> Result<(), Refusal> {
    let is_mig = |name: &&GpuName| matches!(name, GpuName::Uuid(uuid) if uuid.starts_with(MIG));
    let migs = names.iter().filter(is_mig).count();
    match names.len() - migs {
        0 => Ok(()),
        _ if migs == 0 => Ok(()),
        whole => Err(Refusal::new(
            "MPS",
            format!(
                "the job has MIG devices ({migs}) and whole GPUs ({whole}) on this node, and no process sees both"
            ),
            "either of them",
        )),
    }
}

/// Refuses a GPU in MIG mode that the scheduler gave without a MIG device: nothing can run on it.
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

/// Whether the job has MIG devices. A process sees only one of them.
pub fn has_devices(gpus: &[&Gpu]) -> bool {
    gpus.iter().any(|gpu| gpu.uuid.is_mig())
}

pub fn kind(gpus: &[&Gpu]) -> &'static str {
    match has_devices(gpus) {
        true => "MIG device",
        false => "GPU",
    }
}

/// How the job's tasks are bound, and how `CUDA_VISIBLE_DEVICES` names what they see.
pub fn binding(draft: &Draft<'_>) -> Result<(Bind, DeviceNames), Refusal> {
    let bind = draft.request.bind.unwrap_or(Bind::DEFAULT);
    let names = draft
        .request
        .visible
        .unwrap_or(draft.settings.cuda_visible_devices);
    if !has_devices(&draft.gpus) {
        return Ok((bind, names));
    }
    let several = draft.gpus.len() > 1;
    let refused = |key, value: String, why: &str, allowed: &str| {
        Err(Refusal::new(draft.syntax.token(key, Some(&value)), why, allowed))
    };
    match (draft.written.bind, draft.written.visible) {
        (Some(bind), _) if several && (bind.peers || bind == Bind::NONE) => {
            let why = "a process sees one MIG device, and the job has several";
            refused(Key::Bind, bind.to_string(), why, "block, cyclic, closest")
        }
        (_, Some(DeviceNames::Ordinal)) => {
            let why = "a MIG device is named by its UUID";
            refused(Key::Visible, "ordinal".to_owned(), why, "auto, uuid")
        }
        (_, Some(DeviceNames::Keep)) if several => {
            let why = "a process sees the first of several MIG devices that the scheduler names";
            refused(Key::Visible, "keep".to_owned(), why, "auto, uuid")
        }
        _ if names == DeviceNames::Keep && !several => Ok((bind, names)),
        _ => Ok((Bind { peers: false, ..bind }, DeviceNames::Uuid)),
    }
}
