//! A point in time by which something must have ended: no wait in this suite is without one.

use nix::poll::PollTimeout;
use std::time::{Duration, Instant};

/// A point on the monotonic clock. Copied freely; narrowed with [`Deadline::within`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// The deadline that lies `span` from now.
    pub fn after(span: Duration) -> Self {
        let now = Instant::now();
        // An absurd span must not panic: a year is for ever here.
        Self(
            now.checked_add(span)
                .unwrap_or(now + Duration::from_secs(365 * 86_400)),
        )
    }

    /// The deadline that lies `milliseconds` from now.
    pub fn after_ms(milliseconds: u64) -> Self {
        Self::after(Duration::from_millis(milliseconds))
    }

    /// This deadline, or the one `span` from now if that is earlier: a rung's share of the whole.
    #[must_use]
    pub fn within(self, span: Duration) -> Self {
        self.min(Self::after(span))
    }

    /// This deadline moved `span` towards now: what is kept back for the work that follows.
    #[must_use]
    pub fn less(self, span: Duration) -> Self {
        Self(self.0.checked_sub(span).unwrap_or(self.0))
    }

    /// Time left; zero when it has passed.
    pub fn remaining(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether it has passed.
    pub fn expired(self) -> bool {
        self.remaining().is_zero()
    }

    /// Time left for `poll(2)`, rounded up to a millisecond so that a wait never spins on its last one.
    pub fn poll_timeout(self) -> PollTimeout {
        let up = self.remaining() + Duration::from_nanos(999_999);
        PollTimeout::try_from(up.as_millis().min(i32::MAX as u128)).unwrap_or(PollTimeout::MAX)
    }

    /// Sleeps for `span`, or until this deadline if that is earlier; false when it has passed before sleeping.
    pub fn sleep(self, span: Duration) -> bool {
        let left = self.remaining();
        if left.is_zero() {
            return false;
        }
        std::thread::sleep(span.min(left));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_is_never_negative_and_poll_rounds_up() {
        let past = Deadline::after(Duration::ZERO);
        assert!(past.expired());
        assert_eq!(past.poll_timeout().as_millis(), Some(0));
        assert!(!past.sleep(Duration::from_secs(5)));
        let soon = Deadline::after(Duration::from_micros(300));
        assert!(soon.poll_timeout().as_millis() <= Some(1));
        assert!(Deadline::after(Duration::MAX).remaining() > Duration::from_secs(86_400));
        assert_eq!(
            Deadline::after(Duration::from_secs(1 << 40)).poll_timeout(),
            PollTimeout::MAX
        );
    }

    #[test]
    fn within_only_narrows() {
        let whole = Deadline::after_ms(200);
        assert_eq!(whole.within(Duration::from_secs(9)), whole);
        assert!(whole.within(Duration::from_millis(10)) < whole);
        assert!(whole.less(Duration::from_millis(150)).remaining() <= Duration::from_millis(50));
    }
}
