//! pbsnodes against a server of paper, in both products.

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
