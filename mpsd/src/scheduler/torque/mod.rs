//! Torque: `prologue` and `epilogue` of its mom, and its `$job_starter`.

pub(crate) mod setup;
mod starter;
mod submission;

use super::batch_system::{BatchSystem, ExitPolicy, Located, Offer, Unattached};
use super::call::{Input, Lookup, Program, Site, Submission};
use super::devices::Devices;
use super::host::{Host, ThisHost};
use super::pbs::trial::Qsub;
use super::trial::Trial;
use mpsd_core::failure::Failure;
use mpsd_core::job::Scheduler;
use setup::{PRODUCT, installation};
use std::path::PathBuf;
use std::time::Duration;

/// The batch system Torque.
#[derive(Debug, Clone, Copy)]
pub struct Torque;

static TRIAL: Qsub = Qsub {
    is_its: |version| !version.contains("pbs_version"),
    place: &["-l", "nodes=1:gpus=1"],
};

/// The configuration of Torque's mom here, if the mom may run its starter as root: in doubt, or if it cannot be read.
pub fn may_run_as_root(site: &Site, host: &dyn Host) -> Option<PathBuf> {
    starter::may_run_as_root(&installation(site, host), host)
}

impl BatchSystem for Torque {
    fn scheduler(&self) -> Scheduler {
        PRODUCT.scheduler
    }

    fn title(&self) -> &'static str {
        PRODUCT.title
    }

    /// 7 to 9 arguments are a prologue, and 11 an epilogue. 10 are an epilogue before Torque 5, or OpenPBS's: the
    /// environment tells.
    fn calls(&self, arguments: usize, env: Lookup<'_>) -> bool {
        let of_torque = || env("PBS_NODENUM").is_some() || env("PBS_RESOURCE_NODES").is_some();
        matches!(arguments, 7..=9 | 11) || (arguments == 10 && of_torque())
    }

    fn vectors(&self, program: Program) -> &'static str {
        submission::vectors(program)
    }

    fn read(&self, input: &Input<'_>, _: &dyn Host) -> Result<Submission, Failure> {
        submission::read(input)
    }

    fn devices(&self, submission: &Submission, input: &Input<'_>, host: &dyn Host) -> Devices {
        submission::devices(submission, input, host)
    }

    fn elsewhere(&self, submission: &Submission, input: &Input<'_>, host: &dyn Host) -> Result<(), Failure> {
        submission::of_sisters(submission, input, host)
    }

    fn unattached(&self, _: &Submission, input: &Input<'_>, host: &dyn Host) -> Option<Unattached> {
        starter::unattached(&installation(&input.site, host), host)
    }

    /// A prologue.parallel that fails takes its node down, and the job is requeued for ever
    /// (docs/facts/pbs.md#sister-nodes). No user's mistake or malice may do that. The mother superior makes the same
    /// refusal, which the user reads. A failure on a sister alone stands in the record for the tasks there, and the mother
    /// superior learns from the server that a fault took the node out of service.
    fn exit_policy(&self, submission: &Submission) -> ExitPolicy {
        ExitPolicy {
            left_to_tasks: submission.sister,
            ..ExitPolicy::default()
        }
    }

    /// Torque never delivers what a refusing prologue writes: the user of an aborted batch job sees an exit status of -2
    /// (docs/facts/pbs.md#results-of-a-prologue). Our starter tells the user, if it is in force.
    fn tells_refusals(&self, submission: &Submission, site: &Site, host: &dyn Host) -> bool {
        let pbs = installation(site, host);
        let batch = !submission.sister && !submission.interactive;
        batch && pbs.is_here() && starter::unattached(&pbs, host).is_none()
    }

    /// Four times a second, for ever (docs/facts/pbs.md#results-of-a-prologue).
    fn retries_at_once(&self) -> bool {
        true
    }

    /// docs/facts/pbs.md#sister-nodes.
    fn may_skip_epilogue(&self) -> bool {
        true
    }

    /// docs/facts/pbs.md#environment-identity-and-descriptors.
    fn shows_end(&self, _: &Input<'_>) -> bool {
        true
    }

    fn time_limit(&self, _: &Input<'_>, _: bool, site: &Site) -> Option<Duration> {
        Some(installation(site, &ThisHost).time_limit(&ThisHost))
    }

    fn at(&self, site: &Site) -> Box<dyn Located> {
        Box::new(installation(site, &ThisHost))
    }

    fn trial(&self) -> &'static dyn Trial {
        &TRIAL
    }

    /// Torque's own scheduler counts no generic resource of a node; Maui and Moab do.
    fn shares(&self, node: &str, _: &[Offer<'_>], total: u32) -> String {
        format!(
            "# mom_priv/config of this node, for Moab, which hears it from the mom; then restart the mom\n\
             mps_shares {total}\n\
             # maui.cfg, for Maui\n\
             NODECFG[{node}] GRES=mps_shares:{total}\n\
             # a job asks: -W x=GRES:mps_shares@1 -A MPS=on,MPS_REPLICAS=N\n\
             # the scheduler counts these shares and does not say on which GPU one lies: see gpus_unknown in mpsd.toml\n"
        )
    }
}

#[cfg(test)]
mod tests;
