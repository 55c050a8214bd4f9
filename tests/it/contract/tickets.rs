//! Detached holds: who is kept out, who takes the hold over, and what is left when a step is cut short.

use std::time::{Duration, Instant};

use redis_rwlock::{Error, LossReason, Mode, Reentry};

use crate::cancellation::each_cut;
use crate::fixture::{Fixture, Settings, on_every_fixture, on_every_queue};
use crate::wait::{Outcome, granted, until};

on_every_queue![
    ticket_keeps_others_out_until_another_process_adopts_it,
    ticket_of_a_reader_keeps_writers_out_and_lets_readers_in,
    ticket_works_once,
    ticket_of_a_dead_process_is_adopted,
    unused_ticket_ends_with_its_time,
    force_ends_a_ticket,
    waiter_gets_the_lock_after_the_adopter,
    cancelled_detachment_leaves_nothing,
    cancelled_adoption_leaves_nothing,
];

// A quorum and Redisson's format refuse it.
on_every_fixture![guard_passes_by_a_ticket_or_is_refused_before_anything_is_sent];

/// Longer than any case.
const LONG: Duration = Duration::from_secs(300);

async fn ticket_keeps_others_out_until_another_process_adopts_it(f: &Fixture) -> Outcome {
    let (manager, worker, name) = f.pair(Settings::label("web")).await;
    let guard = manager.write(&name).await?;
    let token = guard.fencing_token();
    let ticket = guard.detach(LONG).await?;
    assert_eq!((ticket.name(), ticket.mode(), ticket.valid_for()), (&*name, Mode::Write, LONG));
    for manager in [&manager, &worker] {
        assert!(manager.try_write(&name).await?.is_none());
        assert!(manager.try_read(&name).await?.is_none());
    }
    let view = worker.inspect(&name).await?;
    let [holder] = &view.holders[..] else { panic!("{view:?}") };
    assert_eq!((&*holder.label, holder.mode, holder.detached, holder.guards), ("web", Mode::Write, true, 0));
    assert!(!holder.is_ours && !holder.cached && !holder.resting && holder.remaining <= LONG, "{holder:?}");
    assert!(holder.remaining > LONG / 2, "{holder:?}");
    let guard = worker.adopt_write(ticket.clone()).await?;
    assert!(guard.fencing_token() > ticket.fencing_token() && ticket.fencing_token() > token);
    let view = manager.inspect(&name).await?;
    let [holder] = &view.holders[..] else { panic!("{view:?}") };
    assert!(!holder.detached && holder.remaining < LONG / 2, "{holder:?}");
    guard.release().await?;
    assert!(f.view(&name).await.is_free());
    Ok(())
}

async fn ticket_of_a_reader_keeps_writers_out_and_lets_readers_in(f: &Fixture) -> Outcome {
    let ([manager, worker], name) = f.scene().await;
    let neighbour = worker.read(&name).await?;
    let guard = manager.read(&name).await?;
    let token = guard.fencing_token();
    let ticket = guard.detach(LONG).await?;
    neighbour.release().await?;
    assert!(worker.try_write(&name).await?.is_none());
    let beside = worker.try_read(&name).await?.expect("readers share");
    let adopted = manager.adopt_read(ticket).await?;
    assert_eq!((adopted.fencing_token(), beside.fencing_token()), (token, token), "one phase");
    beside.release().await?;
    assert!(worker.try_write(&name).await?.is_none());
    adopted.release().await?;
    worker.try_write(&name).await?.expect("free").release().await?;
    Ok(())
}

async fn ticket_works_once(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene().await;
    let ticket = manager.write(&name).await?.detach(LONG).await?;
    let adopters = [f.manager().await, f.manager().await];
    let [one, other] = adopters.each_ref().map(|adopter| adopter.adopt_write(ticket.clone()));
    let (one, other) = tokio::join!(one, other);
    let (guard, error) = match (one, other) {
        (Ok(guard), Err(error)) | (Err(error), Ok(guard)) => (guard, error),
        both => panic!("{both:?}"),
    };
    assert_matches!(error, Error::Lost { reason: LossReason::Gone, .. });
    guard.release().await?;
    assert_matches!(manager.adopt_write(ticket).await, Err(Error::Lost { reason: LossReason::Gone, .. }));
    assert!(f.view(&name).await.is_free());
    Ok(())
}

async fn ticket_of_a_dead_process_is_adopted(f: &Fixture) {
    let (name, lease) = (f.name(), Duration::from_millis(500));
    let mut process = f.process(Settings::lease(lease)).await;
    let write = name.clone();
    let ticket = process
        .run(|manager| {
            Box::pin(async move {
                let ticket = manager.write(&write).await?.detach(LONG).await?;
                Ok::<_, Error>(ticket)
            })
        })
        .await
        .expect("detached");
    process.die().await;
    // Time itself is what is waited for.
    tokio::time::sleep(lease * 3).await;
    let guard = f.manager().await.adopt_write(ticket).await.expect("nobody renews a ticket");
    guard.release().await.expect("ours to the end");
}

async fn unused_ticket_ends_with_its_time(f: &Fixture) -> Outcome {
    let (manager, name, valid_for) = (f.manager().await, f.name(), Duration::from_millis(1_200));
    let began = Instant::now();
    let ticket = manager.write(&name).await?.detach(valid_for).await?;
    manager.close().await.expect("`close` leaves it");
    let next = granted(f.manager().await.write(&name)).await;
    assert!(began.elapsed() >= valid_for, "{:?}", began.elapsed());
    assert_matches!(f.manager().await.adopt_write(ticket).await, Err(Error::Lost { reason: LossReason::Gone, .. }));
    next.release().await?;
    Ok(())
}

async fn force_ends_a_ticket(f: &Fixture) -> Outcome {
    let (manager, operator, name) = f.pair(Settings::label("web")).await;
    let ticket = manager.write(&name).await?.detach(LONG).await?;
    let ended = operator.force_release(&name).await?;
    let told: Vec<_> = ended.iter().map(|holder| (&*holder.label, holder.detached)).collect();
    assert_eq!(told, [("web", true)]);
    assert_matches!(manager.adopt_write(ticket).await, Err(Error::Lost { reason: LossReason::Forced, .. }));
    manager.try_write(&name).await?.expect("free").release().await?;
    Ok(())
}

async fn waiter_gets_the_lock_after_the_adopter(f: &Fixture) -> Outcome {
    let ([manager, worker, waiter], name) = f.scene().await;
    let ticket = manager.write(&name).await?.detach(LONG).await?;
    let waits = f.queued(&name, waiter.write(&name)).await;
    let guard = worker.adopt_write(ticket).await.expect("a waiter is no obstacle");
    let token = guard.fencing_token();
    guard.release().await?;
    let next = granted(waits).await;
    assert!(next.fencing_token() > token);
    next.release().await?;
    Ok(())
}

async fn cancelled_detachment_leaves_nothing(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene().await;
    each_cut(async |cut| {
        let guard = manager.write(&name).await?;
        let ticket = cut.of(guard.detach(LONG)).await.transpose()?;
        let is_detached = ticket.is_some();
        match ticket {
            Some(ticket) => manager.adopt_write(ticket).await?.release().await?,
            None => manager.flush().await?,
        }
        until("the lock is free", async || f.view(&name).await.is_free()).await;
        Ok(is_detached)
    })
    .await
}

async fn cancelled_adoption_leaves_nothing(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene().await;
    each_cut(async |cut| {
        if cut.polls == 0 {
            return Ok(false); // the ticket is not used
        }
        let ticket = manager.write(&name).await?.detach(LONG).await?;
        let guard = cut.of(manager.adopt_write(ticket)).await.transpose()?;
        let is_adopted = guard.is_some();
        match guard {
            Some(guard) => guard.release().await?,
            None => manager.flush().await?,
        }
        until("the lock is free", async || f.view(&name).await.is_free()).await;
        Ok(is_adopted)
    })
    .await
}

async fn guard_passes_by_a_ticket_or_is_refused_before_anything_is_sent(f: &Fixture) -> Outcome {
    let nests = Settings { reentry: Reentry::PerTask, ..Settings::default() };
    let ([manager], name) = f.scene_with(nests).await;
    let outer = manager.write(&name).await?;
    let inner = manager.read(&name).await?;
    let refused = outer.detach(LONG).await.expect_err("another guard shares the hold");
    let Error::InvalidOption { option: "detach", reason, .. } = refused.error() else { panic!("{refused:?}") };
    let is_able = !reason.contains("masters") && !reason.contains("Redisson");
    inner.release().await?;
    match refused.into_guard().detach(LONG).await {
        Ok(ticket) => {
            assert!(is_able);
            let guard = manager.adopt_write(ticket).await?;
            let inner = manager.read(&name).await.expect("nested in the adopted one");
            guard.release().await?;
            inner.release().await?;
        }
        Err(refused) => {
            assert!(!is_able, "{refused:?}");
            refused.into_guard().release().await?;
        }
    }
    let resting = manager.write(&name).at_least(LONG).try_now().await;
    if let Ok(Some(guard)) = resting {
        let refused = guard.detach(LONG).await.expect_err("it rests");
        assert_matches!(refused.error(), Error::InvalidOption { option: "detach", .. });
        refused.into_guard().release_at_once().await?;
    }
    until("the lock is free", async || f.view(&name).await.is_free()).await;
    Ok(())
}
