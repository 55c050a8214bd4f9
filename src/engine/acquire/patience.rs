//! Log lines about long waits. Such a line names the holder, and comes when the wait is over.

use super::Acquisition;
use crate::base::events::{self, LONG_WAIT, Waited};
use crate::base::lease::Moment;

/// End of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaitEnds {
    Granted,
    InVain,
}

impl Acquisition {
    /// Notes a further refusal of the server.
    pub(super) fn note_wait(&mut self) {
        let now = self.engine.now();
        self.waiter.warn_of_self(now);
        if self.is_long(now) && self.holder.is_none() {
            // The newest refusal names the holder.
            self.holder = Some(Box::new(self.denial().label()));
        }
    }

    /// Notes that the acquisition has waited for a guard of this process, which has handed its hold on.
    pub(super) fn note_kept_out(&mut self, now: Moment) {
        if self.is_long(now) {
            self.holder = Some(Box::new(Some(self.engine.label.clone())));
        }
    }

    fn is_long(&self, now: Moment) -> bool {
        now.since(self.began) >= LONG_WAIT && events::long_waits_are_told()
    }

    /// Logs the wait, if it was long.
    #[cold]
    pub(super) fn tell_of_wait(&mut self, ends: WaitEnds) {
        let Some(holder) = self.holder.take() else {
            return;
        };
        let now = self.engine.now();
        let Some(left_out) = self.engine.wait_lines.admits(now) else {
            return;
        };
        let (lock, waited) = (self.key.name(), now.since(self.began));
        let wait = Waited { lock, mode: self.mode, waited, holder: (*holder).as_deref(), left_out };
        match ends {
            WaitEnds::Granted => events::log_wait(&wait),
            WaitEnds::InVain => events::waited_in_vain(&wait),
        }
    }
}
