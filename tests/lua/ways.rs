//! The fast paths of `acquire` and `leave` come to what the slow path does: answers, fields, notices, and a ttl that is no shorter.

use std::collections::{BTreeMap, BTreeSet};

use cluster_testenv::Reply;
use fastrand::Rng;

use crate::invariants;
use crate::lab::{Lock, Mode, PATIENCE_MS, RETENTION_MS, Read, WRITE_LIMIT_MS, Wish, Write, hash_cases};
use crate::scripts;

hash_cases!(shared:
    short_ways_of_acquire_come_to_what_the_long_way_does,
    short_ways_of_leave_come_to_what_the_long_way_does,
);

/// So much longer than the retention a key may live that is not used any more.
const MORE_MS: i64 = 120_000;

/// What a script did.
#[derive(Debug)]
struct Outcome {
    answer: String,
    fields: BTreeMap<String, String>,
    /// Channels and messages.
    said: Vec<String>,
    until_ms: i64,
}

/// An answer, in which numbers may begin with zeros.
fn words(answer: &str) -> String {
    let words: Vec<_> =
        answer.split(' ').map(|word| word.parse::<i64>().map_or(word.to_owned(), |n| n.to_string())).collect();
    words.join(" ")
}

/// `text` without all from `from` up to `to`.
fn without(text: &str, from: &str, to: &str) -> String {
    let (before, rest) = text.split_once(from).unwrap_or_else(|| panic!("{from} is there"));
    let (_, behind) = rest.split_once(to).unwrap_or_else(|| panic!("{to} is behind {from}"));
    format!("{before}{to}{behind}")
}

/// The script with what it says written down, at a time that stands still.
fn at(text: &str, server_us: i64) -> String {
    let time = format!("{{'{}', '{}'}}", server_us / 1_000_000, server_us % 1_000_000);
    let text = text.replace("redis.pcall('SPUBLISH', ", "redis.call('RPUSH', key .. ':said', ");
    text.replacen("call('TIME')", &time, 1)
}

impl Lock {
    /// Runs `text` on a copy of the lock.
    fn on_a_copy(&mut self, text: &str, args: &[String]) -> Outcome {
        let (own, mut copy) = (self.key(), self.lab.lock(self.scheme));
        let key = copy.key();
        self.command(&["COPY", &own, &key]);
        let mut command = vec!["EVAL", text, "1", &key];
        command.extend(args.iter().map(String::as_str));
        let answer = self.command(&command);
        let said = self.command(&["LRANGE", &format!("{key}:said"), "0", "-1"]);
        let text = |reply: &Reply| reply.text().expect("a text").into_owned();
        let said = said.array().expect("a list").iter().map(|word| text(word).replace(&key, "lock")).collect();
        let outcome = Outcome {
            answer: words(&text(&answer)),
            fields: invariants::stored(&mut copy),
            said,
            until_ms: self.int(&["PEXPIRETIME", &key]),
        };
        self.command(&["DEL", &key, &format!("{key}:said")]);
        outcome
    }

    /// Runs `script` by its short ways and by its long one. The way that it takes, if that is a short one.
    fn by_both_ways(&mut self, script: &Script, args: &[String]) -> Option<String> {
        let now_us = self.server_us();
        let (before, way) = (invariants::stored(self), self.header_words());
        let short = self.on_a_copy(&at(&script.short, now_us), args);
        if short.answer == "long" {
            assert_eq!(short.fields, before, "nothing is changed before the long way");
            return None;
        }
        let long = self.on_a_copy(&at(&script.long, now_us), args);
        let what = format!("{way}: {before:?}\n{args:?}\n{short:?}\n{long:?}");
        assert_eq!(short.answer, long.answer, "{what}");
        assert_eq!(short.fields, long.fields, "{what}");
        assert_eq!(short.said, long.said, "{what}");
        let is_used = ["h", "u"].iter().any(|field| long.fields.contains_key(*field));
        let most_ms = if is_used { long.until_ms } else { now_us / 1000 + RETENTION_MS + MORE_MS };
        assert!((long.until_ms..=most_ms.max(long.until_ms)).contains(&short.until_ms), "{what}");
        let code = short.answer.split(' ').next().expect("a code").to_owned();
        Some(format!("{way} {code}"))
    }

    /// Who holds and who waits, in a few words.
    fn header_words(&mut self) -> String {
        let (holder, queue) = (self.stored_field("h"), self.stored_field("u"));
        let second = holder.as_deref().and_then(|header| header.split(' ').nth(1)).unwrap_or("-").to_owned();
        let counts = queue.iter().flat_map(|header| header.split(' ').skip(3).take(3));
        let waiters: u32 = counts.map(|count| count.parse::<u32>().expect("a number")).sum();
        format!("{second} {}", ["alone", "one waits", "several wait"][waiters.min(2) as usize])
    }

    fn stored_field(&mut self, name: &str) -> Option<String> {
        invariants::stored(self).remove(name)
    }
}

/// A script that answers `long` in place of its long way, and one that has nothing but that.
struct Script {
    short: String,
    long: String,
}

const FAST: &str = "-- Fast path";
const SLOW: &str = "-- Slow path.\n";

/// Returns the text up to its slow path, and the text without its fast paths.
fn both_ways(text: &str, kept: &str) -> Script {
    let (before, _) = text.split_once(SLOW).expect("the slow path is there");
    let long = without(text, FAST, SLOW).replacen(SLOW, kept, 1);
    Script { short: format!("{before}do return 'long' end\n"), long }
}

fn acquire() -> Script {
    both_ways(scripts::hash::ACQUIRE, "")
}

fn leave() -> Script {
    both_ways(scripts::hash::LEAVE, "local server_us = seconds * 1000000 + micros\n")
}

/// Of whom so many read and so many write.
#[derive(Clone, Copy)]
struct Crowd {
    readers: u32,
    writers: u32,
}

/// From a lock that is mostly free to one with many readers.
const CROWDS: [Crowd; 7] = [
    Crowd { readers: 1, writers: 1 },
    Crowd { readers: 2, writers: 1 },
    Crowd { readers: 3, writers: 3 },
    Crowd { readers: 0, writers: 3 },
    Crowd { readers: 0, writers: 9 },
    Crowd { readers: 5, writers: 2 },
    Crowd { readers: 12, writers: 2 },
];

impl Crowd {
    fn anybody(self, rng: &mut Rng) -> (String, Mode) {
        let n = rng.u32(..self.readers + self.writers);
        let id = format!("0123456789abcdef0123456789abcdef.{n}.label");
        (id, if n < self.readers { Read } else { Write })
    }
}

fn wish(rng: &mut Rng) -> Wish {
    let letters = rng.choice(["", "", "k", "t", "kt"]).expect("one of them");
    // Of those that are over at once some die without a trace, as no record that is made dead by hand.
    let lease_ms = rng.choice([1, 1_000, 1_000, 200_000]).expect("one of them");
    Wish { lease_ms, patience_ms: rng.i64(0..3) * PATIENCE_MS, turns: rng.i64(1..70), letters, ..Wish::default() }
}

/// One operation that may leave the lock in any state.
fn step(lock: &mut Lock, crowd: Crowd, theirs: &mut Vec<(Mode, i64)>, rng: &mut Rng) {
    let (id, mode) = crowd.anybody(rng);
    match rng.u32(..31) {
        0..14 => _ = lock.ask(&id, mode, wish(rng)),
        14..20 => _ = lock.leave(&id),
        20 => _ = lock.renew(&id, 1_000),
        21 if rng.u32(..8) == 0 => _ = lock.force(),
        22 if rng.u32(..4) == 0 => {
            let (mode, stamp_ms) = (mode, lock.now_ms() - rng.i64(0..2 * WRITE_LIMIT_MS));
            if lock.their_lock(mode, stamp_ms) {
                theirs.push((mode, stamp_ms));
            }
        }
        29.. => {
            let (new, mode) = crowd.anybody(rng);
            _ = lock.turn(&id, &new, mode, wish(rng));
        }
        23..25 => theirs.drain(..).for_each(|(mode, stamp_ms)| lock.they_leave(mode, stamp_ms)),
        _ => {
            let view = lock.inspect();
            let known: Vec<_> = view.ids().into_iter().chain(view.waiting()).map(str::to_owned).collect();
            if let Some(id) = rng.choice(known) {
                lock.expire(&id);
            }
        }
    }
}

/// Asks in each of many states what the script does by both ways. The short ways that were gone, and how often.
fn compare(
    mut lock: Lock,
    script: &Script,
    mut args: impl FnMut(&Lock, (String, Mode), &mut Rng) -> Vec<String>,
) -> BTreeMap<String, u32> {
    let mut ways = BTreeMap::new();
    for (seed, crowd) in (0..).zip(CROWDS.into_iter().cycle().take(3 * CROWDS.len())) {
        let (mut rng, mut theirs) = (Rng::with_seed(seed), Vec::new());
        for _ in 0..120 {
            step(&mut lock, crowd, &mut theirs, &mut rng);
            for _ in 0..2 {
                let whose = crowd.anybody(&mut rng);
                let args = args(&lock, whose, &mut rng);
                if let Some(way) = lock.by_both_ways(script, &args) {
                    *ways.entry(way).or_default() += 1;
                }
            }
        }
        lock = lock.lab.lock(lock.scheme);
    }
    ways
}

/// Each was gone, and no other.
fn assert_gone(ways: &BTreeMap<String, u32>, expected: &[&str]) {
    println!("{ways:?}");
    let gone: BTreeSet<_> = ways.keys().map(String::as_str).collect();
    assert_eq!(gone, expected.iter().copied().collect(), "{ways:?}");
}

fn short_ways_of_acquire_come_to_what_the_long_way_does(lock: Lock) {
    let ways = compare(lock, &acquire(), |lock, (id, mode), rng| lock.wish_args(&id, mode, wish(rng)));
    assert_gone(&ways, &["- alone granted", "r alone granted"]);
}

fn short_ways_of_leave_come_to_what_the_long_way_does(lock: Lock) {
    let ways = compare(lock, &leave(), |lock, (id, _), _| lock.leave_args(&id));
    assert_gone(
        &ways,
        &[
            "r alone held",
            "s alone held",
            "s one waits held",
            "s several wait held",
            "w alone held",
            "w one waits held",
            "w several wait held",
        ],
    );
}
