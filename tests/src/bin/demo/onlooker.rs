//! Watches the nodes while the job runs: processes by `/proc`, compute modes and contexts by the state of the GPUs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tests::double::node::Node;
use tests::slurm::{Bed, Process};

/// How often it looks.
const PERIOD: Duration = Duration::from_millis(3);

/// What was seen of one node.
#[derive(Debug, Default, Clone)]
pub struct Seen {
    /// When `mps-prologue` was first there.
    pub prologue: Option<Instant>,
    /// The job's control daemons.
    pub daemons: BTreeMap<i32, Process>,
    /// The job's servers.
    pub servers: BTreeMap<i32, Process>,
    /// When a server first had its context on a GPU; on real GPUs, when its process was first there.
    pub server_up: Option<Instant>,
    /// Most clients with a context at the same time (simulated GPUs only).
    pub clients: usize,
    /// Every compute mode that a GPU had, in order, by UUID (simulated GPUs only).
    pub modes: BTreeMap<String, Vec<String>>,
}

/// The thread that looks.
pub struct Onlooker {
    over: Arc<AtomicBool>,
    thread: JoinHandle<BTreeMap<String, Seen>>,
}

impl Onlooker {
    /// Looks at these simulated nodes as they are before the job, and goes on looking at them and at the bed.
    pub fn start(bed: Arc<Bed>, doubles: Vec<PathBuf>) -> Onlooker {
        let over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&over);
        let nodes: Vec<Node> = doubles.iter().filter_map(|dir| Node::open(dir).ok()).collect();
        let names = bed.nodes().into_iter();
        let mut seen: BTreeMap<String, Seen> = names.map(|name| (name, Seen::default())).collect();
        let look_at_all_gpus = move |seen: &mut BTreeMap<String, Seen>| {
            for node in &nodes {
                look_at_gpus(node, seen.entry(node.is.name.clone()).or_default());
            }
        };
        look_at_all_gpus(&mut seen);
        let thread = std::thread::spawn(move || {
            loop {
                let last = until.load(Ordering::Relaxed);
                look_at_processes(&bed, !doubles.is_empty(), &mut seen);
                look_at_all_gpus(&mut seen);
                if last {
                    return seen;
                }
                std::thread::sleep(PERIOD);
            }
        });
        Onlooker { over, thread }
    }

    /// Looks once more and gives what was seen, by node.
    pub fn end(self) -> BTreeMap<String, Seen> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

fn look_at_processes(bed: &Bed, simulated: bool, seen: &mut BTreeMap<String, Seen>) {
    for process in bed.job_processes() {
        let name = process
            .exe
            .as_deref()
            .and_then(|exe| exe.file_name())
            .unwrap_or_default()
            .to_string_lossy();
        if !matches!(
            &*name,
            "mps-prologue" | "nvidia-cuda-mps-control" | "nvidia-cuda-mps-server"
        ) {
            continue;
        }
        let Some(node) = node_of(&process, seen) else {
            continue;
        };
        match &*name {
            "mps-prologue" => {
                node.prologue.get_or_insert_with(Instant::now);
            }
            // Without `-f` it is a command to the daemon, not the daemon.
            "nvidia-cuda-mps-control" if !process.argv.iter().any(|word| word == "-f") => {}
            "nvidia-cuda-mps-control" => {
                node.daemons.insert(process.pid, process);
            }
            _ => {
                // Forked from the daemon, it was the daemon's program until it became the server's.
                node.daemons.remove(&process.pid);
                if !simulated {
                    node.server_up.get_or_insert_with(Instant::now);
                }
                node.servers.insert(process.pid, process);
            }
        }
    }
}

/// The node that a process belongs to: one of the directories that bear its name, or slurmd's word in its environment.
fn node_of<'a>(process: &Process, seen: &'a mut BTreeMap<String, Seen>) -> Option<&'a mut Seen> {
    if seen.len() == 1 {
        return seen.values_mut().next();
    }
    let environment = process.environment();
    let mut texts = vec![process.exe.as_ref()?.display().to_string()];
    texts.extend(environment.get("CUDA_MPS_PIPE_DIRECTORY").cloned());
    texts.extend(environment.get("SLURMD_NODENAME").cloned());
    let name = seen
        .keys()
        .find(|name| texts.iter().any(|text| text.split('/').any(|part| part == *name)))?
        .clone();
    seen.get_mut(&name)
}

fn look_at_gpus(node: &Node, seen: &mut Seen) {
    let mut clients = 0;
    for gpu in &node.is.gpu {
        let modes = seen.modes.entry(gpu.uuid.clone()).or_default();
        let mode = node.mode(&gpu.uuid);
        if modes.last() != Some(&mode) {
            modes.push(mode);
        }
        for context in node.contexts(&gpu.uuid) {
            match context.kind.as_str() {
                "server" => {
                    seen.server_up.get_or_insert_with(Instant::now);
                }
                _ => clients += 1,
            }
        }
    }
    seen.clients = seen.clients.max(clients);
}
