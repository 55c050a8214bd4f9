//! Waiting as in a service, with many processes and many tasks each: its costs, faults while they wait, and waits that
//! end early.

use std::time::Duration;

use redis_rwlock::{Acquiring, Error, Guard};
use tokio::task::JoinHandle;

use crate::fixture::{Fixture, Manager, ServerFixture, Settings};
use crate::wait::{soon, until};

mod adopted;
mod costs;
mod dropped;
mod ends;
mod events;
mod fairness;
mod faults;
mod many_waiters;
mod notifications;
mod process;

/// Longest pause between two requests of a waiter.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(1);
/// Time that a busy machine may add to any wait.
pub(crate) const MACHINE: Duration = Duration::from_secs(1);

/// Settings with a lease so long that no hold or waiter goes away by itself while a case looks.
fn patient(label: &str) -> Settings {
    Settings { lease: Duration::from_secs(300), ..Settings::label(label) }
}

async fn managers<const N: usize>(f: &Fixture) -> [Manager; N] {
    let mut all = Vec::new();
    for n in 0..N {
        all.push(f.manager_with(patient(&format!("process-{n}"))).await);
    }
    all.try_into().unwrap_or_else(|_| panic!("as many as asked for"))
}

/// Starts a waiter in a task, and returns when it is in the queue.
async fn queued<G: Guard>(f: &Fixture, name: &str, acquiring: Acquiring<G>) -> JoinHandle<Result<G, Error>> {
    let before = f.view(name).await.waiters.len();
    let waiting = tokio::spawn(acquiring);
    until("it waits", async || f.view(name).await.waiters.len() > before).await;
    waiting
}

async fn got<G>(what: &str, waiting: JoinHandle<Result<G, Error>>) -> G {
    soon(what, waiting).await.expect("no panic").expect("granted")
}

/// Number of scripts that the servers were asked to run. Looks by [`recorded`] are no scripts.
fn scripts(f: &ServerFixture) -> i64 {
    f.calls_of("evalsha") + f.calls_of("eval")
}

/// Number of waiters that a lock has on its server, dead or alive.
fn recorded(f: &ServerFixture, name: &str) -> usize {
    let fields = f.on_key("HKEYS", &f.hash_key(name), &[]);
    let fields = fields.array().expect("a list").iter();
    fields.filter(|field| field.bytes().is_some_and(|name| name.starts_with(b"U"))).count()
}
