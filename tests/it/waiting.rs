//! Waiting as in a service, with many processes and many tasks each: its costs, faults while they wait, and waits that
//! end early.

use std::time::Duration;

use crate::fixture::{Fixture, Manager, ServerFixture, Settings};

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
pub const HEARTBEAT: Duration = Duration::from_secs(1);
/// Time that a busy machine may add to any wait.
pub const MACHINE: Duration = Duration::from_secs(1);

/// Settings with a lease so long that no hold or waiter goes away by itself while a case looks.
pub fn patient(label: &str) -> Settings {
    Settings { lease: Duration::from_secs(300), ..Settings::label(label) }
}

/// Managers of several processes, with a label each, and the name of a lock.
pub async fn scene<const N: usize>(f: &Fixture) -> ([Manager; N], String) {
    f.scene_of(|n| patient(&format!("process-{n}"))).await
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
