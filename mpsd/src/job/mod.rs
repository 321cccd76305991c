//! The life of a job: what is remembered of it, and how it begins and ends.

pub mod account;
pub mod journal;
pub mod ladder;
pub mod spec;

pub use account::Account;
pub use journal::Journal;
