//! Leader election: one process leads. The next one takes over when it steps down, dies, or loses the lock.
//!
//! `REDIS_URL=redis://127.0.0.1:6379 cargo run --example leader`

use std::time::Duration;

use futures_util::future::select_all;
use redis_rwlock::{FencingToken, HoldState, HoldWatch, RedisManager, Result, RwLockManager};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Term of this process, for all its parts. `None` while it does not lead.
type Term = watch::Sender<Option<HoldWatch>>;

/// Takes part in the election until `resign`, and leads in each term that this process gets.
async fn campaign(locks: &impl RwLockManager, name: &str, term: &Term, resign: &CancellationToken) -> Result<()> {
    loop {
        let guard = tokio::select! {
            guard = locks.write("leader").max_hold(Duration::MAX) => guard?,
            () = resign.cancelled() => return Ok(()),
        };
        println!("{name}: leads, with token {}", guard.fencing_token());
        term.send_replace(Some(guard.watch()));
        let lost = tokio::select! {
            biased; // after a loss, no further step begins
            reason = guard.lost() => Some(reason),
            () = resign.cancelled() => None,
            () = lead(guard.fencing_token()) => None,
        };
        // Here `select!` has dropped the work of the term. Only now others may lead.
        match lost {
            Some(reason) => println!("{name}: stopped, because {reason}"),
            None => println!("{name}: steps down"),
        }
        term.send_replace(None);
        if lost.is_none() {
            return guard.release().await;
        }
    }
}

/// Work of the leader. `select!` drops it at an `await`, so each step is short or can be dropped.
async fn lead(_token: FencingToken) {
    loop {
        // … a step, which sends the token with each write …
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Returns the token if this process leads by the local clock. Its other parts ask before each step of their own.
fn leader_token(term: &watch::Receiver<Option<HoldWatch>>) -> Option<FencingToken> {
    let term = term.borrow();
    let leads = |term: &&HoldWatch| !matches!(term.state(), HoldState::Lost(_));
    term.as_ref().filter(leads).map(HoldWatch::fencing_token)
}

/// Process that takes part.
struct Member {
    name: &'static str,
    term: watch::Receiver<Option<HoldWatch>>,
    resign: CancellationToken,
    task: JoinHandle<Result<()>>,
}

impl Member {
    fn start(locks: impl RwLockManager + 'static, name: &'static str) -> Self {
        let (sender, term) = watch::channel(None);
        let resign = CancellationToken::new();
        let stop = resign.clone();
        let task = tokio::spawn(async move { campaign(&locks, name, &sender, &stop).await });
        Self { name, term, resign, task }
    }
}

/// Waits until a member leads, and returns it.
async fn elected(members: &mut [Member]) -> usize {
    let terms = members.iter_mut().map(|member| Box::pin(member.term.wait_for(Option::is_some)));
    let (_, index, _) = select_all(terms).await;
    index
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    let mut members = Vec::new();
    for name in ["a", "b", "c"] {
        // A leader that is cut off from the server stops within a lease, and the next one leads after it.
        let locks = RedisManager::builder(&url).label(name).lease(Duration::from_secs(3)).build()?;
        members.push(Member::start(locks, name));
    }

    let first = elected(&mut members).await;
    RedisManager::connect(&url).await?.force_release("leader").await?;
    // The lock is free at once, and the leader learns of it at its next renewal. Until then, storage has to refuse its
    // token.
    members[first].term.wait_for(Option::is_none).await.expect("the member runs");
    let second = elected(&mut members).await;
    println!("now {} leads: {}", members[second].name, leader_token(&members[second].term).is_some());

    members[second].resign.cancel();
    members.swap_remove(second).task.await.expect("no panic")?;
    elected(&mut members).await;
    for member in members {
        member.resign.cancel();
        member.task.await.expect("no panic")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use redis_rwlock::MemoryManager;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn leader_that_is_cut_off_stops_before_the_next_one_leads() {
        let locks = MemoryManager::new();
        let mut members = [Member::start(locks.clone(), "a")];
        elected(&mut members).await;
        let mut others = [Member::start(locks.peer(), "b")];
        locks.disconnect();
        elected(&mut others).await;
        assert_eq!(leader_token(&members[0].term), None);
        assert!(leader_token(&others[0].term).is_some());
    }
}
