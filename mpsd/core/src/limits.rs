//! The limits of an MPS client. Each is parsed once, from text that may be hostile, and printed in
//! a form that parses again. Users never get more than they asked for: values are rounded down, but
//! never to 0.

use crate::text::is_digits;
use std::fmt;
use std::str::FromStr;

/// The parser does not know in which flag, token or key the value stood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}; allowed: {allowed}")]
pub struct Invalid {
    /// The reason in a few words, without raw text of the value.
    pub why: String,
    pub allowed: &'static str,
}

impl Invalid {
    pub fn new(why: impl Into<String>, allowed: &'static str) -> Self {
        let why = why.into();
        Self { why, allowed }
    }

    pub(crate) fn within(self, allowed: &'static str) -> Self {
        Self { allowed, ..self }
    }
}

/// From 1 to 100, in tenths: the control daemon prints, and so proves, one decimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Percent(u16);

impl Percent {
    pub const ALLOWED: &'static str = "a number from 1 to 100 such as 25, 12.5 or 25%";
    pub const WHOLE: Percent = Percent(1000);
    const LEAST: u16 = 10;

    pub fn from_tenths(tenths: u16) -> Option<Self> {
        let range = Self::LEAST..=Self::WHOLE.0;
        range.contains(&tenths).then_some(Self(tenths))
    }

    /// Tenths of a per cent: 125 is 12.5 %.
    pub fn tenths(self) -> u16 {
        self.0
    }

    /// What `auto` gives for `own` of `all` parts of a GPU: twice that, as NVIDIA's guide advises.
    pub fn auto(own: u64, all: u64) -> Self {
        Self::of(2 * own, all)
    }

    /// `own` of `all` parts, rounded down to tenths, 1 to 100 %. No parts at all count as one.
    pub fn of(own: u64, all: u64) -> Self {
        let tenths = u64::from(Self::WHOLE.0) * own / all.max(1);
        let tenths = u16::try_from(tenths).unwrap_or(u16::MAX);
        Self(tenths.clamp(Self::LEAST, Self::WHOLE.0))
    }
}

impl FromStr for Percent {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let (billionths, is_cut) = decimal(text.strip_suffix('%').unwrap_or(text))
            .ok_or_else(|| Invalid::new("not a plain decimal number", Self::ALLOWED))?;
        if billionths + u128::from(is_cut) > 100 * BILLION {
            return Err(Invalid::new("above 100", Self::ALLOWED));
        }
        let tenths = u16::try_from(billionths * 10 / BILLION).ok();
        let percent = tenths.and_then(Self::from_tenths);
        percent.ok_or_else(|| Invalid::new("below 1", Self::ALLOWED))
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Amount {
    /// Whole MiB, at least 1: the unit in which limits are sent to the control daemon.
    Mebibytes(u64),
    Percent(Percent),
}

impl Amount {
    pub const ALLOWED: &'static str =
        "a number with unit M, G or T (binary, also MiB, GiB, TiB) or a share such as 25%";
    const MOST_MEBIBYTES: u64 = 1 << 30;

    /// Whole MiB, rounded down, at least 1; `None`: a share of an unknown total.
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
            let share = text.parse().map(Amount::Percent);
            return share.map_err(|invalid: Invalid| invalid.within(Self::ALLOWED));
        }
        let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, unit) = text.split_at(unit_at.unwrap_or(text.len()));
        let (billionths, _) = decimal(number)
            .ok_or_else(|| Invalid::new("not a plain decimal number with a unit", Self::ALLOWED))?;
        let mebibytes = billionths * u128::from(unit_factor(number, unit)?) / BILLION;
        match u64::try_from(mebibytes) {
            Ok(0) => Err(Invalid::new("less than 1M", Self::ALLOWED)),
            Ok(mebibytes) if mebibytes <= Self::MOST_MEBIBYTES => Ok(Amount::Mebibytes(mebibytes)),
            _ => Err(Invalid::new("above 1024T", Self::ALLOWED)),
        }
    }
}

const SHOWN: usize = 10;

/// Decimal units (`GB`) are refused, not guessed: the control daemon ignores them silently.
fn unit_factor(number: &str, unit: &str) -> Result<u64, Invalid> {
    match unit.to_ascii_lowercase().as_str() {
        "m" | "mib" => Ok(1),
        "g" | "gib" => Ok(1 << 10),
        "t" | "tib" => Ok(1 << 20),
        "" => Err(Invalid::new("a size needs a unit", Amount::ALLOWED)),
        "mb" | "gb" | "tb" => {
            let mut why = "decimal units are not accepted".to_owned();
            if number.len() <= SHOWN {
                why += &format!(": write {number}{}", unit[..1].to_ascii_uppercase());
            }
            Err(Invalid::new(why, Amount::ALLOWED))
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, derive_more::Display)]
#[display(rename_all = "kebab-case")]
pub enum Priority {
    /// 0, the vendor's default.
    Normal,
    /// 1: clients of other daemons on the GPU run first.
    BelowNormal,
}

impl Priority {
    pub const ALLOWED: &'static str = "normal, below-normal";

    /// The control daemon's number (docs/facts/mps-control.md#the-command-session).
    pub fn number(self) -> u8 {
        match self {
            Priority::Normal => 0,
            Priority::BelowNormal => 1,
        }
    }
}

/// Reads a type with these variants by the words that they print as, in any case, `_` for `-`.
macro_rules! words {
    ($type:ident: $($variant:ident)+) => {
        impl ::std::str::FromStr for $type {
            type Err = $crate::limits::Invalid;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let text = $crate::limits::word(text);
                let found = [$(Self::$variant),+].into_iter().find(|word| word.to_string() == text);
                found.ok_or_else(|| Self::Err::new("unknown word", Self::ALLOWED))
            }
        }
    };
}
pub(crate) use words;
words!(Priority: Normal BelowNormal);

/// A word of the grammar in the form in which words are compared: lower case, `-` for `_`.
pub(crate) fn word(text: &str) -> String {
    text.to_ascii_lowercase().replace('_', "-")
}

const BILLION: u128 = 1_000_000_000;

/// A plain decimal number in billionths, rounded down, and whether that cut anything off.
fn decimal(text: &str) -> Option<(u128, bool)> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    if !is_digits(whole) || !is_digits(decimals) {
        return None;
    }
    let (kept, cut) = decimals.split_at(decimals.len().min(9));
    // A number too long for a u64 stays a number, and the check of its range refuses it.
    let whole = u128::from(whole.parse::<u64>().unwrap_or(u64::MAX));
    let billionths = whole * BILLION + format!("{kept:0<9}").parse::<u128>().ok()?;
    Some((billionths, cut.bytes().any(|digit| digit != b'0')))
}

/// Serde carries these values as their canonical text, so that what is read back is checked again.
macro_rules! carried_as_text {
    ($($type:ty),+) => {$(
        impl ::serde::Serialize for $type {
            fn serialize<S: ::serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
                out.collect_str(self)
            }
        }
        impl<'de> ::serde::Deserialize<'de> for $type {
            fn deserialize<D: ::serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = <String as ::serde::Deserialize>::deserialize(from)?;
                text.parse().map_err(::serde::de::Error::custom)
            }
        }
    )+};
}
pub(crate) use carried_as_text;
carried_as_text!(Percent, Amount, Priority);

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_read<T: FromStr<Err = Invalid> + ToString>(cases: &str) {
        for case in cases.trim().lines() {
            let (text, expected) = case.trim().split_once(" -> ").unwrap();
            let read = text.trim_matches('\'').parse::<T>();
            let again = read.map(|value| value.to_string().parse::<T>().unwrap());
            let read = again.map_or_else(|invalid| invalid.why, |value| value.to_string());
            assert_eq!(read, expected, "{case}");
        }
    }

    #[test]
    fn a_share_is_read_in_tenths_and_never_rounded_up() {
        assert_read::<Percent>(
            "1 -> 1
            12.59 -> 12.5
            99.99999999999999999 -> 99.9
            100.000 -> 100
            025 -> 25
            12.5% -> 12.5
            0.99 -> below 1
            101 -> above 100
            100.05 -> above 100
            100.00000000000000001 -> above 100
            99999999999999999999999999 -> above 100",
        );
        let bad = "abc|NaN|inf|1e1|+25|-25|25%%|%|25.|.5|1.2.3| 25||٢٥";
        for text in bad.split('|') {
            let why = text.parse::<Percent>().unwrap_err().why;
            assert_eq!(why, "not a plain decimal number", "{text}");
        }
    }

    #[test]
    fn an_amount_is_binary_and_whole_mebibytes() {
        assert_read::<Amount>(
            "4gib -> 4G
            900mib -> 900M
            1.5G -> 1536M
            0.0015G -> 1M
            2048M -> 2G
            1T -> 1T
            1024T -> 1024T
            25% -> 25%
            4 -> a size needs a unit
            0.5M -> less than 1M
            3K -> unknown unit
            4 G -> unknown unit
            4gb -> decimal units are not accepted: write 4G
            1.5mb -> decimal units are not accepted: write 1.5M
            0000000000004GB -> decimal units are not accepted
            25%% -> not a plain decimal number
            1025T -> above 1024T
            99999999999999999999T -> above 1024T
            G -> not a plain decimal number with a unit
            -4G -> not a plain decimal number with a unit
            '' -> not a plain decimal number with a unit
            0% -> below 1
            101% -> above 100",
        );
    }

    #[test]
    fn shares_of_a_gpu_and_nvidias_numbers_of_priorities() {
        for (parts, even, auto) in [
            (0, 1000, 1000),
            (1, 1000, 1000),
            (3, 333, 666),
            (8, 125, 250),
            (5000, 10, 10),
        ] {
            let found = (Percent::of(1, parts), Percent::auto(1, parts));
            assert_eq!(found, (Percent(even), Percent(auto)), "{parts}");
        }
        let of = |tenths, total| Amount::Percent(Percent(tenths)).mebibytes_of(total);
        let most = of(1000, Some(u64::MAX));
        let found = [of(333, Some(1000)), of(10, Some(10)), most, of(1000, None)];
        assert_eq!(found, [Some(333), Some(1), Some(u64::MAX), None]);
        assert_eq!(Amount::Mebibytes(900).mebibytes_of(None), Some(900));
        let numbers = [Priority::Normal, Priority::BelowNormal].map(Priority::number);
        assert_eq!(numbers, [0, 1]);
    }
}
