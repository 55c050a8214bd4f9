//! Local clock. It runs while the machine sleeps, so that a lease cannot outlive a suspend unnoticed.

use std::time::Duration;

use crate::base::lease::Moment;

/// Longest pause between two readings of the clock in a long sleep. The runtime's timers stop during a suspend, but the
/// clock does not.
const LOOK: Duration = Duration::from_secs(1);

/// Source of a manager's time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    /// Monotonic clock of the operating system. It includes the time for which the machine sleeps.
    System,
    /// Clock of the runtime, which tests can pause. It is for managers whose server is this process.
    Runtime(tokio::time::Instant),
}

impl Clock {
    /// Creates a clock that follows the runtime's time from now on.
    pub(crate) fn runtime() -> Self {
        // The origin is an hour earlier, because moments before it would all be equal.
        let now = tokio::time::Instant::now();
        Self::Runtime(now.checked_sub(Duration::from_secs(3600)).unwrap_or(now))
    }

    pub(crate) fn now(self) -> Moment {
        match self {
            Self::System => system_now(),
            Self::Runtime(origin) => Moment::from_nanos(0).after(origin.elapsed()),
        }
    }

    /// Returns when `moment` is reached, even if the machine sleeps during a part of the wait.
    pub(crate) async fn sleep_until(self, moment: Moment) {
        if moment == Moment::NEVER {
            return std::future::pending().await;
        }
        loop {
            let left = moment.since(self.now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(LOOK)).await;
        }
    }

    /// Returns at `moment`, or later if the machine sleeps meanwhile. This suits a large number of waiters, which
    /// should not wake up only to read the clock. Another task reads the clock and notifies them.
    pub(crate) async fn timer(self, moment: Moment) {
        if moment == Moment::NEVER {
            return std::future::pending().await;
        }
        tokio::time::sleep(moment.since(self.now())).await;
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn system_now() -> Moment {
    from_timespec(rustix::time::clock_gettime(rustix::time::ClockId::Boottime))
}

#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
fn system_now() -> Moment {
    from_timespec(rustix::time::clock_gettime(rustix::time::ClockId::Monotonic))
}

#[cfg(unix)]
fn from_timespec(time: rustix::time::Timespec) -> Moment {
    let secs = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Moment::from_nanos(secs.saturating_mul(1_000_000_000).saturating_add(nanos))
}

#[cfg(not(unix))]
fn system_now() -> Moment {
    use std::sync::LazyLock;
    use std::time::Instant;
    static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    Moment::from_nanos(1).after(ORIGIN.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn runtime_clock_can_be_paused() {
        let clock = Clock::runtime();
        let before = clock.now();
        clock.sleep_until(before.after(Duration::from_secs(100))).await;
        assert!(clock.now().since(before) >= Duration::from_secs(100));
        assert!(clock.now().since(before) < Duration::from_secs(102));
    }

    #[test]
    fn system_clock_does_not_go_back() {
        let first = Clock::System.now();
        assert!(Clock::System.now() >= first);
    }
}
