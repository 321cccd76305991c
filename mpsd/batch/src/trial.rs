//! A user's small job, which `mpsctl selftest` submits with the commands of the user's `PATH`.

use std::path::Path;

pub const MEMORY_MIB: u64 = 1024;
const PROBE: [&str; 2] = ["--json", "--alloc=2048"];

/// The job of a trial: it asks for half of the threads and [`MEMORY_MIB`].
#[derive(Debug, Clone, Copy)]
pub struct TrialJob<'a> {
    /// A name of its own, of 15 bytes at most, as an older PBS wants.
    pub name: &'a str,
    pub own: &'a [String],
    pub programs: &'a Path,
    /// The file for its output, if the submitting command does not pass the output on.
    pub output: &'a str,
}

impl TrialJob<'_> {
    pub fn probe(&self) -> Vec<String> {
        let program = self.programs.join("mps-probe").display().to_string();
        [&[program], &PROBE.map(str::to_owned)[..]].concat()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    pub program: &'static str,
    pub arguments: Vec<String>,
    pub input: String,
}

impl CommandLine {
    pub fn new(program: &'static str, arguments: &[&str]) -> Self {
        Self {
            program,
            arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
            input: String::new(),
        }
    }
}

#[derive(Debug)]
pub struct Trial {
    pub submits: &'static str,
    pub is_its: fn(&str) -> bool,
    pub request: &'static str,
    pub submit: fn(&TrialJob<'_>) -> CommandLine,
    /// Asks for the job of this id; `None`: the submitting command waits for the job's end.
    pub ask: Option<fn(&str) -> CommandLine>,
    /// Whether such an answer says that the job is over.
    pub is_over: fn(&str) -> bool,
    /// Says what the job waits for: by its id if that is known, else by its name.
    pub why: fn(&str, Option<&str>) -> CommandLine,
    /// Lists the ids of the jobs of this name, a line each; `None`: a job is ended by its name.
    pub named: Option<fn(&str) -> CommandLine>,
    pub cancel: fn(&str, Option<&str>) -> CommandLine,
    /// What an administrator does about this message of a failure; empty: it ran without MPS.
    pub remedy: fn(&str) -> &'static str,
}

/// The line that says why the scheduler was not reached. `said`: the command's, joined by "; ".
pub fn unreached(said: &str) -> Option<&str> {
    const WORDS: [&str; 3] = [
        "Munge encode failed",
        "Unable to contact slurm controller",
        "cannot connect to server",
    ];
    let mut lines = said.split("; ");
    lines.find(|line| WORDS.iter().any(|words| line.contains(words)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_did_not_reach_its_scheduler_is_known_by_one_line() {
        let invalid = "srun: error: Invalid partition name specified";
        // Slurm 22.05.8.
        let munge =
            "srun: error: Munge encode failed: Failed to access \"/run/munge/munge.socket.2\"";
        let down = "srun: error: Unable to allocate resources: Unable to contact slurm controller (connect failure)";
        let pbs = "qsub: cannot connect to server s (errno=15010)";
        for line in [munge, down, pbs] {
            let said = format!("{invalid}; {line}; {invalid}");
            assert_eq!(unreached(&said), Some(line));
        }
        assert_eq!(unreached(invalid), None);
    }
}
