//! Counts what the test programs say of themselves.

/// Sums over all `test result:` lines, and what was left out.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed, and stages that failed without running a test.
    pub failed: u64,
    /// What could not run on this machine, each with its reason.
    pub skipped: Vec<String>,
}

impl Tally {
    /// Takes one line of a test program's output: libtest's summary, `test NAME ... ignored, REASON`, or
    /// `skipped: NAME: REASON`. Anything else counts nothing.
    pub fn line(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("test result: ") {
            self.passed += number_before(rest, " passed;");
            self.failed += number_before(rest, " failed;");
        } else if let Some(rest) = line.strip_prefix("skipped: ") {
            self.skipped.push(rest.trim().to_owned());
        } else if let Some((name, rest)) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.split_once(" ... ignored"))
        {
            let reason = rest.trim_start_matches(',').trim();
            self.skipped.push(format!(
                "{name}: {}",
                if reason.is_empty() { "ignored" } else { reason }
            ));
        }
    }

    /// Adds another's counts.
    pub fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped.extend(other.skipped);
    }

    /// The plain last line.
    pub fn summary(&self) -> String {
        let mut text = format!("{} passed, {} failed", self.passed, self.failed);
        if !self.skipped.is_empty() {
            text.push_str(&format!(", {} skipped", self.skipped.len()));
        }
        text
    }
}

fn number_before(text: &str, word: &str) -> u64 {
    let head = text.split_once(word).map_or("", |(head, _)| head);
    head.rsplit(' ')
        .next()
        .and_then(|digits| digits.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_summaries_and_names_what_is_skipped() {
        let mut tally = Tally::default();
        for line in [
            "running 3 tests",
            "test a ... ok",
            "test b::c ... ignored, needs a GPU",
            "test d ... FAILED",
            "skipped: hardware: no /dev/nvidia0",
            "test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 2.00s",
        ] {
            tally.line(line);
        }
        let skipped = vec![
            "b::c: needs a GPU".to_owned(),
            "hardware: no /dev/nvidia0".to_owned(),
        ];
        assert_eq!(
            tally,
            Tally {
                passed: 41,
                failed: 1,
                skipped
            }
        );
        assert_eq!(tally.summary(), "41 passed, 1 failed, 2 skipped");
    }

    #[test]
    fn a_clean_run_is_two_words() {
        assert_eq!(
            Tally {
                passed: 3,
                ..Tally::default()
            }
            .summary(),
            "3 passed, 0 failed"
        );
    }
}
