//! Workload of users: tasks that take locks in every way the crate offers, and let go of them in every way there is.

use super::history::Guard as GuardNo;
use super::link::Link;
use super::runtime::Otherwise;
use super::world::{Live, is_valid};
use super::*;
use crate::base::background_runtime::BackgroundRuntime;
use crate::base::error::Result;
use crate::engine::Engine;
use crate::face::acquire::Acquire;
use crate::face::guard::{Guard, ReadGuard};
use crate::face::manager::Sealed;
use crate::store::quorum::Margins;

/// Manager whose servers are those of the world.
#[derive(Clone, Debug)]
pub struct SimManager {
    pub engine: Arc<Engine>,
}

impl Sealed for SimManager {
    #[allow(private_interfaces)]
    fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }
}

impl RwLockManager for SimManager {}

impl SimManager {
    pub fn start(world: &Arc<World>, address: &Address) -> Self {
        let options = world.draw(|rng| Options {
            response_timeout: Duration::from_millis([100, 200, 500][rng.usize(0..3)]),
            unreachable_after: Duration::from_millis([2_000, 5_000][rng.usize(0..2)]),
            join_window: Duration::from_millis([0, 10, 50, 400][rng.usize(0..4)]),
            max_handoffs: [1, 2, 5, 64][rng.usize(0..4)],
            ..Options::default()
        });
        let lease = world.profile.lease.unwrap_or(options.lease);
        let is_wrong = world.mutant == Some(Mutant::ClaimsUnacknowledged);
        let durability = if is_wrong { Durability::Primary } else { world.profile.durability() };
        let options = Options { durability, cache_for: cache_for(world), lease, ..options };
        Self::with(world, address, options)
    }

    pub fn with(world: &Arc<World>, address: &Address, options: Options) -> Self {
        let options = Options { label: Some(address.process.to_string()), ..options };
        world.record(What::Started {
            process: address.process,
            response_timeout_ms: millis(options.response_timeout),
            unreachable_after_ms: millis(options.unreachable_after),
            max_clock_skew_ms: millis(options.max_clock_skew),
            join_window_ms: millis(options.join_window),
            max_handoffs: options.max_handoffs,
            cache_for_ms: millis(options.cache_for),
        });
        let options = match world.mutant {
            Some(Mutant::GivesUpSoon) => Options { unreachable_after: options.unreachable_after / 4, ..options },
            Some(Mutant::GivesUpLate) => Options { unreachable_after: options.unreachable_after * 4, ..options },
            Some(Mutant::SharesForEver) => Options { join_window: Duration::from_secs(5), ..options },
            Some(Mutant::OverBudget) => Options { max_handoffs: 64, ..options },
            _ => options,
        };
        let scheme: Arc<dyn Scheme> = if world.is_quorum() {
            Arc::new(quorum(world, address, &options))
        } else {
            Arc::new(Link::new(world, address.clone(), 0, &options))
        };
        Self { engine: Arc::new(Engine::new(scheme, options)) }
    }
}

/// Returns the scheme of a process for several masters, with a link to each.
pub fn quorum(world: &Arc<World>, address: &Address, options: &Options) -> Quorum {
    let link = |place| -> Arc<dyn MasterScheme> { Arc::new(Link::new(world, address.clone(), place, options)) };
    let links = (0..world.servers()).map(link).collect();
    let max_clock_skew = options.max_clock_skew;
    let margins = Margins { max_clock_skew, max_delay: lease::max_delay(options.response_timeout, max_clock_skew) };
    let any = Key::new("rwlock", "-").expect("a name");
    Quorum::new(links, &BackgroundRuntime::Callers, &any, margins, world.restarts, options.lease)
}

/// Returns the `cache_for` of a process. Some processes cache no holds.
fn cache_for(world: &World) -> Duration {
    if !world.profile.caches {
        return Duration::ZERO;
    }
    Duration::from_millis(world.draw(|rng| [0, 300, 3_000, 10_000][rng.usize(0..4)]))
}

/// Guard of either side.
#[derive(Debug)]
pub enum AnyGuard {
    Read(ReadGuard),
    Write(WriteGuard),
}

macro_rules! either {
    ($any:expr, $guard:ident => $then:expr) => {
        match $any {
            AnyGuard::Read($guard) => $then,
            AnyGuard::Write($guard) => $then,
        }
    };
}

impl AnyGuard {
    pub fn token(&self) -> FencingToken {
        either!(self, guard => guard.fencing_token())
    }

    pub fn state(&self) -> HoldState {
        either!(self, guard => guard.state())
    }

    fn remaining(&self) -> Duration {
        either!(self, guard => guard.remaining())
    }

    pub fn watch(&self) -> HoldWatch {
        either!(self, guard => guard.watch())
    }

    pub async fn lost(&self) -> LossReason {
        either!(self, guard => guard.lost().await)
    }

    pub async fn release(self) -> Result<()> {
        either!(self, guard => guard.release().await)
    }

    /// Converts the guard to the other side, or returns it with the reason of the failure.
    pub async fn turn(self) -> std::result::Result<Self, (Self, End)> {
        match self {
            Self::Write(guard) => guard.downgrade().await.map(Self::Read).map_err(|refused| {
                let end = End::of(refused.error());
                (Self::Write(refused.into_guard()), end)
            }),
            Self::Read(guard) => guard.try_upgrade().await.map(Self::Write).map_err(|refused| {
                let end = End::of(refused.error());
                (Self::Read(refused.into_guard()), end)
            }),
        }
    }

    /// Reads the id from the debug output.
    pub fn id(&self) -> Id {
        let text = format!("{self:?}");
        let id = text.split("id: \"").nth(1).and_then(|rest| rest.split('"').next()).expect("guards show their ids");
        Id::of(id)
    }
}

/// Task of a virtual process.
pub struct Actor {
    pub world: Arc<World>,
    pub address: Address,
    pub manager: SimManager,
    pub rng: fastrand::Rng,
    pub owner: OwnerId,
    /// Runtime of the task.
    pub runtime: Arc<Runtime>,
}

/// Error of a closed manager.
struct Closed;

impl Actor {
    /// Acts up to `things` times, or until the manager is closed.
    pub async fn work(mut self, things: u32) {
        for _ in 0..things {
            let think = self.rng.u64(0..400);
            sleep_ms(think).await;
            let done = if self.rng.u32(0..5) == 0 { self.hurry().await } else { self.do_something().await };
            if done.is_err() {
                return;
            }
        }
    }

    /// Writes several times in a row and lets go at once, so that the tasks of a process hand the lock off.
    async fn hurry(&mut self) -> std::result::Result<(), Closed> {
        let lock = self.lock();
        for _ in 0..self.rng.u32(2..6) {
            let wish = Wish { mode: Mode::Write, once: false, wait_ms: None, reentrant: false, ..self.wish(lock) };
            let Some(hand) = self.take(wish).await? else {
                return Ok(());
            };
            self.use_fenced(&hand);
            self.let_go(hand).await;
        }
        Ok(())
    }

    async fn do_something(&mut self) -> std::result::Result<(), Closed> {
        let lock = self.lock();
        let pick = self.rng.u32(0..1000);
        if pick < self.world.profile.forces {
            self.force(lock).await.ok();
            return Ok(());
        }
        if pick < self.world.profile.forces + 30 {
            self.manager.inspect(&name(lock)).await.ok();
            return Ok(());
        }
        let wish = self.wish(lock);
        let Some(hand) = self.take(wish).await? else {
            return Ok(());
        };
        self.hold(&hand).await;
        let Some(hand) = self.convert(hand).await else {
            return Ok(());
        };
        let nests = wish.reentrant && self.rng.u32(0..10) == 0;
        let nested = if nests { self.nest(&hand, wish).await? } else { None };
        self.let_go(hand).await;
        if let Some(inner) = nested {
            self.let_go(inner).await;
        }
        Ok(())
    }

    /// Ends the holds of a lock as an operator does.
    async fn force(&self, lock: Lock) -> Result<()> {
        let seen = self.manager.inspect(&name(lock)).await?.seen;
        let key = self.manager.engine.key(&name(lock))?;
        self.manager.engine.force_shown(&key, &seen).await?;
        self.world.record(What::ForceDone { ids: ids_of(&seen.view) });
        Ok(())
    }

    /// Picks a lock. One of the two is much wanted.
    fn lock(&mut self) -> Lock {
        [b'a', b'a', b'a', b'b'][self.rng.usize(0..4)]
    }

    fn wish(&mut self, lock: Lock) -> Wish {
        let rng = &mut self.rng;
        let mode = if rng.u32(0..5) < 3 { Mode::Read } else { Mode::Write };
        let lease_ms = [400, 1_000, 3_000, 10_000][rng.usize(0..4)];
        let max_hold_ms = if rng.u32(0..4) == 0 { rng.u64(400..4_000) } else { 3_600_000 };
        let wait_ms = (rng.u32(0..3) < self.world.profile.limited).then(|| rng.u64(0..3_000));
        let once = rng.u32(0..6) == 0;
        if let Some(lease) = self.world.profile.lease.map(millis) {
            // Holds that are left behind keep others out for as long as their leases are.
            let wait_ms = wait_ms.or((lease > 10_000).then_some(3_000));
            return Wish { wait_ms, once, ..Wish::new(lock, mode, lease) };
        }
        Wish { max_hold_ms, wait_ms, once, reentrant: rng.bool(), ..Wish::new(lock, mode, lease_ms) }
    }

    /// Takes a lock. Returns `None` if the attempt was denied or its future dropped.
    async fn take(&mut self, wish: Wish) -> std::result::Result<Option<Hand>, Closed> {
        let attempt = self.asks(wish);
        let cut_off = self.otherwise(vec![What::Failed { attempt, end: End::Cut }]);
        let cut = (wish.within.is_none() && self.rng.u32(0..6) == 0).then(|| self.rng.u32(0..12));
        // Some give up when they have been first in the queue for a while.
        let impatient = (wish.within.is_none() && self.rng.u32(0..8) == 0).then(|| self.rng.u64(0..2_500));
        if self.asks_later(wish) {
            sleep_ms(100).await;
        }
        let taking = ActingFor::new(&self.world, attempt, taking(self.manager.clone(), self.owner, wish));
        let outcome = match (cut, impatient) {
            (Some(waits), _) => CutAt::new(waits, taking).await,
            (None, Some(for_ms)) => tokio::time::timeout(Duration::from_millis(for_ms), taking).await.ok(),
            (None, None) => Some(taking.await),
        };
        cut_off.known();
        let end = match outcome {
            Some(Ok(Some(guard))) => return Ok(Some(self.granted(attempt, guard, wish))),
            Some(Ok(None)) => End::Busy,
            Some(Err(error)) => End::of(&error),
            None => End::Cut,
        };
        self.world.record(What::Failed { attempt, end });
        if end == End::Closed { Err(Closed) } else { Ok(None) }
    }

    pub fn asks(&self, wish: Wish) -> Attempt {
        let attempt = self.world.next_attempt();
        let (process, runtime) = (self.address.process, self.runtime.number);
        self.world.record(What::Asked { attempt, process, runtime, wish });
        attempt
    }

    /// Returns the events to record if the runtime of the task ends.
    fn otherwise(&self, events: Vec<What>) -> Otherwise {
        Otherwise::new(&self.world, &self.runtime, events)
    }

    pub fn in_hand(&self, number: GuardNo, guard: AnyGuard, wish: Wish) -> Hand {
        let (world, runtime) = (Arc::clone(&self.world), Arc::clone(&self.runtime));
        Hand { world, runtime, number, wish, guard: Some(guard) }
    }

    /// Returns true if a mutant delays the request, so that other tasks do not know of it for a while.
    fn asks_later(&mut self, wish: Wish) -> bool {
        let waits = wish.mode == Mode::Write && !wish.once;
        match self.world.mutant {
            Some(Mutant::UnseenWriter) => waits,
            Some(Mutant::OutOfOrder) => waits && self.rng.bool(),
            _ => false,
        }
    }

    pub fn granted(&self, attempt: Attempt, guard: AnyGuard, wish: Wish) -> Hand {
        let world = &self.world;
        let (number, id) = (world.next_guard(), guard.id());
        let remaining_us = micros(guard.remaining());
        world.record(What::Granted { attempt, guard: number, id, token: guard.token().as_u64(), remaining_us });
        let key = self.manager.engine.key(&name(wish.lock)).expect("a valid name");
        let process = self.address.process;
        world.enters(Live { guard: number, process, key, lock: wish.lock, id, watch: guard.watch() });
        self.in_hand(number, guard, wish)
    }

    /// Works under the lock until the work is done or the hold is lost.
    async fn hold(&mut self, hand: &Hand) {
        for _ in 0..self.rng.u32(1..4) {
            self.use_resource(hand).await;
            let long = self.rng.u32(0..6) == 0;
            let rest = Duration::from_millis(if long { self.rng.u64(0..2_500) } else { self.rng.u64(0..200) });
            tokio::select! {
                biased;
                reason = hand.lost() => return self.world.record(What::LossSeen { guard: hand.number, reason }),
                () = sleep(rest) => {}
            }
        }
    }

    async fn use_resource(&mut self, hand: &Hand) {
        let (guard, valid) = (hand.number, self.use_fenced(hand));
        let takes = Duration::from_millis(self.rng.u64(0..30));
        self.world.record(What::Inside { guard, valid });
        sleep(takes).await;
        self.world.record(What::Outside { guard, valid: is_valid(hand.state()) });
    }

    /// Uses the resource that checks tokens. Returns true if the guard takes its hold for valid.
    fn use_fenced(&self, hand: &Hand) -> bool {
        self.sample(hand);
        let (valid, token) = (is_valid(hand.state()), hand.token());
        let accepted = self.world.use_fenced(hand.wish.lock, token);
        self.world.record(What::Fenced { guard: hand.number, valid, token: token.as_u64(), accepted });
        valid
    }

    pub fn sample(&self, hand: &Hand) {
        let key = self.manager.engine.key(&name(hand.wish.lock)).expect("a valid name");
        let server_ms = self.world.server_ms(&key, hand.id());
        let remaining_us = Some(micros(hand.remaining()));
        let state = hand.state();
        let (valid, confirmed) = (is_valid(state), state == HoldState::Held);
        self.world.record(What::Sample { guard: hand.number, valid, confirmed, remaining_us, server_ms });
    }

    /// Takes the lock once more as the same owner.
    async fn nest(&mut self, outer: &Hand, wish: Wish) -> std::result::Result<Option<Hand>, Closed> {
        if !is_valid(outer.state()) {
            return Ok(None);
        }
        let mode = if self.rng.bool() { Mode::Read } else { Mode::Write };
        self.take(Wish { mode, once: true, within: Some(outer.number), ..wish }).await
    }

    /// Converts the guard to the other side, or leaves it. `None` if both holds are given up.
    async fn convert(&mut self, hand: Hand) -> Option<Hand> {
        if self.rng.u32(0..4) >= self.world.profile.converts {
            return Some(hand);
        }
        match self.converted(hand).await {
            Ok(converted_hand) => converted_hand,
            Err(in_doubt) => {
                self.hold(&in_doubt).await;
                if in_doubt.number.is_multiple_of(2) {
                    return Some(in_doubt);
                }
                self.converted(in_doubt).await.unwrap_or_else(Some)
            }
        }
    }

    /// Converts the guard, and returns it unchanged as the error if no answer came.
    async fn converted(&mut self, hand: Hand) -> std::result::Result<Option<Hand>, Hand> {
        let mode = match *hand {
            AnyGuard::Read(_) => Mode::Write,
            AnyGuard::Write(_) => Mode::Read,
        };
        let number = hand.number;
        let wish = Wish { mode, converts: Some(number), once: true, wait_ms: None, ..hand.wish };
        let attempt = self.asks(wish);
        let lets_go = What::LetGo { guard: number, how: Letting::CutConversion };
        let cut_off = self.otherwise(vec![What::Failed { attempt, end: End::Cut }, lets_go.clone()]);
        let converting = ActingFor::new(&self.world, attempt, hand.opens().turn());
        let cut = (self.rng.u32(0..6) == 0).then(|| self.rng.u32(0..8));
        let outcome = match cut {
            Some(waits) => CutAt::new(waits, converting).await,
            None => Some(converting.await),
        };
        cut_off.known();
        match outcome {
            Some(Err((guard, end))) => {
                self.world.record(What::Failed { attempt, end });
                let hand = self.in_hand(number, guard, wish);
                if end == End::Unreachable { Err(hand) } else { Ok(Some(hand)) }
            }
            Some(Ok(guard)) => {
                self.world.record(What::LetGo { guard: number, how: Letting::Converted });
                let hand = self.granted(attempt, guard, wish);
                self.hold(&hand).await;
                Ok(Some(hand))
            }
            None => {
                self.world.record(What::Failed { attempt, end: End::Cut });
                self.world.record(lets_go);
                Ok(None)
            }
        }
    }

    async fn let_go(&mut self, hand: Hand) {
        self.sample(&hand);
        let (number, may_leak) = (hand.number, hand.wish.may_leak());
        let guard = hand.opens();
        let pick = self.rng.u32(0..20);
        let how = match pick {
            0..5 => Letting::Drop,
            5 if may_leak => Letting::Leak,
            _ => Letting::Release,
        };
        self.world.record(What::LetGo { guard: number, how });
        match how {
            Letting::Drop => drop(guard),
            Letting::Leak => {
                self.world.leaked.lock().push(guard);
                // Later attempts are not nested in the leaked guard.
                self.owner = OwnerId::new();
            }
            Letting::Release => {
                let cut = (pick > 16).then(|| self.rng.u32(0..4));
                let cut_off = self.otherwise(vec![What::Released { guard: number, how: Released::Cut }]);
                let outcome = match cut {
                    Some(waits) => CutAt::new(waits, guard.release()).await,
                    None => Some(guard.release().await),
                };
                cut_off.known();
                self.world.record(What::Released { guard: number, how: released(outcome) });
            }
            Letting::Converted | Letting::CutConversion => unreachable!("no way to let go"),
        }
    }
}

impl Wish {
    /// Returns true if the guard may be leaked. Some would keep others out for an hour.
    pub fn may_leak(&self) -> bool {
        self.max_hold_ms < 10_000 && self.within.is_none()
    }
}

pub fn released(outcome: Option<Result<()>>) -> Released {
    match outcome {
        Some(Ok(())) => Released::Ours,
        Some(Err(Error::Lost { reason, .. })) => Released::Lost(reason),
        Some(Err(Error::Unreachable { .. } | Error::NoQuorum { .. })) => Released::Unreachable,
        Some(Err(other)) => panic!("no fault of the simulation leads to {other}"),
        None => Released::Cut,
    }
}

pub fn name(lock: Lock) -> String {
    char::from(lock).to_string()
}

pub async fn taking(manager: SimManager, owner: OwnerId, wish: Wish) -> Result<Option<AnyGuard>> {
    let name = name(wish.lock);
    match wish.mode {
        Mode::Read => Ok(asked(manager.read(&name), owner, wish).await?.map(AnyGuard::Read)),
        Mode::Write => Ok(asked(manager.write(&name), owner, wish).await?.map(AnyGuard::Write)),
    }
}

async fn asked<G: Guard>(acquire: Acquire<G>, owner: OwnerId, wish: Wish) -> Result<Option<G>> {
    let mut acquire = if wish.reentrant { acquire.owner(owner) } else { acquire };
    acquire = acquire.lease(Duration::from_millis(wish.lease_ms)).max_hold(Duration::from_millis(wish.max_hold_ms));
    if let Some(wait_ms) = wish.wait_ms {
        acquire = acquire.wait_timeout(Duration::from_millis(wait_ms));
    }
    if wish.once { acquire.try_now().await } else { acquire.await.map(Some) }
}
