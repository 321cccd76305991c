//! Our own drains: delivered, forgotten, or lifted after a clean recheck.

use super::ReportLine::{self, Change, Drain, Note, Problem};
use super::Run;
use crate::job::node::Gpus;
use crate::node::directories;
use batch::control::Controller;
use batch::drain::{self, DrainState, Marker, Outcome, Place, markers};
use mpsd_core::GpuUuid;
use mpsd_core::config::Settings;
use mpsd_core::gpu::Mig;
use mpsd_core::trusted::open_trusted;
use std::collections::BTreeSet;

impl Run<'_> {
    pub(super) fn drain(&mut self, marker: &Marker, lift: bool) {
        let what = format!("drain of node '{}' ({})", marker.node, marker.reason);
        let controller = Place::of(marker, &self.location).controller();
        let controller = controller.as_ref();
        let told = match drain::state(marker, controller) {
            Err(why) if marker.delivered => {
                let told = format!("{what}: its scheduler does not answer: {why}");
                match self.undrain {
                    true => Problem(told),
                    false => Drain(told),
                }
            }
            Err(why) => Problem(format!("{what}: not delivered: {why}")),
            Ok(DrainState::Over(why)) => {
                self.forget(marker, &format!("{what}: over, {why}"), controller)
            }
            Ok(DrainState::Undelivered) if self.undrain => self.lift(marker, &what, controller),
            Ok(DrainState::Undelivered) if self.dry => {
                Problem(format!("{what}: not delivered: would be tried again"))
            }
            Ok(DrainState::Undelivered) => {
                let paths = &self.settings.paths;
                let (outcome, remembered) = drain::hand_over(paths, marker, controller);
                match outcome.and_then(|outcome| remembered.map(|()| outcome)) {
                    Ok(Outcome::Ours(_)) => Change(format!("{what}: delivered")),
                    Ok(Outcome::Others(other)) => Change(format!(
                        "{what}: forgotten, the node is drained for '{other}'"
                    )),
                    Err(why) => Problem(format!("{what}: not delivered: {why}")),
                }
            }
            Ok(DrainState::Stands) if !lift => Drain(format!(
                "{what}: stands; 'mpsctl undrain' lifts it after a clean recheck"
            )),
            Ok(DrainState::Stands) => self.lift(marker, &what, controller),
        };
        self.tell(told);
    }

    /// Withdraws notes of a configuration that was unusable. They are in the usual directory.
    pub(super) fn remarks(&mut self) {
        for told in drain::withdraw_remarks(&Settings::usual().paths, &self.location) {
            // A note that stays does no harm; the next run tries again.
            self.tell(told.map_or_else(Note, Change));
        }
    }

    fn forget(&self, marker: &Marker, what: &str, controller: &dyn Controller) -> ReportLine {
        if self.dry {
            return Note(format!("{what}: would be forgotten"));
        }
        // A drain that was lifted by hand leaves its reason on the node.
        if let Err(why) = controller.withdraw(&marker.reason, marker.note.as_deref()) {
            return Problem(format!("{what}: its reason stays on the node: {why}"));
        }
        match markers::remove(&self.settings.paths, marker) {
            Ok(()) => Change(format!("{what}: forgotten")),
            Err(error) => Problem(format!("{what}: cannot be forgotten: {error}")),
        }
    }

    fn lift(&mut self, marker: &Marker, what: &str, controller: &dyn Controller) -> ReportLine {
        if self.dry {
            return Drain(format!(
                "{what}: stands: would be lifted after a clean recheck"
            ));
        }
        let left = &self.unfinished;
        if let Err(why) = check_before_lift(&mut self.node, self.settings, marker, left) {
            return Problem(format!("{what}: stays: {why}"));
        }
        match drain::lift(&self.settings.paths, marker, controller) {
            Ok(()) => Change(format!("{what}: lifted after a clean recheck")),
            Err(why) => Problem(format!("{what}: not lifted: {why}")),
        }
    }
}

/// NVML answers for the marker's GPUs, or those in their place, the vendor's program is trusted,
/// run_dir is as jobs need it, and nothing of a job that is gone is left.
fn check_before_lift(
    node: &mut impl Gpus,
    settings: &Settings,
    marker: &Marker,
    left: &BTreeSet<String>,
) -> Result<(), String> {
    if !left.is_empty() {
        let left: Vec<&str> = left.iter().map(String::as_str).collect();
        return Err(format!(
            "jobs that are gone, or may be, have left something: {}",
            left.join(", ")
        ));
    }
    open_trusted(&settings.control).map_err(|e| format!("NVIDIA's MPS control daemon: {e}"))?;
    let mut run = directories::run(&settings.paths).into_iter();
    run.try_for_each(|one| one.map(drop))?;
    let inventory = node.inventory(None).map_err(|e| e.to_string())?;
    let none_is_missing = marker.of.is_some_and(|of| inventory.gpus.len() >= of);
    for name in &marker.gpus {
        let uuid = GpuUuid::parse(name).map_err(|e| e.to_string())?;
        // MIG devices do not outlive a boot, nor the next division of their GPU.
        let is_there = uuid.is_mig() || inventory.by_uuid(&uuid).is_some();
        if !is_there && !none_is_missing {
            return Err(format!(
                "NVML does not list GPU {uuid}; if it was replaced, lift the drain by scontrol or pbsnodes"
            ));
        }
    }
    for gpu in inventory.gpus.iter().filter(|gpu| gpu.mig != Mig::On) {
        node.compute_mode(&gpu.uuid).map_err(|e| e.to_string())?;
    }
    // Some drains are for a place that could not be written.
    markers::write(&settings.paths, marker)
}
