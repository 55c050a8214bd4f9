//! A client of the published hash scheme on the same key, in every pair of modes.

use cluster_testenv::Reply;

use crate::lab::{LEASE_MS, Listener, Lock, Mode, READ_LIMIT_MS, Read, WRITE_LIMIT_MS, Wish, Write, hash_cases};
use crate::transcripts::MANAGER;

hash_cases!(shared:
    stamp_that_is_no_time_is_nobodys,
    stamp_with_a_fraction_counts_like_any,
    their_shorter_ttl_is_not_protected_against,
    their_ttl_spares_leases_that_are_not_longer,
    their_scripts_do_what_was_published,
    waiters_on_any_key_are_told_in_its_slot,
    keys_without_a_tag_are_marked_and_called_for,
);

pub const THEIR_TTL_MS: i64 = 10_000;
const READ_LOCK: &str = include_str!("published/read_lock.lua");
const WRITE_LOCK: &str = include_str!("published/write_lock.lua");
const READ_UNLOCK: &str = include_str!("published/read_unlock.lua");
const WRITE_UNLOCK: &str = include_str!("published/write_unlock.lua");

impl Lock {
    /// Whether a client whose clock says `stamp_ms` gets in.
    pub fn their_lock(&mut self, mode: Mode, stamp_ms: i64) -> bool {
        let script = if mode == Read { READ_LOCK } else { WRITE_LOCK };
        let [read_ms, write_ms] = self.limits_ms;
        let [ttl, read, write, stamp] = [THEIR_TTL_MS, read_ms, write_ms, stamp_ms].map(|ms| ms.to_string());
        match self.command(&["EVAL", script, "1", &self.key(), &ttl, &read, &write, &stamp]) {
            Reply::Int(granted @ 0..=1) => granted == 1,
            other => panic!("{other:?}"),
        }
    }

    /// Lets such a client in now, and returns its stamp.
    pub fn they_hold(&mut self, mode: Mode) -> i64 {
        let stamp_ms = self.now_ms();
        assert!(self.their_lock(mode, stamp_ms), "they get in to {mode:?}");
        stamp_ms
    }

    pub fn they_leave(&mut self, mode: Mode, stamp_ms: i64) {
        let script = if mode == Read { READ_UNLOCK } else { WRITE_UNLOCK };
        let reply = self.command(&["EVAL", script, "1", &self.key(), &stamp_ms.to_string()]);
        assert!(reply.is_nil(), "{reply:?}");
    }
}

const PAIRS: [(Mode, Mode); 3] = [(Write, Write), (Write, Read), (Read, Write)];

/// No clock says that in milliseconds: it is nobody's, whatever it compares to.
const NO_TIMES: [&str; 9] = ["9223372036854775808", "inf", "-inf", "nan", "1e30", "1e400", "-1", "yes", ""];

fn stamp_that_is_no_time_is_nobodys(mut lock: Lock) {
    for stamp in NO_TIMES {
        for field in ["write", "read"] {
            for mode in [Read, Write] {
                lock.set_field(field, stamp);
                let view = lock.inspect().seen;
                assert_eq!((view.write_ms, view.read_ms), (0, 0), "{field} {stamp}");
                lock.granted("a", mode);
                assert_eq!(lock.leave("a"), "held");
                lock.set_field(field, stamp);
                lock.force();
                assert_eq!(lock.field(field), None, "{stamp} is ended by force");
            }
        }
        // Beside our readers it is seen by whoever joins, renews and leaves.
        lock.granted("a", Read);
        lock.set_field("read", stamp);
        lock.granted("b", Read);
        lock.set_field("read", stamp);
        assert_eq!(lock.renew("a", LEASE_MS), "renewed");
        lock.set_field("read", stamp);
        for id in ["a", "b"] {
            assert_eq!(lock.leave(id), "held");
        }
        lock.granted("w", Write);
        lock.leave("w");
    }
}

fn stamp_with_a_fraction_counts_like_any(mut lock: Lock) {
    let now_ms = lock.now_ms();
    lock.set_field("write", format!("{now_ms}.5"));
    assert!(lock.contended("a", Read) > WRITE_LIMIT_MS / 2);
    lock.set_field("write", "1.5");
    lock.set_field("read", format!("{now_ms}.5"));
    assert!(lock.contended("a", Write) > READ_LIMIT_MS / 2);
    lock.granted("a", Read);
    assert_eq!(lock.renew("a", LEASE_MS), "renewed");
    assert_eq!(lock.leave("a"), "held");
}

fn their_shorter_ttl_is_not_protected_against(mut lock: Lock) {
    lock.granted("a", Read);
    lock.they_hold(Read);
    let key = lock.key();
    assert!(lock.int(&["PTTL", &key]) <= THEIR_TTL_MS, "the flaw");
    assert_eq!(lock.renew("a", LEASE_MS), "renewed");
    assert!(lock.int(&["PTTL", &key]) > LEASE_MS, "until the next renewal");
}

fn their_ttl_spares_leases_that_are_not_longer(mut lock: Lock) {
    let key = lock.key();
    // Our stamp is our deadline.
    let outlives = |lock: &mut Lock| {
        let stamp = lock.field("read").expect("our stamp");
        let ends_ms: i64 = stamp.split('.').next().and_then(|whole| whole.parse().ok()).expect("a number");
        lock.they_hold(Read);
        lock.int(&["PEXPIRETIME", &key]) >= ends_ms
    };
    lock.granted_for("a", Read, THEIR_TTL_MS);
    lock.granted_for("b", Read, THEIR_TTL_MS / 2);
    assert!(outlives(&mut lock), "they come later than our last word");
    assert_eq!(lock.renew("b", THEIR_TTL_MS), "renewed");
    assert!(outlives(&mut lock));
    assert_eq!(lock.renew("b", 27_000), "renewed");
    assert!(!outlives(&mut lock), "why longer ones are refused on keys of theirs");
    lock.delete();
}

/// The stand-ins are what they stand for, or all that is shown here is about something else.
fn their_scripts_do_what_was_published(mut lock: Lock) {
    let (key, at_ms) = (lock.key(), 1_700_000_000_000);
    for (held, asked) in PAIRS {
        let (field, limit_ms) = if held == Read { ("read", READ_LIMIT_MS) } else { ("write", WRITE_LIMIT_MS) };
        assert!(lock.their_lock(held, at_ms));
        assert_eq!(lock.field(field).as_deref(), Some("1700000000000"), "its own clock, as a number's text");
        let ttl_ms = lock.int(&["PTTL", &key]);
        assert!((THEIR_TTL_MS / 2..=THEIR_TTL_MS).contains(&ttl_ms), "{ttl_ms}");
        let stored = lock.stored();
        for asked_ms in [at_ms - 1, at_ms, at_ms + 1, at_ms + limit_ms] {
            assert!(!lock.their_lock(asked, asked_ms), "{asked:?} at {asked_ms}");
        }
        assert_eq!(lock.stored(), stored, "who is refused writes nothing");
        assert!(lock.their_lock(asked, at_ms + limit_ms + 1), "{asked:?} after {held:?}");
        lock.delete();

        // It deletes what it wrote, to the letter.
        assert!(lock.their_lock(held, at_ms));
        lock.they_leave(held, at_ms + 1);
        lock.set_field(field, format!("{at_ms}.0"));
        lock.they_leave(held, at_ms);
        assert!(lock.field(field).is_some());
        lock.set_field(field, at_ms);
        lock.they_leave(held, at_ms);
        assert_eq!(lock.field(field), None);
    }
    // Readers share, do not look at each other, and overwrite.
    assert!(lock.their_lock(Read, at_ms));
    assert!(lock.their_lock(Read, at_ms - 1));
    assert_eq!(lock.field("read"), Some((at_ms - 1).to_string()));
    lock.delete();
}

/// Keys that were there before us are named in any way. What the server takes for a hash tag decides.
fn waiters_on_any_key_are_told_in_its_slot(mut lock: Lock) {
    let number =
        lock.key().split_once(' ').and_then(|(_, rest)| rest.split_once('}')).expect("its number").0.to_owned();
    for (key, base) in [
        ("lock:N", "{lock:N}"),
        ("N", "{N}"),
        ("lock:{N}", "lock:{N}"),
        ("{N}:a}b", "{N}:a}b"),
        ("a}{N}", "a}{N}"),
        ("N{a{b}c", "N{a{b}c"),
        ("N{a", "{N{a}"),
    ] {
        let fill = |text: &str| text.replace('N', &format!("adopted {number}"));
        lock.keys = vec![fill(key)];
        let mut listener = Listener::new(&lock, &format!("{}:wake:{MANAGER}", fill(base)));
        let waiters = ["1", "2", "3"].map(|n| format!("{MANAGER}.{n}.label"));
        lock.granted("w", Write);
        lock.queued(&waiters[0], Write);
        lock.leave("w"); // to the only one who waits
        lock.queued(&waiters[1], Read);
        lock.queued(&waiters[2], Read);
        lock.leave(&waiters[0]);
        let mut heard = listener.heard(&mut lock);
        heard.sort();
        let told: Vec<_> = heard.iter().filter_map(|notice| notice.split(' ').next()).collect();
        assert_eq!(told, waiters, "{key}");
        lock.delete();
    }
}

/// As those of services that run the published scheme are.
fn keys_without_a_tag_are_marked_and_called_for(mut lock: Lock) {
    let key = lock.key().replace(['{', '}'], "");
    lock.keys = vec![key.clone()];
    let mut calls = Listener::new(&lock, &format!("{{{key}}}:call"));
    for (mode, theirs) in [(Write, Read), (Read, Write)] {
        let keeps = Wish { letters: "k", ..Wish::AT_ONCE };
        let [token, ..] = &lock.ask("k", mode, keeps).words[..] else { panic!("the lock is free") };
        let now_ms = lock.now_ms();
        assert!(!lock.their_lock(theirs, now_ms), "they see our stamp as ever");
        assert!(lock.ask("t", Write, Wish::AT_ONCE).code == "kept");
        for _ in 0..2 {
            lock.queued("w", Write);
        }
        assert_eq!(calls.heard(&mut lock), [token.as_str()]);
        lock.leave("w");
        lock.leave("k");
        let stamp_ms = lock.they_hold(theirs); // the mark is no stamp
        lock.they_leave(theirs, stamp_ms);
    }
    let mut hears = Listener::new(&lock, &format!("{{{key}}}:wake:{MANAGER}"));
    let id = format!("{MANAGER}.7.label");
    lock.used(&id);
    assert_eq!(hears.heard(&mut lock), [format!("used {id}")]);
}
