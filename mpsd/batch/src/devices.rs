//! A job's GPUs and tasks on this node, in its scheduler's words.

use super::slurm::numbers::Numbers;
use mpsd_core::Inventory;
use mpsd_core::record::RecordDevice;
use mpsd_core::text::one_line;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuName {
    /// The scheduler's number: gres.conf's index, Torque's `-gpuN`.
    Index(u32),
    /// What the vendor calls a UUID: `GPU-…`, or `MIG-…`.
    Uuid(String),
}

impl GpuName {
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'/');
        let uuid = text.starts_with("GPU-") || text.starts_with("MIG-");
        if uuid && text.len() <= 96 && text.bytes().all(plain) {
            return Some(Self::Uuid(text.to_owned()));
        }
        let number = text.len() <= 4 && text.bytes().all(|b| b.is_ascii_digit());
        number.then(|| text.parse().ok().map(Self::Index))?
    }

    /// Reads a list with commas; blank entries are left out.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, String> {
        let entries = text.split(',').map(str::trim);
        let entries = entries.filter(|entry| !entry.is_empty());
        let parse = |entry| {
            Self::parse(entry).ok_or_else(|| format!("'{}' is no GPU", one_line(entry, 40)))
        };
        entries.map(parse).collect()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuSource {
    /// These; never empty.
    Listed(Vec<GpuName>),
    /// These, by numbers of its own.
    Numbered(Numbers),
    /// This many, without names. That is enough if the node has no others.
    Counted {
        /// Never 0.
        count: u32,
        why: String,
    },
    /// The scheduler does not say, for this reason; the setting `gpus_unknown` decides.
    Unknown(String),
    None,
}

impl GpuSource {
    pub fn of(names: Vec<GpuName>) -> Self {
        if names.is_empty() {
            return Self::None;
        }
        Self::Listed(names)
    }

    /// The same, with another reason why the scheduler names none.
    pub fn because(self, why: String) -> Self {
        match self {
            Self::Counted { count, .. } => Self::Counted { count, why },
            Self::Unknown(_) => Self::Unknown(why),
            named => named,
        }
    }

    /// The node's GPUs, if a task must count those that it may open to know its own.
    pub fn to_count(&self, inventory: &Inventory) -> Vec<RecordDevice> {
        match self {
            Self::Numbered(numbers) => numbers.devices(inventory),
            _ => Vec::new(),
        }
    }
}

/// Whether the scheduler proves that this job alone holds its GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exclusive {
    GpusAlone,
    /// It lets several jobs share them. The part is this job's of each GPU, if the scheduler says.
    Shared(Option<Part>),
    Unknown,
}

/// A job's part of a GPU that jobs share: so many of all its shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    pub own: u32,
    /// All shares of the GPU; never 0.
    pub all: u32,
    /// The scheduler shares out the threads too.
    pub of_threads: bool,
}

impl Part {
    pub fn of_shares(own: u32, all: u32) -> Self {
        let own = own.min(all);
        Self {
            own,
            all,
            of_threads: false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Devices {
    pub gpus: GpuSource,
    pub exclusive: Exclusive,
    pub whole_node: bool,
    /// Its tasks on this node, for `auto`; none: unknown.
    pub tasks_on_node: Option<u32>,
    /// Some of its nodes have a task less, and the scheduler does not say which.
    pub uneven: bool,
}

impl Devices {
    /// Whether the job's tasks can open only its GPUs. The hook pbs_cgroups names UUIDs and confines
    /// the job to them. A vnode names one, too, and proves nothing.
    pub fn are_confined(&self) -> bool {
        match &self.gpus {
            GpuSource::Numbered(numbers) => numbers.confined == Some(true),
            GpuSource::Listed(names) => {
                let is_its =
                    |uuid: &str| self.exclusive == Exclusive::GpusAlone || uuid.starts_with("MIG-");
                let is_named = |name: &GpuName| matches!(name, GpuName::Uuid(uuid) if is_its(uuid));
                names.iter().all(is_named)
            }
            GpuSource::Counted { .. } | GpuSource::Unknown(_) | GpuSource::None => false,
        }
    }

    /// The tasks that each of its nodes has at least.
    pub fn tasks_of_each_node(&self) -> Option<u32> {
        let tasks = self.tasks_on_node.filter(|tasks| *tasks > 0)?;
        Some(tasks - u32::from(self.uneven))
    }
}
