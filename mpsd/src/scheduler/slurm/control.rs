//! Takes a node out of a Slurm and back, with `sinfo` and `scontrol`.

use super::commands::Installation;
use crate::scheduler::control::{Controller, Shown};
use mpsd_core::JobId;
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

    fn requeue(&self, job: &JobId) -> Result<(), String> {
        self.call("scontrol", &["requeue", job.as_str()]).map(|_| ())
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
mod tests {
    use super::*;

    #[test]
    fn states_of_sinfo() {
        let shown = parse("draining|mpsd: job 7: x\ndraining|mpsd: job 7: x\n").unwrap();
        assert!(shown.drained);
        assert_eq!(shown.reason.as_deref(), Some("mpsd: job 7: x"));
        assert_eq!(parse("idle|none\n"), Some(Shown::default()));
        assert_eq!(parse("down*|Not responding\n"), Some(Shown::default()));
        assert_eq!(parse("drained|none\n").unwrap().reason, None);
        assert_eq!(parse(""), None);
    }
}
