//! How many commands each path costs, as `lua/README.md` says, and that no path costs more with many readers.

use std::collections::BTreeMap;

use crate::lab::{LEASE_MS, Lock, Read, Scheme, Write, all_cases};

all_cases!(alone: paths_cost_what_the_readme_says, release_costs_the_same_beside_many_readers);

impl Lock {
    /// The commands that `script` makes the server run.
    fn cost<S: AsRef<str>>(&mut self, script: &'static str, args: &[S]) -> u64 {
        self.command(&["CONFIG", "RESETSTAT"]);
        let reply = self.try_run(script, args);
        assert!(reply.array().is_some(), "{reply:?}");
        let stats = self.stats();
        assert_eq!(stats.get("evalsha").map(|stat| stat.0), Some(1));
        let inner = stats.iter().filter(|(name, _)| !OUTER.contains(&name.as_str()));
        inner.map(|(_, (calls, _))| calls).sum()
    }

    /// For each command how often it ran, and for how many microseconds.
    fn stats(&mut self) -> BTreeMap<String, (u64, u64)> {
        let info = self.command(&["INFO", "commandstats"]);
        let info = info.text().expect("a text").into_owned();
        let stats = info.lines().filter_map(|line| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(':')?;
            let mut numbers = rest.split(',').map(|part| part.split_once('='));
            let mut number = || numbers.next()??.1.parse().ok();
            Some((name.to_owned(), (number()?, number()?)))
        });
        stats.collect()
    }

    fn acquire_cost(&mut self, id: &str, mode: crate::lab::Mode) -> u64 {
        let args = self.acquire_args(id, mode, LEASE_MS);
        self.cost("acquire", &args)
    }

    fn leave_cost(&mut self, id: &str) -> u64 {
        let args = match self.scheme {
            Scheme::Hash => vec![id.to_owned()],
            Scheme::TwoKey => vec![id.to_owned(), self.channel.clone()],
        };
        self.cost("leave", &args)
    }

    fn renew_cost(&mut self, id: &str) -> u64 {
        self.cost("renew", &[id, "1000"])
    }
}

/// What the case itself runs.
const OUTER: [&str; 3] = ["evalsha", "info", "config|resetstat"];

fn paths_cost_what_the_readme_says(mut lock: Lock) {
    let hash = lock.scheme == Scheme::Hash;
    let expect = |cost: u64, in_hash: u64, in_two_key: u64, what: &str| {
        assert_eq!(cost, if hash { in_hash } else { in_two_key }, "{what}");
    };
    for first in [true, false] {
        expect(lock.acquire_cost("w", Write), 4, 7, "writer");
        expect(lock.acquire_cost("w", Write), 4, 7, "writer repeats");
        expect(lock.acquire_cost("b", Write), 3, 6, "beside a writer");
        expect(lock.acquire_cost("b", Read), 3, 6, "beside a writer");
        expect(lock.renew_cost("w"), 4, 7, "writer renews");
        expect(lock.renew_cost("b"), 3, 7, "lost");
        expect(lock.leave_cost("b"), 3, 7, "none");
        expect(lock.leave_cost("w"), 4, 8, "writer leaves");

        expect(lock.acquire_cost("a", Read), 4, 6, "first reader");
        expect(lock.renew_cost("a"), 4, 6, "reader renews");
        for id in ["b", "c", "d"] {
            expect(lock.acquire_cost(id, Read), 6, 7, "reader joins");
        }
        expect(lock.acquire_cost("a", Read), 6, 7, "reader repeats");
        expect(lock.acquire_cost("w", Write), 5, 5, "beside readers");
        let last = if hash { lock.reader_in_slot(4) } else { "d".to_owned() };
        let others = ["a", "b", "c", "d"];
        let mut others: Vec<_> = others.into_iter().filter(|id| *id != last).collect();
        expect(lock.leave_cost(&last), 5, 6, "reader in the last slot leaves");
        let first_slot = if hash { lock.reader_in_slot(1) } else { "a".to_owned() };
        expect(lock.leave_cost(&first_slot), 6, 6, "reader leaves");
        others.retain(|id| *id != first_slot);
        lock.leave(others[0]);
        expect(lock.leave_cost(others[1]), 4, 7, "last reader leaves");
        if first {
            lock.force();
        }
    }
    let args = [vec!["1"], lock_args()].concat();
    expect(lock.cost("acquire", &args), 1, 1, "late");
}

fn lock_args() -> Vec<&'static str> {
    vec!["a", "r", "1000", "1000", "3000"]
}

impl Lock {
    fn reader_in_slot(&mut self, slot: u32) -> String {
        self.field(&format!("r{slot}")).expect("a reader")
    }
}

fn release_costs_the_same_beside_many_readers(lock: Lock) {
    const ROUNDS: u64 = 300;
    let counts = [1, 100, 1000];
    let mut locks: Vec<_> = counts.map(|_| lock.lab.lock(lock.scheme)).into();
    for (lock, others) in locks.iter_mut().zip(counts) {
        for n in 0..others {
            let args = lock.acquire_args(&format!("other.{n}"), Read, LEASE_MS);
            lock.try_run("acquire", &args);
        }
    }
    if lock.scheme == Scheme::Hash {
        for lock in &mut locks[1..] {
            let key = lock.key();
            let encoding = lock.command(&["OBJECT", "ENCODING", &key]);
            assert_eq!(encoding.text().expect("a text"), "hashtable", "searched, not scanned");
        }
    }
    let mut spent_us = [0; 3];
    for round in 0..ROUNDS {
        for (lock, spent_us) in locks.iter_mut().zip(&mut spent_us) {
            let id = format!("leaver.{round}");
            let args = lock.acquire_args(&id, Read, LEASE_MS);
            lock.try_run("acquire", &args);
            let most = if lock.scheme == Scheme::Hash { 6 } else { 7 };
            assert!(lock.leave_cost(&id) <= most);
            *spent_us += lock.stats()["evalsha"].1;
        }
    }
    for (others, spent_us) in counts.into_iter().zip(spent_us) {
        let (scheme, server) = (lock.scheme, lock.lab.node.server());
        let (us, tenths) = (spent_us / ROUNDS, spent_us * 10 / ROUNDS % 10);
        println!("{scheme:?} on {server}: a reader leaves {others} others in {us}.{tenths} us");
    }
}
