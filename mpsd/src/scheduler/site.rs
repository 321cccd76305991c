//! Where a scheduler lives on this node.

use mpsd_core::config::Settings;
use std::path::PathBuf;

/// What the administrator and the environment say of it; empty: found by looking.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Site {
    /// `PBS_HOME` or Torque's server home, the directory with `mom_priv`.
    pub home: Option<PathBuf>,
    /// PBS's directory with `bin` and `sbin`, or the one with the commands themselves.
    pub exec: Option<PathBuf>,
    /// This node's name in PBS, where it is not the host's.
    pub node: Option<String>,
    /// Slurm's directory with `bin` and `sbin`, or the one with the commands themselves.
    pub slurm_exec: Option<PathBuf>,
    /// Slurm's `SLURM_CONF`.
    pub slurm_conf: Option<String>,
}

impl Site {
    /// What `settings` and this program's own environment say.
    pub fn of(settings: &Settings) -> Self {
        Self {
            home: settings.pbs.home.clone(),
            exec: settings.pbs.exec.clone(),
            node: settings.pbs.node.clone(),
            slurm_exec: settings.slurm.exec.clone(),
            slurm_conf: (settings.slurm.conf.as_ref())
                .map(|path| path.display().to_string())
                .or_else(|| std::env::var("SLURM_CONF").ok()),
        }
    }
}
