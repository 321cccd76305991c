//! `mpsctl pack FILE`: runs unlike commands on the job's GPUs, as many at once as do best.

mod commands;
mod cores;
mod growth;
mod joblog;
mod run;

use crate::places::Places;
use crate::setting::{Setting, code_of};
use anyhow::Result;
use commands::{Line, Part};
use ctl::{Caller, NAME, complain, say, say_json};
use joblog::JobLog;
use mpsd_core::Refusal;
use mpsd_core::text::one_line;
use run::{Limits, Runner};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// As GNU parallel's: 1 to 100 are numbers of failed commands.
pub const EXIT_NOTHING_RUN: u8 = 255;
const EXIT_MORE_FAILED: u8 = 101;

#[derive(Debug, Clone, clap::Args)]
pub struct Pack {
    /// The job; from the scheduler's variables if not given
    #[arg(long, value_name = "ID")]
    pub job: Option<String>,
    #[command(flatten)]
    limits: Limits,
    /// Directory of each command's output, SEQ.out, and of the job log; FILE.results if not given
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
    /// Job log in GNU parallel's format; DIR/joblog if not given. A node's part of several has its
    /// number behind it (.0)
    #[arg(long, value_name = "LOG")]
    joblog: Option<PathBuf>,
    /// Leave out the commands that the job log has
    #[arg(long)]
    resume: bool,
    /// Leave out the commands that succeeded by the job log
    #[arg(long)]
    resume_failed: bool,
    /// Print the commands that would run, and run none
    #[arg(long)]
    dry_run: bool,
    /// One JSON object at the end instead of the summary
    #[arg(long)]
    pub json: bool,
    /// File with a command on each line; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl Pack {
    pub(super) fn run(&self, caller: &Caller<'_>, setting: &Setting) -> Result<u8> {
        let part = Part::of(caller.env)?;
        let all = commands::read(&self.file)?;
        let own: VecDeque<Line> = all.into_iter().filter(|line| part.has(line)).collect();
        let log = self.log();
        let goes_on = self.resume || self.resume_failed;
        if self.dry_run {
            for line in self.left(&own, &log)? {
                say(&(line.text.to_string_lossy().into_owned() + "\n"));
            }
            return Ok(0);
        }
        let places = Places::of(caller, "pack")?;
        let in_step = (caller.env)("SLURM_STEP_NUM_NODES").is_some();
        let nodes = (caller.env)("SLURM_NNODES").and_then(|nodes| nodes.trim().parse::<u64>().ok());
        if let Some(nodes @ 2..) = nodes.filter(|_| !in_step) {
            let all = format!("'srun -N{nodes} -n{nodes} mpsctl pack FILE' uses all");
            complain(NAME, &format!("pack: the job has other nodes too: {all}"));
        }
        let directory = self.directory();
        let unmade = |error| {
            let what = format!("directory '{}'", directory.display());
            Refusal::new(what, format!("cannot be made: {error}"), "--results DIR")
        };
        std::fs::create_dir_all(&directory).map_err(unmade)?;
        let own_log = match part.of {
            1 => log.clone(),
            _ => extended(&log, &format!(".{}", part.node)),
        };
        let open = JobLog::open(&own_log, goes_on)?;
        if !goes_on {
            forget(&log, part);
        }
        let left = self.left(&own, &log)?;
        let mut runner = Runner::new(self.limits, places, setting, caller, left, &directory, open);
        let ended = runner.run()?;
        runner.finish();
        let already = own.len() as u64 - runner.asked;
        match self.json {
            true => say_json(&runner.json(already, &own_log)),
            false => say(&runner.text(already, &own_log)),
        }
        if let Some(signal) = ended {
            let then = "and so is every command; --resume goes on";
            complain(NAME, &format!("pack: ended by {signal}, {then}"));
            return Ok(code_of(signal));
        }
        let failed = u8::try_from(runner.failed.len());
        Ok(failed.map_or(EXIT_MORE_FAILED, |failed| failed.min(EXIT_MORE_FAILED)))
    }

    fn directory(&self) -> PathBuf {
        let of_file = || match self.file == Path::new("-") {
            true => PathBuf::from("pack.results"),
            false => extended(&self.file, ".results"),
        };
        self.results.clone().unwrap_or_else(of_file)
    }

    fn log(&self) -> PathBuf {
        let joblog = self.joblog.clone();
        joblog.unwrap_or_else(|| self.directory().join("joblog"))
    }

    fn left(&self, own: &VecDeque<Line>, log: &Path) -> Result<VecDeque<Line>, Refusal> {
        if !self.resume && !self.resume_failed {
            return Ok(own.clone());
        }
        let past = joblog::read_all(log)?;
        let mut left = VecDeque::new();
        for line in own {
            match past.get(&line.seq) {
                Some(past) if past.command != line.text => {
                    let both = [&past.command, &line.text];
                    let [was, is] = both.map(|text| one_line(&text.to_string_lossy(), 60));
                    let why = format!("command {} was '{was}', and is '{is}' now", line.seq);
                    let allowed = "the same file, with more commands at its end at most";
                    return Err(joblog::refusal(log, why, allowed));
                }
                Some(past) if past.good || !self.resume_failed => {}
                _ => left.push_back(line.clone()),
            }
        }
        Ok(left)
    }
}

fn extended(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// Removes logs of an earlier pack that no node of this pack writes.
fn forget(log: &Path, part: Part) {
    let is_stale = |node: Option<u64>| match (node, part.of) {
        (None, of) => of > 1,
        (Some(_), 1) => true,
        (Some(node), of) => node >= of,
    };
    let all = joblog::logs_of(log).into_iter();
    for (_, path) in all.filter(|(node, _)| part.node == 0 && is_stale(*node)) {
        let _ = std::fs::remove_file(path);
    }
}
