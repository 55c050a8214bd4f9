//! Until when the answers about a hold let it be trusted by the local clock.

use super::{MS, Micros, RequestFacts};

/// What the answers so far have said. A server that has lost nothing never names an earlier deadline than before. One that does has
/// lost what it had granted, and then only that answer counts, from when it was asked for.
#[derive(Default)]
pub(in crate::testing::simulation::checkers) struct Trust {
    until: Micros,
    /// The newest request that was answered.
    sent: Micros,
    /// When a server last named a deadline, and the latest that it has named, both by its own clock.
    named: Option<(u64, u64)>,
}

impl Trust {
    pub(in crate::testing::simulation::checkers) fn until(&self) -> Micros {
        self.until
    }

    /// An answer that comes when the hold is over brings nothing back.
    pub(in crate::testing::simulation::checkers) fn is_over(&self, now: Micros) -> bool {
        self.until > 0 && self.until <= now
    }

    pub(in crate::testing::simulation::checkers) fn is_noticed(&mut self, until: Micros) {
        self.until = self.until.max(until);
    }

    /// A request was answered at `now`, which alone is good until `until`.
    pub(in crate::testing::simulation::checkers) fn is_answered(
        &mut self,
        now: Micros,
        request: &RequestFacts,
        remaining_ms: u64,
        until: Micros,
    ) {
        let named = request.server_us.map(|server_us| (server_us, server_us / 1000 * 1000 + remaining_ms * MS));
        // Whenever the server read its clock, it had less than this process counts on.
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

    /// Whether a server that names this deadline knows nothing of the latest of before.
    fn is_unknown_to(&self, named: Option<(u64, u64)>) -> bool {
        let Some(((before_us, latest_us), (server_us, until_us))) = self.named.zip(named) else {
            return false;
        };
        server_us >= before_us && until_us < latest_us
    }
}
