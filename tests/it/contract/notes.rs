//! Notes on holds: shown until the hold ends, refused where the store has no room.

use std::time::Duration;

use redis_rwlock::{Error, RwLockManager, TimestampClients};

use crate::fixture::{Fixture, Kind, ServerFixture, Settings, on_every_fixture, on_every_queue};
use crate::wait::{Outcome, begin, granted, until};

on_every_fixture![note_is_shown_until_the_hold_ends_or_refused_before_anything_is_sent];

on_every_queue![
    note_of_a_waiter_is_there_when_it_has_its_guard,
    note_goes_with_a_conversion,
    note_of_a_guard_does_not_stay_for_the_next_one_of_its_process,
    note_that_the_next_guard_sets_at_once_stays,
];

async fn note_of(f: &Fixture, name: &str) -> Option<String> {
    f.view(name).await.holders.into_iter().find_map(|holder| holder.note)
}

/// Two keys and masters have no room. Such a manager has refused a note before anything was sent.
async fn has_no_room(f: &Fixture) -> bool {
    let ([manager], name) = f.scene().await;
    match manager.write(&name).note("deploy 4711").await {
        Ok(guard) => {
            guard.release().await.expect("released");
            false
        }
        Err(Error::InvalidOption { option: "note", .. }) => {
            assert_eq!(f.view(&name).await.last_token, None, "nothing was sent");
            let guard = manager.write(&name).await.expect("granted");
            let error = guard.set_note("deploy 4711").await.expect_err("no room");
            assert_matches!(error, Error::InvalidOption { option: "note", .. });
            assert!(error.to_string().contains("RedisManager"), "{error}");
            guard.release().await.expect("released");
            true
        }
        Err(error) => panic!("{error}"),
    }
}

async fn note_is_shown_until_the_hold_ends_or_refused_before_anything_is_sent(f: &Fixture) -> Outcome {
    if has_no_room(f).await {
        return Ok(());
    }
    let ([manager], name) = f.scene().await;
    // A note may look like anything, also like a part of a reply.
    let text = "hold x w 1 2 note\n\u{1b}[31m \u{202e} ü '%d' ";
    let guard = manager.write(&name).note(text).await?;
    assert_eq!(note_of(f, &name).await.as_deref(), Some(text));
    let longest = "x".repeat(4096);
    guard.set_note(&longest).await?;
    assert_eq!(note_of(f, &name).await, Some(longest.clone()));
    assert_matches!(guard.set_note(&(longest + "x")).await, Err(Error::InvalidOption { option: "note", .. }));
    guard.set_note("").await?;
    assert_eq!(note_of(f, &name).await, None);
    guard.set_note("last").await?;
    guard.release().await?;

    // Readers of one process share a hold, and others have their own.
    let other = f.manager_with_label("other").await;
    let first = manager.read(&name).note("first").await?;
    assert_eq!(note_of(f, &name).await.as_deref(), Some("first"), "the old note went with its hold");
    let theirs = other.read(&name).note("theirs").await?;
    let second = manager.read(&name).note("second").await?;
    let mut notes: Vec<_> = f.view(&name).await.holders.into_iter().filter_map(|holder| holder.note).collect();
    notes.sort();
    assert_eq!(notes, ["second", "theirs"]);
    for guard in [first, second, theirs] {
        guard.release().await?;
    }
    f.becomes_free(&name).await;
    Ok(())
}

async fn note_of_a_waiter_is_there_when_it_has_its_guard(f: &Fixture) -> Outcome {
    if has_no_room(f).await {
        return Ok(());
    }
    let ([holder, waiter], name) = f.scene().await;
    let guard = holder.write(&name).await?;
    let waiting = begin(waiter.write(&name).note("my turn"));
    let waiting = tokio::spawn(waiting);
    f.until_waiting(1, &name).await;
    guard.release().await?;
    let guard = granted(waiting).await;
    assert_eq!(note_of(f, &name).await.as_deref(), Some("my turn"));
    guard.release().await?;
    Ok(())
}

async fn note_goes_with_a_conversion(f: &Fixture) -> Outcome {
    if has_no_room(f).await {
        return Ok(());
    }
    let ([manager], name) = f.scene().await;
    let writing = manager.write(&name).note("deploy 4711").await?;
    let reading = writing.downgrade().await?;
    assert_eq!(note_of(f, &name).await.as_deref(), Some("deploy 4711"));
    reading.set_note("checking").await?;
    let writing = reading.try_upgrade().await?;
    assert_eq!(note_of(f, &name).await.as_deref(), Some("checking"));
    writing.release().await?;
    f.becomes_free(&name).await;
    Ok(())
}

async fn note_of_a_guard_does_not_stay_for_the_next_one_of_its_process(f: &Fixture) {
    if has_no_room(f).await {
        return;
    }
    let ([manager], name) = f.scene().await;
    let first = manager.write(&name).note("first").await.expect("granted");
    let second = begin(manager.write(&name));
    let (released, second) = tokio::join!(first.release(), second);
    released.expect("released");
    let second = second.expect("handed over");
    until("the note of the first guard is gone", async || note_of(f, &name).await.is_none()).await;
    second.release().await.expect("released");
}

async fn note_that_the_next_guard_sets_at_once_stays(f: &Fixture) -> Outcome {
    if has_no_room(f).await {
        return Ok(());
    }
    let ([manager], name) = f.scene().await;
    for round in 0..10 {
        let first = manager.write(&name).note("first").await?;
        let second = begin(manager.write(&name));
        drop(first);
        let second = second.await?;
        second.set_note("second").await?;
        assert_eq!(note_of(f, &name).await.as_deref(), Some("second"), "round {round}");
        second.release().await?;
    }
    Ok(())
}

/// The clients of such a lock decide how long its key lives.
async fn notes_on_locks_with_timestamp_clients_are_refused(f: &ServerFixture) {
    if f.kind == Kind::TwoKey {
        return;
    }
    let settings = Settings {
        timestamp_keys: Some("notes:*".to_owned()),
        timestamp_clients: TimestampClients::default(),
        lease: Duration::from_secs(5),
        ..Settings::default()
    };
    let manager = f.manager_with(settings).await;
    let error = manager.write(&f.name()).note("deploy 4711").await.expect_err("no room");
    assert_matches!(error, Error::InvalidOption { option: "note", .. });
    assert!(error.to_string().contains("timestamp_keys"), "{error}");
}

mod notes_on_locks_with_timestamp_clients_are_refused {
    crate::fixture::on_hash!(notes_on_locks_with_timestamp_clients_are_refused, shared);
}
