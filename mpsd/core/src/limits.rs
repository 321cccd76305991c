//! The limits a client of MPS may be given: shares in tenths of a per cent, amounts of device memory.
//!
//! Every value here is parsed once, from text that may be hostile, and printed in one canonical form that the
//! parser accepts again. Nothing is rounded up: a user never gets more than what was asked for.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Why a value was not accepted, before anyone knows which flag, token or configuration key it stood in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}; allowed: {allowed}")]
pub struct Invalid {
    /// The reason, in a few words that quote nothing of the value raw.
    pub why: String,
    /// What would have been accepted.
    pub allowed: &'static str,
}

impl Invalid {
    /// A reason and what is allowed instead.
    pub fn new(why: impl Into<String>, allowed: &'static str) -> Self {
        Self {
            why: why.into(),
            allowed,
        }
    }
}

/// A share from 1 to 100 per cent, kept in tenths: the control daemon prints, and so proves, one decimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Percent(u16);

impl Percent {
    /// What [`Percent::from_str`] accepts.
    pub const ALLOWED: &'static str = "a number from 1 to 100 such as 25, 12.5 or 25%";
    /// The whole GPU.
    pub const WHOLE: Percent = Percent(1000);
    const LEAST: u16 = 10;

    /// From tenths of a per cent, if they are within 10 to 1000.
    pub fn from_tenths(tenths: u16) -> Option<Self> {
        (Self::LEAST..=Self::WHOLE.0)
            .contains(&tenths)
            .then_some(Self(tenths))
    }

    /// Tenths of a per cent: 125 is 12.5 %.
    pub fn tenths(self) -> u16 {
        self.0
    }

    /// 100 / `parts`, rounded down to tenths, at least 1 %. No parts at all count as one.
    pub fn part_of(parts: u32) -> Self {
        Self::clamped(u32::from(Self::WHOLE.0) / parts.max(1))
    }

    /// The share that `auto` gives to each of `tasks` on a GPU: 100 / (tasks / 2), at most 100.
    ///
    /// Twice the even share, as the vendor's guide advises: clients seldom all compute at the same time.
    pub fn auto(tasks: u32) -> Self {
        Self::clamped(2 * u32::from(Self::WHOLE.0) / tasks.max(1))
    }

    fn clamped(tenths: u32) -> Self {
        let most = u32::from(Self::WHOLE.0);
        Self(
            u16::try_from(tenths.min(most))
                .unwrap_or(Self::WHOLE.0)
                .max(Self::LEAST),
        )
    }
}

impl FromStr for Percent {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let decimal = Decimal::parse(text.strip_suffix('%').unwrap_or(text))
            .ok_or_else(|| Invalid::new("not a plain decimal number", Self::ALLOWED))?;
        if decimal.is_above(100) {
            return Err(Invalid::new("above 100", Self::ALLOWED));
        }
        let tenths = u16::try_from(decimal.scaled(10)).ok().and_then(Self::from_tenths);
        tenths.ok_or_else(|| Invalid::new("below 1", Self::ALLOWED))
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % 10 {
            0 => write!(out, "{}", self.0 / 10),
            tenth => write!(out, "{}.{tenth}", self.0 / 10),
        }
    }
}

/// An amount of a GPU's memory: absolute, or a share of that GPU's total.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Amount {
    /// Whole MiB, at least 1: the unit in which limits go to the control daemon.
    Mebibytes(u64),
    /// A share of the total memory of the GPU in question.
    Percent(Percent),
}

impl Amount {
    /// What [`Amount::from_str`] accepts.
    pub const ALLOWED: &'static str =
        "a number with unit M, G or T (binary, also MiB, GiB, TiB) or a share such as 25%";
    /// 1024 TiB: far above any GPU, far below any overflow.
    const MOST_MEBIBYTES: u64 = 1 << 30;

    /// The limit in whole MiB on a GPU with `total_mib` MiB, rounded down, at least 1; none if it is a share of what is not known.
    pub fn mebibytes_of(self, total_mib: Option<u64>) -> Option<u64> {
        match self {
            Amount::Mebibytes(mebibytes) => Some(mebibytes),
            Amount::Percent(share) => {
                let total = total_mib?;
                let part = u128::from(total) * u128::from(share.tenths()) / 1000;
                Some(u64::try_from(part).unwrap_or(total).max(1))
            }
        }
    }
}

impl FromStr for Amount {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        if text.ends_with('%') {
            let share = text
                .parse()
                .map_err(|invalid: Invalid| Invalid::new(invalid.why, Self::ALLOWED))?;
            return Ok(Amount::Percent(share));
        }
        let unit_at = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(unit_at);
        let decimal = Decimal::parse(number)
            .ok_or_else(|| Invalid::new("not a plain decimal number with a unit", Self::ALLOWED))?;
        let factor = unit_factor(number, unit)?;
        let mebibytes = decimal.scaled(factor);
        match mebibytes {
            0 => Err(Invalid::new("less than 1M", Self::ALLOWED)),
            _ if mebibytes > Self::MOST_MEBIBYTES => Err(Invalid::new("above 1024T", Self::ALLOWED)),
            _ => Ok(Amount::Mebibytes(mebibytes)),
        }
    }
}

/// Longest number that a message repeats. Digits.
const SHOWN: usize = 10;

/// MiB in one of `unit`, the unit of `number`. Decimal units (`GB`) are refused, not guessed: the daemon would ignore them silently.
fn unit_factor(number: &str, unit: &str) -> Result<u64, Invalid> {
    match unit.to_ascii_lowercase().as_str() {
        "m" | "mib" => Ok(1),
        "g" | "gib" => Ok(1 << 10),
        "t" | "tib" => Ok(1 << 20),
        "" => Err(Invalid::new("a size needs a unit", Amount::ALLOWED)),
        "mb" | "gb" | "tb" => {
            let why = "decimal units are not accepted";
            let binary = unit[..1].to_ascii_uppercase();
            Err(match number.len() {
                ..=SHOWN => Invalid::new(format!("{why}: write {number}{binary}"), Amount::ALLOWED),
                _ => Invalid::new(why, Amount::ALLOWED),
            })
        }
        _ => Err(Invalid::new("unknown unit", Amount::ALLOWED)),
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Amount::Percent(share) => write!(out, "{share}%"),
            Amount::Mebibytes(mib) if mib % (1 << 20) == 0 => write!(out, "{}T", mib >> 20),
            Amount::Mebibytes(mib) if mib % (1 << 10) == 0 => write!(out, "{}G", mib >> 10),
            Amount::Mebibytes(mib) => write!(out, "{mib}M"),
        }
    }
}

/// The client priority hint of `set_default_client_priority`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, derive_more::Display, Serialize, Deserialize)]
#[display(rename_all = "kebab-case")]
#[serde(try_from = "String", into = "String")]
pub enum Priority {
    /// 0, the vendor's default.
    Normal,
    /// 1: clients of other daemons on the GPU go first.
    BelowNormal,
}

impl Priority {
    /// What [`Priority::from_str`] accepts, in any case, `_` for `-`.
    pub const ALLOWED: &'static str = "normal, below-normal";

    /// The number that the control daemon takes (docs/facts/mps-control.md#the-command-session).
    pub fn number(self) -> u8 {
        match self {
            Priority::Normal => 0,
            Priority::BelowNormal => 1,
        }
    }
}

impl FromStr for Priority {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        match word(text).as_str() {
            "normal" => Ok(Priority::Normal),
            "below-normal" => Ok(Priority::BelowNormal),
            _ => Err(Invalid::new("unknown word", Self::ALLOWED)),
        }
    }
}

/// A word of the grammar as it is compared: lower case, `-` for `_`.
pub(super) fn word(text: &str) -> String {
    text.to_ascii_lowercase().replace('_', "-")
}

/// A non-negative decimal number as written: no sign, no exponent, digits on both sides of a point.
struct Decimal {
    whole: u64,
    /// The first nine decimals as a number of 10⁻⁹; what follows cannot change a result rounded down to MiB of
    /// a TiB or to tenths, except through `rest`.
    nanos: u64,
    /// Whether any decimal is not zero, the ones beyond the ninth included.
    rest: bool,
}

impl Decimal {
    fn parse(text: &str) -> Option<Self> {
        let (whole, decimals) = match text.split_once('.') {
            Some((whole, decimals)) => (whole, decimals),
            None => (text, "0"),
        };
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(decimals) {
            return None;
        }
        let nanos = decimals.bytes().chain(std::iter::repeat(b'0')).take(9);
        Some(Self {
            // More digits than a u64 holds are still a number, only a large one: the range check refuses it.
            whole: whole.parse().unwrap_or(u64::MAX),
            nanos: nanos.fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')),
            rest: decimals.bytes().any(|digit| digit != b'0'),
        })
    }

    fn is_above(&self, limit: u64) -> bool {
        self.whole > limit || (self.whole == limit && self.rest)
    }

    /// The number times `factor`, rounded down, at most `u64::MAX`.
    fn scaled(&self, factor: u64) -> u64 {
        let decimals = u128::from(self.nanos) * u128::from(factor) / 1_000_000_000;
        let scaled = u128::from(self.whole) * u128::from(factor) + decimals;
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }
}

/// Serde carries these values as their canonical text, so that what is read back is checked again.
macro_rules! carried_as_text {
    ($($type:ty),+) => {$(
        impl TryFrom<String> for $type {
            type Error = <Self as ::std::str::FromStr>::Err;
            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }
        impl From<$type> for String {
            fn from(value: $type) -> String {
                value.to_string()
            }
        }
    )+};
}
pub(crate) use carried_as_text;
carried_as_text!(Percent, Amount, Priority);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_read_in_tenths_and_never_rounded_up() {
        let cases = [
            ("1", 10, "1"),
            ("1.0", 10, "1"),
            ("12.5", 125, "12.5"),
            ("12.59", 125, "12.5"),
            ("99.99999999999999999", 999, "99.9"),
            ("100", 1000, "100"),
            ("100.000", 1000, "100"),
            ("025", 250, "25"),
        ];
        for (text, tenths, shown) in cases {
            let percent: Percent = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(
                (percent.tenths(), percent.to_string().as_str()),
                (tenths, shown),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_not_a_share_says_why() {
        let cases = [
            ("0", "below 1"),
            ("0.99", "below 1"),
            ("101", "above 100"),
            ("100.05", "above 100"),
            ("100.00000000000000001", "above 100"),
            ("99999999999999999999999999", "above 100"),
            ("abc", "not a plain decimal number"),
            ("NaN", "not a plain decimal number"),
            ("inf", "not a plain decimal number"),
            ("1e1", "not a plain decimal number"),
            ("+25", "not a plain decimal number"),
            ("-25", "not a plain decimal number"),
            ("25%%", "not a plain decimal number"),
            ("%", "not a plain decimal number"),
            ("0%", "below 1"),
            ("25.", "not a plain decimal number"),
            (".5", "not a plain decimal number"),
            ("1.2.3", "not a plain decimal number"),
            (" 25", "not a plain decimal number"),
            ("", "not a plain decimal number"),
            ("٢٥", "not a plain decimal number"),
        ];
        for (text, why) in cases {
            assert_eq!(text.parse::<Percent>().unwrap_err().why, why, "{text}");
        }
    }

    #[test]
    fn a_share_may_be_written_with_its_sign() {
        for (text, tenths) in [("25%", 250), ("12.5%", 125), ("100%", 1000)] {
            assert_eq!(text.parse(), Ok(Percent(tenths)), "{text}");
        }
    }

    #[test]
    fn an_amount_is_binary_and_whole_mebibytes() {
        let cases = [
            ("4G", 4096, "4G"),
            ("4GiB", 4096, "4G"),
            ("4gib", 4096, "4G"),
            ("900M", 900, "900M"),
            ("900mib", 900, "900M"),
            ("1.5G", 1536, "1536M"),
            ("0.0015G", 1, "1M"),
            ("2048M", 2048, "2G"),
            ("1T", 1 << 20, "1T"),
            ("1024T", 1 << 30, "1024T"),
        ];
        for (text, mebibytes, shown) in cases {
            let amount: Amount = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(
                (amount, amount.to_string().as_str()),
                (Amount::Mebibytes(mebibytes), shown),
                "{text}"
            );
        }
        assert_eq!("25%".parse(), Ok(Amount::Percent(Percent(250))));
    }

    #[test]
    fn what_is_not_an_amount_says_why() {
        let cases = [
            ("4", "a size needs a unit"),
            ("0G", "less than 1M"),
            ("0.5M", "less than 1M"),
            ("3X", "unknown unit"),
            ("3K", "unknown unit"),
            ("2GB", "decimal units are not accepted: write 2G"),
            ("4gb", "decimal units are not accepted: write 4G"),
            ("1.5mb", "decimal units are not accepted: write 1.5M"),
            ("0000000000004GB", "decimal units are not accepted"),
            ("25%%", "not a plain decimal number"),
            ("1025T", "above 1024T"),
            ("99999999999999999999T", "above 1024T"),
            ("G", "not a plain decimal number with a unit"),
            ("-4G", "not a plain decimal number with a unit"),
            ("", "not a plain decimal number with a unit"),
            ("4 G", "unknown unit"),
            ("0%", "below 1"),
            ("101%", "above 100"),
        ];
        for (text, why) in cases {
            assert_eq!(text.parse::<Amount>().unwrap_err().why, why, "{text}");
        }
    }

    #[test]
    fn shares_of_a_gpu() {
        assert_eq!(Percent::part_of(3), Percent(333));
        assert_eq!(Percent::part_of(48), Percent(20));
        assert_eq!(Percent::part_of(5000), Percent(10));
        assert_eq!(Percent::part_of(0), Percent::WHOLE);
        assert_eq!(Percent::auto(1), Percent::WHOLE);
        assert_eq!(Percent::auto(2), Percent::WHOLE);
        assert_eq!(Percent::auto(8), Percent(250));
        assert_eq!(Percent::auto(3), Percent(666));
        assert_eq!(Amount::Percent(Percent(333)).mebibytes_of(Some(1000)), Some(333));
        assert_eq!(Amount::Percent(Percent(10)).mebibytes_of(Some(10)), Some(1));
        assert_eq!(
            Amount::Percent(Percent::WHOLE).mebibytes_of(Some(u64::MAX)),
            Some(u64::MAX)
        );
        assert_eq!(Amount::Percent(Percent::WHOLE).mebibytes_of(None), None);
        for total in [Some(10), None] {
            assert_eq!(Amount::Mebibytes(900).mebibytes_of(total), Some(900));
        }
    }

    #[test]
    fn every_share_and_amount_survives_its_own_text() {
        for tenths in 10..=1000 {
            let percent = Percent::from_tenths(tenths).unwrap();
            assert_eq!(percent.to_string().parse(), Ok(percent));
            assert_eq!(
                Amount::Percent(percent).to_string().parse(),
                Ok(Amount::Percent(percent))
            );
        }
        for shift in 0..=30 {
            for mebibytes in [1u64 << shift, (1 << shift) + 1, (1 << shift) - 1] {
                let amount = Amount::Mebibytes(mebibytes.clamp(1, 1 << 30));
                assert_eq!(amount.to_string().parse(), Ok(amount));
            }
        }
    }

    #[test]
    fn a_priority_has_two_words_and_the_vendors_number() {
        assert_eq!("normal".parse(), Ok(Priority::Normal));
        assert_eq!("Below_Normal".parse(), Ok(Priority::BelowNormal));
        assert_eq!(
            (Priority::Normal.number(), Priority::BelowNormal.number()),
            (0, 1)
        );
        for word in ["high", "0", "1", "belownormal", ""] {
            assert_eq!(
                word.parse::<Priority>().unwrap_err().why,
                "unknown word",
                "{word}"
            );
        }
    }
}
