//! The lines that make a scheduler offer each GPU of a node as so many shares: `mpsctl advertise`.
//!
//! What the Kubernetes device plugin does by itself, an administrator does here by pasting: a scheduler's
//! configuration is the site's. Pure: a node in, text out.

use mpsd_core::{Gpu, Refusal, Scheduler};

/// Clients, and so shares, of a GPU before Volta (docs/facts/mps-control.md#clients).
const SHARES_BEFORE_VOLTA: u32 = 16;

/// A GPU and the shares it is to be offered as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer<'a> {
    /// The GPU.
    pub gpu: &'a Gpu,
    /// `replicas` for its product on its node; `None`: it is not offered in shares.
    pub replicas: Option<u32>,
}

impl Offer<'_> {
    fn shares(&self) -> u32 {
        match self.replicas {
            // MPS is given to whole GPUs only.
            None => 0,
            Some(_) if self.gpu.mig => 0,
            Some(replicas) if self.gpu.is_volta_or_later() => replicas,
            Some(replicas) => replicas.min(SHARES_BEFORE_VOLTA),
        }
    }
}

/// What the administrator adds to `scheduler`'s configuration so that `node` offers its shares.
///
/// # Errors
/// A refusal when nothing is to be offered.
pub fn advertise(scheduler: Scheduler, node: &str, offers: &[Offer<'_>]) -> Result<String, Refusal> {
    let total: u32 = offers.iter().map(Offer::shares).sum();
    if total == 0 {
        let why = if offers.is_empty() {
            "it has no GPU"
        } else if offers.iter().all(|offer| offer.replicas.is_none()) {
            "replicas is not set for it in mpsd.toml"
        } else {
            "its GPUs with replicas are in MIG mode, and MPS is given to whole GPUs"
        };
        let allowed = "replicas = N, for the site, in a [[node]] section with hosts, or in one with product";
        return Err(Refusal::new(format!("shares of node '{node}'"), why, allowed));
    }
    let mut text = left_out(offers);
    text += &match scheduler {
        Scheduler::Slurm => slurm(node, offers, total),
        Scheduler::OpenPbs => openpbs(node, total),
        Scheduler::Torque => torque(node, total),
    };
    Ok(text)
}

fn left_out(offers: &[Offer<'_>]) -> String {
    let why = |offer: &Offer<'_>| match offer.replicas {
        Some(_) if offer.gpu.mig => Some("is in MIG mode".to_owned()),
        Some(wanted) if offer.shares() < wanted => Some(format!(
            "takes {SHARES_BEFORE_VOLTA} clients, not {wanted}: it is older than Volta"
        )),
        Some(_) => None,
        None => Some("has no replicas in mpsd.toml".to_owned()),
    };
    let line = |offer: &Offer<'_>| {
        why(offer).map(|why| format!("# GPU {} '{}' {why}\n", offer.gpu.index, offer.gpu.name))
    };
    offers.iter().filter_map(line).collect()
}

/// `gres/shard`: it counts and does not limit; the limits are ours. A GPU's lines name its device file, so that the
/// shares of each GPU are its own.
fn slurm(node: &str, offers: &[Offer<'_>], total: u32) -> String {
    let file = |gpu: &Gpu| format!("/dev/nvidia{}", gpu.minor.unwrap_or(gpu.index));
    let gpus: String = offers
        .iter()
        .map(|offer| format!("NodeName={node} Name=gpu File={}\n", file(offer.gpu)))
        .collect();
    let shards: String = offers
        .iter()
        .filter(|offer| offer.shares() > 0)
        .map(|offer| {
            format!(
                "NodeName={node} Name=shard Count={} File={}\n",
                offer.shares(),
                file(offer.gpu)
            )
        })
        .collect();
    let count = offers.len();
    format!(
        "# slurm.conf: these words in the lines that are there\n\
         GresTypes=gpu,shard\n\
         NodeName={node} Gres=gpu:{count},shard:{total}\n\
         # gres.conf: leave the gpu lines out where AutoDetect or other lines describe the GPUs\n\
         {gpus}{shards}\
         # a job asks: --gres=shard:1 --mps --mps-replicas=N\n"
    )
}

fn openpbs(node: &str, total: u32) -> String {
    format!(
        "# once a cluster\n\
         qmgr -c 'create resource mps_shares type=long,flag=nh'\n\
         # once a cluster: add mps_shares to the line 'resources:' of PBS_HOME/sched_priv/sched_config, then\n\
         # send the scheduler a SIGHUP\n\
         # this node\n\
         qmgr -c 'set node {node} resources_available.mps_shares = {total}'\n\
         # a job asks: -l select=1:mps_shares=1 -A MPS=on,MPS_REPLICAS=N\n\
         # OpenPBS counts these shares and does not say on which GPU one lies: see gpus_unknown in mpsd.toml\n"
    )
}

/// Torque's own scheduler counts no generic resource of a node; Maui and Moab do.
fn torque(node: &str, total: u32) -> String {
    format!(
        "# mom_priv/config of this node, for Moab, which hears it from the mom; then restart the mom\n\
         mps_shares {total}\n\
         # maui.cfg, for Maui\n\
         NODECFG[{node}] GRES=mps_shares:{total}\n\
         # a job asks: -W x=GRES:mps_shares@1 -A MPS=on,MPS_REPLICAS=N\n\
         # the scheduler counts these shares and does not say on which GPU one lies: see gpus_unknown in mpsd.toml\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpsd_core::{ComputeMode, GpuUuid};

    fn gpu(index: u32, capability: (u32, u32), mig: bool) -> Gpu {
        Gpu {
            index,
            uuid: GpuUuid::parse(&format!("GPU-0000000{index}")).unwrap(),
            name: "NVIDIA X".to_owned(),
            memory_mib: 81_920,
            mode: ComputeMode::Default,
            mig,
            capability,
            minor: Some(index + 4),
        }
    }

    #[test]
    fn slurm_gets_shards_of_each_gpu() {
        let (new, mig, old) = (gpu(0, (9, 0), false), gpu(1, (9, 0), true), gpu(2, (6, 1), false));
        let offers = [&new, &mig, &old].map(|gpu| Offer {
            gpu,
            replicas: Some(20),
        });
        let text = advertise(Scheduler::Slurm, "gpu1", &offers).unwrap();
        let expected = "\
# GPU 1 'NVIDIA X' is in MIG mode
# GPU 2 'NVIDIA X' takes 16 clients, not 20: it is older than Volta
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
            },
            Offer {
                gpu: &gpu,
                replicas: Some(4),
            },
        ];
        let openpbs = advertise(Scheduler::OpenPbs, "n1", &offers).unwrap();
        assert!(
            openpbs.contains("'set node n1 resources_available.mps_shares = 8'"),
            "{openpbs}"
        );
        let torque = advertise(Scheduler::Torque, "n1", &offers).unwrap();
        assert!(torque.contains("\nNODECFG[n1] GRES=mps_shares:8\n"), "{torque}");
    }

    #[test]
    fn nothing_to_offer_is_said() {
        let (plain, mig) = (gpu(0, (9, 0), false), gpu(1, (9, 0), true));
        let refused = |offers: &[Offer<'_>]| advertise(Scheduler::Slurm, "n1", offers).unwrap_err().why;
        assert_eq!(refused(&[]), "it has no GPU");
        assert_eq!(
            refused(&[Offer {
                gpu: &plain,
                replicas: None
            }]),
            "replicas is not set for it in mpsd.toml"
        );
        assert!(
            refused(&[Offer {
                gpu: &mig,
                replicas: Some(4)
            }])
            .contains("MIG")
        );
    }
}
