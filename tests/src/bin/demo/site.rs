//! What this machine has: real GPUs, or simulated nodes.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tests::double::NodeDouble;
use tests::slurm::{Bed, Gpus, MODEL, Options, Product, SMS, Simulated};

/// Thread percentage and memory that the job asks for.
pub const THREADS: u64 = 50;
/// MiB.
pub const MEMORY: u64 = 4096;
/// Clients on a node.
pub const CLIENTS: usize = 2;

/// Where the demo runs.
pub enum Site {
    /// Two nodes, two simulated GPUs each.
    Simulated(Option<Simulated>),
    /// One node with this machine's GPUs, by number of `/dev/nvidiaN`.
    Real {
        gpus: Vec<u32>,
        product: Option<Product>,
    },
}

impl Site {
    /// Looks for GPUs.
    pub fn find() -> Result<Site> {
        if !Path::new("/dev/nvidia0").exists() {
            return Ok(Site::Simulated(None));
        }
        let mut gpus: Vec<u32> = std::fs::read_dir("/dev")?
            .filter_map(|entry| {
                entry
                    .ok()?
                    .file_name()
                    .to_str()?
                    .strip_prefix("nvidia")?
                    .parse()
                    .ok()
            })
            .collect();
        gpus.sort_unstable();
        Ok(Site::Real { gpus, product: None })
    }

    /// Names of the nodes that the job uses.
    pub fn nodes(&self) -> usize {
        match self {
            Site::Simulated(_) => 2,
            Site::Real { .. } => 1,
        }
    }

    pub fn headline(&self) -> String {
        match self {
            Site::Simulated(_) => format!(
                "mpsd demo: no NVIDIA GPU here, so two nodes with two simulated GPUs each ('{MODEL}') and doubles of NVIDIA's \
                 control daemon, server, NVML and CUDA that behave as recorded of driver 580"
            ),
            Site::Real { gpus, .. } => {
                format!(
                    "mpsd demo: one node with this machine's {} GPU(s) and NVIDIA's own MPS",
                    gpus.len()
                )
            }
        }
    }

    pub fn options(&self) -> Options {
        let gpus = match self {
            Site::Simulated(_) => Gpus::Simulated(2),
            Site::Real { gpus, .. } => Gpus::Real(gpus.clone()),
        };
        Options {
            nodes: self.nodes(),
            gpus,
            ..Options::default()
        }
    }

    pub fn install(&mut self, bed: &mut Bed) -> Result<()> {
        match self {
            Site::Simulated(simulated) => *simulated = Some(Simulated::install(bed, "", |node| node)?),
            Site::Real { product, .. } => {
                let control = find("nvidia-cuda-mps-control")?;
                let config = Product::settings(bed, &control, Path::new("libnvidia-ml.so.1"));
                *product = Some(Product::install(bed, &config)?);
            }
        }
        Ok(())
    }

    /// The simulated nodes' directories, by node.
    pub fn doubles(&self) -> Vec<PathBuf> {
        self.simulated()
            .iter()
            .flat_map(|found| &found.nodes)
            .map(|node| node.dir().to_owned())
            .collect()
    }

    fn simulated(&self) -> Option<&Simulated> {
        match self {
            Site::Simulated(simulated) => simulated.as_ref(),
            Site::Real { .. } => None,
        }
    }

    /// The double of node `index`.
    pub fn double(&self, index: usize) -> Option<&NodeDouble> {
        self.simulated()?.nodes.get(index)
    }

    /// srun's arguments.
    pub fn arguments(&self) -> Vec<&'static str> {
        let nodes: &[_] = if self.nodes() == 2 {
            &["-N2", "-n4"]
        } else {
            &["-N1", "-n2"]
        };
        [
            &["--mps", "--mps-threads=50", "--mps-mem=4G"],
            nodes,
            &["--ntasks-per-node=2", "--gres=gpu:1"],
        ]
        .concat()
    }

    pub fn client_name(&self) -> &'static str {
        match self {
            Site::Simulated(_) => "a-cuda-program",
            Site::Real { .. } => "mps-probe",
        }
    }

    /// The client, as a line for a shell: it tries how much it can allocate, writes its record and holds its context.
    pub fn command(&self) -> String {
        match self {
            Site::Simulated(Some(simulated)) => simulated.client("--alloc=8192 --hold 1"),
            Site::Real {
                product: Some(product),
                ..
            } => {
                format!(
                    "exec {}/mps-probe --json --alloc=8192 --hold 2",
                    product.libexec.display()
                )
            }
            _ => "false".into(),
        }
    }

    /// Multiprocessors that a client shall see, where that is known.
    pub fn expected_sms(&self) -> Option<u64> {
        matches!(self, Site::Simulated(_)).then_some(SMS * THREADS / 100)
    }

    pub fn show_logs(&self, bed: &Bed) {
        for node in bed.nodes() {
            let log = bed.log(&node);
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(30)..];
            eprintln!("== slurmd of {node}\n{}", tail.join("\n"));
        }
    }
}

fn find(name: &str) -> Result<PathBuf> {
    ["/usr/bin", "/usr/local/bin"]
        .iter()
        .map(|dir| Path::new(dir).join(name))
        .find(|path| path.exists())
        .with_context(|| format!("a GPU is here, but '{name}' is not installed"))
}
