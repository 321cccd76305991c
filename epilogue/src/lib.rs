//! `mps-epilogue`: undoes what a job's journal says was begun ([`mpsd::job::end`]), and says what
//! is left. It ends at once if the job has no directory, so it can run after every job.
#![forbid(unsafe_code)]

use batch::{self, Budget, CallOptions, Input, Location, Program, Scheduler, Submission, ThisHost};
use clap::Parser;
use mpsd::cli;
use mpsd::job::report_text;
use mpsd::job::{self, Ending, evidence};
use mpsd::node::log::complain;
use mpsd::node::real::RealNode;
use mpsd_core::config::{DEFAULT_PATH, Settings};
use mpsd_sys::deadline::Deadline;
use mpsd_sys::guard;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Name in messages.
pub const NAME: &str = "mps-epilogue";
/// Exit code for a node that is not as it was, with `--strict`, and for a broken invocation.
const BROKEN: u8 = guard::FAULT;

/// Takes a job's MPS away when the job has ended, and proves that it is gone.
///
/// Run as root after the job, by the program that ran mps-prologue before it; also without a
/// prologue, twice, or after a crash. A job that has no MPS on this node costs nothing.
///
/// Exit status: 0; with --strict 2 when the node is not as it was.
#[derive(Debug, Clone, Parser)]
#[command(name = "mps-epilogue", version = cli::version(), after_help = cli::examples::of("mps-epilogue"))]
pub struct Arguments {
    /// The batch system; without it, found from the number of arguments and the environment.
    #[arg(long, value_parser = batch::by_name())]
    pub scheduler: Option<Scheduler>,
    /// Configuration; a file of root's. Only its directories are needed: the job's journal has the
    /// rest.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_PATH)]
    pub config: PathBuf,
    /// Exit 2 when something of the job is left.
    #[arg(long)]
    pub strict: bool,
    /// End the daemon of this step alone (Slurm).
    #[arg(long, value_name = "STEP")]
    pub step: Option<String>,
    /// The scheduler's own arguments.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENT"
    )]
    pub positional: Vec<OsString>,
}

/// Returns the exit code.
pub fn main() -> u8 {
    if guard::begin(NAME, BROKEN).is_err() {
        return BROKEN;
    }
    let arguments = Arguments::parse();
    let env = |name: &str| std::env::var(name).ok();
    let input = Input {
        program: Program::Epilogue,
        scheduler: arguments.scheduler,
        arguments: &arguments.positional,
        env: &env,
        given: CallOptions::default(),
        location: Location::default(),
        terminal: false,
    };
    let step = arguments.step.as_deref();
    let submission = batch::read(&input, &ThisHost).and_then(|job| Ok(job.of_step(step)?));
    let code = match submission {
        Ok(submission) => clean(&arguments, &submission, &input),
        Err(failure) => {
            complain(NAME, &failure.to_string());
            BROKEN
        }
    };
    if arguments.strict { code } else { 0 }
}

fn clean(arguments: &Arguments, submission: &Submission, input: &Input<'_>) -> u8 {
    let name = submission.node_name(&ThisHost);
    let read = Settings::load(&arguments.config, &name);
    let settings = cli::or_directories(NAME, read, &arguments.config, &name);
    let node = |limit: Duration| RealNode::new(NAME, &settings, limit, limit / 2);
    look_again(&settings, submission);
    let jobs = job::jobs_of(&node(settings.deadline), submission);
    if jobs.is_empty() {
        return 0;
    }
    let system = batch::of(submission.scheduler);
    let shown = system.facts().shows_end;
    let limit = system.time_limit(input, submission.step, &Location::of(&settings));
    let budget = Budget::new(settings.deadline, limit);
    guard::run_guarded(NAME, Deadline::after(budget.whole), || {
        let deadline = Deadline::after(budget.work);
        let ending = Ending {
            settings: &settings,
            scheduler: submission.scheduler,
            node: &name,
        };
        let mut clean = true;
        for (left, id) in (1..=jobs.len()).rev().zip(&jobs) {
            // A user may keep one step from its end: the others still have their share of the time.
            let share = deadline.remaining() / u32::try_from(left).unwrap_or(1);
            let ended = job::end(&mut node(share), id, &ending);
            // Comes first, so that the last line is root's, and not a text of the user's process.
            if shown && !ended.by_site {
                for words in &ended.last_words {
                    complain(NAME, &format!("job {id}: its mpsd says: {words}"));
                }
                let report = ended.report.as_ref().map(report_text::paragraph);
                let told = report.or_else(|| ended.summary.clone());
                told.iter().for_each(|text| complain(NAME, text));
            }
            if !(shown && ended.by_site) {
                ended.lines.iter().for_each(|line| complain(NAME, line));
            }
            clean &= ended.findings.is_clean();
        }
        if clean { 0 } else { BROKEN }
    })
}

/// Takes the second look at what hung in the driver, so that nothing depends on a timer. Not after
/// a step: the scheduler would count our process as the step's.
fn look_again(settings: &Settings, submission: &Submission) {
    if submission.step || settings.paths.look_again().symlink_metadata().is_err() {
        return;
    }
    let limit = settings.deadline;
    let look = || {
        let mut node = RealNode::new(NAME, settings, limit, limit / 2);
        evidence::look_again(&mut node, settings);
        Vec::new()
    };
    // If no process can be made now, the next epilogue does it.
    let _ = guard::detach(|| drop(guard::ask(Deadline::after(limit), look)));
}
