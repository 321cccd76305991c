//! `mpsctl pbs install | uninstall | check | request`: our files in a PBS, and nobody else's touched.

use super::{check, files, request};
use crate::scheduler::finding::Finding;
use crate::scheduler::openpbs::hook;
use crate::scheduler::pbs::Installation;
use crate::scheduler::torque::starter;
use crate::scheduler::{Host, Scheduler, Site};
use mpsd_core::config::UnattachedTasks;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The verbs of `mpsctl pbs`.
#[derive(Debug, clap::Subcommand)]
pub enum Pbs {
    /// Put our scripts (Torque) or our hook (OpenPBS) in place; print what only an administrator can do
    Install(Install),
    /// Remove what install put there
    Uninstall(Where),
    /// Say what works, what could be better, and what is wrong, one line each
    Check(Where),
    /// Read a request as the queuejob hook does: print it and the account without it, as JSON
    Request(Asked),
}

/// Which PBS.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Where {
    /// The product; found by itself where only one is installed
    #[arg(long, value_name = "torque|openpbs", value_parser = product)]
    pub scheduler: Option<Scheduler>,
}

/// `mpsctl pbs install`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Install {
    /// Which PBS
    #[command(flatten)]
    pub place: Where,
    /// Torque: leave $job_starter as it is; tasks that TM starts then need 'mpsctl exec -- COMMAND'
    #[arg(long)]
    pub no_job_starter: bool,
    /// OpenPBS: the classic prologue and epilogue instead of the hook (first node of a job only)
    #[arg(long)]
    pub classic: bool,
    /// OpenPBS: the hook also refuses at qsub and moves our words out of the account
    #[arg(long)]
    pub queuejob: bool,
}

/// `mpsctl pbs request`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Asked {
    /// The job's account
    #[arg(long, default_value = "")]
    pub account: OsString,
    /// The job's resource `mps`
    #[arg(long, default_value = "")]
    pub resource: String,
}

/// What the verbs need to know of this node beyond PBS itself.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// `[pbs]` of the configuration.
    pub site: Site,
    /// The directory with our programs, as our own file's place says.
    pub programs: PathBuf,
    /// The configuration, where it is not the usual file.
    pub config: Option<PathBuf>,
    /// The lasting root, for the hook's file.
    pub state: PathBuf,
    /// Our own deadline in all.
    pub deadline: Duration,
    /// `unattached_tasks` of `[pbs]`.
    pub unattached: UnattachedTasks,
}

fn product(word: &str) -> Result<Scheduler, String> {
    match word {
        "torque" => Ok(Scheduler::Torque),
        "openpbs" => Ok(Scheduler::OpenPbs),
        _ => Err("allowed: torque, openpbs".to_owned()),
    }
}

/// Carries out a verb; the text goes to `out`. Returns the exit code: 0 done, 1 something is left to do or wrong.
///
/// # Errors
/// One line: what cannot be done on which object, and why.
pub fn run(verb: &Pbs, around: &Surroundings, host: &dyn Host, out: &mut dyn Write) -> Result<u8, String> {
    let say = |lines: Vec<String>, out: &mut dyn Write| {
        lines
            .iter()
            .try_for_each(|line| writeln!(out, "{line}"))
            .map_err(|e| format!("cannot write: {e}"))
    };
    match verb {
        Pbs::Request(asked) => {
            let text = request::read(asked).map_err(|refusal| refusal.to_string())?;
            say(vec![text], out).map(|()| 0)
        }
        Pbs::Install(options) => {
            let pbs = find(&options.place, around, host)?;
            let hook = pbs.scheduler == Scheduler::OpenPbs && !options.classic;
            let mut done = if hook {
                hook::install(&pbs, options, around, host)?
            } else {
                files::install(&pbs, around)?
            };
            if pbs.scheduler == Scheduler::Torque {
                done.add(starter::install(&pbs, !options.no_job_starter, around, host)?);
            } else if !hook {
                let text = format!(
                    "tasks that TM starts are not attached by the classic scripts: {}",
                    starter::consequence(around)
                );
                match around.unattached {
                    UnattachedTasks::Refuse => done.left(text),
                    UnattachedTasks::Warn => done.did(text),
                }
            }
            say(done.lines, out).map(|()| u8::from(!done.complete))
        }
        Pbs::Uninstall(place) => {
            let pbs = find(place, around, host)?;
            let mut done = files::uninstall(&pbs)?;
            done.add(match pbs.scheduler {
                Scheduler::OpenPbs => hook::uninstall(&pbs, around, host)?,
                _ => starter::uninstall(&pbs)?,
            });
            say(done.lines, out).map(|()| u8::from(!done.complete))
        }
        Pbs::Check(place) => {
            let found = check::check(&find(place, around, host)?, around, host);
            let wrong = found.iter().any(Finding::is_wrong);
            say(found.iter().map(ToString::to_string).collect(), out).map(|()| u8::from(wrong))
        }
    }
}

/// What a verb did, line by line, and whether nothing is left to do by hand.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub lines: Vec<String>,
    pub complete: bool,
}

impl Done {
    pub fn new() -> Self {
        Self {
            lines: Vec::new(),
            complete: true,
        }
    }

    pub fn did(&mut self, line: impl Into<String>) {
        self.lines.push(line.into());
    }

    pub fn left(&mut self, line: impl Into<String>) {
        self.lines.push(line.into());
        self.complete = false;
    }

    pub fn add(&mut self, other: Self) {
        self.lines.extend(other.lines);
        self.complete &= other.complete;
    }
}

/// The PBS that is meant: the one named, else the only one that has a `mom_priv` here.
fn find(place: &Where, around: &Surroundings, host: &dyn Host) -> Result<Installation, String> {
    let all = [Scheduler::Torque, Scheduler::OpenPbs].map(|s| Installation::find(s, &around.site, host));
    let here: Vec<&Installation> = all.iter().filter(|pbs| pbs.mom_priv().is_dir()).collect();
    let named = |pbs: &&&Installation| place.scheduler.is_none_or(|name| name == pbs.scheduler);
    let mut meant = here.iter().filter(named);
    match (meant.next(), meant.next()) {
        (Some(one), None) => Ok((**one).clone()),
        (Some(_), Some(_)) => Err("both Torque and OpenPBS are here; say which with --scheduler".to_owned()),
        _ => {
            let homes: Vec<String> = all
                .iter()
                .filter(|pbs| place.scheduler.is_none_or(|name| name == pbs.scheduler))
                .map(|pbs| format!("'{}'", pbs.mom_priv().display()))
                .collect();
            Err(format!(
                "no {}: no PBS mom on this node; set home under [pbs]",
                homes.join(", no ")
            ))
        }
    }
}

/// The arguments that our programs need to find their configuration.
pub(crate) fn config_option(config: Option<&Path>) -> Vec<String> {
    config
        .map(|path| vec!["--config".to_owned(), path.display().to_string()])
        .unwrap_or_default()
}
