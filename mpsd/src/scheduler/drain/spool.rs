//! Our own drains after the event: delivered at last, forgotten when somebody lifted them, lifted by us after a clean
//! recheck.

use super::{Controller, Marker, Outcome, Place, Shown, drain, markers, undrain};
use crate::scheduler::Site;
use mpsd_core::Paths;
use mpsd_core::text::one_line;

/// How a marker and the scheduler's view of its node go together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stand {
    /// The scheduler has not got it yet.
    Undelivered,
    /// It stands, ours to the byte.
    Stands,
    /// Somebody lifted it, or put a reason of his own in its place: the marker has done its duty.
    Over(String),
}

/// The place that `marker` names.
pub fn place<'a>(marker: &'a Marker, site: &Site) -> Place<'a> {
    Place {
        scheduler: marker.scheduler,
        site: site.clone(),
        node: &marker.node,
        slurm_conf: marker.slurm_conf.clone(),
    }
}

/// How `marker` stands.
///
/// # Errors
/// One line: the controller does not answer.
pub fn stand(marker: &Marker, controller: &dyn Controller) -> Result<Stand, String> {
    let Shown { drained, reason, .. } = controller.shown()?;
    let reason = reason.unwrap_or_default();
    Ok(match (marker.delivered, drained) {
        (_, true) if reason == marker.reason => Stand::Stands,
        (false, false) => Stand::Undelivered,
        (true, false) => Stand::Over("it was lifted".to_owned()),
        (_, true) => Stand::Over(format!(
            "the node is drained for another reason ('{}')",
            one_line(&reason, 80)
        )),
    })
}

/// Tries to deliver an undelivered drain.
///
/// # Errors
/// One line: it still cannot be delivered, or not be remembered.
pub fn deliver(
    paths: &Paths,
    prefix: &str,
    marker: &Marker,
    controller: &dyn Controller,
) -> Result<Outcome, String> {
    let outcome = drain(controller, prefix, &marker.reason)?;
    match &outcome {
        Outcome::Ours(shown) => {
            markers::write(
                paths,
                &Marker {
                    delivered: true,
                    reason: shown.clone(),
                    ..marker.clone()
                },
            )?;
        }
        Outcome::Others(_) => markers::remove(paths, marker)?,
    }
    Ok(outcome)
}

/// Lifts a drain of ours and forgets it. The recheck of the node comes first.
///
/// # Errors
/// One line: it is another's, or the node stays drained.
pub fn lift(paths: &Paths, marker: &Marker, controller: &dyn Controller) -> Result<(), String> {
    undrain(controller, &marker.reason)?;
    markers::remove(paths, marker)
}
