//! The job and its request on the command lines of `mps-prologue` and `mpsctl plan`.

use crate::plan::Asked;
use batch::{CallOptions, Host, Input, Location, Program, Scheduler, Submission};
use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command, Error};
use mpsd_core::config::Settings;
use mpsd_core::request::{Key, Syntax};
use mpsd_core::{Failure, Refusal, Request};
use std::ffi::{OsStr, OsString};

/// The options and arguments that say what the job is and what it asked for.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct JobArguments {
    /// The batch system; without it, found from the number of arguments and the environment.
    #[arg(long, value_parser = batch::by_name())]
    pub scheduler: Option<Scheduler>,
    /// The request, in the words of the account tokens (Slurm's plugin).
    #[arg(long, value_name = "TEXT", value_parser = Tokens, hide_possible_values = true, allow_hyphen_values = true)]
    pub request: Option<String>,
    /// The site asks by --request, and the job's user did not (Slurm's plugin).
    #[arg(long, requires = "request")]
    pub by_site: bool,
    /// What goes before the scheduler's own words.
    #[command(flatten)]
    pub given: CallOptions,
    /// A daemon for this step of the job alone (Slurm); the compute mode stays.
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

/// A shell completes the request's tokens. A wrong token is a refusal, not a usage error.
#[derive(Debug, Clone, Copy)]
struct Tokens;

impl TypedValueParser for Tokens {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let tokens = Key::ALL.into_iter().flat_map(|key| key.row().completions());
        Some(Box::new(tokens.map(PossibleValue::new)))
    }
}

impl JobArguments {
    pub fn input<'a>(
        &'a self,
        env: batch::Lookup<'a>,
        location: Location,
        terminal: bool,
    ) -> Input<'a> {
        Input {
            program: Program::Prologue,
            scheduler: self.scheduler,
            arguments: &self.positional,
            env,
            given: self.given.clone(),
            location,
            terminal,
        }
    }

    /// # Errors
    /// Undetermined: the scheduler never calls us with these arguments.
    pub fn submission(&self, input: &Input<'_>, host: &dyn Host) -> Result<Submission, Failure> {
        let submission = batch::read(input, host)?;
        Ok(submission.of_step(self.step.as_deref())?)
    }

    /// Calls `settings` only if `--queue` is given, or an account is refused.
    pub fn request_of(
        &self,
        submission: &Submission,
        settings: &dyn Fn() -> Option<Settings>,
    ) -> Result<Option<Asked>, Failure> {
        let usual = batch::of(submission.scheduler).facts().syntax;
        let given = self.request.as_deref().map(Request::from_account);
        let account = submission.account.as_ref();
        let account = account.map(|account| read_account(account, settings));
        let resource = submission.resource.as_deref().map(Request::from_resource);
        let all = [
            (given.transpose()?.flatten(), usual),
            (account.transpose()?.flatten(), usual),
            (resource.transpose()?, Syntax::Resource),
        ];
        let mut all = all
            .into_iter()
            .filter_map(|(request, syntax)| Some((request?, syntax)));
        let asked = match all.next() {
            Some((first, syntax)) => Asked {
                request: all
                    .try_fold(first, |request, (other, _)| Request::merge(request, other))?,
                syntax,
                by_site: self.by_site,
            },
            None => Asked {
                request: submission.by_site(settings).unwrap_or_default(),
                syntax: usual,
                by_site: true,
            },
        };
        Ok(Some(asked).filter(|asked| asked.request.is_on()))
    }
}

/// A configuration is read only if it may explain a refused word as a project.
fn read_account(
    account: &[u8],
    settings: &dyn Fn() -> Option<Settings>,
) -> Result<Option<Request>, Refusal> {
    Request::from_account(account).or_else(|refusal| {
        let projects = settings().map_or_else(Vec::new, |settings| settings.pbs.projects);
        match projects.is_empty() {
            true => Err(refusal),
            false => Request::from_account_of(account, &projects),
        }
    })
}
