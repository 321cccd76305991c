//! The values of `mpsd.toml`, each checked where it is read, so that an error points at its line and column.

use crate::limits::{Amount, Invalid, Percent, Priority};
use crate::request::{MOST_REPLICAS, Threads};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use std::fmt;
use std::marker::PhantomData;
use std::path::{Component, Path};
use std::str::FromStr;

/// An absolute path in which `%n` stands for the node's name.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct PathPattern(String);

impl PathPattern {
    /// The path on `node`, a checked name.
    pub(super) fn on(&self, node: &str) -> String {
        self.0.replace("%n", node)
    }
}

impl TryFrom<String> for PathPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let path = Path::new(&text);
        let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
        if !path.is_absolute() || !path.components().all(plain) || text.chars().any(char::is_control) {
            return Err("not an absolute path without '..'".to_owned());
        }
        if text.replace("%n", "").contains('%') {
            return Err("'%' is followed by something else than 'n' (the node's name)".to_owned());
        }
        Ok(Self(text))
    }
}

/// A shared library: a name for the system's loader, or an absolute path as in [`PathPattern`].
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct Library(PathPattern);

impl Library {
    pub(super) fn on(&self, node: &str) -> String {
        self.0.on(node)
    }
}

impl TryFrom<String> for Library {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte);
        if !text.is_empty() && text.bytes().all(good) {
            return Ok(Self(PathPattern(text)));
        }
        PathPattern::try_from(text)
            .map(Self)
            .map_err(|why| format!("{why}, nor a library's name"))
    }
}

/// A whole number from `LEAST` to `MOST`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "i64")]
pub struct Bounded<const LEAST: u32, const MOST: u32>(pub(super) u32);

impl<const LEAST: u32, const MOST: u32> TryFrom<i64> for Bounded<LEAST, MOST> {
    type Error = String;

    fn try_from(number: i64) -> Result<Self, String> {
        let within = u32::try_from(number)
            .ok()
            .filter(|number| (LEAST..=MOST).contains(number));
        within
            .map(Self)
            .ok_or_else(|| format!("{number} is out of range; allowed: {LEAST} to {MOST}"))
    }
}

/// `max_clients`: newer drivers take 60 (documented), none takes more than a few.
pub type Clients = Bounded<1, 1024>;
/// `replicas`.
pub type Replicas = Bounded<1, MOST_REPLICAS>;
/// `deadline_s` and other times that a person waits for, seconds.
pub type Seconds = Bounded<1, 3600>;
/// The window in which failed starts of several users count together, seconds.
pub type Window = Bounded<1, 86_400>;

/// One of a few words.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $word)] $variant,)+
        }
        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(match self { $($name::$variant => $word,)+ })
            }
        }
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
    /// `cuda_visible_devices`
    DeviceNames {
        /// Write UUIDs into `CUDA_VISIBLE_DEVICES`: a confined daemon renumbers its GPUs.
        Uuid = "uuid",
        /// Leave the variable as the scheduler set it.
        Keep = "keep",
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
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub enum CgroupRule {
    /// Found by looking at the node.
    Auto,
    /// No cgroup of our own.
    None,
    /// Below this directory of the cgroup file system.
    Below(PathPattern),
}

impl TryFrom<String> for CgroupRule {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            _ => PathPattern::try_from(text)
                .map(Self::Below)
                .map_err(|why| format!("{why}, nor auto, nor none")),
        }
    }
}

/// What our drains' reasons begin with: short and printable, for schedulers cut and print them.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct Prefix(pub(super) String);

impl TryFrom<String> for Prefix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/-".contains(&byte);
        if (3..=24).contains(&text.len()) && text.bytes().all(good) {
            return Ok(Self(text));
        }
        Err("not a prefix of 3 to 24 letters, digits or any of '._:/-'".to_owned())
    }
}

/// A word that goes into a comparison with what a scheduler says: a feature, a partition, a node.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct Name(pub(super) String);

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let allowed = "letters, digits and any of '._-'";
        let named = !text.is_empty() && text.bytes().all(good);
        if named {
            Ok(Self(text))
        } else {
            Err(format!("not a name; allowed: {allowed}"))
        }
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

impl fmt::Display for Product {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// A value of the request's grammar: `"30:70"`, and for plain numbers `25` and `12.5` without quotes too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worded<T>(pub(super) T);

impl<'de, T: FromStr<Err = Invalid>> Deserialize<'de> for Worded<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WordedVisitor(PhantomData)).map(Self)
    }
}

struct WordedVisitor<T>(PhantomData<T>);

impl<T: FromStr<Err = Invalid>> Visitor<'_> for WordedVisitor<T> {
    type Value = T;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a number or a string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

/// A value as it would be written in the file.
pub(super) trait Written {
    fn written(&self) -> String;
}

macro_rules! written_quoted {
    ($($type:ty => $text:expr),+ $(,)?) => {$(
        impl Written for $type {
            fn written(&self) -> String {
                let text: fn(&$type) -> String = $text;
                format!("\"{}\"", text(self))
            }
        }
    )+};
}

written_quoted! {
    String => String::clone,
    ComputeModeRule => ToString::to_string,
    GpusUnknown => ToString::to_string,
    TooManyTasks => ToString::to_string,
    DeviceNames => ToString::to_string,
    MemoryOverLimit => ToString::to_string,
    LeftoverClients => ToString::to_string,
    UnattachedTasks => ToString::to_string,
    Wait => ToString::to_string,
    Worded<Amount> => |value| value.0.to_string(),
    Worded<Priority> => |value| value.0.to_string(),
    Worded<crate::request::MemoryLimit> => |value| value.0.to_string(),
    Prefix => |value| value.0.clone(),
    Name => |value| value.0.clone(),
    CgroupRule => |value| match value {
        CgroupRule::Auto => "auto".to_owned(),
        CgroupRule::None => "none".to_owned(),
        CgroupRule::Below(path) => path.0.clone(),
    },
}

impl Written for bool {
    fn written(&self) -> String {
        self.to_string()
    }
}

impl<const LEAST: u32, const MOST: u32> Written for Bounded<LEAST, MOST> {
    fn written(&self) -> String {
        self.0.to_string()
    }
}

impl Written for Worded<Percent> {
    fn written(&self) -> String {
        self.0.to_string()
    }
}

impl Written for Worded<Threads> {
    fn written(&self) -> String {
        match &self.0 {
            Threads::Uniform(percent) => percent.to_string(),
            other => format!("\"{other}\""),
        }
    }
}

impl Written for Vec<Name> {
    fn written(&self) -> String {
        let names: Vec<String> = self.iter().map(Written::written).collect();
        format!("[{}]", names.join(", "))
    }
}
