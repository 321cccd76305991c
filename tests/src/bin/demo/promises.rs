//! The short report: each promise, and whether it was kept.

use std::time::Duration;

#[derive(Default)]
pub struct Promises {
    lines: Vec<String>,
    all: usize,
    broken: usize,
}

impl Promises {
    /// One promise; `found` says what was there instead.
    pub fn check(&mut self, kept: bool, promise: &str, found: impl FnOnce() -> String) {
        self.all += 1;
        if kept {
            self.line(format!("  ok      {promise}"));
        } else {
            self.broken += 1;
            self.line(format!("  BROKEN  {promise}: {}", found()));
        }
    }

    /// A heading, or an empty line.
    pub fn line(&mut self, text: impl Into<String>) {
        self.lines.push(text.into());
    }

    pub fn are_kept(&self) -> bool {
        self.broken == 0
    }

    pub fn print(&self, took: Duration) {
        let (kept, all) = (self.all - self.broken, self.all);
        println!("{}", self.lines.join("\n"));
        println!(
            "\n{kept} of {all} promises kept, {:.0} s in all",
            took.as_secs_f64()
        );
    }
}
