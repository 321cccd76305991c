//! MPS on MIG devices as documented (docs/facts/mps-control.md#mig). It makes and removes no MIG
//! device and changes no mode.

use anyhow::Result;

use crate::clients::{self, Client, Limits};
use crate::job::{self, Job};
use crate::result::Section;
use crate::site::{self, Gpu, Place, Run};

const JOB: &str = "4716.srv";
const ACCOUNT: &str = "MPS=true,MPS_THREADS=50,MPS_MEM=1G";
/// The smallest device takes more.
const CLIENTS: usize = 2;

/// One job on a MIG device, and one on two; without MIG devices it says that all of this stays
/// unverified.
pub fn run(section: &mut Section, run: &Run) -> Result<()> {
    let devices = devices(&site::smi(&["-L"])?);
    section.fact("mig_devices", devices.len() as i64);
    let Some(first) = devices.first() else {
        let why = "no GPU of this machine has MIG devices: MPS on MIG devices stays documented, not verified";
        section.fact("left_out", why);
        return Ok(());
    };
    let mig = |uuid: &String| Gpu {
        uuid: uuid.clone(),
        ..run.gpu().clone()
    };
    let bare = clients::outside(run, first, &[])?;
    section.fact("bare_client", bare.report.to_string());
    let limits = Limits {
        percent: 50.0,
        memory_mib: 1024,
        device_sms: bare.sms()?,
    };
    one(section, &run.place, &mig(first), &limits)?;
    if let [first, second, ..] = &devices[..] {
        let seen = clients::outside(run, &format!("{first},{second}"), &[])?.report;
        section.equal(
            "MIG devices that a process sees of two",
            &seen["gpus"].as_array().map(Vec::len),
            &Some(1),
        );
        two(section, &run.place, [&mig(first), &mig(second)])?;
    }
    Ok(())
}

pub fn devices(list: &str) -> Vec<String> {
    let uuid = |line: &str| {
        let (_, rest) = line.trim().strip_prefix("MIG ")?.split_once("(UUID: ")?;
        Some(rest.trim_end_matches(')').to_owned())
    };
    list.lines().filter_map(uuid).collect()
}

/// One job on one device: limits by index 0, proved by its clients; the compute mode is not
/// touched.
fn one(section: &mut Section, place: &Place, mig: &Gpu, limits: &Limits) -> Result<()> {
    let job = Job::named(place, mig, JOB)?;
    job.begin(section, "MIG: ", ACCOUNT)?;
    let env = job.environment()?;
    let visible = env.get("CUDA_VISIBLE_DEVICES");
    section.equal(
        "MIG: CUDA_VISIBLE_DEVICES of a task",
        &visible,
        &Some(&mig.uuid),
    );
    job::server_log(section, &job.directory(), "0", limits);
    let look = || site::smi(&[]);
    let (clients, processes) = clients::at_once(section, place, &env, (CLIENTS, limits), look)?;
    section.fact("mig_processes", processes);
    let listed = |client: &&Client| client.report["gpus"][0]["mps_listed"] == true;
    let listed = clients.iter().filter(listed).count();
    section.equal(
        "MIG: clients in NVML's list of the device",
        &listed,
        &CLIENTS,
    );
    job.end(section, "MIG: ")?;
    Ok(())
}

fn two(section: &mut Section, place: &Place, migs: [&Gpu; 2]) -> Result<()> {
    let job = Job::named(place, migs[0], JOB)?.on(&migs);
    job.begin(section, "two MIG devices: ", ACCOUNT)?;
    let probe = place.staged("mps-probe")?;
    for (rank, mig) in migs.iter().enumerate() {
        let mut env = site::base_env();
        env.insert("OMPI_COMM_WORLD_LOCAL_RANK".into(), rank.to_string());
        let mut command = job.exec(env)?;
        command.arg(&probe).args(["--json", "--require-mps"]);
        let client = clients::alone(&mut command)?;
        let name = format!("rank {rank} of two MIG devices is under MPS");
        section.check(name, client.code == Some(0), client.report.to_string());
        section.fact(&format!("mig_of_rank_{rank}"), mig.uuid.clone());
    }
    job.end(section, "two MIG devices: ")?;
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
