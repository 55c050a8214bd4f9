//! Short scenes, which random runs would show rarely or never. Each scene shows one fault that is known to be possible.

mod cached;

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use super::gate::ActingFor;
use super::history::{Attempt, End, Guard, Letting, Lock, Process, What, Wish};
use super::runtime::Runtime;
use super::workload::{Actor, AnyGuard, Leaked, SimManager, released, taking};
use super::world::{Address, Down, World};
use crate::base::options::Options;
use crate::base::reentry::OwnerId;
use crate::store::{BoxFuture, Mode};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scene {
    /// The first call was made on a runtime that is no longer driven.
    RuntimeNotDriven,
    /// The runtime of the first call ends while an attempt waits.
    RuntimeEnds,
    /// A share is offered to a future that is not polled.
    OfferToNobody,
    /// Two attempts with a limit wait for a silent server.
    OutageForTwo,
    /// Two readers ask for a free lock at once, one of them with a very short limit.
    TwoReadersAsk,
    /// A guard goes on while its renewals fail, and cannot be upgraded.
    UpgradeInAnOutage,
    /// An upgrade is carried out, and its answer is lost.
    UpgradeUnheard,
    /// An upgrade never arrives, and all other requests do.
    UpgradeLost,
    /// A nested guard has a limit of its own.
    NestedLimit,
    /// The server restarts without its data, and a hold is released before a renewal shows the loss.
    ReleaseOfALostHold,
    /// A process asks for many locks at once.
    Burst,
    /// A lock is taken very often in no time. Then the server restarts without its data and with the same clock.
    HotLock,
    /// A process that receives no recall has cached holds, and the server is away and replaced.
    UsedAlone,
}

/// Process whose user acts as the scene says.
struct Player {
    actor: Actor,
}

const LEASE_MS: u64 = 3_000;

fn wish(lock: Lock, mode: Mode) -> Wish {
    Wish::new(lock, mode, LEASE_MS)
}

impl Player {
    fn enters(world: &Arc<World>, leaked: &Leaked, process: Process) -> Self {
        let address = Address::new(process);
        let options = Options { unreachable_after: Duration::from_secs(2), ..Options::default() };
        let options = if world.profile.caches {
            Options { cache_for: Duration::from_secs(10), response_timeout: Duration::from_millis(200), ..options }
        } else {
            options
        };
        let manager = SimManager::with(world, &address, options);
        let rng = world.draw(fastrand::Rng::fork);
        let owner = OwnerId::new();
        let (world, leaked, runtime) = (Arc::clone(world), Arc::clone(leaked), Runtime::new(0));
        Self { actor: Actor { world, address, manager, rng, owner, leaked, runtime } }
    }

    /// Begins to take a lock.
    fn asks(&self, wish: Wish) -> Asking<'_> {
        let world = &self.actor.world;
        let attempt = self.actor.asks(wish);
        let taking = ActingFor::new(world, attempt, taking(self.actor.manager.clone(), self.actor.owner, wish));
        Asking { player: self, wish, attempt, taking: Box::pin(taking) }
    }

    async fn takes(&self, wish: Wish) -> Option<(Guard, AnyGuard)> {
        self.asks(wish).ends().await
    }

    async fn releases(&self, (number, guard): (Guard, AnyGuard)) {
        let world = &self.actor.world;
        world.record(What::LetGo { guard: number, how: Letting::Release });
        world.leaves(number);
        let outcome = guard.release().await;
        world.record(What::Released { guard: number, how: released(Some(outcome)) });
    }

    /// Samples a guard now and then until it is lost or the time is over.
    async fn hold_for(&self, (number, guard): &(Guard, AnyGuard), lock: Lock, for_ms: u64) {
        let world = &self.actor.world;
        for _ in 0..for_ms / 100 {
            self.actor.sample(*number, guard, lock);
            tokio::select! {
                biased;
                reason = guard.lost() => return world.record(What::LossSeen { guard: *number, reason }),
                () = tokio::time::sleep(Duration::from_millis(100)) => {}
            }
        }
    }

    /// Upgrades a guard while no answer comes.
    async fn upgrades_in_vain(&self, (number, guard): (Guard, AnyGuard), wish: Wish) -> AnyGuard {
        let world = &self.actor.world;
        let attempt = self.actor.asks(Wish { mode: Mode::Write, converts: Some(number), once: true, ..wish });
        let converted = ActingFor::new(world, attempt, guard.turn()).await;
        let (guard, end) = converted.expect_err("nobody answers");
        world.record(What::Failed { attempt, end });
        self.actor.sample(number, &guard, wish.lock);
        guard
    }

    async fn keeps_and_releases(&self, held: Option<(Guard, AnyGuard)>, lock: Lock, for_ms: u64) {
        if let Some(held) = held {
            self.hold_for(&held, lock, for_ms).await;
            self.releases(held).await;
        }
    }
}

/// Acquisition under way.
struct Asking<'a> {
    player: &'a Player,
    wish: Wish,
    attempt: Attempt,
    taking: BoxFuture<'a, crate::Result<Option<AnyGuard>>>,
}

impl Asking<'_> {
    /// Polls the acquisition once; it must not be ready.
    fn begins(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        assert!(self.taking.as_mut().poll(&mut context).is_pending(), "it waits");
    }

    async fn ends(self) -> Option<(Guard, AnyGuard)> {
        let actor = &self.player.actor;
        let end = match self.taking.await {
            Ok(Some(guard)) => return Some(actor.granted(self.attempt, guard, self.wish)),
            Ok(None) => End::Busy,
            Err(error) => End::of(&error),
        };
        actor.world.record(What::Failed { attempt: self.attempt, end });
        None
    }

    fn gives_up(self) {
        let (world, attempt) = (Arc::clone(&self.player.actor.world), self.attempt);
        drop(self);
        world.record(What::Failed { attempt, end: End::Cut });
    }
}

pub async fn play(world: &Arc<World>, leaked: &Leaked, scene: Scene) {
    world.heals();
    match scene {
        Scene::RuntimeNotDriven | Scene::RuntimeEnds => other_runtime(world, leaked, scene).await,
        Scene::OfferToNobody => offer_to_nobody(world, leaked).await,
        Scene::OutageForTwo => outage_for_two(world, leaked).await,
        Scene::TwoReadersAsk => two_readers_ask(world, leaked).await,
        Scene::UpgradeInAnOutage => upgrade_in_an_outage(world, leaked).await,
        Scene::UpgradeUnheard => upgrade_in_doubt(world, leaked, Down::Unheard).await,
        Scene::UpgradeLost => upgrade_in_doubt(world, leaked, Down::ForConversions).await,
        Scene::NestedLimit => nested_limit(world, leaked).await,
        Scene::ReleaseOfALostHold => release_of_a_lost_hold(world, leaked).await,
        Scene::Burst => burst(world, leaked).await,
        Scene::HotLock => hot_lock(world, leaked).await,
        Scene::UsedAlone => cached::used_alone(world, leaked).await,
    }
}

async fn other_runtime(world: &Arc<World>, leaked: &Leaked, scene: Scene) {
    let other = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let (holder, player) = (Player::enters(world, leaked, 0), Player::enters(world, leaked, 1));
    let inside = holder.takes(wish(b'a', Mode::Write)).await;
    // The first call does not reach the network, because that would take the time of the other runtime.
    player.actor.address.gate.close();
    let mut first = player.asks(wish(b'b', Mode::Write));
    {
        let _entered = other.enter();
        first.begins();
    }
    player.actor.address.gate.open();
    let waiting = player.takes(wish(b'a', Mode::Write));
    let leaves = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        if scene == Scene::RuntimeEnds {
            other.shutdown_background();
            holder.keeps_and_releases(inside, b'a', 100).await;
            None
        } else {
            holder.keeps_and_releases(inside, b'a', 100).await;
            Some(other)
        }
    };
    let (held, other) = tokio::join!(waiting, leaves);
    player.keeps_and_releases(held, b'a', 2 * LEASE_MS).await;
    first.gives_up();
    if let Some(other) = other {
        other.shutdown_background();
    }
}

async fn offer_to_nobody(world: &Arc<World>, leaked: &Leaked) {
    let (player, other) = (Player::enters(world, leaked, 0), Player::enters(world, leaked, 1));
    // A lock without a record has one token, and none to hand on.
    let held = player.takes(wish(b'a', Mode::Write)).await;
    player.keeps_and_releases(held, b'a', 100).await;
    // Longer than earlier messages can be on their way.
    tokio::time::sleep(Duration::from_secs(11)).await;
    let long = Wish { lease_ms: 30_000, ..wish(b'a', Mode::Write) };
    let first = player.asks(long);
    let mut nobody = player.asks(long);
    let inside = async {
        let held = first.ends().await.expect("the lock is free");
        player.releases(held).await;
    };
    let polls = async {
        tokio::task::yield_now().await;
        nobody.begins();
    };
    tokio::join!(inside, polls);
    let waits = Wish { wait_ms: Some(15_000), ..wish(b'a', Mode::Write) };
    let held = other.takes(waits).await;
    other.keeps_and_releases(held, b'a', 100).await;
    nobody.gives_up();
    // The server keeps records of long leases for long.
    tokio::time::sleep(Duration::from_secs(60)).await;
}

async fn outage_for_two(world: &Arc<World>, leaked: &Leaked) {
    let player = Player::enters(world, leaked, 0);
    world.goes_down(0, Down::Silent);
    let limited = Wish { wait_ms: Some(200), ..wish(b'a', Mode::Write) };
    tokio::join!(player.takes(limited), player.takes(limited));
    world.comes_up(0);
}

async fn two_readers_ask(world: &Arc<World>, leaked: &Leaked) {
    let player = Player::enters(world, leaked, 0);
    let at_once = Wish { wait_ms: Some(0), ..wish(b'a', Mode::Read) };
    let (first, second) = tokio::join!(player.takes(wish(b'a', Mode::Read)), player.takes(at_once));
    player.keeps_and_releases(first, b'a', 100).await;
    player.keeps_and_releases(second, b'a', 100).await;
}

async fn upgrade_in_an_outage(world: &Arc<World>, leaked: &Leaked) {
    let player = Player::enters(world, leaked, 0);
    let long = Wish { lease_ms: 10_000, ..wish(b'a', Mode::Read) };
    let (number, guard) = player.takes(long).await.expect("the lock is free");
    world.goes_down(0, Down::Refusing);
    // Renewals have failed by then.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let guard = player.upgrades_in_vain((number, guard), long).await;
    world.comes_up(0);
    player.keeps_and_releases(Some((number, guard)), b'a', 500).await;
}

async fn upgrade_in_doubt(world: &Arc<World>, leaked: &Leaked, down: Down) {
    let player = Player::enters(world, leaked, 0);
    let long = Wish { lease_ms: 10_000, ..wish(b'a', Mode::Read) };
    let (number, guard) = player.takes(long).await.expect("the lock is free");
    world.goes_down(0, down);
    let guard = player.upgrades_in_vain((number, guard), long).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    player.actor.sample(number, &guard, b'a');
    world.comes_up(0);
    player.keeps_and_releases(Some((number, guard)), b'a', 2_000).await;
    let other = Player::enters(world, leaked, 1);
    let held = other.takes(wish(b'a', Mode::Write)).await;
    other.keeps_and_releases(held, b'a', 100).await;
}

async fn nested_limit(world: &Arc<World>, leaked: &Leaked) {
    let player = Player::enters(world, leaked, 0);
    let outer_wish = Wish { reentrant: true, ..wish(b'a', Mode::Write) };
    let outer = player.takes(outer_wish).await.expect("the lock is free");
    let inner_wish = Wish { within: Some(outer.0), max_hold_ms: 1_000, ..outer_wish };
    let inner = player.takes(inner_wish).await;
    player.keeps_and_releases(inner, b'a', 2_000).await;
    player.releases(outer).await;
}

async fn release_of_a_lost_hold(world: &Arc<World>, leaked: &Leaked) {
    let player = Player::enters(world, leaked, 0);
    let held = player.takes(wish(b'a', Mode::Write)).await.expect("the lock is free");
    world.goes_down(0, Down::Refusing);
    // Longer than clocks differ.
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.empties(0);
    world.comes_up(0);
    player.releases(held).await;
}

async fn burst(world: &Arc<World>, leaked: &Leaked) {
    let player = Player::enters(world, leaked, 0);
    let held = player.takes(wish(b'z', Mode::Write)).await;
    let many = (b'!'..=b'~').filter(|lock| *lock != b'z' && *lock != b'{' && *lock != b'}');
    let all = &player;
    let others = futures_util::future::join_all(many.map(|lock| async move {
        let held = all.takes(wish(lock, Mode::Write)).await;
        all.keeps_and_releases(held, lock, 0).await;
    }));
    tokio::join!(player.keeps_and_releases(held, b'z', 2 * LEASE_MS), others);
}

async fn hot_lock(world: &Arc<World>, leaked: &Leaked) {
    let player = Player::enters(world, leaked, 0);
    for pairs in [400, 2] {
        for _ in 0..pairs {
            let held = player.takes(wish(b'a', Mode::Write)).await;
            player.keeps_and_releases(held, b'a', 0).await;
        }
        world.goes_down(0, Down::Refusing);
        tokio::time::sleep(Duration::from_millis(1)).await;
        world.empties(0);
        world.comes_up(0);
    }
}
