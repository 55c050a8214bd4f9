//! Trust in a hold that a notification of a grant gives.

use super::{Facts, MS};
use crate::testing::simulation::history::{Id, Micros, Op, Process};

pub(super) struct Notice {
    pub(super) process: Process,
    pub(super) at: Micros,
    /// Time at which the request behind the clock sample was sent, and the remaining lease from then on.
    pub(super) sent: Micros,
    pub(super) left: Micros,
}

impl Facts<'_> {
    /// Returns each notice that may have begun a hold at `begun`: its time, and until when the hold was valid by it.
    pub(super) fn noticed_by(&self, id: Id, begun: Micros) -> impl Iterator<Item = (Micros, Micros)> {
        let notices = self.noticed.get(&id).into_iter().flatten().filter(move |notice| notice.at <= begun);
        notices.map(move |notice| {
            // The server's clock may have jumped since the clock sample. A grant by notice gives no more than a claim,
            // counted from the moment when the process reads it.
            let claim = self.claim(id, notice.at).unwrap_or(notice.left);
            let left = notice.left.min(begun - notice.sent + claim);
            (notice.at, notice.sent + self.process(notice.process).usable(left))
        })
    }

    /// Returns the claim of the last acquisition that was requested until `now`.
    fn claim(&self, id: Id, now: Micros) -> Option<Micros> {
        let asked = self.about(id).filter(|request| request.sent <= now);
        let claims = asked.filter_map(|request| match request.op {
            Op::Acquire { lease_ms, patience_ms, .. } => {
                Some(patience_ms.map_or(lease_ms, |most| most.min(lease_ms)) * MS)
            }
            _ => None,
        });
        claims.last()
    }
}
