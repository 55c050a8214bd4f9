//! What operators and shutdowns do: inspect, force, close.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use redis_rwlock::{Ended, Error, HoldState, LossReason, Mode, OwnerId, Refusal};

use crate::either::take;
use crate::fixture::{Fixture, Manager, RENEWED, Settings, on_every_fixture, on_every_own_format, on_every_queue};
use crate::wait::{Outcome, begin, begin_to_wait, granted, soon, until};

on_every_fixture![
    inspect_of_an_unknown_lock_is_free,
    inspect_changes_nothing,
    force_ends_all_holds_and_their_holders_learn_of_it,
    force_tells_whom_it_ended,
    view_tells_our_holds_and_their_guards,
    force_through_the_holders_own_manager_is_known_at_once,
    force_lets_waiters_in,
    force_of_a_free_lock_ends_nothing,
    force_of_a_view_ends_what_it_shows,
    force_of_a_view_ends_nothing_newer,
    release_after_a_force_is_an_error_and_hurts_nobody,
    stats_count_what_there_is,
    closed_manager_takes_nothing,
    close_frees_all_holds_before_it_returns,
    close_tells_waiters,
    closed_hold_is_lost_before_anybody_else_is_let_in,
    close_twice_is_as_good_as_once,
    close_of_one_manager_leaves_others_alone,
];

// Leases in the format of Redisson are shorter, its listing is of the whole server, and it refuses some names.
on_every_own_format![
    inspect_shows_who_holds_and_for_how_long,
    locks_are_listed_by_their_names,
    locks_beyond_one_page_are_listed
];

// Of a quorum some may be down.
on_every_queue![servers_that_answer_are_healthy];

async fn inspect_shows_who_holds_and_for_how_long(f: &Fixture) -> Outcome {
    let name = f.name();
    let reader = f.manager_with_label("billing-1").await;
    let other = f.manager_with_label("röntgen.2").await;
    let first = reader.read(&name).lease(Duration::from_secs(30)).await?;
    let second = other.read(&name).lease(Duration::from_secs(60)).await?;
    let mut view = f.view(&name).await;
    view.holders.sort_by(|a, b| a.label.cmp(&b.label));
    assert_eq!(view.name, name);
    assert!(!view.is_free());
    let labels: Vec<_> = view.holders.iter().map(|holder| (&*holder.label, holder.mode)).collect();
    assert_eq!(labels, [("billing-1", Mode::Read), ("röntgen.2", Mode::Read)]);
    for (holder, lease_s) in view.holders.iter().zip([30, 60]) {
        let lease = Duration::from_secs(lease_s);
        assert!(holder.remaining <= lease && holder.remaining > lease - Duration::from_secs(20), "{holder:?}");
        assert!(holder.age < Duration::from_secs(20), "{holder:?}");
    }
    first.release().await?;
    second.release().await?;

    let writer = reader.write(&name).await?;
    let view = f.view(&name).await;
    assert_eq!((&*view.holders[0].label, view.holders[0].mode), ("billing-1", Mode::Write));
    writer.release().await?;
    Ok(())
}

async fn inspect_of_an_unknown_lock_is_free(f: &Fixture) {
    let view = f.view(&f.name()).await;
    assert!(view.is_free());
    assert_eq!(view.last_token, None);
}

async fn inspect_changes_nothing(f: &Fixture) {
    let ([manager], name) = f.scene().await;
    let guard = manager.read(&name).await.expect("granted");
    let before = f.view(&name).await;
    let after = f.view(&name).await;
    assert_eq!(before.last_token, after.last_token);
    assert!(after.holders[0].remaining <= before.holders[0].remaining);
    assert!(after.holders[0].age >= before.holders[0].age);
    guard.release().await.expect("released");
}

async fn force_ends_all_holds_and_their_holders_learn_of_it(f: &Fixture) -> Outcome {
    let holder = f.manager_with(Settings::lease(RENEWED)).await;
    let (operator, written, read) = (f.manager().await, f.name(), f.name());
    let writer = holder.write(&written).await?;
    let readers = [holder.read(&read).await?, holder.read(&read).await?];
    operator.force_release(&written).await?;
    operator.force_release(&read).await?;
    for name in [&written, &read] {
        operator.try_write(name).await?.expect("free at once").release().await?;
    }
    assert_eq!(soon("word of the force", writer.lost()).await, LossReason::Forced);
    for reader in &readers {
        assert_eq!(soon("word of the force", reader.lost()).await, LossReason::Forced);
        assert_eq!(reader.state(), HoldState::Lost(LossReason::Forced));
    }
    Ok(())
}

async fn force_tells_whom_it_ended(f: &Fixture) -> Outcome {
    let holder = f.manager_with_label("stuck").await;
    let (operator, written, read) = (f.manager().await, f.name(), f.name());
    let writer = holder.write(&written).lease(Duration::from_secs(30)).await?;
    let readers = [holder.read(&read).await?, holder.read(&read).await?];
    let ours = operator.read(&read).await?;

    let ended = operator.force_release(&written).await?;
    assert_eq!(ended.len(), 1, "{ended:?}");
    assert_eq!((&*ended[0].label, ended[0].mode, ended[0].is_ours, ended[0].guards), ("stuck", Mode::Write, false, 0));
    assert!(ended[0].remaining > Duration::from_secs(10) && ended[0].age < Duration::from_secs(20), "{ended:?}");

    let mut ended = operator.force_release(&read).await?;
    ended.sort_by_key(|holder| holder.is_ours);
    let told: Vec<_> = ended.iter().map(|holder| (&*holder.label, holder.mode, holder.guards)).collect();
    assert_eq!(told, [("stuck", Mode::Read, 0), ("case", Mode::Read, 1)]);
    assert_eq!(operator.force_release(&read).await?, [], "they are ended already");
    drop((writer, readers, ours));
    Ok(())
}

async fn view_tells_our_holds_and_their_guards(f: &Fixture) -> Outcome {
    let ([manager, other], name) = f.scene().await;
    let owner = OwnerId::new();
    let guards = [manager.read(&name).owner(owner).await?, manager.read(&name).owner(owner).await?];
    let theirs = other.read(&name).await?;
    let mut view = manager.inspect(&name).await?;
    view.holders.sort_by_key(|holder| !holder.is_ours);
    let told: Vec<_> = view.holders.iter().map(|holder| (holder.is_ours, holder.guards)).collect();
    assert_eq!(told, [(true, 2), (false, 0)]);
    let [first, second] = guards;
    first.release().await?;
    let view = manager.inspect(&name).await?;
    assert!(view.holders.iter().any(|holder| holder.is_ours && holder.guards == 1), "{view:?}");
    second.release().await?;
    let view = manager.inspect(&name).await?;
    assert!(view.holders.iter().all(|holder| !holder.is_ours), "{view:?}");
    theirs.release().await?;
    Ok(())
}

async fn force_through_the_holders_own_manager_is_known_at_once(f: &Fixture) -> Outcome {
    let ([manager, other], name) = f.scene().await;
    let stuck = manager.write(&name).await?;
    manager.force_release(&name).await?;
    assert_eq!(stuck.state(), HoldState::Lost(LossReason::Forced));
    let heir = manager.try_write(&name).await?.expect("nobody is in the way here either");
    drop(stuck);
    assert!(other.try_read(&name).await?.is_none(), "the heir is not hurt");
    heir.release().await?;
    Ok(())
}

async fn force_lets_waiters_in(f: &Fixture) -> Outcome {
    let ([holder, waiter, operator], name) = f.scene().await;
    let stuck = holder.write(&name).await?;
    let waiting = begin_to_wait("a grant beside a writer", waiter.read(&name)).await;
    operator.force_release(&name).await?;
    let guard = granted(waiting).await;
    assert!(guard.fencing_token() > stuck.fencing_token());
    guard.release().await?;
    Ok(())
}

async fn force_of_a_free_lock_ends_nothing(f: &Fixture) {
    let ([manager], name) = f.scene().await;
    assert_eq!(manager.force_release(&name).await.expect("forced"), []);
    manager.write(&name).await.expect("granted").release().await.expect("no later hold is hit");
}

async fn force_of_a_view_ends_what_it_shows(f: &Fixture) -> Outcome {
    let (holder, operator) = (f.manager_with_label("stuck").await, f.manager().await);
    for mode in [Mode::Read, Mode::Write] {
        let name = f.name();
        let guard = take(&holder, &name, mode).await;
        let view = operator.inspect(&name).await?;
        let ended = operator.force_release_shown(&view).await?;
        let shown: Vec<_> = ended.iter().map(|holder| (&*holder.label, holder.mode)).collect();
        assert_eq!(shown, [("stuck", mode)]);
        assert!(operator.inspect(&name).await?.is_free());
        assert_eq!(operator.force_release_shown(&view).await?, [], "they are ended already");
        drop(guard);
    }
    Ok(())
}

async fn force_of_a_view_ends_nothing_newer(f: &Fixture) -> Outcome {
    let ([first, second, operator], _) = f.scene().await;
    for mode in [Mode::Write, Mode::Read] {
        let name = f.name();
        let nobody = operator.inspect(&name).await?;
        let shown = first.write(&name).await?;
        assert_eq!(operator.force_release_shown(&nobody).await?, [], "it showed a free lock");
        let view = operator.inspect(&name).await?;
        shown.release().await?;
        let unseen = take(&second, &name, mode).await;
        assert_eq!(operator.force_release_shown(&view).await?, []);
        unseen.release_unharmed().await;
    }
    Ok(())
}

async fn release_after_a_force_is_an_error_and_hurts_nobody(f: &Fixture) -> Outcome {
    let (holder, other, name) = (f.manager().await, f.manager_with_label("heir").await, f.name());
    let forced = holder.write(&name).await?;
    other.force_release(&name).await?;
    let heir = other.write(&name).await?;
    assert_eq!(forced.state(), HoldState::Held, "its next renewal has not come yet");
    assert_matches!(forced.release().await, Err(Error::Lost { reason: LossReason::Forced, .. }));
    let view = f.view(&name).await;
    assert_eq!((view.holders.len(), &*view.holders[0].label), (1, "heir"));
    heir.release().await?;
    Ok(())
}

async fn locks_are_listed_by_their_names(f: &Fixture) -> Outcome {
    let (manager, other) = (f.manager().await, f.manager().await);
    if f.is_proxied() {
        list_is_refused(&manager).await;
        return Ok(());
    }
    assert_eq!(manager.locks().await?, [""; 0]);
    let names = ["50%*?[x]", "na}me", "plain", "schloß", "{user}:1"];
    let mut guards = Vec::new();
    for name in names {
        guards.push(other.read(name).await?);
    }
    assert_eq!(manager.locks().await?, names);
    drop(guards);
    Ok(())
}

/// A proxy shows the keys of one of its servers, so a list through it would have gaps.
async fn list_is_refused(manager: &Manager) {
    assert_matches!(manager.locks().await, Err(Error::Refused { refusal: Refusal::OtherTopology, .. }));
}

async fn locks_beyond_one_page_are_listed(f: &Fixture) {
    let (manager, other) = (f.manager().await, f.manager().await);
    if f.is_proxied() {
        return list_is_refused(&manager).await;
    }
    let names: Vec<String> = (0..1100).map(|n| format!("n{n:04}")).collect();
    let guards = try_join_all(names.iter().map(|name| other.write(name).into_future())).await.expect("granted");
    assert_eq!(manager.locks().await.expect("listed"), names);
    drop(guards);
}

async fn servers_that_answer_are_healthy(f: &Fixture) {
    let health = f.manager().await.health().await.expect("asked");
    assert!(health.is_ready(), "{health:?}");
    assert!(health.clock_spread().is_none_or(|spread| spread < Duration::from_secs(1)), "{health:?}");
    for node in &health.nodes {
        assert!(node.is_reachable && node.problem.is_none(), "{node:?}");
        assert_eq!(node.noeviction, Some(true), "{node:?}");
        assert!(node.round_trip.is_some_and(|span| span < Duration::from_secs(2)), "{node:?}");
        assert!(node.clock_ahead_ms.is_some_and(|ms| ms.abs() < 2000), "{node:?}");
    }
}

async fn stats_count_what_there_is(f: &Fixture) -> Outcome {
    let (manager, other, name, taken) = (f.manager().await, f.manager().await, f.name(), f.name());
    let owner = OwnerId::new();
    let first = manager.read(&name).owner(owner).await?;
    let second = manager.read(&name).owner(owner).await?;
    let theirs = other.write(&taken).await?;
    let waiting = begin_to_wait("a grant beside a writer", manager.read(&taken)).await;
    let stats = manager.stats();
    assert_eq!((stats.holds, stats.guards, stats.waiters, stats.renewals_late), (1, 2, 1, 0), "{stats:?}");
    assert_eq!(stats.reconnects, 0);
    drop(waiting);
    first.release().await?;
    second.release().await?;
    until("the end of all that", async || {
        let stats = manager.stats();
        (stats.holds, stats.guards, stats.waiters, stats.in_flight) == (0, 0, 0, 0)
    })
    .await;
    theirs.release().await?;
    Ok(())
}

async fn closed_manager_takes_nothing(f: &Fixture) {
    let ([manager], name) = f.scene().await;
    manager.close().await.expect("closed");
    let outcomes = [
        manager.read(&name).await.map(drop),
        manager.write(&name).await.map(drop),
        manager.try_read(&name).await.map(drop),
        manager.try_write(&name).await.map(drop),
    ];
    for outcome in outcomes {
        assert_matches!(outcome, Err(Error::Closed { lock, .. }) if **lock == *name);
    }
    f.becomes_free(&name).await;
}

async fn close_frees_all_holds_before_it_returns(f: &Fixture) -> Outcome {
    let (manager, other) = (f.manager().await, f.manager().await);
    let names: Vec<String> = (0..40).map(|_| f.name()).collect();
    let guards = try_join_all(names.iter().map(|name| manager.write(name).into_future())).await?;
    let watches: Vec<_> = guards.iter().map(|guard| guard.watch()).collect();
    manager.close().await?;
    for (name, watch) in names.iter().zip(&watches) {
        assert_eq!(watch.ended().await, Ended::Lost(LossReason::Closed));
        other.try_write(name).await?.expect("free at once").release().await?;
    }
    for guard in guards {
        assert_matches!(guard.release().await, Err(Error::Lost { reason: LossReason::Closed, .. }));
    }
    Ok(())
}

async fn close_tells_waiters(f: &Fixture) -> Outcome {
    let ([manager, other], name) = f.scene().await;
    let guard = other.write(&name).await?;
    let asking = begin_to_wait("a grant beside a writer", manager.write(&name)).await;
    let queued = begin(manager.read(&name));
    manager.close().await?;
    let (asking, queued) = soon("the end of the wait", async { tokio::join!(asking, queued) }).await;
    assert_matches!(asking, Err(Error::Closed { .. }));
    assert_matches!(queued, Err(Error::Closed { .. }));
    guard.release().await?;
    f.becomes_free(&name).await;
    Ok(())
}

async fn closed_hold_is_lost_before_anybody_else_is_let_in(f: &Fixture) -> Outcome {
    let ([manager, other], name) = f.scene().await;
    let guard = manager.write(&name).await?;
    let waiter = begin_to_wait("a grant beside a writer", other.write(&name)).await;
    let closing = tokio::spawn({
        let manager = Arc::clone(&manager);
        async move { manager.close().await }
    });
    let heir = granted(waiter).await;
    assert_eq!(guard.state(), HoldState::Lost(LossReason::Closed));
    assert_eq!(guard.remaining(), Duration::ZERO);
    soon("the end of the close", closing).await??;
    heir.release().await?;
    Ok(())
}

async fn close_twice_is_as_good_as_once(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene().await;
    let guard = manager.read(&name).await?;
    let (first, second) = tokio::join!(manager.close(), manager.close());
    first?;
    second?;
    manager.close().await?;
    assert_eq!(guard.state(), HoldState::Lost(LossReason::Closed));
    f.becomes_free(&name).await;
    Ok(())
}

async fn close_of_one_manager_leaves_others_alone(f: &Fixture) -> Outcome {
    let ([closed, other], name) = f.scene().await;
    let gone = closed.read(&name).await?;
    let stays = other.read(&name).await?;
    closed.close().await?;
    assert_eq!(stays.state(), HoldState::Held);
    assert_eq!(f.view(&name).await.holders.len(), 1);
    drop(gone);
    stays.release().await?;
    Ok(())
}
