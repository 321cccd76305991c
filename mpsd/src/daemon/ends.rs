//! How clients end. NVIDIA's log has the same line for a client that was killed and one that ended, and a client is no child of ours:
//! a pidfd that was opened while it lived tells, once it has been waited for, how it ended (Linux 6.15; docs/facts/mps-control.md#how-a-client-ended).
//! On an older kernel nothing is said.

use super::dialogue::Event;
use crate::sys::Exit;
use crate::sys::process::ProcessWatch;
use mpsd_core::observations::Killed;
use std::os::fd::BorrowedFd;

/// Most clients that are watched: eight GPUs full of them, and half of the descriptors that a process usually has.
const MOST: usize = 480;

/// The clients that live.
#[derive(Debug, Default)]
pub struct Ends {
    clients: Vec<(i32, ProcessWatch)>,
}

impl Ends {
    /// Takes an event of the vendor's log in.
    pub fn take(&mut self, event: &Event) {
        let (Event::NewClient(pid) | Event::Active(pid)) = event else {
            return;
        };
        // One that has been waited for goes at the next look: a new process may have its pid.
        let is_new = self.clients.iter().all(|(known, _)| known != pid);
        if is_new && self.clients.len() < MOST {
            self.clients
                .extend(ProcessWatch::of(*pid).map(|watch| (*pid, watch)));
        }
    }

    /// What wakes when one of them has ended and been waited for, and at nothing else.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.clients.iter().map(|(_, watch)| watch.descriptor())
    }

    /// Those that a signal ended since the last look; all that have ended are let go.
    pub fn killed(&mut self) -> Vec<Killed> {
        let mut killed = Vec::new();
        self.clients.retain(|(pid, watch)| {
            let Some(end) = watch.end() else { return true };
            if let Some(Exit::Signal(signal)) = end {
                killed.push(Killed { pid: *pid, signal });
            }
            false
        });
        killed
    }
}

#[cfg(test)]
#[path = "ends_tests.rs"]
mod tests;
