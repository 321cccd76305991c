//! The teardown ladder: which rung comes next, and how long each may take.

use std::time::Duration;

/// The rungs, in order. Each is tried only while a process of ours is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rung {
    /// `terminate_client` for each client, `quit`, `quit -t`, by the vendor's program, as the job's user.
    Polite,
    /// SIGTERM to our own three.
    Terminate,
    /// SIGKILL to our own three.
    Kill,
}

/// The deadlines of one teardown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ladder {
    /// For all polite commands together: each may hang for ever behind a stopped server
    /// (docs/facts/mps-control.md#crashes-and-hangs).
    pub polite: Duration,
    /// For SIGTERM to work; the control daemon needs less than 100 ms (same place).
    pub terminate: Duration,
    /// For SIGKILL to work.
    pub kill: Duration,
}

impl Ladder {
    /// Splits `total`: half for the polite rung, a fifth for SIGTERM, three tenths for SIGKILL.
    pub fn within(total: Duration) -> Self {
        Self {
            polite: total / 2,
            terminate: total / 5,
            kill: total * 3 / 10,
        }
    }

    /// The first rung: the polite one only where there is a control daemon to talk to.
    pub fn first(control_daemon_alive: bool) -> Rung {
        if control_daemon_alive {
            Rung::Polite
        } else {
            Rung::Terminate
        }
    }

    /// The rung after `rung`, when something is left; `None`: what is left is a zombie.
    pub fn next(rung: Rung) -> Option<Rung> {
        match rung {
            Rung::Polite => Some(Rung::Terminate),
            Rung::Terminate => Some(Rung::Kill),
            Rung::Kill => None,
        }
    }

    /// How long `rung` may take.
    pub fn time(&self, rung: Rung) -> Duration {
        match rung {
            Rung::Polite => self.polite,
            Rung::Terminate => self.terminate,
            Rung::Kill => self.kill,
        }
    }
}

#[cfg(test)]
mod tests;
