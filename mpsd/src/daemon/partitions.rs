//! Static partitions: what makes them, and what the answers must be. Pure. Documented by NVIDIA, and not verified
//! (docs/facts/mps-control.md#static-partitions): what is not as documented is an error.

use super::dialogue::BRACKET;
use crate::job::spec::Unready;
use mpsd_core::partitions::{Partition, id_of};
use mpsd_core::text::one_line;
use std::collections::BTreeSet;

/// The session that lists them.
pub const LIST: &str = "lspart\n";
/// What the control daemon says where a GPU has not enough chunks left.
const NO_ROOM: &str = "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION";

/// The session that makes them. An answer may be missing or have several lines: after each comes the bracket's.
pub fn commands(partitions: &[Partition]) -> String {
    let add = |one: &Partition| format!("sm_partition add {} {}\n{BRACKET}\n", one.gpu, one.chunks);
    partitions.iter().map(add).collect()
}

/// The partitions with the ids that the answers to [`commands`] give them.
///
/// # Errors
/// Refused where a GPU has not so many chunks, else failed: the partition, and what was said of it.
pub fn made(partitions: &[Partition], answers: &str) -> Result<Vec<Partition>, Unready> {
    let mut answers = answers.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut ids = BTreeSet::new();
    let mut one = |partition: &Partition| {
        let said: Vec<&str> = answers
            .by_ref()
            .take_while(|line| line.parse::<f64>().is_err())
            .collect();
        let said = said.join(" ");
        // With the words around it, and without.
        let name = said
            .strip_prefix("Partition ")
            .and_then(|rest| rest.strip_suffix(" created"));
        let id = id_of(name.unwrap_or(&said), &partition.gpu).filter(|id| ids.insert(id.clone()));
        match id {
            Some(id) => Ok(Partition {
                id,
                ..partition.clone()
            }),
            None => Err(not_made(partition, &said)),
        }
    };
    partitions.iter().map(&mut one).collect()
}

fn not_made(partition: &Partition, said: &str) -> Unready {
    let Partition { rank, gpu, sms, .. } = partition;
    let said = one_line(said, 120);
    if said.contains(NO_ROOM) {
        return Unready::Refused {
            what: "MPS_SMS".to_owned(),
            why: format!("{gpu} has no {sms} multiprocessors left for rank {rank}"),
            allowed: "fewer in all: partitions share nothing".to_owned(),
        };
    }
    Unready::Failed(format!(
        "the partition of rank {rank} was not made: the daemon says '{said}'"
    ))
}

/// Checks the answer to [`LIST`]: each partition is there with its chunks, and has the multiprocessors that were asked for. The
/// last one of a GPU may have more of them: those that make up no chunk.
///
/// # Errors
/// Refused where its chunks have fewer multiprocessors, else failed.
pub fn check(partitions: &[Partition], answer: &str) -> Result<(), Unready> {
    partitions.iter().try_for_each(|one| listed(one, answer))
}

/// A row is `GPU-74d43ed3 <id> - 7 - 56 Yes`: a part of the UUID, the id, free and used chunks, free and used
/// multiprocessors, and whether it has clients. What does not apply is `-`, or left out.
fn listed(partition: &Partition, answer: &str) -> Result<(), Unready> {
    let Partition {
        rank, sms, chunks, ..
    } = partition;
    let row = |line: &str| {
        let words: Vec<String> = line
            .split_whitespace()
            .filter(|word| *word != "-")
            .map(str::to_owned)
            .collect();
        let [gpu, id, used, has, ..] = words.as_slice() else {
            return None;
        };
        let same = gpu.starts_with("GPU-") && partition.gpu.as_str().starts_with(gpu) && *id == partition.id;
        let row: (u32, u32) = (used.parse().ok()?, has.parse().ok()?);
        same.then_some(row)
    };
    match answer.lines().find_map(row) {
        Some((used, has)) if used == *chunks && has >= *sms => Ok(()),
        Some((used, has)) if used == *chunks => Err(Unready::Refused {
            what: "MPS_SMS".to_owned(),
            why: format!("the {chunks} chunks of rank {rank} have {has} multiprocessors, not {sms}"),
            allowed: "a GPU with larger chunks".to_owned(),
        }),
        _ => Err(Unready::Failed(format!(
            "the partition of rank {rank} is not in force: the daemon lists '{}'",
            one_line(answer, 200)
        ))),
    }
}

#[cfg(test)]
mod tests;
