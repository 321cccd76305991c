//! What the suite asks of a batch system. A folder implements it; `scheduler::ALL` registers it.

use super::call::{Input, Lookup, Program, Submission};
use super::control::Controller;
use super::devices::Devices;
use super::host::Host;
use super::known_jobs::KnownJobs;
use super::site::Site;
use super::trial::Trial;
use mpsd_core::Gpu;
use mpsd_core::failure::Failure;
use mpsd_core::gpu::Mig;
use mpsd_core::job::{JobId, Scheduler};
use mpsd_core::request::Syntax;
use std::time::Duration;

/// A batch system: its calls, its jobs, its way to take a node out of service.
pub trait BatchSystem: Sync {
    /// Its name, as it stands in journals, markers and `--scheduler`.
    fn scheduler(&self) -> Scheduler;
    /// What `--help` says beside the name.
    fn title(&self) -> &'static str;

    // How it calls us.

    /// Whether a call without `--scheduler`, with so many positional arguments and this environment, is its.
    fn calls(&self, arguments: usize, env: Lookup<'_>) -> bool;
    /// The argument vectors that it gives `program`, for the message about one that nobody gives.
    fn vectors(&self, program: Program) -> &'static str;
    /// Who the job is and what it asked for. Reads nothing that a job without MPS would have to pay for.
    ///
    /// # Errors
    /// A vector that it never writes is undetermined: somebody wired us up wrongly. An id or a name that it never writes
    /// is a refusal.
    fn read(&self, input: &Input<'_>, host: &dyn Host) -> Result<Submission, Failure>;
    /// The job's GPUs and tasks on this node. For a job that asked for MPS only: it may ask the scheduler.
    fn devices(&self, submission: &Submission, input: &Input<'_>, host: &dyn Host) -> Devices;
    /// What went wrong on the job's other nodes before this one began.
    ///
    /// # Errors
    /// Undetermined: the job is to be put back.
    fn elsewhere(&self, _: &Submission, _: &Input<'_>, _: &dyn Host) -> Result<(), Failure> {
        Ok(())
    }
    /// Why tasks of this job cannot be attached to its MPS; `None`: they are. For a job that asked for MPS only.
    fn unattached(&self, _: &Submission, _: &Input<'_>, _: &dyn Host) -> Option<Unattached> {
        None
    }
    /// How its users write a request, for messages.
    fn syntax(&self) -> Syntax {
        Syntax::Account
    }
    /// Whether a step of a job can have a daemon of its own, under the job's id and its own.
    fn has_steps(&self) -> bool {
        false
    }

    // What it makes of a failure.

    /// What the prologue does with a failure, so that this scheduler harms neither the node nor the job.
    fn exit_policy(&self, submission: &Submission) -> ExitPolicy;
    /// Whether what starts this job's shell reads a refusal in the record, tells it where the user looks, and starts nothing.
    fn tells_refusals(&self, _: &Submission, _: &Site, _: &dyn Host) -> bool {
        false
    }
    /// Whether what the epilogue, called with `input`, says on standard error goes into the job's own error file.
    fn shows_end(&self, _: &Input<'_>) -> bool {
        false
    }
    /// Whether it starts a batch job whose prologue failed again at once. Where the node could not be taken out of
    /// service, the prologue then holds its exit back until its deadline: that is the only brake left.
    fn retries_at_once(&self) -> bool {
        false
    }
    /// Whether the job was put back into its queue before, and its user was told why in a place that stays.
    fn was_put_back(&self, _input: &Input<'_>) -> bool {
        false
    }
    /// Whether a node of a job that never began may have run our prologue and get no epilogue. A process of ours then takes down what
    /// is left, or the next prologue there, of any job.
    fn may_skip_epilogue(&self) -> bool {
        false
    }

    /// When it kills the program that it called with `input`, or takes the node out of service for how long that takes, counted
    /// from the call; `None`: never. `step`: the program is for a step's own daemon. Asks no controller.
    fn time_limit(&self, input: &Input<'_>, step: bool, site: &Site) -> Option<Duration>;

    /// Its jobs and its nodes.
    fn at(&self, site: &Site) -> Box<dyn Located>;

    // The administrator's configuration.

    /// How its users run a small job, for `mpsctl selftest`.
    fn trial(&self) -> &'static dyn Trial;
    /// The lines that make it offer `total` shares of the GPUs of `node`.
    fn shares(&self, node: &str, offers: &[Offer<'_>], total: u32) -> String;
}

/// A batch system where it lives on this node: its jobs and its nodes.
pub trait Located {
    /// Whether a job of which only the id is known may be one of its jobs on this node.
    fn may_own(&self, job: &JobId) -> bool;
    /// Whether the file is here that its node keeps of each job that it has.
    fn has_file_of(&self, _: &JobId) -> bool {
        false
    }
    /// What it knows of the jobs on `node`. It may be asked at once.
    fn known_jobs(&self, node: &str) -> Box<dyn KnownJobs>;
    /// The way to take `node` out of service and back.
    fn controller(&self, node: &str) -> Box<dyn Controller>;
    /// Longest reason that it keeps whole. Bytes.
    fn longest_reason(&self) -> usize;
}

/// What the prologue does with a failure beyond its exit code.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExitPolicy {
    /// All but a fault that did not take the node out of service is left to the job's tasks, which read it in the record; the
    /// exit is 0.
    pub left_to_tasks: bool,
    /// A job whose failure is undetermined is put back into the queue by us, where the site allows it.
    pub requeue: bool,
    /// It counts a job's failed tries, and who called us has it forget those that are the node's: they have an exit code of
    /// their own.
    pub tells_tries: bool,
}

/// Why a task of a job could run outside its MPS without a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unattached {
    /// What is missing.
    pub why: String,
    /// What an administrator does about it.
    pub remedy: String,
    /// Nothing that the user does attaches them: their nodes have no daemon, or the starter lets no task run.
    pub no_way_round: bool,
}

/// A GPU and the shares it is to be offered as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer<'a> {
    /// The GPU.
    pub gpu: &'a Gpu,
    /// `replicas` for its product on its node; `None`: it is not offered in shares.
    pub replicas: Option<u32>,
    /// The MPS clients that it takes.
    pub clients: u32,
}

impl Offer<'_> {
    /// The shares that it is offered as; none where MPS cannot be given to it.
    pub(crate) fn shares(&self) -> u32 {
        match self.replicas {
            None => 0,
            // Its MIG devices are the scheduler's own, and a share of one has no way to name it.
            Some(_) if self.gpu.mig != Mig::Off => 0,
            Some(replicas) => replicas.min(self.clients),
        }
    }
}
