//! Tasks of a worker, which repeatedly take a lock, hold it for a time, and release it.

use redis_rwlock::{Acquire, Error, Guard, LossReason, ReadGuard, WriteGuard};
use tokio::time::{Instant, sleep};

use super::*;

/// Locks by their use. Hot locks have many short holds, slow locks have long holds that are renewed, and cold locks
/// have few users. One shard of a new cluster has most of the slow locks, and one has most of the cold locks. So a
/// fault of such a shard concerns many holders.
const NAMES: [&str; 14] = [
    "hot-0", "hot-2", "slow-2", "slow-3", "slow-6", "slow-7", "slow-0", "slow-1", "cold-1", "cold-2", "cold-6",
    "cold-11", "cold-0", "cold-3",
];
pub(crate) const HOT: Range<usize> = 0..2;
pub(crate) const SLOW: Range<usize> = 2..8;
pub(crate) const COLD: Range<usize> = 8..14;
pub(crate) const LOCKS: usize = NAMES.len();

/// Returns the name of the lock with that number.
pub(crate) fn lock_name(lock: usize) -> &'static str {
    NAMES[lock]
}

const WAIT: Duration = Duration::from_secs(5);
/// Pause between two checks of a hold's validity.
pub(crate) const STEP: Duration = Duration::from_millis(100);
/// Time for which a task with a planted fault goes on after it has noticed the loss. The task still goes on when a server
/// that was paused for seconds has granted the lock to another user, on a busy machine too.
const BEYOND: Duration = Duration::from_secs(4);
const COMING: Duration = Duration::from_secs(1);
pub(crate) const AFTER_A_FAILURE: Duration = Duration::from_millis(50);

/// Kind of the locks that a task takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Hot,
    Slow,
    Cold,
    /// Takes a cold lock, each time with a new manager, which has no state of earlier events.
    Guest,
    /// Takes pairs and triples of locks, with a manager that only takes groups.
    Group,
    /// Takes pairs and triples of locks, with the manager that takes single locks.
    MixedGroup,
}

impl Role {
    /// Returns the roles of a worker's tasks. A quorum has fewer, because it asks five servers each time and has no
    /// queue. With groups, fewer tasks take single locks, because a group keeps some locks while it waits for others.
    pub(crate) fn of(order: &Order) -> Vec<Self> {
        use Role::{Cold, Group, Guest, Hot, MixedGroup, Slow};
        let singles: &[Self] = match (order.level, order.groups) {
            (Level::Primary | Level::Replicated, 0) => {
                &[Hot, Hot, Hot, Slow, Slow, Slow, Slow, Cold, Cold, Cold, Guest]
            }
            (Level::Primary | Level::Replicated, _) => &[Hot, Hot, Slow, Cold, Guest],
            (Level::Quorum, _) => &[Hot, Slow, Slow, Cold, Cold],
        };
        // Each third group shares its manager with single locks.
        let groups = (0..order.groups).map(|number| if number % 3 == 2 { MixedGroup } else { Group });
        singles.iter().copied().chain(groups).collect()
    }

    fn lock(self, rng: &mut Rng, order: &Order) -> usize {
        match (self, own_lock(order)) {
            (Self::Cold, Some((own, _))) if rng.u8(..20) != 0 => own,
            // Each of these locks nearly always has a holder and a waiter when their server is paused.
            (Self::Slow, _) if order.plant == Some(Plant::LateRenewal) => SLOW.start + rng.usize(..2),
            _ => self.any_lock(rng),
        }
    }

    fn any_lock(self, rng: &mut Rng) -> usize {
        match self {
            Self::Hot => rng.usize(HOT),
            Self::Slow => rng.usize(SLOW),
            Self::Cold | Self::Guest => rng.usize(COLD),
            Self::Group | Self::MixedGroup => rng.usize(..LOCKS),
        }
    }

    /// Returns a lease and a time to hold the lock. The renewal of a long lease comes so late that the user still holds
    /// the lock after a server's restart.
    fn visit(self, rng: &mut Rng, order: &Order) -> Visit {
        if self == Self::Slow && order.plant == Some(Plant::LateRenewal) {
            // With these times a lease nearly always runs out during a use.
            return Visit { lease: LEASE, stay: Duration::from_millis(rng.u64(6000..9000)) };
        }
        if self == Self::Slow && order.level != Level::Quorum && rng.bool() {
            return Visit { lease: LONGEST_LEASE, stay: Duration::from_millis(rng.u64(1000..4500)) };
        }
        Visit { lease: LEASE, stay: self.stay(rng, order) }
    }

    /// Returns a random time to hold the lock. Beside groups it is shorter, so that the queues do not only grow.
    fn stay(self, rng: &mut Rng, order: &Order) -> Duration {
        let shorter = if order.groups > 0 { 8 } else { 1 };
        Duration::from_millis(match self {
            Self::Hot => rng.u64(0..6),
            Self::Slow => rng.u64(200..4500),
            Self::Cold if rng.u8(..10) == 0 => rng.u64(200..900) / shorter,
            Self::Cold => rng.u64(1..40) / shorter,
            Self::Guest => rng.u64(1..400) / shorter,
            Self::Group | Self::MixedGroup => rng.u64(..20),
        })
    }

    /// Returns a random pause between two uses.
    pub(crate) fn pause(self, rng: &mut Rng) -> Duration {
        Duration::from_millis(match self {
            Self::Hot => rng.u64(5..40),
            Self::Slow => rng.u64(5..100),
            Self::Cold | Self::Guest => rng.u64(10..80),
            Self::Group | Self::MixedGroup => rng.u64(300..1200),
        })
    }
}

/// Guard of a read or write lock.
#[derive(Debug)]
enum Held {
    Read(ReadGuard),
    Write(WriteGuard),
}

impl Held {
    fn mode(&self) -> Mode {
        match self {
            Self::Read(_) => Mode::Read,
            Self::Write(_) => Mode::Write,
        }
    }

    fn token(&self) -> u64 {
        match self {
            Self::Read(guard) => guard.fencing_token().into(),
            Self::Write(guard) => guard.fencing_token().into(),
        }
    }

    fn remaining(&self) -> Duration {
        match self {
            Self::Read(guard) => guard.remaining(),
            Self::Write(guard) => guard.remaining(),
        }
    }

    /// Returns the end of the hold's local validity, by a clock that was read before. Returns `None` after the end,
    /// because the moment of the end is unknown then.
    fn until(&self) -> Option<Moment> {
        end_of(|| self.remaining())
    }

    async fn lost(&self) -> LossReason {
        match self {
            Self::Read(guard) => guard.lost().await,
            Self::Write(guard) => guard.lost().await,
        }
    }

    async fn release(self) -> Result<(), Error> {
        match self {
            Self::Read(guard) => guard.release().await,
            Self::Write(guard) => guard.release().await,
        }
    }

    /// Downgrades a write hold, or upgrades a read hold if there is no other reader.
    async fn convert(self) -> Result<Self, (Error, Self)> {
        match self {
            Self::Read(guard) => match guard.try_upgrade().await {
                Ok(guard) => Ok(guard.into()),
                Err(refused) => Err((refused.error().clone(), refused.into_guard().into())),
            },
            Self::Write(guard) => match guard.downgrade().await {
                Ok(guard) => Ok(guard.into()),
                Err(refused) => Err((refused.error().clone(), refused.into_guard().into())),
            },
        }
    }
}

impl From<ReadGuard> for Held {
    fn from(guard: ReadGuard) -> Self {
        Self::Read(guard)
    }
}

impl From<WriteGuard> for Held {
    fn from(guard: WriteGuard) -> Self {
        Self::Write(guard)
    }
}

/// Returns the end of a local validity, by a clock that is read before it. Returns `None` after the end.
pub(crate) fn end_of(remaining: impl FnOnce() -> Duration) -> Option<Moment> {
    let before = now();
    let remaining = remaining();
    (!remaining.is_zero()).then(|| before + nanos(remaining))
}

/// Lease of a hold, and the time for which its user holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Visit {
    lease: Duration,
    stay: Duration,
}

/// End of a use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stay {
    Done,
    Lost,
}

/// Numbers of the two registers that the writer has read.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Reading {
    fenced: Option<u64>,
    unfenced: Option<u64>,
}

/// User of locks in a worker.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) locks: Arc<dyn RwLockManager>,
    /// Label of the manager `locks`.
    pub(crate) label: String,
    pub(crate) journal: Arc<Journal>,
    pub(crate) registers: Client,
    pub(crate) rng: Rng,
    pub(crate) role: Role,
    pub(crate) order: Arc<Order>,
}

impl Task {
    /// Runs until the order to stop.
    pub(crate) async fn run(mut self, mut stopped: watch::Receiver<bool>) -> Result<()> {
        loop {
            tokio::select! {
                biased;
                // This may drop the future in the middle of any use.
                _ = stopped.wait_for(|stopped| *stopped) => return Ok(()),
                turn = self.turn() => turn?,
            }
        }
    }

    async fn turn(&mut self) -> Result<()> {
        match self.role {
            Role::Guest => {}
            Role::Group | Role::MixedGroup => return self.use_some_group().await,
            Role::Hot | Role::Slow | Role::Cold => return self.use_some_lock().await,
        }
        // If no server answers, the guest skips this round.
        if let Ok(locks) = timeout(COMING, worker::connect(&self.order, self.order.guest_label())).await {
            self.locks = locks?;
            self.use_some_lock().await?;
            timeout(COMING, self.locks.close()).await.ok();
        }
        Ok(())
    }

    async fn use_some_lock(&mut self) -> Result<()> {
        let lock = self.role.lock(&mut self.rng, &self.order);
        let name = lock_name(lock);
        let what = match own_lock(&self.order) {
            Some((own, mode)) if own == lock && self.rng.u8(..20) != 0 => {
                if mode == Mode::Write {
                    0
                } else {
                    35
                }
            }
            _ => self.rng.u8(..100),
        };
        match what {
            0..35 => self.acquire(lock, self.locks.write(name)).await?,
            35..60 => self.acquire(lock, self.locks.read(name)).await?,
            60..75 => self.try_now(lock, self.locks.write(name)).await?,
            75..85 => self.try_now(lock, self.locks.read(name)).await?,
            85..90 => self.give_up_soon(lock, self.locks.write(name)).await?,
            90..95 => self.convert(lock, self.locks.write(name)).await?,
            _ => self.convert(lock, self.locks.read(name)).await?,
        }
        sleep(self.role.pause(&mut self.rng)).await;
        Ok(())
    }

    async fn acquire<G: Guard + Into<Held>>(&mut self, lock: usize, acquire: Acquire<G>) -> Result<()> {
        let visit = self.role.visit(&mut self.rng, &self.order);
        match self.take(lock, acquire.lease(visit.lease)).await? {
            Some((id, guard)) => self.use_it(id, lock, guard.into(), visit.stay).await,
            None => Ok(()),
        }
    }

    /// Waits for a lock. Returns its use, unless the wait has failed.
    async fn take<G: Guard>(&mut self, lock: usize, acquire: Acquire<G>) -> Result<Option<(u64, G)>> {
        let id = self.journal.asks(&self.label, lock, mode_of::<G>());
        match acquire.wait_timeout(WAIT).await {
            Ok(guard) => Ok(Some((id, guard))),
            Err(error) => self.failed(id, &error).await.map(|()| None),
        }
    }

    async fn try_now<G: Guard + Into<Held>>(&mut self, lock: usize, acquire: Acquire<G>) -> Result<()> {
        let id = self.journal.asks(&self.label, lock, mode_of::<G>());
        let outcome = acquire.try_now().await;
        self.use_granted(id, lock, outcome, "taken").await
    }

    /// Drops the future after a short time.
    async fn give_up_soon<G: Guard + Into<Held>>(&mut self, lock: usize, acquire: Acquire<G>) -> Result<()> {
        let id = self.journal.asks(&self.label, lock, mode_of::<G>());
        let soon = Duration::from_micros(self.rng.u64(..20_000));
        let outcome = timeout(soon, acquire.wait_timeout(WAIT)).await.ok().transpose();
        self.use_granted(id, lock, outcome, "dropped").await
    }

    /// Uses the lock if it was granted. Without a grant and without an error, the reason is `why`.
    async fn use_granted<G: Into<Held>>(
        &mut self,
        id: u64,
        lock: usize,
        outcome: Result<Option<G>, Error>,
        why: &str,
    ) -> Result<()> {
        match outcome {
            Ok(Some(guard)) => self.use_for_a_while(id, lock, guard.into()).await,
            Ok(None) => {
                self.journal.gave_up(id, why);
                Ok(())
            }
            Err(error) => self.failed(id, &error).await,
        }
    }

    /// Takes a lock, and converts its hold to the other mode.
    async fn convert<G: Guard + Into<Held>>(&mut self, lock: usize, acquire: Acquire<G>) -> Result<()> {
        let Some((id, guard)) = self.take(lock, acquire).await? else { return Ok(()) };
        let how_long = self.role.stay(&mut self.rng, &self.order);
        let Some(held) = self.stay_inside(id, lock, guard.into(), how_long).await? else { return Ok(()) };
        self.journal.ends(id, Gift::Converted);
        let mode = if held.mode() == Mode::Read { Mode::Write } else { Mode::Read };
        let id = self.journal.asks(&self.label, lock, mode);
        match held.convert().await {
            Ok(held) => self.use_for_a_while(id, lock, held).await,
            Err((error, held)) => self.not_converted(id, lock, error, held).await,
        }
    }

    /// Continues with the old hold, unless it was lost.
    async fn not_converted(&mut self, id: u64, lock: usize, error: Error, held: Held) -> Result<()> {
        self.journal.gave_up(id, reason(&error));
        if matches!(error, Error::Lost { .. }) {
            return Ok(());
        }
        let id = self.journal.goes_on(&self.label, lock, held.mode());
        self.use_for_a_while(id, lock, held).await
    }

    async fn failed(&mut self, id: u64, error: &Error) -> Result<()> {
        self.journal.gave_up(id, reason(error));
        sleep(AFTER_A_FAILURE).await;
        Ok(())
    }

    async fn use_for_a_while(&mut self, id: u64, lock: usize, held: Held) -> Result<()> {
        let how_long = self.role.stay(&mut self.rng, &self.order);
        self.use_it(id, lock, held, how_long).await
    }

    async fn use_it(&mut self, id: u64, lock: usize, held: Held, how_long: Duration) -> Result<()> {
        let held = self.stay_inside(id, lock, held, how_long).await?;
        let Some(held) = held else { return Ok(()) };
        if self.rng.u8(..4) == 0 {
            self.journal.ends(id, Gift::Dropped);
            drop(held);
        } else {
            self.journal.ends(id, Gift::Released);
            let until = held.until().unwrap_or(0);
            if held.release().await.is_err() {
                self.journal.kept(lock, until);
            }
        }
        Ok(())
    }

    /// Works under the lock, and returns the guard unless the hold was lost.
    async fn stay_inside(&mut self, id: u64, lock: usize, held: Held, how_long: Duration) -> Result<Option<Held>> {
        let (token, mode) = (held.token(), held.mode());
        self.journal.granted(id, token, held.until().unwrap_or(0));
        let reading = if mode == Mode::Write { self.read(lock, token).await? } else { Reading::default() };
        let stay = self.stay(id, &held, how_long).await;
        if stay == Stay::Lost {
            return Ok(None);
        }
        if mode == Mode::Write && (self.order.plant.is_some() || !held.remaining().is_zero()) {
            self.write(lock, token, reading).await?;
        }
        Ok(Some(held))
    }

    async fn stay(&self, id: u64, held: &Held, how_long: Duration) -> Stay {
        let over = Instant::now() + how_long;
        let mut seen = 0;
        loop {
            if let Some(until) = held.until().filter(|until| *until > seen) {
                self.journal.valid(id, until);
                seen = until + nanos(STEP / 2);
            }
            let left = over.saturating_duration_since(Instant::now());
            tokio::select! {
                biased;
                reason = held.lost() => return self.is_told(id, reason).await,
                () = sleep(left.min(STEP)) => {}
            }
            if Instant::now() >= over {
                return Stay::Done;
            }
        }
    }

    async fn is_told(&self, id: u64, reason: LossReason) -> Stay {
        let told = now();
        if self.order.plant == Some(Plant::LateRenewal) && reason == LossReason::Expired {
            // The task behaves as if a late answer to its renewal had made its hold valid again.
            self.journal.valid(id, told + nanos(BEYOND));
            sleep(BEYOND).await;
            return Stay::Done;
        }
        self.journal.lost(id, told, reason);
        Stay::Lost
    }

    pub(crate) async fn read(&mut self, lock: usize, token: u64) -> Result<Reading> {
        let fenced = self.registers.read(Kind::Fenced, lock, token).await?;
        let unfenced = self.registers.read(Kind::Unfenced, lock, token).await?;
        Ok(Reading { fenced, unfenced })
    }

    pub(crate) async fn write(&mut self, lock: usize, token: u64, reading: Reading) -> Result<()> {
        for (kind, read) in [(Kind::Fenced, reading.fenced), (Kind::Unfenced, reading.unfenced)] {
            if let Some(read) = read {
                self.registers.write(kind, lock, token, read).await?;
            }
        }
        Ok(())
    }
}

/// Returns a worker's own cold lock, if managers cache holds. The worker nearly always uses this lock, in one mode, and
/// other workers use it rarely. A cached hold is useful for such a lock.
fn own_lock(order: &Order) -> Option<(usize, Mode)> {
    let number = usize::try_from(order.seed).unwrap_or(0);
    let mode = if number % 2 == 0 { Mode::Write } else { Mode::Read };
    (!order.cache_for.is_zero()).then(|| (COLD.start + number % COLD.len(), mode))
}

fn mode_of<G: Guard>() -> Mode {
    if std::any::TypeId::of::<G>() == std::any::TypeId::of::<ReadGuard>() { Mode::Read } else { Mode::Write }
}

/// Returns one word for each kind of error.
pub(crate) fn reason(error: &Error) -> &'static str {
    match error {
        Error::WaitTimeout { .. } => "wait-timeout",
        Error::Lost { .. } => "lost",
        Error::UpgradeConflict { .. } => "conflict",
        Error::Unreachable { .. } => "unreachable",
        Error::NoQuorum { .. } => "no-quorum",
        Error::Refused { .. } => "refused",
        _ => "other",
    }
}
