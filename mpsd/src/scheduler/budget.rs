//! The time of a prologue or an epilogue: one budget below the scheduler's own limit. Every wait of the program is a part of it.

use std::time::Duration;

/// What stays free below a scheduler's limit, for what our work does not count: what ran before our program, its guard, and a
/// guard's kill.
pub(crate) const MARGIN: Duration = Duration::from_secs(6);
/// How long a guard waits beyond the work's own end.
const GRACE: Duration = Duration::from_secs(3);

/// The time of one prologue or epilogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// For the work, which ends by itself.
    pub work: Duration,
    /// Then the guard ends the work.
    pub whole: Duration,
}

impl Budget {
    /// The site gives a program `own`; its scheduler kills it at `limit`, if at all.
    pub fn new(own: Duration, limit: Option<Duration>) -> Self {
        let work = limit.map_or(own, |limit| own.min(within(limit)));
        // The other half is for the kill, and for what ran before.
        let grace = limit.map_or(GRACE, |limit| GRACE.min((limit - work) / 2));
        Self {
            work,
            whole: work + grace,
        }
    }
}

/// The time for our work below a scheduler's `limit`. A small limit is halved.
pub(crate) fn within(limit: Duration) -> Duration {
    limit - MARGIN.min(limit / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_guard_and_kill_stay_below_every_limit() {
        let own = Duration::from_secs(20);
        for limit in (1..=60).map(Duration::from_secs) {
            let budget = Budget::new(own, Some(limit));
            let free = limit - budget.whole;
            assert!(
                !budget.work.is_zero() && budget.work <= own,
                "{limit:?}: {budget:?}"
            );
            assert!(budget.whole > budget.work, "{limit:?}: {budget:?}");
            assert!(free >= MARGIN.min(limit / 2) / 2, "{limit:?}: {budget:?}");
        }
    }

    #[test]
    fn a_limit_far_away_changes_nothing() {
        let own = Duration::from_secs(20);
        let usual = Budget::new(own, None);
        assert_eq!(usual, Budget::new(own, Some(own + MARGIN)));
        assert_eq!(usual.work, own);
        assert!(Budget::new(own, Some(own + MARGIN - Duration::from_secs(1))).work < own);
    }
}
