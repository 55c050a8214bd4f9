//! A caller that gives up waiting has left nothing behind when it hears of that.

use std::time::Duration;

use redis_rwlock::{Error, LockView, Mode, WriteGuard};

use crate::fixture::{Fixture, Manager, Settings, on_every_fixture};
use crate::wait::{BOUND, Outcome};

on_every_fixture![
    caller_that_gave_up_has_no_place_and_no_hold,
    sole_reader_upgrades_right_after_a_writer_gave_up,
    lock_can_be_taken_right_after_a_waiter_gave_up,
];

/// Where holds are kept a waiter's limit is no shorter than the time that holders have to give one up.
fn rounds(f: &Fixture) -> usize {
    if f.holds_stay() { 4 } else { 100 }
}

/// Long enough for a place in the queue on a quiet machine; what a busy one makes of it is covered all the same.
const LIMIT: Duration = Duration::from_millis(10);
const GIVES_UP: &str = "gives-up";
/// Modes in the order of the rounds.
const EITHER: [Mode; 2] = [Mode::Write, Mode::Read];

/// Nothing goes away by itself while a case looks.
async fn patient(f: &Fixture, label: &str) -> Manager {
    f.manager_with(Settings { lease: Duration::from_secs(300), ..Settings::label(label) }).await
}

async fn gives_up(caller: &Manager, name: &str, mode: Mode) {
    let outcome = match mode {
        Mode::Read => caller.read(name).wait_timeout(LIMIT).await.map(drop),
        Mode::Write => caller.write(name).wait_timeout(LIMIT).await.map(drop),
    };
    assert_matches!(outcome, Err(Error::WaitTimeout { confirmed: true, .. }));
}

fn assert_nothing_of_the_caller(view: &LockView, round: usize) {
    assert!(view.waiters.iter().all(|waiter| waiter.label != GIVES_UP), "round {round}: {view:?}");
    assert!(view.holders.iter().all(|holder| holder.label != GIVES_UP), "round {round}: {view:?}");
}

async fn caller_that_gave_up_has_no_place_and_no_hold(f: &Fixture) -> Outcome {
    let (holder, caller, name) = (patient(f, "holder").await, patient(f, GIVES_UP).await, f.name());
    for round in 0..rounds(f) {
        let guard = holder.write(&name).await?;
        gives_up(&caller, &name, EITHER[round % 2]).await;
        assert_nothing_of_the_caller(&holder.inspect(&name).await?, round);
        guard.release().await?;
        assert_nothing_of_the_caller(&holder.inspect(&name).await?, round);
    }
    Ok(())
}

async fn sole_reader_upgrades_right_after_a_writer_gave_up(f: &Fixture) {
    let (holder, caller, name) = (patient(f, "holder").await, patient(f, GIVES_UP).await, f.name());
    for round in 0..rounds(f) {
        let reading = holder.read(&name).await.expect("granted");
        gives_up(&caller, &name, Mode::Write).await;
        let writing = reading.try_upgrade().await;
        writing.unwrap_or_else(|error| panic!("round {round}: {error:?}")).release().await.expect("ours to the end");
    }
}

/// Takes the lock with one request. At a quorum votes of single masters to an attempt without a majority are taken back in the
/// background, so the first answer may be no.
async fn taken(f: &Fixture, manager: &Manager, name: &str) -> Option<WriteGuard> {
    if f.is_quorum() {
        return manager.write(name).wait_timeout(BOUND).await.ok();
    }
    manager.try_write(name).await.expect("answered")
}

async fn lock_can_be_taken_right_after_a_waiter_gave_up(f: &Fixture) -> Outcome {
    let (holder, caller, name) = (patient(f, "holder").await, patient(f, GIVES_UP).await, f.name());
    for round in 0..rounds(f) {
        let guard = holder.write(&name).await?;
        gives_up(&caller, &name, EITHER[round % 2]).await;
        guard.release().await?;
        taken(f, &holder, &name)
            .await
            .unwrap_or_else(|| panic!("round {round}: another client holds the lock"))
            .release()
            .await?;
    }
    Ok(())
}
