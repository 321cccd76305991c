//! Cells that do not hold yet: each must fail as it is said here. One that passes makes the run fail, so that its line goes.

use super::factors::Choice;

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
pub const KNOWN: &[Known] = &[];
