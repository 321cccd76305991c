//! `mpsctl idle`: whether jobs with MPS run on this node. The packages ask it before they are removed.

use super::reconcile::ReconcileReport;
use crate::scheduler::setup::running_jobs;
use mpsd_core::config::Settings;
use mpsd_core::{Failure, Refusal, Undetermined};

/// `mpsctl idle`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Idle {
    /// Wait so long for the jobs with MPS that run on this node
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub wait: u64,
}

impl Idle {
    /// Says nothing where none runs.
    ///
    /// # Errors
    /// Some run still, after the wait; or the jobs' directory cannot be read.
    pub fn run(&self, settings: &Settings) -> Result<ReconcileReport, Failure> {
        let jobs = running_jobs(&settings.paths, self.wait);
        let jobs = jobs.map_err(|why| Undetermined::new("this node", why))?;
        match jobs.is_empty() {
            true => Ok(ReconcileReport::default()),
            false => {
                let why = format!(
                    "jobs with MPS run on it, and their end needs our files: {}",
                    jobs.join(", ")
                );
                Err(Refusal::new(
                    "this node",
                    why,
                    "after they have ended; 'mpsctl idle --wait SECONDS' waits",
                )
                .into())
            }
        }
    }
}
