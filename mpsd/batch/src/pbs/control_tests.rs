//! The orders to pbsnodes against a simulated server, in both products.

use super::*;
use crate::host::Answer;
use crate::pbs::Product;
use crate::{openpbs, torque};
use std::cell::RefCell;
use std::io;
use std::path::Path;

/// A server with one node `vm`, offline or not, and with a note. It obeys an operator.
struct Server {
    product: &'static Product,
    operator: bool,
    /// The names of its vnodes.
    vnodes: &'static [&'static str],
    node: RefCell<(bool, String)>,
}

impl Server {
    /// One of each product, with the node in this state.
    fn both(operator: bool, offline: bool, note: &str) -> [Self; 2] {
        [&torque::PRODUCT, &openpbs::PRODUCT].map(|product| Self {
            product,
            operator,
            vnodes: &["vm"],
            node: RefCell::new((offline, note.to_owned())),
        })
    }

    fn node(&self) -> PbsNode<'_> {
        let pbs = Installation {
            product: self.product,
            home: "/x".into(),
            commands: vec!["/x/bin".into()],
        };
        PbsNode::new(pbs, "", self)
    }

    fn holds(&self, offline: bool, note: &str) -> bool {
        *self.node.borrow() == (offline, note.to_owned())
    }

    /// The host, by this name in the site's configuration, is taken out and back.
    fn goes_out_and_back(&self, name: &str, memo: Option<&str>) {
        let node = PbsNode::new(self.node().pbs, name, self);
        node.take_out(WHY, memo).unwrap();
        let (drained, reason) = (true, Some(WHY.to_owned()));
        assert_eq!(node.status(), Ok(NodeStatus { drained, reason }));
        node.put_back(memo).unwrap();
        assert!(self.holds(false, memo.unwrap_or_default()));
    }

    fn is_torque(&self) -> bool {
        self.product.no_note == "n"
    }

    fn show(&self, name: &str) -> String {
        if name != "vm" {
            return format!("pbsnodes: Unknown node  - {name}\n");
        }
        let (offline, note) = self.node.borrow().clone();
        let state = if offline { "offline" } else { "free" };
        let key = if self.is_torque() { "note" } else { "comment" };
        // An attribute without a value is none.
        let vnode = |vnode: &&str| {
            format!("{vnode}\n     state = {state}\n     np = 4\n     {key} = {note}\n\n")
        };
        self.vnodes.iter().map(vnode).collect()
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
    fn run(
        &self,
        _: &Path,
        arguments: &[&str],
        _: &[(&str, &str)],
        _: Duration,
    ) -> Result<Answer, String> {
        let torque = self.is_torque();
        let code = Some(0);
        if let [name] = arguments {
            let text = self.show(name);
            return Ok(Answer { code, text });
        }
        if !self.operator {
            let code = Some(i32::from(!torque));
            let text = "pbsnodes: Unauthorized Request\n".to_owned();
            return Ok(Answer { code, text });
        }
        let mut node = self.node.borrow_mut();
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            match (*word, torque) {
                ("-o", _) => node.0 = true,
                ("-c", true) | ("-r", false) => node.0 = false,
                ("-N", true) | ("-C", false) => {
                    let note = *words.next().unwrap();
                    node.1 = if torque && note == "n" { "" } else { note }.to_owned();
                }
                ("vm", _) => {}
                (other, _) => panic!("{other} is no option of this pbsnodes"),
            }
        }
        let text = String::new();
        Ok(Answer { code, text })
    }
}

const WHY: &str = "mpsd: job 4711: mps-server 691 state D after 20 s";

#[test]
fn out_of_service_with_our_note_and_back_with_the_memo() {
    for memo in [None, Some("new fans on Monday")] {
        for server in Server::both(true, false, memo.unwrap_or_default()) {
            server.goes_out_and_back("", memo);
        }
    }
}

/// As `create node gpubox Mom=vm` makes them.
#[test]
fn a_host_whose_vnodes_have_other_names_is_taken_out_and_back() {
    for vnodes in [&["gpubox"][..], &["gpubox[0]", "gpubox[1]"]] {
        for configured in ["", "gpubox"] {
            let [_, mut server] = Server::both(true, false, "");
            server.vnodes = vnodes;
            server.goes_out_and_back(configured, None);
        }
    }
}

#[test]
fn several_vnodes_have_the_state_that_all_of_them_show() {
    let show = |first: &str, second: &str| {
        format!("a\n     state = {first}\n\nb\n     state = {second}\n     comment = hot\n\n")
    };
    let state = |text: &str| vnodes(text, "vm").map(|vm| (vm.name, vm.state, vm.note));
    let of = |state: &str| Some(("vm".to_owned(), state.to_owned(), Some("hot".to_owned())));
    for (first, second, all) in [
        ("offline", "offline,job-exclusive", "offline"),
        ("job-exclusive", "free", ""),
        ("job-exclusive", "job-exclusive", "job-exclusive"),
    ] {
        assert_eq!(state(&show(first, second)), of(all));
    }
    assert_eq!(state("Node: vm,  Error: Unknown node \n"), None);
}

#[test]
fn a_note_of_ours_is_withdrawn_and_no_other() {
    for (drained, stands, memo, left) in [
        (false, WHY, None, ""),
        (false, WHY, Some("fans"), "fans"),
        (false, "bad disk", None, "bad disk"),
        (true, WHY, None, WHY),
    ] {
        for server in Server::both(true, drained, stands) {
            assert_eq!(server.node().withdraw(WHY, memo), Ok(()));
            assert!(server.holds(drained, left));
        }
    }
    for deaf in Server::both(false, false, WHY) {
        assert!(deaf.node().withdraw(WHY, None).is_err());
    }
}

#[test]
fn a_refusal_is_seen_although_torque_answers_0() {
    for server in Server::both(false, false, "") {
        let node = server.node();
        let said = node.take_out(WHY, None).unwrap();
        assert_eq!(node.status(), Ok(NodeStatus::default()));
        let why = node.not_obeyed(&said);
        let said = "'free' still; pbsnodes said: pbsnodes: Unauthorized Request";
        assert!(why.contains(said), "{why}");
        assert!(why.contains("operators += root@vm.example.org"), "{why}");
    }
}

#[test]
fn a_job_is_here_while_it_runs_here_and_gone_only_by_the_servers_word() {
    let of = |state: &str, hosts: &str| {
        let text = format!("Job Id: 7.srv\n    job_state = {state}\n    exec_host = {hosts}\n");
        job_state("n2", Some(0), &text)
    };
    assert_eq!(of("R", "n1/0+n2/0*4"), JobState::Here);
    assert_eq!(of("E", "n2.cluster/0"), JobState::Here);
    assert!(matches!(of("R", "n1/0+n22/0"), JobState::Gone(_)));
    for state in ["C", "Q", "H", "F"] {
        assert!(matches!(of(state, "n2/0"), JobState::Gone(_)), "{state}");
    }
    let finished = "qstat: 7.srv Job has finished, use -x or -H to see it";
    let unreached = "qstat: cannot connect to server srv (errno=15010)";
    for (code, text, gone) in [
        (153, "qstat: Unknown Job Id 7.srv", true),
        (35, finished, true),
        (1, unreached, false),
        (0, "Job Id: 7.srv\n    job_state = R\n", false),
        (0, "", false),
        // Its user's words.
        (
            0,
            "    Account_Name = has finished\n    job_state = R\n",
            false,
        ),
    ] {
        let state = job_state("n2", Some(code), text);
        assert_eq!(matches!(state, JobState::Gone(_)), gone, "{text}");
    }
}
