//! Takes a node out of a PBS and back, with `pbsnodes`, and believes only what it reads back.
//!
//! Torque's pbsnodes ends with 0 also when the server refused or does not know the node (docs/facts/pbs.md#pbsnodes);
//! so no exit code of it is looked at.

use crate::scheduler::pbs::Installation;
use crate::scheduler::{Host, Scheduler};
use mpsd_core::text::one_line;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// What PBS keeps of a reason; OpenPBS cuts there (source: pbsnodes.c). Bytes.
pub const LONGEST_REASON: usize = 79;
/// A call took 5 to 11 ms; a busy server gets this.
const CALL_DEADLINE: Duration = Duration::from_secs(3);

/// A node as its PBS shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The name that PBS knows it by.
    pub name: String,
    /// `state = …`, as it stands.
    pub state: String,
    /// Its note (Torque) or comment (OpenPBS).
    pub reason: Option<String>,
}

impl Shown {
    /// Whether it takes no new jobs because somebody said so.
    pub fn is_offline(&self) -> bool {
        self.state.split(',').any(|word| word.trim() == "offline")
    }
}

/// What came of a drain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Drained {
    /// The node is offline with our reason, read back; this reason.
    Ours(String),
    /// It was offline already, for another's reason or none: left as it was.
    Others(String),
    /// It is offline, read back; the note is another's and was left as it was.
    WithoutReason,
}

/// One node of one PBS.
pub struct Pbsnodes<'h> {
    host: &'h dyn Host,
    pbs: Installation,
    names: Vec<String>,
    program: Option<PathBuf>,
}

impl fmt::Debug for Pbsnodes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pbsnodes")
            .field("pbs", &self.pbs)
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

impl<'h> Pbsnodes<'h> {
    /// This node, in `pbs`. `name` is what the scheduler or the administrator calls it; the host's own name, whole
    /// and up to its first dot, is tried after it: Torque wants the exact name.
    pub fn new(pbs: Installation, name: Option<&str>, host: &'h dyn Host) -> Self {
        let own = host.name();
        let short = own.split('.').next().unwrap_or_default().to_owned();
        let mut names: Vec<String> = Vec::new();
        for candidate in [name.unwrap_or_default().to_owned(), own, short] {
            let usable = !candidate.is_empty() && !candidate.starts_with('-');
            if usable && !names.contains(&candidate) {
                names.push(candidate);
            }
        }
        let program = pbs.command("pbsnodes", host).ok();
        Self {
            host,
            pbs,
            names,
            program,
        }
    }

    /// The node as PBS shows it now.
    ///
    /// # Errors
    /// One line: the server does not answer or does not know the node.
    pub fn shown(&self) -> Result<Shown, String> {
        let mut last = format!("this node has no name in {}", self.pbs.scheduler);
        for name in &self.names {
            let text = self.call(&[name])?;
            match parse(&text, name) {
                Some(shown) => return Ok(shown),
                None => {
                    last = format!(
                        "'pbsnodes {name}' shows no such node: {}",
                        one_line(text.trim(), 120)
                    )
                }
            }
        }
        Err(last)
    }

    /// Takes the node offline for `reason`, unless somebody already did, and reads it back.
    ///
    /// # Errors
    /// One line: it is not offline now, why, and what to do.
    pub fn drain(&self, reason: &str) -> Result<Drained, String> {
        let before = self.shown()?;
        let ours = fit(reason);
        if before.is_offline() {
            return Ok(if before.reason.as_deref() == Some(&*ours) {
                Drained::Ours(ours)
            } else {
                Drained::Others(before.reason.unwrap_or_default())
            });
        }
        // A note on a node in service is somebody's memo; one of ours, left by a resume by hand, is not.
        let free = before
            .reason
            .as_deref()
            .is_none_or(|note| prefix(note) == prefix(&ours));
        let said = if free {
            self.call(&["-o", self.reason_flag(), &ours, &before.name])?
        } else {
            self.call(&["-o", &before.name])?
        };
        let after = self.shown()?;
        match (after.is_offline(), after.reason.as_deref() == Some(&*ours)) {
            (true, true) => Ok(Drained::Ours(ours)),
            (true, false) if !free => Ok(Drained::WithoutReason),
            (true, false) => Ok(Drained::Others(after.reason.unwrap_or_default())),
            (false, _) => Err(self.refused(&after, &said)),
        }
    }

    /// Puts the node back and clears its note, if the note is exactly `reason`; reads it back.
    ///
    /// # Errors
    /// One line: the note is another's, or the node is still offline.
    pub fn undrain(&self, reason: &str) -> Result<(), String> {
        let before = self.shown()?;
        let ours = fit(reason);
        let note = before.reason.clone().unwrap_or_default();
        if note != ours {
            let shown = one_line(&note, 80);
            return Err(format!(
                "node '{}' has the note '{shown}', which is not ours ('{ours}'): left as it is",
                before.name
            ));
        }
        let said = match (self.pbs.scheduler, before.is_offline()) {
            // -r would show it down until the mom's next status; -c does not (recorded).
            (Scheduler::Torque, true) => self.call(&["-c", "-N", "n", &before.name])?,
            (Scheduler::Torque, false) => self.call(&["-N", "n", &before.name])?,
            (_, true) => self.call(&["-r", "-C", "", &before.name])?,
            (_, false) => self.call(&["-C", "", &before.name])?,
        };
        let after = self.shown()?;
        if after.is_offline() || after.reason.as_deref() == Some(&*ours) {
            Err(self.refused(&after, &said))
        } else {
            Ok(())
        }
    }

    fn reason_flag(&self) -> &'static str {
        if self.pbs.scheduler == Scheduler::Torque {
            "-N"
        } else {
            "-C"
        }
    }

    fn refused(&self, after: &Shown, said: &str) -> String {
        let said = match one_line(said.trim(), 120) {
            empty if empty.is_empty() => "pbsnodes said nothing".to_owned(),
            text => format!("pbsnodes said: {text}"),
        };
        let operators = format!("qmgr -c 'set server operators += root@{}'", self.host.name());
        format!(
            "node '{}' is in state '{}' still; {said}; if root is no operator there: {operators}",
            after.name, after.state
        )
    }

    fn call(&self, arguments: &[&str]) -> Result<String, String> {
        let program = match &self.program {
            Some(program) => program.clone(),
            None => self.pbs.command("pbsnodes", self.host)?,
        };
        self.host
            .run(&program, arguments, CALL_DEADLINE)
            .map(|answer| answer.text)
    }
}

/// The node's paragraph: its name alone at the beginning of a line, then ` NAME = VALUE` lines.
fn parse(text: &str, name: &str) -> Option<Shown> {
    let mut lines = text.lines().skip_while(|line| line.trim_end() != name);
    lines.next()?;
    let mut shown = Shown {
        name: name.to_owned(),
        state: String::new(),
        reason: None,
    };
    for line in lines.take_while(|line| line.starts_with([' ', '\t'])) {
        match line
            .split_once('=')
            .map(|(key, value)| (key.trim(), value.trim()))
        {
            Some(("state", value)) => shown.state = value.to_owned(),
            Some(("note" | "comment", value)) if !value.is_empty() => shown.reason = Some(value.to_owned()),
            _ => {}
        }
    }
    (!shown.state.is_empty()).then_some(shown)
}

/// A reason that PBS keeps whole: plain ASCII, one line, 79 bytes.
pub fn fit(reason: &str) -> String {
    let plain: String = one_line(reason, 400)
        .chars()
        .map(|c| if c.is_ascii() { c } else { '?' })
        .collect();
    let plain = plain.trim();
    if plain.len() <= LONGEST_REASON {
        return plain.to_owned();
    }
    format!("{}...", plain[..LONGEST_REASON - 3].trim_end())
}

/// What stands before the first colon: whose reason it is.
fn prefix(reason: &str) -> &str {
    reason.split(':').next().unwrap_or_default()
}

#[cfg(test)]
#[path = "pbsnodes_tests.rs"]
mod tests;
