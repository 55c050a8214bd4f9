//! How many commands each path costs, as `lua/README.md` says, and that no path costs more with many readers.

use std::collections::BTreeMap;

use crate::lab::{LEASE_MS, Lock, Mode, Read, Scheme, Wish, Write, all_cases};

all_cases!(alone: paths_cost_what_the_readme_says, release_costs_the_same_beside_many_readers);

mod in_the_hash {
    use super::*;

    crate::lab::hash_cases!(alone:
        waiting_costs_what_the_readme_says,
        keeping_costs_what_the_readme_says,
        waiting_costs_the_same_beside_many_others,
    );
}

mod in_two_keys {
    use super::*;

    crate::lab::two_key_cases!(alone: telling_costs_what_the_readme_says, telling_costs_the_same_beside_many_others);
}

impl Lock {
    /// The commands that `script` makes the server run.
    fn cost<S: AsRef<str>>(&mut self, script: &'static str, args: &[S]) -> u64 {
        self.command(&["CONFIG", "RESETSTAT"]);
        let reply = self.try_run(script, args);
        assert!(reply.error().is_none(), "{reply:?}");
        let stats = self.stats();
        assert_eq!(stats.get("evalsha").map(|stat| stat.0), Some(1));
        let inner = stats.iter().filter(|(name, _)| !OUTER.contains(&name.as_str()));
        inner.map(|(_, (calls, _))| calls).sum()
    }

    /// For each command how often it ran, and for how many microseconds.
    fn stats(&mut self) -> BTreeMap<String, (u64, u64)> {
        let info = self.text(&["INFO", "commandstats"]);
        let stats = info.lines().filter_map(|line| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(':')?;
            let mut numbers = rest.split(',').map(|part| part.split_once('='));
            let mut number = || numbers.next()??.1.parse().ok();
            Some((name.to_owned(), (number()?, number()?)))
        });
        stats.collect()
    }

    /// Acquires without a look at the invariants, which takes long beside many others.
    fn ask_unchecked(&mut self, id: &str, mode: Mode, wish: Wish) {
        self.try_run("acquire", &self.wish_args(id, mode, wish));
    }

    fn ask_cost(&mut self, id: &str, mode: Mode, wish: Wish) -> u64 {
        self.cost("acquire", &self.wish_args(id, mode, wish))
    }

    fn acquire_cost(&mut self, id: &str, mode: Mode) -> u64 {
        self.ask_cost(id, mode, Wish::AT_ONCE)
    }

    fn wait_cost(&mut self, id: &str, mode: Mode) -> u64 {
        self.ask_cost(id, mode, Wish::PATIENT)
    }

    fn leave_cost(&mut self, id: &str) -> u64 {
        self.cost("leave", &self.leave_args(id))
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
        expect(lock.acquire_cost("w", Write), 4 + u64::from(first), 7, "writer");
        expect(lock.acquire_cost("w", Write), 4, 7, "writer repeats");
        expect(lock.acquire_cost("b", Write), 3, 6, "beside a writer");
        expect(lock.acquire_cost("b", Read), 3, 6, "beside a writer");
        expect(lock.renew_cost("w"), 4, 7, "writer renews");
        expect(lock.renew_cost("b"), 4, 7, "lost");
        expect(lock.leave_cost("b"), 4, 7, "none");
        expect(lock.leave_cost("w"), 3, 7, "writer leaves");

        expect(lock.acquire_cost("a", Read), 4, 6, "first reader");
        expect(lock.acquire_cost("a", Read), 4, 7, "only reader repeats");
        expect(lock.renew_cost("a"), 4, 6, "only reader renews");
        expect(lock.acquire_cost("w", Write), 3, 5, "beside one reader");
        expect(lock.leave_cost("a"), 3, 6, "only reader leaves");
        expect(lock.acquire_cost("a", Read), 4, 6, "first reader");
        for (id, in_hash) in [("b", 4), ("c", 6), ("d", 6)] {
            expect(lock.acquire_cost(id, Read), in_hash, 7, "reader joins");
        }
        expect(lock.renew_cost("a"), 4, 6, "reader renews");
        expect(lock.acquire_cost("a", Read), 4, 7, "reader repeats");
        expect(lock.acquire_cost("w", Write), 5, 5, "beside readers");
        let last = if hash { lock.reader_in_slot(4) } else { "d".to_owned() };
        let others = ["a", "b", "c", "d"];
        let mut others: Vec<_> = others.into_iter().filter(|id| *id != last).collect();
        expect(lock.leave_cost(&last), 6, 6, "reader in the last slot leaves");
        let first_slot = if hash { lock.reader_in_slot(1) } else { "a".to_owned() };
        expect(lock.leave_cost(&first_slot), 6, 6, "reader leaves");
        others.retain(|id| *id != first_slot);
        lock.leave(others[0]);
        expect(lock.leave_cost(others[1]), 4, 6, "last reader leaves");
        if first {
            lock.force();
        }
    }
    lock.acquire_cost("w", Write);
    let until_ms = (lock.now_ms() + 60_000).to_string();
    expect(lock.cost("renew", &["w", "1000", "u", &until_ms]), 4, 7, "writer renews until a time");
    let args = [lock.leave_args("w"), vec![until_ms]].concat();
    expect(lock.cost("leave", &args), 6, 7, "writer's hold rests");
    lock.force();
    expect(lock.ask_cost("a", Read, Wish { not_after_ms: 1, ..Wish::AT_ONCE }), 1, 1, "late");
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
            lock.ask_unchecked(&format!("other.{n}"), Read, Wish::AT_ONCE);
        }
    }
    if lock.scheme == Scheme::Hash {
        for lock in &mut locks[1..] {
            assert_eq!(lock.encoding(), "hashtable", "searched, not scanned");
        }
    }
    let mut spent_us = [0; 3];
    for round in 0..ROUNDS {
        for (lock, spent_us) in locks.iter_mut().zip(&mut spent_us) {
            let id = format!("leaver.{round}");
            lock.ask_unchecked(&id, Read, Wish::AT_ONCE);
            let cost = lock.leave_cost(&id);
            assert!(cost <= 7, "{cost} commands");
            *spent_us += lock.stats()["evalsha"].1;
        }
    }
    for (others, spent_us) in counts.into_iter().zip(spent_us) {
        let (scheme, server) = (lock.scheme, lock.lab.node.server());
        let (us, tenths) = (spent_us / ROUNDS, spent_us * 10 / ROUNDS % 10);
        println!("{scheme:?} on {server}: a reader leaves {others} others in {us}.{tenths} us");
    }
}

impl Lock {
    fn turn_cost(&mut self, old: &str, new: &str, mode: Mode) -> u64 {
        self.cost("convert", &self.convert_args(old, new, mode, Wish::AT_ONCE))
    }
}

fn waiting_costs_what_the_readme_says(mut lock: Lock) {
    lock.granted("w", Write);
    for mode in [Write, Read] {
        assert_eq!(lock.wait_cost("a", mode), 4, "first to wait");
        assert_eq!(lock.wait_cost("b", mode), 5, "second to wait");
        assert_eq!(lock.wait_cost("c", mode), 5, "third to wait");
        for id in ["a", "b", "c"] {
            assert_eq!(lock.wait_cost(id, mode), 5, "heartbeat");
        }
        assert_eq!(lock.leave_cost("b"), if mode == Read { 8 } else { 7 }, "from the middle");
        assert_eq!(lock.leave_cost("c"), if mode == Read { 6 } else { 7 }, "the last one");
        assert_eq!(lock.leave_cost("a"), 5, "the only one");
    }
    lock.queued("a", Write);
    assert_eq!(lock.acquire_cost("w", Write), 5, "writer repeats before waiting ones");
    assert_eq!(lock.renew_cost("w"), 4, "writer renews before waiting ones");
    lock.queued("b", Write);
    assert_eq!(lock.leave_cost("w"), 8, "hand-over to a writer, another waits");
    assert_eq!(lock.leave_cost("a"), 7, "hand-over to a writer");
    assert_eq!(lock.leave_cost("b"), 3, "nobody waits");

    lock.granted("r", Read);
    assert_eq!(lock.wait_cost("a", Write), 4, "first to wait for readers");
    assert_eq!(lock.wait_cost("a", Write), 5, "heartbeat, readers inside");
    assert_eq!(lock.wait_cost("b", Read), 5, "reader behind it");
    assert_eq!(lock.acquire_cost("r", Read), 5, "reader repeats before waiting ones");
    assert_eq!(lock.leave_cost("r"), 7, "only reader hands over");
    assert_eq!(lock.leave_cost("a"), 9, "writer lets one reader in");
    assert_eq!(lock.leave_cost("b"), 3, "nobody waits");

    for id in ["a", "b", "c"] {
        lock.granted(id, Read);
    }
    lock.queued("w", Write);
    assert_eq!(lock.leave_cost("a"), 7, "a reader of several, a writer waits");
    assert_eq!(lock.wait_cost("r", Read), 6, "reader behind readers and a writer");
    assert_eq!(lock.wait_cost("r", Read), 7, "its heartbeat");
    assert_eq!(lock.leave_cost("b"), 7, "a reader waits behind it");
    assert_eq!(lock.leave_cost("c"), 7, "the last reader hands over");
    for id in ["w", "r"] {
        lock.leave(id);
    }

    for readers in [1_u64, 10, 50, 96] {
        lock.granted("w", Write);
        for n in 0..readers {
            lock.ask_unchecked(&format!("r.{n}"), Read, Wish::PATIENT);
        }
        // And one that tells it for each.
        assert_eq!(lock.leave_cost("w"), 8 + readers, "{readers} come in");
        assert_eq!(lock.inspect().ids().len() as u64, readers);
        lock.force();
    }

    lock.granted("w", Write);
    assert_eq!(lock.turn_cost("w", "r", Read), 5, "downgrade");
    assert_eq!(lock.turn_cost("r", "w", Write), 5, "upgrade");
}

fn keeping_costs_what_the_readme_says(mut lock: Lock) {
    let keep = Wish { letters: "k", ..Wish::AT_ONCE };
    let tries = Wish { letters: "t", ..Wish::PATIENT };
    lock.granted("w", Write);
    lock.leave("w");
    assert_eq!(lock.ask_cost("w", Write, keep), 5, "writer");
    assert_eq!(lock.ask_cost("w", Write, keep), 4, "writer repeats");
    assert_eq!(lock.cost("renew", &["w", "1000", "k"]), 4, "writer renews, the mark stands");
    lock.renew("w", LEASE_MS);
    lock.delete_field("k");
    assert_eq!(lock.cost("renew", &["w", "1000", "k"]), 4, "and marks it");
    assert_eq!(lock.cost("renew", &["w", "1000", "k", "64"]), 4, "and wants tokens");
    assert_eq!(lock.acquire_cost("a", Write), 3, "kept");
    assert_eq!(lock.wait_cost("a", Write), 6, "the first calls");
    assert_eq!(lock.wait_cost("a", Write), 5, "called already");
    assert_eq!(lock.ask_cost("b", Write, tries), 6, "a try");
    assert_eq!(lock.ask_cost("w", Write, keep), 5, "writer repeats before waiting ones");
    assert_eq!(lock.cost("renew", &["w", "1000", "k"]), 4, "writer renews before waiting ones");
    assert_eq!(lock.cost("used", &["b"]), 2, "a try is answered");
    assert_eq!(lock.cost("note", &["w", "1", "deploy 4711"]), 4, "the first note");
    assert_eq!(lock.cost("note", &["w", "2", "done"]), 3, "a later note");
    assert_eq!(lock.cost("note", &["w", "1", "deploy 4711"]), 2, "a late copy");
    assert_eq!(lock.cost("note", &["b", "3", "waits"]), 2, "no holder");
    for id in ["b", "a", "w"] {
        lock.leave(id);
    }
    lock.granted("w", Write);
    assert_eq!(lock.wait_cost("a", Write), 4, "queued beside the mark of an earlier phase");
}

fn waiting_costs_the_same_beside_many_others(lock: Lock) {
    let mut costs = Vec::new();
    for others in [5, 300] {
        let mut lock = lock.lab.lock(lock.scheme);
        lock.granted("w", Write);
        for n in 0..others {
            lock.ask_unchecked(&format!("r.{n}"), Read, Wish::PATIENT);
            lock.ask_unchecked(&format!("v.{n}"), Write, Wish::PATIENT);
        }
        let mut cost = vec![lock.acquire_cost("w", Write), lock.renew_cost("w")];
        for (id, other, mode) in [("a", "v.1", Write), ("b", "r.1", Read)] {
            cost.extend([
                lock.wait_cost(id, mode),
                lock.wait_cost(other, mode),
                lock.leave_cost(other),
                lock.leave_cost(id),
            ]);
        }
        for n in 0..others {
            lock.try_run("leave", &lock.leave_args(&format!("r.{n}")));
        }
        cost.extend([lock.leave_cost("w"), lock.leave_cost("v.0")]);
        costs.push(cost);
    }
    assert_eq!(costs[0], costs[1]);
}

fn telling_costs_what_the_readme_says(mut lock: Lock) {
    lock.granted("w", Write);
    assert_eq!(lock.wait_cost("a", Write), 9, "first to wait");
    assert_eq!(lock.wait_cost("b", Write), 10, "second to wait");
    assert_eq!(lock.wait_cost("a", Write), 10, "heartbeat");
    assert_eq!(lock.leave_cost("w"), 13, "writer tells the next");
    assert_eq!(lock.wait_cost("w", Write), 9, "kept for another");
    assert_eq!(lock.wait_cost("a", Write), 11, "who was told enters");
    assert_eq!(lock.renew_cost("a"), 7, "renews before waiting ones");
    assert_eq!(lock.leave_cost("b"), 9, "leaves its place");
    assert_eq!(lock.leave_cost("w"), 9, "the last one");
    assert_eq!(lock.leave_cost("a"), 10, "nobody waits any more");
    assert_eq!(lock.acquire_cost("a", Write), 7, "as if nobody had waited");
    for readers in [1_u64, 10, 100] {
        for n in 0..readers {
            lock.ask_unchecked(&format!("r.{n}"), Read, Wish::PATIENT);
        }
        assert_eq!(lock.leave_cost("a"), 15 + readers, "{readers} are told");
        // One more where there may be a chain of those who are told.
        assert_eq!(lock.wait_cost("r.0", Read), if readers == 100 { 12 } else { 10 }, "the first enters");
        for n in 1..readers {
            assert_eq!(lock.wait_cost(&format!("r.{n}"), Read), 11, "the others do");
        }
        let left = if readers == 1 { 9 } else { 6 };
        assert_eq!(lock.leave_cost("r.0"), left, "reader leaves");
        lock.force();
        lock.granted("a", Write);
    }
}

fn telling_costs_the_same_beside_many_others(lock: Lock) {
    let mut costs = Vec::new();
    for others in [5, 300] {
        let mut lock = lock.lab.lock(lock.scheme);
        lock.granted("w", Write);
        for n in 0..others {
            lock.ask_unchecked(&format!("v.{n}"), Write, Wish::PATIENT);
        }
        costs.push([
            lock.wait_cost("a", Write),
            lock.wait_cost("v.1", Write),
            lock.leave_cost("v.2"),
            lock.leave_cost("w"),
            lock.wait_cost("b", Read),
            lock.wait_cost("v.0", Write),
            lock.leave_cost("v.0"),
        ]);
    }
    assert_eq!(costs[0], costs[1]);
}
