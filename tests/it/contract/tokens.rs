//! Fencing tokens grow.

use std::time::Duration;

use redis_rwlock::{FencingToken, ReadGuard};

use crate::fixture::{Fixture, Manager, Settings, now_us, on_every_fixture};
use crate::wait::Outcome;

on_every_fixture![
    tokens_grow_from_phase_to_phase,
    readers_of_a_phase_share_their_token,
    tokens_grow_across_force_release,
    token_is_the_same_wherever_it_is_asked_for,
];

/// Where holds stay, this one does not: its phase is over when its last guard has left.
fn read(manager: &Manager, name: &str) -> redis_rwlock::Acquire<ReadGuard> {
    manager.read(name).cache_for(Duration::ZERO)
}

async fn write_token(manager: &Manager, name: &str) -> FencingToken {
    let guard = manager.write(name).cache_for(Duration::ZERO).await.expect("granted");
    let token = guard.fencing_token();
    guard.release().await.expect("released");
    token
}

async fn read_token(manager: &Manager, name: &str) -> FencingToken {
    let guard = read(manager, name).await.expect("granted");
    let token = guard.fencing_token();
    guard.release().await.expect("released");
    token
}

async fn tokens_grow_from_phase_to_phase(f: &Fixture) {
    let ([a, b], name) = f.scene().await;
    let mut tokens = Vec::new();
    for _ in 0..5 {
        tokens.push(write_token(&a, &name).await);
        tokens.push(read_token(&b, &name).await);
        tokens.push(read_token(&a, &name).await);
        tokens.push(write_token(&b, &name).await);
    }
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
    is_the_last_given(f, &name, *tokens.last().expect("twenty")).await;
}

async fn readers_of_a_phase_share_their_token(f: &Fixture) -> Outcome {
    let ([a, b], name) = f.scene().await;
    let first = read(&a, &name).await?;
    let second = read(&b, &name).await?;
    let token = first.fencing_token();
    is_shared(f, second.fencing_token(), token);
    first.release().await?;
    let third = read(&a, &name).await?;
    is_shared(f, third.fencing_token(), token);
    second.release().await?;
    third.release().await?;
    assert!(read_token(&a, &name).await > token);
    Ok(())
}

/// The phase goes on while one reader is left. At a quorum a reader may have a higher token than those inside with it: a master that
/// heard of one's release before it heard of another one has begun a phase of its own.
fn is_shared(f: &Fixture, token: FencingToken, first: FencingToken) {
    if f.is_quorum() {
        assert!(token >= first, "{token} is below {first}");
    } else {
        assert_eq!(token, first);
    }
}

async fn tokens_grow_across_force_release(f: &Fixture) -> Outcome {
    let ([a, b], name) = f.scene().await;
    let stuck = a.write(&name).await?;
    b.force_release(&name).await?;
    is_the_last_given(f, &name, stuck.fencing_token()).await;
    let next = b.write(&name).await?;
    assert!(next.fencing_token() > stuck.fencing_token());
    b.force_release(&name).await?;
    assert!(read_token(&b, &name).await > next.fencing_token());
    Ok(())
}

async fn token_is_the_same_wherever_it_is_asked_for(f: &Fixture) {
    let ([manager], name) = f.scene().await;
    let guard = manager.write(&name).await.expect("granted");
    let token = guard.fencing_token();
    assert_eq!(guard.watch().fencing_token(), token);
    is_the_last_given(f, &name, token).await;
    assert!(u64::from(token) <= 1 << 53);
    assert_eq!(i64::from(token).to_string(), token.to_string());
    guard.release().await.expect("released");
}

/// The last that was given counts with those that its writer may give to the next ones of its process. At a quorum, a master
/// that the request reaches late gives a token of its own clock, above the one that the manager has proposed.
async fn is_the_last_given(f: &Fixture, name: &str, token: FencingToken) {
    let reserved = Settings::default().max_handoffs;
    let last = u64::from(f.view(name).await.last_token.expect("there is one"));
    let token = u64::from(token);
    let end = if f.is_quorum() { now_us().max(token) + 1 } else { token + reserved };
    assert!((token..end).contains(&last), "{last} {token} {end}");
}
