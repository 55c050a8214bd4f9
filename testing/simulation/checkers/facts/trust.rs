//! Validity that the answers about a hold give by the local clock.

use super::*;

/// Sum of the answers so far. A server that has lost nothing never reports an earlier deadline than before. A server
/// that does has lost its grants. Then only that answer counts, from the time of its request.
#[derive(Default)]
pub struct Trust {
    until: Micros,
    /// Send time of the newest answered request.
    sent: Micros,
    /// Time of the last reported deadline, and the latest deadline so far, both by the server's clock.
    named: Option<(u64, u64)>,
}

impl Trust {
    pub fn until(&self) -> Micros {
        self.until
    }

    /// Returns true if the hold is over. A later answer brings nothing back.
    pub fn is_over(&self, now: Micros) -> bool {
        self.until > 0 && self.until <= now
    }

    pub fn on_notification(&mut self, until: Micros) {
        self.until = self.until.max(until);
    }

    /// Notes an answer at `now`, which alone is valid until `until`.
    pub fn is_answered(&mut self, now: Micros, request: &RequestFacts, remaining_ms: u64, until: Micros) {
        let named = request.server_us.map(|server_us| (server_us, server_us / 1000 * 1000 + remaining_ms * MS));
        // Whenever the server read its clock, less was left than this process counts on.
        let leaves_less = self.until > now + remaining_ms * MS && self.sent <= request.sent;
        if leaves_less || self.is_unknown_to(named) {
            self.until = until;
            self.named = named;
        } else {
            self.until = self.until.max(until);
            let (earlier, named) = (self.named.unwrap_or_default(), named.unwrap_or_default());
            self.named = Some((earlier.0.max(named.0), earlier.1.max(named.1)));
        }
        self.sent = self.sent.max(request.sent);
    }

    /// Returns true if a server that reports this deadline does not know the latest earlier one.
    fn is_unknown_to(&self, named: Option<(u64, u64)>) -> bool {
        let Some(((before_us, latest_us), (server_us, until_us))) = self.named.zip(named) else {
            return false;
        };
        server_us >= before_us && until_us < latest_us
    }
}
