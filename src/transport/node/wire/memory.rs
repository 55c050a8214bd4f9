//! Memory of the answers of one server, on all connections to it: a hostile one that fills several at one time costs no more. It is
//! reserved as an answer announces itself, and given back when its caller has it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::frames::too_much;

/// Most memory of the answers that are being read from one server at one time.
pub(super) const MAX_TOGETHER: usize = 22 << 20;
/// Answers that take less are not counted: they are nearly all, and few bytes for each connection.
const SMALL: usize = 64 << 10;

/// Memory that is reserved for the answers of one server.
#[derive(Default, Debug)]
pub(in crate::transport::node) struct AnswerMemory {
    reserved: AtomicUsize,
}

/// Part of it that one answer has, until this is dropped.
pub(super) struct Reservation {
    of: Arc<AnswerMemory>,
    bytes: usize,
}

impl Reservation {
    pub(super) fn none(of: Arc<AnswerMemory>) -> Self {
        Self { of, bytes: 0 }
    }

    /// Hands over what is reserved, with an answer that is there to its end. `None` if that is nothing.
    pub(super) fn hand_over(&mut self) -> Option<Self> {
        let bytes = std::mem::take(&mut self.bytes);
        (bytes > 0).then(|| Self { of: Arc::clone(&self.of), bytes })
    }

    /// Reserves what the answer takes that is being read now, in place of what was reserved before.
    pub(super) fn change(&mut self, bytes: usize) -> io::Result<()> {
        let bytes = if bytes > SMALL { bytes } else { 0 };
        if bytes == self.bytes {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.bytes, bytes);
        // Added first: of two that come at once at least one finds the other.
        let added = self.of.reserved.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.of.reserved.fetch_sub(before, Ordering::Relaxed);
        if added - before > MAX_TOGETHER {
            return Err(too_much("the memory of the answers on all connections", MAX_TOGETHER));
        }
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.of.reserved.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_to_one_server_have_their_memory_together() {
        let memory = Arc::<AnswerMemory>::default();
        let (mut first, mut second) = (Reservation::none(Arc::clone(&memory)), Reservation::none(Arc::clone(&memory)));
        first.change(MAX_TOGETHER / 2).expect("there is room");
        second.change(MAX_TOGETHER / 2).expect("there is room");
        first.change(MAX_TOGETHER / 2 + 1).expect_err("the other one has the rest");
        first.change(SMALL).expect("a small one is not counted");
        second.change(MAX_TOGETHER).expect("the other one has none");
        let answer = second.hand_over().expect("much is reserved");
        second.change(MAX_TOGETHER / 2).expect_err("the answer has the memory still");
        drop(answer);
        drop((first, second));
        assert_eq!(memory.reserved.load(Ordering::Relaxed), 0, "all is given back");
    }
}
