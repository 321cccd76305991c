//! How a scheduler calls the prologue and the epilogue, and what such a call says of a job.

use super::devices::{GpuName, GpuSource};
use super::host::Host;
use super::site::Site;
use mpsd_core::failure::{Failure, Refusal, Undetermined};
use mpsd_core::job::{JobId, Scheduler};
use mpsd_core::text::one_line;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Which of our two programs reads the vector: prologue and epilogue have different ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `mps-prologue`.
    Prologue,
    /// `mps-epilogue`.
    Epilogue,
}

/// The job's user as the scheduler names him; whether he is known on this node is asked later.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
pub enum UserRef {
    /// A login name (PBS).
    Name(String),
    /// A numeric user id (Slurm).
    Uid(u32),
}

/// What the scheduler said of a job when it called us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submission {
    /// Who said it.
    pub scheduler: Scheduler,
    /// This is not the job's first node: a Torque sister (`prologue.parallel`), or one of the others of OpenPBS.
    pub sister: bool,
    /// The job, or `JOB.STEP`.
    pub job: JobId,
    /// Its user.
    pub user: UserRef,
    /// The account string byte for byte, where there is one; the user's text.
    pub account: Option<Vec<u8>>,
    /// OpenPBS's string resource `mps`; the user's text.
    pub resource: Option<String>,
    /// This node in the scheduler's words, where it says.
    pub node: Option<String>,
    /// An interactive PBS job, whose prologue talks to the user's terminal: aborted, never requeued, on any code. In Slurm, which
    /// the job's own prolog does not tell from a batch job, one of salloc or sbatch.
    pub interactive: bool,
    /// A step of a Slurm job, which keeps the compute mode as it is.
    pub step: bool,
}

impl Submission {
    /// The same for the step `step` of the job, where one is named and this is none yet.
    ///
    /// # Errors
    /// As [`JobId::parse`].
    pub fn of_step(mut self, step: Option<&str>) -> Result<Self, Refusal> {
        if let Some(step) = step.filter(|_| !self.step) {
            self.job = self.job.step(step)?;
            self.step = true;
        }
        Ok(self)
    }

    /// This node's name: the scheduler's, else the machine's.
    pub fn node_name(&self, host: &dyn Host) -> String {
        let named = self.node.clone().filter(|name| !name.is_empty());
        named.unwrap_or_else(|| host.name())
    }
}

/// What our own options say; it goes before what the scheduler says.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub struct CallOptions {
    /// The job's account string (OpenPBS's hook).
    #[arg(long, value_name = "TEXT")]
    pub account: Option<OsString>,
    /// The job's string resource `mps` (OpenPBS's hook).
    #[arg(long, value_name = "TEXT")]
    pub resource: Option<String>,
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
    /// This is not the job's first node.
    #[arg(long)]
    pub sister: bool,
}

/// A variable of the environment that the scheduler gave us.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Everything that a dialect may look at.
#[derive(Clone, derive_more::Debug)]
pub struct Input<'a> {
    /// Which program reads.
    pub program: Program,
    /// `--scheduler`.
    pub scheduler: Option<Scheduler>,
    /// The scheduler's positional arguments, without the program's name.
    pub arguments: &'a [OsString],
    /// The environment.
    #[debug(skip)]
    pub env: Lookup<'a>,
    /// Our own options.
    pub given: CallOptions,
    /// Where PBS lives.
    pub site: Site,
    /// Whether standard output is a terminal.
    pub terminal: bool,
}

impl Input<'_> {
    pub(crate) fn argument(&self, number: usize) -> Option<&OsString> {
        number.checked_sub(1).and_then(|at| self.arguments.get(at))
    }

    /// An argument that must be text; `$1` is number 1.
    pub(crate) fn text(&self, number: usize, name: &str) -> Result<String, Failure> {
        let raw = self.argument(number).map(|a| a.as_bytes()).unwrap_or_default();
        match std::str::from_utf8(raw) {
            Ok(text) if !text.is_empty() => Ok(text.to_owned()),
            Ok(_) => Err(Undetermined::new(
                format!("argument {number} ({name})"),
                "the scheduler left it empty",
            )
            .into()),
            Err(_) => {
                let shown = one_line(&String::from_utf8_lossy(raw), 40);
                Err(Refusal::new(
                    format!("argument {number} ({name}) '{shown}'"),
                    "it is not UTF-8",
                    "plain text",
                )
                .into())
            }
        }
    }

    /// The account: the option's, else argument `number`; empty is none.
    pub(crate) fn account(&self, number: Option<usize>) -> Option<Vec<u8>> {
        let raw = match &self.given.account {
            Some(given) => Some(given),
            None => number.and_then(|n| self.argument(n)),
        };
        raw.map(|a| a.as_bytes().to_vec()).filter(|a| !a.is_empty())
    }

    pub(crate) fn number(&self, name: &str) -> Option<u32> {
        (self.env)(name).and_then(|text| text.trim().parse().ok())
    }

    /// `--gpus`, where given.
    pub(crate) fn given_gpus(&self) -> Result<Option<GpuSource>, Failure> {
        let Some(text) = &self.given.gpus else {
            return Ok(None);
        };
        let names = GpuName::parse_list(text)
            .map_err(|why| Undetermined::new(format!("--gpus '{}'", one_line(text, 80)), why))?;
        Ok(Some(if names.is_empty() {
            GpuSource::None
        } else {
            GpuSource::Listed(names)
        }))
    }

    /// The failure of a call that `scheduler` never makes; `vectors` are those that it does make.
    pub(crate) fn wrong_vector(&self, scheduler: Scheduler, vectors: &str) -> Failure {
        let what = format!("{} arguments from {scheduler}", self.arguments.len());
        Undetermined::new(what, format!("expected: {vectors}")).into()
    }
}
