//! Short scenes, which random runs would show rarely or never. Each scene shows one fault that is known to be possible.

mod cached;

use super::*;

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

const LEASE_MS: u64 = 3_000;

fn wish(lock: Lock, mode: Mode) -> Wish {
    Wish::new(lock, mode, LEASE_MS)
}

/// Returns a process whose user acts as the scene says.
fn enters(world: &Arc<World>, process: Process) -> Actor {
    let address = Address::new(process);
    let options = Options { unreachable_after: Duration::from_secs(2), ..Options::default() };
    let options = if world.profile.caches {
        Options { cache_for: Duration::from_secs(10), response_timeout: Duration::from_millis(200), ..options }
    } else {
        options
    };
    let manager = SimManager::with(world, &address, options);
    let rng = world.draw(fastrand::Rng::fork);
    Actor { world: Arc::clone(world), address, manager, rng, owner: OwnerId::new(), runtime: Runtime::new(0) }
}

impl Actor {
    /// Begins to take a lock.
    fn begins(&self, wish: Wish) -> Asking<'_> {
        let attempt = self.asks(wish);
        let taking = ActingFor::new(&self.world, attempt, taking(self.manager.clone(), self.owner, wish));
        Asking { actor: self, wish, attempt, taking: Box::pin(taking) }
    }

    async fn takes(&self, wish: Wish) -> Option<Hand> {
        self.begins(wish).ends().await
    }

    async fn releases(&self, hand: Hand) {
        let guard = hand.number;
        self.world.record(What::LetGo { guard, how: Letting::Release });
        let outcome = hand.opens().release().await;
        self.world.record(What::Released { guard, how: released(Some(outcome)) });
    }

    /// Samples a guard now and then until it is lost or the time is over.
    async fn hold_for(&self, hand: &Hand, for_ms: u64) {
        for _ in 0..for_ms / 100 {
            self.sample(hand);
            tokio::select! {
                biased;
                reason = hand.lost() => return self.world.record(What::LossSeen { guard: hand.number, reason }),
                () = sleep_ms(100) => {}
            }
        }
    }

    /// Upgrades a guard while no answer comes.
    async fn upgrades_in_vain(&self, hand: Hand) -> Hand {
        let (number, wish) = (hand.number, hand.wish);
        let attempt = self.asks(Wish { mode: Mode::Write, converts: Some(number), once: true, ..wish });
        let converted = ActingFor::new(&self.world, attempt, hand.opens().turn()).await;
        let (guard, end) = converted.expect_err("nobody answers");
        self.world.record(What::Failed { attempt, end });
        let hand = self.in_hand(number, guard, wish);
        self.sample(&hand);
        hand
    }

    /// Takes a lock, keeps it for a time, and releases it.
    async fn visits(&self, wish: Wish, for_ms: u64) {
        let held = self.takes(wish).await;
        self.keeps_and_releases(held, for_ms).await;
    }

    async fn keeps_and_releases(&self, held: Option<Hand>, for_ms: u64) {
        if let Some(hand) = held {
            self.hold_for(&hand, for_ms).await;
            self.releases(hand).await;
        }
    }
}

/// Acquisition under way.
struct Asking<'a> {
    actor: &'a Actor,
    wish: Wish,
    attempt: Attempt,
    taking: BoxFuture<'a, crate::Result<Option<AnyGuard>>>,
}

impl Asking<'_> {
    /// Polls the acquisition once; it must not be ready.
    fn polls(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        assert!(self.taking.as_mut().poll(&mut context).is_pending(), "it waits");
    }

    async fn ends(self) -> Option<Hand> {
        let end = match self.taking.await {
            Ok(Some(guard)) => return Some(self.actor.granted(self.attempt, guard, self.wish)),
            Ok(None) => End::Busy,
            Err(error) => End::of(&error),
        };
        self.actor.world.record(What::Failed { attempt: self.attempt, end });
        None
    }

    fn gives_up(self) {
        let Self { actor, attempt, taking, .. } = self;
        drop(taking);
        actor.world.record(What::Failed { attempt, end: End::Cut });
    }
}

pub async fn play(world: &Arc<World>, scene: Scene) {
    world.heals();
    match scene {
        Scene::RuntimeNotDriven | Scene::RuntimeEnds => other_runtime(world, scene).await,
        Scene::OfferToNobody => offer_to_nobody(world).await,
        Scene::OutageForTwo => outage_for_two(world).await,
        Scene::TwoReadersAsk => two_readers_ask(world).await,
        Scene::UpgradeInAnOutage => upgrade_in_an_outage(world).await,
        Scene::UpgradeUnheard => upgrade_in_doubt(world, Down::Unheard).await,
        Scene::UpgradeLost => upgrade_in_doubt(world, Down::ForConversions).await,
        Scene::NestedLimit => nested_limit(world).await,
        Scene::ReleaseOfALostHold => release_of_a_lost_hold(world).await,
        Scene::Burst => burst(world).await,
        Scene::HotLock => hot_lock(world).await,
        Scene::UsedAlone => cached::used_alone(world).await,
    }
}

async fn other_runtime(world: &Arc<World>, scene: Scene) {
    let other = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let (holder, player) = (enters(world, 0), enters(world, 1));
    let inside = holder.takes(wish(b'a', Mode::Write)).await;
    // The first call does not reach the network, because that would take the time of the other runtime.
    player.address.gate.close();
    let mut first = player.begins(wish(b'b', Mode::Write));
    {
        let _entered = other.enter();
        first.polls();
    }
    player.address.gate.open();
    let waiting = player.takes(wish(b'a', Mode::Write));
    let leaves = async {
        sleep_ms(200).await;
        let mut other = Some(other);
        if scene == Scene::RuntimeEnds {
            other.take().into_iter().for_each(tokio::runtime::Runtime::shutdown_background);
        }
        holder.keeps_and_releases(inside, 100).await;
        other
    };
    let (held, other) = tokio::join!(waiting, leaves);
    player.keeps_and_releases(held, 2 * LEASE_MS).await;
    first.gives_up();
    if let Some(other) = other {
        other.shutdown_background();
    }
}

async fn offer_to_nobody(world: &Arc<World>) {
    let (player, other) = (enters(world, 0), enters(world, 1));
    // A lock without a record has one token, and none to hand on.
    player.visits(wish(b'a', Mode::Write), 100).await;
    // Longer than earlier messages can be on their way.
    sleep_ms(11_000).await;
    let long = Wish { lease_ms: 30_000, ..wish(b'a', Mode::Write) };
    let first = player.begins(long);
    let mut nobody = player.begins(long);
    let inside = async {
        let held = first.ends().await.expect("the lock is free");
        player.releases(held).await;
    };
    let polls = async {
        tokio::task::yield_now().await;
        nobody.polls();
    };
    tokio::join!(inside, polls);
    let waits = Wish { wait_ms: Some(15_000), ..wish(b'a', Mode::Write) };
    other.visits(waits, 100).await;
    nobody.gives_up();
    // The server keeps records of long leases for long.
    sleep_ms(60_000).await;
}

async fn outage_for_two(world: &Arc<World>) {
    let player = enters(world, 0);
    world.goes_down(0, Down::Silent);
    let limited = Wish { wait_ms: Some(200), ..wish(b'a', Mode::Write) };
    tokio::join!(player.takes(limited), player.takes(limited));
    world.comes_up(0);
}

async fn two_readers_ask(world: &Arc<World>) {
    let player = enters(world, 0);
    let at_once = Wish { wait_ms: Some(0), ..wish(b'a', Mode::Read) };
    let (first, second) = tokio::join!(player.takes(wish(b'a', Mode::Read)), player.takes(at_once));
    player.keeps_and_releases(first, 100).await;
    player.keeps_and_releases(second, 100).await;
}

async fn upgrade_in_an_outage(world: &Arc<World>) {
    let player = enters(world, 0);
    let long = Wish { lease_ms: 10_000, ..wish(b'a', Mode::Read) };
    let hand = player.takes(long).await.expect("the lock is free");
    world.goes_down(0, Down::Refusing);
    // Renewals have failed by then.
    sleep_ms(4_000).await;
    let hand = player.upgrades_in_vain(hand).await;
    world.comes_up(0);
    player.keeps_and_releases(Some(hand), 500).await;
}

async fn upgrade_in_doubt(world: &Arc<World>, down: Down) {
    let player = enters(world, 0);
    let long = Wish { lease_ms: 10_000, ..wish(b'a', Mode::Read) };
    let hand = player.takes(long).await.expect("the lock is free");
    world.goes_down(0, down);
    let hand = player.upgrades_in_vain(hand).await;
    sleep_ms(100).await;
    player.sample(&hand);
    world.comes_up(0);
    player.keeps_and_releases(Some(hand), 2_000).await;
    enters(world, 1).visits(wish(b'a', Mode::Write), 100).await;
}

async fn nested_limit(world: &Arc<World>) {
    let player = enters(world, 0);
    let outer_wish = Wish { reentrant: true, ..wish(b'a', Mode::Write) };
    let outer = player.takes(outer_wish).await.expect("the lock is free");
    let inner_wish = Wish { within: Some(outer.number), max_hold_ms: 1_000, ..outer_wish };
    player.visits(inner_wish, 2_000).await;
    player.releases(outer).await;
}

async fn release_of_a_lost_hold(world: &Arc<World>) {
    let player = enters(world, 0);
    let held = player.takes(wish(b'a', Mode::Write)).await.expect("the lock is free");
    world.goes_down(0, Down::Refusing);
    // Longer than clocks differ.
    sleep_ms(100).await;
    world.empties(0);
    world.comes_up(0);
    player.releases(held).await;
}

async fn burst(world: &Arc<World>) {
    let player = enters(world, 0);
    let held = player.takes(wish(b'z', Mode::Write)).await;
    let many = (b'!'..=b'~').filter(|lock| *lock != b'z' && *lock != b'{' && *lock != b'}');
    let others = futures_util::future::join_all(many.map(|lock| player.visits(wish(lock, Mode::Write), 0)));
    tokio::join!(player.keeps_and_releases(held, 2 * LEASE_MS), others);
}

async fn hot_lock(world: &Arc<World>) {
    let player = enters(world, 0);
    for pairs in [400, 2] {
        for _ in 0..pairs {
            player.visits(wish(b'a', Mode::Write), 0).await;
        }
        world.goes_down(0, Down::Refusing);
        sleep_ms(1).await;
        world.empties(0);
        world.comes_up(0);
    }
}
