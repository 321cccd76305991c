//! Host lists as Slurm writes them: `gpu[001-100,105],x1,r[1-4]n[0-7]`.
//!
//! A list is matched against one name and never expanded: `[0-999999]` costs nothing.

/// Names of nodes.
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
        let number = |digits: &str| {
            let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| digits.parse().ok()).flatten()
        };
        let range = Self {
            first: number(first)?,
            last: number(last)?,
            width: first.len(),
        };
        (range.first <= range.last && range.width <= last.len()).then_some(range)
    }

    fn contains(self, digits: &str) -> bool {
        let Ok(number) = digits.parse::<u64>() else {
            return false;
        };
        let width = self.width;
        (self.first..=self.last).contains(&number) && format!("{number:0width$}") == digits
    }
}

impl HostList {
    /// Whether `name`, or its part before the first dot, is one of these.
    ///
    /// Slurm and PBS call a node by its short name, the kernel often by its long one.
    pub fn contains(&self, name: &str) -> bool {
        let short = name.split('.').next().unwrap_or(name);
        self.patterns
            .iter()
            .any(|pattern| matches(pattern, name) || matches(pattern, short))
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
        for part in split_outside_brackets(&text) {
            let pattern = pattern(part.trim());
            let allowed = "names and ranges such as gpu[001-100,105],x1";
            patterns.push(pattern.ok_or_else(|| format!("'{part}' is no host list; allowed: {allowed}"))?);
        }
        Ok(Self { text, patterns })
    }
}

fn split_outside_brackets(text: &str) -> Vec<&str> {
    let mut inside = false;
    text.split(|c| {
        inside = (inside || c == '[') && c != ']';
        c == ',' && !inside
    })
    .collect()
}

fn pattern(text: &str) -> Option<Vec<Piece>> {
    const MOST_RANGES: usize = 4;
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some((literal, tail)) = rest.split_once('[') {
        let (numbers, tail) = tail.split_once(']')?;
        pieces.push(Piece::Literal(name_part(literal)?));
        pieces.push(Piece::Numbers(
            numbers.split(',').map(Range::parse).collect::<Option<_>>()?,
        ));
        rest = tail;
    }
    pieces.push(Piece::Literal(name_part(rest)?));
    // Matching tries every split of the digits for every range: a bound keeps it trivial.
    (!text.is_empty() && pieces.len() <= 2 * MOST_RANGES + 1).then_some(pieces)
}

fn name_part(text: &str) -> Option<String> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    text.bytes().all(good).then(|| text.to_owned())
}

#[cfg(test)]
mod tests;
