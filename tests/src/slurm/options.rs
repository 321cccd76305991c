//! The options of a bed.

use std::path::{Path, PathBuf};

use super::conf::{self, Gpus, Word};

/// The claim of a bed without files, see [`Options::claims`]: the places where Slurm then looks,
/// and to have the only slurmds that do not name their configuration.
pub const CONFIGLESS: &str = "slurmds without a file";

#[derive(Clone, Debug)]
pub struct Options {
    pub nodes: usize,
    /// The nodes' name before the number: `node1` and so on. Slurm's cgroups have it too, so beds
    /// that use cgroups at the same time need different names.
    pub node_name: &'static str,
    pub cpus: u32,
    pub gpus: Gpus,
    /// Minor numbers of the nodes' GPUs in the order of the bus. Each node then has a `/dev` of its
    /// own with `/dev/nvidia<minor>`; empty: files of the bed's own, `Gpus::Simulated` of them.
    pub minors: Vec<u32>,
    /// The users have a shell and a profile on the nodes, as on a cluster. For a script with
    /// `--export=NONE` Slurm gets the environment by `su - USER`. From 25.05 on it requeues the job
    /// if that fails.
    pub login_shells: bool,
    /// The text of `gres.conf`, instead of a line for each GPU.
    pub gres_conf: Option<String>,
    /// `slurm.conf`'s words about each node's GPUs, instead of `gpu:COUNT`.
    pub gres: Option<String>,
    /// Write `KEY = VALUE` in `slurm.conf`, not `KEY=VALUE`.
    pub blanks: bool,
    /// The nodes get their configuration from the controller. Needs `minors`, which gives nodes
    /// their own places.
    pub configless: bool,
    /// Further kinds of gres beside `gpu` (`mps`, `shard`), with `gres_count` of each on every
    /// node.
    pub gres_types: Vec<String>,
    pub gres_count: u32,
    /// Words added to every `NodeName=` line, for example `Feature=mps`.
    pub node_words: Option<String>,
    pub word: Word,
    pub plugin: Option<PathBuf>,
    pub plugin_arguments: Vec<String>,
    pub stack_lines: Vec<String>,
    /// Nodes with a slurmd that has no plugin, on the same cluster: see
    /// [`crate::slurm::Bed::plain_conf`].
    pub plain_nodes: Vec<String>,
    /// Lines of those nodes' own plugstack.conf.
    pub plain_stack_lines: Vec<String>,
    pub prolog_flags: String,
    /// Lines of `slurm.conf`; one that sets a key of ours replaces it.
    pub slurm_lines: Vec<String>,
    pub partition_lines: Vec<String>,
    pub cgroup_lines: Vec<String>,
    pub job_container_lines: Vec<String>,
}

pub fn unified() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// The plugin that fits the machine. Under systemd it has a scope of its own, as on a site; without
/// systemd it makes its groups in `system.slice`.
fn cgroup_lines() -> Vec<String> {
    let lines: &[&str] = match (unified(), Path::new("/run/systemd/system").exists()) {
        (true, true) => &["CgroupPlugin=cgroup/v2"],
        (true, false) => &["CgroupPlugin=cgroup/v2", "IgnoreSystemd=yes"],
        (false, _) => &["CgroupAutomount=no"],
    };
    owned(lines)
}

fn owned(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

impl Default for Options {
    fn default() -> Options {
        Options {
            nodes: 2,
            node_name: "node",
            cpus: 8,
            gpus: Gpus::Simulated(2),
            minors: Vec::new(),
            login_shells: false,
            gres_conf: None,
            gres: None,
            blanks: false,
            configless: false,
            gres_types: Vec::new(),
            gres_count: 0,
            node_words: None,
            word: Word::Optional,
            plugin: None,
            plugin_arguments: Vec::new(),
            stack_lines: Vec::new(),
            plain_nodes: Vec::new(),
            plain_stack_lines: Vec::new(),
            prolog_flags: "Alloc,Contain".into(),
            slurm_lines: Vec::new(),
            partition_lines: Vec::new(),
            cgroup_lines: cgroup_lines(),
            job_container_lines: Vec::new(),
        }
    }
}

impl Options {
    pub(super) fn node(&self, index: usize) -> String {
        format!("{}{index}", self.node_name)
    }

    pub fn load(&mut self, plugin: &Path, config: &Path, programs: &Path) {
        self.plugin = Some(plugin.to_owned());
        let word = |name: &str, path: &Path| format!("{name}={}", path.display());
        self.plugin_arguments = vec![
            word("config", config),
            word("prologue", &programs.join("mps-prologue")),
            word("epilogue", &programs.join("mps-epilogue")),
        ];
    }

    pub fn with_cgroups(mut self, lines: &[&str]) -> Options {
        let plugins = ["ProctrackType=proctrack/cgroup", "TaskPlugin=task/cgroup"];
        self.slurm_lines.extend(owned(&plugins));
        if !unified() {
            let plugin = ["CgroupMountpoint=/sys/fs/cgroup", "CgroupPlugin=cgroup/v1"];
            self.cgroup_lines.extend(owned(&plugin));
        }
        self.cgroup_lines.extend(owned(lines));
        self
    }

    pub(super) fn is_in_cgroups(&self) -> bool {
        let mut lines = self.slurm_lines.iter();
        lines.any(|line| line.ends_with("/cgroup"))
    }

    pub(super) fn each_node(&self) -> impl Iterator<Item = String> {
        (1..=self.nodes).map(|index| self.node(index))
    }

    /// What such a bed needs for itself. Two beds with a common word must not exist at the same
    /// time.
    pub fn claims(&self) -> Vec<String> {
        // With v2 every slurmd makes some.
        let cgroups = unified() || self.is_in_cgroups();
        let cgroups = cgroups.then(|| format!("the cgroups of {}1", self.node_name));
        let configless = self.configless.then(|| CONFIGLESS.to_owned());
        cgroups.into_iter().chain(configless).collect()
    }

    pub(super) fn names_key(&self, key: &str) -> bool {
        let mut lines = self.slurm_lines.iter();
        lines.any(|line| conf::key(line).eq_ignore_ascii_case(key))
    }
}
