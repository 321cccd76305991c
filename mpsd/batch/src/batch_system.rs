//! What mpsd asks of a batch system. A folder implements it; `super::ALL` registers it.

use super::call::{Input, Location, Lookup, Submission};
use super::control::{Controller, KnownJobs};
use super::devices::Devices;
use super::host::Host;
use super::trial::Trial;
use mpsd_core::failure::Failure;
use mpsd_core::gpu::Mig;
use mpsd_core::job::{JobId, Scheduler};
use mpsd_core::request::Syntax;
use mpsd_core::{Gpu, Refusal, Undetermined};
use std::time::Duration;

#[derive(Debug)]
pub struct SystemFacts {
    pub scheduler: Scheduler,
    /// What `--help` says beside the name.
    pub title: &'static str,
    pub vectors: [&'static str; 2],
    pub syntax: Syntax,
    /// How its users run a small job, for `mpsctl selftest`.
    pub trial: &'static Trial,
    /// The longest reason of a drain that it keeps whole. Bytes.
    pub longest_reason: usize,
    /// Whether a step of a job can have a daemon of its own.
    pub has_steps: bool,
    /// It starts a batch job again at once after a failed prologue, which then waits until its
    /// deadline if the node could not be drained: no other brake is left.
    pub retries_at_once: bool,
    /// May call no epilogue for a job that never began: our watching process or the next prologue
    /// cleans up.
    pub may_skip_epilogue: bool,
    /// Whether the epilogue's standard error goes into the job's own error file.
    pub shows_end: bool,
}

impl SystemFacts {
    pub fn wrong_vector(&self, input: &Input<'_>) -> Failure {
        let count = input.arguments.len();
        let what = format!("{count} arguments from {}", self.scheduler);
        let expected = format!("expected: {}", self.vectors[input.program as usize]);
        Undetermined::new(what, expected).into()
    }
}

pub trait BatchSystem: Sync {
    fn facts(&self) -> &'static SystemFacts;
    fn scheduler(&self) -> Scheduler {
        self.facts().scheduler
    }

    // How it calls us.

    /// Whether it makes a call with this many positional arguments and this environment.
    fn calls(&self, arguments: usize, env: Lookup<'_>) -> bool;
    /// Identifies the job and its request, at no cost for a job without MPS. Undetermined: a vector
    /// that it never writes (we are wired up wrongly). Refusal: an id or name that it never writes.
    fn read(&self, input: &Input<'_>, host: &dyn Host) -> Result<Submission, Failure>;
    /// The job's GPUs and tasks here, for jobs that asked for MPS: it may ask the scheduler.
    fn devices(&self, submission: &Submission, input: &Input<'_>, host: &dyn Host) -> Devices;
    /// `CUDA_VISIBLE_DEVICES` that it gives the tasks of this job on this node itself, by the
    /// environment of one. `None`: none, or it does not tell.
    fn scheduled_devices(
        &self,
        _: &JobId,
        _: Lookup<'_>,
        _: &Location,
        _: &dyn Host,
    ) -> Option<String> {
        None
    }
    /// Checks that the job has not failed on another of its nodes. Undetermined: put the job back.
    fn elsewhere(&self, _: &Submission, _: &Input<'_>, _: &dyn Host) -> Result<(), Failure> {
        Ok(())
    }
    /// The job's batch script, if this node has it before the job begins; empty if interactive.
    fn script(&self, _: &Submission, _: &Input<'_>) -> Option<String> {
        None
    }
    /// The same of a job that has begun, if [`BatchSystem::script`] came too early for it.
    fn late_script(&self, _: &JobId, _: &Location) -> Option<String> {
        None
    }
    /// Why tasks of this job, which asked for MPS, cannot be attached to it; `None`: they are.
    fn unattached(&self, _: &Submission, _: &Input<'_>, _: &dyn Host) -> Option<Unattached> {
        None
    }

    // What it makes of a failure.

    fn exit_policy(&self, submission: &Submission) -> ExitPolicy;
    /// Whether the program that starts this job's shell shows the user the record's refusal.
    fn tells_refusals(&self, _: &Submission, _: &Location, _: &dyn Host) -> bool {
        false
    }
    /// Whether the job was put back into its queue, and its user told why in a place that stays.
    fn was_put_back(&self, _input: &Input<'_>) -> bool {
        false
    }

    /// How long the called program may run before the scheduler kills it or drains the node;
    /// `None`: no limit. `step`: it is for a step's own daemon. Asks no controller.
    fn time_limit(&self, input: &Input<'_>, step: bool, location: &Location) -> Option<Duration>;

    fn at(&self, location: &Location) -> Box<dyn Located>;

    /// The lines of configuration that make it offer `total` shares of the GPUs of `node`.
    fn shares(&self, node: &str, offers: &[Offer<'_>], total: u32) -> String;
}

pub trait Located {
    /// Whether a job may be one of its jobs on this node, by the id alone.
    fn may_own(&self, job: &JobId) -> bool;
    /// The ids that its commands may mean by this number, which is not all of an id.
    fn whole_ids(&self, _number: &str) -> Vec<String> {
        Vec::new()
    }
    fn has_file_of(&self, _: &JobId) -> bool {
        false
    }
    fn known_jobs(&self, node: &str) -> KnownJobs;
    fn controller(&self, node: &str) -> Box<dyn Controller>;
}

/// What the prologue does with a failure beyond its exit code, so that its scheduler harms neither
/// the node nor the job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExitPolicy {
    /// It exits 0, for a fault only if it drained the node; the job's tasks read the record.
    pub left_to_tasks: bool,
    /// We put a job with an undetermined failure back into the queue, if the site allows it.
    pub requeue: bool,
    /// An exit code of its own for a failure of the node: our caller resets the scheduler's count.
    pub tells_tries: bool,
}

/// Why a task of a job could run outside its MPS without a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unattached {
    pub why: String,
    pub remedy: String,
    /// The user cannot attach them either: no daemon there, or the starter lets no task run.
    pub no_way_round: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer<'a> {
    pub gpu: &'a Gpu,
    /// `replicas` on its node; `None`: it is not offered in shares.
    pub replicas: Option<u32>,
    pub clients: u32,
}

impl Offer<'_> {
    /// 0 in MIG mode: the MIG devices are the scheduler's, and their shares have no name.
    pub fn shares(&self) -> u32 {
        match self.replicas {
            Some(replicas) if self.gpu.mig == Mig::Off => replicas.min(self.clients),
            _ => 0,
        }
    }

    fn comment(&self) -> Option<String> {
        let why = match self.replicas {
            Some(_) if self.gpu.mig != Mig::Off => "is in MIG mode".to_owned(),
            Some(wanted) if self.shares() < wanted => {
                format!("takes {} clients, not {wanted}", self.clients)
            }
            Some(_) => return None,
            None => "has no replicas in mpsd.toml".to_owned(),
        };
        let Gpu { index, name, .. } = self.gpu;
        Some(format!("# GPU {index} '{name}' {why}\n"))
    }
}

/// For `mpsctl advertise`: what the administrator adds to the configuration of `system`.
pub fn advertise(
    system: &dyn BatchSystem,
    node: &str,
    offers: &[Offer<'_>],
) -> Result<String, Refusal> {
    let total: u32 = offers.iter().map(Offer::shares).sum();
    if total == 0 {
        let why = match offers.iter().any(|offer| offer.replicas.is_some()) {
            _ if offers.is_empty() => "it has no GPU",
            false => "replicas is not set for it in mpsd.toml",
            true => "its GPUs with replicas are in MIG mode, and shares are of whole GPUs",
        };
        let allowed = "replicas = N, for the site or in a [[node]] section";
        let what = format!("shares of node '{node}'");
        return Err(Refusal::new(what, why, allowed));
    }
    let comments: String = offers.iter().filter_map(Offer::comment).collect();
    Ok(comments + &system.shares(node, offers, total))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::gpu;
    use crate::{openpbs::OpenPbs, slurm::Slurm, torque::Torque};

    fn offer(gpu: &Gpu, replicas: Option<u32>) -> Offer<'_> {
        let clients = if gpu.index == 2 { 16 } else { 48 };
        Offer {
            gpu,
            replicas,
            clients,
        }
    }

    #[test]
    fn slurm_gets_shards_of_each_gpu_and_both_pbs_a_consumable_resource() {
        let mut all = [0, 1, 2].map(|index| gpu(index, index + 4));
        all[1].mig = Mig::On;
        let offers: Vec<Offer<'_>> = all.iter().map(|gpu| offer(gpu, Some(20))).collect();
        let text = advertise(&Slurm, "gpu1", &offers).unwrap();
        let expected = "\
# GPU 1 'NVIDIA H200' is in MIG mode
# GPU 2 'NVIDIA H200' takes 16 clients, not 20
# slurm.conf: these words in the lines that are there
GresTypes=gpu,shard
NodeName=gpu1 Gres=gpu:3,shard:36
# gres.conf: leave the gpu lines out where AutoDetect or other lines describe the GPUs
NodeName=gpu1 Name=gpu File=/dev/nvidia4
NodeName=gpu1 Name=gpu File=/dev/nvidia5
NodeName=gpu1 Name=gpu File=/dev/nvidia6
NodeName=gpu1 Name=shard Count=20 File=/dev/nvidia4
NodeName=gpu1 Name=shard Count=16 File=/dev/nvidia6
# then restart slurmctld, and slurmd on the nodes
# a job asks: --gres=shard:N --mps, and with --mps-mem=auto gets N shards of the memory;
# for every job: mem = \"auto\" below [defaults] in mpsd.toml
";
        assert_eq!(text, expected);
        let install = "\nmpsctl pbs install --shares 20\n";
        let maui = "\nNODECFG[n1] GRES=mps_shares:36\n";
        for (pbs, line) in [(&OpenPbs as &dyn BatchSystem, install), (&Torque, maui)] {
            let text = advertise(pbs, "n1", &offers).unwrap();
            assert!(text.contains(line), "{text}");
        }
        let refused = |offers: &[Offer<'_>]| advertise(&Slurm, "n1", offers).unwrap_err().why;
        assert_eq!(refused(&[]), "it has no GPU");
        let why = "replicas is not set for it in mpsd.toml";
        assert_eq!(refused(&[offer(&all[0], None)]), why);
        assert!(refused(&[offer(&all[1], Some(4))]).contains("MIG"));
    }
}
