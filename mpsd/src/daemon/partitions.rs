//! Static partitions: the commands that make them, and the answers that must follow. Pure. By
//! NVIDIA's documentation, not verified (docs/facts/mps-control.md#static-partitions): any other
//! answer is an error.

use super::dialogue::BRACKET;
use crate::job::spec::Unready;
use mpsd_core::partitions::{Partition, id_of};
use mpsd_core::text::one_line;
use std::collections::BTreeSet;

pub const LIST: &str = "lspart\n";
const NO_ROOM: &str = "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION";

/// The session that makes them. An answer may be missing or have several lines, so each is followed
/// by the bracket's.
pub fn commands(partitions: &[Partition]) -> String {
    let add = |one: &Partition| format!("sm_partition add {} {}\n{BRACKET}\n", one.gpu, one.chunks);
    partitions.iter().map(add).collect()
}

/// The partitions with the ids from the answers to [`commands`]. Refused: a GPU has too few chunks.
pub fn made(partitions: &[Partition], answers: &str) -> Result<Vec<Partition>, Unready> {
    let mut answers = answers
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    let mut ids = BTreeSet::new();
    let mut one = |partition: &Partition| {
        let said = answers
            .by_ref()
            .take_while(|line| line.parse::<f64>().is_err());
        let said = said.collect::<Vec<_>>().join(" ");
        // With and without the words around it.
        let rest = said.strip_prefix("Partition ");
        let name = rest.and_then(|rest| rest.strip_suffix(" created"));
        let id = id_of(name.unwrap_or(&said), &partition.gpu).filter(|id| ids.insert(id.clone()));
        let id = id.ok_or_else(|| not_made(partition, &said))?;
        let partition = partition.clone();
        Ok(Partition { id, ..partition })
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

/// Checks the answer to [`LIST`]: each partition has its chunks, and at least its multiprocessors.
/// A GPU's last one may have more.
pub fn check(partitions: &[Partition], answer: &str) -> Result<(), Unready> {
    partitions.iter().try_for_each(|one| listed(one, answer))
}

/// A row is `GPU-74d43ed3 <id> - 7 - 56 Yes`: part of the UUID, id, free and used chunks, free and
/// used multiprocessors, clients. A value that does not apply is `-`, or left out.
fn listed(partition: &Partition, answer: &str) -> Result<(), Unready> {
    let Partition {
        rank, sms, chunks, ..
    } = partition;
    let row = |line: &str| {
        let mut words = line.split_whitespace().filter(|word| *word != "-");
        let (gpu, id) = (words.next()?, words.next()?);
        let row: (u32, u32) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let same = gpu.starts_with("GPU-")
            && partition.gpu.as_str().starts_with(gpu)
            && id == partition.id;
        same.then_some(row)
    };
    match answer.lines().find_map(row) {
        Some((used, has)) if used == *chunks && has >= *sms => Ok(()),
        Some((used, has)) if used == *chunks => Err(Unready::Refused {
            what: "MPS_SMS".to_owned(),
            why: format!(
                "the {chunks} chunks of rank {rank} have {has} multiprocessors, not {sms}"
            ),
            allowed: "a GPU with larger chunks".to_owned(),
        }),
        _ => Err(Unready::Failed(format!(
            "the partition of rank {rank} is not in force: the daemon lists '{}'",
            one_line(answer, 200)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpsd_core::GpuUuid;

    const GPU: &str = "GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65";

    fn partition(rank: u32, chunks: u32) -> Partition {
        Partition {
            rank,
            gpu: GpuUuid::parse(GPU).unwrap(),
            sms: chunks * 8,
            chunks,
            id: String::new(),
        }
    }

    fn ids(answers: &str) -> Result<Vec<String>, Unready> {
        let made = made(&[partition(0, 5), partition(1, 2)], answers)?;
        Ok(made.into_iter().map(|one| one.id).collect())
    }

    #[test]
    fn ids_are_read_in_both_forms_and_may_hold_slashes() {
        let session = format!(
            "sm_partition add {GPU} 5\nget_default_active_thread_percentage\n\
             sm_partition add {GPU} 2\nget_default_active_thread_percentage\n"
        );
        assert_eq!(commands(&[partition(0, 5), partition(1, 2)]), session);
        let plain = format!("{GPU}/Dx4AAA\n100.0\n{GPU}/B/x4/AA\n100.0\n");
        let (one, two) = (format!("{GPU}/Dx4AAA"), format!("{GPU}/B/x4/AA"));
        let worded = format!("Partition {one} created\n100.0\nPartition {two} created\n100.0\n");
        for answers in [plain, worded] {
            assert_eq!(ids(&answers).unwrap(), ["Dx4AAA", "B/x4/AA"]);
        }
    }

    #[test]
    fn too_few_chunks_are_refused_and_any_other_answer_fails() {
        let no_room =
            format!("{GPU}/Dx4AAA\n100.0\nFailed to fulfill it, error {NO_ROOM}\n100.0\n");
        let refused = ids(&no_room).unwrap_err();
        assert!(matches!(refused, Unready::Refused { .. }), "{refused}");
        let why = format!("MPS_SMS: {GPU} has no 16 multiprocessors left for rank 1");
        assert!(refused.to_string().starts_with(&why), "{refused}");
        for answers in [
            "",
            "100.0\n100.0\n",
            "Unknown command \"sm_partition\"\n100.0\n",
            &format!("{GPU}/Dx4AAA\n100.0\n{GPU}/Dx4AAA\n100.0\n"),
            &format!("GPU-0/Dx4AAA\n100.0\n{GPU}/B\n100.0\n"),
            &format!("{GPU}/Dx4AAA\n{GPU}/B\n100.0\n100.0\n"),
        ] {
            let failed = ids(answers).unwrap_err();
            assert!(matches!(failed, Unready::Failed(_)), "{answers}: {failed}");
        }
    }

    fn checked(listing: &str) -> Result<(), Unready> {
        let mut all = [partition(0, 5), partition(1, 2)];
        all[0].id = "Dx4AAA".to_owned();
        all[1].id = "B/x4/AA".to_owned();
        check(&all, listing)
    }

    /// docs/facts/mps-control.md#static-partitions
    #[test]
    fn a_listing_is_read_with_and_without_its_dashes() {
        let dashes = "GPU Partition free used free used clients\nchunk chunk SM SM\nGPU-74d43ed3 - 3 7 24 68 -\nGPU-74d43ed3 Dx4AAA - 5 \
                  - 40 -\nGPU-74d43ed3 B/x4/AA - 2 - 28 Yes\n";
        checked(dashes).unwrap();
        checked(&dashes.replace(" -", "")).unwrap();
    }

    #[test]
    fn a_partition_that_is_not_as_asked_for_is_none() {
        let good = "GPU-74d43ed3 Dx4AAA - 5 - 40 No\nGPU-74d43ed3 B/x4/AA - 2 - 16 No\n";
        checked(good).unwrap();
        for wrong in [
            good.replace("B/x4/AA", "B/x4/AB"),
            good.replace("- 2 -", "- 1 -"),
            good.replace("GPU-74d43ed3 B", "GPU-74d43ed4 B"),
            good.replace(" - 16", ""),
            String::new(),
        ] {
            let failed = checked(&wrong).unwrap_err();
            assert!(matches!(failed, Unready::Failed(_)), "{wrong}: {failed}");
        }
        let small = checked(&good.replace("- 16", "- 4")).unwrap_err();
        assert!(matches!(small, Unready::Refused { .. }), "{small}");
    }
}
