//! The part of a GPU's threads that each of several clients has.

use mpsd_core::limits::{Invalid, Percent};
use std::fmt;
use std::str::FromStr;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Share {
    None,
    /// 200/n, as `--mps-threads=auto`.
    Auto,
    Of(u32),
    Fixed(Percent),
}

impl Share {
    const ALLOWED: &'static str = "none, auto, a number from 1 to 100, or K/n such as 100/n";
    const MOST: u32 = 10_000;

    /// What each of `clients` on one GPU gets; `None`: no limit.
    pub fn of(self, clients: u32) -> Option<Percent> {
        let tenths = |k: u32| (10 * k / clients.max(1)).clamp(10, 1000);
        let share = match self {
            Self::None => return None,
            Self::Auto => Percent::auto(1, clients.into()),
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
            other => match other.strip_suffix("/n").map(str::parse) {
                Some(Ok(k)) if (1..=Self::MOST).contains(&k) => Ok(Self::Of(k)),
                Some(_) => Err(invalid("K is no whole number from 1 to 10000")),
                None => {
                    let percent = other.parse().map(Self::Fixed);
                    percent.map_err(|wrong: Invalid| invalid(&wrong.why))
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_and_divided_as_the_prologue_divides() {
        let of = |text: &str, clients| {
            let share = text.parse::<Share>().unwrap().of(clients);
            share.map(|percent| percent.to_string()).unwrap_or_default()
        };
        for (text, clients, percent) in [
            ("none", 8, ""),
            ("auto", 1, ""),
            ("auto", 2, ""),
            ("auto", 8, "25"),
            ("100/n", 1, ""),
            ("100/N", 3, "33.3"),
            ("100/n", 16, "6.2"),
            ("25", 1, "25"),
            ("100", 4, ""),
            ("300/n", 1000, "1"),
        ] {
            assert_eq!(of(text, clients), percent, "{text} of {clients}");
        }
        for wrong in ["", "all", "0", "101", "0/n", "x/n", "10001/n", "1/m"] {
            let error = wrong.parse::<Share>().unwrap_err().to_string();
            assert!(error.contains("allowed: none, auto"), "{wrong}: {error}");
        }
    }
}
