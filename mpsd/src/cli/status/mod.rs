//! `mpsctl status`: a job's MPS as it is now, for its user, and of all jobs of the node for root.

pub(super) mod gather;
mod live;
mod text;
pub(super) mod view;
mod whether;

use super::attach::Caller;
use super::say;
use gather::{Gathered, of_node, of_user};
use live::Screen;
use mpsd_core::Failure;
use mpsd_core::failure::{EXIT_NODE, EXIT_REFUSED};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;
use view::View;
use whether::Whether;

/// How often `--watch` looks.
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
    /// Show it anew every two seconds, until 'q' or Ctrl-C
    #[arg(long)]
    pub watch: bool,
}

/// All of it, as `--json` prints it.
#[derive(Debug, Serialize)]
struct StatusJson<'a> {
    /// Whether the calling task is under its job's MPS.
    #[serde(skip_serializing_if = "Option::is_none")]
    under_mps: Option<&'a Whether>,
    /// The jobs.
    jobs: &'a [View],
    /// The jobs of which nothing can be told, and why.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    unread: &'a [String],
    /// Our drains of this node.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    drains: &'a [String],
}

impl Status {
    /// Prints it for `caller`; returns the exit code. `worker` is the program `mpsd`, which asks NVML.
    ///
    /// # Errors
    /// The job's name is none, its MPS is another user's, our directories cannot be read, or there is no terminal to show it
    /// on.
    pub fn run(&self, caller: &Caller<'_>, worker: &Path) -> Result<u8, Failure> {
        let gather = || match caller.uid {
            0 => of_node(caller, worker),
            _ => of_user(caller, worker),
        };
        if self.watch {
            Screen::open()?.show(PERIOD, |width| Ok(lines(&gather()?, Some(width))))?;
            return Ok(0);
        }
        let gathered = gather()?;
        let text = match self.json {
            true => json(&gathered),
            false => lines(&gathered, live::width())
                .iter()
                .map(|line| format!("{line}\n"))
                .collect(),
        };
        say(&text);
        Ok(code(&gathered))
    }
}

fn json(gathered: &Gathered) -> String {
    let told = StatusJson {
        under_mps: gathered.whether.as_ref(),
        jobs: &gathered.jobs,
        unread: &gathered.unread,
        drains: &gathered.drains,
    };
    serde_json::to_string(&told).map_or_else(|_| String::new(), |text| text + "\n")
}

fn lines(gathered: &Gathered, width: Option<usize>) -> Vec<String> {
    let whether = gathered.whether.as_ref();
    let mut lines: Vec<String> = whether
        .map(|about| text::whether(about, width))
        .into_iter()
        .collect();
    lines.extend(gathered.jobs.iter().flat_map(|view| text::lines(view, width)));
    lines.extend(gathered.unread.iter().cloned());
    if lines.is_empty() {
        lines.push("no job has MPS on this node".to_owned());
    }
    lines.extend(gathered.drains.iter().cloned());
    lines
}

/// 0: under MPS, or up as far as it was asked for; 1: not; 2: that is not known.
fn code(gathered: &Gathered) -> u8 {
    if let Some(whether) = &gathered.whether {
        return whether.code();
    }
    if !gathered.unread.is_empty() {
        return EXIT_NODE;
    }
    let asked = gathered.asked.then(|| gathered.jobs.first()).flatten();
    match asked {
        Some(view) if !view.is_up() => EXIT_REFUSED,
        Some(view) if view.daemons.iter().any(|daemon| daemon.silent.is_some()) => match view.has_ended() {
            true => EXIT_REFUSED,
            false => EXIT_NODE,
        },
        _ => 0,
    }
}
