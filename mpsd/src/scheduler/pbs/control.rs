//! Torque's and OpenPBS's nodes, as a [`Controller`].

use super::pbsnodes::{Drained, Pbsnodes};
use crate::scheduler::drain::{Controller, Shown};
use crate::scheduler::pbs::Installation;
use crate::scheduler::{Scheduler, Site, ThisHost};

/// One node of a PBS.
#[derive(Debug, Clone)]
pub struct Pbs {
    /// Torque or OpenPBS.
    pub scheduler: Scheduler,
    /// Where PBS lives.
    pub site: Site,
    /// The node's name in PBS.
    pub node: String,
}

impl Pbs {
    fn with<T>(&self, act: impl FnOnce(&Pbsnodes<'_>) -> Result<T, String>) -> Result<T, String> {
        let installation = Installation::find(self.scheduler, &self.site, &ThisHost);
        act(&Pbsnodes::new(installation, Some(&self.node), &ThisHost))
    }
}

impl Controller for Pbs {
    fn shown(&self) -> Result<Shown, String> {
        let shown = self.with(|node| node.shown())?;
        Ok(Shown {
            drained: shown.is_offline(),
            down: shown.state.contains("down"),
            reason: shown.reason,
        })
    }

    fn set_drained(&self, reason: &str) -> Result<(), String> {
        match self.with(|node| node.drain(reason))? {
            Drained::Ours(_) | Drained::Others(_) | Drained::WithoutReason => Ok(()),
        }
    }

    fn lift(&self) -> Result<(), String> {
        let reason = self.shown()?.reason.unwrap_or_default();
        self.with(|node| node.undrain(&reason))
    }
}
