//! The plugin for each release of Slurm: linked once, its stamp rewritten. Slurm refuses the file
//! if major or minor of `plugin_version` differ from its own; nothing else that the plugin uses
//! differs between these releases.

use anyhow::{Context as _, Result, bail};
use object::read::elf::ElfFile64;
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};

const STAMP: &str = "plugin_version";

/// `SLURM_VERSION_NUM(major, minor, 0)` of a release as `YY.MM`
/// (slurm.h: major << 16 | minor << 8 | micro).
fn number(release: &str) -> Result<u32> {
    let parts = release.split_once('.');
    let parts = parts.filter(|(major, minor)| major.len() == 2 && minor.len() == 2);
    let (major, minor) =
        parts.with_context(|| format!("'{release}' is no release of Slurm: YY.MM, as in 22.05"))?;
    let (major, minor): (u8, u8) = (major.parse()?, minor.parse()?);
    Ok(u32::from(major) << 16 | u32::from(minor) << 8)
}

/// `plugin` with the stamp of `release`; nothing else is changed.
pub fn stamped(plugin: &[u8], release: &str) -> Result<Vec<u8>> {
    let (at, size) = symbol(&parsed(plugin)?, STAMP)?;
    if size != 4 {
        bail!("'{STAMP}' has {size} bytes, not 4");
    }
    let mut copy = plugin.to_vec();
    let bytes = copy.get_mut(at..at + 4);
    let bytes = bytes.with_context(|| format!("'{STAMP}' is not in the file"))?;
    bytes.copy_from_slice(&number(release)?.to_le_bytes());
    Ok(copy)
}

pub fn parsed(bytes: &[u8]) -> Result<ElfFile64<'_>> {
    ElfFile64::parse(bytes).context("not a 64-bit ELF file")
}

fn symbol(elf: &ElfFile64<'_>, name: &str) -> Result<(usize, u64)> {
    let mut symbols = elf.dynamic_symbols();
    let symbol = symbols.find(|symbol| symbol.is_definition() && symbol.name() == Ok(name));
    let symbol = symbol.with_context(|| format!("no symbol '{name}'"))?;
    let index = symbol
        .section_index()
        .context("a symbol without a section")?;
    let section = elf.section_by_index(index)?;
    let (start, _) = section.file_range().context("a section without bytes")?;
    let within = symbol.address().checked_sub(section.address());
    let at = start + within.context("a symbol before its section")?;
    Ok((usize::try_from(at)?, symbol.size()))
}

/// The versions that the file wants of other libraries, as in `GLIBC_2.28` (LSB, "Symbol
/// Versioning").
pub fn wanted_versions(elf: &ElfFile64<'_>) -> Result<Vec<String>> {
    let (endian, data, sections) = (elf.endian(), elf.data(), elf.elf_section_table());
    let mut versions = Vec::new();
    if let Some((mut files, link)) = sections.gnu_verneed(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        while let Some((_, mut wanted)) = files.next()? {
            while let Some(version) = wanted.next()? {
                versions.push(String::from_utf8(version.name(endian, strings)?.to_vec())?);
            }
        }
    }
    Ok(versions)
}

/// `GLIBC_2.28` as numbers; `None` for another library or a private version.
pub fn glibc(version: &str) -> Option<(u32, u32)> {
    let (major, minor) = version.strip_prefix("GLIBC_")?.split_once('.')?;
    let minor = minor.split('.').next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_two_numbers() {
        assert_eq!(number("22.05").unwrap(), 0x16_05_00);
        assert_eq!(number("26.05").unwrap(), 0x1a_05_00);
        for wrong in ["22.5", "2205", "22.05.8", "ab.cd", ""] {
            assert!(number(wrong).is_err(), "{wrong}");
        }
    }
}
