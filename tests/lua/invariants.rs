//! What is true of a lock's keys between any two scripts: the numbered list of `lua/README.md`.

use std::collections::{BTreeMap, BTreeSet};

use cluster_testenv::Reply;

use crate::lab::{Lock, Scheme};

pub(crate) fn check(lock: &mut Lock) {
    for key in lock.keys.clone() {
        let ttl_ms = lock.int(&["PTTL", &key]);
        assert_ne!(ttl_ms, -1, "{key} has a ttl");
    }
    match lock.scheme {
        Scheme::Hash => check_hash(&fields(lock), lock.now_ms()),
        Scheme::TwoKey => check_readers(&members(lock)),
    }
}

/// All fields of the hash.
pub(crate) fn fields(lock: &mut Lock) -> BTreeMap<String, String> {
    let key = lock.key();
    pairs(&lock.command(&["HGETALL", &key]))
}

/// All members of the readers' key with their scores.
pub(crate) fn members(lock: &mut Lock) -> BTreeMap<String, i64> {
    let key = lock.key();
    let members = pairs(&lock.command(&["ZRANGE", &key, "0", "-1", "WITHSCORES"]));
    let number = |score: String| score.parse().expect("a score without exponent or fraction");
    let members = members.into_iter();
    members.map(|(m, score)| (m, number(score))).collect()
}

fn pairs(reply: &Reply) -> BTreeMap<String, String> {
    let flat = reply.array().expect("an array");
    let text = |reply: &Reply| reply.text().expect("a text").into_owned();
    let pairs = flat.chunks(2);
    pairs.map(|pair| (text(&pair[0]), text(&pair[1]))).collect()
}

fn check_hash(fields: &BTreeMap<String, String>, now_ms: i64) {
    let has = |name: &str| fields.contains_key(name);
    let number = |name: &str| -> i64 { fields[name].parse().expect("a number, written out") };

    assert!(!(has("W") && has("a")), "one kind of record: {fields:?}");
    assert!(has("W") == has("D") && has("W") == has("I") && has("W") == has("T"), "{fields:?}");
    assert!(!has("W") || number("T") <= number("t"), "{fields:?}");
    assert!(has("a") == has("m") && (has("a") || !(has("v") || has("o"))), "{fields:?}");
    assert!(has("t") || !(has("W") || has("a")), "{fields:?}");

    let slots = if has("a") { number("a") } else { 0 };
    let mut ids = BTreeSet::new();
    for slot in 1..=slots {
        let id = &fields[&format!("r{slot}")];
        assert!(ids.insert(id), "{id} has one slot");
        assert!(number(&format!("i{slot}")) <= now_ms);
        assert_eq!(number(&format!("s{id}")), slot, "{id} knows its slot");
        let deadline_ms = number(&format!("R{id}"));
        assert!(deadline_ms <= now_ms || deadline_ms <= number("m"), "{id} is covered");
    }
    assert!(!has("a") || slots > 0, "no empty array");
    for letter in ['r', 'i', 's', 'R'] {
        let named = |name: &&String| name.starts_with(letter) && *name != "read";
        let count = fields.keys().filter(named).count();
        assert_eq!(count, ids.len(), "fields {letter} beside {slots} slots: {fields:?}");
    }
    assert!(!has("v") || number("m") > number("v"), "{fields:?}");
    check_queue(fields, now_ms);
}

/// The list of waiting writers and the array of waiting readers.
fn check_queue(fields: &BTreeMap<String, String>, now_ms: i64) {
    let has = |name: &str| fields.contains_key(name);
    let number = |name: &str| -> i64 { fields[name].parse().expect("a number, written out") };

    let mut writers = BTreeSet::new();
    let mut before = String::new();
    assert_eq!(has("N"), has("P"), "both ends: {fields:?}");
    while let Some(id) = fields.get(&format!("N{before}")).filter(|id| !id.is_empty()) {
        assert!(writers.insert(id.clone()), "{id} waits once");
        assert_eq!(fields[&format!("P{id}")], before, "{id} knows who is before it");
        before.clone_from(id);
    }
    assert_eq!(fields.get("P").cloned().unwrap_or_default(), before, "the end is the last one");
    assert_eq!(has("N"), !writers.is_empty(), "no empty list");

    let slots = if has("c") { number("c") } else { 0 };
    let readers: BTreeSet<_> = (1..=slots).map(|slot| fields[&format!("q{slot}")].clone()).collect();
    for slot in 1..=slots {
        let id = &fields[&format!("q{slot}")];
        assert_eq!(number(&format!("Q{id}")), slot, "{id} knows its slot");
    }
    assert!(!has("c") || slots > 0, "no empty array");
    assert_eq!(readers.len() as i64, slots, "each waits once");
    assert_eq!(has("u"), !(writers.is_empty() && readers.is_empty()), "{fields:?}");

    for id in writers.iter().chain(&readers) {
        assert!(number(&format!("S{id}")) <= now_ms && number(&format!("C{id}")) > 0);
        assert!(number(&format!("U{id}")) <= number("u"), "{id} is covered");
        assert!(
            !(has(&format!("R{id}")) || fields.get("W") == Some(id) && number("D") > now_ms),
            "{id} holds or waits"
        );
    }
    let with = |letter: char| fields.keys().filter(|name| name.starts_with(letter) && name.len() > 1).count();
    for (letter, count) in [('q', readers.len()), ('Q', readers.len()), ('N', writers.len()), ('P', writers.len())] {
        assert_eq!(with(letter), count, "fields {letter}: {fields:?}");
    }
    assert_eq!(with('B'), writers.len(), "{fields:?}");
    for letter in ['U', 'C', 'S'] {
        assert_eq!(with(letter), writers.len() + readers.len(), "fields {letter}: {fields:?}");
    }
}

fn check_readers(members: &BTreeMap<String, i64>) {
    for (member, score) in members {
        if let Some(id) = member.strip_prefix('@') {
            assert!(*score < 0 && members.contains_key(id), "{member} has its reader");
        } else if member.starts_with('#') {
            assert!(*score < 0, "{member} is kept below the readers");
        } else {
            assert!(*score >= 0 && members.contains_key(&format!("@{member}")), "{members:?}");
        }
    }
}
