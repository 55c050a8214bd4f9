//! `flush`: everything that was dropped is released when it returns, and nothing else is touched.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use redis_rwlock::HoldState;
use tokio::runtime::{Builder, Runtime};

use crate::fixture::{Fixture, Manager, Settings, on_every_fixture};
use crate::wait::{Outcome, Polled, begin, soon};

on_every_fixture![
    dropped_guards_and_futures_are_gone_after_a_flush,
    flush_touches_nothing_that_is_there,
    program_that_flushes_leaves_nothing,
];

const ROUNDS: usize = 100;
const DROPS: &str = "drops";

/// Nothing goes away by itself while a case looks.
fn patient(label: &str) -> Settings {
    Settings { lease: Duration::from_secs(300), ..Settings::label(label) }
}

fn names(f: &Fixture) -> Vec<String> {
    (0..ROUNDS).map(|_| f.name()).collect()
}

/// Holds that are kept stay with their process.
async fn assert_nothing_is_left(looks: &Manager, names: impl IntoIterator<Item = &String>) {
    for (round, name) in names.into_iter().enumerate() {
        let view = looks.inspect(name).await.expect("inspected");
        assert!(view.waiters.iter().all(|waiter| waiter.label != DROPS), "round {round}: {view:?}");
        assert!(view.holders.iter().all(|holder| holder.label != DROPS || holder.cached), "round {round}: {view:?}");
    }
}

async fn dropped_guards_and_futures_are_gone_after_a_flush(f: &Fixture) -> Outcome {
    let (drops, other) = (f.manager_with(patient(DROPS)).await, f.manager_with(patient("other")).await);
    let (free, held) = (names(f), names(f));
    let inside = try_join_all(held.iter().map(|name| other.write(name).into_future())).await?;
    drop(try_join_all(free.iter().map(|name| drops.write(name).into_future())).await?);
    // Queued, under way, or not asked yet: by its polls.
    let waits = held.iter().zip((0..4).cycle()).map(|(name, polls)| {
        let waiting = drops.write(name).into_future();
        async move { assert!(Polled::times(polls, waiting).await.is_none(), "it is held") }
    });
    soon("the last poll", join_all(waits)).await;
    soon("the flush", drops.flush()).await?;
    assert_nothing_is_left(&other, free.iter().chain(&held)).await;
    for guard in inside {
        guard.release().await?;
    }
    Ok(())
}

async fn flush_touches_nothing_that_is_there(f: &Fixture) -> Outcome {
    let (manager, other) = (f.manager().await, f.manager().await);
    let (name, held) = (f.name(), f.name());
    let guard = manager.write(&name).await?;
    let inside = other.write(&held).await?;
    let waits = begin(manager.write(&held));
    soon("the flush", manager.flush()).await.expect("nothing was dropped");
    assert_eq!(guard.state(), HoldState::Held);
    inside.release().await?;
    soon("the grant", waits).await.expect("it goes on").release().await?;
    guard.release().await?;
    Ok(())
}

fn runtimes() -> [Runtime; 2] {
    [Builder::new_current_thread(), Builder::new_multi_thread()]
        .map(|mut builder| builder.enable_all().build().expect("a runtime starts"))
}

/// A program connects, drops what it has, and ends with a flush: on either runtime of tokio.
async fn program_that_flushes_leaves_nothing(f: &Fixture) -> Outcome {
    let ([looks], held) = f.scene().await;
    let inside = looks.write(&held).await?;
    for runtime in runtimes() {
        let free = names(f);
        let (connecting, own, foreign) = (f.connecting(patient(DROPS)), free.clone(), held.clone());
        let program = tokio::task::spawn_blocking(move || {
            runtime.block_on(async {
                let manager: Manager = connecting.await.expect("the manager connects");
                for name in &own {
                    drop(manager.write(name).await.expect("granted"));
                }
                let waits = begin(manager.write(&foreign));
                tokio::task::yield_now().await;
                drop(waits);
                manager.flush().await.expect("the servers answer");
                // As in a program that ends: no destructor runs.
                std::mem::forget(Arc::clone(&manager));
            });
            runtime.shutdown_background();
        });
        soon("the program", program).await?;
        assert_nothing_is_left(&looks, free.iter().chain([&held])).await;
    }
    inside.release().await?;
    Ok(())
}
