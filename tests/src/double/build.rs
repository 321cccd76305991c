//! Makes the directory of a node's doubles.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::look::{self, Process};
use super::node::{Context, Description, Faults, Gpu, MigDevice, Node, NvmlFaults, Times};
use crate::run::built;

#[derive(Debug)]
pub struct Builder {
    is: Description,
    at: Option<PathBuf>,
}

/// When dropped it is removed, with every process that runs a program in its directory.
#[derive(Debug)]
pub struct NodeDouble {
    dir: PathBuf,
    is: Description,
    _temporary: Option<TempDir>,
}

impl Builder {
    /// With 132 multiprocessors and 143,771 MiB each (recorded of an H200).
    pub fn gpus(mut self, count: usize, product: &str) -> Builder {
        let name = &self.is.name;
        self.is.gpu = (0..count).map(|index| gpu(name, index, product)).collect();
        self
    }

    pub fn name(mut self, name: &str) -> Builder {
        self.is.name = name.to_owned();
        self
    }

    pub fn fault(mut self, set: impl FnOnce(&mut Faults)) -> Builder {
        set(&mut self.is.faults);
        self
    }

    pub fn nvml(mut self, set: impl FnOnce(&mut NvmlFaults)) -> Builder {
        set(&mut self.is.nvml);
        self
    }

    pub fn times(mut self, set: impl FnOnce(&mut Times)) -> Builder {
        set(&mut self.is.times);
        self
    }

    pub fn fast(self) -> Builder {
        self.times(|t| {
            *t = Times {
                start: 2,
                server_ready: (5, 5),
                server_exit: 5,
                client: 2,
                nvml: 0,
                nvml_look: 0,
            }
        })
    }

    pub fn describe(mut self, change: impl FnOnce(&mut Description)) -> Builder {
        change(&mut self.is);
        self
    }

    pub fn divided(mut self, gpu: usize, devices: u32) -> Builder {
        self.is.gpu[gpu].mig = (0..devices).map(|number| mig(gpu, number)).collect();
        self
    }

    /// Uses this directory (made with mode 0755) instead of a temporary one.
    pub fn at(mut self, dir: impl Into<PathBuf>) -> Builder {
        self.at = Some(dir.into());
        self
    }

    pub fn build(self) -> Result<NodeDouble, String> {
        let (dir, temporary) = match self.at {
            Some(dir) => (dir, None),
            None => {
                let temporary = TempDir::with_prefix("node-");
                let temporary =
                    temporary.map_err(|why| format!("no temporary directory: {why}"))?;
                (temporary.path().to_owned(), Some(temporary))
            }
        };
        let node = NodeDouble {
            dir,
            is: self.is,
            _temporary: temporary,
        };
        let filled = node.fill();
        filled.map_err(|why| format!("cannot make the node '{}': {why}", node.dir.display()))?;
        Ok(node)
    }
}

impl NodeDouble {
    pub fn builder() -> Builder {
        let (is, at) = (Description::default(), None);
        Builder { is, at }.gpus(1, "NVIDIA H200")
    }

    fn fill(&self) -> std::io::Result<()> {
        for name in ["", "modes", "state", "state/contexts"] {
            let dir = self.dir.join(name);
            fs::create_dir_all(&dir)?;
            fs::set_permissions(dir, Permissions::from_mode(0o755))?;
        }
        for (from, name) in [
            ("mps-control-double", "nvidia-cuda-mps-control"),
            ("mps-control-double", "nvidia-cuda-mps-server"),
            ("cuda-client-double", "cuda-client-double"),
            ("libnvml_double.so", "libnvidia-ml.so.1"),
        ] {
            let to = self.dir.join(name);
            copy_program(&built(from), &to)?;
            fs::set_permissions(to, Permissions::from_mode(0o755))?;
        }
        self.write()
    }

    fn write(&self) -> std::io::Result<()> {
        for uuid in self.all_uuids() {
            let dir = self.dir.join("state/contexts").join(uuid);
            fs::create_dir_all(&dir)?;
            fs::set_permissions(dir, Permissions::from_mode(0o1777))?;
        }
        let text = toml::to_string(&self.is).map_err(std::io::Error::other)?;
        let (file, new) = (self.dir.join("node.toml"), self.dir.join("node.toml.new"));
        fs::write(&new, text)?;
        fs::set_permissions(&new, Permissions::from_mode(0o644))?;
        fs::rename(new, file)
    }

    /// Programs that start afterwards see it (NVML's double: at each `nvmlInit`).
    pub fn change(&mut self, change: impl FnOnce(&mut Description)) {
        change(&mut self.is);
        self.write().expect("the node takes its description");
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn control(&self) -> PathBuf {
        self.dir.join("nvidia-cuda-mps-control")
    }

    pub fn nvml(&self) -> PathBuf {
        self.dir.join("libnvidia-ml.so.1")
    }

    pub fn client(&self) -> PathBuf {
        self.dir.join("cuda-client-double")
    }

    pub fn uuids(&self) -> Vec<String> {
        self.is.gpu.iter().map(|g| g.uuid.clone()).collect()
    }

    /// The UUIDs of the GPUs, each followed by those of its MIG devices.
    fn all_uuids(&self) -> Vec<String> {
        let mut all = Vec::new();
        for gpu in &self.is.gpu {
            all.push(gpu.uuid.clone());
            all.extend(gpu.mig.iter().map(|mig| mig.uuid.clone()));
        }
        all
    }

    pub fn device_names(&self) -> Vec<String> {
        let gpus = self.is.gpu.iter();
        let names = gpus.filter_map(|gpu| gpu.device.as_ref()?.file_name());
        names
            .map(|name| name.to_string_lossy().into_owned())
            .collect()
    }

    fn node(&self) -> Node {
        let (dir, is) = (self.dir.clone(), self.is.clone());
        Node { dir, is }
    }

    pub fn contexts(&self) -> Vec<(String, Context)> {
        let (node, mut all) = (self.node(), Vec::new());
        for uuid in self.all_uuids() {
            let its = node.contexts(&uuid).into_iter();
            all.extend(its.map(|context| (uuid.clone(), context)));
        }
        all
    }

    /// `default`, `exclusive_process`, `exclusive_thread`, `prohibited`.
    pub fn modes(&self) -> Vec<String> {
        let node = self.node();
        self.uuids().iter().map(|uuid| node.mode(uuid)).collect()
    }

    pub fn set_mode(&self, uuid: &str, mode: &str) {
        let set = self.node().set_mode(uuid, mode);
        set.expect("root writes the node's modes");
    }

    pub fn processes(&self) -> Vec<Process> {
        look::processes_from(&self.dir)
    }

    pub fn daemons(&self) -> Vec<Process> {
        let mut all = self.processes();
        all.retain(|p| p.exe.to_string_lossy().contains("/nvidia-cuda-mps"));
        all
    }
}

impl Drop for NodeDouble {
    fn drop(&mut self) {
        look::end_all(|| self.processes());
        if self._temporary.is_none() {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// By a program of its own: a child that another thread forks while we have the copy open for
/// writing would keep it from running ("text file busy").
pub fn copy_program(from: &Path, to: &Path) -> std::io::Result<()> {
    let mut copy = std::process::Command::new("/bin/cp");
    let done = copy.arg("--").args([from, to]).output()?;
    match done.status.success() {
        true => Ok(()),
        false => Err(std::io::Error::other(String::from_utf8_lossy(&done.stderr))),
    }
}

pub fn mig(gpu: usize, number: u32) -> MigDevice {
    let part = 1 << number.min(2);
    MigDevice {
        uuid: format!("MIG-{gpu:08x}-{number:04x}-5000-8000-000000000000"),
        slices: part,
        eighths: part,
        caps: Vec::new(),
    }
}

fn gpu(node: &str, index: usize, product: &str) -> Gpu {
    // FNV-1a: the same UUIDs in every run.
    let hash = |salt: u64| {
        let seed = 0xcbf2_9ce4_8422_2325 ^ salt;
        let name = format!("{node}/{index}");
        let mix = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        name.bytes().fold(seed, mix)
    };
    let hex = format!("{:016x}{:016x}", hash(1), hash(2));
    let groups = [0..8, 8..12, 12..16, 16..20, 20..32].map(|group| &hex[group]);
    Gpu {
        uuid: format!("GPU-{}", groups.join("-")),
        name: product.to_owned(),
        pci: format!("00000000:00:{:02X}.0", index + 6),
        ..Gpu::default()
    }
}
