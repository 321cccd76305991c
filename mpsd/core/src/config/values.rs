//! The values of `mpsd.toml`, each checked where it is read, so that an error points at its line and column.

use super::error::Wrong;
use crate::bind::{Bind, DeviceNames};
use crate::limits::{Amount, Invalid, Percent, Priority};
use crate::request::{MemoryLimit, Threads};
use serde::de::{Deserialize, IntoDeserializer as _};
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use toml::Spanned;
use toml::de::DeValue;

/// The value of a key, and the name of the node that it is read for.
#[derive(Debug)]
pub struct Given<'a> {
    pub(super) value: &'a Spanned<DeValue<'a>>,
    pub(super) node: &'a str,
}

/// The type of a key's value, with its usual way to be read.
pub(super) trait Value: Sized {
    fn read(given: &Given<'_>) -> Result<Self, Wrong>;
    /// As it would be written in the file; `None`: not set.
    fn written(&self) -> Option<String>;
}

impl Given<'_> {
    fn get<T: for<'de> Deserialize<'de>>(&self) -> Result<T, Wrong> {
        let value = self.value.clone();
        let span = value.span();
        T::deserialize(value.into_deserializer()).map_err(|error| Wrong::toml(&error, span))
    }

    fn checked<T>(&self, check: impl FnOnce(String) -> Result<T, String>) -> Result<T, Wrong> {
        check(self.get()?).map_err(|why| Wrong::at(self.value.span(), why))
    }

    /// A path on this node.
    fn path(&self) -> Result<PathBuf, Wrong> {
        self.checked(|text| on_node(&text, self.node).map(PathBuf::from))
    }

    /// A value of the request's grammar: `"30:70"`, and for plain numbers `25` and `12.5` without quotes too.
    fn worded<T: FromStr<Err = Invalid>>(&self) -> Result<T, Wrong> {
        let text = match self.value.get_ref() {
            DeValue::Integer(number) => number.to_string(),
            DeValue::Float(number) => number.to_string(),
            _ => self.get()?,
        };
        let parsed = text.parse();
        parsed.map_err(|invalid: Invalid| Wrong::at(self.value.span(), invalid.to_string()))
    }

    /// A whole number.
    pub(super) fn whole<const LEAST: u32, const MOST: u32, T: From<u32>>(&self) -> Result<T, Wrong> {
        let number: i64 = self.get()?;
        let within = u32::try_from(number)
            .ok()
            .filter(|number| (LEAST..=MOST).contains(number));
        let why = || format!("{number} is out of range; allowed: {LEAST} to {MOST}");
        within
            .map(T::from)
            .ok_or_else(|| Wrong::at(self.value.span(), why()))
    }

    /// From a second to `MOST`.
    pub(super) fn seconds<const MOST: u32>(&self) -> Result<Duration, Wrong> {
        self.whole::<1, MOST, u64>().map(Duration::from_secs)
    }

    /// A shared library: a name for the system's loader, or an absolute path.
    pub(super) fn library(&self) -> Result<String, Wrong> {
        self.checked(|text| {
            if is_made_of(&text, b"._+-") {
                return Ok(text);
            }
            on_node(&text, self.node).map_err(|why| format!("{why}, nor a library's name"))
        })
    }

    /// What our drains' reasons begin with: short and printable, for schedulers cut and print them.
    pub(super) fn prefix(&self) -> Result<String, Wrong> {
        self.checked(
            |text| match (3..=24).contains(&text.len()) && is_made_of(&text, b"._:/-") {
                true => Ok(text),
                false => Err("not a prefix of 3 to 24 letters, digits or any of '._:/-'".to_owned()),
            },
        )
    }

    /// A word that goes into a comparison with what a scheduler says: a feature, a partition, a node.
    fn name(&self) -> Result<String, Wrong> {
        self.checked(|text| match is_made_of(&text, b"._-") {
            true => Ok(text),
            false => Err("not a name; allowed: letters, digits and any of '._-'".to_owned()),
        })
    }

    /// A list of names.
    fn names(&self) -> Result<Vec<String>, Wrong> {
        let DeValue::Array(list) = self.value.get_ref() else {
            return self.get();
        };
        let node = self.node;
        list.iter().map(|value| Given { value, node }.name()).collect()
    }
}

fn is_made_of(text: &str, others: &[u8]) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || others.contains(&byte);
    !text.is_empty() && text.bytes().all(good)
}

/// An absolute path in which `%n` stands for the node's name.
fn on_node(text: &str, node: &str) -> Result<String, String> {
    let path = Path::new(text);
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    if !path.is_absolute() || !path.components().all(plain) || text.chars().any(char::is_control) {
        return Err("not an absolute path without '..'".to_owned());
    }
    if text.replace("%n", "").contains('%') {
        return Err("'%' is followed by something else than 'n' (the node's name)".to_owned());
    }
    Ok(text.replace("%n", node))
}

/// `Type: how it is read, how it is written;`
macro_rules! values {
    ($($type:ty: $read:expr, $written:expr;)+) => {$(
        impl Value for $type {
            fn read(given: &Given<'_>) -> Result<Self, Wrong> {
                $read(given)
            }
            fn written(&self) -> Option<String> {
                let written: fn(&Self) -> Option<String> = $written;
                written(self)
            }
        }
    )+};
}

/// One of a few words.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $word)] $variant,)+
        }
        values! { $name: Given::get, |word| quoted(match word { $($name::$variant => $word,)+ }); }
    };
}

words! {
    /// `compute_mode`
    ComputeModeRule {
        /// Set EXCLUSIVE_PROCESS where the job alone is proved to hold the GPU.
        Exclusive = "exclusive",
        /// Leave every compute mode as it is.
        Keep = "keep",
    }
}
words! {
    /// `gpus_unknown`: what a job gets whose GPUs the scheduler does not tell.
    GpusUnknown {
        /// A refusal.
        Refuse = "refuse",
        /// All GPUs of the node, if the scheduler proves that the node is the job's alone; else a refusal.
        WholeNodeIfExclusive = "whole-node-if-exclusive",
    }
}
words! {
    /// `too_many_tasks`: more tasks on a GPU than it takes clients.
    TooManyTasks {
        /// Say so and go on: not every task is a client.
        Warn = "warn",
        /// A refusal.
        Refuse = "refuse",
    }
}
words! {
    /// `leftover_clients`: a client of the job that is still on its GPU after `terminate_client`.
    LeftoverClients {
        /// Log it.
        Report = "report",
        /// Log it, and SIGKILL it if root proves that it belongs to the job.
        Kill = "kill",
    }
}
words! {
    /// `memory_over_limit`: a client that holds more memory than its limit; a client can void the vendor's own limit.
    MemoryOverLimit {
        /// Nothing is looked at.
        Ignore = "ignore",
        /// A line in the job's log.
        Log = "log",
        /// A line in the job's log, and `terminate_client`.
        Terminate = "terminate",
    }
}
words! {
    /// `pbs.unattached_tasks`: a job whose TM tasks nothing of ours attaches to its MPS.
    UnattachedTasks {
        /// A refusal.
        Refuse = "refuse",
        /// A line in the job's own error file.
        Warn = "warn",
    }
}
words! {
    /// `slurm.wait`: who waits for the proof that a job's MPS is ready.
    Wait {
        /// The task, before it starts: srun does not wait longer for its prolog than it must.
        Task = "task",
        /// The prolog.
        Prolog = "prolog",
    }
}

/// `cgroup`: where the daemons live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cgroup {
    /// Found by looking at the node.
    Auto,
    /// None of our own.
    None,
    /// Below this directory of the cgroup file system.
    Below(PathBuf),
}

impl Cgroup {
    fn read(given: &Given<'_>) -> Result<Self, Wrong> {
        given.checked(|text| match text.as_str() {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            _ => match on_node(&text, given.node) {
                Ok(path) => Ok(Self::Below(path.into())),
                Err(why) => Err(format!("{why}, nor auto, nor none")),
            },
        })
    }
}

/// A GPU product as NVML names it (`NVIDIA H200`), in any case; `*` at the end stands for the rest.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct Product(String);

impl Product {
    pub(super) fn is(&self, product: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(start) => product
                .get(..start.len())
                .is_some_and(|head| head.eq_ignore_ascii_case(start)),
            None => product.eq_ignore_ascii_case(&self.0),
        }
    }
}

impl TryFrom<String> for Product {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let stars = text.matches('*').count();
        if text.is_empty() || stars > 1 || (stars == 1 && !text.ends_with('*')) {
            return Err("not a product's name; allowed: 'NVIDIA H200', 'NVIDIA H100*'".to_owned());
        }
        Ok(Self(text))
    }
}

values! {
    bool: Given::get, |value| Some(value.to_string());
    u32: Given::whole::<0, { u32::MAX }, _>, |number| Some(number.to_string());
    Duration: Given::seconds::<{ u32::MAX }>, |time| Some(time.as_secs().to_string());
    String: Given::name, |text| quoted(text);
    PathBuf: Given::path, |path| quoted(&path.to_string_lossy());
    Vec<String>: Given::names, |names| {
        let names: Vec<String> = names.iter().filter_map(|name| quoted(name)).collect();
        Some(format!("[{}]", names.join(", ")))
    };
    Cgroup: Cgroup::read, |rule| match rule {
        Cgroup::Auto => quoted("auto"),
        Cgroup::None => quoted("none"),
        Cgroup::Below(path) => path.written(),
    };
    Percent: Given::worded, |percent| Some(percent.to_string());
    Amount: Given::worded, |amount| quoted(&amount.to_string());
    Priority: Given::worded, |priority| quoted(&priority.to_string());
    Bind: Given::worded, |bind| quoted(&bind.to_string());
    DeviceNames: Given::worded, |names| quoted(&names.to_string());
    MemoryLimit: Given::worded, |limit| quoted(&limit.to_string());
    Threads: Given::worded, |threads| match threads {
        Threads::Uniform(percent) => percent.written(),
        other => quoted(&other.to_string()),
    };
}

impl<T: Value> Value for Option<T> {
    fn read(given: &Given<'_>) -> Result<Self, Wrong> {
        T::read(given).map(Some)
    }

    fn written(&self) -> Option<String> {
        self.as_ref()?.written()
    }
}

fn quoted(text: &str) -> Option<String> {
    Some(format!("\"{text}\""))
}
