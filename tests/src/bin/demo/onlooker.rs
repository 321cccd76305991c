//! Watches the nodes while the job runs: processes by `/proc`, compute modes and contexts by the
//! state of the GPUs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tests::double::node::Node;
use tests::slurm::{Bed, Process};

const PERIOD: Duration = Duration::from_millis(3);

#[derive(Debug, Default, Clone)]
pub struct Observations {
    pub prologue: Option<Instant>,
    pub daemons: BTreeMap<i32, Process>,
    pub servers: BTreeMap<i32, Process>,
    pub server_up: Option<Instant>,
    /// Every compute mode that a GPU had, in order, by UUID (simulated GPUs only).
    pub modes: BTreeMap<String, Vec<String>>,
}

type ByNode = BTreeMap<String, Observations>;

pub struct Onlooker {
    over: Arc<AtomicBool>,
    thread: JoinHandle<ByNode>,
}

impl Onlooker {
    /// Looks at the doubles of these nodes before the job, and continues to look at them and the bed.
    pub fn start(bed: Arc<Bed>, doubles: Vec<PathBuf>) -> Onlooker {
        let over = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&over);
        let nodes: Vec<Node> = doubles
            .iter()
            .filter_map(|dir| Node::open(dir).ok())
            .collect();
        let names = bed.nodes().into_iter();
        let mut seen: ByNode = names.map(|name| (name, Observations::default())).collect();
        let look_at_gpus = move |seen: &mut ByNode| {
            for node in &nodes {
                look_at_gpus(node, seen.entry(node.is.name.clone()).or_default());
            }
        };
        look_at_gpus(&mut seen);
        let thread = std::thread::spawn(move || {
            loop {
                let last = ended.load(Ordering::Relaxed);
                for process in bed.job_processes() {
                    look_at(process, !doubles.is_empty(), &mut seen);
                }
                look_at_gpus(&mut seen);
                if last {
                    return seen;
                }
                std::thread::sleep(PERIOD);
            }
        });
        Onlooker { over, thread }
    }

    /// Looks once more and gives what was seen, by node.
    pub fn end(self) -> ByNode {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

fn look_at(process: Process, simulated: bool, seen: &mut ByNode) {
    let exe = process.exe.clone().unwrap_or_default();
    let name = exe.file_name().unwrap_or_default().to_string_lossy();
    // Without `-f` it is a command to the daemon, not the daemon.
    let is_daemon =
        name == "nvidia-cuda-mps-control" && process.argv.iter().any(|word| word == "-f");
    if !is_daemon && name != "mps-prologue" && name != "nvidia-cuda-mps-server" {
        return;
    }
    let Some(node) = node_of(&process, seen) else {
        return;
    };
    if name == "mps-prologue" {
        node.prologue.get_or_insert_with(Instant::now);
    } else if is_daemon {
        node.daemons.insert(process.pid, process);
    } else {
        // As the daemon's fork it had the daemon's program, until it became the server.
        node.daemons.remove(&process.pid);
        if !simulated {
            node.server_up.get_or_insert_with(Instant::now);
        }
        node.servers.insert(process.pid, process);
    }
}

/// The node of a process: from a directory with its name, or from slurmd's variable in its
/// environment.
fn node_of<'a>(process: &Process, seen: &'a mut ByNode) -> Option<&'a mut Observations> {
    if seen.len() == 1 {
        return seen.values_mut().next();
    }
    let environment = process.environment();
    let mut texts = vec![process.exe.as_ref()?.display().to_string()];
    texts.extend(environment.get("CUDA_MPS_PIPE_DIRECTORY").cloned());
    texts.extend(environment.get("SLURMD_NODENAME").cloned());
    let names = |name: &String| {
        texts
            .iter()
            .any(|text| text.split('/').any(|part| part == name))
    };
    seen.iter_mut()
        .find(|(name, _)| names(name))
        .map(|(_, node)| node)
}

fn look_at_gpus(node: &Node, seen: &mut Observations) {
    for gpu in &node.is.gpu {
        let modes = seen.modes.entry(gpu.uuid.clone()).or_default();
        let mode = node.mode(&gpu.uuid);
        if modes.last() != Some(&mode) {
            modes.push(mode);
        }
        if node
            .contexts(&gpu.uuid)
            .iter()
            .any(|context| context.kind == "server")
        {
            seen.server_up.get_or_insert_with(Instant::now);
        }
    }
}
