//! Slurm: the plugin's job_prolog and job_epilog, `squeue`, `sinfo` and `scontrol`, and the verbs of `mpsctl slurm`.

mod check;
mod conf;
mod control;
mod gres;
mod installation;
mod jobs;
pub(crate) mod setup;
mod slurmd;
mod stack;
mod submission;
mod trial;

use conf::Conf;
use installation::Installation;

use super::batch_system::{BatchSystem, ExitPolicy, Located, Offer};
use super::call::{Input, Lookup, Program, Site, Submission};
use super::control::{Controller, KnownJobs};
use super::devices::Devices;
use super::host::{Host, ThisHost};
use super::trial::Trial;
use mpsd_core::Gpu;
use mpsd_core::failure::Failure;
use mpsd_core::job::{JobId, Scheduler};
use mpsd_core::request::Syntax;
use std::path::Path;
use std::time::Duration;

/// The batch system Slurm.
#[derive(Debug, Clone, Copy)]
pub struct Slurm;

impl BatchSystem for Slurm {
    fn scheduler(&self) -> Scheduler {
        Scheduler::Slurm
    }

    fn title(&self) -> &'static str {
        "Slurm, through the plugin"
    }

    fn calls(&self, arguments: usize, env: Lookup<'_>) -> bool {
        arguments == 0 && env("SLURM_JOB_ID").is_some()
    }

    fn vectors(&self, _: Program) -> &'static str {
        submission::VECTORS
    }

    fn read(&self, input: &Input<'_>, _: &dyn Host) -> Result<Submission, Failure> {
        submission::read(input)
    }

    fn devices(&self, _: &Submission, input: &Input<'_>, host: &dyn Host) -> Devices {
        submission::devices(input, host)
    }

    fn syntax(&self) -> Syntax {
        Syntax::Flags
    }

    fn has_steps(&self) -> bool {
        true
    }

    /// Slurm drains a node with a failed prolog, and an undetermined failure proves nothing about the node. So the prolog
    /// succeeds, and we put the batch job back into the queue. A job of srun or salloc cannot go back: its tasks read the
    /// refusal in the record.
    fn exit_policy(&self, submission: &Submission) -> ExitPolicy {
        ExitPolicy {
            requeue: !submission.step,
            ..ExitPolicy::default()
        }
    }

    /// By the slurm.conf that slurmd names to a prolog. slurmstepd starts and ends a step's own daemon, and Slurm waits for
    /// the end of slurmstepd.
    fn time_limit(&self, input: &Input<'_>, step: bool, site: &Site) -> Option<Duration> {
        let named = site.slurm_conf.as_deref().map(Path::new);
        let conf = Conf::find(named, &ThisHost);
        match step {
            true => Some(conf.map_or(conf::UNKILLABLE, |conf| conf.unkillable_step_timeout())),
            false => conf.ok()?.timeout(input.program).map(|(_, timeout)| timeout),
        }
    }

    fn was_put_back(&self, input: &Input<'_>) -> bool {
        let restarts = (input.env)("SLURM_JOB_RESTART_COUNT");
        restarts.is_some_and(|count| count.trim().parse::<u32>().is_ok_and(|count| count > 0))
    }

    fn at(&self, site: &Site) -> Box<dyn Located> {
        Box::new(Here(site.clone()))
    }

    fn trial(&self) -> &'static dyn Trial {
        &trial::Srun
    }

    /// `gres/shard` counts and does not limit; the limits are ours. The device file in a line says which GPU's shares they are.
    fn shares(&self, node: &str, offers: &[Offer<'_>], total: u32) -> String {
        let file = |gpu: &Gpu| format!("/dev/nvidia{}", gpu.minor.unwrap_or(gpu.index));
        let mut lines = String::new();
        for offer in offers {
            lines += &format!("NodeName={node} Name=gpu File={}\n", file(offer.gpu));
        }
        for offer in offers.iter().filter(|offer| offer.shares() > 0) {
            let (count, file) = (offer.shares(), file(offer.gpu));
            lines += &format!("NodeName={node} Name=shard Count={count} File={file}\n");
        }
        let count = offers.len();
        format!(
            "# slurm.conf: these words in the lines that are there\n\
             GresTypes=gpu,shard\n\
             NodeName={node} Gres=gpu:{count},shard:{total}\n\
             # gres.conf: leave the gpu lines out where AutoDetect or other lines describe the GPUs\n\
             {lines}\
             # a job asks: --gres=shard:1 --mps --mps-replicas=N\n"
        )
    }
}

/// The Slurm of this node.
struct Here(Site);

impl Located for Here {
    /// Slurm's ids are numbers; an id of a PBS has a server's name in it.
    fn may_own(&self, job: &JobId) -> bool {
        job.as_str().bytes().all(|b| b.is_ascii_digit() || b == b'.')
    }

    fn known_jobs(&self, node: &str) -> Box<dyn KnownJobs> {
        Box::new(jobs::SlurmJobs::new(Installation::find(&self.0, node), node))
    }

    fn controller(&self, node: &str) -> Box<dyn Controller> {
        Box::new(control::SlurmNode {
            slurm: Installation::find(&self.0, node),
            name: node.to_owned(),
        })
    }

    /// Slurm keeps reasons whole; this is enough for two paths and an error.
    fn longest_reason(&self) -> usize {
        400
    }
}

#[cfg(test)]
mod tests;
