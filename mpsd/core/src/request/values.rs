//! The values of a request that are no plain limits: the mode, and lists by local rank or by GPU.

use crate::gpu::GpuUuid;
use crate::limits::{Amount, Invalid, Percent, carried_as_text, word};
use crate::text::{count, is_digits};
use derive_more::Display;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Display, Serialize, Deserialize)]
#[display(rename_all = "kebab-case")]
#[serde(try_from = "String", into = "String")]
pub enum Mode {
    #[default]
    Off,
    /// One daemon for all GPUs of the job on the node.
    PerNode,
    /// As per node if that helps: more than one task on a GPU, or a GPU that jobs share. Else the
    /// job is as if it had not asked.
    Auto,
    PerGpu,
    /// As per node, and not shared with the user's other jobs on the GPU.
    Own,
}

impl Mode {
    /// What [`Mode::from_str`] accepts, in any case, `_` for `-`. It also takes a boolean's other
    /// words.
    pub const ALLOWED: &'static str = "on (or per-node), auto, per-gpu, own, off";

    /// Whether [`Mode::Auto`] gives MPS: with more `tasks` than `gpus`, two tasks must meet on a
    /// GPU.
    pub fn auto_helps(tasks: u32, gpus: u32) -> bool {
        gpus > 0 && tasks > gpus
    }

    /// The numbers that [`Mode::auto_helps`] compared, in words.
    pub fn counted(tasks: u32, gpus: u32) -> String {
        let (tasks, gpus) = (count(tasks.into(), "task"), count(gpus.into(), "GPU"));
        format!("{tasks} on {gpus}")
    }

    /// That `auto` gives no MPS, in one line.
    pub fn auto_without(why: &str) -> String {
        // A refusal's object.
        let why = why.strip_prefix("MPS: ").unwrap_or(why);
        format!("auto: no MPS, because {why}")
    }
}

impl FromStr for Mode {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        match (word(text).as_str(), boolean(text)) {
            ("per-node", _) | (_, Ok(true)) => Ok(Mode::PerNode),
            ("auto", _) => Ok(Mode::Auto),
            ("per-gpu", _) => Ok(Mode::PerGpu),
            ("own", _) => Ok(Mode::Own),
            (_, Ok(false)) => Ok(Mode::Off),
            (_, Err(invalid)) => Err(Invalid::new(invalid.why, Self::ALLOWED)),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Display, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Threads {
    /// Twice the even share of the job's tasks on a GPU ([`Percent::auto`]).
    #[display("auto")]
    Auto,
    Uniform(Percent),
    /// A value for each local rank, in order; at least two.
    #[display("{}", joined(_0))]
    PerRank(Vec<Percent>),
}

impl Threads {
    pub const ALLOWED: &'static str =
        "a number from 1 to 100 such as 25, 12.5 or 25%; auto; a list by local rank such as 30:70";
}

impl FromStr for Threads {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        if word(text) == "auto" {
            return Ok(Threads::Auto);
        }
        by_rank(text, Self::ALLOWED, Self::Uniform, Self::PerRank)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Display, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum MemoryLimit {
    /// total / n, n = the job's tasks on a GPU.
    #[display("auto")]
    Auto,
    /// The same for every client, on every GPU.
    Uniform(Amount),
    /// A value for each local rank, in order; at least two.
    #[display("{}", joined(_0))]
    PerRank(Vec<Amount>),
    #[display("{}", joined(_0.iter().map(|(gpu, amount)| format!("{gpu}={amount}"))))]
    PerGpu(Vec<(GpuSelector, Amount)>),
    /// For the job's clients on a GPU together, and so for each of them.
    #[display("job={_0}")]
    Job(Amount),
}

impl MemoryLimit {
    pub const ALLOWED: &'static str = "4G, 900M, 4GiB, 25%; auto; a list by local rank such as 2G:4G; by GPU such as 0=4G:1=2G; \
         for all clients of the job together job=24G";

    fn per_gpu(text: &str) -> Result<Self, Invalid> {
        let mut limits: Vec<(GpuSelector, Amount)> = Vec::new();
        for element in text.split(':') {
            let some = || Invalid::new("names a GPU for some limits only", Self::ALLOWED);
            let (gpu, amount) = element.split_once('=').ok_or_else(some)?;
            let gpu: GpuSelector = gpu.parse()?;
            if limits.iter().any(|(named, _)| *named == gpu) {
                let why = format!("names GPU {gpu} twice");
                return Err(Invalid::new(why, Self::ALLOWED));
            }
            let amount: Result<Amount, Invalid> = amount.parse();
            let amount = amount.map_err(|invalid| invalid.within(Self::ALLOWED))?;
            limits.push((gpu, amount));
        }
        Ok(MemoryLimit::PerGpu(limits))
    }
}

impl FromStr for MemoryLimit {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        if word(text) == "auto" {
            return Ok(MemoryLimit::Auto);
        }
        if let Some((name, amount)) = text.split_once('=')
            && word(name) == "job"
        {
            let amount = amount.parse().map(MemoryLimit::Job);
            return amount.map_err(|invalid: Invalid| invalid.within(Self::ALLOWED));
        }
        if text.contains('=') {
            return Self::per_gpu(text);
        }
        by_rank(text, Self::ALLOWED, Self::Uniform, Self::PerRank)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Display, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum GpuSelector {
    /// Its place among the job's GPUs on the node, from 0.
    Index(u32),
    Uuid(GpuUuid),
}

impl FromStr for GpuSelector {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        const ALLOWED: &str =
            "the GPU's number within the job, from 0, or its UUID (GPU-... or MIG-...)";
        if is_digits(text) {
            let too_large = |_| Invalid::new("the GPU's number is too large", ALLOWED);
            return text.parse().map(GpuSelector::Index).map_err(too_large);
        }
        // NVML prints the digits in lower case. The user may write them in any case.
        let (prefix, digits) = text.split_at_checked(4).unwrap_or((text, ""));
        let uuid = prefix.to_ascii_uppercase() + &digits.to_ascii_lowercase();
        let uuid = GpuUuid::parse(&uuid).map_err(|_| Invalid::new("names no GPU", ALLOWED))?;
        Ok(GpuSelector::Uuid(uuid))
    }
}

carried_as_text!(Mode, Threads, MemoryLimit, GpuSelector);

pub(super) const BOOLEAN: &str = "true, yes, on, 1; false, no, off, 0";

pub(super) fn boolean(text: &str) -> Result<bool, Invalid> {
    match word(text).as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err(Invalid::new("unknown word", BOOLEAN)),
    }
}

fn by_rank<T: FromStr<Err = Invalid>, V>(
    text: &str,
    allowed: &'static str,
    uniform: fn(T) -> V,
    per_rank: fn(Vec<T>) -> V,
) -> Result<V, Invalid> {
    let read = |text: &str| {
        text.parse()
            .map_err(|invalid: Invalid| invalid.within(allowed))
    };
    if !text.contains(':') {
        return read(text).map(uniform);
    }
    let all: Result<_, _> = text.split(':').map(read).collect();
    all.map(per_rank)
}

fn joined(values: impl IntoIterator<Item: ToString>) -> String {
    let values: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
    values.join(":")
}
