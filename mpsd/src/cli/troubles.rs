//! What goes wrong under MPS: why, and what to do.

use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Trouble {
    pub name: String,
    /// Numbers of CUDA errors that mean it.
    #[serde(default)]
    pub codes: Vec<u32>,
    #[serde(skip_serializing)]
    /// What programs and logs write of it.
    pub words: Vec<String>,
    /// The logs of a job without trouble have such lines too.
    #[serde(default, skip_serializing)]
    pub usual: bool,
    pub cause: String,
    pub remedy: String,
    /// The section of `docs/facts` that has it.
    pub source: String,
}

pub static TROUBLES: LazyLock<Vec<Trouble>> = LazyLock::new(|| {
    #[derive(Default, Deserialize)]
    struct Table {
        trouble: Vec<Trouble>,
    }
    let table: Table = toml::from_str(include_str!("troubles.toml")).unwrap_or_default();
    table.trouble
});
