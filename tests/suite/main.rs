//! The suite: the real programs against the simulated node, and the rules of the house.

mod mpsctl;
mod whole;
