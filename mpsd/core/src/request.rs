//! What a user asks for: one grammar for every scheduler.
//!
//! [`Request::from_account`] reads the tokens of a PBS account string, [`Request::from_options`] Slurm's flags,
//! [`Request::from_resource`] OpenPBS's `mps` resource; all three end in the same value parsers (`values`) and the
//! same check of the whole. The text is hostile wherever it arrives: a Slurm user can put any bytes into the variable
//! that root's prolog reads (facts: slurm-live, "Options").

mod values;
mod words;

pub use values::{GpuSelector, MemoryLimit, Threads};
pub use words::{Key, Wording};

use super::failure::Refusal;
use super::limits::{Invalid, Priority, carried_as_text, word};
use super::text::one_line;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Longest text with a token of ours, bytes.
pub const LONGEST: usize = 1024;
/// Most shares of one GPU: the clients that a server takes (facts: mps-control, "48 clients").
pub const MOST_REPLICAS: u32 = 48;
/// How much of a user's text a message repeats, characters.
const SHOWN: usize = 60;

/// How a job's GPUs are given to control daemons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Mode {
    /// No MPS, said explicitly.
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
                Some(true) => Ok(Mode::PerNode),
                Some(false) => Ok(Mode::Off),
                None => Err(Invalid::new("unknown word", Self::ALLOWED)),
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

/// A request, checked as far as it can be without knowing the node.
///
/// `Display` gives the canonical account tokens (`MPS=per-node,MPS_THREADS=30:70`), which
/// [`Request::from_account`] reads back to the same value; serde carries that text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Request {
    /// Off, or how the GPUs are given to daemons.
    pub mode: Mode,
    /// Active thread percentage.
    pub threads: Option<Threads>,
    /// Pinned device memory limit of each client.
    pub memory: Option<MemoryLimit>,
    /// Shorthand for 100/N threads and total/N memory; excludes both.
    pub replicas: Option<u32>,
    /// Client priority hint.
    pub priority: Option<Priority>,
    /// Prove the daemon with `mps-probe` before the job starts.
    pub verify: Option<bool>,
}

impl Request {
    /// A request for `mode` and no limits.
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            threads: None,
            memory: None,
            replicas: None,
            priority: None,
            verify: None,
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

    /// Reads flags as Slurm's plugin sees them: `("mps", None)`, `("mps-threads", Some("25"))`. `None`: no flags.
    ///
    /// Lists may use `,` as well as `:`. A flag whose value is optional counts as given without one when the value is
    /// empty or `(null)`: that is what Slurm makes of it on its way (facts: slurm-live, "Options").
    ///
    /// # Errors
    /// A refusal that names the flag.
    pub fn from_options(options: &[(&str, Option<&str>)]) -> Result<Option<Self>, Refusal> {
        words::from_options(options)
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
        let merged = Self {
            mode: values::same("MPS", "mps", account.mode, resource.mode)?,
            threads: values::either("MPS_THREADS", "threads", account.threads, resource.threads)?,
            memory: values::either("MPS_MEM", "mem", account.memory, resource.memory)?,
            replicas: values::either("MPS_REPLICAS", "replicas", account.replicas, resource.replicas)?,
            priority: values::either("MPS_PRIORITY", "priority", account.priority, resource.priority)?,
            verify: values::either("MPS_VERIFY", "verify", account.verify, resource.verify)?,
        };
        merged.check(&Wording::Account)?;
        Ok(merged)
    }

    /// The rules that bind several words together.
    fn check(&self, source: &Wording) -> Result<(), Refusal> {
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
        write!(out, "MPS={}", self.mode)?;
        let limits: [(Key, Option<&dyn fmt::Display>); 4] = [
            (Key::Threads, self.threads.as_ref().map(|value| value as _)),
            (Key::Mem, self.memory.as_ref().map(|value| value as _)),
            (Key::Replicas, self.replicas.as_ref().map(|value| value as _)),
            (Key::Priority, self.priority.as_ref().map(|value| value as _)),
        ];
        for (key, value) in limits {
            if let Some(value) = value {
                write!(out, ",{}={value}", key.account_name())?;
            }
        }
        match self.verify {
            Some(verify) => write!(out, ",MPS_VERIFY={}", if verify { "on" } else { "off" }),
            None => Ok(()),
        }
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
