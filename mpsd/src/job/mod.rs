//! The life of a job: what is remembered of it, and how it begins and ends.

pub mod account;
pub mod carry_out;
pub mod journal;
pub mod ladder;
pub mod node;
pub mod spec;
pub mod undo;

pub use account::Account;
pub use journal::Journal;
