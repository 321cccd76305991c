//! Slurm's own OCI containers (`--container`). Slurm writes the container's mounts without asking a
//! plugin, so a task in one does not see the directory of its MPS, and CUDA would silently run
//! outside it (docs/containers.md#slurms-own-containers).

use crate::handle::Slurm;

pub const REFUSED: &str = "Slurm's own container (--container) does not show a task its MPS, and it would run outside of that; \
                           allowed: --mps without --container, or a container as docs/containers.md says";

pub const WITHOUT: &str = "runs without MPS: Slurm's own container (--container) does not show it";

/// What srun and sbatch set for the tasks if they have the option.
const VARIABLE: &str = "SLURM_CONTAINER";

pub fn is_of_task(slurm: &dyn Slurm) -> bool {
    let bundle = slurm.job_env(VARIABLE);
    bundle.is_some_and(|bundle| !bundle.is_empty())
}
