//! The life of a job, generic over the node ([`node`]): the programs run it on this machine, the
//! tests on a node in memory.

mod account;
pub mod audit;
mod begin;
mod bounds;
pub mod claim;
mod drain_target;
mod end;
pub mod evidence;
mod findings;
pub mod journal;
pub mod ledger;
pub mod node;
pub mod outcome;
mod planned;
mod prepared;
pub mod report;
pub mod report_text;
mod shared;
pub mod spec;
mod start;
pub mod store;
pub mod tally;
mod undo;

pub use account::Account;
pub use begin::{Begun, ReturnWhen, begin};
pub use drain_target::DrainTarget;
pub use end::{Ending, JobEnd, end, end_if, jobs_of};
pub use findings::{FailedStart, Findings};
pub use journal::Journal;
pub use prepared::{Job, Scheduled, User};
pub use undo::end_unused;

use mpsd_core::Failure;
use mpsd_core::failure::{Evidence, Fault, Undetermined};
use mpsd_sys::is_scarcity;
use nix::errno::Errno;

pub fn failure(
    evidence: Option<Evidence>,
    what: impl Into<String>,
    why: impl Into<String>,
) -> Failure {
    match evidence {
        Some(evidence) => Fault::new(evidence, what, why).into(),
        None => Undetermined::new(what, why).into(),
    }
}

pub fn unless_scarce(evidence: Evidence, errno: Option<Errno>) -> Option<Evidence> {
    (!errno.is_some_and(is_scarcity)).then_some(evidence)
}
