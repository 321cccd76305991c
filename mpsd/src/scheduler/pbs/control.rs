//! Takes a node out of a PBS and back, with `pbsnodes`.
//!
//! Torque's pbsnodes exits 0 even if the server refused or does not know the node (docs/facts/pbs.md#pbsnodes). So no exit
//! code of it counts.

use super::installation::{Installation, attribute};
use crate::scheduler::control::{Controller, NodeStatus};
use crate::scheduler::host::Host;
use mpsd_core::JobId;
use mpsd_core::text::one_line;
use std::time::Duration;

/// What PBS keeps of a reason; OpenPBS cuts there (source: pbsnodes.c). Bytes.
pub(crate) const LONGEST_REASON: usize = 79;
/// A call took 5 to 11 ms; a busy server gets this.
const CALL_DEADLINE: Duration = Duration::from_secs(3);
/// Longest answer that a message repeats. Characters.
const SHOWN: usize = 120;
/// Longest comment that we give a job. Characters.
const LONGEST_COMMENT: usize = 500;

/// One node of one PBS.
pub(crate) struct PbsNode<'h> {
    host: &'h dyn Host,
    pbs: Installation,
    names: Vec<String>,
}

/// A node's paragraph of `pbsnodes`.
struct Paragraph {
    name: String,
    state: String,
    note: Option<String>,
}

impl<'h> PbsNode<'h> {
    /// This node, called `name` by the scheduler or the administrator. The host's own name, whole and up to its first dot,
    /// is tried after it: Torque wants the exact name.
    pub fn new(pbs: Installation, name: &str, host: &'h dyn Host) -> Self {
        let own = host.name();
        let short = own.split('.').next().unwrap_or_default().to_owned();
        let mut names: Vec<String> = Vec::new();
        for candidate in [name.to_owned(), own, short] {
            let usable = !candidate.is_empty() && !candidate.starts_with('-');
            if usable && !names.contains(&candidate) {
                names.push(candidate);
            }
        }
        Self { host, pbs, names }
    }

    fn call(&self, arguments: &[&str]) -> Result<String, String> {
        let answer = self.pbs.run("pbsnodes", arguments, CALL_DEADLINE, self.host);
        answer.map(|answer| answer.text)
    }

    /// The node under the first name that PBS knows.
    fn find(&self) -> Result<Paragraph, String> {
        let mut last = format!("this node has no name in {}", self.pbs.product.scheduler);
        for name in &self.names {
            let text = self.call(&[name])?;
            match parse(&text, name) {
                Some(found) => return Ok(found),
                None => {
                    let said = one_line(text.trim(), SHOWN);
                    last = format!("'pbsnodes {name}' shows no such node: {said}");
                }
            }
        }
        Err(last)
    }

    /// Sets the job's comment, which `qstat -f` shows. Only an operator may (docs/facts/pbs.md#results-of-a-prologue).
    fn comment(&self, job: &JobId, line: &str) -> Result<(), String> {
        let comment = one_line(line, LONGEST_COMMENT).replace('"', "'");
        let comment = format!("comment=\"{comment}\"");
        let arguments = ["-W", &comment, job.as_str()];
        let answer = self.pbs.run("qalter", &arguments, CALL_DEADLINE, self.host)?;
        match answer.code {
            Some(0) => Ok(()),
            _ => Err(format!("qalter said: {}", one_line(answer.text.trim(), SHOWN))),
        }
    }

    /// Gives an order together with the note that the node has afterwards.
    fn order(&self, order: &str, note: &str) -> Result<String, String> {
        let name = self.find()?.name;
        self.call(&[order, self.pbs.product.note_option, note, &name])
    }
}

impl Controller for PbsNode<'_> {
    fn status(&self) -> Result<NodeStatus, String> {
        let found = self.find()?;
        Ok(NodeStatus {
            drained: found.state.split(',').any(|word| word.trim() == "offline"),
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

    /// Torque's users read only a refusal there.
    fn tell(&self, job: &JobId, line: &str, _: bool) -> Result<(), String> {
        match self.pbs.product.comments {
            true => Ok(()),
            false => self.comment(job, line),
        }
    }

    /// OpenPBS delivers what the job's error file has.
    fn tell_refused(&self, job: &JobId, line: &str) -> Result<(), String> {
        match self.pbs.product.comments {
            true => self.comment(job, line),
            false => Ok(()),
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
        let still = |node: Paragraph| format!("node '{}' is in state '{}' still", node.name, node.state);
        let state = self.find().map_or_else(|why| why, still);
        let operators = format!("qmgr -c 'set server operators += root@{}'", self.host.name());
        format!("{state}; {said}; if root is no operator there: {operators}")
    }
}

/// The first of `names` that is out of service for a reason that holds `why`; `None` too if the server does not answer.
pub(crate) fn offline_for(
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

/// The node's paragraph: its name alone at the beginning of a line, then ` NAME = VALUE` lines.
fn parse(text: &str, name: &str) -> Option<Paragraph> {
    let lines = text.lines().skip_while(|line| line.trim_end() != name).skip(1);
    let own: Vec<&str> = lines.take_while(|line| line.starts_with([' ', '\t'])).collect();
    let own = own.join("\n");
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
