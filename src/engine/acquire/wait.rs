//! An acquisition waits between two attempts: for a notification of the server, or for a while.

use std::time::Duration;

use super::{Acquisition, grace};
use crate::durability::Durability;
use crate::lease::Moment;
use crate::lock::side::Notices;
use crate::scheme::{AcquisitionId, Answered, Granted, Notice};

/// First and longest pause between two attempts at a lock that others hold, where there is no queue.
const RETRY_FIRST: Duration = Duration::from_millis(4);
const MAX_RETRY: Duration = Duration::from_millis(128);
/// The same where releases are published: the pause is only the safety net.
const MAX_RETRY_WOKEN: Duration = Duration::from_secs(1);

/// The pauses of one acquisition where there is no queue.
pub(super) struct Pause(Duration);

impl Pause {
    pub(super) fn new() -> Self {
        Self(RETRY_FIRST)
    }

    fn next(&mut self, longest: Duration) -> Duration {
        let jittered = self.0.mul_f64(0.5 + fastrand::f64());
        // Half as long again with the most jitter, which is then the longest.
        self.0 = (self.0 * 2).min(longest * 2 / 3);
        jittered
    }
}

/// What those say who have a lock and may not be inside.
pub(super) enum Word {
    Granted(Answered<Granted>),
    /// It may have been granted meanwhile.
    AskAgain,
    /// One of them is inside.
    Refused,
    /// None has said anything that was heard.
    Silence,
}

impl Acquisition<'_> {
    /// Waits in the server's queue until it is time to ask again, or until a notification says that there is no need to.
    pub(super) async fn notice(&mut self, id: &AcquisitionId, retry_in: Duration) -> Option<Answered<Granted>> {
        // A little after the deadline that may free it, or the attempt would come just too early.
        let nap = self.heartbeat().min(retry_in + Duration::from_millis(1));
        let clock = self.engine.clock;
        let asks_again = clock.now().after(nap);
        let answered_at = self.answered_at;
        self.subscribe();
        let Notices::Subscribed(subscription) = &mut self.notices else {
            clock.sleep_until(asks_again).await;
            return None;
        };
        loop {
            tokio::select! {
                biased;
                notice = subscription.notices.recv() => match notice {
                    // Granted before it was queued again, it is over.
                    Some(Notice::Granted { id: granted, at, answer }) if *granted == *id.as_str() && at >= answered_at => {
                        // What replicas have to know of counts when the server has said so.
                        return (self.engine.options().durability == Durability::Primary).then_some(answer);
                    }
                    // Another one's of this process.
                    Some(Notice::Granted { id: granted, .. }) if *granted != *id.as_str() => {}
                    // Of others, who try.
                    Some(Notice::Used { .. } | Notice::Called { .. }) => {}
                    Some(Notice::Granted { .. } | Notice::AskAgain) => return None,
                    None => break,
                },
                () = clock.sleep_until(asks_again) => return None,
            }
        }
        // Whoever brought them has ended: the runtime of the one that waited before.
        self.notices = Notices::Unwanted;
        clock.sleep_until(asks_again).await;
        None
    }

    /// Waits for the word of those who have the lock and may not be inside.
    pub(super) async fn word(&mut self, id: &AcquisitionId, until: Moment) -> Word {
        let answered_at = self.answered_at;
        self.subscribe();
        let Notices::Subscribed(subscription) = &mut self.notices else {
            return Word::Silence;
        };
        let (clock, grace) = (self.engine.clock, grace(self.engine));
        loop {
            let restates = clock.now().after(grace / 2);
            tokio::select! {
                biased;
                notice = subscription.notices.recv() => match notice {
                    Some(Notice::Granted { id: granted, at, answer }) if *granted == *id.as_str() && at >= answered_at => {
                        // What replicas have to know of counts when the server has said so.
                        let counts = self.engine.options().durability == Durability::Primary;
                        return if counts { Word::Granted(answer) } else { Word::AskAgain };
                    }
                    Some(Notice::Used { id: refused }) if *refused == *id.as_str() => return Word::Refused,
                    // What was said before the subscription stood has woken nobody.
                    Some(Notice::AskAgain) => return Word::AskAgain,
                    Some(_) => {}
                    None => return Word::Silence,
                },
                () = clock.sleep_until(until) => return Word::Silence,
                () = clock.timer(restates) => {
                    if let Some(entry) = &self.entry {
                        entry.seen(clock.now());
                    }
                }
            }
        }
    }

    /// Waits where there is no queue.
    pub(super) async fn pause(&mut self, pause: &mut Pause, retry_in: Duration) {
        self.subscribe();
        let longest = match self.notices {
            Notices::Subscribed(_) => MAX_RETRY_WOKEN,
            Notices::Unwanted | Notices::Never => MAX_RETRY,
        };
        let nap = pause.next(longest).min(retry_in + Duration::from_millis(1));
        match &mut self.notices {
            Notices::Subscribed(subscription) => {
                // All that is there says the same.
                if let Ok(None) = tokio::time::timeout(nap, subscription.notices.recv()).await {
                    self.notices = Notices::Unwanted;
                    return tokio::time::sleep(nap).await;
                }
                while subscription.notices.try_recv().is_ok() {}
            }
            Notices::Unwanted | Notices::Never => tokio::time::sleep(nap).await,
        }
    }

    /// Whoever waits wants notifications, if there are any.
    fn subscribe(&mut self) {
        if matches!(self.notices, Notices::Unwanted) {
            let subscription = self.engine.scheme.subscribe(&self.key, &self.engine.manager_id);
            self.notices = subscription.map_or(Notices::Never, Notices::Subscribed);
        }
    }
}
