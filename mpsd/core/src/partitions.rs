//! Static partitions: multiprocessors of a GPU that one rank has alone (docs/facts/mps-control.md#static-partitions).
//!
//! Documented by NVIDIA and not verified: no GPU at hand has a driver with them. What is not as documented is an error, and
//! no rank runs without its partition.

use super::gpu::{Gpu, GpuUuid};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use std::fs::File;

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

/// Whose partitions are taken, of root's file in the job's directory that says who has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// All ranks': a step of Slurm's has them together.
    All,
    /// The one of this rank.
    Rank(u32),
}

/// Takes them for as long as the open file lives, a byte of it for each rank; false: somebody else has them, or one of them.
///
/// # Errors
/// The file cannot be locked.
pub fn take(file: &File, holder: Holder) -> nix::Result<bool> {
    match lock(file, holder, libc::F_WRLCK) {
        Ok(()) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Gives all back before that.
pub fn give_back(file: &File) {
    let _ = lock(file, Holder::All, libc::F_UNLCK);
}

/// Of the open file, and not of a process: those who inherit it have one lock together.
fn lock(file: &File, holder: Holder, kind: libc::c_int) -> nix::Result<()> {
    let (start, length) = match holder {
        Holder::All => (0, 0),
        Holder::Rank(rank) => (rank.into(), 1),
    };
    let range = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: length,
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_OFD_SETLK(&range)).map(drop)
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
mod tests {
    use super::*;

    #[test]
    fn an_id_may_hold_slashes_and_ends_at_nothing_else() {
        let gpu = GpuUuid::parse("GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65").unwrap();
        let of = |text: &str| id_of(text, &gpu);
        assert_eq!(of(&format!("{gpu}/Dx4AAAA")).as_deref(), Some("Dx4AAAA"));
        assert_eq!(of(&format!("{gpu}/D/79e/DgwY=")).as_deref(), Some("D/79e/DgwY="));
        let long = "A".repeat(129);
        for id in ["", "a b", "a;b", "a\nb", "$(a)", long.as_str()] {
            assert_eq!(of(&format!("{gpu}/{id}")), None, "{id:?}");
        }
        assert_eq!(of("GPU-74d43ed3/Dx4AAAA"), None, "a part of the UUID");
        assert_eq!(of(gpu.as_str()), None);
    }
}
