//! Notes on holds.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::runtime::Handle;

use crate::base::error::{Error, LossReason, Result};
use crate::base::process;
use crate::engine::{Engine, Held, in_runtime};
use crate::lock::hold::Hold;
use crate::store::{Note, Noted};

/// Length of the longest note, in bytes.
pub(crate) const MAX_NOTE_BYTES: usize = 4096;

impl Engine {
    /// Refuses a note that is too long, and each note on a lock that has no room for one.
    pub(crate) fn check_note(&self, text: &str) -> Result<()> {
        let reason = if text.len() > MAX_NOTE_BYTES {
            format!("it has {} bytes, and at most {MAX_NOTE_BYTES} are allowed", text.len())
        } else if self.scheme.notes().is_none() {
            "the locks of this manager have no room for notes: use `RedisManager` or `MemoryManager`".to_owned()
        } else if self.options.timestamp_keys.is_some() {
            "the locks of `timestamp_keys` have no room for notes: their other clients decide how long a key lives"
                .to_owned()
        } else {
            return Ok(());
        };
        Err(Error::invalid("note", reason))
    }

    /// Begins a note. Notes of one manager never have equal numbers, so the order of their numbers is that of the calls,
    /// across a conversion too.
    fn begin_note(&self, hold: &Hold, text: &str) -> Note {
        hold.set_noted(!text.is_empty());
        Note { number: self.next_note.fetch_add(1, Ordering::Relaxed), text: text.into() }
    }

    /// Sends a note, and repeats it until the server has answered.
    async fn send_note(&self, hold: &Hold, note: Note) -> Result<Noted> {
        let scheme = self.scheme.notes().expect("checked before");
        let answer = self.answered(hold.key(), || scheme.set_note(hold.key(), hold.id(), &note)).await?;
        Ok(answer.value)
    }

    /// Removes the note of the last guard if the hold has gone to a guard without a note. Does not wait for the server.
    #[inline]
    pub(crate) fn drop_old_note(self: &Arc<Self>, hold: &Arc<Hold>) {
        if hold.is_noted() {
            self.drop_note(hold);
        }
    }

    #[cold]
    fn drop_note(self: &Arc<Self>, hold: &Arc<Hold>) {
        // While others share the hold, the note may be one of theirs.
        let Ok(runtime) = Handle::try_current() else { return };
        if hold.usage().0 == 1 {
            // Begun here and not in the task, so that a note which the guard sets next has a higher number.
            let note = self.begin_note(hold, "");
            let (engine, hold) = (Arc::clone(self), Arc::clone(hold));
            drop(process::spawn_on(&runtime, async move { engine.send_note(&hold, note).await }));
        }
    }
}

impl Held {
    /// Sets the note of the hold, for all guards that share it.
    pub(crate) async fn set_note(&self, text: &str) -> Result<()> {
        let (engine, hold) = (self.engine(), self.hold());
        self.check_process()?;
        in_runtime()?;
        engine.check_note(text)?;
        let note = engine.begin_note(hold, text);
        tokio::select! {
            biased;
            reason = self.lost() => Err(hold.key().loss(reason)),
            noted = engine.send_note(hold, note) => match noted? {
                Noted::Noted => Ok(()),
                // The answer to the next renewal shows the reason.
                Noted::None => Err(hold.key().loss(LossReason::Gone)),
            },
        }
    }
}
