//! A small job of an ordinary user's, as `mpsctl selftest` submits one: by the scheduler's own commands, out of the user's `PATH`.

use std::path::Path;

/// The memory limit that the job asks for. MiB.
pub const MEMORY_MIB: u64 = 1024;
/// What it runs: the probe, which tries to allocate twice its limit.
const PROBE: [&str; 2] = ["--json", "--alloc=2048"];

/// The job of a trial: it asks for half of the threads and [`MEMORY_MIB`].
#[derive(Debug, Clone, Copy)]
pub struct TrialJob<'a> {
    /// A name that no other job of the user's has, of 15 bytes at most, which an older PBS allows.
    pub name: &'a str,
    /// Words of the user's own for the submitting command.
    pub own: &'a [String],
    /// The directory of our programs.
    pub programs: &'a Path,
    /// Where its output goes, if the submitting command does not pass it on.
    pub output: &'a str,
}

impl TrialJob<'_> {
    /// The command that the job runs.
    pub(crate) fn probe(&self) -> Vec<String> {
        let program = self.programs.join("mps-probe").display().to_string();
        let words = PROBE.iter().map(|word| (*word).to_owned());
        std::iter::once(program).chain(words).collect()
    }
}

/// A command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    /// The program, in the user's `PATH`.
    pub program: &'static str,
    /// What follows.
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
    /// Whether that command, asked for its version, is this scheduler's by its answer.
    fn is_its(&self, version: &str) -> bool;
    /// The request, as the user writes it.
    fn request(&self) -> &'static str;
    /// Submits the job.
    fn submit(&self, order: &TrialJob<'_>) -> CommandLine;
    /// Asks for the job `id`, which a command that does not wait for its end has named; `None`: it waits.
    fn ask(&self, id: &str) -> Option<CommandLine>;
    /// Whether such an answer says that the job is over.
    fn is_over(&self, answer: &str) -> bool;
    /// Says what the job waits for: by its name, or by its id where that is known.
    fn why(&self, name: &str, id: Option<&str>) -> CommandLine;
    /// Tells the ids of the jobs of this name, a line each; `None`: a job is ended by its name.
    fn named(&self, _name: &str) -> Option<CommandLine> {
        None
    }
    /// Ends the job, or takes it out of the queue.
    fn cancel(&self, name: &str, id: Option<&str>) -> CommandLine;
    /// What an administrator does about a job that ended by this.
    fn remedy(&self, said: &str) -> &'static str;
}

/// The name of a command's argument for the shell, whatever is in it.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
