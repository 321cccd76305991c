//! OpenPBS and PBS Professional: our hook, or the classic scripts.

pub(crate) mod hook;
pub mod submission;
