//! The fast paths of `acquire` and `leave` have the results of the slow path: replies, fields, notifications, and a ttl
//! that is no shorter.

use std::collections::{BTreeMap, BTreeSet};

use cluster_testenv::Reply;
use fastrand::Rng;

use crate::invariants;
use crate::lab::{Lock, Mode, PATIENCE_MS, RETENTION_MS, Read, WRITE_LIMIT_MS, Wish, Write, on_server};
use crate::scripts;

/// Each case on each server. On each push it runs on one, because the paths are the same text everywhere.
macro_rules! on_each_server {
    ($($case:ident),+ $(,)?) => {
        on_server!(#[ignore = "runs in `.ci/all`"] hash_on_redis_7_0, Hash, Redis70, shared: $($case),+);
        on_server!(#[ignore = "runs in `.ci/all`"] hash_on_redis_8_2, Hash, Redis82, shared: $($case),+);
        on_server!(#[ignore = "runs in `.ci/all`"] hash_on_valkey_8_1, Hash, Valkey81, shared: $($case),+);
        on_server!(hash_on_valkey_9_1, Hash, Valkey91, shared: $($case),+);
    };
}

on_each_server![fast_paths_of_acquire_agree_with_the_slow_path, fast_paths_of_leave_agree_with_the_slow_path];

/// Time beyond the retention for which a key that no client uses may live.
const MAX_UNUSED_MS: i64 = 120_000;

/// Effects of a script.
#[derive(Debug)]
struct Outcome {
    reply: String,
    fields: BTreeMap<String, String>,
    /// Channels and messages.
    published: Vec<String>,
    until_ms: i64,
}

/// Returns a reply without the zeros at the start of its numbers.
fn words(reply: &str) -> String {
    let words: Vec<_> =
        reply.split(' ').map(|word| word.parse::<i64>().map_or(word.to_owned(), |n| n.to_string())).collect();
    words.join(" ")
}

/// Returns `text` without the part from `from` up to `to`.
fn without(text: &str, from: &str, to: &str) -> String {
    let (before, rest) = text.split_once(from).unwrap_or_else(|| panic!("{from} is there"));
    let (_, behind) = rest.split_once(to).unwrap_or_else(|| panic!("{to} is behind {from}"));
    format!("{before}{to}{behind}")
}

/// Returns the script with a time that stands still: two more keys. It records its messages in a list.
fn still(text: &str) -> String {
    let text = text.replace("redis.pcall('SPUBLISH', ", "redis.call('RPUSH', key .. ':published', ");
    text.replacen("call('TIME')", "{KEYS[#KEYS - 1], KEYS[#KEYS]}", 1)
}

impl Lock {
    /// Loads a script, and returns its hash.
    fn load(&mut self, text: &str) -> String {
        let reply = self.command(&["SCRIPT", "LOAD", &still(text)]);
        reply.text().expect("a hash").into_owned()
    }

    /// Runs the script with this hash on a copy of the lock.
    fn on_a_copy(&mut self, sha: &str, server_us: i64, args: &[String]) -> Outcome {
        let (own, mut copy) = (self.key(), self.lab.lock(self.scheme));
        let key = copy.key();
        self.command(&["COPY", &own, &key]);
        let time = [server_us / 1_000_000, server_us % 1_000_000].map(|part| part.to_string());
        let mut command = vec!["EVALSHA", sha, "3", &key, &time[0], &time[1]];
        command.extend(args.iter().map(String::as_str));
        let reply = self.command(&command);
        let published = self.command(&["LRANGE", &format!("{key}:published"), "0", "-1"]);
        let text = |reply: &Reply| reply.text().expect("a text").into_owned();
        let published =
            published.array().expect("a list").iter().map(|word| text(word).replace(&key, "lock")).collect();
        let outcome = Outcome {
            reply: words(&text(&reply)),
            fields: invariants::stored(&mut copy),
            published,
            until_ms: self.int(&["PEXPIRETIME", &key]),
        };
        self.command(&["DEL", &key, &format!("{key}:published")]);
        outcome
    }

    /// Runs `script` for a client by its fast paths and by its slow one. Returns the fast path that it takes, if any.
    fn by_both_paths(&mut self, script: &Script, id: &str, args: &[String]) -> Option<String> {
        let now_us = self.server_us();
        let before = invariants::stored(self);
        let path = header_words(&before);
        let fast = self.on_a_copy(&script.fast, now_us, args);
        if fast.reply == "slow" {
            assert_eq!(fast.fields, before, "nothing changes before the slow path");
            return None;
        }
        let slow = self.on_a_copy(&script.slow, now_us, args);
        let what = || format!("{path}: {before:?}\n{args:?}\n{fast:?}\n{slow:?}");
        assert_eq!(fast.reply, slow.reply, "{}", what());
        assert_eq!(fast.fields, slow.fields, "{}", what());
        assert_eq!(fast.published, slow.published, "{}", what());
        let is_used = ["h", "u"].iter().any(|field| slow.fields.contains_key(*field));
        let max_ms = if is_used { slow.until_ms } else { now_us / 1000 + RETENTION_MS + MAX_UNUSED_MS };
        assert!((slow.until_ms..=max_ms.max(slow.until_ms)).contains(&fast.until_ms), "{}", what());
        let code = fast.reply.split(' ').next().expect("a code").to_owned();
        Some(format!("{path} {code}{}", slot_words(&before, id)))
    }
}

/// Returns the kind of the header, and who waits, in words. A writer hands over in another way if several wait.
fn header_words(fields: &BTreeMap<String, String>) -> String {
    let kind = fields.get("h").and_then(|header| header.split(' ').nth(1)).unwrap_or("-");
    let counts = fields.get("u").into_iter().flat_map(|header| header.split(' ').skip(3).take(3));
    let waiters: u32 = counts.map(|count| count.parse::<u32>().expect("a number")).sum();
    let waits = match (kind, waiters) {
        (_, 0) => "alone",
        ("w", 1) => "one waits",
        ("w", _) => "several wait",
        _ => "waited for",
    };
    format!("{kind} {waits}")
}

/// Returns in words where the slot of a reader is, if it has one: another reader may have to move.
fn slot_words(fields: &BTreeMap<String, String>, id: &str) -> &'static str {
    let number = |word: &str| word.parse::<u32>().expect("a number");
    let readers = fields.get("h").and_then(|header| header.strip_prefix("3 r "));
    let slots = readers.and_then(|header| header.split(' ').next()).map(number);
    match fields.get(&format!("s{id}")).zip(slots).map(|(slot, slots)| slots - number(slot)) {
        None => "",
        Some(0) => ", last",
        Some(1) => ", before the last",
        Some(_) => ", inner",
    }
}

/// Hashes of a script that replies `slow` in place of its slow path, and of one that has only its slow path.
struct Script {
    fast: String,
    slow: String,
}

const FAST: &str = "-- Fast path";
const SLOW: &str = "-- Slow path.\n";

/// Returns the text up to its slow path, and the text without its fast paths.
fn both_paths(lock: &mut Lock, text: &str, kept: &str) -> Script {
    let (before, _) = text.split_once(SLOW).expect("the slow path is there");
    let slow = without(text, FAST, SLOW).replacen(SLOW, kept, 1);
    Script { fast: lock.load(&format!("{before}do return 'slow' end\n")), slow: lock.load(&slow) }
}

fn acquire(lock: &mut Lock) -> Script {
    both_paths(lock, scripts::hash::ACQUIRE, "")
}

fn leave(lock: &mut Lock) -> Script {
    both_paths(lock, scripts::hash::LEAVE, "local server_us = seconds * 1000000 + micros\n")
}

/// Numbers of readers and writers.
#[derive(Clone, Copy)]
struct Crowd {
    readers: u32,
    writers: u32,
}

/// From a lock that is mostly free to one with many readers.
const CROWDS: [Crowd; 8] = [
    Crowd { readers: 1, writers: 1 },
    Crowd { readers: 2, writers: 1 },
    Crowd { readers: 3, writers: 3 },
    Crowd { readers: 0, writers: 3 },
    Crowd { readers: 0, writers: 9 },
    Crowd { readers: 5, writers: 2 },
    Crowd { readers: 12, writers: 2 },
    Crowd { readers: 30, writers: 6 },
];

impl Crowd {
    fn client(self, n: u32) -> (String, Mode) {
        let id = format!("0123456789abcdef0123456789abcdef.{n}.label");
        (id, if n < self.readers { Read } else { Write })
    }

    fn random_client(self, rng: &mut Rng) -> (String, Mode) {
        self.client(rng.u32(..self.readers + self.writers))
    }

    /// Returns a client that has a record, or any client.
    fn likely_client(self, lock: &mut Lock, rng: &mut Rng) -> (String, Mode) {
        let view = lock.inspect();
        let known: BTreeSet<_> = view.ids().into_iter().chain(view.waiting()).collect();
        let clients = (0..self.readers + self.writers).map(|n| self.client(n));
        let recorded: Vec<_> = clients.filter(|(id, _)| known.contains(id.as_str())).collect();
        rng.choice(recorded).filter(|_| rng.bool()).unwrap_or_else(|| self.random_client(rng))
    }
}

fn wish(rng: &mut Rng) -> Wish {
    let letters = rng.choice(["", "", "k", "t", "kt"]).expect("one of them");
    // Of those that are over at once some die without a trace, as no record that is made dead by hand.
    let lease_ms = rng.choice([1, 1_000, 1_000, 200_000]).expect("one of them");
    Wish { lease_ms, patience_ms: rng.i64(0..3) * PATIENCE_MS, turns: rng.i64(1..70), letters, ..Wish::AT_ONCE }
}

/// Runs one operation, which may leave the lock in any state.
fn step(lock: &mut Lock, crowd: Crowd, theirs: &mut Vec<(Mode, i64)>, rng: &mut Rng) {
    let (id, mode) = crowd.random_client(rng);
    match rng.u32(..31) {
        0..14 => _ = lock.ask(&id, mode, wish(rng)),
        14..20 => _ = lock.leave(&id),
        20 if rng.bool() => _ = lock.note(&id, rng.i64(1..9), "at work"),
        20 => _ = lock.renew(&id, 1_000),
        21 if rng.u32(..8) == 0 => _ = lock.force(),
        22 if rng.u32(..4) == 0 => {
            let (mode, stamp_ms) = (mode, lock.now_ms() - rng.i64(0..2 * WRITE_LIMIT_MS));
            if lock.their_lock(mode, stamp_ms) {
                theirs.push((mode, stamp_ms));
            }
        }
        29.. => {
            let (new, mode) = crowd.random_client(rng);
            lock.convert(&id, &new, mode, wish(rng));
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

/// Runs the script by both paths in many states. Returns the fast paths that it took, and how often.
fn compare(
    mut lock: Lock,
    script: fn(&mut Lock) -> Script,
    mut args: impl FnMut(&Lock, (String, Mode), &mut Rng) -> Vec<String>,
) -> BTreeMap<String, u32> {
    let (script, mut paths) = (script(&mut lock), BTreeMap::new());
    for (seed, crowd) in (0..).zip(CROWDS.into_iter().cycle().take(3 * CROWDS.len())) {
        let (mut rng, mut theirs) = (Rng::with_seed(seed), Vec::new());
        for _ in 0..120 {
            step(&mut lock, crowd, &mut theirs, &mut rng);
            for _ in 0..2 {
                let client = crowd.likely_client(&mut lock, &mut rng);
                let id = client.0.clone();
                let args = args(&lock, client, &mut rng);
                if let Some(path) = lock.by_both_paths(&script, &id, &args) {
                    *paths.entry(path).or_default() += 1;
                }
            }
        }
        lock = lock.lab.lock(lock.scheme);
    }
    paths
}

/// Asserts that the scripts took these fast paths and no others.
fn assert_taken(paths: &BTreeMap<String, u32>, expected: &[&str]) {
    println!("{paths:?}");
    let taken: BTreeSet<_> = paths.keys().map(String::as_str).collect();
    assert_eq!(taken, expected.iter().copied().collect(), "{paths:?}");
}

fn fast_paths_of_acquire_agree_with_the_slow_path(lock: Lock) {
    let paths = compare(lock, acquire, |lock, (id, mode), rng| lock.wish_args(&id, mode, wish(rng)));
    assert_taken(&paths, &["- alone granted", "r alone granted", "r waited for queued"]);
}

fn fast_paths_of_leave_agree_with_the_slow_path(lock: Lock) {
    let paths = compare(lock, leave, |lock, (id, _), _| lock.leave_args(&id));
    assert_taken(
        &paths,
        &[
            "r alone held, last",
            "r alone held, before the last",
            "r alone held, inner",
            "r waited for held, last",
            "r waited for held, before the last",
            "r waited for held, inner",
            "s alone held",
            "s waited for held",
            "w alone held",
            "w one waits held",
            "w several wait held",
        ],
    );
}
