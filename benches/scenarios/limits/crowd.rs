//! Holders and waiters of managers that do not exist. The server sees only their requests, so it cannot tell.

use cluster_testenv::{Client, Node, Reply};

use crate::setup::scripts::hash;
use crate::setup::{TIMESTAMP_CLIENTS, evalsha, load, lock_key, member_id, send};

/// Requests in one pipeline.
const AT_ONCE: usize = 500;
/// Requests whose text is in memory at the same time.
const CHUNK: usize = 10_000;
/// Lease of a hold, and time for which a waiter waits: longer than any run.
pub(super) const LONG_MS: &str = "3600000";

pub(super) struct Crowd {
    client: Client,
    acquire: String,
    leave: String,
}

impl Crowd {
    pub(super) fn connect(node: &Node) -> Self {
        let mut client = node.client().expect("the server answers");
        let (acquire, leave) = (load(&mut client, hash::ACQUIRE), load(&mut client, hash::LEAVE));
        Self { client, acquire, leave }
    }

    /// Lets members `from` to `to` acquire the locks with these names. With a patience of 0 none of them waits.
    pub(super) fn acquire(
        &mut self,
        (from, to): (usize, usize),
        name: impl Fn(usize) -> String,
        mode: &str,
        patience_ms: &str,
    ) {
        for first in (from..to).step_by(CHUNK) {
            let members = first..(first + CHUNK).min(to);
            let commands: Vec<Vec<String>> = members
                .map(|member| {
                    let (key, id) = (lock_key(name(member)), member_id(member));
                    let arguments = ["9000000000000", &id, mode, LONG_MS, patience_ms, "1", TIMESTAMP_CLIENTS];
                    evalsha(&self.acquire, &[&key], &arguments)
                })
                .collect();
            send(&mut self.client, &commands, AT_ONCE);
        }
    }

    /// Releases the hold of a member.
    pub(super) fn leave(&mut self, name: &str, member: usize) {
        let command = evalsha(&self.leave, &[&lock_key(name)], &[&member_id(member), TIMESTAMP_CLIENTS]);
        let reply = self.client.command(&command).and_then(Reply::into_result).expect("the server answers");
        assert!(reply.text().is_some_and(|text| text.starts_with("held")), "{reply:?}");
    }

    /// Adds keys that have nothing to do with locks.
    pub(super) fn add_other_keys(&mut self, (from, to): (usize, usize)) {
        for first in (from..to).step_by(CHUNK) {
            let keys = first..(first + CHUNK).min(to);
            let commands: Vec<Vec<String>> =
                keys.map(|n| ["SET".to_owned(), format!("other:{n}"), "value".to_owned()].into()).collect();
            send(&mut self.client, &commands, AT_ONCE);
        }
    }
}
