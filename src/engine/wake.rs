//! Alarms of the drivers of the background: the moments until which they sleep, and their wake-ups.
//!
//! A driver is woken only for work that is due before its alarm. An alarm stays until it goes off, even if its work is
//! gone. Then the alarm wakes the driver once without need. But until then, no later deadline wakes the driver. Without
//! this rule, locks that are acquired and released all the time would wake the driver each time.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use slab::Slab;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::base::lease::Moment;

/// Alarm of a driver that reads the queues now. It will see all work that is added before it sleeps, so it needs no
/// wake-up.
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

    /// Returns when work is due before the alarm of a driver. The driver enables the future before it reads the queues.
    pub(super) fn woken(&self) -> Notified<'_> {
        self.notify.notified()
    }

    /// Notes that the driver starts to read the queues.
    pub(super) fn looks(&self, driver: DriverId, now: Moment) {
        let alarm = &mut self.alarms.lock()[driver.0];
        if alarm.at <= now {
            alarm.at = Moment::NEVER; // it has gone off
        }
        alarm.is_looking = true;
    }

    /// Notes that the driver has read the queues and has no work before `next`. Returns the moment until which the
    /// driver sleeps.
    pub(super) fn sleeps(&self, driver: DriverId, next: Moment) -> Moment {
        let mut alarms = self.alarms.lock();
        let alarm = &mut alarms[driver.0];
        // An earlier alarm stays, even if its work is gone.
        alarm.at = alarm.at.min(next);
        alarm.is_looking = false;
        alarm.at
    }

    /// Wakes the drivers if an alarm is later than `moment`.
    pub(super) fn at(&self, moment: Moment) {
        let mut wakes = false;
        for (_, alarm) in &mut *self.alarms.lock() {
            wakes |= moment < alarm.effective();
            alarm.at = alarm.at.min(moment);
        }
        // Called after the loop and so without the mutex, which the woken drivers take.
        if wakes {
            self.all();
        }
    }

    pub(super) fn all(&self) {
        self.notify.notify_waiters();
    }

    /// Wakes the other drivers, so that they set their alarms anew. This driver has taken due work, and its runtime may
    /// stop polling it before the work is done.
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
