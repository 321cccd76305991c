//! The three ways in which the words arrive, and the one way in which they are put together.

use super::values::{self, MemoryLimit, Threads};
use super::{LONGEST, Mode, Request, SHOWN};
use crate::failure::Refusal;
use crate::limits::{Invalid, Priority};
use crate::text::one_line;

/// The keys of the grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// `MPS`
    Mode,
    /// `MPS_THREADS`
    Threads,
    /// `MPS_MEM`
    Mem,
    /// `MPS_REPLICAS`
    Replicas,
    /// `MPS_PRIORITY`
    Priority,
    /// `MPS_VERIFY`
    Verify,
}

impl Key {
    const ALL: [Key; 6] = [
        Key::Mode,
        Key::Threads,
        Key::Mem,
        Key::Replicas,
        Key::Priority,
        Key::Verify,
    ];

    /// As an account token spells it.
    pub(super) fn account_name(self) -> &'static str {
        match self {
            Key::Mode => "MPS",
            Key::Threads => "MPS_THREADS",
            Key::Mem => "MPS_MEM",
            Key::Replicas => "MPS_REPLICAS",
            Key::Priority => "MPS_PRIORITY",
            Key::Verify => "MPS_VERIFY",
        }
    }

    /// As Slurm's flags and the keys of the resource spell it, without a prefix.
    fn short_name(self) -> &'static str {
        match self {
            Key::Mode => "mps",
            Key::Threads => "threads",
            Key::Mem => "mem",
            Key::Replicas => "replicas",
            Key::Priority => "priority",
            Key::Verify => "verify",
        }
    }

    /// The key that `name` spells, in any case, `-` for `_`.
    fn named(name: &str) -> Option<Self> {
        let name = name.to_ascii_uppercase().replace('-', "_");
        Self::ALL.into_iter().find(|key| key.account_name() == name)
    }
}

/// How a user wrote the words, so that a message can name them as the user knows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wording {
    /// Account tokens: `MPS_THREADS=25`.
    Account,
    /// Slurm's flags: `--mps-threads=25`.
    Options,
    /// OpenPBS's resource: `mps=threads=25`.
    Resource,
}

impl Wording {
    /// A word as the user knows it.
    pub fn token(&self, key: Key, value: Option<&str>) -> String {
        let name = match (self, key) {
            (Wording::Account, _) => key.account_name().to_owned(),
            (Wording::Options, Key::Mode) => "--mps".to_owned(),
            (Wording::Options, _) => format!("--mps-{}", key.short_name()),
            (Wording::Resource, Key::Mode) => "mps".to_owned(),
            (Wording::Resource, _) => format!("mps={}", key.short_name()),
        };
        match value {
            Some(value) => format!("{name}={value}"),
            None => name,
        }
    }

    fn keys(&self) -> String {
        Key::ALL.map(|key| self.token(key, None)).join(", ")
    }

    /// How to ask for MPS at all.
    fn switch(&self) -> &'static str {
        match self {
            Wording::Account => "MPS=on beside it",
            Wording::Options => "--mps beside it",
            Wording::Resource => "mps=on+... with it",
        }
    }

    fn refuse(&self, shown: &str, why: &str, allowed: impl Into<String>) -> Refusal {
        Refusal::new(one_line(shown, SHOWN), why, allowed)
    }
}

pub(super) fn from_account(account: &str, bytes: usize) -> Result<Option<Request>, Refusal> {
    let source = &Wording::Account;
    let ours: Vec<(&str, &str)> = account
        .split(|c: char| c == ',' || c == ';' || c.is_ascii_whitespace())
        .filter_map(|token| token.split_once('='))
        .filter(|(key, _)| is_ours(key))
        .collect();
    let Some((first, _)) = ours.first() else {
        return Ok(None);
    };
    refuse_if_long(&format!("the account with {}", one_line(first, SHOWN)), bytes)?;
    let mut words = Words::default();
    for (name, value) in ours {
        let key = Key::named(name)
            .ok_or_else(|| source.refuse(&format!("{name}={value}"), "unknown key", source.keys()))?;
        words.take(source, key, name, Some(value))?;
    }
    words.request(source).map(Some)
}

/// `MPS`, or `MPS_` and letters, in any case: all else belongs to the site.
fn is_ours(key: &str) -> bool {
    let key = key.to_ascii_uppercase();
    let letters = |rest: &str| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphabetic());
    key == "MPS" || key.strip_prefix("MPS_").is_some_and(letters)
}

pub(super) fn from_options(options: &[(&str, Option<&str>)]) -> Result<Option<Request>, Refusal> {
    let source = &Wording::Options;
    let bytes = options
        .iter()
        .map(|(name, value)| name.len() + value.map_or(0, str::len))
        .sum();
    refuse_if_long("the --mps flags", bytes)?;
    let mut words = Words::default();
    for (name, value) in options {
        let shown = format!("--{name}");
        let key = Key::named(name).ok_or_else(|| source.refuse(&shown, "unknown flag", source.keys()))?;
        let value = value.map(|value| match key {
            Key::Threads | Key::Mem => value.replace(',', ":"),
            _ => value.to_owned(),
        });
        let optional = matches!(key, Key::Mode | Key::Verify);
        let value = value.filter(|value| !(optional && matches!(value.as_str(), "" | "(null)")));
        words.take(source, key, &shown, value.as_deref())?;
    }
    if options.is_empty() {
        Ok(None)
    } else {
        words.request(source).map(Some)
    }
}

pub(super) fn from_resource(resource: &str) -> Result<Request, Refusal> {
    let source = &Wording::Resource;
    refuse_if_long("the mps resource", resource.len())?;
    let mut words = Words::default();
    for word in resource.split('+') {
        let Some((name, value)) = word.split_once('=') else {
            words.take(source, Key::Mode, "mps", Some(word))?;
            continue;
        };
        let key = Key::named(name).or_else(|| Key::named(&format!("mps-{name}")));
        let shown = format!("mps={name}");
        let key =
            key.ok_or_else(|| source.refuse(&format!("{shown}={value}"), "unknown key", source.keys()))?;
        words.take(source, key, &shown, Some(value))?;
    }
    words.request(source)
}

fn refuse_if_long(what: &str, bytes: usize) -> Result<(), Refusal> {
    if bytes <= LONGEST {
        return Ok(());
    }
    Err(Refusal::new(
        what,
        format!("{bytes} bytes long"),
        format!("at most {LONGEST} bytes"),
    ))
}

/// The words seen so far.
#[derive(Default)]
struct Words {
    mode: Option<Mode>,
    threads: Option<Threads>,
    memory: Option<MemoryLimit>,
    replicas: Option<u32>,
    priority: Option<Priority>,
    verify: Option<bool>,
    /// The first word that needs MPS to be asked for, as the user wrote it.
    dependent: Option<String>,
}

impl Words {
    /// Takes one word; `name` is its key as the user wrote it, `None` a flag without its value.
    fn take(&mut self, source: &Wording, key: Key, name: &str, value: Option<&str>) -> Result<(), Refusal> {
        let shown = value.map_or_else(|| name.to_owned(), |value| format!("{name}={value}"));
        if key != Key::Mode && self.dependent.is_none() {
            self.dependent = Some(shown.clone());
        }
        let consistent = match key {
            Key::Mode => keep(&mut self.mode, value.map_or(Ok(Mode::PerNode), str::parse)),
            Key::Verify => keep(&mut self.verify, value.map_or(Ok(true), verify)),
            Key::Threads => keep(
                &mut self.threads,
                needed(value, Threads::ALLOWED).and_then(str::parse),
            ),
            Key::Mem => keep(
                &mut self.memory,
                needed(value, MemoryLimit::ALLOWED).and_then(str::parse),
            ),
            Key::Priority => keep(
                &mut self.priority,
                needed(value, Priority::ALLOWED).and_then(str::parse),
            ),
            Key::Replicas => keep(
                &mut self.replicas,
                needed(value, values::REPLICAS).and_then(values::replicas),
            ),
        };
        match consistent {
            Ok(true) => Ok(()),
            Ok(false) => Err(source.refuse(&shown, "given twice with different values", "one value")),
            Err(invalid) => Err(source.refuse(&shown, &invalid.why, invalid.allowed)),
        }
    }

    fn request(self, source: &Wording) -> Result<Request, Refusal> {
        let Some(mode) = self.mode else {
            let word = self.dependent.unwrap_or_default();
            return Err(source.refuse(&word, "MPS itself is not asked for", source.switch()));
        };
        let request = Request {
            mode,
            threads: self.threads,
            memory: self.memory,
            replicas: self.replicas,
            priority: self.priority,
            verify: self.verify,
        };
        request.check(source)?;
        Ok(request)
    }
}

/// Puts a value into its place; false if another one stands there.
fn keep<T: PartialEq + Clone>(place: &mut Option<T>, value: Result<T, Invalid>) -> Result<bool, Invalid> {
    let value = value?;
    Ok(*place.get_or_insert(value.clone()) == value)
}

fn needed<'a>(value: Option<&'a str>, allowed: &'static str) -> Result<&'a str, Invalid> {
    value.ok_or_else(|| Invalid::new("needs a value", allowed))
}

fn verify(text: &str) -> Result<bool, Invalid> {
    values::boolean(text).ok_or_else(|| Invalid::new("unknown word", values::BOOLEAN))
}
