//! A requester rests between two copies: it waits for a notification of the server, or for the end of a pause.

use std::time::Duration;

use tokio::sync::mpsc;

use super::plausible::Bounds;
use super::{Notifications, Requesting, Rest, heartbeat_of};
use crate::base::attempt::MAX_NOTIFICATIONS;
use crate::base::lease::Moment;
use crate::store::{AcquireRequest, AcquisitionId, Answered, Granted, Notification};

/// First and longest pause between two attempts without a queue.
const RETRY_FIRST: Duration = Duration::from_millis(4);
const MAX_RETRY: Duration = Duration::from_millis(128);
/// Longest pause if the server also notifies of releases. The pause then only covers a lost notification.
const MAX_RETRY_WOKEN: Duration = Duration::from_secs(1);

/// Pauses of one request without a queue.
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

/// Sum of the notifications that have arrived when the requester looks.
enum HeardNotification {
    Granted(Answered<Granted>),
    /// The lock may have become free.
    AskAgain,
    /// A guard uses the hold that this request has recalled as a try.
    InUse,
    /// All notifications were for other waiters.
    Nothing,
}

/// Sums up `first` and the notifications behind it, because all of them together are one reason to ask. It stops at the length
/// of the channel, so that a faster flood of notifications cannot keep the requester here.
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
            Notification::Used { id: refused } if *refused == *id.as_str() => heard = HeardNotification::InUse,
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

impl Requesting {
    /// Rests before the next copy.
    pub(super) async fn rest(&mut self, rest: Rest) {
        match rest {
            Rest::AwaitTurn { request, retry_in } => Box::pin(self.await_turn(&request, retry_in)).await,
            Rest::Pause { retry_in } => Box::pin(self.pause(retry_in)).await,
            // So that the task looks at its limit before the next copy.
            Rest::Backoff(pause) if pause.is_zero() => tokio::task::yield_now().await,
            Rest::Backoff(pause) => tokio::time::sleep(pause).await,
        }
    }

    /// Waits for notifications until it is time to ask again: at the next heartbeat, or when the recalled holders have had
    /// their time to reply to a try.
    async fn await_turn(&mut self, request: &AcquireRequest, retry_in: Duration) {
        let (bounds, clock) = (self.bounds(request), self.engine.clock);
        let counts = self.engine.options().durability.counts_notified_grants();
        // A little after the deadline that may free the lock, so that the copy does not come too early.
        let nap = heartbeat_of(request.lease).min(retry_in + Duration::from_millis(1));
        let replies_until = self.recalls_until.filter(|until| *until > clock.now()).unwrap_or(Moment::NEVER);
        let (mut asks_again, mut was_notified) = (clock.now().after(nap).min(replies_until), false);
        loop {
            let Notifications::Subscribed(subscription) = &mut self.notifications else {
                return clock.sleep_until(asks_again).await;
            };
            tokio::select! {
                biased;
                notice = subscription.notices.recv() => {
                    let Some(notice) = notice else {
                        // The runtime that received the notifications has ended.
                        self.notifications = Notifications::Unwanted;
                        continue;
                    };
                    match hear(notice, &mut subscription.notices, &request.id, &bounds, clock.now()) {
                        HeardNotification::Granted(answer) => {
                            // The first waiter has a share then, and the next copy is not sent.
                            let _outcome = counts.then(|| self.on_notification(request, &answer));
                            return;
                        }
                        HeardNotification::InUse => self.on_in_use(),
                        // A flood of notifications causes no more requests than the throttle allows.
                        HeardNotification::AskAgain => {
                            was_notified = true;
                            asks_again = asks_again.min(self.told_to_ask.next_at());
                        }
                        HeardNotification::Nothing => {}
                    }
                }
                () = clock.sleep_until(asks_again) => {}
            }
            // Compared after each notification as well, because a flood would keep the timers from their turns.
            let now = clock.now();
            if asks_again <= now {
                if was_notified {
                    self.told_to_ask.take(now);
                }
                return;
            }
        }
    }

    /// Ends the tries, because a guard uses the hold that one of them has recalled.
    fn on_in_use(&self) {
        if let Some(entry) = &self.entry {
            entry.note_in_use();
            entry.deny_tries(self.engine.now());
        }
    }

    /// Waits for a pause, because the server has no queue.
    async fn pause(&mut self, retry_in: Duration) {
        let longest = match self.notifications {
            Notifications::Subscribed(_) => MAX_RETRY_WOKEN,
            Notifications::Unwanted | Notifications::Never => MAX_RETRY,
        };
        let nap = self.pause.next(longest).min(retry_in + Duration::from_millis(1));
        let clock = self.engine.clock;
        let until = clock.now().after(nap);
        match &mut self.notifications {
            Notifications::Subscribed(subscription) => {
                match tokio::time::timeout(nap, subscription.notices.recv()).await {
                    Err(_) => return,
                    Ok(None) => {
                        self.notifications = Notifications::Unwanted;
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
    pub(super) fn subscribe(&mut self) {
        if matches!(self.notifications, Notifications::Unwanted) {
            let scheme = self.engine.scheme.notifications();
            let subscription = scheme.map(|scheme| scheme.subscribe(&self.key, &self.engine.manager_id));
            self.notifications = subscription.map_or(Notifications::Never, Notifications::Subscribed);
        }
    }
}
