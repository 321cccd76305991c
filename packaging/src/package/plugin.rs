//! The plugin for each release of Slurm: linked once, its stamp rewritten.
//!
//! Slurm compares major and minor of `plugin_version` with its own and refuses the file else; between the releases that we
//! support, nothing else that the plugin uses differs.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use super::elf::Elf;
use super::layout::SLURM;

/// `spank-variants`' options.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The plugin as linked
    plugin: PathBuf,
    /// Gets a directory YY.MM with a plugin for each release
    dir: PathBuf,
}

/// Writes the plugin once for each release.
pub fn run(options: &Options) -> Result<()> {
    let plugin =
        fs::read(&options.plugin).with_context(|| format!("cannot read '{}'", options.plugin.display()))?;
    for release in SLURM {
        let dir = options.dir.join(release);
        fs::create_dir_all(&dir).with_context(|| format!("cannot make '{}'", dir.display()))?;
        let path = dir.join("spank_mps.so");
        fs::write(&path, stamped(&plugin, release)?)
            .with_context(|| format!("cannot write '{}'", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// The exported symbol with the stamp.
const STAMP: &str = "plugin_version";

/// `SLURM_VERSION_NUM(major, minor, 0)` of a release as `YY.MM` (slurm.h: major << 16 | minor << 8 | micro).
pub fn number(release: &str) -> Result<u32> {
    let parts = release
        .split_once('.')
        .filter(|(major, minor)| major.len() == 2 && minor.len() == 2);
    let (major, minor) =
        parts.with_context(|| format!("'{release}' is no release of Slurm: YY.MM, as in 22.05"))?;
    let (major, minor): (u8, u8) = (major.parse()?, minor.parse()?);
    Ok(u32::from(major) << 16 | u32::from(minor) << 8)
}

/// `plugin` with the stamp of `release`; nothing else is changed.
pub fn stamped(plugin: &[u8], release: &str) -> Result<Vec<u8>> {
    let (at, size) = Elf::parse(plugin)?.symbol(STAMP)?;
    if size != 4 {
        bail!("'{STAMP}' has {size} bytes, not 4");
    }
    let mut copy = plugin.to_vec();
    let bytes = copy
        .get_mut(at..at + 4)
        .with_context(|| format!("'{STAMP}' is not in the file"))?;
    bytes.copy_from_slice(&number(release)?.to_le_bytes());
    Ok(copy)
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
