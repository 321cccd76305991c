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
mod tests {
    //! Shares, and what is measured only once.

    use super::*;

    #[test]
    fn shares_are_read_and_divided_as_the_prologue_divides() {
        let of = |text: &str, clients| {
            let share: Share = text.parse().unwrap();
            share
                .of(clients)
                .map(|percent| percent.to_string())
                .unwrap_or_default()
        };
        assert_eq!(of("none", 8), "");
        assert_eq!([of("auto", 1), of("auto", 2), of("auto", 8)], ["", "", "25"]);
        assert_eq!(
            [of("100/n", 1), of("100/N", 3), of("100/n", 16)],
            ["", "33.3", "6.2"]
        );
        assert_eq!([of("25", 1), of("100", 4), of("300/n", 1000)], ["25", "", "1"]);
        for wrong in ["", "all", "0", "101", "0/n", "x/n", "10001/n", "1/m"] {
            assert!(
                wrong
                    .parse::<Share>()
                    .unwrap_err()
                    .to_string()
                    .contains("allowed: none, auto"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_share_that_limits_nothing_is_not_measured_twice() {
        let (none, auto) = (Way::Mps(Share::None), Way::Mps(Share::Auto));
        let of = |clients| Configuration { clients, way: auto };
        let both = [Way::Without, none, auto];
        assert_eq!(of(2).measured_as(&both, 1).way, none);
        assert_eq!(of(3).measured_as(&both, 1).way, auto);
        assert_eq!(of(4).measured_as(&both, 2).way, none, "two on each GPU");
        assert_eq!(
            of(2).measured_as(&[auto], 1).way,
            auto,
            "nobody measures it otherwise"
        );
    }
}
