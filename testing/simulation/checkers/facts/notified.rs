//! Trust in a hold that a notification of a grant gives.

use super::*;

pub struct ArrivedGrant {
    pub process: Process,
    pub at: Micros,
    /// Time at which the request behind the clock sample was sent, and the remaining lease from then on.
    pub sent: Micros,
    pub left: Micros,
    pub token: u64,
}

impl Facts<'_> {
    /// Returns each notification that may have begun a hold at `begun`: its time, and until when the hold was valid by
    /// it.
    pub fn notified_by(&self, id: Id, begun: Micros) -> impl Iterator<Item = (Micros, Micros)> {
        let notifications =
            self.notified.get(&id).into_iter().flatten().filter(move |notification| notification.at <= begun);
        notifications.map(move |notification| {
            // The server's clock may have jumped since the clock sample. A grant by notification gives no more than a
            // claim, counted from the moment when the process reads it.
            let claim = self.claim(id, notification.at).unwrap_or(notification.left);
            let left = notification.left.min(begun - notification.sent + claim);
            (notification.at, notification.sent + self.process(notification.process).usable(left))
        })
    }

    /// Returns true if a notification until `now` has granted the acquisition with a newer token than this.
    pub fn was_notified_of_newer(&self, id: Id, token: u64, now: Micros) -> bool {
        let mut notified = self.notified.get(&id).into_iter().flatten();
        notified.any(|notification| notification.at <= now && notification.token > token)
    }

    /// Returns the claim of the last acquisition that was requested until `now`.
    fn claim(&self, id: Id, now: Micros) -> Option<Micros> {
        let asked = self.about(id).filter(|request| request.sent <= now);
        let claims = asked.filter_map(|request| match request.op {
            Op::Acquire { lease_ms, waiter_ttl_ms, .. } => {
                Some(waiter_ttl_ms.map_or(lease_ms, |most| most.min(lease_ms)) * MS)
            }
            _ => None,
        });
        claims.last()
    }
}
