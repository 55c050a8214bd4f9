//! Local clock of a manager. It also runs while the machine is suspended. So a manager notices that a lease ended
//! during a suspend.

use std::time::Duration;

use tokio::time::Sleep;

use crate::base::lease::Moment;

/// Longest time between two readings of the clock while a task sleeps. The runtime's timers stop while the machine is
/// suspended, but this clock does not.
const LOOK: Duration = Duration::from_secs(1);

/// Source of a manager's time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    /// Monotonic clock of the operating system. It includes the time for which the machine is suspended.
    System,
    /// Clock of the tokio runtime, which tests can pause. The in-memory manager uses it.
    Runtime(tokio::time::Instant),
}

impl Clock {
    /// Creates a clock that follows the time of the current runtime.
    pub(crate) fn runtime() -> Self {
        // The origin lies an hour in the past, because all moments before the origin would be equal.
        let now = tokio::time::Instant::now();
        Self::Runtime(now.checked_sub(Duration::from_secs(3600)).unwrap_or(now))
    }

    pub(crate) fn now(self) -> Moment {
        match self {
            Self::System => system_now(),
            Self::Runtime(origin) => Moment::START.after(origin.elapsed()),
        }
    }

    /// Waits until `moment`, even if the machine is suspended meanwhile.
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

    /// Waits until `moment`, or longer if the machine is suspended meanwhile. Large numbers of waiters use this method,
    /// because they should not wake up only to read the clock. Another task reads the clock and notifies them.
    pub(crate) async fn timer(self, moment: Moment) {
        if moment == Moment::NEVER {
            return std::future::pending().await;
        }
        self.sleep(moment).await;
    }

    /// Returns the bare timer of [`timer`](Self::timer), for a waiter that keeps it.
    pub(crate) fn sleep(self, moment: Moment) -> Sleep {
        tokio::time::sleep(moment.since(self.now()))
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
use rustix::time::ClockId::Boottime as SYSTEM_CLOCK;

#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
use rustix::time::ClockId::Monotonic as SYSTEM_CLOCK;

#[cfg(unix)]
fn system_now() -> Moment {
    let time = rustix::time::clock_gettime(SYSTEM_CLOCK);
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
