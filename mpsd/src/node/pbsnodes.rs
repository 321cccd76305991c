//! Takes a node out of a PBS and back, with `pbsnodes`, and believes only what it reads back.
//!
//! Torque's pbsnodes ends with 0 also when the server refused or does not know the node (facts: pbs-live,
//! "pbsnodes"); so no exit code of it is looked at.

use crate::model::text::one_line;
use crate::scheduler::pbs::Installation;
use crate::scheduler::{Host, Scheduler};
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
mod tests {
    use super::*;
    use crate::scheduler::host::Answer;
    use std::cell::RefCell;
    use std::io;
    use std::path::Path;

    /// A server with one node `vm`, which keeps what pbsnodes tells it, or refuses it.
    struct Server {
        scheduler: Scheduler,
        operator: bool,
        node: RefCell<(bool, String)>,
        ran: RefCell<Vec<String>>,
    }

    impl Server {
        fn new(scheduler: Scheduler, operator: bool, offline: bool, note: &str) -> Self {
            Self {
                scheduler,
                operator,
                node: RefCell::new((offline, note.to_owned())),
                ran: RefCell::default(),
            }
        }

        fn pbsnodes(&self) -> Pbsnodes<'_> {
            let pbs = Installation {
                scheduler: self.scheduler,
                home: "/x".into(),
                commands: vec!["/x/bin".into()],
            };
            Pbsnodes::new(pbs, None, self)
        }

        fn show(&self, name: &str) -> String {
            let (offline, note) = self.node.borrow().clone();
            let key = if self.scheduler == Scheduler::Torque {
                "note"
            } else {
                "comment"
            };
            let note = if note.is_empty() {
                String::new()
            } else {
                format!("     {key} = {note}\n")
            };
            if name == "vm" {
                format!(
                    "vm\n     state = {}\n     np = 4\n{note}\n",
                    if offline { "offline" } else { "free" }
                )
            } else {
                format!("pbsnodes: Unknown node  - {name}\n")
            }
        }
    }

    impl Host for Server {
        fn read(&self, _: &Path, _: usize) -> io::Result<Option<Vec<u8>>> {
            Ok(None)
        }
        fn executable(&self, _: &Path) -> bool {
            true
        }
        fn name(&self) -> String {
            "vm.example.org".to_owned()
        }
        fn run(&self, _: &Path, arguments: &[&str], _: Duration) -> Result<Answer, String> {
            self.ran.borrow_mut().push(arguments.join(" "));
            if let [name] = arguments {
                return Ok(Answer {
                    code: Some(0),
                    text: self.show(name),
                });
            }
            let torque = self.scheduler == Scheduler::Torque;
            if !self.operator {
                let code = if torque { 0 } else { 1 };
                return Ok(Answer {
                    code: Some(code),
                    text: "pbsnodes: Unauthorized Request\n".to_owned(),
                });
            }
            let mut node = self.node.borrow_mut();
            let mut words = arguments.iter();
            while let Some(word) = words.next() {
                match (*word, torque) {
                    ("-o", _) => node.0 = true,
                    ("-c", true) | ("-r", false) => node.0 = false,
                    ("-N", true) | ("-C", false) => {
                        let note = *words.next().unwrap();
                        node.1 = if note == "n" && torque {
                            String::new()
                        } else {
                            note.to_owned()
                        };
                    }
                    ("vm", _) => {}
                    (other, _) => panic!("{other} is no option of this pbsnodes"),
                }
            }
            Ok(Answer {
                code: Some(0),
                text: String::new(),
            })
        }
    }

    const WHY: &str = "mpsd: job 4711: mps-server 691 state D after 20 s";

    #[test]
    fn drained_with_our_note_and_back_in_both_products() {
        for scheduler in [Scheduler::Torque, Scheduler::OpenPbs] {
            let server = Server::new(scheduler, true, false, "");
            let node = server.pbsnodes();
            assert_eq!(node.drain(WHY), Ok(Drained::Ours(WHY.to_owned())));
            assert_eq!(
                node.drain(WHY),
                Ok(Drained::Ours(WHY.to_owned())),
                "twice is once"
            );
            assert_eq!(*server.node.borrow(), (true, WHY.to_owned()));
            assert_eq!(node.undrain(WHY), Ok(()));
            assert_eq!(*server.node.borrow(), (false, String::new()));
        }
    }

    #[test]
    fn a_refusal_is_seen_although_torque_answers_0() {
        for scheduler in [Scheduler::Torque, Scheduler::OpenPbs] {
            let server = Server::new(scheduler, false, false, "");
            let why = server.pbsnodes().drain(WHY).unwrap_err();
            assert!(
                why.contains("'free' still; pbsnodes said: pbsnodes: Unauthorized Request"),
                "{why}"
            );
            assert!(why.contains("operators += root@vm.example.org"), "{why}");
        }
    }

    #[test]
    fn anothers_note_is_never_written_over_or_cleared() {
        let server = Server::new(Scheduler::Torque, true, true, "NHC: disk");
        assert_eq!(
            server.pbsnodes().drain(WHY),
            Ok(Drained::Others("NHC: disk".to_owned()))
        );
        assert!(
            server
                .pbsnodes()
                .undrain(WHY)
                .unwrap_err()
                .contains("which is not ours")
        );
        assert_eq!(*server.node.borrow(), (true, "NHC: disk".to_owned()));
        let memo = Server::new(Scheduler::OpenPbs, true, false, "new fans on Monday");
        assert_eq!(memo.pbsnodes().drain(WHY), Ok(Drained::WithoutReason));
        assert_eq!(*memo.node.borrow(), (true, "new fans on Monday".to_owned()));
        let empty = Server::new(Scheduler::Torque, true, true, "");
        assert_eq!(empty.pbsnodes().drain(WHY), Ok(Drained::Others(String::new())));
        assert!(empty.ran.borrow().iter().all(|line| !line.starts_with('-')));
    }

    #[test]
    fn reasons_fit() {
        assert_eq!(fit(WHY), WHY);
        let long = fit(&"mpsd: x\u{1b}é ".repeat(20));
        assert!(
            long.len() <= LONGEST_REASON && long.ends_with("...") && long.is_ascii(),
            "{long}"
        );
    }
}
