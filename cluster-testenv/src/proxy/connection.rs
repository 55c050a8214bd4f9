//! Client's connection, paired with the one that the proxy made to the server for it.

use std::{
    io::{self, Read},
    net::TcpStream,
    time::{Duration, Instant},
};

use rustix::net::sockopt::set_socket_linger;

use super::{
    flow::{End, Flow},
    matcher::Request,
    pending::{Awaited, PendingReplies},
    rules::{Action, RuleId, Rules, Stage},
    wire,
};

const READ_BYTES: usize = 64 << 10;

/// End of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    Client,
    Server,
}

/// Fate of a connection after a write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Lives,
    /// The end has reached both peers.
    Ended,
    Reset,
}

/// Connection with both its halves, and the bytes on their way between them.
pub struct Connection {
    client: TcpStream,
    /// `None` if the connection began in a black hole.
    server: Option<TcpStream>,
    /// Bytes to the server.
    up: Flow,
    /// Bytes to the client.
    down: Flow,
    pending: PendingReplies,
    /// True after the connection was in a black hole. No bytes pass any more.
    is_lost: bool,
}

impl Connection {
    pub fn new(client: TcpStream, server: Option<TcpStream>) -> Self {
        let is_lost = server.is_none();
        let (up, down, pending) = Default::default();
        Self { client, server, up, down, pending, is_lost }
    }

    pub fn stream(&self, peer: Peer) -> Option<&TcpStream> {
        match peer {
            Peer::Client => Some(&self.client),
            Peer::Server => self.server.as_ref(),
        }
    }

    /// Returns whether to wait until the peer has sent bytes, and whether to wait until the peer accepts bytes.
    pub fn interest(&self, peer: Peer, now: Instant, is_frozen: bool) -> (bool, bool) {
        let (from, to) = match peer {
            Peer::Client => (&self.up, &self.down),
            Peer::Server => (&self.down, &self.up),
        };
        (from.end.is_none(), !is_frozen && to.is_writable(now))
    }

    /// Returns the time from which bytes can be written without another event.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        let dues = [self.up.next_due(), self.down.next_due()];
        dues.into_iter().flatten().filter(|due| *due > now).min()
    }

    /// Reads the peer's bytes and applies the rules to them.
    pub fn receive(&mut self, peer: Peer, rules: &mut Rules, delay: Duration) {
        let Some(mut stream) = self.stream(peer) else { return };
        let mut bytes = [0; READ_BYTES];
        let read = stream.read(&mut bytes);
        let due = Instant::now() + delay;
        let flow = if peer == Peer::Client { &mut self.up } else { &mut self.down };
        match read {
            _ if flow.end.is_some() => {}
            Ok(0) => flow.push_end(End::Closed, due),
            Ok(count) if !self.is_lost => {
                flow.unparsed.extend_from_slice(&bytes[..count]);
                match peer {
                    Peer::Client => self.take_requests(rules, due),
                    Peer::Server => self.take_replies(rules, due),
                }
            }
            Ok(_) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => flow.push_end(End::Reset, due),
        }
    }

    /// Writes the bytes that are due.
    pub fn write(&mut self, now: Instant) -> Fate {
        let Some(server) = &self.server else { return Fate::Lives };
        // A server may drop the commands of a client that has disconnected, but the server must apply a watched
        // command.
        let may_end = !self.pending.is_watched() || self.down.end.is_some();
        let ends = [self.up.write(server, now, may_end), self.down.write(&self.client, now, true)];
        if ends.contains(&Some(End::Reset)) {
            Fate::Reset
        } else if self.up.is_over() && self.down.is_over() {
            Fate::Ended
        } else {
            Fate::Lives
        }
    }

    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Drops all bytes from now on.
    pub fn lose(&mut self) {
        self.is_lost = true;
        self.up.clear();
        self.down.clear();
    }

    /// Returns true if one of the peers of a lost connection has gone.
    pub fn is_abandoned(&self) -> bool {
        self.up.end.is_some() || self.down.end.is_some()
    }

    /// Resets the connection to both peers.
    pub fn reset(self) {
        for stream in [Some(self.client), self.server].into_iter().flatten() {
            // This fails only for a socket that is reset already.
            set_socket_linger(&stream, Some(Duration::ZERO)).unwrap_or(());
        }
    }

    /// Returns true if a rule holds bytes of this connection, or will hold bytes.
    pub fn has(&self, id: RuleId) -> bool {
        self.up.has_gate(id) || self.down.has_gate(id) || self.pending.has(id)
    }

    /// Forwards the bytes that the rule holds or would hold.
    pub fn release(&mut self, id: RuleId) {
        self.up.open(id);
        self.down.open(id);
        self.pending.forget(id);
    }

    /// Drops the reply that the rule holds or would hold, and forwards the next one.
    pub fn drop_reply(&mut self, id: RuleId) {
        self.down.remove(id);
        self.pending.change(id, Action::DropReply);
    }

    /// Number of scripts that have not been forwarded to the server yet.
    pub fn scripts_waiting(&self) -> usize {
        self.up.scripts_waiting()
    }

    fn take_requests(&mut self, rules: &mut Rules, due: Instant) {
        let mut bytes = std::mem::take(&mut self.up.unparsed);
        let mut at = 0;
        while !self.up.is_raw && at < bytes.len() {
            match wire::request_length(&bytes[at..]) {
                Ok(None) => break,
                Ok(Some(length)) => {
                    self.take_request(&bytes[at..at + length], rules, due);
                    at += length;
                }
                Err(wire::NotResp) => {
                    self.up.is_raw = true;
                    self.pending.expect(Awaited::Stream, None);
                }
            }
        }
        if self.up.is_raw {
            self.up.push(&bytes[at..], due, None);
        } else {
            bytes.drain(..at);
            self.up.unparsed = bytes;
        }
    }

    fn take_request(&mut self, bytes: &[u8], rules: &mut Rules, due: Instant) {
        let args = wire::request_args(bytes);
        if args.is_empty() {
            return self.up.push(bytes, due, None);
        }
        let mut request = Request::new(args);
        let replacement = rules.replacement(&request);
        if let Some(command) = &replacement {
            rules.note(request);
            request = Request::new(wire::request_args(command));
        }
        let bytes = replacement.as_deref().unwrap_or(bytes);
        let awaited = Awaited::by(&request);
        let is_script = request.is_script();
        let rule = rules.see(request);
        let gate = rule.as_ref().filter(|rule| rule.action == Action::HoldRequest).map(|rule| rule.id);
        let mut pass = |gate| {
            if is_script {
                self.up.push_script(bytes, rules.limit.turn(due), gate);
            } else {
                self.up.push(bytes, due, gate);
            }
        };
        pass(gate);
        match rule {
            Some(rule) if rule.action == Action::Duplicate => {
                pass(None);
                self.pending.expect(awaited, None);
                self.pending.expect(awaited, Some(rule));
            }
            rule => self.pending.expect(awaited, rule),
        }
        self.up.is_raw = awaited == Awaited::Stream;
    }

    fn take_replies(&mut self, rules: &mut Rules, due: Instant) {
        let mut bytes = std::mem::take(&mut self.down.unparsed);
        let mut at = 0;
        while at < bytes.len() && self.down.end.is_none() {
            self.down.is_raw |= self.pending.is_stream();
            if self.down.is_raw {
                return self.down.push(&bytes[at..], due, None);
            }
            match wire::frame_length(&bytes[at..]) {
                Ok(None) => break,
                Ok(Some(length)) => {
                    if !rules.messages.takes(&bytes[at..at + length]) {
                        self.take_reply(&bytes[at..at + length], due);
                    }
                    at += length;
                }
                Err(wire::NotResp) => self.down.is_raw = true,
            }
        }
        bytes.drain(..at);
        self.down.unparsed = bytes;
    }

    fn take_reply(&mut self, bytes: &[u8], due: Instant) {
        let rule = self.pending.answer(bytes);
        match rule.as_ref().map(|rule| rule.action) {
            None | Some(Action::HoldRequest) => self.down.push(bytes, due, None),
            Some(Action::HoldReply) => self.down.push(bytes, due, rule.as_ref().map(|rule| rule.id)),
            Some(Action::Duplicate | Action::DropReply) => {}
            Some(Action::CutAfterApply) => self.down.push_end(End::Reset, due),
        }
        if let Some(rule) = rule {
            rule.progress.reach(Stage::Applied);
        }
    }
}
