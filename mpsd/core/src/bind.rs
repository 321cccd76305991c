//! The GPUs of its job that a task sees, and their names (`MPS_BIND`, `MPS_VISIBLE`).

use super::limits::{carried_as_text, words};
use super::orders;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display, Serialize, Deserialize)]
#[display(rename_all = "kebab-case")]
#[serde(try_from = "String", into = "String")]
pub enum Bind {
    /// Every task sees all. If a node has at least one task for each GPU, each task sees them in
    /// its own order.
    Auto,
    Block,
    Cyclic,
    /// The GPU nearest to the task's cores.
    Closest,
    None,
}

impl Bind {
    pub const ALLOWED: &'static str = "auto, block, cyclic, closest, none";
    /// The binding if neither job nor site names one. With `none`, the first GPU would get most
    /// tasks (docs/measured.md).
    pub const DEFAULT: Self = Self::Auto;

    pub fn is_for_all(self) -> bool {
        !matches!(self, Self::Auto | Self::None)
    }

    /// Whether a task that neither Slurm nor its launcher has bound sees all GPUs in an order of
    /// its own.
    pub fn gives_orders(self, per_gpu: bool) -> bool {
        self == Self::Auto && !per_gpu
    }

    /// How many of the `tasks` on a node can meet on one of its `gpus`, if a program or scheduler
    /// that chooses spreads them evenly.
    pub fn most_on_a_gpu(self, per_gpu: bool, tasks: u32, gpus: u32) -> u32 {
        let gpus = gpus.max(1);
        if !self.gives_orders(per_gpu) {
            return tasks.div_ceil(gpus);
        }
        let most = orders::most_on_a_gpu(tasks as usize, gpus as usize);
        u32::try_from(most).unwrap_or(u32::MAX)
    }
}

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
}

impl DeviceNames {
    pub const ALLOWED: &'static str = "auto, uuid, ordinal";
}

words!(Bind: Auto Block Cyclic Closest None);
words!(DeviceNames: Auto Uuid Ordinal);
carried_as_text!(Bind, DeviceNames);
