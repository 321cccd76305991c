//! A bed whose nodes have doubles of NVIDIA's programs and GPUs, each its own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};

use super::bed::Bed;
use super::conf::{self, Gpus};
use super::product::Product;
use crate::double::node::Description;
use crate::double::{Builder, NodeDouble};

pub const MODEL: &str = "NVIDIA H200";

pub const SMS: u64 = 132;

#[derive(Debug)]
pub struct Simulated {
    pub product: Product,
    pub nodes: Vec<NodeDouble>,
    root: PathBuf,
}

/// A client's record of itself: see the double `cuda-client-double`, and `mps-probe --json`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Record {
    pub pid: i32,
    /// The user that it ran as. The record of a failure lacks this and most of the rest.
    pub uid: Option<u32>,
    /// The node it ran on, which `mps-probe` does not know.
    pub node: String,
    pub local_rank: Option<u32>,
    pub pipe_directory: Option<String>,
    pub visible: Option<String>,
    pub job: Option<String>,
    pub under_mps: bool,
    pub daemon_pid: Option<i32>,
    pub server_pid: Option<i32>,
    pub uuids: Vec<String>,
    pub gpus: Vec<RecordGpu>,
    pub sms: Option<u64>,
    pub memory_limit_mib: Option<u64>,
    pub error: Option<String>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct RecordGpu {
    pub uuid: String,
    pub sms: u64,
    #[serde(default)]
    pub allocatable_mib: Option<u64>,
}

impl Record {
    /// Skips lines that are no record.
    pub fn all(text: &str) -> Result<Vec<Record>> {
        let lines = text.lines().filter(|line| line.starts_with('{'));
        let record =
            |line| serde_json::from_str(line).with_context(|| format!("no record: {line}"));
        lines.map(record).collect()
    }
}

impl Simulated {
    /// `shape` changes a node's double, `extra` is added to `mpsd.toml`.
    pub fn install(
        bed: &mut Bed,
        extra: &str,
        shape: impl Fn(Builder) -> Builder,
    ) -> Result<Simulated> {
        let Gpus::Simulated(gpus) = bed.options_mut().gpus else {
            bail!("the bed's GPUs are real");
        };
        let options = bed.options_mut().clone();
        let root = bed.dir().join("nodes");
        std::fs::create_dir(&root)?;
        let mut nodes = Vec::new();
        for (index, name) in (1..).zip(bed.nodes()) {
            let devices = conf::devices(bed.dir(), &options, index);
            let builder = NodeDouble::builder().name(&name).gpus(gpus as usize, MODEL);
            let builder = builder.at(root.join(&name)).describe(|node| {
                for (gpu, device) in node.gpu.iter_mut().zip(devices) {
                    (gpu.minor, gpu.device) = (Some(device.minor), Some(device.file));
                }
            });
            nodes.push(shape(builder).build().map_err(|why| anyhow!(why))?);
        }
        let any = root.join("%n");
        let control = any.join("nvidia-cuda-mps-control");
        let config = Product::settings(bed, &control, &any.join("libnvidia-ml.so.1")) + extra;
        let product = Product::install(bed, &config)?;
        Ok(Simulated {
            product,
            nodes,
            root,
        })
    }

    pub fn dir(&self) -> &Path {
        &self.root
    }

    pub fn client(&self, arguments: &str) -> String {
        let node = format!("{}/$SLURMD_NODENAME", self.root.display());
        format!("exec {node}/cuda-client-double --node {node} {arguments}")
    }

    pub fn node(&self, name: &str) -> Result<&NodeDouble> {
        let root = self.root.join(name);
        let found = self.nodes.iter().find(|node| node.dir() == root);
        found.with_context(|| format!("there is no node '{name}'"))
    }

    /// Until the guard is dropped.
    pub fn change(&self, change: impl Fn(&mut Description)) -> Result<Changed> {
        let mut changed = Changed(Vec::new());
        for node in &self.nodes {
            let file = node.dir().join("node.toml");
            let before = std::fs::read_to_string(&file)?;
            let mut description: Description = toml::from_str(&before)?;
            change(&mut description);
            changed.0.push((file.clone(), before));
            replace(&file, &toml::to_string(&description)?)?;
        }
        Ok(changed)
    }

    /// Mode `default`, no context, no daemon.
    pub fn check_idle(&self) -> Result<()> {
        for node in &self.nodes {
            let (modes, contexts, daemons) = (node.modes(), node.contexts(), node.daemons());
            let name = node.dir().display();
            let are_usual = modes.iter().all(|mode| mode == "default");
            ensure!(are_usual, "'{name}': compute modes {modes:?}");
            ensure!(contexts.is_empty(), "'{name}': contexts {contexts:?}");
            ensure!(daemons.is_empty(), "'{name}': daemons {daemons:?}");
        }
        Ok(())
    }
}

#[derive(Debug)]
pub struct Changed(Vec<(PathBuf, String)>);

impl Drop for Changed {
    fn drop(&mut self) {
        for (file, text) in &self.0 {
            if let Err(error) = replace(file, text) {
                eprintln!("bed: '{}' keeps its faults: {error:#}", file.display());
            }
        }
    }
}

/// A concurrent reader sees the old text or the new.
fn replace(file: &Path, text: &str) -> Result<()> {
    let new = file.with_extension("new");
    std::fs::write(&new, text)?;
    Ok(std::fs::rename(new, file)?)
}

pub const WITNESS: &str = "slurm-witness";

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Witness {
    pub label: String,
    pub node: String,
    /// Names of the GPUs' files on which it had a context.
    pub devices: BTreeSet<String>,
    pub may_open: BTreeSet<String>,
    pub environment: BTreeMap<String, String>,
    /// Its limits by name, the soft one and the hard one.
    pub limits: BTreeMap<String, String>,
    pub cuda: Record,
    pub daemon_uid: Option<u32>,
}

impl Witness {
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(String::as_str)
    }

    /// Its rank on its node; a batch script has none.
    pub fn local_rank(&self) -> usize {
        let rank = self.variable("SLURM_LOCALID");
        rank.and_then(|rank| rank.parse().ok()).unwrap_or(0)
    }

    pub fn all(dir: &Path) -> Result<Vec<Witness>> {
        let entries = std::fs::read_dir(dir);
        let entries = entries.with_context(|| format!("cannot read '{}'", dir.display()))?;
        let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        files.retain(|file| file.extension().is_some_and(|end| end == "json"));
        files.sort();
        let read = |file: &std::path::PathBuf| {
            let text = std::fs::read_to_string(file)?;
            serde_json::from_str(&text).with_context(|| format!("no record: '{}'", file.display()))
        };
        files.iter().map(read).collect()
    }
}
