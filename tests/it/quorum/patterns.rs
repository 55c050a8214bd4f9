//! All patterns of other holders at some of five masters, for both modes.

use std::time::Duration;

use futures_util::future::try_join_all;
use redis_rwlock::{Error, Mode, RwLockManager};

use super::{Field, holders, until_held_by};
use crate::wait::{Outcome, until};

crate::fixture::on_two_threads![
    majority_decides_whoever_holds_the_others,
    tokens_grow_whichever_majority_grants,
    upgrade_that_a_majority_refuses_is_undone_at_the_others
];

const LEASE: Duration = Duration::from_secs(10);

/// Keeps a hold until it is dropped.
type Hold = Box<dyn Send>;

async fn hold(manager: &dyn RwLockManager, name: &str, mode: Mode) -> Option<Hold> {
    match mode {
        Mode::Read => manager.try_read(name).await.expect("answered").map(|guard| Box::new(guard) as Hold),
        Mode::Write => manager.try_write(name).await.expect("answered").map(|guard| Box::new(guard) as Hold),
    }
}

async fn majority_decides_whoever_holds_the_others() {
    let field = Field::start(5);
    let (manager, there) = (field.manager(LEASE).await, field.at_each().await);
    for pattern in 0_u32..32 {
        for (held, wanted) in
            [(Mode::Write, Mode::Write), (Mode::Write, Mode::Read), (Mode::Read, Mode::Write), (Mode::Read, Mode::Read)]
        {
            let name = format!("{pattern}-{held}-{wanted}");
            let is_taken = |master: usize| pattern >> master & 1 == 1;
            let mut others = Vec::new();
            for master in (0..5).filter(|master| is_taken(*master)) {
                others.push(hold(&there[master], &name, held).await.expect("free"));
            }
            let share = (held, wanted) == (Mode::Read, Mode::Read);
            let expected = share || pattern.count_ones() <= 2;
            let granted = hold(&*manager, &name, wanted).await;
            assert_eq!(granted.is_some(), expected, "{name}");
            let has_others = |master| if is_taken(master) { vec![held] } else { vec![] };
            // So is a grant of less than a majority.
            drop(granted);
            for (master, there) in there.iter().enumerate() {
                until("it was given back", async || holders(there, &name).await == has_others(master)).await;
            }
            drop(others);
            until_held_by(&there, &name, &[]).await;
        }
    }
}

async fn tokens_grow_whichever_majority_grants() -> Outcome {
    let field = Field::start(5);
    let (managers, there) = ([field.manager(LEASE).await, field.manager(LEASE).await], field.at_each().await);
    let mut last = None;
    for round in 0..20 {
        // Two of the five masters have other holders, two other masters each time.
        let mut others = Vec::new();
        for master in [round % 5, (round + 1 + round / 5) % 5] {
            others.push(there[master].try_write("cfg").await?);
        }
        let guard = managers[round % 2].write("cfg").await.expect("three are free");
        let token = Some(guard.fencing_token());
        assert!(token > last, "{token:?} after {last:?}");
        last = token;
        guard.release().await?;
        drop(others);
        until_held_by(&there, "cfg", &[]).await;
    }
    Ok(())
}

async fn upgrade_that_a_majority_refuses_is_undone_at_the_others() -> Outcome {
    let field = Field::start(5);
    let (manager, there) = (field.manager(LEASE).await, field.at_each().await);
    let (beside, others) = there.split_at(3);
    let guards = try_join_all(beside.iter().map(|there| there.read("cfg").into_future())).await?;
    let reading = manager.read("cfg").await.expect("readers share");
    until_held_by(&others[..1], "cfg", &[Mode::Read]).await;
    let refused = reading.try_upgrade().await.expect_err("others read at three of five");
    assert_matches!(refused.error(), Error::UpgradeConflict { .. });
    let reading = refused.into_guard();
    until_held_by(others, "cfg", &[Mode::Read]).await;
    drop(guards);
    until_held_by(beside, "cfg", &[Mode::Read]).await;
    reading.try_upgrade().await?.release().await?;
    until_held_by(&there, "cfg", &[]).await;
    Ok(())
}
