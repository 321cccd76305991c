//! Takes a node out of a Slurm and back, with `sinfo` and `scontrol`, and reads it back.

use crate::scheduler::drain::{Controller, Shown};
use crate::scheduler::host::run_with;
use mpsd_core::JobId;
use mpsd_core::text::one_line;
use std::path::PathBuf;
use std::time::Duration;

/// A busy controller gets this for one call.
const CALL_DEADLINE: Duration = Duration::from_secs(3);

/// One node of a Slurm.
#[derive(Debug, Clone)]
pub struct Slurm {
    /// Directory of `scontrol` and `sinfo`.
    pub programs: PathBuf,
    /// `SLURM_CONF`, where the prolog's environment names one.
    pub conf: Option<String>,
    /// The node's name.
    pub node: String,
}

impl Slurm {
    fn call(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        let conf: Vec<(&str, &str)> = self
            .conf
            .iter()
            .map(|conf| ("SLURM_CONF", conf.as_str()))
            .collect();
        let answer = run_with(&self.programs.join(program), arguments, &conf, CALL_DEADLINE)?;
        if answer.code == Some(0) {
            return Ok(answer.text);
        }
        Err(format!("{program} said: {}", one_line(answer.text.trim(), 160)))
    }
}

impl Slurm {
    /// Puts a batch job back into the queue.
    ///
    /// # Errors
    /// One line; also for a job of srun or salloc, which Slurm does not requeue.
    pub fn requeue(&self, job: &JobId) -> Result<(), String> {
        self.call("scontrol", &["requeue", job.as_str()]).map(|_| ())
    }
}

impl Controller for Slurm {
    fn shown(&self) -> Result<Shown, String> {
        let text = self.call("sinfo", &["-h", "-n", &self.node, "-o", "%T|%E"])?;
        parse(&text).ok_or_else(|| format!("sinfo shows no node '{}'", self.node))
    }

    fn set_drained(&self, reason: &str) -> Result<(), String> {
        let node = format!("nodename={}", self.node);
        let reason = format!("reason={reason}");
        self.call("scontrol", &["update", &node, "state=drain", &reason])
            .map(|_| ())
    }

    fn lift(&self) -> Result<(), String> {
        // `undrain`, not `resume`: a node that is down for another reason stays down.
        let node = format!("nodename={}", self.node);
        self.call("scontrol", &["update", &node, "state=undrain"])
            .map(|_| ())
    }
}

/// `drained*|mpsd: job 4711: …`, one line a partition.
fn parse(text: &str) -> Option<Shown> {
    let (state, reason) = text.lines().find_map(|line| line.split_once('|'))?;
    let reason = reason.trim();
    Some(Shown {
        drained: state.contains("drain"),
        down: state.contains("down"),
        reason: (!reason.is_empty() && reason != "none").then(|| reason.to_owned()),
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
        assert_eq!(
            parse("idle|none\n"),
            Some(Shown {
                drained: false,
                down: false,
                reason: None
            })
        );
        assert!(parse("down*|Not responding\n").unwrap().down);
        assert_eq!(parse(""), None);
    }
}
