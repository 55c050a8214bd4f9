//! What a notification of a grant lets its reader count on.

use super::{Facts, MS};
use crate::testing::simulation::history::{Id, Micros, Op, Process};

pub(super) struct Notice {
    pub(super) process: Process,
    pub(super) at: Micros,
    /// When the request was sent whose answer is its anchor, and what is left from then on.
    pub(super) sent: Micros,
    pub(super) left: Micros,
}

impl Facts<'_> {
    /// When each notice came that may have begun a hold at that moment, and until when it let the hold be trusted.
    pub(super) fn noticed_by(&self, id: Id, begun: Micros) -> impl Iterator<Item = (Micros, Micros)> {
        let notices = self.noticed.get(&id).into_iter().flatten().filter(move |notice| notice.at <= begun);
        notices.map(move |notice| {
            // The server's clock may have jumped since the anchor: it grants a claim, counted from when it is read, and no more.
            let claim = self.claim(id, notice.at).unwrap_or(notice.left);
            let left = notice.left.min(begun - notice.sent + claim);
            (notice.at, notice.sent + self.process(notice.process).usable(left))
        })
    }

    /// What was asked for last, for the time being.
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
