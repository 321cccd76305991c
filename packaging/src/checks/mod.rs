//! What must hold: on every change, before a release, on a real GPU.

pub mod hardware;
pub mod release;
mod tally;
pub mod test;
