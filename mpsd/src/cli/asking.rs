//! What a job asked for, in the words of `mps-prologue` and of `mpsctl plan`: one definition for both.

pub use crate::plan::JobRequest;
use crate::scheduler::{self, CallOptions, Host, Input, Program, Scheduler, Site, Submission};
use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command, Error};
use mpsd_core::request::{Key, Syntax};
use mpsd_core::{Failure, Refusal, Request};
use std::ffi::{OsStr, OsString};

/// The options and arguments that say what the job is and what it asked for.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Asking {
    /// The batch system; without it, found from the number of arguments and the environment.
    #[arg(long, value_parser = scheduler::by_name())]
    pub scheduler: Option<Scheduler>,
    /// The request, in the words of the account tokens (Slurm's plugin).
    #[arg(long, value_name = "TEXT", value_parser = Tokens, hide_possible_values = true, allow_hyphen_values = true)]
    pub request: Option<String>,
    /// What goes before the scheduler's own words.
    #[command(flatten)]
    pub given: CallOptions,
    /// A daemon for this step of the job alone (Slurm); the compute mode stays.
    #[arg(long, value_name = "STEP")]
    pub step: Option<String>,
    /// The scheduler's own arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    pub positional: Vec<OsString>,
}

/// Any text, of which a shell completes the request's tokens: what is wrong with it is a refusal, not an error of the
/// command line.
#[derive(Debug, Clone, Copy)]
struct Tokens;

impl TypedValueParser for Tokens {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let tokens = Key::ALL.into_iter().flat_map(|key| key.row().completions());
        Some(Box::new(tokens.map(PossibleValue::new)))
    }
}

impl Asking {
    /// What a dialect of [`scheduler`] may look at.
    pub fn input<'a>(&'a self, env: scheduler::Lookup<'a>, site: Site, terminal: bool) -> Input<'a> {
        Input {
            program: Program::Prologue,
            scheduler: self.scheduler,
            arguments: &self.positional,
            env,
            given: self.given.clone(),
            site,
            terminal,
        }
    }

    /// The same, where the request may be written in Slurm's flags too: whoever tries one out has it from a command line.
    ///
    /// # Errors
    /// A refusal of flags that make no request.
    pub fn in_tokens(&self) -> Result<Self, Refusal> {
        let mut tokens = self.clone();
        if let Some(flags) = self
            .request
            .as_deref()
            .filter(|text| text.trim_start().starts_with("--"))
        {
            tokens.request = Some(Request::from_flags(flags)?.to_string());
        }
        Ok(tokens)
    }

    /// The job's request; `None`: it did not ask, or switched MPS off. Decided before anything is read or touched.
    ///
    /// # Errors
    /// A refusal for what it asked; undetermined when the scheduler called us with a vector that it never uses.
    pub fn asked(&self, input: &Input<'_>, host: &dyn Host) -> Result<Option<JobRequest>, Failure> {
        self.asked_by(self.submission(input, host)?)
    }

    /// The job, or the step of it, that the scheduler's words name.
    ///
    /// # Errors
    /// As [`Asking::asked`], but for the request.
    pub fn submission(&self, input: &Input<'_>, host: &dyn Host) -> Result<Submission, Failure> {
        let submission = scheduler::read(input, host)?;
        Ok(submission.of_step(self.step.as_deref())?)
    }

    /// The same for a job that is known already.
    ///
    /// # Errors
    /// A refusal for what it asked.
    pub fn asked_by(&self, submission: Submission) -> Result<Option<JobRequest>, Failure> {
        let Some((request, syntax)) = self.written(&submission)? else {
            return Ok(None);
        };
        Ok(request.is_on().then_some(JobRequest {
            request,
            syntax,
            submission,
        }))
    }

    /// The request, and how its user wrote it: in the words of the place where it was found.
    fn written(&self, submission: &Submission) -> Result<Option<(Request, Syntax)>, Failure> {
        let usual = scheduler::of(submission.scheduler).syntax();
        let given = match &self.request {
            Some(text) => Request::from_account(text)?,
            None => None,
        };
        let account = match &submission.account {
            Some(account) => Request::from_account(account)?,
            None => None,
        };
        let resource = match &submission.resource {
            Some(resource) => Some(Request::from_resource(resource)?),
            None => None,
        };
        let mut all = [(given, usual), (account, usual), (resource, Syntax::Resource)]
            .into_iter()
            .filter_map(|(request, syntax)| Some((request?, syntax)));
        let Some(first) = all.next() else { return Ok(None) };
        let merge = |(request, syntax): (Request, Syntax), (other, _)| {
            Request::merge(request, other).map(|merged| (merged, syntax))
        };
        Ok(Some(all.try_fold(first, merge)?))
    }
}
