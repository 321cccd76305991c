//! The release that a plugin is stamped for: the four bytes of its dynamic symbol `plugin_version`, which is all that
//! Slurm compares (docs/facts/slurm.md#version-of-a-plugin). 64-bit little endian ELF (System V gABI).

use super::setup::Release;
use mpsd_core::trusted::open_trusted;
use std::path::Path;

/// Largest plugin that is read, bytes; ours stays below 1 MiB stripped.
const LARGEST: usize = 64 << 20;
const SYMBOL: &[u8] = b"plugin_version\0";
const SHT_DYNSYM: usize = 11;
/// Size of an entry of the dynamic symbol table.
const ENTRY: usize = 24;

/// The release of the plugin in `file`, which must be root's: slurmd loads it.
///
/// # Errors
/// One line.
pub(super) fn of(file: &Path) -> Result<Release, String> {
    let bytes = open_trusted(file)
        .and_then(|file| file.read(LARGEST))
        .map_err(|e| e.to_string())?;
    let version = version(&bytes).ok_or_else(|| format!("'{}' is no Slurm plugin", file.display()))?;
    let byte = |shift: usize| u8::try_from(version >> shift & 0xff).unwrap_or(0);
    Ok(Release {
        major: byte(16),
        minor: byte(8),
    })
}

fn version(bytes: &[u8]) -> Option<usize> {
    if bytes.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (at, each, count) = (word(bytes, 40, 8)?, word(bytes, 58, 2)?, word(bytes, 60, 2)?);
    let section = |number: usize| at.checked_add(number.checked_mul(each)?);
    let table = (0..count)
        .filter_map(section)
        .find(|head| word(bytes, head + 4, 4) == Some(SHT_DYNSYM))?;
    let strings = word(bytes, section(word(bytes, table + 40, 4)?)? + 24, 8)?;
    let (first, size) = (word(bytes, table + 24, 8)?, word(bytes, table + 32, 8)?);
    let symbol = (0..size / ENTRY)
        .map(|number| first + number * ENTRY)
        .find(|symbol| {
            let name = word(bytes, *symbol, 4).and_then(|name| bytes.get(strings.checked_add(name)?..));
            word(bytes, symbol + 6, 2) != Some(0) && name.is_some_and(|name| name.starts_with(SYMBOL))
        })?;
    let home = section(word(bytes, symbol + 6, 2)?)?;
    let within = word(bytes, symbol + 8, 8)?.checked_sub(word(bytes, home + 16, 8)?)?;
    word(bytes, word(bytes, home + 24, 8)?.checked_add(within)?, 4)
}

/// The little endian number of `size` bytes at `at`.
fn word(bytes: &[u8], at: usize, size: usize) -> Option<usize> {
    let part = bytes.get(at..at.checked_add(size)?)?;
    part.iter().rev().try_fold(0_usize, |number, byte| {
        number.checked_mul(256)?.checked_add(usize::from(*byte))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_plugin_is_told_and_never_read_past_its_end() {
        assert_eq!(version(b""), None);
        assert_eq!(version(b"#!/bin/sh\n"), None);
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(version(&own), None, "a program has no such symbol");
        for cut in [64, 100, own.len() / 2] {
            assert_eq!(version(&own[..cut]), None, "{cut}");
        }
    }
}
