//! All patterns of other holders at some of five masters, for both modes.

use std::time::Duration;

use redis_rwlock::{Mode, RwLockManager};

use super::{Field, holders, is_free};
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
    let manager = field.manager(LEASE).await;
    let mut there = Vec::new();
    for master in 0..5 {
        there.push(field.at(master).await);
    }
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
            if !expected {
                // A grant of less than a majority is given back.
                for (master, there) in there.iter().enumerate() {
                    until("only the others", async || holders(there, &name).await == has_others(master)).await;
                }
            }
            drop(granted);
            for (master, there) in there.iter().enumerate() {
                until("it was given back", async || holders(there, &name).await == has_others(master)).await;
            }
            drop(others);
            for there in &there {
                until("nothing is left", async || is_free(there, &name).await).await;
            }
        }
    }
}

async fn tokens_grow_whichever_majority_grants() {
    let field = Field::start(5);
    let (a, b) = (field.manager(LEASE).await, field.manager(LEASE).await);
    let mut last = None;
    for round in 0..20 {
        // Two of the five masters have other holders, two other masters each time.
        let mut others = Vec::new();
        for master in [round % 5, (round + 1 + round / 5) % 5] {
            others.push(field.at(master).await.try_write("cfg").await.expect("answered"));
        }
        let manager = if round % 2 == 0 { &a } else { &b };
        let guard = manager.write("cfg").await.expect("three are free");
        let token = guard.fencing_token();
        assert!(Some(token) > last, "{token} after {last:?}");
        last = Some(token);
        guard.release().await.expect("ours to the end");
        drop(others);
        for master in 0..5 {
            let there = field.at(master).await;
            until("nothing is left", async || is_free(&there, "cfg").await).await;
        }
    }
}

async fn upgrade_that_a_majority_refuses_is_undone_at_the_others() -> Outcome {
    let field = Field::start(5);
    let manager = field.manager(LEASE).await;
    let mut beside = Vec::new();
    for master in 0..3 {
        beside.push(field.at(master).await.read("cfg").await?);
    }
    let reading = manager.read("cfg").await.expect("readers share");
    let fourth = field.at(3).await;
    until("all have it", async || holders(&fourth, "cfg").await.len() == 1).await;
    let refused = reading.try_upgrade().await.expect_err("others read at three of five");
    assert!(matches!(refused.error(), redis_rwlock::Error::UpgradeConflict { .. }), "{refused:?}");
    let reading = refused.into_guard();
    for master in 3..5 {
        let there = field.at(master).await;
        until("it reads again", async || holders(&there, "cfg").await == [Mode::Read]).await;
    }
    drop(beside);
    for master in 0..3 {
        let there = field.at(master).await;
        until("nobody is beside it", async || holders(&there, "cfg").await == [Mode::Read]).await;
    }
    let writing = reading.try_upgrade().await?;
    writing.release().await?;
    for master in 0..5 {
        let there = field.at(master).await;
        until("nothing is left", async || is_free(&there, "cfg").await).await;
    }
    Ok(())
}
