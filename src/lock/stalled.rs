//! The agenda of askers: when to look whether one that asks the server is still polled, while others wait behind it.
//!
//! It holds moments and weak references, and is never asked whether a lock is there.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::base::lease::Moment;
use crate::lock::cell::Cell;
use crate::lock::effects;
use crate::lock::few::Few;
use crate::lock::hold::{Due, Hold};

#[derive(Debug, Default)]
pub(crate) struct StalledLeaders {
    deadlines: Mutex<PollDeadlines>,
    /// There is something earlier than is known.
    sooner: Notify,
}

#[derive(Debug, Default)]
struct PollDeadlines {
    cells: BTreeMap<(Moment, u64), Weak<Cell<Hold>>>,
    last: u64,
}

impl StalledLeaders {
    /// Looks at a cell at this moment, or soon after.
    pub(super) fn look_at(&self, cell: &Arc<Cell<Hold>>, at: Moment) {
        let mut agenda = self.deadlines.lock();
        let is_first = agenda.cells.first_key_value().is_none_or(|((first, _), _)| at < *first);
        agenda.last += 1;
        let place = (at, agenda.last);
        agenda.cells.insert(place, Arc::downgrade(cell));
        drop(agenda);
        if is_first {
            self.sooner.notify_waiters();
        }
    }

    fn take_due(&self, now: Moment) -> (Vec<Arc<Cell<Hold>>>, Moment) {
        let mut agenda = self.deadlines.lock();
        let mut due = Vec::new();
        while let Some(first) = agenda.cells.first_entry()
            && first.key().0 <= now
        {
            due.extend(first.remove().upgrade());
        }
        (due, agenda.cells.first_key_value().map_or(Moment::NEVER, |((first, _), _)| *first))
    }

    /// Looks at what is due by now. Answers when to look again, and for which holds something is due earlier.
    pub(crate) fn look(&self, now: Moment) -> (Moment, Due) {
        let (cells, next) = self.take_due(now);
        let mut due = Few::None;
        cells.iter().for_each(|cell| cell.look_for_stalled(now).0.each(|hold| due.push(hold)));
        (next, effects::Due(due))
    }

    /// Returns when there is something earlier than a look has found. To be enabled before that look.
    pub(crate) fn sooner(&self) -> Notified<'_> {
        self.sooner.notified()
    }

    #[cfg(all(test, feature = "_testing"))]
    pub(crate) fn len(&self) -> usize {
        self.deadlines.lock().cells.len()
    }
}
