//! GPUs as NVML names them.

use super::failure::Refusal;
use super::text::one_line;
use derive_more::{Display, Into};

/// The UUID of a GPU (`GPU-200b4359-5562-4e0e-ed46-88b581af6524`) or of a MIG device (`MIG-…`), as NVML prints it. Safe as a
/// file name.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Display, Into, serde::Serialize, serde::Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct GpuUuid(String);

impl GpuUuid {
    /// Checks `raw`: `GPU-` or `MIG-`, then hexadecimal digits and `-`, at most 64 bytes.
    ///
    /// # Errors
    /// A refusal that names `raw`. Before 470 the driver names a MIG device by its GPU and two numbers.
    pub fn parse(raw: &str) -> Result<Self, Refusal> {
        let digits = raw.strip_prefix("GPU-").or_else(|| raw.strip_prefix(MIG));
        let digits = digits.unwrap_or("");
        let good = !digits.is_empty()
            && raw.len() <= 64
            && digits.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
        if good {
            return Ok(Self(raw.to_owned()));
        }
        let what = format!("GPU '{}'", one_line(raw, 64));
        Err(match raw.starts_with(MIG) {
            true => Refusal::new(
                what,
                "drivers before 470 name a MIG device so",
                "a newer driver, which gives it a UUID",
            ),
            false => Refusal::new(
                what,
                "it is no GPU UUID",
                "GPU- or MIG-, then hexadecimal digits and '-'",
            ),
        })
    }

    /// The UUID's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is a MIG device's.
    pub fn is_mig(&self) -> bool {
        self.0.starts_with(MIG)
    }

    /// The name in memory limits, for a daemon and for its clients. A MIG device is the only one that its daemon shows, and
    /// NVIDIA's own plugin for Kubernetes counts on limits by index alone there (docs/facts/mps-control.md#mig).
    pub fn in_limits(&self) -> &str {
        if self.is_mig() { "0" } else { &self.0 }
    }
}

impl TryFrom<String> for GpuUuid {
    type Error = Refusal;
    fn try_from(raw: String) -> Result<Self, Refusal> {
        Self::parse(&raw)
    }
}

/// How the name of a MIG device begins.
pub const MIG: &str = "MIG-";

/// What MIG makes of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mig {
    /// Nothing: it is off, or the product has none.
    Off,
    /// It is on: jobs have the GPU's MIG devices, and nobody the GPU itself.
    On,
    /// This is no GPU but a MIG device, with so many of the compute slices of its GPU.
    Device {
        /// Its own.
        slices: u32,
        /// All.
        of: u32,
    },
}

/// A GPU's compute mode (`nvidia-smi -c`; `nvmlComputeMode_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Display, serde::Serialize, serde::Deserialize)]
#[display(rename_all = "SCREAMING_SNAKE_CASE")]
#[serde(rename_all = "snake_case")]
pub enum ComputeMode {
    /// Any number of contexts.
    Default,
    /// One thread (deprecated by the vendor, still a value).
    ExclusiveThread,
    /// No contexts.
    Prohibited,
    /// One process: with MPS, the server; a client that misses the daemon then fails instead of running outside.
    ExclusiveProcess,
}

/// One GPU of the node, or one MIG device with what its GPU lends it: index, minor number, CPUs, compute capability.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Gpu {
    /// NVML's index: PCI order.
    pub index: u32,
    /// Its UUID.
    pub uuid: GpuUuid,
    /// Product name (`NVIDIA H200`).
    pub name: String,
    /// Total memory, MiB; none where NVML does not tell, as where it is the machine's.
    pub memory_mib: Option<u64>,
    /// Compute mode found.
    pub mode: ComputeMode,
    /// What MIG makes of it.
    pub mig: Mig,
    /// CUDA compute capability, major and minor.
    pub capability: (u32, u32),
    /// Minor number of `/dev/nvidiaN`, where the driver tells.
    pub minor: Option<u32>,
    /// The CPUs near it, as the kernel lists them (`0-31`), where the driver tells.
    #[serde(default)]
    pub cpus: Option<String>,
}

/// Clients of a GPU before Volta.
const CLIENTS_BEFORE_VOLTA: u32 = 16;
/// Clients of a later one, up to CUDA 13.0: seen on driver 580.
const CLIENTS_UP_TO_13_0: u32 = 48;
/// Most clients that any GPU takes: with CUDA 13.1 and later.
pub const MOST_CLIENTS: u32 = 60;
/// The branch of the driver that came with CUDA 13.1 (docs/facts/mps-control.md#what-newer-drivers-change).
pub const DRIVER_OF_13_1: u32 = 590;

impl Gpu {
    /// Volta (compute capability 7.0) and later take clients in their own address spaces.
    pub fn is_volta_or_later(&self) -> bool {
        self.capability >= (7, 0)
    }

    /// How many clients a server takes on it where one takes `most` on a whole GPU. NVIDIA: lowered in proportion to the size of
    /// the compute instance (docs/facts/mps-control.md#mig); that it is rounded down is supposed.
    fn part_of(&self, most: u32) -> u32 {
        match self.mig {
            Mig::Device { slices, of } if slices < of => (most * slices / of).max(1),
            _ => most,
        }
    }
}

/// A process with a context on a GPU, as NVML lists it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct GpuProcess {
    /// Process id in NVML's view; may be gone already, or of another namespace.
    pub pid: i32,
    /// Memory it holds on the GPU, bytes, where NVML tells.
    pub memory: Option<u64>,
    /// It is an MPS client (type `M+C`).
    pub mps_client: bool,
}

/// What the node has.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Inventory {
    /// All GPUs, in NVML's order.
    pub gpus: Vec<Gpu>,
    /// The driver's version (`580.159.04`); empty: not known.
    #[serde(default)]
    pub driver: String,
    /// The MIG devices of those in MIG mode, in the same order, and by their numbers on each.
    #[serde(default)]
    pub migs: Vec<Gpu>,
}

impl Inventory {
    /// Whether the driver is of this branch (`580`) or a later one; one that is not known is not.
    pub fn has_driver(&self, branch: u32) -> bool {
        let own = self.driver.split('.').next();
        own.and_then(|own| own.parse::<u32>().ok())
            .is_some_and(|own| own >= branch)
    }

    /// Clients that MPS takes on `gpu`, of a MIG device its part of them (docs/facts/mps-control.md#clients); `site` is `max_clients`, which goes before what
    /// the driver is known for, and does not give a GPU before Volta more than it has.
    pub fn clients(&self, gpu: &Gpu, site: Option<u32>) -> u32 {
        let known = match self.has_driver(DRIVER_OF_13_1) {
            true => MOST_CLIENTS,
            false => CLIENTS_UP_TO_13_0,
        };
        let clients = site.unwrap_or(known);
        match gpu.is_volta_or_later() {
            true => gpu.part_of(clients),
            false => clients.min(CLIENTS_BEFORE_VOLTA),
        }
    }

    /// The GPU with NVML's index `index`.
    pub fn by_index(&self, index: u32) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.index == index)
    }

    /// The GPU, or the MIG device, with that UUID.
    pub fn by_uuid(&self, uuid: &GpuUuid) -> Option<&Gpu> {
        self.all().find(|gpu| gpu.uuid == *uuid)
    }

    /// GPUs and MIG devices.
    pub fn all(&self) -> impl Iterator<Item = &Gpu> {
        self.gpus.iter().chain(&self.migs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/facts/mps-control.md#clients
    #[test]
    fn the_driver_decides_how_many_clients_a_gpu_takes() {
        let gpu = |capability| Gpu {
            index: 0,
            uuid: GpuUuid::parse("GPU-0").unwrap(),
            name: "NVIDIA X".to_owned(),
            memory_mib: Some(1024),
            mode: ComputeMode::Default,
            mig: Mig::Off,
            capability,
            minor: None,
            cpus: None,
        };
        let (pascal, volta) = (gpu((6, 1)), gpu((7, 0)));
        for (driver, clients) in [
            ("", 48),
            ("535.161.08", 48),
            ("580.159.04", 48),
            ("590.44.01", 60),
            ("615.12", 60),
            ("x", 48),
        ] {
            let node = Inventory {
                migs: Vec::new(),
                gpus: Vec::new(),
                driver: driver.to_owned(),
            };
            assert_eq!(node.clients(&volta, None), clients, "{driver}");
            assert_eq!(node.clients(&volta, Some(100)), 100, "{driver}");
            assert_eq!(node.clients(&pascal, None), 16, "{driver}");
            assert_eq!(node.clients(&pascal, Some(8)), 8, "{driver}");
        }
    }

    #[test]
    fn a_uuid_cannot_name_another_file() {
        assert!(GpuUuid::parse("GPU-200b4359-5562-4e0e-ed46-88b581af6524").is_ok());
        for raw in ["", "GPU-", "GPU-../x", "0", "GPU-12/34"] {
            assert!(GpuUuid::parse(raw).is_err(), "{raw}");
        }
    }

    #[test]
    fn a_mig_device_is_named_by_its_uuid_and_by_place_in_limits() {
        let mig = GpuUuid::parse("MIG-77f46ec1-8bf6-5b2c-8f3e-4ae5dd0b3a4c").unwrap();
        assert!(mig.is_mig());
        assert_eq!(mig.in_limits(), "0");
        let gpu = GpuUuid::parse("GPU-200b4359").unwrap();
        assert_eq!((gpu.is_mig(), gpu.in_limits()), (false, "GPU-200b4359"));
        let old = GpuUuid::parse("MIG-GPU-200b4359-5562-4e0e-ed46-88b581af6524/1/0").unwrap_err();
        assert!(old.to_string().contains("drivers before 470"), "{old}");
    }

    #[test]
    fn a_mig_device_takes_its_part_of_the_clients() {
        let of = |mig| {
            let gpu = Gpu {
                index: 0,
                uuid: GpuUuid::parse("MIG-0").unwrap(),
                name: String::new(),
                memory_mib: None,
                mode: ComputeMode::Default,
                mig,
                capability: (9, 0),
                minor: None,
                cpus: None,
            };
            Inventory::default().clients(&gpu, None)
        };
        assert_eq!(of(Mig::Device { slices: 3, of: 7 }), 20);
        assert_eq!(of(Mig::Device { slices: 1, of: 7 }), 6);
        assert_eq!(of(Mig::Device { slices: 7, of: 7 }), 48);
        assert_eq!(of(Mig::Off), 48);
    }
}
