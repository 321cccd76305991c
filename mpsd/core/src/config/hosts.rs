//! Host lists as Slurm writes them, `gpu[001-100,105],x1,r[1-4]n[0-7]`. A list is never expanded:
//! `[0-999999]` costs nothing.

use crate::text::{is_digits, is_word, split_outside};

#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display, serde::Deserialize)]
#[display("{text}")]
#[serde(try_from = "String")]
pub struct HostList {
    text: String,
    patterns: Vec<Vec<Piece>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Literal(String),
    Numbers(Vec<Range>),
}

/// Numbers from `first` to `last`, written with at least `width` digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    first: u64,
    last: u64,
    width: usize,
}

impl Range {
    fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| text.parse().ok().filter(|_| is_digits(text));
        let range = Self {
            first: number(first)?,
            last: number(last)?,
            width: first.len(),
        };
        (range.first <= range.last && range.width <= last.len()).then_some(range)
    }

    fn contains(self, digits: &str) -> bool {
        let width = self.width;
        let is_written = |number: &u64| format!("{number:0width$}") == digits;
        let number = digits.parse().ok().filter(is_written);
        number.is_some_and(|number| (self.first..=self.last).contains(&number))
    }
}

impl HostList {
    pub fn has(list: &str, name: &str) -> bool {
        Self::try_from(list.to_owned()).is_ok_and(|list| list.contains(name))
    }

    /// Also by the part before the first dot: the kernel often has a node's long name.
    pub fn contains(&self, name: &str) -> bool {
        let short = name.split('.').next().unwrap_or(name);
        let mut patterns = self.patterns.iter();
        patterns.any(|pattern| matches(pattern, name) || matches(pattern, short))
    }
}

fn matches(pattern: &[Piece], name: &str) -> bool {
    match pattern.split_first() {
        None => name.is_empty(),
        Some((Piece::Literal(literal), rest)) => name
            .strip_prefix(literal.as_str())
            .is_some_and(|name| matches(rest, name)),
        Some((Piece::Numbers(ranges), rest)) => {
            let digits = name.bytes().take_while(u8::is_ascii_digit).count();
            (1..=digits).any(|taken| {
                let (number, name) = name.split_at(taken);
                ranges.iter().any(|range| range.contains(number)) && matches(rest, name)
            })
        }
    }
}

impl TryFrom<String> for HostList {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let mut patterns = Vec::new();
        for part in split_outside(&text, ['[', ']']) {
            let allowed = "names and ranges such as gpu[001-100,105],x1";
            let bad = || format!("'{part}' is no host list; allowed: {allowed}");
            patterns.push(pattern(part.trim()).ok_or_else(bad)?);
        }
        Ok(Self { text, patterns })
    }
}

fn pattern(text: &str) -> Option<Vec<Piece>> {
    const MOST_RANGES: usize = 4;
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some((literal, tail)) = rest.split_once('[') {
        let (numbers, tail) = tail.split_once(']')?;
        pieces.push(Piece::Literal(name_part(literal)?));
        let ranges: Option<_> = numbers.split(',').map(Range::parse).collect();
        pieces.push(Piece::Numbers(ranges?));
        rest = tail;
    }
    pieces.push(Piece::Literal(name_part(rest)?));
    // Matching tries every split of the digits for every range, so their number is bounded.
    (!text.is_empty() && pieces.len() <= 2 * MOST_RANGES + 1).then_some(pieces)
}

fn name_part(text: &str) -> Option<String> {
    (text.is_empty() || is_word(text, b"._-")).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_and_out_of_a_list() {
        let table = "
            gpu[001-100],x1   gpu001 gpu100 x1 gpu042.cluster.example   gpu1 gpu000 gpu101 gpu0001 x11 x gpu
            n[8-12]           n8 n10 n12          n08 n7 n13 n
            n[08-100]         n08 n99 n100        n8 n008 n101
            r[1-4]n[0-7]      r1n0 r4n7           r5n0 r1n8 r1n r1
            a[1,3,5-6]b       a1b a3b a5b a6b     a2b a4b a1 b
            x1                x1 x1.domain        x X1 x12
            x1.domain         x1.domain           x1 x1.other
            n[1-2][0-9]       n10 n29             n9 n30 n100
            [0-18446744073709551615]   0 7 18446744073709551615   x 99999999999999999999999";
        for row in table.trim().lines() {
            let columns = row.split("  ").map(str::trim);
            let columns: Vec<&str> = columns.filter(|text| !text.is_empty()).collect();
            let [list, inside, outside] = columns[..] else {
                panic!("{row}")
            };
            let hosts = HostList::try_from(list.to_owned()).unwrap();
            for name in inside.split(' ') {
                assert!(hosts.contains(name), "{name} in {list}");
            }
            for name in outside.split(' ') {
                assert!(!hosts.contains(name), "{name} not in {list}");
            }
        }
    }

    #[test]
    fn what_is_no_list() {
        let bad = "|a,,b|gpu[|gpu[1|gpu]|gpu[]|gpu[2-1]|gpu[a-b]|gpu[001-9]|gpu[1-2-3]|g pu|../x|[1][1][1][1][1]";
        for list in bad.split('|') {
            assert!(HostList::try_from(list.to_owned()).is_err(), "{list}");
        }
    }
}
