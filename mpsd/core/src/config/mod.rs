//! `mpsd.toml`: what the site decides. A key is a row of `settings`; `values` has the types,
//! `layer` reads the TOML.

mod hosts;
mod layer;
mod settings;
mod values;

pub use hosts::HostList;
pub use settings::{
    Ceilings, Defaults, Drain, Origin, Pbs, Reports, Row, SECTIONS, Section, Settings, Slurm,
};
pub use values::{
    Cgroup, ComputeModeRule, GpusUnknown, LeftoverClients, MemoryOverLimit, Wait, WarnOrRefuse,
};

use crate::failure::{Evidence, Fault};
use crate::file::{FileError, read_any};
use crate::text::{is_word, one_line};
use crate::trusted::open_trusted;
use layer::{blanked, layers, layers_despite_errors};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use values::{ConfigError, Entry, position};

pub const DEFAULT_PATH: &str = "/etc/mpsd/mpsd.toml";
const LONGEST: usize = 1 << 20;

#[derive(Debug, Clone)]
pub struct Config {
    file: PathBuf,
    text: String,
}

impl Config {
    /// Reads the file at `path`. It and every directory above it must be root's. No default
    /// replaces a file with errors.
    pub fn load(path: &Path) -> Result<Self, Fault> {
        Self::of_bytes(path, open_trusted(path).and_then(|file| file.read(LONGEST)))
    }

    /// Reads a draft of the file, which any user may own. Nothing acts on a draft.
    pub fn draft(path: &Path) -> Result<Self, Fault> {
        Self::of_bytes(path, read_any(path, LONGEST))
    }

    fn of_bytes(path: &Path, bytes: Result<Vec<u8>, FileError>) -> Result<Self, Fault> {
        let bytes = bytes.map_err(|error| {
            let remedy = match error.is_absent() {
                true => " (an empty file is enough: it has the defaults)",
                false => "",
            };
            let why = format!("{error}{remedy}");
            Fault::new(Evidence::Configuration, "configuration", why)
        })?;
        let text = String::from_utf8(bytes).map_err(|_| whole(path, "is not UTF-8 text"))?;
        Self::parse_as(path, text)
    }

    /// Reads `text` as if it stood in [`DEFAULT_PATH`]. An error in a section for other nodes
    /// counts too.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        Self::parse_as(Path::new(DEFAULT_PATH), text.to_owned())
    }

    fn parse_as(file: &Path, text: String) -> Result<Self, Fault> {
        layers(&text).map_err(|error| error.in_file(file, &text))?;
        let file = file.to_owned();
        Ok(Self { file, text })
    }

    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The values in force on `node`: the file's top, then every section that fits, in order.
    pub fn for_node(&self, node: &str) -> Result<Settings, Fault> {
        if !is_node_name(node) {
            let why = "not a name; allowed: letters, digits, '.', '_' and '-'";
            let name = one_line(node, 64);
            return Err(whole(&self.file, format!("node '{name}': {why}")));
        }
        let in_file = |error: ConfigError| error.in_file(&self.file, &self.text);
        let mut settings = Settings::default();
        let mut lines = BTreeMap::new();
        let layers = layers(&self.text).map_err(in_file)?;
        for layer in layers.iter().filter(|layer| layer.fits(node)) {
            for (row, value) in &layer.values {
                (row.read)(&mut settings, &Entry::new(value, node)).map_err(in_file)?;
                lines.insert(row.name, position(&self.text, value.span().start).0);
            }
        }
        Ok(settings.with_origins(&lines))
    }
}

/// The settings of a teardown on `node` if the file at `path` cannot be used: the defaults, in the
/// directories that the file still names. Jobs from before an error lie there.
pub fn directories_alone(path: &Path, node: &str) -> Settings {
    let bytes = open_trusted(path).and_then(|file| file.read(LONGEST));
    let text = blanked(&String::from_utf8_lossy(&bytes.unwrap_or_default()));
    let mut settings = Settings::default();
    let mut layers = layers_despite_errors(&text);
    layers.retain(|layer| layer.fits(node));
    for (row, value) in layers.iter().flat_map(|layer| &layer.values) {
        if ["run_dir", "state_dir"].contains(&row.name) {
            // A wrong value is one of the file's errors.
            let _ = (row.read)(&mut settings, &Entry::new(value, node));
        }
    }
    settings.with_origins(&BTreeMap::new())
}

fn whole(file: &Path, why: impl Into<String>) -> Fault {
    Fault::new(Evidence::Configuration, file.display().to_string(), why)
}

fn is_node_name(name: &str) -> bool {
    name.len() <= 255 && is_word(name, b"._-") && !name.starts_with(['.', '-'])
}

#[cfg(test)]
mod tests;
