//! A user's small job, which `mpsctl selftest` submits with the scheduler's own commands from the user's `PATH`.

use std::path::Path;

/// The memory limit that the job asks for. MiB.
pub const MEMORY_MIB: u64 = 1024;
/// What it runs: the probe, which tries to allocate twice its limit.
const PROBE: [&str; 2] = ["--json", "--alloc=2048"];

/// The job of a trial: it asks for half of the threads and [`MEMORY_MIB`].
#[derive(Debug, Clone, Copy)]
pub struct TrialJob<'a> {
    /// A name that no other job has, of 15 bytes at most: an older PBS allows no more.
    pub name: &'a str,
    /// The user's own words for the submitting command.
    pub own: &'a [String],
    /// The directory of our programs.
    pub programs: &'a Path,
    /// The file for its output, if the submitting command does not pass the output on.
    pub output: &'a str,
}

impl TrialJob<'_> {
    /// The command that the job runs.
    pub(crate) fn probe(&self) -> Vec<String> {
        let program = self.programs.join("mps-probe").display().to_string();
        [&[program], &PROBE.map(str::to_owned)[..]].concat()
    }
}

/// A command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    /// The program, in the user's `PATH`.
    pub program: &'static str,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// What it reads.
    pub input: String,
}

impl CommandLine {
    pub(crate) fn new(program: &'static str, arguments: &[&str]) -> Self {
        Self {
            program,
            arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
            input: String::new(),
        }
    }
}

/// How a scheduler's users run one.
pub trait Trial: Sync {
    /// The command that submits.
    fn submits(&self) -> &'static str;
    /// Whether this is the answer of that command to `--version`.
    fn is_its(&self, version: &str) -> bool;
    /// The request, as the user writes it.
    fn request(&self) -> &'static str;
    /// Submits the job.
    fn submit(&self, order: &TrialJob<'_>) -> CommandLine;
    /// Asks for the job `id`, which the submitting command named; `None`: that command waits for the job's end.
    fn ask(&self, id: &str) -> Option<CommandLine>;
    /// Whether such an answer says that the job is over.
    fn is_over(&self, answer: &str) -> bool;
    /// Says what the job waits for: by its id if that is known, else by its name.
    fn why(&self, name: &str, id: Option<&str>) -> CommandLine;
    /// Lists the ids of the jobs of this name, a line each; `None`: a job is ended by its name.
    fn named(&self, _name: &str) -> Option<CommandLine> {
        None
    }
    /// Ends the job, or takes it out of the queue.
    fn cancel(&self, name: &str, id: Option<&str>) -> CommandLine;
    /// What an administrator does about a job that failed with this message.
    fn remedy(&self, said: &str) -> &'static str;
}

/// A word for the shell.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
