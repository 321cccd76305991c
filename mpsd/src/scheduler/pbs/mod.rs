//! What Torque and OpenPBS share: where a PBS lives, `pbsnodes`, `qstat`, and the verbs of `mpsctl pbs`.

mod check;
pub(crate) mod control;
pub(crate) mod files;
pub(crate) mod installation;
pub(crate) mod known_jobs;
pub(crate) mod qmgr;
mod request;
pub(crate) mod setup;
pub(crate) mod status;
pub(crate) mod verbs;
