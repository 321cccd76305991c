//! The runs behind the figures of README and docs/, and their plot.

mod figures;
pub mod fuzz;
mod gain;
pub mod matrices;
mod plot;
pub mod readme;
mod several;
pub mod soak;
mod speed;
