//! The GPUs of its job that a task sees, and their names (`MPS_BIND`, `MPS_VISIBLE`).

use super::limits::{Invalid, carried_as_text, one_of, word};
use super::orders;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// How a rank gets its GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
#[display(rename_all = "kebab-case")]
pub enum BindMode {
    /// Every task sees all. If a node has at least one task for each GPU, each task sees them in
    /// its own order.
    Auto,
    /// Neighboring ranks share a GPU.
    Block,
    /// The ranks take turns.
    Cyclic,
    /// The GPU nearest to the task's cores.
    Closest,
    /// Every task sees all.
    None,
}

/// A binding of tasks to GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display, Serialize, Deserialize)]
#[display("{how}{}", if *peers { "+peers" } else { "" })]
#[serde(try_from = "String", into = "String")]
pub struct Bind {
    /// How a rank gets its GPU.
    pub how: BindMode,
    /// The job's other GPUs stay visible behind its own.
    pub peers: bool,
}

impl Bind {
    /// What [`Bind::from_str`] accepts, in any case.
    pub const ALLOWED: &'static str = "block, cyclic, closest, each also with +peers; auto, none";
    /// The binding if neither job nor site names one. With `none`, the first GPU would get most
    /// tasks (docs/measured.md).
    pub const DEFAULT: Self = Self::of(BindMode::Auto);
    /// No task is bound.
    pub const NONE: Self = Self::of(BindMode::None);

    /// A binding without peers.
    pub const fn of(how: BindMode) -> Self {
        Self { how, peers: false }
    }

    /// Whether it binds every task, for any number of tasks.
    pub fn is_for_all(self) -> bool {
        !matches!(self.how, BindMode::Auto | BindMode::None)
    }

    /// Whether a task that neither Slurm nor its launcher has bound sees all GPUs in an order of
    /// its own.
    pub fn gives_orders(self, names: DeviceNames, per_gpu: bool) -> bool {
        self.how == BindMode::Auto && names != DeviceNames::Keep && !per_gpu
    }

    /// How many of the `tasks` on a node can meet on one of its `gpus`, if a program or scheduler
    /// that chooses spreads them evenly.
    pub fn most_on_a_gpu(self, names: DeviceNames, per_gpu: bool, tasks: u32, gpus: u32) -> u32 {
        let gpus = gpus.max(1);
        if !self.gives_orders(names, per_gpu) {
            return tasks.div_ceil(gpus);
        }
        let most = orders::most_on_a_gpu(tasks as usize, gpus as usize);
        u32::try_from(most).unwrap_or(u32::MAX)
    }
}

impl FromStr for Bind {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let modes = [BindMode::Block, BindMode::Cyclic, BindMode::Closest];
        let text = word(text);
        let (how, peers) = match (text.as_str(), text.strip_suffix("+peers")) {
            ("auto", _) => (BindMode::Auto, false),
            ("none", _) => (BindMode::None, false),
            (_, Some(name)) => (one_of(modes, name, Self::ALLOWED)?, true),
            (name, None) => (one_of(modes, name, Self::ALLOWED)?, false),
        };
        Ok(Self { how, peers })
    }
}

/// How `CUDA_VISIBLE_DEVICES` names a task's GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display, Serialize, Deserialize)]
#[display(rename_all = "kebab-case")]
#[serde(try_from = "String", into = "String")]
pub enum DeviceNames {
    /// The daemon's own numbers if a client that misses the daemon finds the same GPUs by them,
    /// else UUIDs.
    Auto,
    /// UUIDs: a confined daemon renumbers its GPUs.
    Uuid,
    /// The daemon's own numbers, from 0.
    Ordinal,
    /// The variable stays as the scheduler set it.
    Keep,
}

impl DeviceNames {
    /// What [`DeviceNames::from_str`] accepts, in any case.
    pub const ALLOWED: &'static str = "auto, uuid, ordinal, keep";
}

impl FromStr for DeviceNames {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let all = [Self::Auto, Self::Uuid, Self::Ordinal, Self::Keep];
        one_of(all, text, Self::ALLOWED)
    }
}

carried_as_text!(Bind, DeviceNames);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_gpu_of_its_own_has_peers() {
        let peers = "Closest+Peers".parse::<Bind>().unwrap();
        assert_eq!((peers.how, peers.peers), (BindMode::Closest, true));
        assert_eq!(peers.to_string(), "closest+peers");
        for wrong in "none+peers auto+peers +peers block+ block+peers+peers socket".split(' ') {
            assert!(wrong.parse::<Bind>().is_err(), "{wrong}");
        }
    }
}
