//! What a user asks for: one grammar for every scheduler.
//!
//! [`Request::from_account`] reads the tokens of a PBS account string, [`Flags`] Slurm's flags,
//! [`Request::from_resource`] OpenPBS's `mps` resource; all three go by the table of `options` and end in the same
//! check of the whole. The text is hostile wherever it arrives: a Slurm user can put any bytes into the variable
//! that root's prolog reads (docs/facts/slurm.md#options).

mod flags;
mod options;
mod values;
mod words;

pub use flags::{Demand, Flags};
pub use options::{Key, Request, Row};
pub use values::{GpuSelector, MemoryLimit, Threads};
pub use words::Wording;

use super::failure::Refusal;
use super::limits::{Invalid, carried_as_text, word};
use super::text::one_line;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Longest text with a token of ours, bytes.
pub const LONGEST: usize = 1024;
/// Most shares of one GPU: the clients that a server takes (docs/facts/mps-control.md#clients).
pub const MOST_REPLICAS: u32 = 48;
/// How much of a user's text a message repeats, characters.
const SHOWN: usize = 60;

/// How a job's GPUs are given to control daemons.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
    /// What [`Mode::from_str`] accepts, in any case, `_` for `-`.
    pub const ALLOWED: &'static str = "true, yes, on, 1, per-node; per-gpu; false, no, off, 0";
}

impl FromStr for Mode {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        match word(text).as_str() {
            "per-node" => Ok(Mode::PerNode),
            "per-gpu" => Ok(Mode::PerGpu),
            other => match values::boolean(other) {
                Ok(true) => Ok(Mode::PerNode),
                Ok(false) => Ok(Mode::Off),
                Err(invalid) => Err(Invalid::new(invalid.why, Self::ALLOWED)),
            },
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Mode::Off => "off",
            Mode::PerNode => "per-node",
            Mode::PerGpu => "per-gpu",
        })
    }
}

impl Request {
    /// A request for `mode` and no limits.
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            ..Self::default()
        }
    }

    /// Whether MPS is asked for at all.
    pub fn is_on(&self) -> bool {
        self.mode != Mode::Off
    }

    /// Reads an account string such as `proj1,MPS=true,MPS_THREADS=25`. `None`: no token is ours.
    ///
    /// Tokens stand between commas, semicolons and blanks. One is ours if it has `=` and its key, in any case, is
    /// `MPS` or `MPS_` and letters; all others are the site's account and are not looked at.
    ///
    /// # Errors
    /// A refusal that names the token, the reason and what is allowed.
    pub fn from_account(account: &str) -> Result<Option<Self>, Refusal> {
        words::from_account(account, account.len())
    }

    /// [`Request::from_account`] for bytes of unknown encoding, as arguments and environments hold them.
    ///
    /// # Errors
    /// As [`Request::from_account`].
    pub fn from_account_bytes(account: &[u8]) -> Result<Option<Self>, Refusal> {
        words::from_account(&String::from_utf8_lossy(account), account.len())
    }

    /// Reads the value of OpenPBS's `mps` resource: `on+threads=25+mem=4G`.
    ///
    /// # Errors
    /// A refusal that names the word as `mps=…`.
    pub fn from_resource(resource: &str) -> Result<Self, Refusal> {
        words::from_resource(resource)
    }

    /// One request out of an account's and a resource's: what either says, and no contradiction.
    ///
    /// # Errors
    /// A refusal that names both words where they differ.
    pub fn merge(account: Self, resource: Self) -> Result<Self, Refusal> {
        for key in Key::ALL {
            if let (Some(one), Some(other)) = (account.value(key), resource.value(key))
                && one != other
            {
                let row = key.row();
                let word = if row.name.is_empty() { "mps" } else { row.name };
                let what = format!("{}={one} in the account", row.token());
                let why = format!("contradicts {word}={other} in the mps resource");
                return Err(Refusal::new(what, why, "the same in both, or only one of them"));
            }
        }
        let mut merged = account;
        merged.fill(&resource);
        merged.check(Wording::Account)?;
        Ok(merged)
    }

    /// The request in the words of OpenPBS's resource: `per-node+threads=25`.
    pub fn in_resource_words(&self) -> String {
        let word = |key: Key| {
            let value = self.value(key)?;
            let name = key.row().name;
            Some(if name.is_empty() {
                value
            } else {
                format!("{name}={value}")
            })
        };
        Key::ALL
            .into_iter()
            .filter_map(word)
            .collect::<Vec<_>>()
            .join("+")
    }

    /// What the options add to the printed plan, one line each.
    pub fn plan_lines(&self) -> impl Iterator<Item = &'static str> {
        Key::ALL.into_iter().filter_map(|key| (key.row().plan)(self))
    }

    /// The rules that bind several words together.
    fn check(&self, source: Wording) -> Result<(), Refusal> {
        let excluded = match (&self.threads, &self.memory) {
            (Some(threads), _) => Some((Key::Threads, threads.to_string())),
            (_, Some(memory)) => Some((Key::Mem, memory.to_string())),
            _ => None,
        };
        if let (Some(replicas), Some((key, value))) = (self.replicas, excluded) {
            let what = source.token(Key::Replicas, Some(&replicas.to_string()));
            let why = format!("excludes {}", source.token(key, Some(&value)));
            let allowed = "replicas alone (threads = 100/N, memory = total/N), or threads and memory";
            return Err(Refusal::new(
                one_line(&what, SHOWN),
                one_line(&why, SHOWN + 10),
                allowed,
            ));
        }
        let length = self.to_string().len();
        if length > LONGEST {
            let why = format!("{length} bytes in their plain form");
            return Err(Refusal::new(
                "the words for MPS",
                why,
                format!("at most {LONGEST} bytes"),
            ));
        }
        Ok(())
    }
}

impl fmt::Display for Request {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, key) in Key::ALL.into_iter().enumerate() {
            if let Some(value) = self.value(key) {
                write!(
                    out,
                    "{}{}={value}",
                    if n == 0 { "" } else { "," },
                    key.row().token()
                )?;
            }
        }
        Ok(())
    }
}

impl FromStr for Request {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let none = || {
            Refusal::new(
                format!("'{}'", one_line(text, SHOWN)),
                "holds no word for MPS",
                "MPS=on,MPS_THREADS=25",
            )
        };
        Self::from_account(text)?.ok_or_else(none)
    }
}

impl TryFrom<String> for Request {
    type Error = Refusal;

    fn try_from(text: String) -> Result<Self, Refusal> {
        text.parse()
    }
}

impl From<Request> for String {
    fn from(request: Request) -> String {
        request.to_string()
    }
}

carried_as_text!(Mode);

#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod tests;
