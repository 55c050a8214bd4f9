//! What both schemes promise.

use cluster_testenv::Reply;

use crate::lab::{
    Acquired, LEASE_MS, LONG_MS, Left, Lock, MAX_TOKEN, MOST_RECORDS, Mode, RETENTION_MS, Read, Renewed, Scheme,
    Turned, View, Wish, Write, all_cases, rows,
};

/// More than a machine stalls, less than `LONG_MS - LEASE_MS`.
const STALL_MS: i64 = 300_000;

all_cases!(shared:
    writer_excludes_everybody,
    readers_exclude_writers_only,
    repeat_extends_with_the_same_token,
    repeat_does_not_shorten,
    repeat_counts_once,
    same_id_in_the_other_mode_is_refused,
    late_changes_nothing,
    request_is_late_when_its_last_moment_is_over,
    hold_is_live_exactly_until_its_deadline,
    hold_is_given_back_and_extended_exactly_until_its_deadline,
    expired_hold_is_not_extended_by_a_repeat,
    expired_reader_joins_the_others_again,
    renewal_extends_and_does_not_shorten,
    renewal_recreates_nothing,
    leave_ends_exactly_one_hold,
    leave_after_the_deadline_finds_none,
    none_tells_since_when_the_lock_is_known,
    dead_writer_is_in_nobodys_way,
    dead_reader_blocks_until_its_own_deadline_only,
    tokens_grow_from_phase_to_phase,
    tokens_grow_when_the_clock_does_not,
    large_and_round_tokens_are_exact,
    retry_comes_with_the_deadline,
    force_ends_all_and_is_remembered,
    late_force_ends_nothing_newer,
    force_of_a_free_lock_ends_nothing,
    inspect_shows_live_holds,
    lost_ttl_comes_back_with_a_grant,
    lost_ttl_comes_back_with_a_denial,
    lost_ttl_comes_back_with_leave_and_renew,
    force_beside_a_crowd_ends_all_at_once_and_removes_some,
    force_that_breaks_off_keeps_nobody_out_for_long,
    key_that_is_left_goes_within_three_minutes,
    longest_lease_is_covered_whatever_neighbours_do,
    writer_is_covered_when_a_dead_reader_leaves_late,
    keys_of_another_type_stay_untouched,
);

fn writer_excludes_everybody(mut lock: Lock) {
    lock.granted("a", Write);
    lock.contended("b", Write);
    lock.contended("c", Read);
    assert_eq!(lock.leave("a"), Left::Held);
    lock.granted("b", Write);
    assert_eq!(lock.leave("b"), Left::Held);
    lock.granted("c", Read);
}

fn readers_exclude_writers_only(mut lock: Lock) {
    let token = lock.granted("a", Read);
    assert_eq!(lock.granted("b", Read), token);
    lock.contended("w", Write);
    assert_eq!(lock.leave("a"), Left::Held);
    lock.contended("w", Write);
    assert_eq!(lock.granted("c", Read), token);
    assert_eq!(lock.leave("b"), Left::Held);
    assert_eq!(lock.leave("c"), Left::Held);
    lock.granted("w", Write);
}

fn repeat_extends_with_the_same_token(mut lock: Lock) {
    for (id, mode) in [("r", Read), ("w", Write)] {
        let token = lock.granted(id, mode);
        assert_eq!(lock.granted_for(id, mode, LONG_MS), (token, LONG_MS));
        assert_eq!(lock.renewed(id, LONG_MS), LONG_MS);
        assert_eq!(lock.leave(id), Left::Held);
    }
}

fn repeat_does_not_shorten(mut lock: Lock) {
    for (id, mode) in [("r", Read), ("w", Write)] {
        let (token, _) = lock.granted_for(id, mode, LONG_MS);
        let (again, remaining_ms) = lock.granted_for(id, mode, LEASE_MS);
        assert_eq!(again, token);
        assert!(remaining_ms > LONG_MS - STALL_MS);
        assert!(lock.inspect().holders[0].remaining_ms > LONG_MS - STALL_MS);
        assert_eq!(lock.leave(id), Left::Held);
    }
}

fn repeat_counts_once(mut lock: Lock) {
    for other in [None, Some("other")] {
        if let Some(id) = other {
            lock.granted(id, Read);
        }
        let token = lock.granted("a", Read);
        for _ in 0..3 {
            assert_eq!(lock.granted("a", Read), token);
        }
        assert_eq!(lock.leave("a"), Left::Held);
        if let Some(id) = other {
            assert_eq!(lock.leave(id), Left::Held);
        }
        lock.granted("w", Write);
        assert_eq!(lock.granted("w", Write), lock.inspect().token);
        assert_eq!(lock.leave("w"), Left::Held);
    }
}

fn same_id_in_the_other_mode_is_refused(mut lock: Lock) {
    for (held, asked) in [(Write, Read), (Read, Write)] {
        lock.granted("a", held);
        lock.contended("a", asked);
        assert_eq!(lock.inspect().holders[0].mode, held);
        assert_eq!(lock.leave("a"), Left::Held);
    }
}

fn late_changes_nothing(mut lock: Lock) {
    let past = lock.now_ms() - 1;
    for mode in [Read, Write] {
        assert_eq!(lock.acquire_until("a", mode, LEASE_MS, past), Acquired::Late);
        assert_eq!(lock.inspect().ids(), [""; 0]);
    }
    for (id, mode) in [("r", Read), ("w", Write)] {
        lock.granted(id, mode);
        lock.persist(); // not even this is mended
        let stored = lock.snapshot();
        assert_eq!(lock.acquire_until(id, mode, LONG_MS, past), Acquired::Late);
        assert_eq!(lock.acquire_until("b", Read, LONG_MS, past), Acquired::Late);
        assert_eq!(lock.snapshot(), stored);
        lock.granted(id, mode);
        assert_eq!(lock.leave(id), Left::Held);
    }
}

/// The code of a reply, and the server's clock in it.
pub(crate) fn code_and_ms(reply: &Reply) -> (String, i64) {
    let head = reply.array().and_then(|rows| rows.first()).unwrap_or(reply);
    let words = head.text().expect("a text").into_owned();
    let words: Vec<_> = words.split(' ').collect();
    let number = |n: usize| words[n].parse::<i64>().expect("a number");
    (words[0].to_owned(), number(2) * 1000 + number(3) / 1000)
}

/// Many requests in a row, so that one comes in the very millisecond; whichever do, each must be judged rightly.
fn request_is_late_when_its_last_moment_is_over(mut lock: Lock) {
    let last_ms = lock.now_ms() + 3;
    let mut args = lock.acquire_args("a", Read, LEASE_MS);
    args[0] = last_ms.to_string();
    loop {
        let (code, ms) = code_and_ms(&lock.try_run("acquire", &args));
        assert_eq!(code == "late", ms > last_ms, "{code} at {}", ms - last_ms);
        if code == "late" {
            return;
        }
    }
}

/// The same for a deadline, seen by another caller and by a look.
fn hold_is_live_exactly_until_its_deadline(mut lock: Lock) {
    // Several times, so that the very millisecond is met even on a busy machine.
    for (held, asked) in [(Write, Write), (Write, Read), (Read, Write)].repeat(4) {
        let args = lock.acquire_args("a", held, 5);
        let (_, granted_ms) = code_and_ms(&lock.try_run("acquire", &args));
        let ends_ms = granted_ms + 5;
        let judge = |live: bool, ms: i64, what: &str| assert_eq!(live, ms < ends_ms, "{what} at {} ms", ms - ends_ms);
        let args = lock.acquire_args("b", asked, LEASE_MS);
        loop {
            let look = lock.try_run("inspect", &[""; 0]);
            judge(rows(&look) > 0, code_and_ms(&look).1, "shown");

            let (code, ms) = code_and_ms(&lock.try_run("acquire", &args));
            judge(code == "contended", ms, &code);
            if code == "granted" {
                break;
            }
        }
        lock.leave("b");
    }
}

fn hold_is_given_back_and_extended_exactly_until_its_deadline(mut lock: Lock) {
    for mode in [Read, Write].repeat(4) {
        let judge = |live: bool, after_ms: i64, what: &str| assert_eq!(live, after_ms < 0, "{what} at {after_ms} ms");
        let args = lock.acquire_args("a", mode, 3);
        let (_, granted_ms) = code_and_ms(&lock.try_run("acquire", &args));
        loop {
            // No lease: what is live stays as long as it was.
            let (code, ms) = code_and_ms(&lock.try_run("renew", &["a", "0"]));
            judge(code == "renewed", ms - granted_ms - 3, "renew");
            if code == "lost" {
                break;
            }
        }
        // Sometimes one of these comes in the very millisecond.
        let args = lock.acquire_args("a", mode, 1);
        for _ in 0..15 {
            let (_, granted_ms) = code_and_ms(&lock.try_run("acquire", &args));
            let (code, ms) = code_and_ms(&lock.try_run("leave", &lock.leave_args("a")));
            judge(code == "held", ms - granted_ms - 1, "leave");

            let (_, granted_ms) = code_and_ms(&lock.try_run("acquire", &args));
            let args = lock.force_args(&view_of(MAX_TOKEN));
            let force = lock.try_run("force", &args);
            judge(rows(&force) > 0, code_and_ms(&force).1 - granted_ms - 1, "force");
        }
    }
}

fn expired_hold_is_not_extended_by_a_repeat(mut lock: Lock) {
    for (id, mode) in [("r", Read), ("w", Write)] {
        let token = lock.granted(id, mode);
        lock.expire(id);
        let again = lock.granted(id, mode);
        assert!(again > token, "a new acquisition has a new token");
        assert_eq!(lock.leave(id), Left::Held);
        assert_eq!(lock.inspect().ids(), [""; 0]);
    }
}

fn expired_reader_joins_the_others_again(mut lock: Lock) {
    let token = lock.granted("a", Read);
    lock.granted("b", Read);
    // Whichever of the two is looked at first.
    for (dead, live) in [("a", "b"), ("b", "a")] {
        lock.expire(dead);
        assert_eq!(lock.inspect().ids(), [live]);
        let now_ms = lock.now_ms();
        assert_eq!(lock.granted(dead, Read), token);
        let view = lock.inspect();
        assert_eq!(view.ids(), ["a", "b"]);
        let again = view.holders.iter().find(|holder| holder.id == dead).expect("shown");
        assert!(again.since_ms >= now_ms, "a new hold, not the old one");
    }
    assert_eq!(lock.leave("a"), Left::Held);
    assert_eq!(lock.leave("b"), Left::Held);
    lock.granted("w", Write);
}

fn renewal_extends_and_does_not_shorten(mut lock: Lock) {
    for mode in [Read, Write] {
        lock.granted("a", mode);
        assert_eq!(lock.renewed("a", LONG_MS), LONG_MS);
        assert!(lock.renewed("a", LEASE_MS) > LONG_MS - STALL_MS);
        let holder = &lock.inspect().holders[0];
        assert!(holder.remaining_ms > LONG_MS - STALL_MS);
        assert_eq!(lock.leave("a"), Left::Held);
    }
}

fn renewal_recreates_nothing(mut lock: Lock) {
    assert_eq!(lock.renew("a", LEASE_MS), Renewed::Lost { forced: 0 });
    assert!(lock.snapshot().iter().all(|(value, _)| value.is_nil()));
    for mode in [Read, Write] {
        lock.granted("a", mode);
        assert_eq!(lock.renew("b", LEASE_MS), Renewed::Lost { forced: 0 });
        lock.expire("a");
        for _ in 0..2 {
            assert_eq!(lock.renew("a", LEASE_MS), Renewed::Lost { forced: 0 });
            assert_eq!(lock.inspect().ids(), [""; 0]);
        }
        assert_eq!(lock.leave("a"), Left::None { forced: 0 });
    }
}

fn leave_ends_exactly_one_hold(mut lock: Lock) {
    assert_eq!(lock.leave("a"), Left::None { forced: 0 });
    assert!(lock.snapshot().iter().all(|(value, _)| value.is_nil()));
    for mode in [Read, Write] {
        lock.granted("m.1.x", mode);
        // Neither a prefix of the id nor what it is a prefix of.
        for other in ["m.1", "m.1.", "m.1.xx", "m.2.x"] {
            assert_eq!(lock.leave(other), Left::None { forced: 0 });
            assert_eq!(lock.renew(other, LEASE_MS), Renewed::Lost { forced: 0 });
        }
        assert_eq!(lock.inspect().ids(), ["m.1.x"]);
        assert_eq!(lock.leave("m.1.x"), Left::Held);
        assert_eq!(lock.leave("m.1.x"), Left::None { forced: 0 });
    }
}

fn leave_after_the_deadline_finds_none(mut lock: Lock) {
    for mode in [Read, Write] {
        lock.granted("a", mode);
        lock.expire("a");
        assert_eq!(lock.leave("a"), Left::None { forced: 0 });
        assert_eq!(lock.leave("a"), Left::None { forced: 0 });
    }
    lock.granted("a", Read);
    lock.granted("b", Read);
    lock.expire("a");
    assert_eq!(lock.leave("a"), Left::None { forced: 0 });
    assert_eq!(lock.inspect().ids(), ["b"]);
}

fn none_tells_since_when_the_lock_is_known(mut lock: Lock) {
    assert_eq!(lock.leave("nobody"), Left::None { forced: 0 });
    assert_eq!(lock.known, (0, 0), "no grant is remembered");
    let first = lock.granted("a", Read);
    assert_eq!(lock.leave("a"), Left::Held);
    for (id, mode) in [("b", Write), ("c", Read), ("d", Write)] {
        let token = lock.granted(id, mode);
        assert_eq!(lock.leave(id), Left::Held);
        assert_eq!(lock.leave(id), Left::None { forced: 0 });
        assert_eq!(lock.known, (token, first), "{id}");
    }
    // A force ends holds, and forgets no token.
    let token = lock.granted("e", Write);
    lock.force();
    assert_eq!(lock.leave("e"), Left::None { forced: token });
    assert_eq!(lock.known, (token, first));
    // Lost and begun anew.
    for key in lock.keys.clone() {
        lock.command(&["DEL", &key]);
    }
    let first = lock.granted("f", Write);
    assert!(first > token);
    assert_eq!(lock.leave("e"), Left::None { forced: 0 });
    assert_eq!(lock.known, (first, first));
}

fn dead_writer_is_in_nobodys_way(mut lock: Lock) {
    for mode in [Read, Write] {
        let token = lock.granted("dead", Write);
        lock.expire("dead");
        assert_eq!(lock.inspect().ids(), [""; 0]);
        assert!(lock.granted("a", mode) > token);
        assert_eq!(lock.renew("dead", LEASE_MS), Renewed::Lost { forced: 0 });
        assert_eq!(lock.leave("dead"), Left::None { forced: 0 });
        assert_eq!(lock.leave("a"), Left::Held);
    }
}

fn dead_reader_blocks_until_its_own_deadline_only(mut lock: Lock) {
    for id in ["a", "b", "c"] {
        lock.granted(id, Read);
    }
    let token = lock.granted_for("long", Read, LONG_MS).0;
    for id in ["a", "b", "c"] {
        lock.expire(id);
    }
    assert!(lock.contended("w", Write) > LEASE_MS, "the live one blocks");
    assert_eq!(lock.granted("d", Read), token, "and is joined");
    assert_eq!(lock.leave("long"), Left::Held);
    assert_eq!(lock.leave("d"), Left::Held);
    let next = lock.granted("w", Write);
    assert!(next > token);
    assert_eq!(lock.leave("w"), Left::Held);

    lock.granted("dead", Read);
    lock.expire("dead");
    assert!(lock.granted("e", Read) > next + 1, "nobody live to share with");
}

fn tokens_grow_from_phase_to_phase(mut lock: Lock) {
    let before_us = lock.server_us();
    let mut last = 0;
    for mode in [Write, Read, Read, Write, Write] {
        let token = lock.granted("a", mode);
        assert!(token > last && token >= before_us);
        assert_eq!(lock.inspect().token, token);
        assert_eq!(lock.leave("a"), Left::Held);
        assert_eq!(lock.inspect().token, token, "it is remembered");
        last = token;
    }
    lock.force();
    let token = lock.granted("a", Read);
    assert!(token > last);
    lock.expire("a");
    assert!(lock.granted("b", Write) > token);
}

fn tokens_grow_when_the_clock_does_not(mut lock: Lock) {
    let ahead = lock.server_us() + 3_600_000_000;
    lock.set_last_token(ahead);
    assert_eq!(lock.granted("a", Write), ahead + 1);
    assert_eq!(lock.granted("a", Write), ahead + 1);
    assert_eq!(lock.leave("a"), Left::Held);
    assert_eq!(lock.granted("b", Read), ahead + 2);
    assert_eq!(lock.granted("c", Read), ahead + 2);
    assert_eq!(lock.force(), ["b", "c"]);
    assert_eq!(lock.granted("d", Read), ahead + 3);
}

fn large_and_round_tokens_are_exact(mut lock: Lock) {
    // Zeros at the end are what a shortest form would write as an exponent.
    let round = (lock.server_us() / 100_000_000_000_000 + 2) * 100_000_000_000_000;
    for token in [round, round + 1, (1 << 53) - 3] {
        lock.set_last_token(token - 1);
        assert_eq!(lock.inspect().token, token - 1);
        for mode in [Write, Read] {
            assert_eq!(lock.granted("a", mode), token);
            assert_eq!(lock.granted("a", mode), token);
            assert_eq!(lock.inspect().token, token);
            assert_eq!(lock.leave("a"), Left::Held);
            lock.set_last_token(token - 1);
        }
        lock.set_last_token(token);
        lock.force();
        assert_eq!(lock.leave("a"), Left::None { forced: token });
    }
}

fn retry_comes_with_the_deadline(mut lock: Lock) {
    lock.granted("a", Write);
    for mode in [Read, Write] {
        let retry_in_ms = lock.contended("b", mode);
        assert!((LEASE_MS / 2..=LEASE_MS).contains(&retry_in_ms));
    }
    assert_eq!(lock.leave("a"), Left::Held);
    lock.granted("a", Read);
    let retry_in_ms = lock.contended("b", Write);
    assert!((LEASE_MS / 2..=LEASE_MS).contains(&retry_in_ms));
}

fn force_ends_all_and_is_remembered(mut lock: Lock) {
    let token = lock.granted("w", Write);
    assert_eq!(lock.force(), ["w"]);
    assert_eq!(lock.inspect().ids(), [""; 0]);
    assert_eq!(lock.renew("w", LEASE_MS), Renewed::Lost { forced: token });
    assert_eq!(lock.leave("w"), Left::None { forced: token });

    let next = lock.granted("a", Read);
    assert!(next > token, "so that it is not taken for a forced one");
    lock.granted("b", Read);
    lock.granted("dead", Read);
    lock.expire("dead");
    assert_eq!(lock.force(), ["a", "b"], "live ones only");
    assert_eq!(lock.leave("a"), Left::None { forced: next });
    assert_eq!(lock.force(), [""; 0]);
    let view = lock.inspect();
    assert_eq!((view.token, view.holders.len()), (next, 0));

    lock.granted("v", Write);
    assert_eq!(lock.leave("b"), Left::None { forced: next }, "still");
    lock.expire("v");
    assert_eq!(lock.force(), [""; 0], "it was dead");
}

/// A look at a free lock with this last token.
fn view_of(token: i64) -> View {
    let (holders, waiters) = (Vec::new(), Vec::new());
    View {
        token,
        foreign_write_ms: 0,
        foreign_read_ms: 0,
        holders,
        more_holders: 0,
        waiters,
        more_waiters: 0,
        is_marked: false,
    }
}

fn late_force_ends_nothing_newer(mut lock: Lock) {
    for mode in [Read, Write] {
        lock.granted("a", mode);
        let seen = lock.inspect();
        assert_eq!(lock.force_seen(&seen), ["a"]);
        assert_eq!(lock.force_seen(&seen), [""; 0], "sent twice");
        for mode in [Read, Write] {
            lock.granted("b", mode);
            let stored = lock.snapshot();
            assert_eq!(lock.force_seen(&seen), [""; 0]);
            assert_eq!(lock.snapshot(), stored, "late, it changes nothing");
            assert_eq!(lock.leave("b"), Left::Held);
        }
        // One that reads beside those that were seen has their token, and ends with them.
        lock.granted("c", Read);
        let seen = lock.inspect();
        lock.granted("d", Read);
        assert_eq!(lock.force_seen(&seen), ["c", "d"]);
    }
}

fn force_of_a_free_lock_ends_nothing(mut lock: Lock) {
    assert_eq!(lock.force(), [""; 0]);
    assert!(lock.snapshot().iter().all(|(value, _)| value.is_nil()));
    assert_eq!(lock.leave("a"), Left::None { forced: 0 });
}

fn inspect_shows_live_holds(mut lock: Lock) {
    let free = lock.inspect();
    assert_eq!((free.token, free.holders.len()), (0, 0));
    for (mode, ids) in [(Write, &["w"][..]), (Read, &["a", "b", "c"])] {
        let before_ms = lock.now_ms();
        let tokens: Vec<_> = ids.iter().map(|id| lock.granted(id, mode)).collect();
        let after_ms = lock.now_ms();
        // A repeat and a renewal are no new beginning.
        lock.granted_for(ids[0], mode, LONG_MS);
        lock.renewed(ids[0], LONG_MS);
        let stored = lock.snapshot();
        let view = lock.inspect();
        assert_eq!(lock.snapshot(), stored, "a look changes nothing");
        assert_eq!(view.ids(), ids);
        assert_eq!(view.token, tokens[0]);
        assert_eq!((view.foreign_write_ms, view.foreign_read_ms), (0, 0));
        for holder in view.holders {
            assert_eq!(holder.mode, mode);
            assert!((before_ms..=after_ms).contains(&holder.since_ms));
            let lease_ms = if holder.id == ids[0] { LONG_MS } else { LEASE_MS };
            assert!((lease_ms - STALL_MS..=lease_ms).contains(&holder.remaining_ms));
        }
        lock.expire(ids[0]);
        assert_eq!(lock.inspect().ids(), ids[1..], "dead ones are not shown");
        for id in ids {
            lock.leave(id);
        }
    }
}

/// The lab checks after every script that each key has a ttl.
fn lost_ttl_comes_back_with_a_grant(mut lock: Lock) {
    for mode in [Read, Write] {
        lock.granted("a", mode);
        lock.persist();
        lock.granted("a", mode);
        if mode == Read {
            lock.persist();
            lock.granted("b", mode);
            lock.persist();
            lock.leave("b");
        }
        lock.leave("a");
        lock.persist();
    }
    lock.granted("c", Read);
}

fn lost_ttl_comes_back_with_a_denial(mut lock: Lock) {
    for (held, asked) in [(Write, Write), (Write, Read), (Read, Write)] {
        let before_ms = lock.now_ms();
        lock.granted_for("a", held, LONG_MS);
        lock.persist_first();
        lock.contended("b", asked);
        lock.assert_covered_until(before_ms + LONG_MS);
        lock.persist();
        lock.contended("b", asked);
        lock.assert_covered_until(before_ms + LEASE_MS);
        assert_eq!(lock.leave("a"), Left::Held);
    }
}

fn lost_ttl_comes_back_with_leave_and_renew(mut lock: Lock) {
    for mode in [Read, Write] {
        let before_ms = lock.now_ms();
        lock.granted_for("a", mode, LONG_MS);
        lock.persist_first();
        assert_eq!(lock.leave("stranger"), Left::None { forced: 0 });
        lock.assert_covered_until(before_ms + LONG_MS);
        lock.persist_first();
        assert_eq!(lock.renew("stranger", 1), Renewed::Lost { forced: 0 });
        lock.assert_covered_until(before_ms + LONG_MS);
        lock.persist();
        lock.renewed("a", LONG_MS);
        lock.assert_covered_until(before_ms + LONG_MS);
        lock.persist();
        assert_eq!(lock.leave("a"), Left::Held);
        lock.assert_covered_until(before_ms);
        lock.persist();
        assert_eq!(lock.leave("a"), Left::None { forced: 0 });
        lock.assert_covered_until(before_ms);
        lock.persist();
        assert_eq!(lock.renew("a", LEASE_MS), Renewed::Lost { forced: 0 });
        lock.assert_covered_until(before_ms);
    }
    let before_ms = lock.now_ms();
    lock.granted("a", Read);
    lock.granted("b", Read);
    lock.persist();
    assert_eq!(lock.leave("a"), Left::Held);
    lock.assert_covered_until(before_ms + LEASE_MS);
    lock.expire("b");
    lock.persist();
    assert_eq!(lock.leave("b"), Left::None { forced: 0 });
    lock.assert_covered_until(before_ms);
}

/// So many readers that no script looks at all of them, and a writer that waits. What `inspect` shows of them.
fn crowded(lock: &mut Lock) -> View {
    for n in 0..CROWD {
        lock.granted(&format!("r.{n}"), Read);
    }
    lock.queued("v", Write);
    let seen = lock.inspect();
    assert_eq!((seen.holders.len(), seen.more_holders as usize), (MOST_RECORDS - 1, CROWD - MOST_RECORDS + 1));
    assert_eq!((seen.waiting(), seen.more_waiters), (vec!["v"], 0));
    seen
}

const CROWD: usize = 250;

fn force_beside_a_crowd_ends_all_at_once_and_removes_some(mut lock: Lock) {
    let seen = crowded(&mut lock);
    let (ended, more) = lock.force_step(&seen);
    assert_eq!((ended.len(), more), (MOST_RECORDS, true));
    assert_eq!(lock.inspect().holders, []);
    let forced = seen.token;
    let recorded: Vec<_> = (0..CROWD).map(|n| format!("r.{n}")).filter(|id| !ended.contains(id)).collect();
    assert_eq!(lock.renew(&recorded[0], LEASE_MS), Renewed::Lost { forced });
    assert_eq!(lock.turn(&recorded[1], "w", Write, Wish::default()), Turned::Lost { forced });
    assert_eq!(lock.leave(&recorded[2]), Left::None { forced });
    let rest = lock.force_seen(&seen);
    assert!(rest.iter().all(|id| recorded.contains(id)), "{rest:?}");
    let Acquired::Granted { token, .. } = lock.ask("v", Write, Wish::patient()) else { panic!("it is next") };
    assert!(token > forced);
    assert_eq!(lock.force_step(&seen), (Vec::new(), false), "what was seen is over");
    assert_eq!(lock.inspect().ids(), ["v"]);
}

/// Whoever asks goes on with what a force has left.
fn force_that_breaks_off_keeps_nobody_out_for_long(mut lock: Lock) {
    let seen = crowded(&mut lock);
    assert!(lock.force_step(&seen).1);
    let repeats = lock.ask("r.0", Read, Wish::default());
    assert_eq!(repeats, Acquired::Contended { retry_in_ms: 1 }, "nobody enters before all are gone");
    let entered = (0..3).find_map(|_| match lock.ask("v", Write, Wish::patient()) {
        Acquired::Granted { token, .. } => Some(token),
        _ => None,
    });
    assert!(entered.expect("it is next") > seen.token);
    assert_eq!(lock.inspect().ids(), ["v"]);
}

/// It costs a command to shorten a ttl, so the last one of a lock may leave some of what stood.
fn key_that_is_left_goes_within_three_minutes(mut lock: Lock) {
    for (mode, lease_ms) in [(Read, LEASE_MS), (Write, LEASE_MS), (Read, LONG_MS), (Write, LONG_MS)] {
        lock.granted_for("a", mode, lease_ms);
        assert_eq!(lock.leave("a"), Left::Held);
        let key = lock.key();
        assert!((59_000..=180_000).contains(&lock.int(&["PTTL", &key])), "{mode:?} {lease_ms}");
    }
    for id in ["a", "b"] {
        lock.granted_for(id, Read, LONG_MS);
    }
    for id in ["a", "b"] {
        assert_eq!(lock.leave(id), Left::Held);
    }
    let key = lock.key();
    assert!((59_000..=180_000).contains(&lock.int(&["PTTL", &key])));
}

fn writer_is_covered_when_a_dead_reader_leaves_late(mut lock: Lock) {
    for id in ["dead", "turns"] {
        lock.granted(id, Read);
    }
    lock.expire("dead");
    let began_ms = lock.now_ms();
    let turned = lock.turn("turns", "writer", Write, Wish { lease_ms: LONG_MS, ..Wish::default() });
    assert!(matches!(turned, Turned::Granted { .. }), "{turned:?}");
    assert_eq!(lock.leave("dead"), Left::None { forced: 0 });
    lock.assert_covered_until(began_ms + LONG_MS);
}

fn longest_lease_is_covered_whatever_neighbours_do(mut lock: Lock) {
    let key = lock.key();
    lock.granted_for("long", Read, LONG_MS);
    let deadline_ms = lock.now_ms() + LONG_MS;
    let covered = |lock: &mut Lock| {
        let until_ms = lock.int(&["PEXPIRETIME", &key]);
        // The grant came within the stall before we read the clock.
        assert!(until_ms > deadline_ms + RETENTION_MS - STALL_MS);
    };
    covered(&mut lock);
    for _ in 0..3 {
        lock.granted_for("short", Read, 1000);
        covered(&mut lock);
        lock.renewed("short", 2000);
        covered(&mut lock);
        lock.granted_for("other", Read, 1000);
        lock.contended("w", Write);
        lock.leave("short");
        covered(&mut lock);
        lock.leave("nobody");
        lock.renew("nobody", 1);
        lock.leave("other");
        covered(&mut lock);
    }
    assert_eq!(lock.inspect().ids(), ["long"]);
}

fn keys_of_another_type_stay_untouched(mut lock: Lock) {
    let clean = lock.keys.clone();
    for key in &clean {
        for other in
            [vec!["SET", key, "v"], vec!["HSET", key, "f", "v"], vec!["ZADD", key, "1", "m"], vec!["RPUSH", key, "v"]]
        {
            let right = match lock.scheme {
                Scheme::Hash => "HSET",
                Scheme::TwoKey if *key == clean[0] => "ZADD",
                Scheme::TwoKey => "SET",
            };
            if other[0] == right {
                continue;
            }
            lock.command(&other);
            let stored = lock.snapshot();
            for (script, args) in every_script(&lock) {
                let reply = lock.try_run(script, &args);
                let wrong = matches!(&reply, Reply::Error(text) if text.starts_with("WRONGTYPE"));
                assert!(wrong, "{script} {other:?}: {reply:?}");
                assert_eq!(lock.snapshot(), stored, "{script} {other:?}");
            }
            lock.command(&["DEL", key]);
        }
    }
}

/// Each script with arguments that could succeed.
fn every_script(lock: &Lock) -> Vec<(&'static str, Vec<String>)> {
    let own = |args: &[&str]| args.iter().map(ToString::to_string).collect::<Vec<_>>();
    vec![
        ("acquire", lock.acquire_args("a", Mode::Read, LEASE_MS)),
        ("acquire", lock.acquire_args("a", Mode::Write, LEASE_MS)),
        ("leave", lock.leave_args("a")),
        ("convert", lock.convert_args("a", "b", Mode::Read, Wish::default())),
        ("convert", lock.convert_args("a", "b", Mode::Write, Wish::default())),
        ("renew", own(&["a", "1000"])),
        ("inspect", own(&[])),
        ("force", lock.force_args(&view_of(MAX_TOKEN))),
    ]
}
