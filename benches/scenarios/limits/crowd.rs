//! Holders and waiters of managers that do not exist. The server sees only their requests, so it cannot tell.

use super::climb::Heads;
use super::probe::{Meter, Prober};
use super::*;

/// Requests in one pipeline.
const AT_ONCE: usize = 500;
/// Requests whose text is in memory at the same time.
const CHUNK: usize = 10_000;
/// Lease of a hold, and time for which a waiter waits: longer than any run.
const LONG_MS: &str = "3600000";

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

    /// Releases the hold of a member. Returns how long that took.
    fn leave(&mut self, name: &str, member: usize) -> Duration {
        let began = Instant::now();
        let command = evalsha(&self.leave, &[&lock_key(name)], &[&member_id(member), TIMESTAMP_CLIENTS]);
        let reply = self.client.command(&command).and_then(Reply::into_result).expect("the server answers");
        let took = began.elapsed();
        assert!(reply.text().is_some_and(|text| text.starts_with("held")), "{reply:?}");
        took
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

/// Members of a crowd that want one lock.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Members {
    /// Read it together. One more reader comes and goes in each turn.
    Readers,
    /// Wait for it in the server's queue. In each turn one of them hands it to the next.
    Writers,
}

impl Members {
    /// Lets more and more of them come, and measures so many turns and inspections in each step.
    pub(super) fn climb(self, heads: Heads, loads: &[usize], (turns, looks): (usize, usize)) {
        const LOCK: &str = "crowd";
        let node = start_node();
        let (prober, one_more) = (Prober::connect(&node), Prober::connect(&node));
        let mut crowd = Crowd::connect(&node);
        let mut meter = Meter::start(&node, std::process::id());
        // Of the writers, the first has the lock, and those before it have left.
        let (mut first, mut last, mut arrivals) = (0, 0, Arrivals::default());
        climb(heads, loads, |count| {
            let began = Instant::now();
            let (end, mode, patience_ms) = match self {
                Self::Readers => (count, "r", "0"),
                Self::Writers => (last.max(first + count + 1), "w", LONG_MS),
            };
            crowd.acquire((last, end), |_| LOCK.to_owned(), mode, patience_ms);
            let rate = arrivals.note(end - last, began);
            last = end;
            let bytes = meter.bytes();
            meter.reset();
            let mut turn = |member| match self {
                Self::Readers => one_more.read_pair(LOCK).expect("granted"),
                Self::Writers => crowd.leave(LOCK, member),
            };
            let ((mut times, mut inspections), mut felt) = prober.probe_during(|| {
                let times: Vec<Duration> = (first..first + turns).map(&mut turn).collect();
                (times, prober.inspections(LOCK, looks))
            });
            first += turns;
            let [_, server_kib] = meter.kib_each(bytes, count);
            Ok(Reading {
                watched: quantile_us(&mut times, 0.99),
                cells: vec![
                    ("p50", whole(quantile_us(&mut times, 0.5))),
                    ("others' p99", whole(felt.micros(0.99))),
                    ("inspect, us", whole(quantile_us(&mut inspections, 0.5))),
                    ("longest script, ms", meter.longest()),
                    ("came a second", rate),
                    ("server, KiB each", server_kib),
                ],
                bytes: bytes[1],
                failure: felt.failure.take(),
            })
        });
    }
}
