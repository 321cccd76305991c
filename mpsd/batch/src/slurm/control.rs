//! Takes a node out of a Slurm and back, with `sinfo` and `scontrol`.

use super::installation::Installation;
use crate::control::{Controller, NodeStatus, Requeued};
use mpsd_core::JobId;
use mpsd_core::text::{is_digits, one_line};
use std::path::PathBuf;
use std::time::Duration;

const CALL_DEADLINE: Duration = Duration::from_secs(3);

pub struct SlurmNode {
    pub slurm: Installation,
    pub name: String,
}

impl SlurmNode {
    fn call(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        self.slurm.ask(program, arguments, CALL_DEADLINE)
    }

    fn update(&self, words: &[&str]) -> Result<String, String> {
        let node = format!("nodename={}", self.name);
        self.call("scontrol", &[&["update", &node], words].concat())
    }
}

impl Controller for SlurmNode {
    fn status(&self) -> Result<NodeStatus, String> {
        let text = self.call("sinfo", &["-h", "-n", &self.name, "-o", "%T|%E"])?;
        parse(&text).ok_or_else(|| format!("sinfo shows no node '{}'", self.name))
    }

    fn take_out(&self, reason: &str, memo: Option<&str>) -> Result<String, String> {
        if let Some(other) = memo {
            return Err(format!("it has another reason ('{other}')"));
        }
        self.update(&["state=drain", &format!("reason={reason}")])
    }

    /// With `undrain`, a node that is down for another reason stays down. Slurm removes the reason
    /// with the drain.
    fn put_back(&self, _: Option<&str>) -> Result<String, String> {
        self.update(&["state=undrain"])
    }

    /// A node in service has a comment and no reason.
    fn remark(&self, note: &str) -> Result<String, String> {
        self.mark(note).map(|()| String::new())
    }

    fn withdraw(&self, note: &str, _: Option<&str>) -> Result<(), String> {
        match self.marked()? == note {
            true => self.update(&["comment="]).map(drop),
            false => Ok(()),
        }
    }

    /// srun and salloc show a notice; a batch job has it in its output, once its script runs.
    fn tell(&self, job: &JobId, line: &str, aloud: bool, _: bool) -> Result<(), String> {
        let ours = one_line(&format!("{OURS}{}: {line}", self.name), LONGEST_COMMENT);
        let written = self.comment(job, &ours);
        if aloud {
            // The number means one job here; a name would mean the array.
            self.call("scontrol", &["notify", job.as_str(), &ours])?;
        }
        written
    }

    /// Holds as the user would, so that the user may release it. The job's comment counts the
    /// failed starts. If squeue does not show it whole, all of Slurm's restarts count.
    fn requeue(&self, job: &JobId, most: u32) -> Result<Requeued, String> {
        let own = self.own_name(job)?;
        let queued = self.job(job, &own);
        let failed = self.call("scontrol", &["requeue", &own]).err();
        let comment = queued.as_ref().ok().and_then(|job| job.comment.as_deref());
        let told = comment.map(failed_starts);
        let counts = failed.is_none() || queued.as_ref().is_ok_and(|queued| queued.runs);
        let number = told.filter(|_| counts).map(|told| told.saturating_add(1));
        let mut done = Requeued {
            failed,
            number: number.map(|number| format!("{FAILED}{number}")),
            ..Requeued::default()
        };
        if done.failed.is_some() || most == 0 {
            return Ok(done);
        }
        let failed = match queued.map(|queued| told.unwrap_or(queued.restarts)) {
            Ok(before) if before < most => return Ok(done),
            Ok(before) => before.saturating_add(1),
            Err(why) => {
                let trouble = format!("whether requeue_limit holds it is not known: {why}");
                done.trouble = Some(trouble);
                return Ok(done);
            }
        };
        let held = self.call("scontrol", &["uhold", &own]);
        done.held = held.is_ok();
        let note = format!(
            "{OURS}job {job} was held after {failed} failed starts; its comment says why it has no MPS"
        );
        done.trouble = match held.map(|_| self.mark(&note)) {
            Err(why) => Some(format!("not held after {failed} failed starts: {why}")),
            Ok(Err(why)) => Some(format!("the node's comment does not say so: {why}")),
            Ok(Ok(())) => None,
        };
        Ok(done)
    }

    /// Slurm names the files for a script alone. 26.05 leaves the first empty if both are the same.
    fn output(&self, job: &JobId) -> Result<Option<PathBuf>, String> {
        let shown = self.call("scontrol", &["show", "job", &self.own_name(job)?])?;
        // Untrusted: a line in the user's comment comes before. The last line of a name is Slurm's.
        let named = |name: &str| {
            let lines = shown.lines().map(str::trim_start);
            let file = lines.rev().find_map(|line| line.strip_prefix(name));
            file.map(PathBuf::from).filter(|file| file.is_absolute())
        };
        Ok(named("StdErr=").or_else(|| named("StdOut=")))
    }

    /// In a job of several nodes another node's words stay: its start may yet fail, and add to the
    /// count.
    fn started(&self, job: &JobId) -> Result<(), String> {
        let own = self.own_name(job)?;
        let Some(comment) = self.job(job, &own)?.comment else {
            return Ok(());
        };
        let (users, ours) = comment.split_at(of_ours(&comment));
        let of_this_node = format!("{OURS}{}: ", self.name);
        let is_ours_alone = || {
            let nodes = self.call("squeue", &["--noheader", "--jobs", &own, "--format", "%D"]);
            nodes.map(|nodes| nodes.trim() == "1")
        };
        if failed_starts(&comment) == 0 || !(ours.contains(&of_this_node) || is_ours_alone()?) {
            return Ok(());
        }
        self.write_comment(&own, users)
    }

    /// `BatchFlag=1` marks a script (docs/facts/slurm.md#failures). Untrusted: a user who writes it
    /// into a job's name can end only that job.
    fn end_script(&self, job: &JobId) -> Result<bool, String> {
        let own = self.own_name(job)?;
        let shown = self.call("scontrol", &["--oneliner", "show", "job", &own])?;
        let is_script = shown.split_whitespace().any(|word| word == "BatchFlag=1");
        if is_script {
            self.call("scancel", &[&own])?;
        }
        Ok(is_script)
    }
}

const OURS: &str = "mpsd: ";
const FAILED: &str = "failed start ";
const BEHIND: &str = "; mpsd: ";
const LONGEST_COMMENT: usize = 400;
/// Bytes of the comment that squeue shows. If it fills them, it may have been cut.
const SHOWN_COMMENT: usize = 1024;

#[derive(Debug, PartialEq, Eq)]
struct Queued {
    runs: bool,
    restarts: u32,
    /// `None`: squeue does not show it whole, in one line.
    comment: Option<String>,
}

impl SlurmNode {
    /// The name that means this job alone. The last element of an array has the array's id, which
    /// in an order means every element (docs/facts/slurm.md#failures). The answer has no text of
    /// the user.
    fn own_name(&self, job: &JobId) -> Result<String, String> {
        let words = ["--noheader", "--jobs", job.as_str(), "--format", "%A %i"];
        let names = self.call("squeue", &words).and_then(|names| {
            let mut lines = names.lines().map(str::trim);
            let own = lines.find_map(|line| own_name(line, job.as_str()));
            own.ok_or_else(|| format!("squeue shows no job {job} that started"))
        });
        names.map_err(|why| format!("what is its own name, should it be an array's: {why}"))
    }

    fn comment(&self, job: &JobId, ours: &str) -> Result<(), String> {
        let own = self.own_name(job)?;
        let users = self.job(job, &own)?.comment;
        let all = users.and_then(|users| with_ours(&users, ours));
        let all = all.ok_or("its comment has several lines or no room, and stays as it is")?;
        self.write_comment(&own, &all)
    }

    fn write_comment(&self, own: &str, comment: &str) -> Result<(), String> {
        let (job, comment) = (format!("jobid={own}"), format!("comment={comment}"));
        self.call("scontrol", &["update", &job, &comment]).map(drop)
    }

    fn job(&self, job: &JobId, own: &str) -> Result<Queued, String> {
        // The number behind the comment proves that the line is whole.
        let format =
            format!("--Format=JobID:16,State:16,RestartCnt:16,Comment:{SHOWN_COMMENT},JobID:16");
        let text = self.call("squeue", &["--noheader", "--jobs", own, &format])?;
        let mut lines = text.lines();
        let found = lines.find_map(|line| queued(line.trim(), job.as_str()));
        found.ok_or_else(|| format!("squeue shows no job {job}"))
    }

    fn marked(&self) -> Result<String, String> {
        let stands = self.call("sinfo", &["-h", "-n", &self.name, "-O", "Comment:400"])?;
        Ok(stands.lines().next().unwrap_or_default().trim().to_owned())
    }

    /// As the node's comment; never over another's.
    fn mark(&self, note: &str) -> Result<(), String> {
        let stands = self.marked()?;
        let is_free = ["", "(null)", "none"].contains(&stands.as_str()) || stands.starts_with(OURS);
        if stands == note {
            return Ok(());
        }
        if !is_free {
            return Err("its comment is not ours".to_owned());
        }
        self.update(&[&format!("comment={note}")]).map(drop)
    }
}

/// The job's own name in a line of its id and its name: `4711_2` in `4711 4711_2`, an array's
/// element. A het job's id means all components, so `4711 4711+0` gives `4711`.
fn own_name(line: &str, job: &str) -> Option<String> {
    let (id, name) = line.split_once(' ')?;
    let behind = |sign| name.split_once(sign).map(|(_, behind)| behind);
    if id == job && (name == job || behind('+').is_some_and(is_digits)) {
        return Some(job.to_owned());
    }
    (id == job && behind('_').is_some_and(is_digits)).then(|| name.to_owned())
}

/// `4711  RUNNING  2  the user's comment  4711`.
fn queued(line: &str, job: &str) -> Option<Queued> {
    let (id, rest) = line.split_once(char::is_whitespace)?;
    let (state, rest) = rest.trim_start().split_once(char::is_whitespace)?;
    let rest = rest.trim_start();
    let (restarts, comment) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let restarts = restarts.parse().ok().filter(|_| id == job)?;
    let comment = comment.strip_suffix(job).map(str::trim_start);
    let comment = comment.filter(|text| text.is_empty() || text.ends_with(char::is_whitespace));
    let mut whole = comment.map(str::trim_end);
    whole = whole.filter(|text| text.len() < SHOWN_COMMENT);
    Some(Queued {
        runs: matches!(state, "RUNNING" | "CONFIGURING"),
        restarts,
        comment: whole.map(|text| if text == "(null)" { "" } else { text }.to_owned()),
    })
}

fn of_ours(comment: &str) -> usize {
    match comment.starts_with(OURS) {
        true => 0,
        false => comment.find(BEHIND).unwrap_or(comment.len()),
    }
}

fn failed_starts(comment: &str) -> u32 {
    let ours = comment.get(of_ours(comment)..).unwrap_or_default();
    let number = || {
        let (_, told) = ours.split_once(OURS)?.1.split_once(": ")?;
        told.strip_prefix(FAILED)?.split_once(':')?.0.parse().ok()
    };
    number().unwrap_or(0)
}

/// The user's comment with our text, which replaces our earlier one. The count of failed starts
/// stays: another of the job's nodes may have counted this start. `None`: no room.
fn with_ours(comment: &str, ours: &str) -> Option<String> {
    let (users, before) = comment.split_at(of_ours(comment));
    let between = if users.is_empty() { "" } else { "; " };
    let mut ours = ours.to_owned();
    if let (0, failed @ 1..) = (failed_starts(&ours), failed_starts(before))
        && let Some(named) = ours.strip_prefix(OURS)
        && let Some((node, line)) = named.split_once(": ")
    {
        ours = format!("{OURS}{node}: {FAILED}{failed}: {line}");
    }
    let all = format!("{users}{between}{ours}");
    Some(all).filter(|all| all.len() < SHOWN_COMMENT)
}

/// `drained*|mpsd: job 4711: …`, one line a partition. The reason of a node that is not drained is
/// slurmctld's own (`Not responding`) or a leftover, and does not count.
fn parse(text: &str) -> Option<NodeStatus> {
    let (state, reason) = text.lines().find_map(|line| line.split_once('|'))?;
    let (drained, reason) = (state.contains("drain"), reason.trim());
    let reason = (drained && !reason.is_empty() && reason != "none").then(|| reason.to_owned());
    Some(NodeStatus { drained, reason })
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
