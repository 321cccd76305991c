//! A PBS on this node: its jobs by the mom's own files and `qstat`, its node by `pbsnodes`.
//!
//! No exit code of pbsnodes counts: Torque's is 0 after a refusal (docs/facts/pbs.md#pbsnodes).

use super::{Installation, attribute, same_node};
use crate::batch_system::Located;
use crate::control::{Controller, JobState, KnownJobs, NodeStatus};
use crate::host::{Host, ThisHost};
use mpsd_core::JobId;
use mpsd_core::text::one_line;
use std::time::Duration;

/// What PBS keeps of a reason; OpenPBS cuts there (source: pbsnodes.c). Bytes.
pub const LONGEST_REASON: usize = 79;
/// A call took 5 to 11 ms; a busy server gets this.
const CALL_DEADLINE: Duration = Duration::from_secs(3);
/// For what has more time than an epilogue.
const QSTAT_DEADLINE: Duration = Duration::from_secs(5);
const SHOWN: usize = 120;
const LONGEST_COMMENT: usize = 500;

/// Torque's and OpenPBS's exit code for a job that the server does not know (recorded).
const UNKNOWN_JOB: i32 = 153;
/// States of a job that is on no node; `B` is that of an array itself, not of one of its jobs.
const ON_NO_NODE: [&str; 8] = ["C", "F", "Q", "H", "W", "M", "X", "B"];

pub struct PbsNode<'h> {
    host: &'h dyn Host,
    pbs: Installation,
    names: Vec<String>,
}

struct Paragraph {
    name: String,
    state: String,
    note: Option<String>,
}

impl Paragraph {
    fn has(&self, state: &str) -> bool {
        self.state.split(',').any(|word| word.trim() == state)
    }
}

impl<'h> PbsNode<'h> {
    /// Torque wants the exact name: `name`, or the host's own, whole or up to its first dot.
    pub fn new(pbs: Installation, name: &str, host: &'h dyn Host) -> Self {
        let own = host.name();
        let short = own.split('.').next().unwrap_or_default();
        let mut names: Vec<String> = Vec::new();
        for name in [name, &own, short] {
            let is_known = names.iter().any(|known| known == name);
            if !is_known && !name.is_empty() && !name.starts_with('-') {
                names.push(name.to_owned());
            }
        }
        Self { host, pbs, names }
    }

    /// Whether one job or reservation has the whole node, by its `place` or a vnode's `sharing`.
    pub fn is_exclusive(&self) -> bool {
        let is_so = |node: Paragraph| node.has("job-exclusive") || node.has("resv-exclusive");
        self.find().is_ok_and(is_so)
    }

    fn call(&self, arguments: &[&str]) -> Result<String, String> {
        let pbs = &self.pbs;
        let answer = pbs.run("pbsnodes", arguments, CALL_DEADLINE, self.host);
        answer.map(|answer| answer.text)
    }

    fn find(&self) -> Result<Paragraph, String> {
        let mut last = format!("this node has no name in {}", self.pbs.product.scheduler);
        for name in &self.names {
            let text = self.call(&[name])?;
            if let Some(found) = parse(&text, name).or_else(|| vnodes(&text, name)) {
                return Ok(found);
            }
            let why = "shows no such node (is node under [pbs] needed?)";
            last = format!("'pbsnodes {name}' {why}: {}", one_line(text.trim(), SHOWN));
        }
        Err(last)
    }

    /// Sets what `qstat -f` shows. Only an operator may (docs/facts/pbs.md#results-of-a-prologue).
    fn comment(&self, job: &JobId, line: &str) -> Result<(), String> {
        let comment = one_line(line, LONGEST_COMMENT).replace('"', "'");
        let comment = format!("comment=\"{comment}\"");
        let (pbs, arguments) = (&self.pbs, ["-W", &comment, job.as_str()]);
        let answer = pbs.run("qalter", &arguments, CALL_DEADLINE, self.host)?;
        answer.accepted("qalter").map(drop)
    }

    fn order(&self, order: &str, note: &str) -> Result<String, String> {
        let name = self.find()?.name;
        self.call(&[order, self.pbs.product.note_option, note, &name])
    }
}

impl Controller for PbsNode<'_> {
    fn status(&self) -> Result<NodeStatus, String> {
        let found = self.find()?;
        Ok(NodeStatus {
            drained: found.has("offline"),
            reason: found.note,
        })
    }

    fn take_out(&self, reason: &str, _: Option<&str>) -> Result<String, String> {
        self.order("-o", reason)
    }

    fn remark(&self, note: &str) -> Result<String, String> {
        let name = self.find()?.name;
        self.call(&[self.pbs.product.note_option, note, &name])
    }

    fn withdraw(&self, note: &str, memo: Option<&str>) -> Result<(), String> {
        let stands = |node: NodeStatus| !node.drained && node.reason.as_deref() == Some(note);
        if !stands(self.status()?) {
            return Ok(());
        }
        let said = self.remark(memo.unwrap_or(self.pbs.product.no_note))?;
        let said = one_line(said.trim(), SHOWN);
        match stands(self.status()?) {
            true => Err(format!("it shows '{note}' still; pbsnodes said: {said}")),
            false => Ok(()),
        }
    }

    /// Under Torque only a refusal: its users never get the output of a refused job.
    fn tell(&self, job: &JobId, line: &str, _: bool, refused: bool) -> Result<(), String> {
        match (self.pbs.product.comments, refused) {
            (true, true) => self.comment(job, &format!("MPS refused: {line}")),
            (true, false) => Ok(()),
            (false, _) => self.comment(job, line),
        }
    }

    fn put_back(&self, memo: Option<&str>) -> Result<String, String> {
        let product = self.pbs.product;
        self.order(product.online_option, memo.unwrap_or(product.no_note))
    }

    fn not_obeyed(&self, said: &str) -> String {
        let said = match said.trim() {
            "" => "pbsnodes said nothing".to_owned(),
            text => format!("pbsnodes said: {}", one_line(text, SHOWN)),
        };
        let still =
            |node: Paragraph| format!("node '{}' is in state '{}' still", node.name, node.state);
        let state = self.find().map_or_else(|why| why, still);
        let host = self.host.name();
        let operators = format!("qmgr -c 'set server operators += root@{host}'");
        format!("{state}; {said}; if root is no operator there: {operators}")
    }
}

impl Located for Installation {
    fn may_own(&self, job: &JobId) -> bool {
        self.is_here() && !job.is_number()
    }

    fn whole_ids(&self, number: &str) -> Vec<String> {
        let servers = self.servers(&ThisHost).into_iter();
        servers.map(|server| format!("{number}.{server}")).collect()
    }

    fn has_file_of(&self, job: &JobId) -> bool {
        let files = self.job_files(job);
        files.iter().any(|file| file.symlink_metadata().is_ok())
    }

    fn known_jobs(&self, node: &str) -> KnownJobs {
        let (pbs, node) = (self.clone(), node.to_owned());
        Box::new(move |job| {
            // A Torque sister makes its file after its prologue (recorded).
            if pbs.has_file_of(job) {
                return JobState::Here;
            }
            match pbs.run("qstat", &["-f", job.as_str()], QSTAT_DEADLINE, &ThisHost) {
                Ok(answer) => job_state(&node, answer.code, &answer.text),
                Err(why) => JobState::Undecided(why),
            }
        })
    }

    fn controller(&self, node: &str) -> Box<dyn Controller> {
        Box::new(PbsNode::new(self.clone(), node, &ThisHost))
    }
}

fn job_state(node: &str, code: Option<i32>, text: &str) -> JobState {
    // OpenPBS says "has finished" of a job that it keeps as history only.
    let has_failed = code.is_some_and(|code| code != 0);
    let has_finished = has_failed && text.contains("has finished");
    if code == Some(UNKNOWN_JOB) || has_finished {
        return JobState::Gone("the server does not know it".to_owned());
    }
    let Some(state) = attribute(text, "job_state").filter(|_| code == Some(0)) else {
        return JobState::Undecided(format!("qstat said: {}", one_line(text.trim(), 120)));
    };
    if ON_NO_NODE.contains(&state.as_str()) {
        return JobState::Gone(format!("it is in state {state}"));
    }
    let Some(hosts) = attribute(text, "exec_host") else {
        return JobState::Undecided(format!("in state {state}, and qstat names no exec_host"));
    };
    let is_here = |word: &str| same_node(word.split('/').next().unwrap_or(word), node);
    match hosts.split('+').any(is_here) {
        true => JobState::Here,
        false => JobState::Gone(format!("it is on {}", one_line(&hosts, 60))),
    }
}

/// The first of `names` that is out of service for a reason with `why`, if the server answers.
pub fn offline_for(
    pbs: &Installation,
    names: &[&str],
    why: &str,
    host: &dyn Host,
) -> Option<(String, String)> {
    names.first()?;
    let answer = pbs.run("pbsnodes", names, CALL_DEADLINE, host).ok()?;
    let mut found = names.iter().filter_map(|name| parse(&answer.text, name));
    found.find_map(|Paragraph { name, state, note }| {
        let note = note.filter(|note| state.contains("offline") && note.contains(why))?;
        Some((name, note))
    })
}

/// The host as one node, if its vnodes have other names: the words that the states of all vnodes
/// have. OpenPBS' pbsnodes takes a host's name and shows its vnodes (docs/facts/pbs.md#pbsnodes).
fn vnodes(text: &str, host: &str) -> Option<Paragraph> {
    let names = text.lines().filter(|line| !line.starts_with([' ', '\t']));
    let all = names.filter_map(|line| parse(text, line.trim_end()));
    let mut shared = all.reduce(|shared, vnode| {
        let words = shared.state.split(',').map(str::trim);
        let words = words.filter(|word| vnode.has(word));
        Paragraph {
            state: words.collect::<Vec<_>>().join(","),
            note: shared.note.or(vnode.note),
            ..shared
        }
    })?;
    shared.name = host.to_owned();
    Some(shared)
}

/// The node's paragraph: its name alone at the beginning of a line, then ` NAME = VALUE` lines.
fn parse(text: &str, name: &str) -> Option<Paragraph> {
    let mut lines = text.lines().skip_while(|line| line.trim_end() != name);
    lines.next();
    let own = lines.take_while(|line| line.starts_with([' ', '\t']));
    let own = own.collect::<Vec<_>>().join("\n");
    let value = |key: &str| attribute(&own, key).filter(|value| !value.is_empty());
    Some(Paragraph {
        name: name.to_owned(),
        state: value("state")?,
        note: value("note").or_else(|| value("comment")),
    })
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
