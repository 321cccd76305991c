//! The values of the grammar that are no plain limits: the mode, and what may be a list by local rank or by GPU.

use crate::gpu::{GpuUuid, MOST_CLIENTS};
use crate::limits::{Amount, Invalid, Percent, carried_as_text, word};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How a job's GPUs are given to control daemons.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, derive_more::Display, Serialize, Deserialize)]
#[display(rename_all = "kebab-case")]
#[serde(try_from = "String", into = "String")]
pub enum Mode {
    /// No MPS, said explicitly.
    #[default]
    Off,
    /// One daemon for all GPUs of the job on the node.
    PerNode,
    /// One daemon for each GPU.
    PerGpu,
}

impl Mode {
    /// What [`Mode::from_str`] accepts, in any case, `_` for `-`; and a boolean's other words.
    pub const ALLOWED: &'static str = "on (or per-node), per-gpu, off";
}

impl FromStr for Mode {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        match word(text).as_str() {
            "per-node" => Ok(Mode::PerNode),
            "per-gpu" => Ok(Mode::PerGpu),
            other => match boolean(other) {
                Ok(true) => Ok(Mode::PerNode),
                Ok(false) => Ok(Mode::Off),
                Err(invalid) => Err(Invalid::new(invalid.why, Self::ALLOWED)),
            },
        }
    }
}

/// The active thread percentage that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Threads {
    /// 100 / (n/2), n = the job's tasks on a GPU ([`Percent::auto`]).
    Auto,
    /// The same for every client.
    Uniform(Percent),
    /// One for each local rank, in order; at least two.
    PerRank(Vec<Percent>),
}

impl Threads {
    /// What [`Threads::from_str`] accepts.
    pub const ALLOWED: &'static str =
        "a number from 1 to 100 such as 25, 12.5 or 25%; auto; a list by local rank such as 30:70";
}

impl FromStr for Threads {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        if word(text) == "auto" {
            return Ok(Threads::Auto);
        }
        match list::<Percent>(text, Self::ALLOWED)?.as_slice() {
            [percent] => Ok(Threads::Uniform(*percent)),
            percents => Ok(Threads::PerRank(percents.to_vec())),
        }
    }
}

impl fmt::Display for Threads {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Threads::Auto => out.write_str("auto"),
            Threads::Uniform(percent) => percent.fmt(out),
            Threads::PerRank(percents) => write_list(out, percents),
        }
    }
}

/// The pinned device memory limit of each client that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum MemoryLimit {
    /// total / n, n = the job's tasks on a GPU.
    Auto,
    /// The same for every client, on every GPU.
    Uniform(Amount),
    /// One for each local rank, in order; at least two.
    PerRank(Vec<Amount>),
    /// One for each GPU that is named.
    PerGpu(Vec<(GpuSelector, Amount)>),
}

impl MemoryLimit {
    /// What [`MemoryLimit::from_str`] accepts.
    pub const ALLOWED: &'static str =
        "4G, 900M, 4GiB, 25%; auto; a list by local rank such as 2G:4G; by GPU such as 0=4G:1=2G";

    fn per_gpu(text: &str) -> Result<Self, Invalid> {
        let mut limits: Vec<(GpuSelector, Amount)> = Vec::new();
        for element in text.split(':') {
            let (gpu, amount) = element
                .split_once('=')
                .ok_or_else(|| Invalid::new("names a GPU for some limits only", Self::ALLOWED))?;
            let gpu: GpuSelector = gpu.parse()?;
            if limits.iter().any(|(named, _)| *named == gpu) {
                return Err(Invalid::new(format!("names GPU {gpu} twice"), Self::ALLOWED));
            }
            limits.push((gpu, within(amount.parse(), Self::ALLOWED)?));
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
        if text.contains('=') {
            return Self::per_gpu(text);
        }
        match list::<Amount>(text, Self::ALLOWED)?.as_slice() {
            [amount] => Ok(MemoryLimit::Uniform(*amount)),
            amounts => Ok(MemoryLimit::PerRank(amounts.to_vec())),
        }
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryLimit::Auto => out.write_str("auto"),
            MemoryLimit::Uniform(amount) => amount.fmt(out),
            MemoryLimit::PerRank(amounts) => write_list(out, amounts),
            MemoryLimit::PerGpu(limits) => {
                let limits: Vec<String> = limits
                    .iter()
                    .map(|(gpu, amount)| format!("{gpu}={amount}"))
                    .collect();
                write_list(out, &limits)
            }
        }
    }
}

/// The multiprocessors that each rank has alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Sms {
    /// So many for each of the job's tasks on a node.
    Uniform(u32),
    /// One number for each local rank, in order; at least two.
    PerRank(Vec<u32>),
}

impl Sms {
    /// What [`Sms::from_str`] accepts.
    pub const ALLOWED: &'static str =
        "a whole number of multiprocessors such as 16, or one for each local rank such as 16:32";
    /// Far more than a GPU has.
    const MOST: u32 = 1024;

    fn one(text: &str) -> Result<u32, Invalid> {
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(Invalid::new("not a whole number", Self::ALLOWED));
        }
        match text.parse() {
            Ok(0) => Err(Invalid::new("below 1", Self::ALLOWED)),
            Ok(sms) if sms <= Self::MOST => Ok(sms),
            _ => Err(Invalid::new("above 1024", Self::ALLOWED)),
        }
    }
}

impl FromStr for Sms {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let all = text.split(':').map(Self::one).collect::<Result<Vec<_>, _>>()?;
        match all.as_slice() {
            [sms] => Ok(Sms::Uniform(*sms)),
            _ => Ok(Sms::PerRank(all)),
        }
    }
}

impl fmt::Display for Sms {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sms::Uniform(sms) => sms.fmt(out),
            Sms::PerRank(all) => write_list(out, all),
        }
    }
}

/// How a request names a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Hash, derive_more::Display, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum GpuSelector {
    /// Its place among the job's GPUs on the node, from 0.
    Index(u32),
    /// Its UUID.
    Uuid(GpuUuid),
}

impl GpuSelector {
    const ALLOWED: &'static str = "the GPU's number within the job, from 0, or its UUID (GPU-... or MIG-...)";
}

impl FromStr for GpuSelector {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            let index = text
                .parse()
                .map_err(|_| Invalid::new("the GPU's number is too large", Self::ALLOWED))?;
            return Ok(GpuSelector::Index(index));
        }
        let prefix = text.get(..4).unwrap_or("").to_ascii_uppercase();
        // NVML prints the digits in lower case; the user's spelling must not hide the GPU.
        let uuid = format!("{prefix}{}", text.get(4..).unwrap_or("").to_ascii_lowercase());
        let uuid = GpuUuid::parse(&uuid).map_err(|_| Invalid::new("names no GPU", Self::ALLOWED))?;
        Ok(GpuSelector::Uuid(uuid))
    }
}

carried_as_text!(Mode, Threads, MemoryLimit, Sms, GpuSelector);

/// What [`boolean`] accepts.
pub(super) const BOOLEAN: &str = "true, yes, on, 1; false, no, off, 0";

/// A boolean in the words of the grammar.
pub(super) fn boolean(text: &str) -> Result<bool, Invalid> {
    match word(text).as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err(Invalid::new("unknown word", BOOLEAN)),
    }
}

/// What [`replicas`] accepts.
pub(super) const REPLICAS: &str = "a whole number from 1 to 60";

/// A number of shares of one GPU.
pub(super) fn replicas(text: &str) -> Result<u32, Invalid> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Invalid::new("not a whole number", REPLICAS));
    }
    match text.parse::<u32>() {
        Ok(0) => Err(Invalid::new("below 1", REPLICAS)),
        Ok(number) if number <= MOST_CLIENTS => Ok(number),
        _ => Err(Invalid::new("above 60", REPLICAS)),
    }
}

fn list<T: FromStr<Err = Invalid>>(text: &str, allowed: &'static str) -> Result<Vec<T>, Invalid> {
    text.split(':')
        .map(|element| within(element.parse(), allowed))
        .collect()
}

/// A list's own "allowed" says more than its element's.
fn within<T>(parsed: Result<T, Invalid>, allowed: &'static str) -> Result<T, Invalid> {
    parsed.map_err(|invalid| Invalid::new(invalid.why, allowed))
}

fn write_list<T: fmt::Display>(out: &mut fmt::Formatter<'_>, elements: &[T]) -> fmt::Result {
    for (at, element) in elements.iter().enumerate() {
        write!(out, "{}{element}", if at == 0 { "" } else { ":" })?;
    }
    Ok(())
}
