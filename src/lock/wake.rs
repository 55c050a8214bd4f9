//! Alarms of the drivers of the [background](crate::engine::background): the moments until which they sleep, and their
//! wake-ups.
//!
//! A task that adds work wakes a driver only if the work is due before the driver's alarm. An alarm stays set until it
//! goes off, even if its work is gone. It then wakes the driver once without need. But until then, work with a later
//! deadline wakes no driver. Without this rule, each acquisition of a lock that is acquired and released all the time
//! would wake the driver.

use slab::Slab;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::base::lease::Moment;
use crate::base::sync::Mutex;

/// Alarm of a driver that is reading the queues. No work is due before this moment, so no task wakes the driver. Work
/// that is added meanwhile only makes the driver's next alarm earlier.
const LOOKS: Moment = Moment::START;

/// Identity of a driver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DriverId(usize);

#[derive(Debug, Default)]
pub(crate) struct Wake {
    notify: Notify,
    alarms: Mutex<Slab<Alarm>>,
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
    pub(crate) fn register(&self) -> DriverId {
        DriverId(self.alarms.lock().insert(Alarm { at: Moment::NEVER, is_looking: true }))
    }

    pub(crate) fn unregister(&self, driver: DriverId) {
        self.alarms.lock().remove(driver.0);
    }

    /// Returns a future that ends when a driver must read the queues. The driver enables the future before it reads the
    /// queues.
    pub(crate) fn woken(&self) -> Notified<'_> {
        self.notify.notified()
    }

    /// Notes that the driver starts to read the queues.
    pub(crate) fn looks(&self, driver: DriverId, now: Moment) {
        let alarm = &mut self.alarms.lock()[driver.0];
        if alarm.at <= now {
            alarm.at = Moment::NEVER; // it has gone off
        }
        alarm.is_looking = true;
    }

    /// Notes that the driver has read the queues and that no work is due before `next`. Returns the moment until which
    /// the driver sleeps.
    pub(crate) fn sleeps(&self, driver: DriverId, next: Moment) -> Moment {
        let mut alarms = self.alarms.lock();
        let alarm = &mut alarms[driver.0];
        // An earlier alarm stays set, even if its work is gone. The comment of this module has the reason.
        alarm.at = alarm.at.min(next);
        alarm.is_looking = false;
        alarm.at
    }

    /// Wakes the drivers if the alarm of one of them is later than `moment`, at which new work is due.
    pub(crate) fn at(&self, moment: Moment) {
        let mut wakes = false;
        for (_, alarm) in &mut *self.alarms.lock() {
            wakes |= moment < alarm.effective();
            alarm.at = alarm.at.min(moment);
        }
        // Runs after the loop and so without the mutex, because the woken drivers lock this mutex.
        if wakes {
            self.all();
        }
    }

    pub(crate) fn all(&self) {
        self.notify.notify_waiters();
    }

    /// Wakes the drivers other than this one, so that they set their alarms anew. This driver has taken due work. If
    /// its runtime stops polling it before the work is done, another driver must notice that in time.
    pub(crate) fn others_of(&self, driver: DriverId) {
        let has_others = self.alarms.lock().iter().any(|(other, _)| other != driver.0);
        if has_others {
            self.all();
        }
    }
}
