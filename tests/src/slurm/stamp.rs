//! Writes another version stamp into a copy of the plugin: four bytes of the symbol
//! `plugin_version` (ELF, 64 bit).

use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};

use super::host::program;

pub fn installed() -> Result<u32> {
    let slurmd = program(&["slurmd", "slurmd-wlm"])?;
    let said = std::process::Command::new(&slurmd).arg("-V").output()?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let words = said.split_whitespace().last().unwrap_or_default();
    let release = words.split('-').next().unwrap_or_default();
    let parts = release.split('.').filter_map(|part| part.parse().ok());
    let version: Vec<u8> = parts.collect();
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
    let stamp = bytes
        .get_mut(at..at + 4)
        .context("the stamp lies outside the file")?;
    stamp.copy_from_slice(&version.to_le_bytes());
    // A new file, because a program that has mapped the old one must not see it change.
    let new = file.with_extension("new");
    std::fs::write(&new, &bytes)?;
    std::fs::set_permissions(&new, std::fs::metadata(file)?.permissions())?;
    std::fs::rename(new, file)?;
    ensure!(std::fs::read(file)? == bytes, "the file changed meanwhile");
    Ok(())
}

fn offset(bytes: &[u8], name: &str) -> Option<usize> {
    let file = object::File::parse(bytes).ok()?;
    let mut symbols = file.dynamic_symbols();
    let symbol = symbols.find(|symbol| symbol.name() == Ok(name))?;
    let section = file.section_by_index(symbol.section_index()?).ok()?;
    let (start, _) = section.file_range()?;
    usize::try_from(start + symbol.address() - section.address()).ok()
}
