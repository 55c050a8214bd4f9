//! Direction of a connection, with its bytes in order. Each chunk has a time, and some chunks wait behind a gate.

use std::{
    collections::VecDeque,
    io::{self, Write},
    net::{Shutdown, TcpStream},
    time::Instant,
};

use super::rules::RuleId;

/// End of the sender's stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    Closed,
    Reset,
}

/// Bytes on their way to one of the two peers.
#[derive(Default)]
pub struct Flow {
    chunks: VecDeque<Chunk>,
    /// Number of scripts in `chunks`.
    scripts_waiting: usize,
    /// Received bytes that are not a whole request or reply yet.
    pub unparsed: Vec<u8>,
    /// True if the proxy forwards the bytes without parsing them.
    pub is_raw: bool,
    /// End that the sender has announced, which is delivered after all chunks.
    pub end: Option<End>,
    /// True after the receiver has got the end, or has disconnected.
    is_over: bool,
}

struct Chunk {
    bytes: Vec<u8>,
    sent: usize,
    due: Instant,
    gate: Option<RuleId>,
    /// Number of scripts among its requests.
    scripts: usize,
}

impl Chunk {
    fn is_free(&self, now: Instant) -> bool {
        self.gate.is_none() && self.due <= now
    }
}

impl Flow {
    /// Appends the bytes.
    pub fn push(&mut self, bytes: &[u8], due: Instant, gate: Option<RuleId>) {
        if self.is_over || bytes.is_empty() {
            return;
        }
        match self.chunks.back_mut() {
            Some(last) if last.due == due && last.gate.is_none() && gate.is_none() => {
                last.bytes.extend_from_slice(bytes)
            }
            _ => self.chunks.push_back(Chunk { bytes: bytes.to_vec(), sent: 0, due, gate, scripts: 0 }),
        }
    }

    /// Appends the bytes of a script.
    pub fn push_script(&mut self, bytes: &[u8], due: Instant, gate: Option<RuleId>) {
        self.push(bytes, due, gate);
        if let Some(chunk) = self.chunks.back_mut() {
            chunk.scripts += 1;
            self.scripts_waiting += 1;
        }
    }

    /// Number of scripts that have not been forwarded yet.
    pub fn scripts_waiting(&self) -> usize {
        self.scripts_waiting
    }

    /// Appends the end of the stream.
    pub fn push_end(&mut self, end: End, due: Instant) {
        let rest = std::mem::take(&mut self.unparsed);
        self.push(&rest, due, None);
        self.end.get_or_insert(end);
    }

    pub fn open(&mut self, gate: RuleId) {
        self.chunks.iter_mut().filter(|chunk| chunk.gate == Some(gate)).for_each(|chunk| chunk.gate = None);
    }

    /// Removes the chunks behind a gate.
    pub fn remove(&mut self, gate: RuleId) {
        self.chunks.retain(|chunk| chunk.gate != Some(gate));
        self.scripts_waiting = self.chunks.iter().map(|chunk| chunk.scripts).sum();
    }

    pub fn has_gate(&self, gate: RuleId) -> bool {
        self.chunks.iter().any(|chunk| chunk.gate == Some(gate))
    }

    /// Drops all bytes on their way.
    pub fn clear(&mut self) {
        self.chunks.clear();
        self.scripts_waiting = 0;
        self.unparsed.clear();
    }

    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns true if a chunk can be written as soon as the receiver accepts bytes.
    pub fn is_writable(&self, now: Instant) -> bool {
        self.chunks.front().is_some_and(|chunk| chunk.is_free(now))
    }

    /// Returns the time from which the next bytes may be written, if they wait only for this time.
    pub fn next_due(&self) -> Option<Instant> {
        self.chunks.front().filter(|chunk| chunk.gate.is_none()).map(|chunk| chunk.due)
    }

    /// Writes the chunks that are due, and the end if `may_end`. Returns [`End::Reset`] when the connection has to be
    /// reset.
    pub fn write(&mut self, mut to: &TcpStream, now: Instant, may_end: bool) -> Option<End> {
        while let Some(chunk) = self.chunks.front_mut().filter(|chunk| chunk.is_free(now)) {
            match to.write(&chunk.bytes[chunk.sent..]) {
                Ok(sent) => chunk.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(_) => {
                    self.clear();
                    self.is_over = true;
                    return None;
                }
            }
            if chunk.sent == chunk.bytes.len() {
                self.scripts_waiting -= chunk.scripts;
                self.chunks.pop_front();
            }
        }
        if !self.chunks.is_empty() || !may_end || self.is_over {
            return None;
        }
        let end = self.end?;
        self.is_over = true;
        if end == End::Closed {
            // This fails if the receiver has disconnected, and then it needs no end.
            drop(to.shutdown(Shutdown::Write));
        }
        Some(end)
    }
}
