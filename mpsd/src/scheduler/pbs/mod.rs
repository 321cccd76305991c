//! What Torque and OpenPBS share: where a PBS lives, `pbsnodes`, `qstat`, and the verbs of `mpsctl pbs`.

mod check;
pub(crate) mod control;
pub(crate) mod installation;
pub(crate) mod jobs;
pub(crate) mod scripts;
pub(crate) mod setup;
pub(crate) mod trial;
