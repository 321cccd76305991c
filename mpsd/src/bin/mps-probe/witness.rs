//! NVML as the second witness: does the driver list this process among a device's MPS clients?

use std::ffi::OsStr;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

/// Opens NVML; a machine without it has one witness less, which is no error.
pub fn open(library: Option<&OsStr>) -> Option<Nvml> {
    match library {
        Some(path) => Nvml::builder().lib_path(path).init().ok(),
        None => Nvml::init().ok(),
    }
}

/// Whether `pid` stands in the device's list of MPS clients (`nvmlDeviceGetMPSComputeRunningProcesses`,
/// readable by an ordinary user); none if NVML could not say.
pub fn lists(nvml: Option<&Nvml>, uuid: &str, pid: u32) -> Option<bool> {
    let device = nvml?.device_by_uuid(uuid).ok()?;
    // The list may grow between the question for its length and the one for its content.
    for _ in 0..8 {
        match device.mps_running_compute_processes() {
            Ok(clients) => return Some(clients.iter().any(|client| client.pid == pid)),
            Err(NvmlError::InsufficientSize(_)) => {}
            Err(_) => return None,
        }
    }
    None
}
