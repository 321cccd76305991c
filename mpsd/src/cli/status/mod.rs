//! `mpsctl status`: a job's MPS as it is now, for its user, and of all jobs of the node for root.

mod attached;
mod collect;
mod live;
pub(super) mod model;
mod text;

use super::attach::Caller;
use super::terminal::{say, width};
use attached::Verdict;
use collect::{Collected, for_root, for_user};
use live::Screen;
use model::JobStatus;
use mpsd_core::Failure;
use mpsd_core::failure::{EXIT_NODE, EXIT_REFUSED};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// Time between two updates of `--watch`.
const PERIOD: Duration = Duration::from_secs(2);

/// `mpsctl status`.
#[derive(Debug, Clone, clap::Args)]
pub struct Status {
    /// The job; from the scheduler's variables if not given, and for root all jobs of the node
    #[arg(value_name = "JOB")]
    pub job: Option<String>,
    /// One object instead of text
    #[arg(long, conflicts_with = "watch")]
    pub json: bool,
    /// Update it every two seconds, until 'q' or Ctrl-C
    #[arg(long)]
    pub watch: bool,
}

/// The object of `--json`.
#[derive(Serialize)]
struct StatusJson<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    under_mps: Option<&'a Verdict>,
    jobs: &'a [JobStatus],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    unread: &'a [String],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    drains: &'a [String],
}

impl Status {
    /// Prints it for `caller`; returns the exit code. `worker` is the program `mpsd`, which asks NVML.
    ///
    /// # Errors
    /// The job's name is invalid, its MPS is another user's, our directories cannot be read, or `--watch` has no terminal.
    pub fn run(&self, caller: &Caller<'_>, worker: &Path) -> Result<u8, Failure> {
        let collect = || match caller.uid {
            0 => for_root(caller, worker),
            _ => for_user(caller, worker),
        };
        if self.watch {
            Screen::open()?.show(PERIOD, |width| Ok(lines(&collect()?, Some(width))))?;
            return Ok(0);
        }
        let all = collect()?;
        say(&match self.json {
            true => json(&all),
            false => lines(&all, width()).join("\n") + "\n",
        });
        Ok(code(&all))
    }
}

fn json(all: &Collected) -> String {
    let object = StatusJson {
        under_mps: all.verdict.as_ref(),
        jobs: &all.jobs,
        unread: &all.unread,
        drains: &all.drains,
    };
    serde_json::to_string(&object).map_or_else(|_| String::new(), |text| text + "\n")
}

fn lines(all: &Collected, width: Option<usize>) -> Vec<String> {
    let verdict = all.verdict.iter().map(|verdict| text::verdict(verdict, width));
    let jobs = all.jobs.iter().flat_map(|status| text::lines(status, width));
    let mut lines: Vec<String> = verdict.chain(jobs).chain(all.unread.iter().cloned()).collect();
    if lines.is_empty() {
        lines.push("no job has MPS on this node".to_owned());
    }
    lines.extend(all.drains.iter().cloned());
    lines
}

/// 0: under MPS, or the named job's MPS is up; 1: not; 2: not known.
fn code(all: &Collected) -> u8 {
    if let Some(verdict) = &all.verdict {
        return verdict.code();
    }
    match all.jobs.first().filter(|_| all.named) {
        _ if !all.unread.is_empty() => EXIT_NODE,
        Some(status) if !status.is_up() || status.has_ended() => EXIT_REFUSED,
        Some(status) if status.daemons.iter().any(|daemon| daemon.silent.is_some()) => EXIT_NODE,
        _ => 0,
    }
}
