//! An acquisition that waits long: who is in its way is asked, once, and told when the wait is over.

use std::sync::{Arc, OnceLock};

use super::Acquisition;
use crate::base::events::{self, LONG_WAIT, Waited};
use crate::base::lease::Moment;
use crate::base::process;

/// How a wait ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaitEnds {
    Granted,
    InVain,
}

impl Acquisition<'_> {
    /// The server has said no, again.
    pub(super) fn note_wait(&mut self, now: Moment) {
        self.warn_of_self(now);
        if self.is_long(now) && self.holder.is_none() {
            let holder = Arc::clone(self.holder.insert(Arc::default()));
            let (engine, key) = (Arc::clone(self.engine), Arc::clone(&self.key));
            // Not awaited here: the grant is not to come later for it. Nothing is left on the server.
            drop(process::spawn(async move {
                if let Some(label) = engine.holder_of(&key).await {
                    // Only this one writes.
                    holder.get_or_init(|| label);
                }
            }));
        }
    }

    /// It waited for a guard of this process, which handed its hold on.
    pub(super) fn note_kept_out(&mut self, now: Moment) {
        if self.is_long(now) {
            let label = self.engine.label.clone();
            self.holder = Some(Arc::new(OnceLock::from(label)));
        }
    }

    fn is_long(&self, now: Moment) -> bool {
        now.since(self.began) >= LONG_WAIT && events::long_waits_are_told()
    }

    /// If it was long.
    #[cold]
    pub(super) fn tell_of_wait(&mut self, ends: WaitEnds) {
        let Some(holder) = self.holder.take() else {
            return;
        };
        let now = self.engine.clock.now();
        let Some(left_out) = self.engine.wait_lines.admits(now) else {
            return;
        };
        let (lock, waited) = (self.key.name(), now.since(self.began));
        let wait = Waited { lock, mode: self.mode, waited, holder: holder.get().map(String::as_str), left_out };
        match ends {
            WaitEnds::Granted => events::log_wait(&wait),
            WaitEnds::InVain => events::waited_in_vain(&wait),
        }
    }
}
