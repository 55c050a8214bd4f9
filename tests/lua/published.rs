//! A client of the published hash scheme on the same key, in every pair of modes.

use cluster_testenv::Reply;

use crate::contract::code_and_ms;
use crate::lab::{
    Acquired, LEASE_MS, LONG_MS, Left, Listener, Lock, Mode, READ_LIMIT_MS, Read, WRITE_LIMIT_MS, Wish, Write,
    hash_cases,
};

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
    stamp_that_is_no_time_is_nobodys,
    stamp_with_a_fraction_counts_like_any,
    stamp_of_a_dead_reader_of_ours_is_not_theirs,
    their_shorter_ttl_is_not_protected_against,
    their_ttl_spares_leases_that_are_not_longer,
    their_overlapping_readers_starve_our_writer_and_who_is_behind_it,
    their_scripts_do_what_was_published,
    waiters_on_any_key_are_told_in_its_slot,
);

pub(crate) const THEIR_TTL_MS: i64 = 10_000;
const READ_LOCK: &str = include_str!("published/read_lock.lua");
const WRITE_LOCK: &str = include_str!("published/write_lock.lua");
const READ_UNLOCK: &str = include_str!("published/read_unlock.lua");
const WRITE_UNLOCK: &str = include_str!("published/write_unlock.lua");

impl Lock {
    pub(crate) fn published(&mut self, mode: Mode, stamp_ms: i64, [read_ms, write_ms]: [i64; 2]) -> bool {
        let script = if mode == Read { READ_LOCK } else { WRITE_LOCK };
        let [ttl, read, write, stamp] = [THEIR_TTL_MS, read_ms, write_ms, stamp_ms].map(|ms| ms.to_string());
        let key = self.key();
        match self.command(&["EVAL", script, "1", &key, &ttl, &read, &write, &stamp]) {
            Reply::Int(granted @ 0..=1) => granted == 1,
            other => panic!("{other:?}"),
        }
    }

    /// Whether a client whose clock says `stamp_ms` gets in.
    pub(crate) fn their_lock(&mut self, mode: Mode, stamp_ms: i64) -> bool {
        self.published(mode, stamp_ms, [READ_LIMIT_MS, WRITE_LIMIT_MS])
    }

    /// Lets such a client in now, and returns its stamp.
    pub(crate) fn they_hold(&mut self, mode: Mode) -> i64 {
        let stamp_ms = self.now_ms();
        assert!(self.their_lock(mode, stamp_ms), "they get in to {mode:?}");
        stamp_ms
    }

    pub(crate) fn they_leave(&mut self, mode: Mode, stamp_ms: i64) {
        let script = if mode == Read { READ_UNLOCK } else { WRITE_UNLOCK };
        let key = self.key();
        let reply = self.command(&["EVAL", script, "1", &key, &stamp_ms.to_string()]);
        assert!(reply.is_nil(), "{reply:?}");
    }

    fn they_are_refused(&mut self, mode: Mode) {
        let now_ms = self.now_ms();
        // Whatever their limit: a limit of nothing is the hardest.
        for limits in [[READ_LIMIT_MS, WRITE_LIMIT_MS], [0, 0]] {
            assert!(!self.published(mode, now_ms, limits), "{mode:?} {limits:?}");
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
        assert!(!lock.their_lock(theirs, ends_ms + limit_ms), "their limit has to be over");
        assert!(lock.their_lock(theirs, ends_ms + limit_ms + 1));
        lock.force();
    }
}

fn their_writer_excludes_us(mut lock: Lock) {
    for mode in [Read, Write] {
        let stamp_ms = lock.they_hold(Write);
        let retry_in_ms = lock.contended("a", mode);
        assert!((WRITE_LIMIT_MS / 2..=WRITE_LIMIT_MS + 1).contains(&retry_in_ms));
        assert_eq!(lock.field_ms("write"), stamp_ms);
        lock.they_leave(Write, stamp_ms);
        lock.granted("a", mode);
        assert_eq!(lock.leave("a"), Left::Held);
    }
    // Until the limit, and not beyond.
    for mode in [Read, Write] {
        let stamp_ms = lock.now_ms() - WRITE_LIMIT_MS - 1;
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
    assert!((READ_LIMIT_MS / 2..=READ_LIMIT_MS + 1).contains(&retry_in_ms));
    lock.they_leave(Read, stamp_ms);
    lock.granted("a", Write);
    assert_eq!(lock.leave("a"), Left::Held);

    let stamp_ms = lock.now_ms() - READ_LIMIT_MS - 1;
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
    assert_eq!(lock.field("read"), Some(format!("{ahead_ms}.0")), "never the one that they would delete");
    lock.renewed("a", LEASE_MS);
    assert_eq!(lock.field("read"), Some(format!("{ahead_ms}.0")));
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
            // At the limit it is not over: its owner's clock and ours were both rounded down.
            assert_eq!(code == "contended", ms <= ends_ms, "{field}: {code} at {}", ms - ends_ms);
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
    assert!(!lock.their_lock(Write, stamp_ms + READ_LIMIT_MS));
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
    lock.set_field("read", stamp_ms - READ_LIMIT_MS - 1);
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

/// No clock says that in milliseconds: it is nobody's, whatever it compares to.
const NO_TIMES: [&str; 9] = ["9223372036854775808", "inf", "-inf", "nan", "1e30", "1e400", "-1", "yes", ""];

fn stamp_that_is_no_time_is_nobodys(mut lock: Lock) {
    for stamp in NO_TIMES {
        for field in ["write", "read"] {
            for mode in [Read, Write] {
                lock.set_field(field, stamp);
                let view = lock.inspect();
                assert_eq!((view.foreign_write_ms, view.foreign_read_ms), (0, 0), "{field} {stamp}");
                lock.granted("a", mode);
                assert_eq!(lock.leave("a"), Left::Held);
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
        lock.renewed("a", LEASE_MS);
        lock.set_field("read", stamp);
        for id in ["a", "b"] {
            assert_eq!(lock.leave(id), Left::Held);
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
    lock.renewed("a", LEASE_MS);
    assert_eq!(lock.leave("a"), Left::Held);
}

/// Theirs is the time at which ours was over, to the millisecond; nobody takes the one for the other.
fn stamp_of_a_dead_reader_of_ours_is_not_theirs(mut lock: Lock) {
    for left in [false, true] {
        lock.granted("dead", Read);
        lock.granted("also", Read);
        for id in ["dead", "also"] {
            lock.expire(id);
        }
        let stamp_ms = lock.now_ms() - 1;
        lock.set_field("m", format!("{stamp_ms}.0"));
        lock.set_field("read", format!("{stamp_ms}.0"));
        assert!(lock.their_lock(Read, stamp_ms));
        if left {
            assert_eq!(lock.leave("dead"), Left::None { forced: 0 });
            assert_eq!(lock.leave("also"), Left::None { forced: 0 });
            assert_eq!(lock.field("read"), Some(stamp_ms.to_string()), "theirs to delete");
        }
        assert!(lock.contended("w", Write) > READ_LIMIT_MS / 2);
        lock.they_leave(Read, stamp_ms);
        assert_eq!(lock.field("read"), None);
        lock.granted("w", Write);
        lock.leave("w");
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
    lock.renewed("b", THEIR_TTL_MS);
    assert!(outlives(&mut lock));
    lock.renewed("b", 27_000);
    assert!(!outlives(&mut lock), "why longer ones are refused on keys of theirs");
    lock.command(&["DEL", &key]);
}

/// They do not see our queue, and each of them writes a new stamp for all.
fn their_overlapping_readers_starve_our_writer_and_who_is_behind_it(mut lock: Lock) {
    let mut inside_ms = lock.they_hold(Read);
    lock.queued("w", Write);
    lock.queued("r", Read);
    for _ in 0..5 {
        // Half of its limit passes, as each of them stays.
        lock.they_leave(Read, inside_ms);
        inside_ms = lock.now_ms() - READ_LIMIT_MS / 2;
        assert!(lock.their_lock(Read, inside_ms));
        assert!(lock.queued("w", Write) <= READ_LIMIT_MS / 2 + 1);
        let next_ms = lock.they_hold(Read);
        lock.they_leave(Read, inside_ms);
        assert!(lock.queued("w", Write) > READ_LIMIT_MS / 2, "it all begins again");
        lock.queued("r", Read);
        inside_ms = next_ms;
    }
    lock.they_leave(Read, inside_ms);
    assert!(matches!(lock.ask("w", Write, Wish::patient()), Acquired::Granted { .. }));
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
        let stored = lock.snapshot();
        for asked_ms in [at_ms - 1, at_ms, at_ms + 1, at_ms + limit_ms] {
            assert!(!lock.their_lock(asked, asked_ms), "{asked:?} at {asked_ms}");
        }
        assert_eq!(lock.snapshot(), stored, "who is refused writes nothing");
        assert!(lock.their_lock(asked, at_ms + limit_ms + 1), "{asked:?} after {held:?}");
        lock.command(&["DEL", &key]);

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
    assert_eq!(lock.field_ms("read"), at_ms - 1);
    lock.command(&["DEL", &key]);
}

/// Keys that were there before us are named in any way. What the server takes for a hash tag decides.
fn waiters_on_any_key_are_told_in_its_slot(mut lock: Lock) {
    const MANAGER: &str = "0123456789abcdef0123456789abcdef";
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
        lock.command(&["DEL", &lock.key()]);
    }
}
