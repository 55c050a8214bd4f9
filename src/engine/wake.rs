//! Drivers of the background, the moments until which they sleep, and their wake-ups.
//!
//! Drivers are woken only for what is due earlier than their next look. An alarm stays until it goes off, even if its
//! reason is gone. Then it wakes its driver once for nothing, but until then no later deadline has to wake it.
//! Otherwise locks that are taken and released all the time would wake it every time.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use slab::Slab;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::base::lease::Moment;

/// Alarm of a driver that looks now: it sees all that is put in before it sleeps.
const LOOKS: Moment = Moment::from_nanos(0);

/// Identity of a driver.
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

    /// Returns when something is due earlier than a driver knows. To be enabled before the driver looks.
    pub(super) fn woken(&self) -> Notified<'_> {
        self.notify.notified()
    }

    /// Notes that the driver looks from now on.
    pub(super) fn looks(&self, driver: DriverId, now: Moment) {
        let alarm = &mut self.alarms.lock()[driver.0];
        if alarm.at <= now {
            alarm.at = Moment::NEVER; // it has gone off
        }
        alarm.is_looking = true;
    }

    /// Notes that the driver has looked. Returns the moment until which it sleeps.
    pub(super) fn sleeps(&self, driver: DriverId, next: Moment) -> Moment {
        let mut alarms = self.alarms.lock();
        let alarm = &mut alarms[driver.0];
        // An earlier alarm stays, even if its reason is gone.
        alarm.at = alarm.at.min(next);
        alarm.is_looking = false;
        alarm.at
    }

    /// Wakes the drivers if they would look later than `moment`.
    pub(super) fn at(&self, moment: Moment) {
        let mut wakes = false;
        for (_, alarm) in &mut *self.alarms.lock() {
            wakes |= moment < alarm.effective();
            alarm.at = alarm.at.min(moment);
        }
        // Out of the loop, and so without the mutex: the woken drivers take it.
        if wakes {
            self.all();
        }
    }

    pub(super) fn all(&self) {
        self.notify.notify_waiters();
    }

    /// Wakes the other drivers: this one has taken what they would look at later, and may stand still before it is
    /// done.
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
