//! Takes a node out of a Slurm and back, with `sinfo` and `scontrol`.

use super::commands::Installation;
use crate::scheduler::control::{Controller, Requeued, Shown};
use mpsd_core::JobId;
use mpsd_core::text::one_line;
use std::time::Duration;

/// A busy controller gets this for one call.
const CALL_DEADLINE: Duration = Duration::from_secs(3);

/// One node of a Slurm.
pub(super) struct Node {
    /// The Slurm.
    pub slurm: Installation,
    /// The node's name.
    pub name: String,
}

impl Node {
    fn call(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        self.slurm.ask(program, arguments, CALL_DEADLINE)
    }

    fn update(&self, words: &[&str]) -> Result<String, String> {
        let node = format!("nodename={}", self.name);
        let all: Vec<&str> = ["update", &node]
            .into_iter()
            .chain(words.iter().copied())
            .collect();
        self.call("scontrol", &all)
    }
}

impl Controller for Node {
    fn shown(&self) -> Result<Shown, String> {
        let text = self.call("sinfo", &["-h", "-n", &self.name, "-o", "%T|%E"])?;
        parse(&text).ok_or_else(|| format!("sinfo shows no node '{}'", self.name))
    }

    fn take_out(&self, reason: Option<&str>) -> Result<String, String> {
        let reason = reason.ok_or("Slurm drains no node without a reason")?;
        self.update(&["state=drain", &format!("reason={reason}")])
    }

    /// `undrain`, not `resume`: a node that is down for another reason stays down. Slurm removes the reason with the drain.
    fn put_back(&self, _: bool) -> Result<String, String> {
        self.update(&["state=undrain"])
    }

    /// The job's comment keeps what the user wrote there. srun and salloc show a notice; a batch job has it in its output,
    /// once its script runs.
    fn tell(&self, job: &JobId, line: &str, aloud: bool) -> Result<(), String> {
        let users = self.job(job)?.comment;
        let ours = one_line(&format!("{OURS}{}: {line}", self.name), LONGEST_COMMENT);
        self.update_job(job, &format!("comment={}", with_ours(&users, &ours)))?;
        match aloud {
            true => self.call("scontrol", &["notify", job.as_str(), &ours]).map(drop),
            false => Ok(()),
        }
    }

    /// Held as by its user, who releases it when he likes.
    fn requeue(&self, job: &JobId, most: u32) -> Result<Requeued, String> {
        let restarts = self.job(job)?.restarts;
        self.call("scontrol", &["requeue", job.as_str()])?;
        if most == 0 || restarts < most {
            return Ok(Requeued::Waits);
        }
        self.call("scontrol", &["uhold", job.as_str()])?;
        self.mark(&format!(
            "{OURS}job {job} was held after {restarts} restarts without MPS; its comment says why"
        ))?;
        Ok(Requeued::Held)
    }
}

/// What our comments begin with.
const OURS: &str = "mpsd: ";
/// Most of a job's comment that is ours. Characters.
const LONGEST_COMMENT: usize = 400;

/// A job as squeue shows it.
#[derive(Debug, PartialEq, Eq)]
struct Queued {
    restarts: u32,
    comment: String,
}

impl Node {
    fn update_job(&self, job: &JobId, word: &str) -> Result<(), String> {
        let id = format!("jobid={job}");
        self.call("scontrol", &["update", &id, word]).map(drop)
    }

    fn job(&self, job: &JobId) -> Result<Queued, String> {
        let format = "--Format=JobID:16,RestartCnt:16,Comment:1024";
        let text = self.call("squeue", &["--noheader", "--jobs", job.as_str(), format])?;
        // Of an array squeue shows every element.
        let mut lines = text.lines();
        let found = lines.find_map(|line| queued(line.trim(), job.as_str()));
        found.ok_or_else(|| format!("squeue shows no job {job}"))
    }

    /// A note for the administrator, as the node's comment; never over another's.
    fn mark(&self, note: &str) -> Result<(), String> {
        let stands = self.call("sinfo", &["-h", "-n", &self.name, "-O", "Comment:400"])?;
        let stands = stands.lines().next().unwrap_or_default().trim();
        match stands {
            "" | "(null)" | "none" => {}
            ours if ours.starts_with(OURS) => {}
            _ => return Ok(()),
        }
        self.update(&[&format!("comment={note}")]).map(drop)
    }
}

/// `4711  2  the user's comment`.
fn queued(line: &str, job: &str) -> Option<Queued> {
    let (id, rest) = line.split_once(char::is_whitespace)?;
    let rest = rest.trim_start();
    let (restarts, comment) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let restarts = restarts.parse().ok().filter(|_| id == job)?;
    let comment = comment.trim();
    let comment = if comment == "(null)" { "" } else { comment };
    Some(Queued {
        restarts,
        comment: comment.to_owned(),
    })
}

/// The user's comment with ours, which replaces an earlier one of ours.
fn with_ours(users: &str, ours: &str) -> String {
    let users = users
        .find(OURS)
        .map_or(users, |at| &users[..at])
        .trim_end_matches("; ");
    match users {
        "" => ours.to_owned(),
        users => format!("{users}; {ours}"),
    }
}

/// `drained*|mpsd: job 4711: …`, one line a partition. A reason of a node that is not drained is slurmctld's own (`Not
/// responding`) or a leftover, and gives way.
fn parse(text: &str) -> Option<Shown> {
    let (state, reason) = text.lines().find_map(|line| line.split_once('|'))?;
    let (drained, reason) = (state.contains("drain"), reason.trim());
    let said = drained && !reason.is_empty() && reason != "none";
    Some(Shown {
        drained,
        reason: said.then(|| reason.to_owned()),
    })
}

#[cfg(test)]
mod tests;
