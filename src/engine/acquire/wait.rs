//! An acquisition waits between two attempts, for a notification of the server or for a pause.

use std::time::Duration;

use tokio::sync::mpsc;

use super::plausible::Bounds;
use super::{Acquisition, poll_within};
use crate::base::attempt::MAX_NOTIFICATIONS;
use crate::base::lease::Moment;
use crate::lock::wait::Notifications;
use crate::store::{AcquireRequest, AcquisitionId, Answered, Granted, Notification};

/// First and longest pause between two attempts without a queue.
const RETRY_FIRST: Duration = Duration::from_millis(4);
const MAX_RETRY: Duration = Duration::from_millis(128);
/// Longest pause if the server also notifies of releases. The pause then only covers a lost notification.
const MAX_RETRY_WOKEN: Duration = Duration::from_secs(1);

/// Pauses of one acquisition without a queue.
pub(super) struct Pause(Duration);

impl Pause {
    pub(super) fn new() -> Self {
        Self(RETRY_FIRST)
    }

    fn next(&mut self, longest: Duration) -> Duration {
        let jittered = self.0.mul_f64(0.5 + fastrand::f64());
        // The largest jitter adds half, so two thirds of the longest pause is the limit here.
        self.0 = (self.0 * 2).min(longest * 2 / 3);
        jittered
    }
}

/// Outcome of a wait in the queue.
pub(super) enum QueueWaitEnd {
    Granted(Answered<Granted>),
    /// The lock may have been granted meanwhile.
    AskAgain,
    /// A guard uses the recalled hold.
    Refused,
    /// No reply came in time.
    Silence,
}

/// Sum of the notifications that have arrived when a waiter looks.
enum HeardNotification {
    Granted(Answered<Granted>),
    /// The lock may have become free.
    AskAgain,
    /// A guard uses the hold that this try has recalled.
    Refused,
    /// All notifications were for other waiters.
    Nothing,
}

/// Sums up `first` and the notifications behind it, because all of them together are one reason to ask. It stops at the length
/// of the channel, so that a faster flood of notifications cannot keep the waiter here.
fn hear(
    first: Notification,
    notices: &mut mpsc::Receiver<Notification>,
    id: &AcquisitionId,
    bounds: &Bounds,
    now: Moment,
) -> HeardNotification {
    let (mut heard, mut next, mut looked_at) = (HeardNotification::Nothing, Some(first), 0);
    while let Some(notice) = next.take() {
        match notice {
            Notification::Granted { id: granted, at, answer }
                if *granted == *id.as_str() && bounds.admit(at, &answer, now) =>
            {
                return HeardNotification::Granted(answer);
            }
            // The grant of another waiter of this process.
            Notification::Granted { id: granted, .. } if *granted != *id.as_str() => {}
            Notification::Used { id: refused } if *refused == *id.as_str() => heard = HeardNotification::Refused,
            // For the tries of other tasks.
            Notification::Used { .. } | Notification::Called { .. } => {}
            // This grant is older than the place in the queue, or no server would send it.
            Notification::Granted { .. } | Notification::AskAgain => heard = heard.or_ask_again(),
        }
        looked_at += 1;
        if looked_at < MAX_NOTIFICATIONS {
            next = notices.try_recv().ok();
        }
    }
    // The channel was full, so notifications may be missing.
    if looked_at >= MAX_NOTIFICATIONS { heard.or_ask_again() } else { heard }
}

impl HeardNotification {
    fn or_ask_again(self) -> Self {
        match self {
            Self::Nothing => Self::AskAgain,
            said => said,
        }
    }
}

impl Acquisition {
    /// Waits for notifications until it is time to ask again. A waiter asks at `asks_again` at the latest. A try waits for the
    /// replies to its recall until `replies_until`.
    pub(super) async fn await_notification(
        &mut self,
        request: &AcquireRequest,
        mut asks_again: Moment,
        replies_until: Option<Moment>,
    ) -> QueueWaitEnd {
        self.subscribe();
        let bounds = self.bounds(request);
        let options = self.engine.options();
        let (clock, counts) = (self.engine.clock, options.durability.counts_notified_grants());
        // A waiter needs no such statement, because each of its heartbeats shows that its task is polled.
        let states_within = poll_within(options) / 2;
        let mut states_at = replies_until.map_or(Moment::NEVER, |_| clock.now().after(states_within));
        let (until, mut was_notified) = (replies_until.unwrap_or(Moment::NEVER), false);
        loop {
            let Notifications::Subscribed(subscription) = &mut self.notices else {
                if replies_until.is_some() {
                    return QueueWaitEnd::Silence;
                }
                clock.sleep_until(asks_again).await;
                return QueueWaitEnd::AskAgain;
            };
            tokio::select! {
                biased;
                notice = subscription.notices.recv() => {
                    let Some(notice) = notice else {
                        // The runtime that received the notifications has ended. It was that of the leader before.
                        self.notices = Notifications::Unwanted;
                        continue;
                    };
                    match hear(notice, &mut subscription.notices, &request.id, &bounds, clock.now()) {
                        HeardNotification::Granted(answer) if counts => return QueueWaitEnd::Granted(answer),
                        HeardNotification::Granted(_) => return QueueWaitEnd::AskAgain,
                        HeardNotification::Refused if replies_until.is_some() => return QueueWaitEnd::Refused,
                        // A flood of notifications causes no more requests than the throttle allows. For a try, the
                        // notification may come from before the subscription was live, and has reached no waiter.
                        HeardNotification::AskAgain => {
                            was_notified = true;
                            asks_again = asks_again.min(self.told_to_ask.next_at());
                        }
                        HeardNotification::Refused | HeardNotification::Nothing => {}
                    }
                }
                () = clock.sleep_until(asks_again.min(until)) => {}
                () = clock.timer(states_at) => {}
            }
            // Compared after each notification as well, because a flood would keep the timers from their turns.
            let now = clock.now();
            // Checked first, because a flood of notifications must not keep a try from its end.
            if until <= now {
                return QueueWaitEnd::Silence;
            }
            if asks_again <= now {
                if was_notified {
                    self.told_to_ask.take(now);
                }
                return QueueWaitEnd::AskAgain;
            }
            if states_at <= now {
                states_at = now.after(states_within);
                if let Some(entry) = &self.entry {
                    entry.note_polled(now);
                }
            }
        }
    }

    /// Waits for a pause, because the server has no queue.
    pub(super) async fn pause(&mut self, pause: &mut Pause, retry_in: Duration) {
        self.subscribe();
        let longest = match self.notices {
            Notifications::Subscribed(_) => MAX_RETRY_WOKEN,
            Notifications::Unwanted | Notifications::Never => MAX_RETRY,
        };
        let nap = pause.next(longest).min(retry_in + Duration::from_millis(1));
        let clock = self.engine.clock;
        let until = clock.now().after(nap);
        match &mut self.notices {
            Notifications::Subscribed(subscription) => {
                match tokio::time::timeout(nap, subscription.notices.recv()).await {
                    Err(_) => return,
                    Ok(None) => {
                        self.notices = Notifications::Unwanted;
                        return tokio::time::sleep(nap).await;
                    }
                    Ok(Some(_)) => {}
                }
                let asks_again = self.told_to_ask.next_at();
                if asks_again > clock.now() {
                    clock.sleep_until(until.min(asks_again)).await;
                }
                self.told_to_ask.take(clock.now());
                // All notifications that have arrived are one reason to ask.
                while subscription.notices.try_recv().is_ok() {}
            }
            Notifications::Unwanted | Notifications::Never => tokio::time::sleep(nap).await,
        }
    }

    /// Subscribes to the notifications, if the scheme has any.
    fn subscribe(&mut self) {
        if matches!(self.notices, Notifications::Unwanted) {
            let scheme = self.engine.scheme.notifications();
            let subscription = scheme.map(|scheme| scheme.subscribe(&self.key, &self.engine.manager_id));
            self.notices = subscription.map_or(Notifications::Never, Notifications::Subscribed);
        }
    }
}
