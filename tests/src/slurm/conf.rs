//! The text of the bed's configuration files: pure functions of the options.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::options::Options;

/// What Slurm does about failures of a plugin in `plugstack.conf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Slurm ignores every return value of the plugin.
    Optional,
    /// A negative return value fails the step, the job or the node.
    Required,
}

impl Word {
    pub fn text(self) -> &'static str {
        match self {
            Word::Optional => "optional",
            Word::Required => "required",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gpus {
    /// This many character devices of major 240 on each node.
    Simulated(u32),
    /// The host's own `/dev/nvidiaN` with these numbers, all on the first node.
    Real(Vec<u32>),
}

/// Major number of the simulated GPUs: "local/experimental use" in the kernel's list. Opening one
/// gives ENXIO when the job may use it, and EPERM when `ConstrainDevices` forbids it.
pub const SIMULATED_MAJOR: u64 = 240;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub file: PathBuf,
    pub minor: u32,
}

/// Of node `index` (from 1), in the order of the bus.
pub fn devices(dir: &Path, options: &Options, index: usize) -> Vec<Device> {
    let Gpus::Simulated(count) = options.gpus else {
        return Vec::new();
    };
    let dev = private_dev(dir, &options.node(index));
    let own = |gpu: u32| Device {
        file: dev.join(format!("gpu{gpu}")),
        minor: index as u32 * 16 + gpu,
    };
    let real = |minor: &u32| Device {
        file: format!("/dev/nvidia{minor}").into(),
        minor: *minor,
    };
    match options.minors.as_slice() {
        [] => (0..count).map(own).collect(),
        minors => minors.iter().map(real).collect(),
    }
}

pub fn private_dev(dir: &Path, node: &str) -> PathBuf {
    dir.join("dev").join(node)
}

/// The controller's port is first in `ports`, then one a node.
pub fn slurm_conf(dir: &Path, host: &str, ports: &[u16], options: &Options) -> String {
    let at = dir.display();
    let mut text = format!(
        "ClusterName=bed\n\
         SlurmctldHost={host}(127.0.0.1)\n\
         SlurmctldPort={controller}\n\
         SlurmUser=root\n\
         SlurmdUser=root\n\
         AuthType=auth/munge\n\
         AuthInfo=socket={at}/munge/socket\n\
         CryptoType=crypto/munge\n\
         CommunicationParameters=NoInAddrAny,NoCtldInAddrAny\n\
         StateSaveLocation={at}/state\n\
         SlurmdSpoolDir={at}/spool/%n\n\
         SlurmctldPidFile={at}/pid/slurmctld\n\
         SlurmdPidFile={at}/pid/%n\n\
         SlurmctldLogFile={at}/log/slurmctld\n\
         SlurmdLogFile={at}/log/%n\n\
         SlurmdDebug=info\n\
         PlugStackConfig={at}/etc/plugstack.conf\n\
         MpiDefault=none\n\
         SwitchType=switch/none\n\
         TaskPlugin=task/none\n\
         JobAcctGatherType=jobacct_gather/none\n\
         AccountingStorageType=accounting_storage/none\n\
         JobCompType=jobcomp/none\n\
         SchedulerType=sched/backfill\n\
         SchedulerParameters=bf_interval=1,batch_sched_delay=0,sched_interval=1\n\
         SelectType=select/cons_tres\n\
         SelectTypeParameters=CR_Core\n\
         SlurmdParameters=config_overrides\n\
         ReturnToService=2\n\
         KillWait=3\n\
         MessageTimeout=20\n\
         MinJobAge=300\n\
         SlurmctldTimeout=60\n\
         SlurmdTimeout=60\n",
        controller = ports[0],
    );
    let more: String = options
        .gres_types
        .iter()
        .map(|name| format!(",{name}"))
        .collect();
    text += &format!("GresTypes=gpu{more}\nProctrackType=proctrack/linuxproc\n");
    if !options.prolog_flags.is_empty() {
        let _ = writeln!(text, "PrologFlags={}", options.prolog_flags);
    }
    if options.configless {
        text.push_str("SlurmctldParameters=enable_configless\n");
    }
    if !options.plain_nodes.is_empty() {
        // Two files differ in the plugin's line, and the controller would complain at every
        // registration.
        text.push_str("DebugFlags=NO_CONF_HASH\n");
    }
    let ours = std::mem::take(&mut text);
    let ours = ours.lines().filter(|line| !options.names_key(key(line)));
    for line in ours.chain(options.slurm_lines.iter().map(String::as_str)) {
        let _ = match line.split_once('=') {
            Some((key, value)) if options.blanks => writeln!(text, "{key} = {value}"),
            _ => writeln!(text, "{line}"),
        };
    }
    for (index, port) in (1..=options.nodes).zip(&ports[1..]) {
        let gpus = gpus_of(options, index);
        let mut gres = match &options.gres {
            Some(gres) => format!(" Gres={gres}"),
            None if gpus == 0 => String::new(),
            None => format!(" Gres=gpu:{gpus}"),
        };
        for name in &options.gres_types {
            let lead = if gres.is_empty() { " Gres=" } else { "," };
            let _ = write!(gres, "{lead}{name}:{}", options.gres_count);
        }
        let (name, cpus) = (options.node(index), options.cpus);
        let words = options.node_words.iter().map(|words| format!(" {words}"));
        let extra: String = words.collect();
        let _ = writeln!(
            text,
            "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=4000{gres}{extra} State=UNKNOWN",
        );
    }
    text += "PartitionName=main Nodes=ALL Default=YES MaxTime=10 State=UP OverSubscribe=NO\n";
    for line in &options.partition_lines {
        text += &format!("{line}\n");
    }
    text
}

pub(super) fn key(line: &str) -> &str {
    line.split_once('=').map_or(line, |(key, _)| key.trim())
}

pub fn gpus_of(options: &Options, index: usize) -> usize {
    match &options.gpus {
        Gpus::Simulated(count) => *count as usize,
        Gpus::Real(numbers) if index == 1 => numbers.len(),
        Gpus::Real(_) => 0,
    }
}

/// `gres.conf` with one line for each GPU, so that the name of its file does not change its index.
pub fn gres_conf(dir: &Path, options: &Options) -> String {
    if let Some(text) = &options.gres_conf {
        return text.clone();
    }
    let mut text = String::from("AutoDetect=off\n");
    for index in 1..=options.nodes {
        let node = options.node(index);
        match &options.gpus {
            Gpus::Simulated(_) => {
                for device in devices(dir, options, index) {
                    let file = device.file.display();
                    let _ = writeln!(text, "NodeName={node} Name=gpu File={file}");
                }
            }
            Gpus::Real(numbers) if index == 1 => {
                for number in numbers {
                    let _ = writeln!(text, "NodeName={node} Name=gpu File=/dev/nvidia{number}");
                }
            }
            Gpus::Real(_) => {}
        }
        for name in &options.gres_types {
            let count = options.gres_count;
            let _ = writeln!(text, "NodeName={node} Name={name} Count={count}");
        }
    }
    text
}

pub fn plugstack_conf(options: &Options) -> String {
    let mut text = String::new();
    if let Some(plugin) = &options.plugin {
        let _ = write!(text, "{} {}", options.word.text(), plugin.display());
        for argument in &options.plugin_arguments {
            let _ = write!(text, " {argument}");
        }
        text.push('\n');
    }
    for line in &options.stack_lines {
        let _ = writeln!(text, "{line}");
    }
    text
}
