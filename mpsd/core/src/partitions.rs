//! Static partitions: multiprocessors of a GPU that one rank has alone
//! (docs/facts/mps-control.md#static-partitions). By NVIDIA's documentation, not verified: any
//! difference is an error, and no rank runs without its partition.

use super::gpu::{Gpu, GpuUuid};
use super::text::is_word;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use std::fs::File;

/// Names a client's partition before its first context.
pub const VARIABLE: &str = "CUDA_MPS_SM_PARTITION";
/// The first compute capability that has them: Ampere.
pub const LEAST_CAPABILITY: (u32, u32) = (8, 0);
const HOPPER: (u32, u32) = (9, 0);
const LONGEST_ID: usize = 128;

/// The partition of one rank. Plan, journal, record and the specification of `mpsd` hold the same
/// value.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Partition {
    /// Its rank on this node, from 0.
    pub rank: u32,
    /// Its GPU.
    pub gpu: GpuUuid,
    /// Its multiprocessors, as requested.
    pub sms: u32,
    /// Its chunks.
    pub chunks: u32,
    /// The control daemon's name for it; empty: it is not made.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
}

impl Partition {
    /// The value of [`VARIABLE`]; `None`: it is not made.
    pub fn name(&self) -> Option<String> {
        (!self.id.is_empty()).then(|| format!("{}/{}", self.gpu, self.id))
    }
}

/// Multiprocessors in a chunk of a card. A GPU in a processor has smaller ones, and its partitions
/// fail when read back.
pub fn chunk(gpu: &Gpu) -> u32 {
    if gpu.capability >= HOPPER { 8 } else { 4 }
}

/// The holder of partitions, which locks root's file in the job's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// A step of Slurm: it holds the partitions of all ranks.
    All,
    /// This rank alone.
    Rank(u32),
}

/// Takes the partitions until the open file is closed, a byte of it for each rank; false: another
/// process holds one of them.
pub fn take(file: &File, holder: Holder) -> nix::Result<bool> {
    match lock(file, holder, libc::F_WRLCK) {
        Ok(()) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Gives all partitions back earlier.
pub fn give_back(file: &File) {
    let _ = lock(file, Holder::All, libc::F_UNLCK);
}

/// The lock belongs to the open file, and not to a process: the processes that inherit the file
/// share it.
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

/// The id in `text`, the full name of a partition of `gpu`. An id is base64 and may hold `/`
/// itself.
pub fn id_of(text: &str, gpu: &GpuUuid) -> Option<String> {
    let (uuid, id) = text.split_once('/')?;
    (uuid == gpu.as_str() && is_id(id)).then(|| id.to_owned())
}

/// Whether `id` is safe in variables and commands.
pub fn is_id(id: &str) -> bool {
    id.len() <= LONGEST_ID && is_word(id, b"+/=-_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_may_hold_slashes_and_ends_at_nothing_else() {
        let gpu = GpuUuid::parse("GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65").unwrap();
        let of = |text: &str| id_of(text, &gpu);
        assert_eq!(of(&format!("{gpu}/Dx4AAAA")).as_deref(), Some("Dx4AAAA"));
        assert_eq!(
            of(&format!("{gpu}/D/79e/DgwY=")).as_deref(),
            Some("D/79e/DgwY=")
        );
        let long = "A".repeat(129);
        for id in ["", "a b", "a;b", "a\nb", "$(a)", long.as_str()] {
            assert_eq!(of(&format!("{gpu}/{id}")), None, "{id:?}");
        }
        assert_eq!(of("GPU-74d43ed3/Dx4AAAA"), None, "a part of the UUID");
        assert_eq!(of(gpu.as_str()), None);
    }
}
