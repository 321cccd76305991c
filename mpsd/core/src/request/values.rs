//! The values of a request that are no plain limits: the mode, and lists by local rank.

use crate::limits::{Amount, Invalid, Percent, carried_as_text, word};
use crate::text::count;
use derive_more::Display;
use std::str::FromStr;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Display)]
#[display(rename_all = "kebab-case")]
pub enum Mode {
    #[default]
    Off,
    /// One daemon for all GPUs of the job on the node.
    PerNode,
    /// As per node with more tasks than GPUs or a GPU that jobs share; else as if not asked.
    Auto,
    PerGpu,
    /// As per node, and not shared with the user's other jobs on the GPU.
    Own,
}

impl Mode {
    /// In any case, `_` for `-`. [`Mode::from_str`] also takes a boolean's other words.
    pub const ALLOWED: &'static str = "on (or per-node), auto, per-gpu, own, off";

    /// With more `tasks` than `gpus`, two tasks must meet on a GPU.
    pub fn auto_helps(tasks: u32, gpus: u32) -> bool {
        gpus > 0 && tasks > gpus
    }

    pub fn counted(tasks: u32, gpus: u32) -> String {
        let (tasks, gpus) = (count(tasks.into(), "task"), count(gpus.into(), "GPU"));
        format!("{tasks} on {gpus}")
    }

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

#[derive(Debug, Clone, PartialEq, Eq, Display)]
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

#[derive(Debug, Clone, PartialEq, Eq, Display)]
pub enum MemoryLimit {
    /// total / n, n = the job's tasks on a GPU.
    #[display("auto")]
    Auto,
    Uniform(Amount),
    /// A value for each local rank, in order; at least two.
    #[display("{}", joined(_0))]
    PerRank(Vec<Amount>),
    /// For the job's clients on a GPU together, and so for each of them.
    #[display("job={_0}")]
    Job(Amount),
}

impl MemoryLimit {
    pub const ALLOWED: &'static str = "4G, 900M, 4GiB, 25%; auto; a list by local rank such as 2G:4G; for all clients of the \
         job together job=24G";
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
            return Err(Invalid::new("there is no limit by GPU", Self::ALLOWED));
        }
        by_rank(text, Self::ALLOWED, Self::Uniform, Self::PerRank)
    }
}

carried_as_text!(Mode, Threads, MemoryLimit);

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
