//! The runs behind README's table of reliability, and README's figures.

mod figures;
pub mod fuzz;
pub mod matrices;
pub mod readme;
pub mod soak;
