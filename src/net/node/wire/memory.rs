//! Memory for the answers of one server, counted over all connections to that server. So a hostile server cannot use
//! more memory of this process by sending on several connections. Memory is reserved for an answer as soon as the
//! answer announces its size. The reservation ends when the caller has taken the answer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::frames::too_much;

/// Limit for the memory of all answers from one server that are being read or wait for their callers, in bytes.
pub(super) const MAX_TOGETHER: usize = 22 << 20;
/// Largest memory of an answer that needs no reservation, in bytes. Nearly all answers are smaller, and cost each
/// connection little memory.
const SMALL: usize = 64 << 10;

/// Number of bytes that are reserved for the answers of one server.
#[derive(Default, Debug)]
pub(in crate::net::node) struct AnswerMemory {
    reserved: AtomicUsize,
}

/// Memory reservation for one answer. The reservation ends when this value is dropped.
pub(super) struct Reservation {
    of: Arc<AnswerMemory>,
    bytes: usize,
}

impl Reservation {
    pub(super) fn none(of: Arc<AnswerMemory>) -> Self {
        Self { of, bytes: 0 }
    }

    /// Moves the reservation to the answer, which is now complete. Returns `None` if nothing is reserved.
    pub(super) fn hand_over(&mut self) -> Option<Self> {
        let bytes = std::mem::take(&mut self.bytes);
        (bytes > 0).then(|| Self { of: Arc::clone(&self.of), bytes })
    }

    /// Reserves `bytes` for the answer that is being read. Replaces the earlier reservation for this answer.
    pub(super) fn change(&mut self, bytes: usize) -> io::Result<()> {
        let bytes = if bytes > SMALL { bytes } else { 0 };
        if bytes == self.bytes {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.bytes, bytes);
        // The new size is added before the old size is subtracted. So if two connections reserve memory at the same
        // time, at least one of them sees the reservation of the other.
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
