//! The suite: the real programs against the simulated node, and the rules of the house.

mod mpsctl;
mod reconcile;
mod architecture;
mod bad_input;
mod crash;
mod place;
mod plans;
mod whole;
