//! The teardown ladder: which rung comes next, and how long each may take.

use std::time::Duration;

/// The rungs, in order. Each is tried only while a process of ours is left; what the last leaves is a zombie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rung {
    /// `terminate_client` for each client, `quit`, `quit -t`, by the vendor's program, as the job's user.
    Polite,
    /// SIGTERM to our own three.
    Terminate,
    /// SIGKILL to our own three.
    Kill,
}

impl Rung {
    /// All in order, the polite one only where there is a control daemon to talk to.
    pub fn all(control_daemon_alive: bool) -> &'static [Self] {
        match control_daemon_alive {
            true => &[Self::Polite, Self::Terminate, Self::Kill],
            false => &[Self::Terminate, Self::Kill],
        }
    }

    /// How long it may take of `total`.
    pub fn time(self, total: Duration) -> Duration {
        match self {
            // For all its commands together: each may hang for ever behind a stopped server
            // (docs/facts/mps-control.md#crashes-and-hangs).
            Self::Polite => total / 2,
            // The control daemon needs less than 100 ms (same place).
            Self::Terminate => total / 5,
            Self::Kill => total * 3 / 10,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rung_has_time_and_all_fit() {
        let total = Duration::from_secs(10);
        let times = Rung::all(true).iter().map(|rung| rung.time(total));
        assert_eq!(times.len(), 3);
        assert!(times.clone().all(|time| time >= Duration::from_secs(2)));
        assert!(times.sum::<Duration>() <= total);
    }

    #[test]
    fn nobody_is_asked_politely_who_is_not_there() {
        assert_eq!(Rung::all(false).first(), Some(&Rung::Terminate));
    }
}
