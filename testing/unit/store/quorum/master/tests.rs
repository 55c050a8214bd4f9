//! Releases at single masters, which the background of the manager repeats.

use std::sync::Weak;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use super::super::outstanding::MAX_PENDING_RELEASES;
use super::super::{Margins, Quorum, Restarts, request_to_master};
use super::*;
use crate::base::options::Options;
use crate::engine::Engine;
use crate::lock::release::Release;
use crate::store::memory::{MemoryScheme, Store};
use crate::store::{AcquireRequest, Acquired, AcquisitionId, MasterRelease, Mode, ReleaseBackground, Scheme};
use crate::testing::staged::{Fate, STRAY, Staged};

const LEASE: Duration = Duration::from_secs(60);

/// Manager of three masters.
struct Stage {
    masters: [Arc<Staged>; 3],
    quorum: Arc<Quorum>,
    engine: Engine,
}

fn key_of(name: &str) -> Key {
    Key::new("quorum", name).expect("a name")
}

fn asks(n: u64) -> AcquireRequest {
    request_to_master(&AcquisitionId::new("m", n, "test"), Mode::Write, LEASE)
}

impl Stage {
    fn new() -> Self {
        let master = |_| Arc::new(Staged::new(MemoryScheme::new(Arc::new(Store::new()))));
        let masters: [_; 3] = std::array::from_fn(master);
        let schemes = masters.iter().map(|master| Arc::clone(master) as Arc<dyn MasterScheme>).collect();
        let margins = Margins { max_clock_skew: Duration::ZERO, max_delay: STRAY };
        let (runtime, restarts) = (BackgroundRuntime::Callers, Restarts::Delayed);
        let quorum = Arc::new(Quorum::new(schemes, &runtime, &key_of("-"), margins, restarts, LEASE));
        let engine = Engine::new(Arc::<Quorum>::clone(&quorum), Options::default());
        Self { masters, quorum, engine }
    }

    /// Takes the lock at one master alone.
    async fn takes(&self, master: usize, name: &str, request: &AcquireRequest) {
        let taken = self.masters[master].memory.acquire(&key_of(name), request).await.expect("answered").value;
        assert!(matches!(taken, Acquired::Granted(_)), "{taken:?}");
    }

    /// Takes the lock at the first master, and hands its release to the background.
    async fn gives_back_lock(&self, name: &str) {
        self.gives_back(self.release_of(name).await);
    }

    /// Takes the lock at the first master, and returns its release.
    async fn release_of(&self, name: &str) -> MasterRelease {
        self.takes(0, name, &asks(1)).await;
        MasterRelease {
            route: self.quorum.masters[0].route.clone(),
            key: Arc::new(key_of(name)),
            id: asks(1).id,
            server_until: self.engine.clock.now().after(LEASE),
            arrives_until: None,
            pending: Box::new(self.quorum.outstanding.count_release(&self.quorum.masters[0], None)),
        }
    }

    fn gives_back(&self, release: MasterRelease) {
        self.engine.keep_running();
        self.engine.releases.release_at_master(release);
    }

    /// Keeps the background from sending releases to the first master until both signals.
    async fn hangs(&self) -> [oneshot::Sender<()>; 2] {
        let (signals, signalled): (Vec<_>, Vec<_>) = (0..2).map(|_| oneshot::channel()).unzip();
        for signalled in signalled {
            self.masters[0].next_leave(Fate::Silent(signalled));
            self.gives_back_lock("hangs").await;
            moment().await;
        }
        signals.try_into().expect("two")
    }

    /// Returns the number of releases that the background has to repeat at the first master.
    fn pending(&self) -> usize {
        Arc::strong_count(&self.quorum.masters[0].pending_releases) - 1
    }

    async fn holders(&self, master: usize, name: &str) -> usize {
        holders_at(&self.masters[master], name).await
    }

    /// Drops the manager, and returns what is left of it.
    fn drop_manager(self) -> ([Arc<Staged>; 3], Weak<Quorum>) {
        let weak = Arc::downgrade(&self.quorum);
        (self.masters, weak)
    }

    async fn is_free(&self, name: &str) {
        while self.holders(0, name).await > 0 {
            tokio::task::yield_now().await;
        }
    }
}

async fn holders_at(master: &Staged, name: &str) -> usize {
    master.memory.inspect(&key_of(name)).await.expect("answered").value.holders.len()
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Lets all tasks run that have something to do.
async fn moment() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

#[test]
fn releases_outlive_the_runtime_that_was_to_send_them() {
    let (first, second) = (runtime(), runtime());
    let stage = first.block_on(async {
        let stage = Stage::new();
        // Starts a driver, which is never polled.
        stage.gives_back_lock("one").await;
        stage
    });
    drop(first);
    second.block_on(async {
        assert_eq!(stage.holders(0, "one").await, 1, "the driver has ended before");
        stage.gives_back_lock("two").await;
        stage.is_free("one").await;
        stage.is_free("two").await;
    });
}

#[test]
fn release_whose_runtime_ends_before_the_answer_is_sent_again() {
    let (first, second) = (runtime(), runtime());
    let (_signal, signalled) = oneshot::channel();
    let stage = first.block_on(async {
        let stage = Stage::new();
        stage.masters[0].next_leave(Fate::Silent(signalled));
        stage.gives_back_lock("cfg").await;
        moment().await;
        assert_eq!((stage.masters[0].scripts(), stage.holders(0, "cfg").await), (1, 1));
        stage
    });
    drop(first);
    second.block_on(async {
        stage.engine.keep_running();
        stage.is_free("cfg").await;
    });
}

#[tokio::test(start_paused = true)]
async fn release_is_sent_again_when_no_copy_can_arrive_any_more() {
    let stage = Stage::new();
    let release = stage.release_of("cfg").await;
    let arrives_until = Some(stage.engine.clock.now().after(STRAY));
    stage.gives_back(MasterRelease { arrives_until, ..release });
    moment().await;
    assert_eq!(stage.holders(0, "cfg").await, 0, "the first release is sent at once");
    stage.takes(0, "cfg", &asks(1)).await;
    tokio::time::sleep(STRAY).await;
    assert_eq!((stage.holders(0, "cfg").await, stage.pending()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn release_without_an_answer_is_repeated_until_the_lease_is_over() {
    let stage = Stage::new();
    let release = stage.release_of("cfg").await;
    let server_until = stage.engine.clock.now().after(STRAY);
    (0..100).for_each(|_| stage.masters[0].next_leave(Fate::NotDone));
    stage.gives_back(MasterRelease { server_until, ..release });
    tokio::time::sleep(STRAY - Duration::from_millis(1)).await;
    assert_eq!(stage.pending(), 1);
    tokio::time::sleep(STRAY).await;
    assert_eq!(stage.pending(), 0);
    assert!((3..100).contains(&stage.masters[0].scripts()), "{} were sent", stage.masters[0].scripts());
}

#[tokio::test(start_paused = true)]
async fn releases_for_a_master_are_bounded_and_the_oldest_go_first() {
    let stage = Stage::new();
    let signals = stage.hangs().await;
    for name in ["oldest", "second"] {
        stage.gives_back_lock(name).await;
    }
    for _ in stage.pending()..MAX_PENDING_RELEASES {
        stage.gives_back_lock("others").await;
    }
    moment().await;
    assert_eq!(stage.pending(), MAX_PENDING_RELEASES);
    stage.gives_back_lock("newest").await;
    moment().await;
    assert_eq!(stage.pending(), MAX_PENDING_RELEASES);
    signals.into_iter().for_each(|signal| signal.send(()).expect("the background waits for it"));
    tokio::time::sleep(STRAY).await;
    for (name, held) in [("hangs", 0), ("oldest", 1), ("second", 0), ("newest", 0)] {
        assert_eq!(stage.holders(0, name).await, held, "{name}");
    }
    assert_eq!(stage.pending(), 0);
}

#[tokio::test(start_paused = true)]
async fn release_is_dropped_when_its_hold_is_over() {
    let stage = Stage::new();
    let signals = stage.hangs().await;
    for n in 0..10 {
        let release = stage.release_of("cfg").await;
        stage.gives_back(MasterRelease { server_until: stage.engine.clock.now().after(STRAY), ..release });
        tokio::time::sleep(STRAY * 2).await;
        assert_eq!(stage.pending(), 3, "after {n}");
    }
    drop(signals);
}

/// A majority has decided, so a minority that does not answer delays no caller.
#[tokio::test(start_paused = true)]
async fn flush_and_close_do_not_wait_for_a_minority() {
    let stage = Stage::new();
    let (signal, signalled) = oneshot::channel();
    stage.masters[0].next_leave(Fate::Silent(signalled));
    stage.gives_back_lock("cfg").await;
    let began = stage.engine.clock.now();
    stage.engine.flush().await.expect("nothing else is left");
    stage.engine.close().await.expect("nothing else is left");
    assert_eq!(stage.engine.clock.now(), began);
    signal.send(()).expect("the background waits for it");
    tokio::time::sleep(STRAY).await;
    assert_eq!((stage.holders(0, "cfg").await, stage.pending()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn late_grant_is_released_although_the_manager_is_gone() {
    let stage = Stage::new();
    for master in [0, 1] {
        stage.takes(master, "cfg", &asks(1)).await;
    }
    let (signal, signalled) = oneshot::channel();
    stage.masters[2].next_acquire(Fate::Answered(signalled));
    // As each acquisition of the engine does.
    stage.engine.keep_running();
    let tried = stage.quorum.acquire(&key_of("cfg"), &asks(2)).await.expect("answered").value;
    assert!(matches!(tried, Acquired::Contended { .. }), "{tried:?}");
    let (masters, weak) = stage.drop_manager();
    moment().await;
    assert_eq!(holders_at(&masters[2], "cfg").await, 1, "no answer has come");
    signal.send(()).expect("the request waits for it");
    moment().await;
    assert_eq!((holders_at(&masters[2], "cfg").await, weak.strong_count()), (0, 0));
}

/// The background still has to send the release when it outlives the manager.
#[tokio::test(start_paused = true)]
async fn release_that_a_minority_misses_is_repeated_although_the_manager_is_gone() {
    let stage = Stage::new();
    let granted = stage.quorum.acquire(&key_of("cfg"), &asks(1)).await.expect("answered").value;
    assert!(matches!(granted, Acquired::Granted(_)), "{granted:?}");
    let (signal, signalled) = oneshot::channel();
    stage.masters[2].next_leave(Fate::Silent(signalled));
    let server_until = stage.engine.clock.now().after(LEASE);
    let release =
        Release { key: Arc::new(key_of("cfg")), id: asks(1).id, server_until, arrives_until: None, rest_until: None };
    stage.engine.keep_running();
    stage.engine.releases.in_background(release, None);
    let (masters, weak) = stage.drop_manager();
    moment().await;
    for (master, held) in masters.iter().zip([0, 0, 1]) {
        assert_eq!(holders_at(master, "cfg").await, held);
    }
    signal.send(()).expect("the release waits for it");
    tokio::time::sleep(STRAY).await;
    assert_eq!((holders_at(&masters[2], "cfg").await, weak.strong_count()), (0, 0));
}
