//! Writes another version stamp into a copy of the plugin: four bytes of the symbol `plugin_version` (ELF, 64 bit).

use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

use super::host::program;

/// The stamp of the installed Slurm, as its slurmd says (`slurm 25.11.7`, Debian's `slurm-wlm 22.05.8`).
pub fn installed() -> Result<u32> {
    let slurmd = program(&["slurmd", "slurmd-wlm"])?;
    let said = std::process::Command::new(&slurmd).arg("-V").output()?.stdout;
    let said = String::from_utf8_lossy(&said).into_owned();
    let words = said.split_whitespace().last().unwrap_or_default();
    let release = words.split('-').next().unwrap_or_default();
    let version: Vec<u8> = release.split('.').filter_map(|part| part.parse().ok()).collect();
    match version[..] {
        [major, minor, micro] => Ok(u32::from_be_bytes([0, major, minor, micro])),
        _ => bail!("'{slurmd} -V' said '{said}'"),
    }
}

/// Writes `version` (`0x00MMmmpp`) into the plugin `file`.
pub fn write(file: &Path, version: u32) -> Result<()> {
    let mut bytes = std::fs::read(file)?;
    let at = offset(&bytes, "plugin_version")
        .with_context(|| format!("'{}' has no version stamp", file.display()))?;
    bytes
        .get_mut(at..at + 4)
        .context("the stamp lies outside the file")?
        .copy_from_slice(&version.to_le_bytes());
    // A new file, so that nobody who has the old one mapped sees it change.
    let new = file.with_extension("new");
    std::fs::write(&new, &bytes)?;
    std::fs::set_permissions(&new, std::fs::metadata(file)?.permissions())?;
    std::fs::rename(new, file)?;
    ensure!(std::fs::read(file)? == bytes, "the file changed meanwhile");
    Ok(())
}

/// A number of `size` bytes at `at`.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<usize> {
    let part = bytes.get(at..at + size)?;
    Some(
        part.iter()
            .rev()
            .fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
    )
}

/// Where in the file the bytes of dynamic symbol `name` are.
fn offset(bytes: &[u8], name: &str) -> Option<usize> {
    let section = |index: usize| {
        let at = number(bytes, 0x28, 8)? + index * number(bytes, 0x3a, 2)?;
        Some((
            number(bytes, at + 4, 4)?,
            number(bytes, at + 24, 8)?,
            number(bytes, at + 32, 8)?,
            number(bytes, at + 40, 4)?,
        ))
    };
    const DYNSYM: usize = 11;
    let count = number(bytes, 0x3c, 2)?;
    let (_, symbols, size, link) = (0..count)
        .filter_map(section)
        .find(|(kind, ..)| *kind == DYNSYM)?;
    let (_, strings, ..) = section(link)?;
    let named = |at: &usize| {
        let from = number(bytes, *at, 4).map(|text| strings + text);
        from.and_then(|from| bytes.get(from..from + name.len() + 1))
            .is_some_and(|text| text.starts_with(name.as_bytes()) && text.ends_with(&[0]))
    };
    let symbol = (symbols..symbols + size).step_by(24).find(named)?;
    let address = number(bytes, symbol + 8, 8)?;
    // The loadable segment that holds the address says how far file and memory are apart.
    let (table, entry, segments) = (
        number(bytes, 0x20, 8)?,
        number(bytes, 0x36, 2)?,
        number(bytes, 0x38, 2)?,
    );
    (0..segments).map(|index| table + index * entry).find_map(|at| {
        let (kind, from, base, length) = (
            number(bytes, at, 4)?,
            number(bytes, at + 8, 8)?,
            number(bytes, at + 16, 8)?,
            number(bytes, at + 32, 8)?,
        );
        (kind == 1 && (base..base + length).contains(&address)).then(|| address - base + from)
    })
}
