//! The work under the locks. It knows neither where locks and configuration are kept, nor whether it is a process.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis_rwlock::{FencingToken, HoldState, LossReason, RwLockManager, WriteGuard};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::LOCK;
use crate::config::{Config, HALF, Look};
use crate::event::{Event, Order};
use crate::store::{Store, StoreError};

/// What a worker does with a configuration that it has read.
const USE: Duration = Duration::from_millis(10);
/// How long the step of an update takes.
const STEP: Duration = Duration::from_millis(3);
/// Before the next try after something went wrong.
const AFTER_TROUBLE: Duration = Duration::from_millis(200);

pub(crate) struct Worker {
    pub(crate) locks: Arc<dyn RwLockManager>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) orders: watch::Receiver<Order>,
    /// Tells the parent.
    pub(crate) tell: Box<dyn Fn(Event) + Send + Sync>,
    /// How many workers there are: each takes its time, so that all together leave the lock free now and then.
    pub(crate) workers: usize,
}

/// What to do under the write lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    /// Only finish what a writer that is gone has begun.
    Finish,
    Update,
}

/// How far that came.
enum Progress {
    Finished,
    Updated {
        version: u64,
    },
    /// As it was ordered to.
    Half {
        version: u64,
    },
}

/// Why an operation was given up.
enum Fault {
    Lock(redis_rwlock::Error),
    Store(StoreError),
    Lost(LossReason),
    /// The resource refused the token of a hold that was good.
    Overlap(FencingToken),
    Inconsistent(String),
}

impl Worker {
    /// Works until it is told to stop.
    pub(crate) async fn run(self) {
        while self.order() != Order::Stop {
            let updates = self.order() == Order::Hang || fastrand::u8(..4) == 0;
            let done = if updates { self.write(Work::Update).await } else { self.read().await };
            if let Err(fault) = done {
                (self.tell)(fault.into_event());
                sleep(AFTER_TROUBLE).await;
            }
            sleep(Duration::from_millis(10) * fastrand::u32(1..=2) * u32::try_from(self.workers).unwrap_or(64)).await;
        }
        (self.tell)(Event::Stopped);
    }

    fn order(&self) -> Order {
        *self.orders.borrow()
    }

    /// Returns when it is told to stop.
    async fn stop(&self) {
        let mut orders = self.orders.clone();
        // An error says that nobody is left to give orders.
        drop(orders.wait_for(|order| *order == Order::Stop).await);
    }

    /// Reads the configuration and uses it. Nobody changes it meanwhile.
    async fn read(&self) -> Result<(), Fault> {
        let asked = Instant::now();
        // Dropped while it waits, an acquisition leaves nothing behind.
        let guard = tokio::select! {
            guard = self.locks.read(LOCK) => guard?,
            () = self.stop() => return Ok(()),
        };
        let waited = asked.elapsed();
        // If the hold is lost, the work under it is dropped where it is.
        let read = tokio::select! {
            read = self.look_twice(guard.fencing_token()) => read,
            reason = guard.lost() => Err(Fault::Lost(reason)),
        };
        let look = read.map_err(|fault| fault.judge(guard.fencing_token(), guard.state()))?;
        guard.release().await?;
        match look {
            Look::Whole(Config { version, .. }) => (self.tell)(Event::Read { version, waited }),
            // No writer is inside while we are, so the one that began this is gone. Readers must not repair: there may
            // be many of them. So as a writer.
            Look::HalfDone(Config { version, .. }) => {
                (self.tell)(Event::FoundHalf { version, waited });
                self.write(Work::Finish).await?;
            }
            Look::Corrupt => return Err(Fault::Inconsistent("a checksum that is wrong".to_owned())),
        }
        Ok(())
    }

    async fn look_twice(&self, token: FencingToken) -> Result<Look, Fault> {
        let first = Config::look(&self.store.load(token).await?);
        sleep(USE).await;
        let second = Config::look(&self.store.load(token).await?);
        if first != second {
            return Err(Fault::Inconsistent(format!("{first:?} became {second:?} while it was read")));
        }
        Ok(second)
    }

    /// Changes the configuration. Nobody else is inside meanwhile.
    async fn write(&self, work: Work) -> Result<(), Fault> {
        let asked = Instant::now();
        let guard = tokio::select! {
            guard = self.locks.write(LOCK) => guard?,
            () = self.stop() => return Ok(()),
        };
        let waited = asked.elapsed();
        let token = guard.fencing_token();
        let changed = tokio::select! {
            changed = self.change(token, work) => changed,
            reason = guard.lost() => Err(Fault::Lost(reason)),
        };
        match changed.map_err(|fault| fault.judge(token, guard.state()))? {
            Progress::Finished => {}
            // The resource has accepted every step, so the update counts whatever becomes of the hold now.
            Progress::Updated { version } => (self.tell)(Event::Updated { version, token, waited }),
            Progress::Half { version } => {
                (self.tell)(Event::Hangs { version, token });
                self.hang(guard).await;
                return Ok(());
            }
        }
        guard.release().await?;
        Ok(())
    }

    /// First finishes what somebody else has left half done, then does the work of its own.
    async fn change(&self, token: FencingToken, work: Work) -> Result<Progress, Fault> {
        let config = match Config::look(&self.store.load(token).await?) {
            Look::Whole(config) => config,
            Look::HalfDone(draft) => {
                for step in draft.steps() {
                    self.take(token, step).await?;
                }
                (self.tell)(Event::Finished { version: draft.version, token });
                draft
            }
            Look::Corrupt => return Err(Fault::Inconsistent("a checksum that is wrong".to_owned())),
        };
        if work == Work::Finish {
            return Ok(Progress::Finished);
        }
        let next = config.next();
        let version = next.version;
        // Told before the first step: from here on it is in doubt until it is done.
        (self.tell)(Event::Began { version, token });
        for (taken, step) in next.steps().into_iter().enumerate() {
            if taken == HALF && self.order() == Order::Hang {
                return Ok(Progress::Half { version });
            }
            self.take(token, step).await?;
        }
        Ok(Progress::Updated { version })
    }

    async fn take(&self, token: FencingToken, (field, value): (&str, String)) -> Result<(), Fault> {
        self.store.set(token, field, &value).await?;
        sleep(STEP).await;
        Ok(())
    }

    /// Stays inside, with a lease that is renewed, until it is killed.
    async fn hang(&self, guard: WriteGuard) {
        // A process that is killed runs no destructors. A runtime that is "killed" does, and so must not find this one.
        let _leaked = ManuallyDrop::new(guard);
        // Told to stop only if the parent died or changed its mind: then the hold ends with its manager, or its lease.
        self.stop().await;
    }
}

impl Fault {
    /// A refused token is what fencing is for if the hold was over, and the end of all trust if it was not.
    fn judge(self, token: FencingToken, hold: HoldState) -> Self {
        match (self, hold) {
            (Self::Store(StoreError::StaleToken), HoldState::Lost(reason)) => Self::Lost(reason),
            (Self::Store(StoreError::StaleToken), _) => Self::Overlap(token),
            (other, _) => other,
        }
    }

    fn into_event(self) -> Event {
        match self {
            Self::Lock(redis_rwlock::Error::Lost { reason, .. }) | Self::Lost(reason) => {
                Event::Lost { reason: reason.to_string() }
            }
            Self::Lock(error) => Event::Trouble { what: error.to_string() },
            Self::Store(error) => Event::Trouble { what: error.to_string() },
            Self::Overlap(token) => Event::Overlap { token },
            Self::Inconsistent(what) => Event::Inconsistent { what },
        }
    }
}

impl From<redis_rwlock::Error> for Fault {
    fn from(error: redis_rwlock::Error) -> Self {
        Self::Lock(error)
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
