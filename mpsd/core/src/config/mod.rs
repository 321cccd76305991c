//! `mpsd.toml`: what the site decides.
//!
//! Three types, in the order in which a value passes them: `Fragment` (the file as written, all optional, no unknown
//! key), [`Config`] (the file, checked as a whole), [`Settings`] (what is in force on one node). Every program of the
//! suite, the plugin included, reads the file through here; it takes less than a millisecond.

mod error;
mod fragment;
mod hosts;
mod resolve;
mod settings;
mod values;

pub use error::ConfigError;
pub use hosts::HostList;
pub use resolve::Asker;
pub use settings::{Ceilings, Cgroup, Defaults, Drain, Origin, Pbs, Settings, Slurm};
pub use values::{
    ComputeModeRule, DeviceNames, GpusUnknown, LeftoverClients, MemoryOverLimit, TooManyTasks,
    UnattachedTasks, Wait,
};

use crate::text::one_line;
use crate::trusted::open_trusted;
use fragment::Fragment;
use std::path::{Path, PathBuf};

/// Where the file is unless `--config` says otherwise.
pub const DEFAULT_PATH: &str = "/etc/mpsd/mpsd.toml";
/// Longest file, bytes.
const LONGEST: usize = 1 << 20;

/// The file, read and checked.
#[derive(Debug, Clone)]
pub struct Config {
    file: PathBuf,
    text: String,
    base: Fragment,
}

impl Config {
    /// Reads the file at `path`, which must be root's, together with every directory on the way to it.
    ///
    /// A file that cannot be read is an error and never means the defaults: root would act on rules nobody wrote.
    ///
    /// # Errors
    /// The file cannot be trusted, read or understood.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let bytes = open_trusted(path)
            .and_then(|file| file.read(LONGEST))
            .map_err(|error| ConfigError::whole(path, error.to_string()))?;
        let text = String::from_utf8(bytes).map_err(|_| ConfigError::whole(path, "is not UTF-8 text"))?;
        Self::parse_as(path, text)
    }

    /// Reads `text` as if it stood in [`DEFAULT_PATH`].
    ///
    /// # Errors
    /// The text is no TOML, or has an unknown key or a wrong value anywhere, in sections for other nodes too.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::parse_as(Path::new(DEFAULT_PATH), text.to_owned())
    }

    fn parse_as(file: &Path, text: String) -> Result<Self, ConfigError> {
        let base: Fragment = toml::from_str(&text).map_err(|error| ConfigError::toml(file, &text, &error))?;
        let config = Self {
            file: file.to_owned(),
            text,
            base,
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let wrong = |span: std::ops::Range<usize>, why: String| {
            Err(ConfigError::part(&self.file, &self.text, &span, why))
        };
        let astray = self.base.hosts.as_ref().map(toml::Spanned::span);
        if let Some(span) = astray.or_else(|| self.base.product.as_ref().map(toml::Spanned::span)) {
            return wrong(span, "belongs into a [[node]] section".to_owned());
        }
        for section in &self.base.node {
            let inner = section.get_ref();
            if let Some(nested) = inner.node.first() {
                return wrong(nested.span(), "a [[node]] section within another".to_owned());
            }
            if inner.hosts.is_none() && inner.product.is_none() {
                return wrong(
                    section.span(),
                    "a [[node]] section needs hosts, product or both".to_owned(),
                );
            }
            if let (Some(_), Some((key, span))) = (&inner.product, inner.early_key()) {
                let why =
                    format!("{key} cannot depend on a GPU's product; allowed: a section with hosts only");
                return wrong(span, why);
            }
        }
        Ok(())
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
    pub fn for_node(&self, node: &str, products: &[&str]) -> Result<Settings, ConfigError> {
        if !is_node_name(node) {
            let why = format!(
                "node '{}': not a name; allowed: letters, digits, '.', '_' and '-'",
                one_line(node, 64)
            );
            return Err(ConfigError::whole(&self.file, why));
        }
        let fits = |section: &&Fragment| {
            let host = section
                .hosts
                .as_ref()
                .is_none_or(|hosts| hosts.get_ref().contains(node));
            let is = |product: &toml::Spanned<values::Product>| {
                products.iter().any(|name| product.get_ref().is(name))
            };
            host && section.product.as_ref().is_none_or(is)
        };
        let sections = self.base.node.iter().map(toml::Spanned::get_ref).filter(fits);
        let layers = std::iter::once(&self.base).chain(sections).collect();
        Ok(settings::merge(&self.text, layers, node))
    }
}

/// A node's name becomes part of a path: it can name neither another directory nor the one above.
fn is_node_name(name: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=255).contains(&name.len()) && name.bytes().all(good) && !name.starts_with(['.', '-'])
}

#[cfg(test)]
mod tests;
