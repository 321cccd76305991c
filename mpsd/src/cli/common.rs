//! What the command lines of several programs share.

use clap::ValueEnum;
use mpsd_core::Scheduler;

/// Where the administrator's configuration lies.
pub const CONFIG: &str = "/etc/mpsd/mpsd.toml";

/// A batch system, as `--scheduler` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SchedulerName {
    /// Slurm, through the plugin.
    Slurm,
    /// Torque.
    Torque,
    /// OpenPBS or PBS Professional.
    Openpbs,
}

impl From<SchedulerName> for Scheduler {
    fn from(name: SchedulerName) -> Self {
        match name {
            SchedulerName::Slurm => Self::Slurm,
            SchedulerName::Torque => Self::Torque,
            SchedulerName::Openpbs => Self::OpenPbs,
        }
    }
}
