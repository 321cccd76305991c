//! What is remembered of a job and how it is taken down. Pure: no I/O, no clock.

pub mod account;
pub mod journal;
pub mod ladder;
pub mod spec;

pub use account::Account;
pub use journal::Journal;
