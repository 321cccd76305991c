//! The GPUs of its job that a task sees, and their names (`MPS_BIND`, `MPS_VISIBLE`).

use super::limits::{carried_as_text, words};
use super::orders;

#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
#[display(rename_all = "kebab-case")]
pub enum Bind {
    /// Every task sees all; with at least one task for each GPU, each task in its own order.
    Auto,
    Block,
    Cyclic,
    /// The GPU nearest to the task's cores.
    Closest,
    None,
}

impl Bind {
    pub const ALLOWED: &'static str = "auto, block, cyclic, closest, none";
    /// With `none`, the first GPU would get most tasks (docs/measured.md).
    pub const DEFAULT: Self = Self::Auto;

    pub fn is_for_all(self) -> bool {
        !matches!(self, Self::Auto | Self::None)
    }

    /// How many of a node's `tasks` can meet on one of its `gpus`, if what chooses spreads evenly.
    pub fn most_on_a_gpu(self, per_gpu: bool, tasks: u32, gpus: u32) -> u32 {
        let gpus = gpus.max(1);
        if self != Self::Auto || per_gpu {
            return tasks.div_ceil(gpus);
        }
        let most = orders::most_on_a_gpu(tasks as usize, gpus as usize);
        u32::try_from(most).unwrap_or(u32::MAX)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
#[display(rename_all = "kebab-case")]
pub enum DeviceNames {
    /// The daemon's own numbers if they name the same GPUs without the daemon, else UUIDs.
    Auto,
    /// UUIDs: a confined daemon renumbers its GPUs.
    Uuid,
    /// The daemon's own numbers, from 0.
    Ordinal,
}

impl DeviceNames {
    pub const ALLOWED: &'static str = "auto, uuid, ordinal";
}

words!(Bind: Auto Block Cyclic Closest None);
words!(DeviceNames: Auto Uuid Ordinal);
carried_as_text!(Bind, DeviceNames);
