//! Who drives the outbox, until when each of them sleeps, and how they are woken.
//!
//! Drivers are woken only for what is due earlier than they look anyway. An alarm stays until it goes off, also when what it
//! was set for is gone: then it wakes its driver for nothing, once, but meanwhile nothing later need wake it. Locks that are
//! taken and released all the time would wake it every time.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use slab::Slab;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::base::lease::Moment;

/// Whoever looks sees all that is put in before it sleeps.
const LOOKS: Moment = Moment::from_nanos(0);

/// One driver.
#[derive(Clone, Copy, Debug)]
pub(super) struct DriverId(usize);

#[derive(Debug, Default)]
pub(crate) struct Wake {
    notify: Notify,
    alarms: Mutex<Slab<Alarm>>,
    last_number: AtomicU64,
}

#[derive(Debug)]
struct Alarm {
    at: Moment,
    is_looking: bool,
}

impl Alarm {
    fn effective(&self) -> Moment {
        if self.is_looking { LOOKS } else { self.at }
    }
}

impl Wake {
    pub(super) fn register(&self) -> DriverId {
        DriverId(self.alarms.lock().insert(Alarm { at: Moment::NEVER, is_looking: true }))
    }

    pub(super) fn unregister(&self, driver: DriverId) {
        self.alarms.lock().remove(driver.0);
    }

    /// Returns when something is due earlier than a driver knows. To be enabled before it looks.
    pub(super) fn woken(&self) -> Notified<'_> {
        self.notify.notified()
    }

    /// The driver looks from now on.
    pub(super) fn looks(&self, driver: DriverId, now: Moment) {
        let alarm = &mut self.alarms.lock()[driver.0];
        if alarm.at <= now {
            alarm.at = Moment::NEVER; // it has gone off
        }
        alarm.is_looking = true;
    }

    /// The driver has looked, and sleeps until what it returns.
    pub(super) fn sleeps(&self, driver: DriverId, next: Moment) -> Moment {
        let mut alarms = self.alarms.lock();
        let alarm = &mut alarms[driver.0];
        alarm.at = alarm.at.min(next);
        alarm.is_looking = false;
        alarm.at
    }

    /// Something is due then.
    pub(super) fn at(&self, moment: Moment) {
        let mut wakes = false;
        for (_, alarm) in &mut *self.alarms.lock() {
            wakes |= moment < alarm.effective();
            alarm.at = alarm.at.min(moment);
        }
        if wakes {
            self.all();
        }
    }

    pub(super) fn all(&self) {
        self.notify.notify_waiters();
    }

    /// One driver has taken what the others would have looked at later, and may stand still before it is done.
    pub(super) fn others_of(&self, driver: DriverId) {
        let has_others = self.alarms.lock().iter().any(|(other, _)| other != driver.0);
        if has_others {
            self.all();
        }
    }

    pub(super) fn next_number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed)
    }
}
