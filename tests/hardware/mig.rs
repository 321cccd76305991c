//! MPS on MIG devices: what NVIDIA documents and this project builds on (docs/facts/mps-control.md#mig), where the machine has some.
//! No MIG device is made or removed, and no mode is changed.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::clients::{self, Limits};
use crate::job::{self, Job};
use crate::look::{self, Look};
use crate::result::Section;
use crate::site::{self, Gpu, Place};
use crate::vendor::Daemon;

const JOB: &str = "4716.srv";
const ACCOUNT: &str = "MPS=true,MPS_THREADS=50,MPS_MEM=1G";
/// The smallest device takes more.
const CLIENTS: usize = 2;

/// One job on a MIG device, and one on two; else says that all of it stays unverified.
pub fn run(section: &mut Section, place: &Place, gpu: &Gpu) -> Result<()> {
    let devices = devices(&site::smi(&["-L"])?);
    section.fact("mig_devices", devices.len() as i64);
    let Some(first) = devices.first() else {
        let why = "no GPU of this machine has MIG devices: MPS on MIG devices stays documented, not verified";
        section.fact("left_out", why);
        return Ok(());
    };
    let mig = |uuid: &String| Gpu {
        uuid: uuid.clone(),
        ..gpu.clone()
    };
    let before = Look::take(&place.run)?;
    let whole = bare(section, place, first)?;
    if let [first, second, ..] = &devices[..] {
        let both = format!("{first},{second}");
        let seen = outside(place, &both)?;
        section.equal(
            "MIG devices that a process sees of two",
            &seen["gpus"].as_array().map(Vec::len),
            &Some(1),
        );
    }
    let limits = Limits {
        percent: 50.0,
        memory_mib: 1024,
        device_sms: whole,
    };
    one(section, place, &mig(first), &limits)?;
    if let [first, second, ..] = &devices[..] {
        two(section, place, [&mig(first), &mig(second)])?;
    }
    by_name(section, place, first)?;
    let kept: Vec<_> = devices
        .iter()
        .take(2)
        .flat_map(|uuid| job::kept(&place.run, uuid))
        .collect();
    look::compare(section, &before, &place.run, &kept, Duration::from_secs(5))
}

/// The UUIDs of MIG devices in the lines `  MIG 1g.10gb     Device  0: (UUID: MIG-…)`.
fn devices(list: &str) -> Vec<String> {
    let uuid = |line: &str| {
        let (_, rest) = line.trim().strip_prefix("MIG ")?.split_once("(UUID: ")?;
        Some(rest.trim_end_matches(')').to_owned())
    };
    list.lines().filter_map(uuid).collect()
}

/// What a client outside MPS reports.
fn outside(place: &Place, visible: &str) -> Result<serde_json::Value> {
    let mut env = site::base_env();
    let none = place.run.join("none").display().to_string();
    env.insert("CUDA_MPS_PIPE_DIRECTORY".into(), none);
    env.insert("CUDA_VISIBLE_DEVICES".into(), visible.into());
    let probe = place.staged("mps-probe")?;
    Ok(clients::alone(place.as_user(&probe, &env).arg("--json"))?.report)
}

/// A client outside MPS on one device; its multiprocessors.
fn bare(section: &mut Section, place: &Place, device: &str) -> Result<u64> {
    let report = outside(place, device)?;
    section.fact("bare_client", report.to_string());
    match report["gpus"][0]["sms"].as_u64() {
        Some(sms) => Ok(sms),
        None => bail!("the probe saw no multiprocessors: {report}"),
    }
}

/// One job on one device: limits by index 0, proved by its clients; the compute mode is not touched.
fn one(section: &mut Section, place: &Place, mig: &Gpu, limits: &Limits) -> Result<()> {
    let job = Job::named(place, mig, JOB)?;
    let prologue = job.prologue_with(ACCOUNT)?;
    if !section.check("MIG: mps-prologue", prologue.code == Some(0), prologue.story()) {
        bail!("the job did not start: {}", prologue.story());
    }
    let env = job.environment()?;
    section.equal(
        "MIG: CUDA_VISIBLE_DEVICES of a task",
        &env.get("CUDA_VISIBLE_DEVICES"),
        &Some(&mig.uuid),
    );
    job::server_log(section, &job.directory(), "0", limits);
    let probe = place.staged("mps-probe")?;
    let (clients, processes) = clients::at_once(
        CLIENTS,
        |_| {
            let mut command = place.as_user(&probe, &env);
            command.args(limits.probe_options()).args(["--hold", "2"]);
            Ok(command)
        },
        || site::smi(&[]),
    )?;
    clients::judge(section, &clients, limits);
    section.fact("mig_processes", processes);
    let listed = clients
        .iter()
        .filter(|client| client.report["gpus"][0]["mps_listed"] == true);
    section.equal(
        "MIG: clients in NVML's list of the device",
        &listed.count(),
        &CLIENTS,
    );
    let epilogue = job.epilogue()?;
    section.check("MIG: mps-epilogue", epilogue.code == Some(0), epilogue.story());
    Ok(())
}

/// One job on two devices: a daemon each, and each rank under its own.
fn two(section: &mut Section, place: &Place, migs: [&Gpu; 2]) -> Result<()> {
    let job = Job::named(place, migs[0], JOB)?.on(&migs);
    let prologue = job.prologue_with(ACCOUNT)?;
    if !section.check(
        "two MIG devices: mps-prologue",
        prologue.code == Some(0),
        prologue.story(),
    ) {
        bail!("the job did not start: {}", prologue.story());
    }
    let mpsctl = place.staged("mpsctl")?;
    let probe = place.staged("mps-probe")?;
    for (rank, mig) in migs.iter().enumerate() {
        let mut env = site::base_env();
        env.insert("PBS_JOBID".into(), job.id().into());
        env.insert("OMPI_COMM_WORLD_LOCAL_RANK".into(), rank.to_string());
        let mut command = place.as_user(&mpsctl, &env);
        command
            .arg("--config")
            .arg(job.config())
            .args(["exec", "--"])
            .arg(&probe);
        let client = clients::alone(command.args(["--json", "--require-mps"]))?;
        section.check(
            format!("rank {rank} of two MIG devices is under MPS"),
            client.code == Some(0),
            client.report.to_string(),
        );
        section.fact(&format!("mig_of_rank_{rank}"), mig.uuid.clone());
        section.fact(&format!("report_of_rank_{rank}"), client.report.to_string());
    }
    let epilogue = job.epilogue()?;
    section.check(
        "two MIG devices: mps-epilogue",
        epilogue.code == Some(0),
        epilogue.story(),
    );
    Ok(())
}

/// Whether a limit by the device's UUID would hold too: a fact, nothing rests on it.
fn by_name(section: &mut Section, place: &Place, device: &str) -> Result<()> {
    let limit = format!("set_default_device_pinned_mem_limit {device} 1G\n");
    let daemon = Daemon::start(place, device, "mig", &[limit])?;
    let env = daemon.client_env();
    let probe = place.staged("mps-probe")?;
    let client = clients::alone(place.as_user(&probe, &env).args(["--json", "--alloc=2048"]))?;
    let most = client.number("allocatable_mib").unwrap_or(0);
    section.fact("limit_of_1024_mib_by_uuid_allows_mib", most as i64);
    daemon.quit()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mig_devices_are_found_as_nvidia_smi_lists_them() {
        let list = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-c08d91cb-e324-655c-71ba-7570956445bc)\n\
                    \x20 MIG 3g.40gb     Device  0: (UUID: MIG-405bbda1-6b05-535f-9702-f95e8cd170ce)\n\
                    \x20 MIG 3g.40gb     Device  1: (UUID: MIG-b0a55a70-b1b0-529f-af26-79ccdc267be0)\n\
                    GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000-e324-655c-71ba-7570956445bc)\n";
        assert_eq!(
            devices(list),
            [
                "MIG-405bbda1-6b05-535f-9702-f95e8cd170ce",
                "MIG-b0a55a70-b1b0-529f-af26-79ccdc267be0"
            ]
        );
        assert!(devices("GPU 0: NVIDIA H200 (UUID: GPU-1)\n").is_empty());
    }
}
