//! The runs behind README's table of reliability, and its figures.

mod figures;
pub mod fuzz;
pub mod matrices;
pub mod soak;
