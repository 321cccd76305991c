//! What is shown while commands run: a bar on a terminal, elsewhere lines for the job's log.

use ctl::{NAME, complain};
use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    all: u64,
    begin: Instant,
    told: Instant,
}

impl Progress {
    pub fn new(all: u64) -> Self {
        let style = ProgressStyle::with_template("{bar:24} {pos}/{len}  {msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        Self {
            bar: ProgressBar::new(all).with_style(style),
            all,
            begin: Instant::now(),
            told: Instant::now(),
        }
    }

    pub fn say(&self, message: String) {
        self.bar.set_message(message);
    }

    pub fn step(&self) {
        self.bar.inc(1);
    }

    /// For `pack`; without a terminal a line a minute.
    pub fn show(&mut self, ended: u64, failed: u64, running: usize) {
        let mut message = format!("{running} at once");
        if failed > 0 {
            message += &format!(", {failed} failed");
        }
        if let Some(left) = left(self.begin.elapsed(), ended, self.all) {
            message += &format!(", {} left", span(left));
        }
        if !self.bar.is_hidden() {
            self.bar.set_position(ended);
            self.bar.set_message(message);
        } else if self.told.elapsed() >= Duration::from_secs(60) {
            self.told = Instant::now();
            let all = self.all;
            let line = format!("pack: {ended} of {all} commands have ended, {message}");
            complain(NAME, &line);
        }
    }

    pub fn tell(&self, line: &str) {
        match self.bar.is_hidden() {
            true => complain(NAME, line),
            false => self.bar.println(line),
        }
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// The time that is left if the rest takes as long as the commands so far.
fn left(passed: Duration, ended: u64, all: u64) -> Option<Duration> {
    (ended > 0).then(|| passed.mul_f64(all.saturating_sub(ended) as f64 / ended as f64))
}

/// `50 s`, `12 min`, `3.5 h`
fn span(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..=99 => format!("{seconds} s"),
        seconds @ 100..=5999 => format!("{} min", seconds.div_ceil(60)),
        seconds => format!("{:.1} h", seconds as f64 / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_that_of_the_commands_so_far() {
        let of = |passed, ended| left(Duration::from_secs(passed), ended, 100).map(span);
        assert_eq!(of(10, 0), None);
        assert_eq!(of(10, 50).as_deref(), Some("10 s"));
        assert_eq!(of(60, 10).as_deref(), Some("9 min"));
        assert_eq!(of(3600, 10).as_deref(), Some("9.0 h"));
    }
}
