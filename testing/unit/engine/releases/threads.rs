//! `close` beside a thread that ends a guard or gets one, in each order of their accesses to shared memory.
//!
//! Two scenes have a slip, which is a planted fault of a wrong driver.

use std::sync::Mutex as StdMutex;
use std::task::Poll;
use std::time::Instant;

use super::*;
use crate::base::sync::scheduler::{ThreadBody, ThreadScene, explore_orders};
use crate::lock::hold::{HoldState, ShareRemoved};

/// Faults of a wrong driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CloseSlip {
    /// Counts a release after the change of its hold.
    CountsAfterItChanged,
    /// Refuses new acquisitions after the end of all holds.
    RefusesAfterItListed,
}

/// Manager with its server in memory, and a runtime in which no task runs.
struct CloseStage {
    stage: Stage,
    runtime: Runtime,
    /// Result of the first poll of `close`, if that was the last.
    closed: Arc<StdMutex<Option<Result<(), Error>>>>,
}

impl CloseStage {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        let stage = runtime.block_on(async { Stage::new() });
        Self { stage, runtime, closed: Arc::default() }
    }

    fn take(&self) -> Held {
        self.runtime.block_on(self.stage.take())
    }

    /// Returns a thread that polls a future once, in the runtime.
    fn polls<T: 'static>(
        &self,
        work: impl AsyncFnOnce(Arc<Engine>) -> T + Send + 'static,
        done: impl FnOnce(T) + Send + 'static,
    ) -> ThreadBody {
        let (engine, runtime) = (Arc::clone(&self.stage.engine), self.runtime.handle().clone());
        Box::new(move || {
            let _entered = runtime.enter();
            let mut future = Box::pin(work(engine));
            if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                done(result);
            }
        })
    }

    fn closes(&self, slip: Option<CloseSlip>) -> ThreadBody {
        let closed = Arc::clone(&self.closed);
        let close = async move |engine: Arc<Engine>| match slip {
            Some(CloseSlip::RefusesAfterItListed) => list_and_then_refuse(&engine).await,
            _ => engine.close().await,
        };
        self.polls(close, move |result| *closed.lock().expect("no panic") = Some(result))
    }

    /// A manager that is closed has no hold on the server.
    fn judge(&self) -> Result<(), String> {
        let closed = self.closed.lock().expect("no panic").take();
        match (closed, self.runtime.block_on(self.stage.holders())) {
            (None | Some(Ok(())), 0) | (None, _) => Ok(()),
            (closed, holders) => Err(format!("closed with {holders} holders on the server: {closed:?}")),
        }
    }
}

/// The wrong form of `Engine::guard_dropped`.
fn change_and_then_count(held: Held) {
    let (engine, hold, share_id) = held.into_parts();
    if hold.remove_share(share_id, engine.clock.now()) == ShareRemoved::Last {
        let _unsettled = engine.releases.begin_unsettled();
        engine.release_from_here(&hold);
    }
}

/// The wrong form of `Engine::close`.
async fn list_and_then_refuse(engine: &Engine) -> Result<(), Error> {
    for hold in engine.table.all_holds() {
        hold.lose(LossReason::Closed);
        engine.release_in_background(&hold);
    }
    engine.closing.closed.store(true, Ordering::SeqCst);
    engine.releases.await_resolved().await;
    Ok(())
}

fn guard_is_dropped(slip: Option<CloseSlip>) -> ThreadScene {
    let stage = CloseStage::new();
    let held = stage.take();
    let drops: ThreadBody = Box::new(move || match slip {
        Some(CloseSlip::CountsAfterItChanged) => change_and_then_count(held),
        _ => drop(held),
    });
    ThreadScene::new([drops, stage.closes(slip)], move || stage.judge())
}

fn guard_is_released(slip: Option<CloseSlip>) -> ThreadScene {
    let stage = CloseStage::new();
    let held = stage.take();
    let releases = stage.polls(async move |_| held.release().await, drop);
    ThreadScene::new([releases, stage.closes(slip)], move || stage.judge())
}

fn guard_is_handed_out(slip: Option<CloseSlip>) -> ThreadScene {
    let stage = CloseStage::new();
    let guard = Arc::new(StdMutex::new(None));
    let granted = Arc::clone(&guard);
    let acquires = async move |engine: Arc<Engine>| {
        let terms = Terms::new(engine.options(), Overrides::default()).expect("valid");
        let key = engine.key(NAME).expect("valid");
        acquire(&engine, key, Write, terms, Patience::Wait).await
    };
    let acquires = stage.polls(acquires, move |result| {
        *granted.lock().expect("no panic") = result.ok().flatten();
    });
    ThreadScene::new([acquires, stage.closes(slip)], move || {
        let held: Option<Held> = guard.lock().expect("no panic").take();
        match held.map(|held| held.state()) {
            Some(HoldState::Held | HoldState::Unconfirmed) => Err("a guard is valid after `close`".into()),
            Some(HoldState::Lost(_)) | None => stage.judge(),
        }
    })
}

type CloseSceneOf = fn(Option<CloseSlip>) -> ThreadScene;

const SCENES: [(&str, CloseSceneOf); 3] = [
    ("a guard is dropped", guard_is_dropped),
    ("a guard is released", guard_is_released),
    ("a guard is handed out", guard_is_handed_out),
];

fn explore_all(preemptions: usize) {
    for (name, scene) in SCENES {
        let began = Instant::now();
        let orders = explore_orders(preemptions, || scene(None)).unwrap_or_else(|found| panic!("{name}: {found:?}"));
        println!("{orders} orders, {:?}: {name}", began.elapsed());
    }
}

#[test]
fn close_beside_a_guard_is_right_in_each_order() {
    explore_all(1);
}

#[test]
#[cfg_attr(not(redis_rwlock_optimised), ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn close_beside_a_guard_is_right_with_more_preemptions() {
    explore_all(2);
}

#[test]
fn each_slip_beside_close_is_found() {
    let slips: [(CloseSlip, CloseSceneOf, &str); 2] = [
        (CloseSlip::CountsAfterItChanged, guard_is_dropped, "closed with 1 holders on the server"),
        (CloseSlip::RefusesAfterItListed, guard_is_handed_out, "a guard is valid after `close`"),
    ];
    for (slip, scene, what) in slips {
        let found = explore_orders(1, || scene(Some(slip))).expect_err("the slip makes a difference");
        println!("{slip:?}: {found:?}");
        assert!(found.what.starts_with(what), "{slip:?}: {found:?}");
    }
}
