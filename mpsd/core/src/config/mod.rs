//! `mpsd.toml`: what the site decides. A key is a row of `settings`; `values` has the types,
//! `reader` reads the TOML.

mod hosts;
mod reader;
mod settings;
mod values;

pub use hosts::HostList;
pub use settings::{
    Ceilings, Defaults, Drain, Origin, Pbs, Reports, Row, SECTIONS, Section, Settings, Slurm, TEXTS,
};
pub use values::{
    Cgroup, ComputeModeRule, GpusUnknown, LeftoverClients, MemoryOverLimit, WarnOrRefuse,
};

use crate::failure::{Evidence, Fault};
use crate::file::{FileError, read_any};
use crate::text::{is_word, one_line};
use crate::trusted::open_trusted;
use reader::{read, read_despite_errors};
use std::collections::BTreeMap;
use std::path::Path;

pub const DEFAULT_PATH: &str = "/etc/mpsd/mpsd.toml";
const LONGEST: usize = 1 << 20;

impl Settings {
    /// Reads the file at `path` for `node`. It and every directory above it must be root's. No
    /// default replaces a file with errors.
    pub fn load(path: &Path, node: &str) -> Result<Self, Fault> {
        Self::of_bytes(path, trusted(path), node)
    }

    /// Reads a draft of the file, which any user may own. Nothing acts on a draft.
    pub fn draft(path: &Path, node: &str) -> Result<Self, Fault> {
        Self::of_bytes(path, read_any(path, LONGEST), node)
    }

    fn of_bytes(path: &Path, bytes: Result<Vec<u8>, FileError>, node: &str) -> Result<Self, Fault> {
        let bytes = bytes.map_err(|error| {
            let remedy = match error.is_absent() {
                true => " (an empty file is enough: it has the defaults)",
                false => "",
            };
            let why = format!("{error}{remedy}");
            Fault::new(Evidence::Configuration, "configuration", why)
        })?;
        let text = String::from_utf8(bytes).map_err(|_| whole(path, "is not UTF-8 text"))?;
        Self::of_text(path, &text, node)
    }

    pub fn parse(text: &str, node: &str) -> Result<Self, Fault> {
        Self::of_text(Path::new(DEFAULT_PATH), text, node)
    }

    fn of_text(file: &Path, text: &str, node: &str) -> Result<Self, Fault> {
        if node.len() > 255 || !is_word(node, b"._-") || node.starts_with(['.', '-']) {
            let why = "not a name; allowed: letters, digits, '.', '_' and '-'";
            let name = one_line(node, 64);
            return Err(whole(file, format!("node '{name}': {why}")));
        }
        read(text, node).map_err(|error| error.in_file(file, text))
    }
}

/// The settings of a teardown on `node` if the file at `path` cannot be used: the defaults, in the
/// directories that the file still names. Jobs from before an error lie there.
pub fn directories_alone(path: &Path, node: &str) -> Settings {
    let bytes = trusted(path).unwrap_or_default();
    let read = read_despite_errors(&String::from_utf8_lossy(&bytes), node);
    Settings {
        run_dir: read.run_dir,
        state_dir: read.state_dir,
        ..Settings::default()
    }
    .with_origins(&BTreeMap::new())
}

fn trusted(path: &Path) -> Result<Vec<u8>, FileError> {
    open_trusted(path).and_then(|file| file.read(LONGEST))
}

fn whole(file: &Path, why: impl Into<String>) -> Fault {
    Fault::new(Evidence::Configuration, file.display().to_string(), why)
}

#[cfg(test)]
mod tests;
