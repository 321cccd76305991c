//! What `fs_err` lacks.

use std::path::{Path, PathBuf};

use anyhow::Result;
use fs_err as fs;

/// Makes an empty directory, or empties the one that is there.
pub fn emptied(path: &Path) -> Result<()> {
    if path.exists() {
        fs::remove_dir_all(path)?;
    }
    Ok(fs::create_dir_all(path)?)
}

pub fn list(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(path)?.map(|entry| Ok(entry?.path()));
    let mut found = entries.collect::<Result<Vec<_>>>()?;
    found.sort();
    Ok(found)
}

pub fn is_a(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|own| own == extension)
}
