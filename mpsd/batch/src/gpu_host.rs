//! Whether this host is one for jobs with GPUs.

use mpsd_core::Failure;
use mpsd_core::failure::{Evidence, Fault};
use std::fs;
use std::path::Path;

pub const NVIDIA: &str = "0x10de";
pub const DRIVER: &str = "/proc/driver/nvidia/version";
pub const NO_GPU_HOST: &str = "it has no NVIDIA GPU and no driver, but its scheduler offers GPUs here: take them out of its configuration";

/// A host without GPUs is misconfigured, not broken: a drain would not help.
pub fn unless_no_gpu_host(failure: Failure, nvml: &str) -> Failure {
    let is_one = || is_gpu_host(nvml) || Path::new(DRIVER).exists();
    match failure {
        Failure::Fault(_) if !is_one() => {
            Fault::new(Evidence::Configuration, "this node", NO_GPU_HOST).into()
        }
        other => other,
    }
}

/// One of NVIDIA's GPUs is on the bus, or the site named an unusual NVML.
pub fn is_gpu_host(nvml: &str) -> bool {
    let says =
        |device: &Path, file: &str| fs::read_to_string(device.join(file)).unwrap_or_default();
    // PCI class 0x03 is a display or compute device; bridges and network cards have others.
    let is_gpu =
        |at: &Path| says(at, "vendor").trim() == NVIDIA && says(at, "class").starts_with("0x03");
    let bus = fs::read_dir("/sys/bus/pci/devices").into_iter();
    let mut bus = bus.flatten().flatten();
    Path::new(nvml).is_absolute() || bus.any(|device| is_gpu(&device.path()))
}
