//! The lines of each scheduler.

use super::*;
use crate::scheduler::{openpbs::OpenPbs, slurm::Slurm, torque::Torque};
use mpsd_core::{ComputeMode, Gpu, GpuUuid};

fn gpu(index: u32, capability: (u32, u32), mig: bool) -> Gpu {
    Gpu {
        index,
        uuid: GpuUuid::parse(&format!("GPU-0000000{index}")).unwrap(),
        name: "NVIDIA X".to_owned(),
        memory_mib: Some(81_920),
        mode: ComputeMode::Default,
        mig: if mig {
            mpsd_core::gpu::Mig::On
        } else {
            mpsd_core::gpu::Mig::Off
        },
        capability,
        minor: Some(index + 4),
        cpus: None,
    }
}

#[test]
fn slurm_gets_shards_of_each_gpu() {
    let (new, mig, old) = (gpu(0, (9, 0), false), gpu(1, (9, 0), true), gpu(2, (6, 1), false));
    let offers = [&new, &mig, &old].map(|gpu| Offer {
        gpu,
        replicas: Some(20),
        clients: if gpu.is_volta_or_later() { 48 } else { 16 },
    });
    let text = advertise(&Slurm, "gpu1", &offers).unwrap();
    let expected = "\
# GPU 1 'NVIDIA X' is in MIG mode
# GPU 2 'NVIDIA X' takes 16 clients, not 20
# slurm.conf: these words in the lines that are there
GresTypes=gpu,shard
NodeName=gpu1 Gres=gpu:3,shard:36
# gres.conf: leave the gpu lines out where AutoDetect or other lines describe the GPUs
NodeName=gpu1 Name=gpu File=/dev/nvidia4
NodeName=gpu1 Name=gpu File=/dev/nvidia5
NodeName=gpu1 Name=gpu File=/dev/nvidia6
NodeName=gpu1 Name=shard Count=20 File=/dev/nvidia4
NodeName=gpu1 Name=shard Count=16 File=/dev/nvidia6
# a job asks: --gres=shard:1 --mps --mps-replicas=N
";
    assert_eq!(text, expected);
}

#[test]
fn both_pbs_get_a_consumable_resource() {
    let gpu = gpu(0, (9, 0), false);
    let offers = [
        Offer {
            gpu: &gpu,
            replicas: Some(4),
            clients: 48,
        },
        Offer {
            gpu: &gpu,
            replicas: Some(4),
            clients: 48,
        },
    ];
    let openpbs = advertise(&OpenPbs, "n1", &offers).unwrap();
    assert!(
        openpbs.contains("'set node n1 resources_available.mps_shares = 8'"),
        "{openpbs}"
    );
    let torque = advertise(&Torque, "n1", &offers).unwrap();
    assert!(torque.contains("\nNODECFG[n1] GRES=mps_shares:8\n"), "{torque}");
}

#[test]
fn nothing_to_offer_is_said() {
    let (plain, mig) = (gpu(0, (9, 0), false), gpu(1, (9, 0), true));
    let refused = |offers: &[Offer<'_>]| advertise(&Slurm, "n1", offers).unwrap_err().why;
    assert_eq!(refused(&[]), "it has no GPU");
    assert_eq!(
        refused(&[Offer {
            gpu: &plain,
            replicas: None,
            clients: 48,
        }]),
        "replicas is not set for it in mpsd.toml"
    );
    assert!(
        refused(&[Offer {
            gpu: &mig,
            replicas: Some(4),
            clients: 48,
        }])
        .contains("MIG")
    );
}
