//! `mpsd.toml`: what the site decides.
//!
//! [`Config`] is the file, checked as a whole by the rows of [`SECTIONS`]; [`Settings`] is what is in force on one node.
//! Every program of the suite, the plugin included, reads the file through here; it takes less than a millisecond.

mod error;
mod hosts;
mod layer;
mod settings;
mod values;

pub use hosts::HostList;
pub use settings::{
    Ceilings, Defaults, Drain, Origin, Pbs, Reports, Row, SECTIONS, Section, Settings, Slurm,
};
pub use values::{
    Cgroup, ComputeModeRule, GpusUnknown, LeftoverClients, MemoryOverLimit, TooManyTasks, UnattachedTasks,
    Wait,
};

use crate::failure::{Evidence, Fault};
use crate::file::{FileError, read_regular};
use crate::text::one_line;
use crate::trusted::open_trusted;
use error::{Wrong, position};
use layer::layers;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use values::Given;

/// Where the file is unless `--config` says otherwise.
pub const DEFAULT_PATH: &str = "/etc/mpsd/mpsd.toml";
/// Longest file, bytes.
const LONGEST: usize = 1 << 20;

/// The file, read and checked.
#[derive(Debug, Clone)]
pub struct Config {
    file: PathBuf,
    text: String,
}

impl Config {
    /// Reads the file at `path`, which must be root's, together with every directory on the way to it.
    ///
    /// A file that cannot be read is an error and never means the defaults: root would act on rules nobody wrote.
    ///
    /// # Errors
    /// The file cannot be trusted, read or understood.
    pub fn load(path: &Path) -> Result<Self, Fault> {
        let bytes = open_trusted(path)
            .and_then(|file| file.read(LONGEST))
            .map_err(|error| whole(path, error.to_string()))?;
        Self::parse_as(path, in_text(path, bytes)?)
    }

    /// Reads a draft of the file, whosever it is, at a path from here: nothing acts on it.
    ///
    /// # Errors
    /// As [`Config::load`], but for the owner.
    pub fn draft(path: &Path) -> Result<Self, Fault> {
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let bytes = open(path, flags, Mode::empty())
            .map_err(FileError::io("open", path))
            .and_then(|file| read_regular(&file, path, LONGEST))
            .map_err(|error| whole(path, error.to_string()))?;
        Self::parse_as(path, in_text(path, bytes)?)
    }

    /// Reads `text` as if it stood in [`DEFAULT_PATH`].
    ///
    /// # Errors
    /// The text is no TOML, or has an unknown key or a wrong value anywhere, in sections for other nodes too.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        Self::parse_as(Path::new(DEFAULT_PATH), text.to_owned())
    }

    fn parse_as(file: &Path, text: String) -> Result<Self, Fault> {
        layers(&text).map_err(|wrong| wrong.of(file, &text))?;
        Ok(Self {
            file: file.to_owned(),
            text,
        })
    }

    /// The file's path.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// What is in force on `node`, whose GPUs are `products`: the file's top, then every section that fits, in order,
    /// later ones over earlier ones.
    ///
    /// Before NVML has been asked, `products` is empty, and sections with a product do not fit: what they may hold is
    /// not needed before.
    ///
    /// # Errors
    /// `node` is not a name that could stand in a path.
    pub fn for_node(&self, node: &str, products: &[&str]) -> Result<Settings, Fault> {
        if !is_node_name(node) {
            let why = format!(
                "node '{}': not a name; allowed: letters, digits, '.', '_' and '-'",
                one_line(node, 64)
            );
            return Err(whole(&self.file, why));
        }
        let wrong = |wrong: Wrong| wrong.of(&self.file, &self.text);
        let mut settings = Settings::default();
        let mut lines = BTreeMap::new();
        for layer in layers(&self.text)
            .map_err(wrong)?
            .iter()
            .filter(|layer| layer.fits(node, products))
        {
            for (row, value) in &layer.values {
                (row.read)(&mut settings, &Given { value, node }).map_err(wrong)?;
                lines.insert(row.name, position(&self.text, value.span().start).0);
            }
        }
        Ok(settings.with_origins(&lines))
    }
}

fn in_text(path: &Path, bytes: Vec<u8>) -> Result<String, Fault> {
    String::from_utf8(bytes).map_err(|_| whole(path, "is not UTF-8 text"))
}

/// The whole file is at fault.
fn whole(file: &Path, why: impl Into<String>) -> Fault {
    Fault::new(Evidence::Configuration, file.display().to_string(), why)
}

/// A node's name becomes part of a path: it can name neither another directory nor the one above.
fn is_node_name(name: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=255).contains(&name.len()) && name.bytes().all(good) && !name.starts_with(['.', '-'])
}

#[cfg(test)]
mod tests;
