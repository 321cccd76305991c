//! The suite: the real programs against the simulated node, and the rules of the house.

mod accounts;
mod architecture;
mod bad_input;
mod circles;
mod confined;
mod corpus;
mod crash;
mod evidence;
mod facts;
mod faults;
mod flood;
mod hostile;
mod inheritance;
mod kills;
mod known_gaps;
mod mpsctl;
mod plans;
mod reconcile;
mod reliability;
mod scarce;
mod slurm_stack;
mod soak;
mod sources;
mod supervision;
mod threats;
mod whole;
