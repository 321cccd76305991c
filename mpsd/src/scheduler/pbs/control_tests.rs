//! The orders to pbsnodes against a server of paper, in both products.

use super::*;
use crate::scheduler::host::Answer;
use crate::scheduler::pbs::installation::Product;
use crate::scheduler::{openpbs, torque};
use std::cell::RefCell;
use std::io;
use std::path::Path;

/// A server with one node `vm`, which keeps what pbsnodes tells it, or refuses it.
struct Server {
    product: &'static Product,
    operator: bool,
    node: RefCell<(bool, String)>,
    ran: RefCell<Vec<String>>,
}

impl Server {
    fn new(product: &'static Product, operator: bool, offline: bool, note: &str) -> Self {
        Self {
            product,
            operator,
            node: RefCell::new((offline, note.to_owned())),
            ran: RefCell::default(),
        }
    }

    fn node(&self) -> PbsNode<'_> {
        let pbs = Installation {
            product: self.product,
            home: "/x".into(),
            commands: vec!["/x/bin".into()],
        };
        PbsNode::new(pbs, "", self)
    }

    fn is_torque(&self) -> bool {
        self.product.no_note == "n"
    }

    fn show(&self, name: &str) -> String {
        let (offline, note) = self.node.borrow().clone();
        let key = if self.is_torque() { "note" } else { "comment" };
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
    fn run(&self, _: &Path, arguments: &[&str], _: &[(&str, &str)], _: Duration) -> Result<Answer, String> {
        self.ran.borrow_mut().push(arguments.join(" "));
        if let [name] = arguments {
            return Ok(Answer {
                code: Some(0),
                text: self.show(name),
            });
        }
        let torque = self.is_torque();
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
fn out_of_service_with_our_note_and_back_in_both_products() {
    for product in [&torque::product::PRODUCT, &openpbs::product::PRODUCT] {
        let server = Server::new(product, true, false, "");
        let node = server.node();
        node.take_out(WHY, None).unwrap();
        let shown = node.status().unwrap();
        assert_eq!((shown.drained, shown.reason.as_deref()), (true, Some(WHY)));
        node.put_back(None).unwrap();
        assert_eq!(node.status(), Ok(NodeStatus::default()));
        assert_eq!(*server.node.borrow(), (false, String::new()));
    }
}

#[test]
fn a_memo_makes_room_for_our_reason_and_comes_back() {
    let memo = "new fans on Monday";
    for product in [&torque::product::PRODUCT, &openpbs::product::PRODUCT] {
        let server = Server::new(product, true, false, memo);
        server.node().take_out(WHY, Some(memo)).unwrap();
        assert_eq!(*server.node.borrow(), (true, WHY.to_owned()));
        server.node().put_back(Some(memo)).unwrap();
        assert_eq!(*server.node.borrow(), (false, memo.to_owned()));
    }
}

#[test]
fn a_note_of_ours_is_withdrawn_and_no_other() {
    for product in [&torque::product::PRODUCT, &openpbs::product::PRODUCT] {
        for (drained, stands, memo, left) in [
            (false, WHY, None, ""),
            (false, WHY, Some("fans"), "fans"),
            (false, "bad disk", None, "bad disk"),
            (true, WHY, None, WHY),
        ] {
            let server = Server::new(product, true, drained, stands);
            assert_eq!(server.node().withdraw(WHY, memo), Ok(()));
            assert_eq!(*server.node.borrow(), (drained, left.to_owned()));
        }
        let deaf = Server::new(product, false, false, WHY);
        assert!(deaf.node().withdraw(WHY, None).is_err());
    }
}

#[test]
fn a_refusal_is_seen_although_torque_answers_0() {
    for product in [&torque::product::PRODUCT, &openpbs::product::PRODUCT] {
        let server = Server::new(product, false, false, "");
        let node = server.node();
        let said = node.take_out(WHY, None).unwrap();
        assert!(!node.status().unwrap().drained);
        let why = node.not_obeyed(&said);
        assert!(
            why.contains("'free' still; pbsnodes said: pbsnodes: Unauthorized Request"),
            "{why}"
        );
        assert!(why.contains("operators += root@vm.example.org"), "{why}");
    }
}
