//! Cells that do not hold yet: each must fail as it is said here. One that passes makes the run fail, so that its line goes.

use super::factors::{Choice, is};

/// A gap.
pub struct Known {
    /// What is missing.
    pub why: &'static str,
    /// The cells that show it.
    pub cells: fn(&Choice) -> bool,
    /// Whether each of these cells shows it, whichever GPUs Slurm picks.
    pub always: bool,
    /// A word of each trouble that it explains.
    pub sign: &'static str,
}

/// All of them.
pub const KNOWN: &[Known] = &[
    Known {
        why: "auto divides by all GPUs of the node where --exclusive gives the job all and its step one",
        cells: |row| is(row, "gpus", "gpu1") && is(row, "node", "alone-on-node") && is(row, "ask", "auto"),
        always: true,
        sign: "MiB, not one of ",
    },
    Known {
        why: "a job with GPUs of two types has a daemon for one of them only",
        cells: |row| {
            // With --exclusive the job has all of them.
            let one = is(row, "gpus", "gpu1") && is(row, "node", "shared") || is(row, "gpus", "shard1");
            is(row, "gres", "reversed") && !one && !is(row, "step", "one-asks")
        },
        always: false,
        sign: "refused: ",
    },
];
