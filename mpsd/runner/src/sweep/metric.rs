//! The figure that a program writes itself (`--metric`), and its last line. Only a bounded part of
//! the output is kept.

use mpsd_core::text::one_line;
use regex_lite::Regex;
use std::str::FromStr;

/// Longest part of a line that is searched, bytes.
const LONGEST: usize = 4096;
/// Most times that are kept of a copy.
const MOST_TIMES: usize = 1 << 20;

#[derive(Debug, Clone)]
pub struct Metric {
    pattern: Regex,
    /// The figure is the time of one request: how many of its units make the period, and which.
    pub rate: Option<(f64, &'static str)>,
}

impl FromStr for Metric {
    type Err = regex_lite::Error;

    fn from_str(text: &str) -> Result<Self, regex_lite::Error> {
        let (pattern, rate) = (Regex::new(text)?, None);
        let mut metric = Self { pattern, rate };
        metric.rate = match metric.unit() {
            "ns" => Some((1e9, "a second")),
            "us" | "µs" => Some((1e6, "a second")),
            "ms" | "msec" => Some((1e3, "a second")),
            "s" | "sec" | "secs" | "second" | "seconds" => Some((3600.0, "an hour")),
            "min" | "minutes" => Some((60.0, "an hour")),
            _ => None,
        };
        Ok(metric)
    }
}

impl Metric {
    pub fn pattern(&self) -> &str {
        self.pattern.as_str()
    }

    /// The words beside the number in the pattern: `ns/day` of `([0-9.]+) ns/day`.
    pub fn unit(&self) -> &str {
        let pattern = self.pattern();
        let is_word = |part: &&str| part.chars().any(char::is_alphabetic);
        let beside = match (pattern.find('('), pattern.rfind(')')) {
            (Some(open), Some(close)) if open < close => [&pattern[..open], &pattern[close + 1..]],
            _ => [pattern, ""],
        };
        let trimmed = beside.map(|part| part.trim_matches(|c: char| !c.is_alphanumeric()));
        trimmed.into_iter().rfind(is_word).unwrap_or(pattern)
    }

    /// The number of the last match in `line`: the pattern's first group. Without a group: a number
    /// in the match, else right after it (`ns/day: 12`), else right before it (`12 ns/day`), else
    /// the next number on the line.
    pub fn find(&self, line: &str) -> Option<f64> {
        let captures = self.pattern.captures_iter(line).last()?;
        if captures.len() > 1 {
            return number(captures.get(1)?.as_str());
        }
        let found = captures.get(0)?;
        let (before, after) = (&line[..found.start()], &line[found.end()..]);
        let beside = |c: char| c.is_whitespace() || c == ':' || c == '=';
        let other = |c: char| !is_of_number(c);
        let first = |text: &str| text.split(other).find_map(number);
        first(found.as_str())
            .or_else(|| number(after.trim_start_matches(beside).split(other).next()?))
            .or_else(|| number(before.trim_end().rsplit(other).next()?))
            .or_else(|| first(after))
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

#[derive(Debug, Default)]
pub struct Scan {
    line: Vec<u8>,
    last: Vec<u8>,
    pub found: Option<f64>,
    /// All figures, if they are times.
    pub times: Vec<f64>,
}

impl Scan {
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

    /// Takes the last line, which may have no end.
    pub fn end_line(&mut self, metric: Option<&Metric>) {
        if self.line.iter().any(|byte| !byte.is_ascii_whitespace()) {
            let found = metric.and_then(|metric| metric.find(&String::from_utf8_lossy(&self.line)));
            self.found = found.or(self.found);
            let is_time = metric.is_some_and(|metric| metric.rate.is_some());
            self.times
                .extend(found.filter(|_| is_time && self.times.len() < MOST_TIMES));
            std::mem::swap(&mut self.line, &mut self.last);
        }
        self.line.clear();
    }

    /// The last line with text, fit for a terminal.
    pub fn last(&self) -> String {
        one_line(String::from_utf8_lossy(&self.last).trim(), 160)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(pattern: &str, line: &str) -> Option<f64> {
        pattern.parse::<Metric>().unwrap().find(line)
    }

    #[test]
    fn the_number_beside_the_match_is_the_figure() {
        for (pattern, line, figure) in [
            ("ns/day", "123.4 ns/day", 123.4),
            ("ns/day", "speed: 1,706.25 ns/day, 0.014 hours/ns", 1706.25),
            ("ns/day", "ns/day: 12", 12.0),
            ("Performance", "Performance:   123.456   0.194", 123.456),
            ("Speed=", "step 1000 Speed= 7e3.", 7000.0),
            ("[0-9.]+ it/s", "epoch 3: 8.5 it/s", 8.5),
            ("loss=([0-9.]+)", "12 loss=0.25 17", 0.25),
            ("x", "1 x 2 x 3", 3.0),
            ("rate", "rate is about 5 a second", 5.0),
        ] {
            assert_eq!(find(pattern, line), Some(figure), "'{pattern}' in '{line}'");
        }
        for (pattern, line) in [
            ("ns/day", "no figure, ns/day"),
            ("ns/day", "12 ms"),
            ("x", "x nan"),
            ("x", "x -3"),
            ("(a)?x", "3 x"),
        ] {
            assert_eq!(find(pattern, line), None, "'{pattern}' in '{line}'");
        }
        assert!("(".parse::<Metric>().is_err());
    }

    #[test]
    fn a_figure_in_a_unit_of_time_is_a_request_and_all_of_them_are_kept() {
        let period = |pattern: &str| {
            let metric: Metric = pattern.parse().unwrap();
            metric.rate.map(|(_, period)| period)
        };
        assert_eq!(period("latency: ([0-9.]+) ms"), Some("a second"));
        assert_eq!(period("([0-9.]+) s$"), Some("an hour"));
        let none = ["([0-9.]+) s/step", "ms/step: ([0-9.]+)", "ns/day"];
        assert_eq!(none.map(period), [None; 3]);
        let times = |pattern: &str| {
            let mut scan = Scan::default();
            scan.feed(b"5.0 ms\n9 it/s\n7.5 ms\n", Some(&pattern.parse().unwrap()));
            scan.times
        };
        assert_eq!(times("([0-9.]+) ms"), [5.0, 7.5]);
        assert_eq!(times("([0-9.]+) it/s"), [0.0; 0]);
    }

    #[test]
    fn the_unit_is_what_stands_beside_the_number() {
        let unit = |pattern: &str| pattern.parse::<Metric>().unwrap().unit().to_owned();
        for (pattern, expected) in [
            ("ns/day", "ns/day"),
            ("([0-9.]+) ns/day", "ns/day"),
            ("\"per_second\":([0-9.]+)", "per_second"),
            ("speed: ([0-9]+) it/s", "it/s"),
            ("([0-9]+)", "([0-9]+)"),
        ] {
            assert_eq!(unit(pattern), expected);
        }
    }

    #[test]
    fn the_last_match_counts_however_the_bytes_come() {
        let metric: Metric = "steps".parse().unwrap();
        let mut scan = Scan::default();
        for bytes in "1 ste|ps\r|2 steps\n\n|no figure\n|\x1b[2K3 steps".split('|') {
            scan.feed(bytes.as_bytes(), Some(&metric));
        }
        assert_eq!((scan.found, &*scan.last()), (Some(2.0), "no figure"));
        scan.end_line(Some(&metric));
        assert_eq!((scan.found, &*scan.last()), (Some(3.0), "?[2K3 steps"));
    }

    #[test]
    fn a_line_without_end_is_not_kept() {
        let metric: Metric = "x".parse().unwrap();
        let mut scan = Scan::default();
        for _ in 0..1000 {
            scan.feed(&[0xff; 10_000], Some(&metric));
        }
        let capacity = scan.line.capacity();
        assert!(capacity < 4 * LONGEST, "{capacity}");
        scan.feed(b" 9 x\n7 x\n", Some(&metric));
        assert_eq!(scan.found, Some(7.0));
    }
}
