//! The device files of GPUs that are none of a job's. Its daemons cannot open them.
//!
//! NVIDIA's programs open every GPU that they may, which takes most of a start on a node with
//! several (docs/facts/mps-control.md#starting). One that a user took over gains no other GPU
//! either.

use std::collections::BTreeSet;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::PathBuf;

const DEV: &str = "/dev";
const GPU: &str = "nvidia";

/// Empty if `/dev` lacks a file of the job's own GPUs: its names may then mean other devices.
pub(super) fn of_others(minors: &[u32]) -> Vec<PathBuf> {
    if minors.is_empty() {
        return Vec::new();
    }
    let entries = std::fs::read_dir(DEV).into_iter().flatten().flatten();
    let devices = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_char_device()));
    let known = devices.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        Some((name, entry.metadata().ok()?.rdev()))
    });
    let known: Vec<(String, u64)> = known.collect();
    let names = others(&known, minors);
    let path = |name| PathBuf::from(DEV).join(name);
    names.into_iter().map(path).collect()
}

fn others<'a>(known: &'a [(String, u64)], minors: &[u32]) -> Vec<&'a str> {
    let number = |name: &str| name.strip_prefix(GPU)?.parse::<u32>().ok();
    let numbered = |(name, device): &(String, u64)| Some((number(name)?, *device));
    let (own, other): (Vec<_>, Vec<_>) = known
        .iter()
        .filter_map(numbered)
        .partition(|(number, _)| minors.contains(number));
    let devices = |gpus: Vec<(u32, u64)>| gpus.into_iter().map(|(_, device)| device);
    let own: BTreeSet<u64> = devices(own).collect();
    if own.len() != minors.len() {
        return Vec::new();
    }
    let other: BTreeSet<u64> = devices(other).filter(|one| !own.contains(one)).collect();
    let is_others = known.iter().filter(|(_, device)| other.contains(device));
    is_others.map(|(name, _)| name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_names_of_other_gpus_are_found_and_none_of_the_jobs_own() {
        let known = [
            ("null", 103),
            ("nvidia0", 0),
            ("nvidia1", 1),
            ("nvidia2", 2),
            ("nvidiactl", 255),
            ("nvidia-uvm", 500),
            ("second", 1),
            ("own-too", 2),
        ];
        let known = known.map(|(name, device)| (name.to_owned(), device));
        assert_eq!(others(&known, &[2]), ["nvidia0", "nvidia1", "second"]);
        assert_eq!(others(&known, &[0, 2]), ["nvidia1", "second"]);
        assert_eq!(others(&known, &[0, 1, 2]), [""; 0]);
        assert_eq!(others(&known, &[2, 3]), [""; 0], "it does not show GPU 3");
    }
}
