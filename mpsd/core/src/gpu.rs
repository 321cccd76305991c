//! GPUs as NVML names them.

use super::failure::Refusal;
use super::text::one_line;
use derive_more::{Display, Into};
use serde::{Deserialize, Serialize};

/// The UUID of a GPU (`GPU-200b4359-…`) or of a MIG device (`MIG-…`), as NVML prints it. Safe as a
/// file name.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Display, Into, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct GpuUuid(String);

impl GpuUuid {
    /// Checks `raw`. Refuses the names of MIG devices before driver 470: a GPU and two numbers.
    pub fn parse(raw: &str) -> Result<Self, Refusal> {
        let digits = raw.strip_prefix("GPU-").or_else(|| raw.strip_prefix(MIG));
        let digits = digits.unwrap_or("");
        let good = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
        if (1..=60).contains(&digits.len()) && digits.bytes().all(good) {
            return Ok(Self(raw.to_owned()));
        }
        let old = "drivers before 470 name a MIG device so";
        let (why, allowed) = match raw.starts_with(MIG) {
            true => (old, "a newer driver, which gives it a UUID"),
            false => (
                "it is no GPU UUID",
                "GPU- or MIG-, then hexadecimal digits and '-'",
            ),
        };
        let what = format!("GPU '{}'", one_line(raw, 64));
        Err(Refusal::new(what, why, allowed))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn is_mig(&self) -> bool {
        self.0.starts_with(MIG)
    }

    /// The name in memory limits. A daemon of a MIG device shows it as number 0
    /// (docs/facts/mps-control.md#mig).
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

pub const MIG: &str = "MIG-";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mig {
    /// Also of a product that has none.
    Off,
    /// Jobs have the GPU's MIG devices, and not the GPU itself.
    On,
    /// This is a MIG device with a part of the compute slices of its GPU.
    Device { slices: u32, of: u32 },
}

/// A GPU's compute mode (`nvidia-smi -c`; `nvmlComputeMode_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Display, Serialize, Deserialize)]
#[display(rename_all = "SCREAMING_SNAKE_CASE")]
#[serde(rename_all = "snake_case")]
pub enum ComputeMode {
    Default,
    /// One thread (deprecated by the vendor, still a value).
    ExclusiveThread,
    Prohibited,
    /// With MPS the server alone: a client that misses the daemon fails instead of running outside.
    ExclusiveProcess,
}

/// A GPU of the node, or a MIG device with the index, minor number, CPUs and compute capability of
/// its GPU. Its compute mode is no part of it: jobs change that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// NVML's index: PCI order.
    pub index: u32,
    pub uuid: GpuUuid,
    pub name: String,
    /// `None`: NVML does not tell, for example if it is the machine's memory.
    pub memory_mib: Option<u64>,
    pub mig: Mig,
    pub capability: (u32, u32),
    /// Of `/dev/nvidiaN`, if the driver tells it.
    pub minor: Option<u32>,
    /// The CPUs near it, as the kernel lists them (`0-31`), if the driver tells them.
    pub cpus: Option<String>,
}

/// Clients of a GPU up to CUDA 13.0: seen on driver 580.
const CLIENTS_UP_TO_13_0: u32 = 48;
/// Most clients that any GPU takes: with CUDA 13.1 and later.
pub const MOST_CLIENTS: u32 = 60;
/// The driver's branch of CUDA 13.1 (docs/facts/mps-control.md#what-newer-drivers-change).
pub const DRIVER_OF_13_1: u32 = 590;

impl Gpu {
    /// Volta (compute capability 7.0) and later take clients in their own address spaces.
    pub fn is_volta_or_later(&self) -> bool {
        self.capability >= (7, 0)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// In NVML's view; may be gone already, or of another namespace.
    pub pid: i32,
    /// Its memory on the GPU, bytes, if NVML tells it.
    pub memory: Option<u64>,
    pub mps_client: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    pub gpus: Vec<Gpu>,
    /// The driver's version (`580.159.04`); empty: not known.
    pub driver: String,
    /// The MIG devices, in the order of their GPUs and of their numbers there.
    pub migs: Vec<Gpu>,
}

impl Inventory {
    /// Whether the driver is known to be of this branch (`580`) or a later one.
    pub fn has_driver(&self, branch: u32) -> bool {
        let own = self.driver.split('.').next();
        let own: Option<u32> = own.and_then(|own| own.parse().ok());
        own.is_some_and(|own| own >= branch)
    }

    /// The MPS clients that `gpu` takes (docs/facts/mps-control.md#clients); `site`: `max_clients`.
    pub fn clients(&self, gpu: &Gpu, site: Option<u32>) -> u32 {
        let known = match self.has_driver(DRIVER_OF_13_1) {
            true => MOST_CLIENTS,
            false => CLIENTS_UP_TO_13_0,
        };
        let most = site.unwrap_or(known);
        match gpu.mig {
            // By its size (docs/facts/mps-control.md#mig), we suppose rounded down.
            Mig::Device { slices, of } if slices < of => (most * slices / of).max(1),
            _ => most,
        }
    }

    pub fn by_index(&self, index: u32) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.index == index)
    }

    pub fn by_uuid(&self, uuid: &GpuUuid) -> Option<&Gpu> {
        self.all().find(|gpu| gpu.uuid == *uuid)
    }

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
        let mut gpu = crate::testing::gpu(0, 1024);
        for (driver, clients) in [("", 48), ("x", 48), ("580.159.04", 48), ("590.44.01", 60)] {
            let node = Inventory {
                driver: driver.to_owned(),
                ..Inventory::default()
            };
            let taken = [None, Some(100)].map(|site| node.clients(&gpu, site));
            assert_eq!(taken, [clients, 100]);
        }
        for (slices, part) in [(3, 20), (1, 6), (7, 48)] {
            gpu.mig = Mig::Device { slices, of: 7 };
            assert_eq!(Inventory::default().clients(&gpu, None), part);
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
        for (raw, name) in [("MIG-77f46ec1-8bf6", "0"), ("GPU-200b4359", "GPU-200b4359")] {
            let uuid = GpuUuid::parse(raw).unwrap();
            assert_eq!((uuid.is_mig(), uuid.in_limits()), (name == "0", name));
        }
        let old = GpuUuid::parse("MIG-GPU-200b4359-5562-4e0e-ed46-88b581af6524/1/0").unwrap_err();
        assert!(old.to_string().contains("drivers before 470"), "{old}");
    }
}
