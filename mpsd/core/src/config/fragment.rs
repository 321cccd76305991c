//! The file as it is written: every key optional, none unknown.

use super::hosts::HostList;
use super::values::{
    CgroupRule, Clients, ComputeModeRule, DeviceNames, GpusUnknown, LeftoverClients, Library,
    MemoryOverLimit, Name, PathPattern, Prefix, Product, Replicas, Seconds, TooManyTasks, UnattachedTasks,
    Wait, Window, Worded,
};
use crate::limits::{Amount, Percent, Priority};
use crate::request::{MemoryLimit, Threads};
use serde::Deserialize;
use toml::Spanned;

/// A key's value with its place in the file.
type Key<T> = Option<Spanned<T>>;

/// The file, or one `[[node]]` section of it: both take the same keys. What only one of them may have
/// ([`Fragment::hosts`], [`Fragment::product`]; [`Fragment::node`]) is checked after reading.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Fragment {
    pub run_dir: Key<PathPattern>,
    pub state_dir: Key<PathPattern>,
    pub control: Key<PathPattern>,
    pub nvml: Key<Library>,
    pub compute_mode: Key<ComputeModeRule>,
    pub gpus_unknown: Key<GpusUnknown>,
    pub too_many_tasks: Key<TooManyTasks>,
    pub max_clients: Key<Clients>,
    pub replicas: Key<Replicas>,
    pub cuda_visible_devices: Key<DeviceNames>,
    pub cgroup: Key<CgroupRule>,
    pub deadline_s: Key<Seconds>,
    pub leftover_clients: Key<LeftoverClients>,
    pub memory_over_limit: Key<MemoryOverLimit>,
    pub defaults: DefaultsFragment,
    pub ceilings: CeilingsFragment,
    pub slurm: SlurmFragment,
    pub pbs: PbsFragment,
    pub drain: DrainFragment,
    pub hosts: Key<HostList>,
    pub product: Key<Product>,
    pub node: Vec<Spanned<Fragment>>,
}

/// `[defaults]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct DefaultsFragment {
    pub threads: Key<Worded<Threads>>,
    pub mem: Key<Worded<MemoryLimit>>,
    pub priority: Key<Worded<Priority>>,
    pub verify: Key<bool>,
}

/// `[ceilings]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CeilingsFragment {
    pub threads: Key<Worded<Percent>>,
    pub mem: Key<Worded<Amount>>,
}

/// `[slurm]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SlurmFragment {
    pub wait: Key<Wait>,
    pub requeue: Key<bool>,
    pub auto_gres: Key<bool>,
    pub auto_constraint: Key<Name>,
    pub auto_partitions: Key<Vec<Name>>,
}

/// `[pbs]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PbsFragment {
    pub home: Key<PathPattern>,
    pub exec: Key<PathPattern>,
    pub node: Key<Name>,
    pub unattached_tasks: Key<UnattachedTasks>,
}

/// `[drain]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct DrainFragment {
    pub enabled: Key<bool>,
    pub prefix: Key<Prefix>,
    pub auto_undrain: Key<bool>,
    pub failed_starts_window_s: Key<Window>,
}

impl Fragment {
    /// A key that must be known before a GPU can be looked at, so before its product is: its name.
    pub(super) fn early_key(&self) -> Option<(&'static str, std::ops::Range<usize>)> {
        fn found<T>(name: &'static str, key: &Key<T>) -> Option<(&'static str, std::ops::Range<usize>)> {
            key.as_ref().map(|value| (name, value.span()))
        }
        let (slurm, pbs) = (&self.slurm, &self.pbs);
        found("run_dir", &self.run_dir)
            .or_else(|| found("state_dir", &self.state_dir))
            .or_else(|| found("nvml", &self.nvml))
            .or_else(|| found("slurm.wait", &slurm.wait))
            .or_else(|| found("slurm.requeue", &slurm.requeue))
            .or_else(|| found("slurm.auto_gres", &slurm.auto_gres))
            .or_else(|| found("slurm.auto_constraint", &slurm.auto_constraint))
            .or_else(|| found("slurm.auto_partitions", &slurm.auto_partitions))
            .or_else(|| found("pbs.home", &pbs.home))
            .or_else(|| found("pbs.exec", &pbs.exec))
            .or_else(|| found("pbs.node", &pbs.node))
            .or_else(|| found("pbs.unattached_tasks", &pbs.unattached_tasks))
    }
}
