//! Transcripts of the scripts. `testing/transcripts.rs` plays them on the specification.
//!
//! Each scenario plays on three locks at once: with the fast form of the scripts, with the portable form, and with the
//! portable form in an interpreter of Lua 5.4. Replies, messages and stored bytes must be the same.

mod harness;

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster_testenv::{Node, Server as Kind};

use crate::invariants;
use crate::lab::{self, Answered, Form, Lab, Listener, Lock, RETENTION_MS, Scheme, Stored};
use crate::published;
use harness::{Answer, Limit, READ_LIMIT_MS, Server, Step, WRITE_LIMIT_MS, Wish};
pub use harness::{MANAGER, Seen, Side};

macro_rules! on_server {
    ($($(#[$later:meta])? $name:ident: $transcripts:literal $scheme:ident $server:ident, $count:ident;)+) => {$(
        #[test]
        $(#[$later])?
        fn $name() {
            play($transcripts, Scheme::$scheme, Kind::$server, $count);
        }
    )+};
}

on_server! {
    #[ignore = "runs in `.ci/all`"] hash_on_redis_7_0: "hash" Hash Redis70, HASH_SCENARIOS;
    hash_on_redis_8_2: "hash" Hash Redis82, HASH_SCENARIOS;
    #[ignore = "runs in `.ci/all`"] hash_on_valkey_8_1: "hash" Hash Valkey81, HASH_SCENARIOS;
    #[ignore = "runs in `.ci/all`"] hash_on_valkey_9_1: "hash" Hash Valkey91, HASH_SCENARIOS;
    #[ignore = "runs in `.ci/all`"] two_key_on_redis_7_0: "two-key" TwoKey Redis70, TWO_KEY_SCENARIOS;
    #[ignore = "runs in `.ci/all`"] two_key_on_redis_8_2: "two-key" TwoKey Redis82, TWO_KEY_SCENARIOS;
    #[ignore = "runs in `.ci/all`"] two_key_on_valkey_8_1: "two-key" TwoKey Valkey81, TWO_KEY_SCENARIOS;
    two_key_on_valkey_9_1: "two-key" TwoKey Valkey91, TWO_KEY_SCENARIOS;
}

/// Number of scenarios of each scheme.
const HASH_SCENARIOS: usize = 199;
const TWO_KEY_SCENARIOS: usize = 82;
/// Scripts whose time stands still: two more keys are the time.
const TIME: [(&str, &str); 2] =
    [("redis.call('TIME')", "call('TIME')"), ("call('TIME')", "{KEYS[#KEYS - 1], KEYS[#KEYS]}")];
/// Scripts that touch two records.
const TWO_RECORDS: [(&str, &str); 3] = [
    ("touches_left = 100", "touches_left = 2"),
    ("MAX_RECORDS = 96", "MAX_RECORDS = 2"),
    ("local FEW, ALIVE_OFFSET, RESERVED_MS = 4,", "local FEW, ALIVE_OFFSET, RESERVED_MS = 1,"),
];
/// Time for which a lock that no client uses may have its key.
const MAX_UNUSED_MS: i64 = 180_000;

fn play(name: &str, scheme: Scheme, kind: Kind, scenarios: usize) {
    let node = Arc::new(Node::start(kind).expect("the server starts"));
    let labs = |changes: &[(&str, &str)]| FORMS.map(|form| Lab::load(&node, form, changes));
    let (usual, limited) = (labs(&TIME), labs(&[&TIME[..], &TWO_RECORDS].concat()));
    let count = harness::play(name, |limit| {
        let labs = if limit == Limit::TwoRecords { &limited } else { &usual };
        SideBySide(labs.each_ref().map(|lab| Scripts::new(lab, scheme)))
    });
    assert_eq!(count, scenarios, "all scenarios have played");
}

const FORMS: [Form; 3] = [Form::Fast, Form::Portable, Form::Lua54];

/// Locks with all forms of the scripts.
struct SideBySide([Scripts; 3]);

impl Server for SideBySide {
    fn run(&mut self, now_us: u64, step: &Step) -> Answer {
        let played = self.0.each_mut().map(|scripts| {
            let answer = scripts.run(now_us, step);
            (answer, scripts.stored.clone())
        });
        let [fast, others @ ..] = played;
        for (other, form) in others.iter().zip(&FORMS[1..]) {
            assert_eq!(*other, fast, "{form:?} differs from {:?} after {step:?}", FORMS[0]);
        }
        fast.0
    }
}

impl Scripts {
    fn new(lab: &Arc<Lab>, scheme: Scheme) -> Self {
        let mut lock = lab.lock(scheme);
        lock.limits_ms = [READ_LIMIT_MS, WRITE_LIMIT_MS].map(u64::cast_signed);
        let channels = if scheme == Scheme::Hash { format!("{}:", lock.key()) } else { lock.key().replace("read", "") };
        let wake = Listener::new(&lock, &format!("{channels}wake:{MANAGER}"));
        let call = Listener::new(&lock, &format!("{channels}call"));
        Self { lock, stored: Stored::new(), wake, call, has_clients: false, is_silent: false, unchecked: None }
    }
}

struct Scripts {
    lock: Lock,
    /// All that is stored after the last step.
    stored: Stored,
    wake: Listener,
    call: Listener,
    /// True from the first client of the timestamp scheme on. Such clients shorten the ttl of the key.
    has_clients: bool,
    /// True if the scripts have no right to publish.
    is_silent: bool,
    /// Set if the state has changed since the last check: true if a hold was released.
    unchecked: Option<bool>,
}

impl Server for Scripts {
    fn run(&mut self, now_us: u64, step: &Step) -> Answer {
        self.lock.clock_us = Some(now_us.cast_signed());
        if self.remove_expired() || self.stored.is_empty() {
            self.stored = self.lock.stored();
        }
        let (script, id, args) = match step {
            Step::Acquire(wish) => ("acquire", wish.id.as_str(), self.acquire_args(wish)),
            Step::Release { id, rest_until_ms } => {
                let mut args = self.lock.leave_args(id);
                args.extend(rest_until_ms.map(|until_ms| until_ms.to_string()));
                ("leave", id.as_str(), args)
            }
            Step::Renew { id, lease_ms, tokens, rest_until_ms } => {
                let cached = tokens.iter().flat_map(|tokens| ["k".to_owned(), tokens.to_string()]);
                let rests = rest_until_ms.iter().flat_map(|until_ms| ["u".to_owned(), until_ms.to_string()]);
                let args = [id.clone(), lease_ms.to_string()].into_iter().chain(cached).chain(rests);
                ("renew", id.as_str(), args.collect())
            }
            Step::Convert(old, wish) => {
                ("convert", wish.id.as_str(), self.lock.convert_args(old, &wish.id, wish.side, of(wish)))
            }
            Step::Inspect => ("inspect", "-", Vec::new()),
            Step::Force(seen) => ("force", "-", self.lock.force_args(seen)),
            Step::Used(id) => ("used", id.as_str(), vec![id.clone()]),
            Step::Note { id, number, text } => {
                ("note", id.as_str(), vec![id.clone(), number.to_string(), text.clone()])
            }
            other => {
                let text = self.change(other).to_owned();
                self.stored = self.lock.stored();
                return Answer { text, ..Answer::default() };
            }
        };
        let reply = self.lock.try_run(script, &args);
        let answer = self.answer(Answered::of(reply, id));
        let code = answer.text.split(' ').next().expect("a code");
        let before = std::mem::replace(&mut self.stored, self.lock.stored());
        let is_new = before.iter().all(|(value, _)| value.is_empty());
        if ["late", "told"].contains(&code) || is_new && ["lost", "none"].contains(&code) {
            assert_eq!(self.stored, before, "{code} changes nothing");
        } else if code != "view" {
            self.unchecked = Some(code == "held");
        } else if let Some(was_released) = self.unchecked.take() {
            self.check(was_released, &answer.rows);
        }
        answer
    }
}

impl Scripts {
    /// Removes the keys whose time is over, as the server does by its own clock. Returns true if there was one.
    fn remove_expired(&mut self) -> bool {
        let now_ms = self.lock.now_ms();
        let ends = self.lock.keys.iter().zip(&self.stored);
        let over: Vec<_> =
            ends.filter(|(_, (_, ends_ms))| (0..=now_ms).contains(ends_ms)).map(|(key, _)| key.clone()).collect();
        over.iter().for_each(|key| drop(self.lock.command(&["DEL", key])));
        !over.is_empty()
    }

    /// Carries out a step that is no script. Returns 1 for a client that has entered, and 0 for one that has not.
    fn change(&mut self, step: &Step) -> &'static str {
        let (key, now_ms) = (self.lock.key(), self.lock.now_ms());
        let lock = &mut self.lock;
        match *step {
            Step::ClientLock(side, stamp_ms) => {
                self.has_clients = true;
                let enters = lock.their_lock(side, stamp_ms.cast_signed());
                if enters {
                    // The client's script counts from the server's own clock.
                    lock.command(&["PEXPIREAT", &key, &(now_ms + published::THEIR_TTL_MS).to_string()]);
                }
                return if enters { "1" } else { "0" };
            }
            Step::ClientUnlock(side, stamp_ms) => lock.they_leave(side, stamp_ms.cast_signed()),
            Step::SetStamp(side, stamp_ms) => {
                let field = if side.letter() == "r" { "read" } else { "write" };
                self.has_clients = true;
                match stamp_ms {
                    Some(stamp_ms) => lock.command(&["HSET", &key, field, &stamp_ms.to_string()]),
                    None => lock.command(&["HDEL", &key, field]),
                };
                lock.command(&["PEXPIREAT", &key, &(now_ms + published::THEIR_TTL_MS).to_string(), "NX"]);
            }
            Step::LoseKey => lock.keys.clone().iter().for_each(|key| drop(lock.command(&["DEL", key]))),
            Step::LoseTtl => {
                lock.persist();
                self.unchecked = None;
            }
            Step::LoseChannels => {
                lock.lose_channels();
                self.is_silent = true;
            }
            ref other => panic!("a script does this: {other:?}"),
        }
        ""
    }

    /// Returns the reply, whose time must be that of the request, with the messages.
    fn answer(&mut self, answered: Answered) -> Answer {
        assert_eq!(Some(answered.server_us), self.lock.clock_us, "{answered:?} has the time");
        let Answered { code, mut words, rows, .. } = answered;
        let is_unpublished = words.pop_if(|word| word == "unpublished").is_some();
        words.insert(0, code);
        let mut messages = Vec::new();
        if !self.is_silent {
            messages = self.wake.heard(&mut self.lock);
            messages.extend(self.call.heard(&mut self.lock).iter().map(|message| format!("call {message}")));
        }
        Answer { text: words.join(" "), rows, messages, is_unpublished }
    }

    /// Checks the invariants, and how long the key stays.
    fn check(&mut self, was_released: bool, rows: &[String]) {
        invariants::check(&mut self.lock);
        let key = self.lock.key();
        let (ends_ms, now_ms) = (self.lock.int(&["PEXPIRETIME", &key]), self.lock.now_ms());
        if ends_ms < 0 || self.has_clients {
            return;
        }
        let remaining = rows.iter().filter_map(|row| row.strip_prefix("hold ")?.split(' ').nth(3)?.parse::<i64>().ok());
        let fields =
            if self.lock.scheme == Scheme::Hash { invariants::fields(&mut self.lock) } else { BTreeMap::new() };
        let has = |names: [&str; 2]| names.iter().any(|name| fields.contains_key(*name));
        assert!(has(["W", "a"]) || !has(["write", "read"]), "a timestamp without a holder: {fields:?}");
        let waiters_ms = fields.get("u").map_or(0, |until_ms| until_ms.parse().expect("a number"));
        let covered_ms = waiters_ms.max(now_ms + remaining.max().unwrap_or(0)) + RETENTION_MS;
        assert!(ends_ms >= covered_ms, "the key goes {} ms too early", covered_ms - ends_ms);
        assert!(!was_released || !rows.is_empty() || ends_ms <= now_ms + MAX_UNUSED_MS, "nobody uses the key");
    }

    fn acquire_args(&self, wish: &Wish) -> Vec<String> {
        let mut args = self.lock.wish_args(&wish.id, wish.side, of(wish));
        if let Some((token, is_raised)) = wish.floor {
            args.push(token.to_string());
            args.extend(is_raised.then(|| "raise".to_owned()));
        }
        args
    }
}

/// Returns the wish in the terms of the lab.
fn of(wish: &Wish) -> lab::Wish {
    let [lease_ms, patience_ms, turns, not_after_ms] =
        [wish.lease_ms, wish.waiter_ms, wish.tokens, wish.not_after_ms].map(u64::cast_signed);
    let letters = match (wish.caches, wish.is_try) {
        (false, false) => "",
        (true, false) => "k",
        (false, true) => "t",
        (true, true) => "kt",
    };
    lab::Wish { lease_ms, patience_ms, turns, not_after_ms, letters }
}
