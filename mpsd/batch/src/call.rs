//! How a scheduler calls prologue and epilogue, what it says of a job, and how long it may take.

use super::host::Host;
use mpsd_core::Request;
use mpsd_core::config::Settings;
pub use mpsd_core::environment::Lookup;
use mpsd_core::failure::{Failure, Refusal, Undetermined};
use mpsd_core::job::{JobId, Scheduler};
use mpsd_core::text::one_line;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

/// Reserved below the scheduler's limit: for what ran before us, our guard, and the guard's kill.
pub const MARGIN: Duration = Duration::from_secs(6);
/// How long a guard waits beyond the work's own end.
const GRACE: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    Prologue,
    Epilogue,
}

/// The job's user, who may be unknown on this node: PBS gives a login name, Slurm a number.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
pub enum UserRef {
    Name(String),
    Uid(u32),
}

/// What the scheduler said of a job when it called us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submission {
    pub scheduler: Scheduler,
    /// Not the job's first node: a Torque sister (`prologue.parallel`), or a later one of OpenPBS.
    pub sister: bool,
    pub job: JobId,
    /// Slurm's second name for it, which its cgroup may have.
    pub sluid: Option<String>,
    pub user: UserRef,
    /// The account string byte for byte; the user's text.
    pub account: Option<Vec<u8>>,
    /// OpenPBS's string resource `mps`; the user's text.
    pub resource: Option<String>,
    pub queue: Option<String>,
    /// This node's name in the scheduler, if the scheduler says it.
    pub node: Option<String>,
    /// PBS: its prologue talks to the user's terminal, and any failure aborts it. Slurm: by salloc.
    pub interactive: bool,
    /// By sbatch; only Slurm sets it.
    pub script: bool,
    /// A step of a Slurm job, which keeps the compute mode as it is.
    pub step: bool,
}

impl Submission {
    /// The same for the named step of the job, unless this is a step already.
    pub fn of_step(mut self, step: Option<&str>) -> Result<Self, Refusal> {
        if let Some(step) = step.filter(|_| !self.step) {
            self.job = self.job.step(step)?;
            self.step = true;
        }
        Ok(self)
    }

    /// What the site asks for on behalf of a job without a request, by `auto_queues`.
    pub fn by_site(&self, settings: &dyn Fn() -> Option<Settings>) -> Option<Request> {
        let queue = self.queue.as_ref()?;
        let settings = settings()?;
        let is_its = settings.pbs.auto_queues.contains(queue);
        is_its.then(|| Request::new(settings.defaults.mode))
    }

    /// This node's name: the scheduler's, else the machine's.
    pub fn node_name(&self, host: &dyn Host) -> String {
        let named = self.node.clone().filter(|name| !name.is_empty());
        named.unwrap_or_else(|| host.name())
    }
}

/// What our own options say. They override the scheduler.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub struct CallOptions {
    /// The job's account string (OpenPBS's hook).
    #[arg(long, value_name = "TEXT")]
    pub account: Option<OsString>,
    /// The job's string resource `mps` (OpenPBS's hook).
    #[arg(long, value_name = "TEXT")]
    pub resource: Option<String>,
    /// The job's execution queue, if its site may ask for its jobs (OpenPBS's hook, Torque's
    /// prologue).
    #[arg(long, value_name = "NAME")]
    pub queue: Option<String>,
    /// The job's GPUs on this node, UUIDs or indexes with commas.
    #[arg(long, value_name = "LIST")]
    pub gpus: Option<String>,
    /// OpenPBS's Resource_List.select.
    #[arg(long, value_name = "TEXT")]
    pub select: Option<String>,
    /// OpenPBS's Resource_List.place.
    #[arg(long, value_name = "TEXT")]
    pub place: Option<String>,
    /// OpenPBS's exec_vnode.
    #[arg(long, value_name = "TEXT")]
    pub vnodes: Option<String>,
    /// OpenPBS's exec_host2.
    #[arg(long, value_name = "TEXT")]
    pub hosts: Option<String>,
    /// The mps_shares of each GPU, if each is a vnode (OpenPBS's hook).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub shares: Option<u32>,
    /// This is not the job's first node.
    #[arg(long)]
    pub sister: bool,
    /// The job's batch script has come, or there is none (OpenPBS's hook).
    #[arg(long)]
    pub scripted: bool,
}

/// Where the site's configuration and the environment say that a scheduler is on this node. Its
/// folder searches for the empty fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Location {
    /// `PBS_HOME` or Torque's server home, the directory with `mom_priv`.
    pub home: Option<PathBuf>,
    /// PBS's directory with `bin` and `sbin`, or with the commands themselves.
    pub exec: Option<PathBuf>,
    /// This node's name in PBS, if it is not the host's.
    pub node: Option<String>,
    pub slurm_exec: Option<PathBuf>,
    pub slurm_conf: Option<String>,
}

impl Location {
    pub fn of(settings: &Settings) -> Self {
        let slurm_conf = settings.slurm.conf.as_ref();
        let slurm_conf = slurm_conf.map(|path| path.display().to_string());
        Self {
            home: settings.pbs.home.clone(),
            exec: settings.pbs.exec.clone(),
            node: settings.pbs.node.clone(),
            slurm_exec: settings.slurm.exec.clone(),
            slurm_conf: slurm_conf.or_else(|| std::env::var("SLURM_CONF").ok()),
        }
    }
}

#[derive(Clone, derive_more::Debug)]
pub struct Input<'a> {
    pub program: Program,
    pub scheduler: Option<Scheduler>,
    /// The scheduler's positional arguments, without the program's name.
    pub arguments: &'a [OsString],
    #[debug(skip)]
    pub env: Lookup<'a>,
    pub given: CallOptions,
    pub location: Location,
    pub terminal: bool,
}

impl Input<'_> {
    pub fn argument(&self, number: usize) -> Option<&OsString> {
        number.checked_sub(1).and_then(|at| self.arguments.get(at))
    }

    pub fn text(&self, number: usize, name: &str) -> Result<String, Failure> {
        let raw = self.argument(number).map_or(&b""[..], |a| a.as_bytes());
        let what = format!("argument {number} ({name})");
        match std::str::from_utf8(raw) {
            Ok("") => Err(Undetermined::new(what, "the scheduler left it empty").into()),
            Ok(text) => Ok(text.to_owned()),
            Err(_) => {
                let what = format!("{what} '{}'", one_line(&String::from_utf8_lossy(raw), 40));
                Err(Refusal::new(what, "it is not UTF-8", "plain text").into())
            }
        }
    }

    /// The account: the option's, else argument `number`; empty is none.
    pub fn account(&self, number: Option<usize>) -> Option<Vec<u8>> {
        let argument = || number.and_then(|number| self.argument(number));
        let raw = self.given.account.as_ref().or_else(argument)?;
        (!raw.is_empty()).then(|| raw.as_bytes().to_vec())
    }

    pub fn number(&self, name: &str) -> Option<u32> {
        (self.env)(name).and_then(|text| text.trim().parse().ok())
    }
}

/// The time of one prologue or epilogue. Every wait of the program is a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// For the work, which ends by itself.
    pub work: Duration,
    /// After this the guard ends the work.
    pub whole: Duration,
}

impl Budget {
    /// The site gives a program the time `own`; its scheduler kills it at `limit`.
    pub fn new(own: Duration, limit: Option<Duration>) -> Self {
        let work = limit.map_or(own, |limit| own.min(within(limit)));
        // The rest below the limit is for the kill and for what ran before us.
        let grace = limit.map_or(GRACE, |limit| GRACE.min((limit - work) / 2));
        let whole = work + grace;
        Self { work, whole }
    }
}

/// The time for our work below a scheduler's `limit`. A small limit is halved.
pub fn within(limit: Duration) -> Duration {
    limit - MARGIN.min(limit / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_guard_and_kill_stay_below_every_limit_and_a_far_limit_changes_nothing() {
        let own = Duration::from_secs(20);
        for limit in (1..=60).map(Duration::from_secs) {
            let Budget { work, whole } = Budget::new(own, Some(limit));
            let good = !work.is_zero() && work <= own && whole > work;
            let free = limit - whole;
            assert!(good && free >= MARGIN.min(limit / 2) / 2, "{limit:?}");
            assert_eq!(work == own, limit >= own + MARGIN, "{limit:?}");
        }
        assert_eq!(Budget::new(own, None), Budget::new(own, Some(own + MARGIN)));
    }
}
