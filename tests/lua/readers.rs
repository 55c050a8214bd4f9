//! The reader array of the hash: leaving in any order, the walk that finds a witness, dead readers in the way.

use std::collections::BTreeMap;

use fastrand::Rng;

use crate::{
    invariants,
    lab::{LEASE_MS, LONG_MS, Left, Lock, MOST_RECORDS, RETENTION_MS, Read, Renewed, Write, hash_cases},
};

hash_cases!(shared:
    readers_leave_in_any_order,
    beginnings_stay_with_their_readers,
    last_reader_leaves_nothing_but_the_token,
    walk_ends_at_the_first_live_reader,
    dead_readers_are_removed_some_at_a_time,
    dead_reader_among_live_ones_is_found_in_the_long_run,
    own_record_met_on_the_walk_is_made_anew,
    repeat_beside_dead_readers_keeps_the_phase,
    hash_becomes_a_table_with_the_eighth_reader,
);

/// The ids in the slots, from first to last.
fn slots(lock: &mut Lock) -> Vec<String> {
    let fields = invariants::fields(lock);
    let count: usize = fields.get("a").map_or(0, |a| a.parse().expect("a number"));
    let slots = 1..=count;
    slots.map(|slot| fields[&format!("r{slot}")].clone()).collect()
}

fn readers_leave_in_any_order(mut lock: Lock) {
    const COUNT: usize = 4;
    for order in 0..COUNT * (COUNT - 1) * (COUNT - 2) {
        for id in ["a", "b", "c", "d"] {
            lock.granted(id, Read);
        }
        let mut digits = order;
        for left in (1..=COUNT).rev() {
            let mut before = slots(&mut lock);
            assert_eq!(before.len(), left);
            let id = before[digits % left].clone();
            digits /= left;
            assert_eq!(lock.leave(&id), Left::Held);
            before.retain(|other| *other != id);
            let mut after = slots(&mut lock);
            before.sort_unstable();
            after.sort_unstable();
            assert_eq!(after, before);
        }
    }
}

fn beginnings_stay_with_their_readers(mut lock: Lock) {
    let mut rng = Rng::with_seed(1);
    let mut since_ms = BTreeMap::new();
    for n in 1..60 {
        let id = n.to_string();
        lock.granted(&id, Read);
        // All of them came within a few milliseconds: tell them apart.
        let slot = lock.field(&format!("s{id}")).expect("a slot");
        lock.set_field(&format!("i{slot}"), n);
        since_ms.insert(id, n);
        if n % 3 == 0 {
            let id = rng.choice(since_ms.keys()).expect("a reader").clone();
            lock.leave(&id);
            since_ms.remove(&id);
        }
        let holders = lock.inspect().holders.into_iter();
        assert_eq!(holders.map(|h| (h.id, h.since_ms)).collect::<BTreeMap<_, _>>(), since_ms);
    }
}

fn last_reader_leaves_nothing_but_the_token(mut lock: Lock) {
    lock.granted_for("a", Read, LONG_MS);
    lock.granted("b", Read);
    lock.leave("a");
    lock.leave("b");
    let fields = invariants::fields(&mut lock);
    assert_eq!(fields.keys().collect::<Vec<_>>(), ["b", "t"]);
    let ttl_ms = lock.int(&["PTTL", &lock.key()]);
    assert!(ttl_ms <= RETENTION_MS, "the retention begins");

    lock.granted("w", Write);
    lock.leave("w");
    let fields = invariants::fields(&mut lock);
    assert_eq!(fields.keys().collect::<Vec<_>>(), ["b", "t"]);
}

fn walk_ends_at_the_first_live_reader(mut lock: Lock) {
    for id in ["a", "b", "c", "d", "e"] {
        lock.granted(id, Read);
    }
    let order = slots(&mut lock);
    lock.expire(&order[0]);
    lock.expire(&order[3]);
    lock.expire(&order[4]);
    lock.contended("w", Write);
    assert_eq!(slots(&mut lock), order[..3], "removed from the end");
    lock.expire(&order[2]);
    lock.expire(&order[1]);
    lock.granted("w", Write);
    let fields = invariants::fields(&mut lock);
    assert_eq!(fields.into_keys().collect::<String>(), "DITWbtwrite");
}

fn dead_readers_are_removed_some_at_a_time(mut lock: Lock) {
    for mode in [Write, Read] {
        for n in 0..250 {
            lock.granted(&format!("dead.{n}"), Read);
        }
        for id in slots(&mut lock) {
            lock.expire(&id);
        }
        assert_eq!(lock.contended("w", mode), 1, "at once again");
        assert_eq!(slots(&mut lock).len(), 250 - MOST_RECORDS);
        assert_eq!(lock.contended("w", mode), 1);
        assert_eq!(slots(&mut lock).len(), 250 - 2 * MOST_RECORDS);
        lock.granted("w", mode);
        lock.leave("w");
    }
}

fn dead_reader_among_live_ones_is_found_in_the_long_run(mut lock: Lock) {
    for n in 0..5 {
        lock.granted(&format!("dead.{n}"), Read);
    }
    lock.granted("live", Read);
    for n in 0..5 {
        lock.expire(&format!("dead.{n}"));
    }
    // At every moment somebody is live. Six slots at most, so that a join misses one with 5/6: 2,000 do not.
    let mut before = "live".to_owned();
    for n in 0..2000 {
        let next = format!("n.{n}");
        lock.granted(&next, Read);
        lock.leave(&before);
        before = next;
        if lock.field("a").as_deref() == Some("1") {
            return;
        }
    }
    panic!("still there: {:?}", slots(&mut lock));
}

fn own_record_met_on_the_walk_is_made_anew(mut lock: Lock) {
    // The only one, then the one at the end, then one that the walk does not reach.
    lock.granted("a", Read);
    lock.expire("a");
    lock.granted("a", Read);
    lock.granted("b", Read);
    for place in [1, 0] {
        let order = slots(&mut lock);
        lock.expire(&order[place]);
        lock.granted(&order[place], Read);
        assert_eq!(slots(&mut lock).len(), 2);
        assert_eq!(lock.inspect().ids(), ["a", "b"]);
    }
}

fn repeat_beside_dead_readers_keeps_the_phase(mut lock: Lock) {
    for id in ["a", "b", "c"] {
        lock.granted(id, Read);
    }
    let order = slots(&mut lock);
    lock.expire(&order[1]);
    lock.expire(&order[2]);
    let token = lock.inspect().token;
    assert_eq!(lock.granted(&order[0], Read), token);
    assert_eq!(lock.inspect().ids(), [&order[0]]);
    assert_eq!(lock.renew(&order[1], LEASE_MS), Renewed::Lost { forced: 0 });
}

fn hash_becomes_a_table_with_the_eighth_reader(mut lock: Lock) {
    let key = lock.key();
    for n in 1..10 {
        lock.granted(&n.to_string(), Read);
        let encoding = lock.command(&["OBJECT", "ENCODING", &key]);
        let expected = if n < 8 { "listpack" } else { "hashtable" };
        assert_eq!(encoding.text().expect("a text"), expected, "{n} readers");
    }
}
