//! Files, with the path in each error.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

pub fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read '{}'", path.display()))
}

pub fn read_text(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    fs::read_to_string(path).with_context(|| format!("cannot read '{}'", path.display()))
}

pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> Result<()> {
    fs::write(path, bytes).with_context(|| format!("cannot write '{}'", path.display()))
}

pub fn copy(from: &Path, to: &Path) -> Result<()> {
    let copied = fs::copy(from, to);
    copied
        .map(drop)
        .with_context(|| format!("cannot copy '{}' to '{}'", from.display(), to.display()))
}

pub fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).with_context(|| format!("cannot move '{}'", from.display()))
}

pub fn make_dir(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("cannot make '{}'", path.display()))
}

/// Makes an empty directory, or empties the one that is there.
pub fn emptied(path: &Path) -> Result<()> {
    if path.exists() {
        fs::remove_dir_all(path).with_context(|| format!("cannot empty '{}'", path.display()))?;
    }
    make_dir(path)
}

pub fn list(path: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(path).with_context(|| format!("cannot list '{}'", path.display()))?;
    let mut found = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    found.sort();
    Ok(found)
}

pub fn is_a(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|own| own == extension)
}
