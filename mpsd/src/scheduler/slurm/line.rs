//! Our files in a Slurm's plugin stack, and how they are known.

use std::fs;
use std::path::Path;

/// Where the plugin looks for its programs and its configuration by itself (spank: `arguments`).
pub(super) const USUAL_PROGRAMS: &str = "/usr/libexec/mpsd";
/// The plugin's file.
pub(super) const PLUGIN: &str = "spank_mps.so";
/// The first line of our files.
pub(super) const TAG: &str = "# mpsd: written by 'mpsctl slurm enable', removed by 'mpsctl slurm disable'";
/// Whether a file is there that we did not write.
pub(super) fn is_foreign(file: &Path) -> bool {
    match fs::read_to_string(file) {
        Ok(text) => !text.starts_with(TAG),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}
