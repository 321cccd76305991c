//! Static partitions: multiprocessors of a GPU that one rank has alone (docs/facts/mps-control.md#static-partitions).
//!
//! Documented by NVIDIA and not verified: no GPU at hand has a driver with them. What is not as documented is an error, and
//! no rank runs without its partition.

use super::gpu::{Gpu, GpuUuid};

/// What a client finds its partition by, before its first context.
pub const VARIABLE: &str = "CUDA_MPS_SM_PARTITION";
/// The first compute capability that has them: Ampere.
pub const LEAST_CAPABILITY: (u32, u32) = (8, 0);
/// From Hopper on a chunk has twice the multiprocessors.
const HOPPER: (u32, u32) = (9, 0);
/// Longest id that is believed, bytes: the documented ones have 36.
const LONGEST_ID: usize = 128;

/// The partition of one rank. The same value stands in plan, journal, record and the specification of `mpsd`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Partition {
    /// Its rank on this node, from 0.
    pub rank: u32,
    /// Its GPU.
    pub gpu: GpuUuid,
    /// The multiprocessors asked for.
    pub sms: u32,
    /// The chunks that they are.
    pub chunks: u32,
    /// What the control daemon calls it, once it is made.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
}

impl Partition {
    /// The value of [`VARIABLE`]; `None`: it was never made.
    pub fn name(&self) -> Option<String> {
        (!self.id.is_empty()).then(|| format!("{}/{}", self.gpu, self.id))
    }
}

/// Multiprocessors in a chunk of `gpu`, a card of its own: a GPU that is part of its processor has smaller ones, and its
/// partitions fail when they are read back.
pub fn chunk(gpu: &Gpu) -> u32 {
    if gpu.capability >= HOPPER { 8 } else { 4 }
}

/// The id in `text`, which names a partition of `gpu` in full. An id is base64 and may hold `/` itself.
pub fn id_of(text: &str, gpu: &GpuUuid) -> Option<String> {
    let (uuid, id) = text.split_once('/')?;
    (uuid == gpu.as_str() && is_id(id)).then(|| id.to_owned())
}

/// Whether it can be an id: it goes into variables and commands.
pub fn is_id(id: &str) -> bool {
    let base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=' | b'-' | b'_');
    (1..=LONGEST_ID).contains(&id.len()) && id.bytes().all(base64)
}

#[cfg(test)]
mod tests;
