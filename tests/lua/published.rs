//! A client of the published hash scheme on the same key, in every pair of modes.

use cluster_testenv::Reply;

use crate::contract::code_and_ms;
use crate::lab::{LEASE_MS, LONG_MS, Left, Lock, Mode, READ_LIMIT_MS, Read, WRITE_LIMIT_MS, Write, hash_cases};

hash_cases!(shared:
    our_writer_excludes_them,
    our_readers_exclude_their_writers,
    our_dead_holds_exclude_them_for_their_own_limit,
    their_writer_excludes_us,
    their_reader_excludes_our_writers,
    their_stamps_in_the_future_count,
    their_stamps_count_exactly_until_their_limit,
    their_reader_inside_ours_is_not_forgotten,
    our_reader_inside_theirs_is_not_released_by_them,
    dead_stamps_are_in_nobodys_way,
    inspect_shows_their_stamps,
    force_ends_them_too,
    late_force_spares_newer_stamps,
    stamp_that_is_no_number_is_an_error,
    their_shorter_ttl_is_not_protected_against,
);

const THEIR_TTL_MS: i64 = 10_000;
const READ_LOCK: &str = include_str!("published/read_lock.lua");
const WRITE_LOCK: &str = include_str!("published/write_lock.lua");
const READ_UNLOCK: &str = include_str!("published/read_unlock.lua");
const WRITE_UNLOCK: &str = include_str!("published/write_unlock.lua");

impl Lock {
    fn published(&mut self, script: &str, stamp_ms: i64, limits: [i64; 2]) -> bool {
        let (key, stamp) = (self.key(), stamp_ms.to_string());
        let [read, write] = limits.map(|ms| ms.to_string());
        let ttl = THEIR_TTL_MS.to_string();
        let reply = self.command(&["EVAL", script, "1", &key, &stamp, &read, &write, &ttl]);
        reply == Reply::Int(1)
    }

    /// Whether a client whose clock says `stamp_ms` gets in.
    pub(crate) fn their_lock(&mut self, mode: Mode, stamp_ms: i64) -> bool {
        let script = if mode == Read { READ_LOCK } else { WRITE_LOCK };
        self.published(script, stamp_ms, [READ_LIMIT_MS, WRITE_LIMIT_MS])
    }

    /// Lets such a client in now, and returns its stamp.
    pub(crate) fn they_hold(&mut self, mode: Mode) -> i64 {
        let stamp_ms = self.now_ms();
        assert!(self.their_lock(mode, stamp_ms), "they get in to {mode:?}");
        stamp_ms
    }

    pub(crate) fn they_leave(&mut self, mode: Mode, stamp_ms: i64) {
        let script = if mode == Read { READ_UNLOCK } else { WRITE_UNLOCK };
        self.published(script, stamp_ms, [0, 0]);
    }

    fn they_are_refused(&mut self, mode: Mode) {
        let now_ms = self.now_ms();
        let script = if mode == Read { READ_LOCK } else { WRITE_LOCK };
        // Whatever their limit: a limit of nothing is the hardest.
        for limits in [[READ_LIMIT_MS, WRITE_LIMIT_MS], [0, 0]] {
            assert!(!self.published(script, now_ms, limits), "{mode:?} {limits:?}");
        }
    }
}

const PAIRS: [(Mode, Mode); 3] = [(Write, Write), (Write, Read), (Read, Write)];

fn our_writer_excludes_them(mut lock: Lock) {
    for mode in [Read, Write] {
        lock.granted("a", Write);
        lock.they_are_refused(mode);
        lock.granted("a", Write);
        lock.renewed("a", LONG_MS);
        lock.they_are_refused(mode);
        assert_eq!(lock.leave("a"), Left::Held);
        let stamp_ms = lock.they_hold(mode);
        lock.they_leave(mode, stamp_ms);
    }
}

fn our_readers_exclude_their_writers(mut lock: Lock) {
    lock.granted("a", Read);
    lock.they_are_refused(Write);
    lock.granted("b", Read);
    assert_eq!(lock.leave("b"), Left::Held);
    lock.they_are_refused(Write); // the published scheme lets them in here
    lock.renewed("a", LEASE_MS);
    lock.they_are_refused(Write);
    assert_eq!(lock.leave("a"), Left::Held);
    lock.they_hold(Write);
}

fn our_dead_holds_exclude_them_for_their_own_limit(mut lock: Lock) {
    for (ours, theirs) in PAIRS {
        let limit_ms = if ours == Read { READ_LIMIT_MS } else { WRITE_LIMIT_MS };
        lock.granted("a", ours);
        let field = if ours == Read { "read" } else { "write" };
        let ends_ms = lock.field_ms(field);
        assert!(!lock.their_lock(theirs, ends_ms), "at the deadline");
        assert!(!lock.their_lock(theirs, ends_ms + limit_ms - 1));
        assert!(lock.their_lock(theirs, ends_ms + limit_ms));
        lock.force();
    }
}

fn their_writer_excludes_us(mut lock: Lock) {
    for mode in [Read, Write] {
        let stamp_ms = lock.they_hold(Write);
        let retry_in_ms = lock.contended("a", mode);
        assert!((WRITE_LIMIT_MS / 2..=WRITE_LIMIT_MS).contains(&retry_in_ms));
        assert_eq!(lock.field_ms("write"), stamp_ms);
        lock.they_leave(Write, stamp_ms);
        lock.granted("a", mode);
        assert_eq!(lock.leave("a"), Left::Held);
    }
    // Until the limit, and not beyond.
    for mode in [Read, Write] {
        let stamp_ms = lock.now_ms() - WRITE_LIMIT_MS;
        lock.set_field("write", stamp_ms + WRITE_LIMIT_MS / 2);
        lock.contended("a", mode);
        lock.set_field("write", stamp_ms);
        lock.granted("a", mode);
        lock.they_leave(Write, stamp_ms); // too late, and not taken for ours
        assert_eq!(lock.leave("a"), Left::Held);
    }
}

fn their_reader_excludes_our_writers(mut lock: Lock) {
    let stamp_ms = lock.they_hold(Read);
    let retry_in_ms = lock.contended("a", Write);
    assert!((READ_LIMIT_MS / 2..=READ_LIMIT_MS).contains(&retry_in_ms));
    lock.they_leave(Read, stamp_ms);
    lock.granted("a", Write);
    assert_eq!(lock.leave("a"), Left::Held);

    let stamp_ms = lock.now_ms() - READ_LIMIT_MS;
    lock.set_field("read", stamp_ms + READ_LIMIT_MS / 2);
    lock.contended("a", Write);
    lock.set_field("read", stamp_ms);
    lock.granted("a", Write);
    assert_eq!(lock.field("read"), None, "a dead stamp goes with the grant");
    lock.they_leave(Read, stamp_ms);
    assert_eq!(lock.leave("a"), Left::Held);
}

fn their_stamps_in_the_future_count(mut lock: Lock) {
    let ahead_ms = lock.now_ms() + LONG_MS;
    assert!(lock.their_lock(Write, ahead_ms));
    for mode in [Read, Write] {
        assert!(lock.contended("a", mode) > LONG_MS);
    }
    lock.they_leave(Write, ahead_ms);

    assert!(lock.their_lock(Read, ahead_ms));
    assert!(lock.contended("w", Write) > LONG_MS);
    lock.granted("a", Read);
    assert!(lock.field_ms("read") > ahead_ms, "never the one that they would delete");
    lock.renewed("a", LEASE_MS);
    assert!(lock.field_ms("read") > ahead_ms);
    lock.they_leave(Read, ahead_ms);
    lock.they_are_refused(Write);
    assert_eq!(lock.leave("a"), Left::Held);
}

fn their_stamps_count_exactly_until_their_limit(mut lock: Lock) {
    // A covered one stays when our reader beside it is dead.
    let cases = [("write", Read), ("write", Write), ("read", Write), ("v", Write)];
    for (field, asked) in cases.repeat(4) {
        let limit_ms = if field == "write" { WRITE_LIMIT_MS } else { READ_LIMIT_MS };
        if field == "v" {
            lock.they_hold(Read);
            lock.granted("dead", Read);
            lock.expire("dead");
        }
        let ends_ms = lock.now_ms() + 4;
        lock.set_field(field, ends_ms - limit_ms);
        let args = lock.acquire_args("a", asked, LEASE_MS);
        loop {
            let (code, ms) = code_and_ms(&lock.try_run("acquire", &args));
            assert_eq!(code == "contended", ms < ends_ms, "{field}: {code} at {}", ms - ends_ms);
            if code == "granted" {
                break;
            }
        }
        assert_eq!(lock.leave("a"), Left::Held);
    }
}

fn their_reader_inside_ours_is_not_forgotten(mut lock: Lock) {
    // They were first; then we came, left and died beside them.
    let stamp_ms = lock.they_hold(Read);
    lock.granted("a", Read);
    lock.granted("b", Read);
    assert_eq!(lock.field_ms("v"), stamp_ms);
    lock.they_are_refused(Write);
    lock.leave("a");
    lock.expire("b");
    assert!(lock.contended("w", Write) > READ_LIMIT_MS / 2, "they may be inside");
    lock.they_are_refused(Write);
    assert_eq!(lock.leave("b"), Left::None { forced: 0 });
    assert_eq!(lock.field_ms("read"), stamp_ms, "their stamp is back");
    assert_eq!(lock.field("v"), None);
    assert!(!lock.their_lock(Write, stamp_ms + READ_LIMIT_MS - 1));
    lock.contended("w", Write);
    lock.they_leave(Read, stamp_ms);
    lock.granted("w", Write);
}

fn our_reader_inside_theirs_is_not_released_by_them(mut lock: Lock) {
    let stamp_ms = lock.they_hold(Read);
    lock.granted("a", Read);
    lock.they_leave(Read, stamp_ms);
    lock.they_are_refused(Write);
    lock.contended("w", Write);
    assert_eq!(lock.leave("a"), Left::Held);
    // They had left before us: nobody can know, so their limit has to pass.
    assert_eq!(lock.field_ms("read"), stamp_ms);
    lock.contended("w", Write);
    lock.set_field("read", stamp_ms - READ_LIMIT_MS);
    lock.granted("w", Write);
}

fn dead_stamps_are_in_nobodys_way(mut lock: Lock) {
    let dead_ms = lock.now_ms() - WRITE_LIMIT_MS - READ_LIMIT_MS;
    for mode in [Read, Write] {
        lock.set_field("write", dead_ms);
        lock.set_field("read", dead_ms);
        lock.granted("a", mode);
        lock.renewed("a", LEASE_MS);
        lock.they_are_refused(Write);
        assert_eq!(lock.leave("a"), Left::Held);
        assert_eq!((lock.field("write"), lock.field("read")), (None, None));
    }
    // Also beside a dead record of ours.
    for (dead, mode) in [(Write, Read), (Write, Write), (Read, Write), (Read, Read)] {
        lock.granted("dead", dead);
        lock.expire("dead");
        lock.set_field("write", dead_ms);
        lock.set_field("read", dead_ms);
        lock.granted("a", mode);
        assert_eq!(lock.leave("a"), Left::Held);
    }
    // A covered one that is dead does not block.
    lock.they_hold(Read);
    lock.granted("a", Read);
    lock.set_field("v", dead_ms);
    lock.expire("a");
    lock.granted("w", Write);
}

fn inspect_shows_their_stamps(mut lock: Lock) {
    let write_ms = lock.they_hold(Write);
    let view = lock.inspect();
    assert_eq!((view.foreign_write_ms, view.foreign_read_ms), (write_ms, 0));
    lock.they_leave(Write, write_ms);

    let read_ms = lock.they_hold(Read);
    assert_eq!(lock.inspect().foreign_read_ms, read_ms);
    lock.granted("a", Read);
    let view = lock.inspect();
    assert_eq!((view.foreign_write_ms, view.foreign_read_ms), (0, read_ms));
    assert_eq!(view.ids(), ["a"]);
    let second_ms = read_ms + 1;
    assert!(lock.their_lock(Read, second_ms));
    assert_eq!(lock.inspect().foreign_read_ms, second_ms);
}

fn force_ends_them_too(mut lock: Lock) {
    for mode in [Read, Write] {
        lock.they_hold(mode);
        assert_eq!(lock.force(), [""; 0]);
        assert!(lock.snapshot()[0].0.is_nil(), "nothing of ours to remember");
        lock.granted("a", Write);
        lock.force();
        lock.they_hold(mode);
        let token = lock.inspect().token;
        assert_eq!(lock.force(), [""; 0]);
        assert_eq!(lock.inspect().token, token);
        assert!(lock.granted("a", Write) > token);
        lock.command(&["DEL", &lock.key()]);
    }
}

fn late_force_spares_newer_stamps(mut lock: Lock) {
    for mode in [Read, Write] {
        let (first_ms, seen) = (lock.they_hold(mode), lock.inspect());
        assert_eq!(lock.force_seen(&seen), [""; 0]);
        let field = if mode == Read { "read" } else { "write" };
        assert_eq!(lock.field(field), None, "the one that was seen is gone");
        assert!(lock.their_lock(mode, first_ms + 1));
        lock.force_seen(&seen);
        assert_eq!(lock.field_ms(field), first_ms + 1, "the next one stays");
        lock.they_leave(mode, first_ms + 1);
    }
    // Also one that our readers cover by now, or that came beside them.
    for joined in [true, false] {
        lock.granted("a", Read);
        let seen = lock.inspect();
        let stamp_ms = lock.they_hold(Read);
        if joined {
            lock.granted("b", Read);
        }
        assert_eq!(lock.force_seen(&seen).len(), if joined { 2 } else { 1 });
        assert_eq!(lock.field_ms("read"), stamp_ms);
        lock.they_leave(Read, stamp_ms);
    }
}

fn stamp_that_is_no_number_is_an_error(mut lock: Lock) {
    lock.set_field("write", "yes");
    lock.set_field("read", "no");
    let stored = lock.snapshot();
    for mode in [Read, Write] {
        let args = lock.acquire_args("a", mode, LEASE_MS);
        let reply = lock.try_run("acquire", &args);
        assert!(reply.error().is_some(), "{reply:?}");
        assert_eq!(lock.snapshot(), stored);
    }
}

fn their_shorter_ttl_is_not_protected_against(mut lock: Lock) {
    lock.granted("a", Read);
    lock.they_hold(Read);
    let key = lock.key();
    assert!(lock.int(&["PTTL", &key]) <= THEIR_TTL_MS, "the flaw");
    lock.renewed("a", LEASE_MS);
    assert!(lock.int(&["PTTL", &key]) > LEASE_MS, "until the next renewal");
}
