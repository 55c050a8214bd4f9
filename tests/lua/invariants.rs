//! What is true of a lock's keys between any two scripts: the numbered list of `lua/README.md`.

use std::collections::{BTreeMap, BTreeSet};

use cluster_testenv::Reply;

use crate::lab::{HEARD, LONG_MS, Lock, Scheme};
use crate::layout;

pub fn check(lock: &mut Lock) {
    for key in lock.keys.clone() {
        let ttl_ms = lock.int(&["PTTL", &key]);
        assert_ne!(ttl_ms, -1, "{key} has a ttl");
    }
    match lock.scheme {
        Scheme::Hash => check_hash(&fields(lock), lock.now_ms()),
        Scheme::TwoKey => {
            let members = members(lock);
            check_readers(&members);
            check_places(&members, lock.now_ms());
        }
    }
}

/// All fields of the hash, taken apart.
pub fn fields(lock: &mut Lock) -> BTreeMap<String, String> {
    layout::unpack(&stored(lock))
}

/// All fields of the hash as they are stored.
pub fn stored(lock: &mut Lock) -> BTreeMap<String, String> {
    pairs(&lock.command(&["HGETALL", &lock.key()]))
}

/// All members of the readers' key with their scores.
pub fn members(lock: &mut Lock) -> BTreeMap<String, i64> {
    let members = pairs(&lock.command(&["ZRANGE", &lock.key(), "0", "-1", "WITHSCORES"]));
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
    let number = |name: &str| -> i64 {
        let text = &fields[name];
        text.strip_suffix(".0").unwrap_or(text).parse().expect("a number, written out")
    };

    assert!(!(has("W") && has("a")), "one kind of record: {fields:?}");
    assert!(!has("m") || fields["m"].ends_with(".0"), "no published client writes that: {fields:?}");
    assert!(has("W") == has("D") && has("W") == has("I") && has("W") == has("T"), "{fields:?}");
    assert!(!has("W") || number("T") <= number("t"), "{fields:?}");
    assert!(has("a") == has("m") && (has("a") || !(has("v") || has("o"))), "{fields:?}");
    assert!(has("t") || !(has("W") || has("a")), "{fields:?}");
    if let Some(mark) = fields.get("k") {
        let words: Vec<i64> = mark.split(' ').map(|word| word.parse().expect("a number, written out")).collect();
        assert!(words.len() <= 2 && words[0] <= number("t"), "a mark of its time: {fields:?}");
    }
    assert!(!has("b") || number("b") <= number("t") + 1, "the next is known: {fields:?}");

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
    check_notes(fields, slots);
    check_queue(fields, now_ms);
}

/// A hold has a note exactly if the time of its grant begins with 0.
fn check_notes(fields: &BTreeMap<String, String>, slots: i64) {
    let writer = fields.get("W").map(|id| (id, &fields["I"]));
    let readers = (1..=slots).map(|slot| (&fields[&format!("r{slot}")], &fields[&format!("i{slot}")]));
    let with_sign = writer.into_iter().chain(readers).filter(|(_, since_ms)| since_ms.starts_with('0'));
    let noted: BTreeSet<String> = with_sign.map(|(id, _)| format!("n{id}")).collect();
    let notes: BTreeSet<String> = fields.keys().filter(|name| name.starts_with('n')).cloned().collect();
    assert_eq!(notes, noted, "{fields:?}");
}

/// The list of waiting writers and the array of waiting readers.
fn check_queue(fields: &BTreeMap<String, String>, now_ms: i64) {
    let has = |name: &str| fields.contains_key(name);
    let number = |name: &str| -> i64 { fields[name].parse().expect("a number, written out") };

    let mut writers = BTreeSet::new();
    let mut before = String::new();
    let link = |id: &str| if id.is_empty() { "-".to_owned() } else { id.to_owned() };
    assert_eq!(has("N"), has("P"), "both ends: {fields:?}");
    while let Some(id) = fields.get(&format!("N{before}")).filter(|id| *id != "-") {
        assert!(writers.insert(id.clone()), "{id} waits once");
        assert_eq!(fields[&format!("P{id}")], link(&before), "{id} knows who is before it");
        before.clone_from(id);
    }
    assert_eq!(fields.get("P").cloned().unwrap_or_default(), before, "the end is the last one");
    assert_eq!(has("N"), !writers.is_empty(), "no empty list");

    assert_eq!(if has("writers") { number("writers") } else { 0 }, writers.len() as i64, "they are counted");

    let mut readers = BTreeSet::new();
    let mut places = 0;
    if has("turn") {
        let (turn, other) = if fields["turn"] == "x" { ("x", "y") } else { ("y", "x") };
        for (letter, count) in [(turn, number("turn readers")), (other, number("waiting"))] {
            for slot in 1..=count {
                let place = format!("{letter}{slot}");
                let id = &fields[&place];
                assert_eq!(fields[&format!("Q{id}")], place, "{id} knows its place");
                readers.insert(id.clone());
            }
            places += count;
        }
    }
    assert_eq!(readers.len() as i64, places, "each waits once");
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
    for (letter, count) in [('Q', readers.len()), ('N', writers.len()), ('P', writers.len())] {
        assert_eq!(with(letter), count, "fields {letter}: {fields:?}");
    }
    assert_eq!(with('x') + with('y'), readers.len(), "{fields:?}");
    for letter in ['U', 'C', 'S', 'B'] {
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

/// Whoever waits has a place, and is believed for a while.
fn check_places(members: &BTreeMap<String, i64>, now_ms: i64) {
    let mut waiters = 0;
    for (member, place) in members {
        let (Some(id), lowest) = (match member.split_at_checked(3) {
            Some(("#w ", id)) => (Some(id), -1 << 53),
            Some(("#r ", id)) => (Some(id), -1 << 52),
            _ => (None, 0),
        }) else {
            continue;
        };
        waiters += 1;
        let came_ms = (place - lowest) / 1000;
        assert!((now_ms - LONG_MS..=now_ms).contains(&came_ms), "{member} came at {came_ms}");
        let heard_ms = -members[&format!("#u {id}")] - HEARD;
        assert!(-members["#waits"] >= heard_ms, "{id} is covered: {members:?}");
        assert!(!members.contains_key(id) || members[id] <= now_ms, "{id} holds or waits: {members:?}");
    }
    let believed = members.keys().filter(|member| member.starts_with("#u ")).count();
    assert_eq!(believed, waiters, "nothing is left of those who are gone: {members:?}");
}
