//! Slurm: everything stands in the environment of `slurmstepd spank prolog|epilog`, or of the step's task.
//!
//! Recorded on 22.05.8: `SLURM_JOB_GPUS` and `CUDA_VISIBLE_DEVICES` are both there, node-wide numbers, whatever
//! PrologFlags say, and both absent when the job has no GPU. A step has `SLURM_STEP_GPUS`; its
//! `CUDA_VISIBLE_DEVICES` counts from 0 under ConstrainDevices and is never used here.

use super::detail;
use super::gres::Gres;
use crate::scheduler::call::{Input, Submission, UserRef};
use crate::scheduler::devices::{Devices, Exclusive, GpuName, GpuSource};
use crate::scheduler::host::Host;
use crate::scheduler::numbers::{List, Number, Numbers};
use mpsd_core::failure::{Failure, Undetermined};
use mpsd_core::job::{JobId, Scheduler};
use mpsd_core::text::one_line;
use std::path::PathBuf;

/// The job's GPUs in a prolog.
const OF_JOB: &str = "SLURM_JOB_GPUS";

/// How it calls us.
pub(super) const VECTORS: &str = "none and Slurm's environment";

/// The job or step that Slurm's environment names.
///
/// # Errors
/// A positional argument, or a variable that Slurm always sets and that is not there: undetermined. A job id that
/// Slurm does not write: refusal.
pub(super) fn read(input: &Input<'_>) -> Result<Submission, Failure> {
    if !input.arguments.is_empty() {
        return Err(input.wrong_vector(Scheduler::Slurm, VECTORS));
    }
    let var = |name: &str| (input.env)(name).filter(|v| !v.is_empty());
    let id = var("SLURM_JOB_ID").ok_or_else(|| missing("SLURM_JOB_ID"))?;
    let uid = var("SLURM_JOB_UID").ok_or_else(|| missing("SLURM_JOB_UID"))?;
    let uid: u32 = uid
        .parse()
        .map_err(|_| Undetermined::new("SLURM_JOB_UID", "it is no user id"))?;
    let whole = JobId::parse(&id)?;
    let step = step(input);
    let job = match &step {
        Some(step) => whole.step(step)?,
        None => whole,
    };
    Ok(Submission {
        scheduler: Scheduler::Slurm,
        sister: false,
        job,
        user: UserRef::Uid(uid),
        account: input
            .given
            .account
            .as_ref()
            .map(|a| a.as_encoded_bytes().to_vec()),
        resource: None,
        node: var("SLURMD_NODENAME"),
        interactive: var("SPANK_MPS_SUBMIT").is_some_and(|by| by == "allocator"),
        step: step.is_some(),
    })
}

/// The step's number, unless this is the job's own prolog or epilog.
fn step(input: &Input<'_>) -> Option<String> {
    let context = (input.env)("SLURM_SCRIPT_CONTEXT").unwrap_or_default();
    if context.starts_with("prolog") || context.starts_with("epilog") {
        return None;
    }
    let id = (input.env)("SLURM_STEP_ID").or_else(|| (input.env)("SLURM_STEPID"))?;
    (!id.is_empty() && id.bytes().all(|b| b.is_ascii_digit())).then_some(id)
}

/// The GPUs and tasks of the job, or of the step.
pub(super) fn devices(input: &Input<'_>, host: &dyn Host) -> Devices {
    let scope = if step(input).is_some() {
        "SLURM_STEP_GPUS"
    } else {
        OF_JOB
    };
    let conf = (input.env)("SLURM_CONF").map(PathBuf::from);
    let node = (input.env)("SLURMD_NODENAME").unwrap_or_else(|| host.name());
    let gres = conf.map(|conf| Gres::read(&conf, &node, host));
    let exclusive = exclusive(input, gres.as_ref());
    let gpus = gpus(input, scope, gres, &node);
    Devices {
        exclusive: if gpus == GpuSource::None {
            Exclusive::Unknown
        } else {
            exclusive
        },
        gpus,
        whole_node: false,
        tasks_on_node: tasks(input),
    }
}

fn gpus(input: &Input<'_>, scope: &str, gres: Option<Gres>, node: &str) -> GpuSource {
    let visible = (input.env)("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    // A MIG device has no number of its own in SLURM_JOB_GPUS; only here does Slurm give its name.
    let mig = visible.contains("MIG-");
    let text = if mig {
        visible.clone()
    } else {
        (input.env)(scope).unwrap_or_default()
    };
    match GpuName::parse_list(&text) {
        Ok(names) if names.is_empty() => GpuSource::None,
        // In a step the variable is the user's own there, and whoever wrote it could name another job's device.
        Ok(_) if mig && scope != OF_JOB && gres.as_ref().is_some_and(|gres| gres.unnamed) => {
            let why = "gres.conf has Flags by which Slurm leaves CUDA_VISIBLE_DEVICES to the step's user, and nothing else names a MIG device";
            GpuSource::Unknown(why.to_owned())
        }
        Ok(names) if mig => {
            let several = scope == OF_JOB && gres.is_some_and(|gres| gres.several_types);
            match beside(input, node, names.len(), several) {
                None => GpuSource::Listed(names),
                Some(why) => GpuSource::Unknown(why),
            }
        }
        Ok(names) if scope == OF_JOB && gres.as_ref().is_some_and(|gres| gres.several_types) => {
            match detail::places(input, node, &names) {
                Ok(names) => GpuSource::Numbered(numbers(&names, "", gres)),
                Err(why) => GpuSource::Unknown(format!(
                    "{scope} names GPUs of one type only, and the node has several: {why}"
                )),
            }
        }
        Ok(names) => GpuSource::Numbered(numbers(&names, &visible, gres)),
        Err(why) => GpuSource::Unknown(format!("{scope}={}: {why}", one_line(&text, 80))),
    }
}

/// What is against the names of so many MIG devices in a prolog: devices of a second type, which it is not told of, as the whole
/// GPUs of a node that has both.
fn beside(input: &Input<'_>, node: &str, named: usize, several_types: bool) -> Option<String> {
    if !several_types {
        return None;
    }
    let told = GpuName::parse_list(&(input.env)(OF_JOB).unwrap_or_default());
    match told.and_then(|told| detail::places(input, node, &told)) {
        Ok(all) if all.len() == named => None,
        Ok(all) => Some(format!(
            "Slurm gives it {} devices of several types, and names {named} of one type to the prolog",
            all.len()
        )),
        Err(why) => Some(format!(
            "{OF_JOB} names devices of one type only, and the node has several: {why}"
        )),
    }
}

/// The numbers with the UUIDs that the prolog of Slurm 25.11 and later has beside them under AutoDetect=nvml.
fn numbers(names: &[GpuName], visible: &str, gres: Option<Gres>) -> Numbers {
    let mut uuids: Vec<Option<String>> = visible
        .split(',')
        .map(|entry| entry.starts_with("GPU-").then(|| entry.to_owned()))
        .collect();
    uuids.resize(names.len(), None);
    let number = |(name, uuid): (&GpuName, Option<String>)| match name {
        GpuName::Index(place) => Some(Number { place: *place, uuid }),
        GpuName::Uuid(_) => None,
    };
    let unknown = || List::Unknown("Slurm did not say where its configuration is (SLURM_CONF)".to_owned());
    Numbers {
        numbers: names.iter().zip(uuids).filter_map(number).collect(),
        confined: gres.as_ref().and_then(|gres| gres.confined),
        by_uuid: gres.as_ref().is_some_and(|gres| gres.by_uuid),
        list: gres.map_or_else(unknown, |gres| gres.list),
    }
}

/// gres/gpu gives a GPU to one job; gres/shard and gres/mps let jobs share it, and the prolog is not told which of
/// the three the job has. So a cluster that has one of them proves nothing.
fn exclusive(input: &Input<'_>, gres: Option<&Gres>) -> Exclusive {
    let shares = ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "SLURM_SHARDS_ON_NODE"];
    if shares.iter().any(|name| (input.env)(name).is_some()) {
        return Exclusive::Shared;
    }
    if gres.is_some_and(|gres| gres.unshared) {
        Exclusive::GpusAlone
    } else {
        Exclusive::Unknown
    }
}

/// Tasks on this node: exact where Slurm says so for the node, else the even share, rounded up.
fn tasks(input: &Input<'_>) -> Option<u32> {
    let (total, nodes) = if step(input).is_some() {
        ("SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES")
    } else {
        ("SLURM_JOB_NTASKS", "SLURM_JOB_NUM_NODES")
    };
    let total = input
        .number(total)
        .or_else(|| input.number("SLURM_NTASKS"))
        .filter(|n| *n > 0)?;
    let nodes = input
        .number(nodes)
        .or_else(|| input.number("SLURM_NNODES"))
        .filter(|n| *n > 0)?;
    Some(total.div_ceil(nodes))
}

fn missing(name: &str) -> Undetermined {
    Undetermined::new(
        name,
        "Slurm did not set it; run through the plugin's job_prolog and job_epilog",
    )
}
