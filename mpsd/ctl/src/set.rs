//! `mpsctl set`: other limits for clients of a running job that connect later. The job's `mpsd`
//! sets them, for its user and for root: it keeps root's ceilings, and watches the new limits.

use super::attach::Caller;
use super::this_node;
use mpsd::daemon::door::{self, Answer};
use mpsd::job::audit;
use mpsd::job::node::Console as _;
use mpsd::job::report;
use mpsd::job::spec::Unready;
use mpsd::job::store::Store as _;
use mpsd_core::failure::Undetermined;
use mpsd_core::limits::Amount;
use mpsd_core::record::{ClientLimits, Daemon, Record};
use mpsd_core::request::{GpuSelector, MemoryLimit, Threads};
use mpsd_core::text::one_line;
use mpsd_core::{Failure, GpuUuid, Refusal};
use std::fmt::Display;

const THREADS: &str = "one number from 1 to 100 such as 25 or 12.5";
const MEMORY: &str = "a size such as 4G or 900M, or one by GPU such as 0=4G:1=2G";
const BY_RANK: &str = "NVIDIA's daemon has one limit for all clients of a GPU";

#[derive(Debug, Clone, clap::Args)]
pub struct Set {
    /// The job; from the scheduler's variables if not given
    #[arg(value_name = "JOB")]
    pub job: Option<String>,
    /// Active thread percentage of each client that connects later
    #[arg(long, value_name = "P")]
    pub threads: Option<String>,
    /// Pinned memory limit of each client that connects later: 4G, or by GPU 0=4G:1=2G
    #[arg(long, value_name = "M")]
    pub mem: Option<String>,
    /// One object instead of text
    #[arg(long)]
    pub json: bool,
}

impl Set {
    pub fn run(&self, caller: &Caller<'_>) -> Result<String, Failure> {
        let Some((record, _)) = caller.job_with_mps()? else {
            let job = caller
                .job()
                .map_or("set".to_owned(), |job| format!("job {job}"));
            let allowed = "the id of a job with MPS on this node";
            return Err(Refusal::new(job, "it has no MPS on this node", allowed).into());
        };
        let wanted = self.wanted(&record)?;
        let answer = match caller.uid {
            0 => by_root(caller, &record, &wanted)?,
            _ => door::ask(&record.daemons, &wanted, door::TIME),
        };
        let now = answer.map_err(|why| failed(&record, why))?;
        let both = record.daemons.iter().zip(&now);
        let now: Vec<Daemon> = both.map(|(daemon, limits)| daemon.with(limits)).collect();
        Ok(self.told(&record, &now))
    }

    fn wanted(&self, record: &Record) -> Result<ClientLimits, Refusal> {
        if self.threads.is_none() && self.mem.is_none() {
            let allowed = "--threads P, --mem M, or both";
            return Err(Refusal::new("set", "no limit is given", allowed));
        }
        if record.shared {
            let why = "its daemon has one setting for all jobs that share it";
            let allowed = "a step with lower limits, or a job with MPS=own (Slurm: --mps=own)";
            return Err(Refusal::new(
                format!("set for job {}", record.job),
                why,
                allowed,
            ));
        }
        Ok(ClientLimits {
            threads: self.threads.as_deref().map(threads).transpose()?,
            memory: self
                .mem
                .as_deref()
                .map_or(Ok(Vec::new()), |mem| memory(mem, record))?,
        })
    }

    fn told(&self, record: &Record, now: &[Daemon]) -> String {
        if self.json {
            let limits: Vec<ClientLimits> = now.iter().map(Daemon::limits).collect();
            let told = serde_json::json!({"job": record.job, "daemons": limits});
            return format!("{told}\n");
        }
        let mut limits: Vec<String> = now.iter().filter_map(report::limits).collect();
        limits.dedup();
        let limits = limits.join(", ");
        let job = &record.job;
        format!(
            "job {job}: clients that connect from now on have {limits}; those that run keep theirs\n"
        )
    }
}

/// Root asks through a process of the job's user, and writes the change into the audit trail.
fn by_root(caller: &Caller<'_>, record: &Record, wanted: &ClientLimits) -> Result<Answer, Failure> {
    let (settings, _) = caller.settings();
    let mut node = this_node(&settings);
    let none = || Undetermined::new(format!("job {}", record.job), "its MPS is being taken down");
    let journal = node.read_journal(&record.job)?.ok_or_else(none)?;
    let text = serde_json::to_string(wanted)
        .map_err(|e| Undetermined::new("the limits", e.to_string()))?;
    let line = node.ask_mpsd(&journal, &["--set", &text], door::TIME * 2);
    let answer = line.and_then(|line| serde_json::from_slice::<Answer>(&line).ok());
    let answer = answer.unwrap_or_else(|| Err("its mpsd gives no answer".to_owned().into()));
    // The answer is the user's text.
    let limits = match answer {
        Ok(limits) => limits,
        Err(Unready::Failed(why)) => return Ok(Err(Unready::Failed(one_line(&why, 300)))),
        Err(Unready::Refused { what, why, allowed }) => {
            let [what, why, allowed] = [what, why, allowed].map(|part| one_line(&part, 200));
            return Ok(Err(Unready::Refused { what, why, allowed }));
        }
    };
    if limits.len() != record.daemons.len() {
        return Ok(Err("its mpsd answers of another job".to_owned().into()));
    }
    node.audit(&audit::set(&journal, &words(wanted)));
    Ok(Ok(limits))
}

fn words(wanted: &ClientLimits) -> String {
    let threads = wanted.threads.map(|threads| format!("threads {threads} %"));
    let memory = wanted
        .memory
        .iter()
        .map(|(gpu, mib)| format!("memory {mib}M of {gpu}"));
    threads
        .into_iter()
        .chain(memory)
        .collect::<Vec<_>>()
        .join(", ")
}

fn failed(record: &Record, why: Unready) -> Failure {
    match why {
        Unready::Refused { what, why, allowed } => Refusal::new(what, why, allowed).into(),
        Unready::Failed(why) => {
            let what = format!("job {}: nothing is known to be set", record.job);
            Undetermined::new(what, why).into()
        }
    }
}

fn refused(flag: &str, value: &str, why: impl Display, allowed: &str) -> Refusal {
    Refusal::new(
        one_line(&format!("{flag} {value}"), 60),
        why.to_string(),
        allowed,
    )
}

fn threads(text: &str) -> Result<mpsd_core::limits::Percent, Refusal> {
    match text.parse::<Threads>() {
        Ok(Threads::Uniform(percent)) => Ok(percent),
        Ok(Threads::Auto | Threads::PerRank(_)) => {
            Err(refused("--threads", text, BY_RANK, THREADS))
        }
        Err(invalid) => Err(refused("--threads", text, invalid.why, THREADS)),
    }
}

fn memory(text: &str, record: &Record) -> Result<Vec<(GpuUuid, u64)>, Refusal> {
    let parsed = text.parse::<MemoryLimit>();
    let parsed = parsed.map_err(|invalid| refused("--mem", text, invalid.why, MEMORY))?;
    let size = |amount: Amount| match amount {
        Amount::Mebibytes(mib) => Ok(mib),
        Amount::Percent(_) => Err(refused(
            "--mem",
            text,
            "only a job that begins can have a share",
            MEMORY,
        )),
    };
    match parsed {
        MemoryLimit::Uniform(amount) => {
            let mib = size(amount)?;
            Ok(record
                .gpus
                .iter()
                .map(|gpu| (gpu.uuid.clone(), mib))
                .collect())
        }
        MemoryLimit::PerGpu(list) => {
            let one = |(selector, amount): &(GpuSelector, Amount)| {
                let gpu = match selector {
                    GpuSelector::Index(n) => record.gpus.get(*n as usize),
                    GpuSelector::Uuid(uuid) => record.gpus.iter().find(|gpu| gpu.uuid == *uuid),
                };
                let why = format!("the job has {} GPUs here, from 0", record.gpus.len());
                let gpu = gpu.ok_or_else(|| refused("--mem", text, why, MEMORY))?;
                Ok((gpu.uuid.clone(), size(*amount)?))
            };
            list.iter().map(one).collect()
        }
        MemoryLimit::Auto | MemoryLimit::PerRank(_) => Err(refused("--mem", text, BY_RANK, MEMORY)),
    }
}
