//! What is measured: how many clients, under MPS with which share of a GPU's threads, or without MPS.

use mpsd_core::limits::{Invalid, Percent};
use std::fmt;
use std::str::FromStr;

/// The thread percentage of each client, from how many there are on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Share {
    /// No limit.
    None,
    /// 200/n, as `--mps-threads=auto`.
    Auto,
    /// K/n.
    Of(u32),
    /// The same for any number.
    Fixed(Percent),
}

impl Share {
    const ALLOWED: &'static str = "none, auto, a number from 1 to 100, or K/n such as 100/n";
    /// Largest K of K/n.
    const MOST: u32 = 10_000;

    /// What each of `clients` on one GPU gets; `None`: no limit.
    pub fn of(self, clients: u32) -> Option<Percent> {
        let tenths = |k: u32| (10 * k / clients.max(1)).clamp(10, 1000);
        let share = match self {
            Self::None => return None,
            Self::Auto => Percent::auto(clients),
            Self::Of(k) => Percent::from_tenths(u16::try_from(tenths(k)).ok()?)?,
            Self::Fixed(percent) => percent,
        };
        (share != Percent::WHOLE).then_some(share)
    }
}

impl FromStr for Share {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let invalid = |why: &str| Invalid::new(why, Self::ALLOWED);
        match text.trim().to_ascii_lowercase().as_str() {
            "none" => Ok(Self::None),
            "auto" => Ok(Self::Auto),
            other => match other.strip_suffix("/n") {
                Some(k) => k
                    .parse()
                    .ok()
                    .filter(|k| (1..=Self::MOST).contains(k))
                    .map(Self::Of)
                    .ok_or_else(|| invalid("K is no whole number from 1 to 10000")),
                None => other
                    .parse()
                    .map(Self::Fixed)
                    .map_err(|wrong: Invalid| invalid(&wrong.why)),
            },
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => write!(out, "none"),
            Self::Auto => write!(out, "auto"),
            Self::Of(k) => write!(out, "{k}/n"),
            Self::Fixed(percent) => write!(out, "{percent}"),
        }
    }
}

/// How clients come to the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Way {
    /// Without MPS: they take turns.
    Without,
    /// Through the job's MPS.
    Mps(Share),
}

impl fmt::Display for Way {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Without => write!(out, "without MPS"),
            Self::Mps(Share::None) => write!(out, "MPS"),
            Self::Mps(share) => write!(out, "MPS, {share}"),
        }
    }
}

/// One thing to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Configuration {
    /// Copies of the command at once.
    pub clients: u32,
    /// How they come to the GPU.
    pub way: Way,
}

impl Configuration {
    /// What stands for it: a share that limits nothing at this number of clients is no limit, if that is measured anyway.
    pub fn measured_as(self, ways: &[Way], gpus: u32) -> Self {
        let none = Way::Mps(Share::None);
        match self.way {
            Way::Mps(share)
                if share.of(self.clients.div_ceil(gpus.max(1))).is_none() && ways.contains(&none) =>
            {
                Self { way: none, ..self }
            }
            _ => self,
        }
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.clients == 1 { "" } else { "s" };
        write!(out, "{} client{plural}, {}", self.clients, self.way)
    }
}

#[cfg(test)]
mod tests;
