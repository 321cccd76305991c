//! Drains and undrains: with our own prefix, on proof, never over another's reason, read back, and remembered until
//! delivered.

pub mod markers;
pub mod spool;

use crate::scheduler::pbs::control::Pbs;
use crate::scheduler::slurm::commands;
use crate::scheduler::slurm::control::Slurm;
use crate::scheduler::{Scheduler, Site};
pub use markers::Marker;
use mpsd_core::text::one_line;
use mpsd_core::{Fault, JobId, Paths};
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest reason under PBS, bytes: OpenPBS keeps 79 (docs/facts/pbs.md#pbsnodes).
const LONGEST_PBS: usize = 79;
/// Longest reason under Slurm, bytes, which keeps them whole: enough for two paths and an error.
const LONGEST_SLURM: usize = 400;

/// A node as its scheduler shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// It takes no new jobs because somebody said so.
    pub drained: bool,
    /// It is down.
    pub down: bool,
    /// The reason or note.
    pub reason: Option<String>,
}

/// A scheduler's way to take one node out of service.
pub trait Controller {
    /// The node as it stands.
    ///
    /// # Errors
    /// One line: the controller does not answer, or does not know the node.
    fn shown(&self) -> Result<Shown, String>;
    /// Drains it.
    ///
    /// # Errors
    /// One line.
    fn set_drained(&self, reason: &str) -> Result<(), String>;
    /// Puts it back and clears the reason.
    ///
    /// # Errors
    /// One line.
    fn lift(&self) -> Result<(), String>;
}

/// What became of a drain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The node is drained with a reason of ours, read back: this one, which may be an earlier drain's.
    Ours(String),
    /// Somebody drained it before us: left as it was.
    Others(String),
}

/// The reason for `fault`: `mpsd: job 4711: mps-server 691: state D after 20 s`.
pub fn reason(scheduler: Scheduler, prefix: &str, job: &JobId, fault: &Fault) -> String {
    let longest = match scheduler {
        Scheduler::Slurm => LONGEST_SLURM,
        Scheduler::Torque | Scheduler::OpenPbs => LONGEST_PBS,
    };
    let text = format!("{prefix} job {job}: {fault}");
    // Quotes at the ends are eaten by Slurm, and no scheduler wants anything but ASCII.
    let plain: String = text
        .chars()
        .map(|c| if c.is_ascii() && c != '"' { c } else { '?' })
        .collect();
    let mut line = one_line(&plain, longest);
    line.truncate(longest);
    line.trim_end().to_owned()
}

/// Drains the node for `reason`, unless it is drained already, and reads it back.
///
/// # Errors
/// One line: it is not drained now.
pub fn drain(controller: &dyn Controller, prefix: &str, reason: &str) -> Result<Outcome, String> {
    let before = controller.shown()?;
    if before.drained {
        let shown = before.reason.unwrap_or_default();
        return Ok(if shown.starts_with(prefix) {
            Outcome::Ours(shown)
        } else {
            Outcome::Others(shown)
        });
    }
    controller.set_drained(reason)?;
    let after = controller.shown()?;
    let found = after.reason.unwrap_or_default();
    match (after.drained, found == reason) {
        (true, true) => Ok(Outcome::Ours(found)),
        (true, false) => Ok(Outcome::Others(found)),
        (false, _) => Err("the scheduler accepted the drain, and the node is not drained".to_owned()),
    }
}

/// A node in its scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place<'a> {
    /// Who schedules it.
    pub scheduler: Scheduler,
    /// Where PBS lives.
    pub site: Site,
    /// The node's name there.
    pub node: &'a str,
    /// `SLURM_CONF`, where the prolog's environment names one.
    pub slurm_conf: Option<String>,
}

impl Place<'_> {
    /// The node as one of a Slurm.
    pub fn slurm(&self) -> Slurm {
        Slurm {
            programs: commands(),
            conf: self.slurm_conf.clone(),
            node: self.node.to_owned(),
        }
    }

    /// The way to take it out of service.
    pub fn controller(&self) -> Box<dyn Controller> {
        match self.scheduler {
            Scheduler::Slurm => Box::new(self.slurm()),
            Scheduler::Torque | Scheduler::OpenPbs => Box::new(Pbs {
                scheduler: self.scheduler,
                site: self.site.clone(),
                node: self.node.to_owned(),
            }),
        }
    }
}

/// Drains the node for `fault` of `job` and remembers it; a drain that cannot be delivered is spooled. Returns a line
/// for the log, and whether the scheduler has it.
pub fn deliver(
    paths: &Paths,
    place: &Place<'_>,
    prefix: &str,
    job: &JobId,
    fault: &Fault,
    gpus: Vec<String>,
) -> (String, bool) {
    let reason = reason(place.scheduler, prefix, job, fault);
    let mut marker = Marker {
        version: markers::VERSION,
        scheduler: place.scheduler,
        node: place.node.to_owned(),
        reason: reason.clone(),
        job: job.as_str().to_owned(),
        gpus,
        delivered: false,
        slurm_conf: place.slurm_conf.clone(),
        when: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs(),
    };
    // The marker first: a drain that nobody remembers could never be lifted.
    let remembered = markers::write(paths, &marker);
    let node = place.node;
    let (line, delivered) = match drain(place.controller().as_ref(), prefix, &reason) {
        Ok(Outcome::Ours(shown)) => {
            // What is to be lifted later is what stands now, to the byte.
            marker.reason = shown;
            marker.delivered = true;
            (format!("node '{node}' drained: {reason}"), true)
        }
        Ok(Outcome::Others(other)) => {
            let _ = markers::remove(paths, &marker);
            let other = one_line(&other, 80);
            return (
                format!("node '{node}' was drained already ('{other}'), left so: {reason}"),
                true,
            );
        }
        Err(why) => (
            format!("node '{node}' cannot be drained now ({why}), tried again later: {reason}"),
            false,
        ),
    };
    let remembered = remembered.and_then(|()| markers::write(paths, &marker));
    match remembered {
        Ok(()) => (line, delivered),
        Err(why) => (format!("{line} (not remembered: {why})"), delivered),
    }
}

/// Lifts a drain of ours: the reason shown is `reason` to the byte.
///
/// # Errors
/// One line: it is another's, or the node stays drained.
pub fn undrain(controller: &dyn Controller, reason: &str) -> Result<(), String> {
    let before = controller.shown()?;
    let shown = before.reason.unwrap_or_default();
    if !before.drained {
        return Ok(());
    }
    if shown != reason {
        return Err(format!(
            "the reason shown is '{}', which is not ours: left as it is",
            one_line(&shown, 80)
        ));
    }
    controller.lift()?;
    if controller.shown()?.drained {
        Err("the node is drained still".to_owned())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpsd_core::failure::Evidence;
    use std::cell::RefCell;

    /// A controller that may take orders without obeying, as Torque's pbsnodes does.
    struct Fake {
        shown: RefCell<Shown>,
        obeys: bool,
    }

    fn fake(drained: bool, reason: Option<&str>, obeys: bool) -> Fake {
        Fake {
            shown: RefCell::new(Shown {
                drained,
                down: false,
                reason: reason.map(str::to_owned),
            }),
            obeys,
        }
    }

    impl Controller for Fake {
        fn shown(&self) -> Result<Shown, String> {
            Ok(self.shown.borrow().clone())
        }
        fn set_drained(&self, reason: &str) -> Result<(), String> {
            if self.obeys {
                *self.shown.borrow_mut() = Shown {
                    drained: true,
                    down: false,
                    reason: Some(reason.to_owned()),
                };
            }
            Ok(())
        }
        fn lift(&self) -> Result<(), String> {
            if self.obeys {
                *self.shown.borrow_mut() = Shown {
                    drained: false,
                    down: false,
                    reason: None,
                };
            }
            Ok(())
        }
    }

    #[test]
    fn anothers_reason_is_never_written_over() {
        let node = fake(true, Some("bad disk"), true);
        assert_eq!(
            drain(&node, "mpsd:", "mpsd: job 1: x"),
            Ok(Outcome::Others("bad disk".into()))
        );
        assert_eq!(node.shown.borrow().reason.as_deref(), Some("bad disk"));
        assert!(undrain(&node, "mpsd: job 1: x").is_err());
        assert!(node.shown.borrow().drained);
    }

    #[test]
    fn an_order_that_was_not_obeyed_is_seen() {
        let node = fake(false, None, false);
        assert!(drain(&node, "mpsd:", "mpsd: job 1: x").is_err());
        let node = fake(true, Some("mpsd: job 1: x"), false);
        assert!(undrain(&node, "mpsd: job 1: x").is_err());
    }

    #[test]
    fn our_own_goes_on_and_off() {
        let node = fake(false, None, true);
        let ours = Outcome::Ours("mpsd: job 1: x".to_owned());
        assert_eq!(drain(&node, "mpsd:", "mpsd: job 1: x"), Ok(ours.clone()));
        assert_eq!(drain(&node, "mpsd:", "mpsd: job 2: y"), Ok(ours));
        assert_eq!(undrain(&node, "mpsd: job 1: x"), Ok(()));
        assert!(!node.shown.borrow().drained);
    }

    #[test]
    fn reasons_fit_the_schedulers_field() {
        let job = JobId::parse("4711").unwrap();
        let fault = Fault::new(Evidence::Survivor, "mps-server 691", "state D after 20 s");
        assert_eq!(
            reason(Scheduler::Slurm, "mpsd:", &job, &fault),
            "mpsd: job 4711: mps-server 691: state D after 20 s"
        );
        let long = Fault::new(Evidence::Nvml, "NVML", "\"é\n".repeat(800));
        for (scheduler, most) in [(Scheduler::Slurm, 400), (Scheduler::OpenPbs, 79)] {
            let text = reason(scheduler, "mpsd:", &job, &long);
            assert!(text.len() <= most && text.len() > most - 8, "{text}");
            assert!(text.is_ascii() && !text.contains('\n'), "{text}");
        }
    }
}
