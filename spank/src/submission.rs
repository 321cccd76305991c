//! srun, sbatch and salloc: all flags together, before anything is submitted.

use crate::handle::{Level, Slurm, Verdict};
use crate::state::State;
use mpsd_core::request::Demand;

/// Tells job_prolog, as `SPANK_MPS_SUBMIT`, which command submitted the job. The user can write it too; neither value
/// does harm.
const VARIABLE: &str = "MPS_SUBMIT";

/// Which command submits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Submitter {
    /// srun.
    Srun,
    /// sbatch, salloc, scrontab.
    Allocator,
}

impl Submitter {
    fn word(self) -> &'static str {
        match self {
            Self::Srun => "srun",
            Self::Allocator => "allocator",
        }
    }

    /// Whether this one submitted the job of a job_prolog.
    pub fn submitted(self, slurm: &dyn Slurm) -> bool {
        slurm.process_env(&format!("SPANK_{VARIABLE}")).as_deref() == Some(self.word())
    }
}

/// `init_post_opt` of the submitting command. It leaves by itself on a refusal, since under `optional` Slurm would go on
/// and submit.
pub fn check(slurm: &mut dyn Slurm, state: &State, by: Submitter) -> Verdict {
    // A het job comes here once a component. Slurm hands the flags of one on to those after it, and so do we.
    let refusal = match (&state.demand, &state.line) {
        (Demand::Nothing, _) => return Verdict::Continue,
        (Demand::Wrong(refusal), _) => Some(refusal.to_string()),
        (Demand::Off | Demand::On(_), Err(why)) => Some(format!("--mps cannot be given here: {why}")),
        (Demand::Off | Demand::On(_), Ok(_)) => None,
    };
    if let Some(line) = refusal {
        slurm.log(Level::Error, &line);
        return Verdict::Leave;
    }
    slurm.set_script_env(VARIABLE, by.word());
    Verdict::Continue
}
