//! What Slurm, Torque and OpenPBS say of a job.
//!
//! A dialect is pure: arguments and environment come in through [`Input`], files and the scheduler's own
//! commands through [`Host`]. [`read`] says who the job is and what it asked for and reads nothing that a job
//! without MPS would have to pay for; [`devices`] finds its GPUs and is called only for a job that asked.
//!
//! Argument vectors, environments and files: recorded on OpenPBS 23.06.06, Torque 6.1.3 and Slurm 22.05.8.

pub mod advertise;
pub mod drain;
pub mod finding;
pub mod host;
pub mod known_jobs;
pub mod numbers;
pub mod openpbs;
pub mod pbs;
pub mod slurm;
pub mod torque;
pub mod unattached;

#[cfg(test)]
mod testing;

pub use host::{Host, ThisHost};
use mpsd_core::Inventory;
use mpsd_core::failure::{Failure, Refusal, Undetermined};
use mpsd_core::job::JobId;
pub use mpsd_core::job::Scheduler;
use mpsd_core::record::RecordDevice;
use mpsd_core::text::one_line;
pub use numbers::Numbers;
pub use pbs::Site;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
pub use unattached::unattached;

/// Which of our two programs reads the vector: prologue and epilogue have different ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `mps-prologue`.
    Prologue,
    /// `mps-epilogue`.
    Epilogue,
}

/// When in the job's life the scheduler calls us, and on which of its nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Before the job: its first node, or any node where the scheduler makes no difference.
    Prologue,
    /// After the job, same node.
    Epilogue,
    /// Before the job on a Torque sister (`prologue.parallel`), or on a node that is not OpenPBS's first.
    ParallelPrologue,
    /// After the job on such a node.
    ParallelEpilogue,
}

/// The job's user as the scheduler names him; whether he is known on this node is asked later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserRef {
    /// A login name (PBS).
    Name(String),
    /// A numeric user id (Slurm).
    Uid(u32),
}

impl fmt::Display for UserRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Uid(uid) => write!(f, "{uid}"),
        }
    }
}

/// A GPU in the scheduler's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuName {
    /// The scheduler's number: gres.conf's index, Torque's `-gpuN`.
    Index(u32),
    /// What the vendor calls a UUID: `GPU-…`, or `MIG-…` (which is refused later).
    Uuid(String),
}

impl GpuName {
    /// Reads `3`, `GPU-…` or `MIG-…`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let uuid = text.starts_with("GPU-") || text.starts_with("MIG-");
        if uuid
            && text.len() <= 96
            && text
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'/'))
        {
            return Some(Self::Uuid(text.to_owned()));
        }
        let number = !text.is_empty() && text.len() <= 4 && text.bytes().all(|b| b.is_ascii_digit());
        if number {
            text.parse().ok().map(Self::Index)
        } else {
            None
        }
    }

    /// Reads a list with commas; blank entries are left out.
    ///
    /// # Errors
    /// The entry that is neither a number nor a UUID.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, String> {
        text.split(',')
            .map(str::trim)
            .filter(|entry| !entry.is_empty())
            .map(|entry| Self::parse(entry).ok_or_else(|| format!("'{}' is no GPU", one_line(entry, 40))))
            .collect()
    }
}

/// Which GPUs of this node the scheduler gave to the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuSource {
    /// These; never empty.
    Listed(Vec<GpuName>),
    /// These, by numbers of its own.
    Numbered(Numbers),
    /// The scheduler does not say; the setting `gpus_unknown` decides.
    Unknown {
        /// What was looked for, where.
        why: String,
    },
    /// None: the job has no GPU here.
    None,
}

impl GpuSource {
    /// The node's GPUs, where a task must count those that it may open to know its own.
    pub fn to_count(&self, inventory: &Inventory) -> Vec<RecordDevice> {
        match self {
            Self::Numbered(numbers) => numbers.devices(inventory),
            Self::Listed(_) | Self::Unknown { .. } | Self::None => Vec::new(),
        }
    }
}

/// Whether the scheduler proves that this job alone holds its GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exclusive {
    /// It gave them to this job alone.
    GpusAlone,
    /// It lets several jobs share them.
    Shared,
    /// It does not say.
    Unknown,
}

/// The job's devices and tasks on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Devices {
    /// Its GPUs.
    pub gpus: GpuSource,
    /// Whether they are its alone.
    pub exclusive: Exclusive,
    /// Whether the whole node is its alone.
    pub whole_node: bool,
    /// Its tasks on this node, for `auto`; none: unknown.
    pub tasks_on_node: Option<u32>,
}

/// What the scheduler said of a job when it called us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submission {
    /// Who said it.
    pub scheduler: Scheduler,
    /// When and where.
    pub phase: Phase,
    /// The job, or `JOB.STEP`.
    pub job: JobId,
    /// Its user.
    pub user: UserRef,
    /// Its group, where the scheduler names one.
    pub group: Option<String>,
    /// The account string byte for byte, where there is one; the user's text.
    pub account: Option<Vec<u8>>,
    /// OpenPBS's string resource `mps`; the user's text.
    pub resource: Option<String>,
    /// This node in the scheduler's words, where it says.
    pub node: Option<String>,
    /// An interactive PBS job, whose prologue talks to the user's terminal: aborted, never requeued, on any code.
    pub interactive: bool,
    /// How often the job was restarted, where the scheduler says.
    pub restart: Option<u32>,
    /// A step of a Slurm job, which keeps the compute mode as it is.
    pub step: bool,
}

/// What our own options say; they go before what the scheduler says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Given {
    /// `--account`: the hook's.
    pub account: Option<OsString>,
    /// `--resource`: the hook's.
    pub resource: Option<String>,
    /// `--gpus`: `GPU-…,GPU-…`, or numbers.
    pub gpus: Option<String>,
    /// `--select`: OpenPBS's `Resource_List.select` or `schedselect`, as it stands.
    pub select: Option<String>,
    /// `--place`: OpenPBS's `Resource_List.place`.
    pub place: Option<String>,
    /// `--vnodes`: OpenPBS's `exec_vnode`.
    pub vnodes: Option<String>,
    /// `--sister`: this is not the job's first node (hook).
    pub sister: bool,
}

/// A variable of the environment that the scheduler gave us.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Everything that a dialect may look at.
#[derive(Clone)]
pub struct Input<'a> {
    /// Which program reads.
    pub program: Program,
    /// `--scheduler`.
    pub scheduler: Option<Scheduler>,
    /// The scheduler's positional arguments, without the program's name.
    pub arguments: &'a [OsString],
    /// The environment.
    pub env: Lookup<'a>,
    /// Our own options.
    pub given: Given,
    /// Where PBS lives.
    pub site: Site,
    /// Whether standard output is a terminal.
    pub terminal: bool,
}

impl fmt::Debug for Input<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Input")
            .field("program", &self.program)
            .field("arguments", &self.arguments)
            .finish_non_exhaustive()
    }
}

impl Input<'_> {
    fn argument(&self, number: usize) -> Option<&OsString> {
        number.checked_sub(1).and_then(|at| self.arguments.get(at))
    }

    /// An argument that must be text; `$1` is number 1.
    fn text(&self, number: usize, name: &str) -> Result<String, Failure> {
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
    fn account(&self, number: Option<usize>) -> Option<Vec<u8>> {
        let raw = match &self.given.account {
            Some(given) => Some(given),
            None => number.and_then(|n| self.argument(n)),
        };
        raw.map(|a| a.as_bytes().to_vec()).filter(|a| !a.is_empty())
    }

    fn number(&self, name: &str) -> Option<u32> {
        (self.env)(name).and_then(|text| text.trim().parse().ok())
    }

    /// `--gpus`, where given.
    fn given_gpus(&self) -> Result<Option<GpuSource>, Failure> {
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
}

/// Which scheduler called, from the number of its arguments and the environment, when `--scheduler` is absent.
///
/// 3 arguments are OpenPBS's prologue, 7 to 9 Torque's, 11 Torque's epilogue; 10 are an epilogue of OpenPBS or of
/// Torque before 5, which only Torque's environment tells apart; none is Slurm, if its environment is there.
pub fn detect(arguments: usize, env: Lookup<'_>) -> Option<Scheduler> {
    match arguments {
        0 => env("SLURM_JOB_ID").map(|_| Scheduler::Slurm),
        3 => Some(Scheduler::OpenPbs),
        7..=9 | 11 => Some(Scheduler::Torque),
        10 if env("PBS_NODENUM").is_some() || env("PBS_RESOURCE_NODES").is_some() => Some(Scheduler::Torque),
        10 => Some(Scheduler::OpenPbs),
        _ => None,
    }
}

/// Who the job is and what it asked for.
///
/// # Errors
/// A wrong argument vector is the node's (undetermined: somebody wired us up wrongly); an id or a name that no
/// scheduler writes is a refusal.
pub fn read(input: &Input<'_>, host: &dyn Host) -> Result<Submission, Failure> {
    match scheduler_of(input)? {
        Scheduler::Slurm => slurm::submission::read(input),
        Scheduler::Torque => torque::submission::read(input),
        Scheduler::OpenPbs => openpbs::submission::read(input, host),
    }
}

/// The job's GPUs and tasks on this node. For a job that asked for MPS only: it may ask the scheduler.
///
/// # Errors
/// An unreadable `--gpus`. A set of GPUs that cannot be found is no error but [`GpuSource::Unknown`].
pub fn devices(submission: &Submission, input: &Input<'_>, host: &dyn Host) -> Result<Devices, Failure> {
    let given = input.given_gpus()?;
    let mut found = match submission.scheduler {
        Scheduler::Slurm => slurm::submission::devices(input, host),
        Scheduler::Torque => torque::submission::devices(submission, input, host),
        Scheduler::OpenPbs => openpbs::submission::devices(submission, input, host),
    };
    if let Some(gpus) = given {
        found.gpus = gpus;
    }
    Ok(found)
}

fn scheduler_of(input: &Input<'_>) -> Result<Scheduler, Failure> {
    if let Some(named) = input
        .scheduler
        .or_else(|| detect(input.arguments.len(), input.env))
    {
        return Ok(named);
    }
    let what = format!("{} arguments", input.arguments.len());
    Err(Undetermined::new(what, format!("no scheduler calls so; {}", usage(input.program))).into())
}

/// The argument vectors, for `--help` and for the error.
pub fn usage(program: Program) -> &'static str {
    match program {
        Program::Prologue => {
            "expected: JOB USER GROUP (openpbs), JOB USER GROUP NAME RESOURCES QUEUE ACCOUNT [SCRIPT [HOSTS]] (torque), \
             or none and Slurm's environment (slurm)"
        }
        Program::Epilogue => {
            "expected: JOB USER GROUP NAME SESSION RESOURCES USED QUEUE ACCOUNT CODE (openpbs), the same and SCRIPT \
             (torque), or none and Slurm's environment (slurm)"
        }
    }
}

fn wrong_vector(input: &Input<'_>, scheduler: Scheduler) -> Failure {
    let what = format!("{} arguments from {scheduler}", input.arguments.len());
    Undetermined::new(what, usage(input.program)).into()
}

/// The value of `NAME = VALUE` in what `qstat -f` and `printjob` print. Torque's qstat goes on after 80 columns in
/// lines that begin with a tab and hold no name. A name that stands there twice is no answer: a user can write a
/// newline and a false line into his own variables.
pub(crate) fn pbs_status(text: &str, name: &str) -> Option<String> {
    let named = |line: &str| {
        line.split_once('=')
            .filter(|(key, _)| key.trim() == name)
            .map(|(_, v)| v.trim().to_owned())
    };
    if text.lines().filter_map(named).count() != 1 {
        return None;
    }
    let mut lines = text.lines();
    let mut value = lines.by_ref().find_map(named)?;
    for line in lines.take_while(|line| line.starts_with('\t') && !line.contains(" = ")) {
        value.push_str(line.trim());
    }
    Some(value)
}
