//! The driver's module and device files, where nothing has made them since the node came up.
//!
//! NVIDIA's libraries load the module and make the files by `nvidia-modprobe`, a set-user-id program, when they need them
//! (source: NVIDIA/nvidia-modprobe). The processes that we confine cannot start it; so root does it before.

use crate::sys::deadline::Deadline;
use crate::sys::spawn::Spawn;
use std::path::Path;
use std::time::Duration;

/// Where the driver's packages put it; the libraries look there, too.
const PROGRAM: &str = "/usr/bin/nvidia-modprobe";
/// Longest that loading a module may take.
const LIMIT: Duration = Duration::from_secs(5);
/// Most that it may say. Bytes.
const LONGEST: usize = 4096;

/// `/dev/nvidiactl`, for NVML, which makes the files of the GPUs itself.
pub(super) fn of_driver() {
    make("/dev/nvidiactl", &["-c", "255"]);
}

/// `/dev/nvidia-uvm`, for the MPS server.
pub(super) fn of_unified_memory() {
    make("/dev/nvidia-uvm", &["-u", "-c", "0"]);
}

/// Whatever comes of it: whoever needs the file says what is missing.
fn make(device: &str, arguments: &[&str]) {
    if Path::new(device).exists() || !Path::new(PROGRAM).exists() || !nix::unistd::geteuid().is_root() {
        return;
    }
    if let Ok(mut program) = Spawn::trusted(Path::new(PROGRAM)) {
        program.args = arguments.iter().map(Into::into).collect();
        program.env = vec![("PATH".into(), "/usr/sbin:/usr/bin:/sbin:/bin".into())];
        let _ = program.run(Deadline::after(LIMIT), LONGEST);
    }
}
