//! How long the guide takes from its first command to a good job: our part, and the package
//! manager's.

use std::fs;
use std::io::Write as _;
use std::time::{Duration, Instant};

use crate::target;

const OURS: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub struct Stopwatch {
    ours: Duration,
    managers: Duration,
    lines: usize,
}

impl Stopwatch {
    pub fn take<T>(&mut self, line: &str, typed: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let done = typed();
        let is_managers = line.starts_with("apt") || line.starts_with("dnf");
        match is_managers {
            true => self.managers += begun.elapsed(),
            false => self.ours += begun.elapsed(),
        }
        self.lines += 1;
        done
    }

    pub fn stop(&self, system: &str, last: &str) {
        let text = format!(
            "system = \"{system}\"\nlines = {}\nlast = \"{last}\"\nours_s = {:.1}\npackage_manager_s = {:.1}\n",
            self.lines,
            self.ours.as_secs_f64(),
            self.managers.as_secs_f64()
        );
        tell(system, &text);
        assert!(self.ours < OURS, "our own lines took {:?}", self.ours);
    }
}

/// The time of each part of a test.
#[derive(Debug)]
pub struct Laps {
    since: Instant,
    told: String,
}

impl Laps {
    pub fn begin() -> Self {
        let (since, told) = (Instant::now(), String::new());
        Self { since, told }
    }

    /// Notes the time since the last call; with an empty `name` it is left out.
    pub fn lap(&mut self, name: &str) {
        if !name.is_empty() {
            self.told += &format!("{name} = {:.1}\n", self.since.elapsed().as_secs_f64());
        }
        self.since = Instant::now();
    }

    pub fn write(&self, system: &str) {
        tell(system, &format!("system = \"{system}\"\n{}", self.told));
    }
}

/// Prints it past the capture of a test that passes, and leaves it beside the packages.
fn tell(system: &str, text: &str) {
    let line = format!("\nstopwatch: {}\n", text.trim_end().replace('\n', ", "));
    std::io::stdout().write_all(line.as_bytes()).unwrap();
    fs::write(target(&format!("stopwatch-{system}.toml")), text).unwrap();
}
