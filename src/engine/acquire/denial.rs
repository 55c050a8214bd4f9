//! Refusals of acquisitions, in their public form.

use std::time::Duration;

use super::local::LocalWaiter;
use crate::base::denied::{Denied, DenyingHolder};
use crate::base::key::Key;
use crate::base::lease::Moment;
use crate::base::mode::Mode;
use crate::engine::Engine;
use crate::lock::hold::Hold;
use crate::lock::side::LastRefusal;
use crate::store::Ability;

impl Engine {
    /// Returns what has kept out an acquisition that a hold or a waiter of this process prevents.
    pub(super) fn denial_here(&self, key: &Key, mode: Mode, now: Moment) -> Box<Denied> {
        let (own, refusal) = self.table.obstacle(key, mode);
        Box::new(self.denial_by(own.as_deref(), refusal.as_ref(), now))
    }

    /// Combines what is known. A write hold of this process is in the way of each other acquisition here, so the server
    /// was not asked. Otherwise the answer of the server counts: beside a read hold of this process, others may have the lock.
    fn denial_by(&self, own: Option<&Hold>, refusal: Option<&LastRefusal>, now: Moment) -> Denied {
        match (own, refusal) {
            (Some(own), None) => self.denial_by_own(own, now),
            (Some(own), Some(_)) if own.mode() == Mode::Write => self.denial_by_own(own, now),
            (_, Some(refusal)) => self.denial_by_server(refusal, now),
            (None, None) => Denied::default(),
        }
    }

    fn denial_by_own(&self, hold: &Hold, now: Moment) -> Denied {
        let holder = DenyingHolder {
            label: self.label.clone(),
            mode: hold.mode(),
            is_ours: true,
            cached: false,
            age: Some(now.since(hold.began())),
            remaining: hold.deadline().since(now),
        };
        Denied { holder: Some(holder), more_holders: 0, others_wait: false, age: Duration::ZERO }
    }

    pub(super) fn denial_by_server(&self, refusal: &LastRefusal, now: Moment) -> Denied {
        let named = refusal.holder.as_deref();
        // A store without waiters names no holder if it does not know one. Masters may also name different holders.
        let others_wait = named.is_none() && self.scheme.lacks(Ability::Waiters).is_none();
        Denied {
            holder: named.map(|holder| holder.shown(refusal.server, refusal.is_cached, &self.manager_id)),
            more_holders: named.map_or(0, |holder| holder.more),
            others_wait,
            age: now.since(refusal.at),
        }
    }
}

impl LocalWaiter {
    /// Returns what has kept this acquisition out so far.
    pub(super) fn denial(&self) -> Box<Denied> {
        self.engine.denial_here(&self.key, self.mode, self.engine.now())
    }
}
