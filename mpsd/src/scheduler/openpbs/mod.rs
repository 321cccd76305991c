//! OpenPBS and PBS Professional: our hook, or the classic scripts.

pub(crate) mod setup;
mod submission;

use super::batch_system::{BatchSystem, ExitPolicy, Located, Offer, Unattached};
use super::call::{Input, Lookup, Program, Site, Submission};
use super::devices::Devices;
use super::host::{Host, ThisHost};
use super::pbs::installation::Installation;
use super::pbs::trial::Qsub;
use super::trial::Trial;
use mpsd_core::failure::Failure;
use mpsd_core::job::Scheduler;
use setup::PRODUCT;
use std::time::Duration;

/// The batch system OpenPBS, also PBS Professional.
#[derive(Debug, Clone, Copy)]
pub struct OpenPbs;

static TRIAL: Qsub = Qsub {
    is_its: |version| version.contains("pbs_version"),
    place: &["-l", "select=1:ngpus=1", "-l", "place=exclhost"],
};

impl BatchSystem for OpenPbs {
    fn scheduler(&self) -> Scheduler {
        PRODUCT.scheduler
    }

    fn title(&self) -> &'static str {
        PRODUCT.title
    }

    /// 3 arguments are the classic prologue. 10 are the epilogue, or that of a Torque before 5: the environment tells.
    fn calls(&self, arguments: usize, env: Lookup<'_>) -> bool {
        let of_torque = || env("PBS_NODENUM").is_some() || env("PBS_RESOURCE_NODES").is_some();
        arguments == 3 || (arguments == 10 && !of_torque())
    }

    fn vectors(&self, program: Program) -> &'static str {
        submission::vectors(program)
    }

    fn read(&self, input: &Input<'_>, host: &dyn Host) -> Result<Submission, Failure> {
        submission::read(input, host)
    }

    fn devices(&self, submission: &Submission, input: &Input<'_>, host: &dyn Host) -> Devices {
        submission::devices(submission, input, host)
    }

    fn unattached(&self, submission: &Submission, input: &Input<'_>, host: &dyn Host) -> Option<Unattached> {
        let classic = !submission::is_hooked(input);
        classic.then(|| under_classic_scripts(submission::nodes(&submission.job, input, host)))
    }

    /// After 21 tries it holds the job, and a hook on execjob_begin may set the number (docs/facts/pbs.md#tries-of-a-job). A
    /// start that may have failed by its user's doing counts.
    fn exit_policy(&self, _: &Submission) -> ExitPolicy {
        ExitPolicy {
            tells_tries: true,
            ..ExitPolicy::default()
        }
    }

    /// Once a second, and after 21 tries it holds the job until an operator releases it
    /// (docs/facts/pbs.md#results-of-a-prologue).
    fn retries_at_once(&self) -> bool {
        true
    }

    /// The classic epilogue writes there (docs/facts/pbs.md#environment-identity-and-descriptors). Our hook logs one line.
    fn shows_end(&self, input: &Input<'_>) -> bool {
        input.arguments.len() == submission::CLASSIC_EPILOGUE
    }

    /// For the classic scripts. 'mpsctl pbs install' sets the limit of our hook above our deadline.
    fn time_limit(&self, input: &Input<'_>, _: bool, site: &Site) -> Option<Duration> {
        let classic = match input.program {
            Program::Prologue => !submission::is_hooked(input),
            Program::Epilogue => self.shows_end(input),
        };
        classic.then(|| Installation::find(&PRODUCT, site, &ThisHost).time_limit(&ThisHost))
    }

    fn at(&self, site: &Site) -> Box<dyn Located> {
        Box::new(Installation::find(&PRODUCT, site, &ThisHost))
    }

    fn trial(&self) -> &'static dyn Trial {
        &TRIAL
    }

    fn shares(&self, node: &str, _: &[Offer<'_>], total: u32) -> String {
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
}

/// The classic scripts reach no task that TM starts, and run on the job's first node only.
fn under_classic_scripts(nodes: usize) -> Unattached {
    let why = match nodes {
        0 | 1 => "OpenPBS's classic scripts do not attach tasks started by TM".to_owned(),
        _ => format!("it has {nodes} nodes, and OpenPBS runs its classic prologue on the first only"),
    };
    Unattached {
        why,
        remedy: "the hook ('mpsctl pbs install')".to_owned(),
        no_way_round: nodes > 1,
    }
}

#[cfg(test)]
mod tests;
