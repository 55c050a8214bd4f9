//! Log lines about long waits. Such a line names the holder, and comes when the wait is over.

use super::local::LocalWaiter;
use crate::base::events::{self, LONG_WAIT, Waited};
use crate::base::lease::Moment;
use crate::lock::side::LastRefusal;
use crate::store::Mode;

/// End of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaitEnds {
    Granted,
    InVain,
}

impl LocalWaiter {
    /// Returns the label of the holder that has kept this acquisition out for long, or `None` if there is nothing to log.
    /// `refusal` is the last one of the server. Without one, a guard of this process has handed its hold on to a writer.
    pub(super) fn kept_out_by(&self, refusal: Option<&LastRefusal>, now: Moment) -> Option<KeptOutBy> {
        if now.since(self.began) < LONG_WAIT || !events::long_waits_are_told() {
            return None;
        }
        match refusal {
            Some(refusal) => Some(KeptOutBy(self.engine.denial_by_server(refusal, now).label())),
            None => (self.mode == Mode::Write).then(|| KeptOutBy(Some(self.engine.label.clone()))),
        }
    }

    /// Logs a long wait.
    #[cold]
    pub(super) fn tell_of_wait(&self, KeptOutBy(holder): &KeptOutBy, ends: WaitEnds) {
        let now = self.engine.now();
        let Some(left_out) = self.engine.wait_lines.admits(now) else {
            return;
        };
        let (lock, waited) = (self.key.name(), now.since(self.began));
        let wait = Waited { lock, mode: self.mode, waited, holder: holder.as_deref(), left_out };
        match ends {
            WaitEnds::Granted => events::log_wait(&wait),
            WaitEnds::InVain => events::waited_in_vain(&wait),
        }
    }
}

/// Label of the holder that has kept an acquisition out, if it is known.
#[derive(Debug)]
pub(super) struct KeptOutBy(Option<String>);
