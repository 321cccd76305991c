//! The figure that a program writes itself (`--metric`), and its last line. Whatever it writes, little is kept.

use mpsd_core::text::one_line;
use regex_lite::Regex;
use std::str::FromStr;

/// Longest part of a line that is looked at. Bytes.
const LONGEST: usize = 4096;
/// Longest part of a line that is shown. Characters.
const SHOWN: usize = 160;

/// A pattern, and which number belongs to it.
#[derive(Debug, Clone)]
pub struct Metric(Regex);

impl FromStr for Metric {
    type Err = regex_lite::Error;

    fn from_str(text: &str) -> Result<Self, regex_lite::Error> {
        Regex::new(text).map(Self)
    }
}

impl Metric {
    /// The pattern.
    pub fn pattern(&self) -> &str {
        self.0.as_str()
    }

    /// What stands beside the number in the pattern: `ns/day` of `([0-9.]+) ns/day`.
    pub fn unit(&self) -> &str {
        let pattern = self.0.as_str();
        let is_word = |part: &&str| part.chars().any(char::is_alphabetic);
        let beside = match (pattern.find('('), pattern.rfind(')')) {
            (Some(open), Some(close)) if open < close => [&pattern[..open], &pattern[close + 1..]],
            _ => [pattern, ""],
        };
        let trimmed = beside.map(|part| part.trim_matches(|c: char| !c.is_alphanumeric()));
        trimmed.into_iter().rfind(is_word).unwrap_or(pattern)
    }

    /// The number of the last match in `line`: the pattern's first group; without one a number in the match, else right behind
    /// it (`ns/day: 12`), else right before it (`12 ns/day`), else the next one on the line.
    pub fn find(&self, line: &str) -> Option<f64> {
        let captures = self.0.captures_iter(line).last()?;
        if captures.len() > 1 {
            return number(captures.get(1)?.as_str());
        }
        let found = captures.get(0)?;
        let (before, after) = (&line[..found.start()], &line[found.end()..]);
        let beside = |c: char| c.is_whitespace() || c == ':' || c == '=';
        let behind = after.trim_start_matches(beside);
        let word = |text: &str| text.split(|c: char| !is_of_number(c)).find_map(number);
        word(found.as_str())
            .or_else(|| behind.split(|c: char| !is_of_number(c)).next().and_then(number))
            .or_else(|| {
                before
                    .trim_end()
                    .rsplit(|c: char| !is_of_number(c))
                    .next()
                    .and_then(number)
            })
            .or_else(|| word(after))
    }
}

fn is_of_number(c: char) -> bool {
    c.is_ascii_digit() || matches!(c, '.' | ',' | '+' | '-' | 'e' | 'E')
}

/// A number as programs write them; `1,234.5` too.
fn number(text: &str) -> Option<f64> {
    let text = text.trim().trim_end_matches(['.', ',']);
    let plain = text.parse().or_else(|_| text.replace(',', "").parse());
    let number: f64 = plain.ok()?;
    let digits = text.bytes().any(|byte| byte.is_ascii_digit());
    (digits && number.is_finite() && number >= 0.0).then_some(number)
}

/// What a program writes, as it comes.
#[derive(Debug, Default)]
pub struct Scan {
    line: Vec<u8>,
    last: Vec<u8>,
    /// The last figure.
    pub found: Option<f64>,
}

impl Scan {
    /// Takes in the next bytes.
    pub fn feed(&mut self, bytes: &[u8], metric: Option<&Metric>) {
        for part in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let ends = part.ends_with(b"\n") || part.ends_with(b"\r");
            let room = LONGEST.saturating_sub(self.line.len());
            self.line
                .extend_from_slice(part.get(..room.min(part.len())).unwrap_or_default());
            if ends {
                self.end_line(metric);
            }
        }
    }

    /// Looks at the last line, which may have no end.
    pub fn end_line(&mut self, metric: Option<&Metric>) {
        if self.line.iter().any(|byte| !byte.is_ascii_whitespace()) {
            let found = metric.and_then(|metric| metric.find(&String::from_utf8_lossy(&self.line)));
            self.found = found.or(self.found);
            std::mem::swap(&mut self.line, &mut self.last);
        }
        self.line.clear();
    }

    /// The last line that was not empty, fit for a terminal.
    pub fn last(&self) -> String {
        one_line(String::from_utf8_lossy(&self.last).trim(), SHOWN)
    }
}

#[cfg(test)]
mod tests;
