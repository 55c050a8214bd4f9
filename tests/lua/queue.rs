//! Waiting in the lock's own queue, and being let in by whoever frees the lock.

use std::collections::BTreeMap;

use cluster_testenv::Reply;
use fastrand::Rng;

use crate::invariants;
use crate::lab::{
    Acquired, LEASE_MS, LONG_MS, Left, Listener, Lock, MOST_RECORDS, Mode, PATIENCE_MS, READ_LIMIT_MS, Read, Renewed,
    Turned, WRITE_LIMIT_MS, Wish, Write, hash_cases,
};

hash_cases!(shared:
    writers_come_in_as_they_came,
    waiting_writer_stops_new_readers_but_not_those_inside,
    after_a_writer_all_waiting_readers_enter,
    after_readers_the_first_writer_enters,
    cancelled_waiters_are_passed_over,
    last_cancelled_writer_lets_readers_join,
    readers_are_cancelled_in_any_order,
    repeat_keeps_the_place_and_the_last_wish_counts,
    impatient_one_is_not_queued,
    holder_is_not_queued_behind_itself,
    claim_is_the_shorter_of_lease_and_patience,
    claimed_hold_gets_its_lease,
    dead_writer_lets_the_next_in_when_somebody_asks,
    dead_waiter_is_passed_over,
    dead_waiter_in_the_middle_begins_anew_at_the_end,
    own_dead_record_does_not_come_in_twice,
    leaving_of_a_stranger_settles_the_lock,
    renewal_lets_nobody_in,
    force_lets_the_next_in,
    blocks_of_tokens_do_not_overlap,
    blocks_do_not_run_ahead_of_the_clock,
    tokens_grow_across_a_loss_at_full_speed,
    queue_leaves_nothing_behind,
    whole_patience_is_covered,
    holder_makes_the_hash_a_table,
    waiting_writer_makes_the_hash_a_table,
    eighth_waiting_reader_makes_the_hash_a_table,
    dead_waiters_are_removed_some_at_a_time,
    live_waiter_behind_many_dead_ones_comes_in,
    readers_left_behind_come_before_writers,
    notices_are_exact,
    asker_is_told_by_its_answer_only,
    notices_without_the_right_do_not_undo,
    their_writer_keeps_all_waiters_out,
    their_reader_keeps_a_waiting_writer_out_and_those_behind_it,
    their_reader_beside_our_writer_keeps_the_next_one_out,
    their_covered_reader_counts_until_its_limit,
    their_covered_reader_outlives_our_dead_ones,
    their_reader_beside_waiting_readers_is_covered,
    stamps_are_ours_after_a_hand_over,
    random_operations_keep_the_invariants,
    random_operations_beside_published_clients_keep_the_invariants,
);

/// They count what the server does, and need it for themselves.
mod on_a_server_of_its_own {
    use super::*;

    hash_cases!(alone: whole_turn_of_readers_is_in_before_the_next_writer);
}

impl Lock {
    pub(crate) fn holders(&mut self) -> Vec<String> {
        let view = self.inspect();
        view.ids().into_iter().map(str::to_owned).collect()
    }

    pub(crate) fn waiters(&mut self) -> Vec<String> {
        let view = self.inspect();
        view.waiting().into_iter().map(str::to_owned).collect()
    }
}

fn writers_come_in_as_they_came(mut lock: Lock) {
    let first = lock.granted("w", Write);
    for id in ["a", "b", "c"] {
        assert!((LEASE_MS / 2..=LEASE_MS).contains(&lock.queued(id, Write)));
    }
    assert_eq!(lock.waiters(), ["a", "b", "c"]);
    let mut last = first;
    for (left, next) in [("w", "a"), ("a", "b"), ("b", "c")] {
        assert_eq!(lock.leave(left), Left::Held);
        assert_eq!(lock.holders(), [next]);
        let token = lock.granted(next, Write);
        assert!(token > last);
        last = token;
    }
    assert_eq!(lock.leave("c"), Left::Held);
    assert_eq!((lock.holders(), lock.waiters()), (vec![], vec![]));
}

fn waiting_writer_stops_new_readers_but_not_those_inside(mut lock: Lock) {
    let token = lock.granted("a", Read);
    lock.queued("w", Write);
    for _ in 0..2 {
        let again = lock.acquire("a", Read, LEASE_MS);
        assert!(matches!(again, Acquired::Granted { token: same, waited_for: true, .. } if same == token));
        assert!((LEASE_MS / 2..=LEASE_MS).contains(&lock.queued("b", Read)));
        lock.contended("c", Read);
        lock.contended("v", Write);
    }
    assert_eq!(lock.waiters(), ["w", "b"]);
    assert_eq!(lock.leave("a"), Left::Held);
    assert_eq!((lock.holders(), lock.waiters()), (vec!["w".to_owned()], vec!["b".to_owned()]));
}

fn after_a_writer_all_waiting_readers_enter(mut lock: Lock) {
    lock.granted("w", Write);
    for id in ["a", "v", "b", "c"] {
        lock.queued(id, if id == "v" { Write } else { Read });
    }
    lock.leave("w");
    assert_eq!(lock.holders(), ["a", "b", "c"]);
    let token = lock.inspect().token;
    for id in ["a", "b", "c"] {
        let claim = lock.acquire(id, Read, LEASE_MS);
        assert!(matches!(claim, Acquired::Granted { token: same, waited_for: true, .. } if same == token));
    }
    lock.queued("d", Read);
    for id in ["a", "b", "c"] {
        assert_eq!(lock.leave(id), Left::Held);
    }
    assert_eq!((lock.holders(), lock.waiters()), (vec!["v".to_owned()], vec!["d".to_owned()]));
    assert!(lock.inspect().token > token);
}

fn after_readers_the_first_writer_enters(mut lock: Lock) {
    lock.granted("a", Read);
    lock.granted("dead", Read);
    for (id, mode) in [("w", Write), ("b", Read), ("v", Write)] {
        lock.queued(id, mode);
    }
    lock.expire("dead");
    lock.leave("a");
    assert_eq!((lock.holders(), lock.waiters()), (vec!["w".to_owned()], vec!["v".to_owned(), "b".to_owned()]));
}

fn cancelled_waiters_are_passed_over(mut lock: Lock) {
    for order in [[1, 2, 0], [0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        lock.granted("w", Write);
        let mut left = vec!["a", "b", "c", "d"];
        left.iter().for_each(|id| _ = lock.queued(id, Write));
        for place in order {
            let id = left.remove(place.min(left.len() - 1));
            assert_eq!(lock.leave(id), Left::Queued);
            assert_eq!(lock.leave(id), Left::None { forced: 0 });
            assert_eq!(lock.waiters(), left);
        }
        lock.queued("e", Write);
        lock.leave("w");
        assert_eq!(lock.holders(), left);
        lock.leave(left[0]);
        lock.leave("e");
    }
}

fn last_cancelled_writer_lets_readers_join(mut lock: Lock) {
    let token = lock.granted("a", Read);
    lock.queued("w", Write);
    lock.queued("b", Read);
    lock.queued("c", Read);
    assert_eq!(lock.leave("w"), Left::Queued);
    assert_eq!(lock.holders(), ["a", "b", "c"]);
    assert_eq!(lock.granted("c", Read), token, "they share the phase");
}

fn readers_are_cancelled_in_any_order(mut lock: Lock) {
    for order in [[0, 0, 0, 0], [3, 2, 1, 0], [1, 2, 0, 0], [2, 0, 1, 0]] {
        lock.granted("w", Write);
        let mut left = vec!["a", "b", "c", "d"];
        left.iter().for_each(|id| _ = lock.queued(id, Read));
        for place in order {
            assert_eq!(lock.leave(left.remove(place)), Left::Queued);
            let mut waiters = lock.waiters();
            waiters.sort_unstable();
            assert_eq!(waiters, left);
        }
        lock.leave("w");
    }
}

fn repeat_keeps_the_place_and_the_last_wish_counts(mut lock: Lock) {
    lock.granted("w", Write);
    lock.queued("a", Write);
    lock.queued("b", Write);
    lock.queued("c", Read);
    let since: BTreeMap<_, _> = lock.inspect().waiters.into_iter().map(|waiter| (waiter.id, waiter.since_ms)).collect();
    let wish = Wish { lease_ms: LONG_MS, patience_ms: 2 * PATIENCE_MS, turns: 9, ..Wish::default() };
    for (id, mode) in [("a", Write), ("c", Read)] {
        assert!(matches!(lock.ask(id, mode, wish), Acquired::Queued { .. }));
        let until_ms = lock.field_ms(&format!("U{id}"));
        lock.queued(id, mode);
        assert_eq!(lock.field_ms(&format!("U{id}")), until_ms, "never shortened");
        assert!(matches!(lock.ask(id, mode, wish), Acquired::Queued { .. }));
    }
    for waiter in lock.inspect().waiters {
        assert_eq!(waiter.since_ms, since[&waiter.id]);
    }
    assert_eq!(lock.waiters(), ["a", "b", "c"]);
    lock.leave("w");
    assert_eq!(lock.holders(), ["c"]);
    lock.leave("c");
    let holder = &lock.inspect().holders[0];
    assert_eq!(holder.id, "a");
    assert!(holder.remaining_ms > PATIENCE_MS);
    assert!(matches!(lock.ask("a", Write, Wish::default()), Acquired::Granted { turns: 9, .. }));
}

fn impatient_one_is_not_queued(mut lock: Lock) {
    lock.granted("w", Write);
    lock.contended("a", Write);
    lock.contended("b", Read);
    assert_eq!(lock.waiters(), [""; 0]);
    lock.queued("a", Write);
    lock.contended("a", Write);
    assert_eq!(lock.waiters(), ["a"], "its place is not lost by a question");
}

fn holder_is_not_queued_behind_itself(mut lock: Lock) {
    for (held, asked) in [(Read, Write), (Write, Read)] {
        lock.granted("a", held);
        let asked = lock.ask("a", asked, Wish::patient());
        assert!(matches!(asked, Acquired::Contended { .. }), "{asked:?}");
        assert_eq!(lock.waiters(), [""; 0]);
        lock.leave("a");
    }
}

fn claim_is_the_shorter_of_lease_and_patience(mut lock: Lock) {
    for mode in [Read, Write] {
        for (lease_ms, patience_ms) in [(LEASE_MS, LONG_MS), (LONG_MS, LEASE_MS)] {
            lock.granted("w", Write);
            let wish = Wish { lease_ms, patience_ms, ..Wish::default() };
            assert!(matches!(lock.ask("a", mode, wish), Acquired::Queued { .. }));
            lock.leave("w");
            let holder = &lock.inspect().holders[0];
            assert_eq!(holder.id, "a");
            assert!((LEASE_MS / 2..=LEASE_MS).contains(&holder.remaining_ms));
            lock.leave("a");
        }
    }
}

fn claimed_hold_gets_its_lease(mut lock: Lock) {
    for mode in [Read, Write] {
        lock.granted("w", Write);
        lock.queued("a", mode);
        lock.leave("w");
        assert_eq!(lock.renewed("a", LONG_MS), LONG_MS);
        lock.leave("a");
        lock.granted("w", Write);
        lock.queued("a", mode);
        lock.leave("w");
        assert_eq!(lock.granted_for("a", mode, LONG_MS).1, LONG_MS);
        lock.leave("a");
    }
}

fn dead_writer_lets_the_next_in_when_somebody_asks(mut lock: Lock) {
    lock.granted("dead", Write);
    lock.queued("w", Write);
    lock.queued("r", Read);
    lock.expire("dead");
    assert_eq!(lock.renew("dead", LEASE_MS), Renewed::Lost { forced: 0 });
    assert_eq!(lock.holders(), [""; 0]);
    lock.queued("w", Write);
    assert_eq!(lock.holders(), ["r"], "it was a writer that died");
    lock.expire("r");
    lock.queued("s", Read);
    assert_eq!(lock.holders(), ["w"]);
}

fn dead_waiter_is_passed_over(mut lock: Lock) {
    for dead in ["a", "b", "c"] {
        lock.granted("w", Write);
        ["a", "b", "c"].iter().for_each(|id| _ = lock.queued(id, Write));
        lock.expire(dead);
        let live: Vec<_> = ["a", "b", "c"].into_iter().filter(|id| *id != dead).collect();
        assert_eq!(lock.waiters(), live);
        lock.leave("w");
        assert_eq!(lock.holders(), live[..1]);
        lock.leave(live[0]);
        assert_eq!(lock.holders(), live[1..]);
        assert_eq!(lock.leave(dead), Left::None { forced: 0 });
        lock.leave(live[1]);
    }
    // A dead writer stops no reader.
    lock.granted("a", Read);
    lock.queued("w", Write);
    lock.queued("b", Read);
    lock.expire("w");
    lock.granted("c", Read);
    assert_eq!(lock.holders(), ["a", "b", "c"]);
}

fn dead_waiter_in_the_middle_begins_anew_at_the_end(mut lock: Lock) {
    for mode in [Write, Read] {
        lock.granted("w", Write);
        ["a", "b", "c"].iter().for_each(|id| _ = lock.queued(id, mode));
        lock.expire("b");
        let now_ms = lock.now_ms();
        lock.queued("b", mode);
        let view = lock.inspect();
        assert_eq!(view.waiting(), ["a", "c", "b"]);
        assert!(view.waiters[2].since_ms >= now_ms);
        lock.expire("b");
        assert_eq!(lock.leave("b"), Left::None { forced: 0 });
        lock.force();
        lock.force();
        lock.command(&["DEL", &lock.key()]);
    }
}

fn own_dead_record_does_not_come_in_twice(mut lock: Lock) {
    lock.granted("a", Read);
    lock.granted("b", Read);
    for dead in ["a", "b"] {
        lock.expire(dead);
        lock.queued("w", Write);
        lock.queued(dead, Read);
        assert_eq!(lock.leave("w"), Left::Queued);
        assert_eq!(lock.holders(), ["a", "b"]);
    }
}

fn leaving_of_a_stranger_settles_the_lock(mut lock: Lock) {
    lock.granted("dead", Read);
    lock.queued("w", Write);
    lock.expire("dead");
    assert_eq!(lock.leave("stranger"), Left::None { forced: 0 });
    assert_eq!(lock.holders(), ["w"]);
}

fn renewal_lets_nobody_in(mut lock: Lock) {
    lock.granted("a", Read);
    lock.granted("dead", Read);
    lock.queued("w", Write);
    lock.queued("b", Read);
    lock.expire("w");
    lock.expire("dead");
    lock.renewed("a", LEASE_MS);
    assert_eq!(lock.renew("dead", LEASE_MS), Renewed::Lost { forced: 0 });
    assert_eq!((lock.holders(), lock.waiters()), (vec!["a".to_owned()], vec!["b".to_owned()]));
}

fn force_lets_the_next_in(mut lock: Lock) {
    let token = lock.granted("w", Write);
    ["a", "b"].iter().for_each(|id| _ = lock.queued(id, Read));
    lock.queued("v", Write);
    assert_eq!(lock.force(), ["w"]);
    assert_eq!(lock.holders(), ["a", "b"]);
    assert!(lock.inspect().token > token);
    assert_eq!(lock.leave("w"), Left::None { forced: token });
    assert_eq!(lock.force(), ["a", "b"]);
    assert_eq!((lock.holders(), lock.waiters()), (vec!["v".to_owned()], vec![]));
    assert_eq!(lock.force(), ["v"]);
    assert_eq!(lock.holders(), [""; 0]);

    // Behind a foreign stamp, before anybody of ours ever held the lock.
    lock.command(&["DEL", &lock.key()]);
    lock.they_hold(Write);
    lock.queued("a", Read);
    assert_eq!(lock.force(), [""; 0]);
    assert_eq!(lock.holders(), ["a"]);

    // A stamp that came after the look keeps waiters out as before.
    lock.command(&["DEL", &lock.key()]);
    lock.they_hold(Write);
    lock.queued("a", Read);
    let mut seen = lock.inspect();
    seen.foreign_write_ms -= 1;
    assert_eq!(lock.force_seen(&seen), [""; 0]);
    assert_eq!((lock.holders(), lock.waiters()), (vec![], vec!["a".to_owned()]));
    assert!(lock.field("write").is_some());
}

fn blocks_of_tokens_do_not_overlap(mut lock: Lock) {
    let wish = |turns| Wish { turns, ..Wish::patient() };
    let Acquired::Granted { turns, .. } = lock.ask("first", Write, wish(64)) else { panic!("granted") };
    assert_eq!(turns, 1, "a key that remembers nothing gives one");
    lock.leave("first");
    lock.pass_us(64);
    let Acquired::Granted { token, turns, .. } = lock.ask("a", Write, wish(64)) else { panic!("granted") };
    assert_eq!(turns, 64);
    let again = lock.ask("a", Write, wish(1));
    assert!(matches!(again, Acquired::Granted { token: same, turns: 64, .. } if same == token), "{again:?}");
    assert_eq!(lock.inspect().token, token + 63);
    for (id, asked) in [("b", 0), ("c", 1), ("d", 5), ("e", 1000)] {
        lock.ask(id, Write, wish(asked));
    }
    let mut last = token + 63;
    for (left, next, expected) in [("a", "b", 1), ("b", "c", 1), ("c", "d", 5), ("d", "e", 64)] {
        lock.pass_us(64);
        lock.leave(left);
        let Acquired::Granted { token, turns, .. } = lock.ask(next, Write, wish(1)) else { panic!("granted") };
        assert!(token > last);
        assert_eq!(turns, expected);
        last = token + turns - 1;
        assert_eq!(lock.inspect().token, last);
    }
    lock.leave("e");
    assert!(lock.granted("r", Read) > last);

    // The same where a stamp of theirs is left.
    lock.command(&["DEL", &lock.key()]);
    let past_ms = lock.now_ms() - WRITE_LIMIT_MS - 1;
    lock.set_field("write", past_ms);
    let Acquired::Granted { turns, .. } = lock.ask("first", Write, wish(64)) else { panic!("granted") };
    assert_eq!(turns, 1, "a key that remembers nothing gives one");
}

impl Lock {
    /// Waits until the server's clock is so far ahead of the last token.
    pub(crate) fn pass_us(&mut self, us: i64) {
        let last: i64 = self.field("t").expect("a token").parse().expect("a number");
        while self.server_us() <= last + us {}
    }
}

/// As many grants as the server can do, then the key is lost.
fn tokens_grow_across_a_loss_at_full_speed(mut lock: Lock) {
    let wish = Wish { turns: 64, ..Wish::default() };
    let (take, give) = (lock.wish_args("a", Write, wish), lock.leave_args("a"));
    let pairs: Vec<_> = (0..500).flat_map(|_| [("acquire", take.clone()), ("leave", give.clone())]).collect();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(2);
    let (mut last, mut clock_us) = (0, 0);
    while std::time::Instant::now() < until {
        for reply in lock.pipeline(&pairs).iter().step_by(2) {
            let words: Vec<i64> = words(reply).iter().skip(2).map(|word| word.parse().expect("a number")).collect();
            let [seconds, micros, last_token, turns, ..] = words[..] else { panic!("{reply:?}") };
            assert!(last_token - turns >= last, "tokens grow");
            last = last_token;
            let now_us = seconds * 1_000_000 + micros;
            // A clock that was set back some microseconds is passed by one token for each grant.
            clock_us = now_us.max(clock_us + 1);
            assert!(last <= clock_us, "{} us ahead of the clock", last - now_us);
        }
    }
    let key = lock.key();
    lock.command(&["DEL", &key]);
    assert!(lock.granted("b", Write) > last);
}

fn words(reply: &Reply) -> Vec<String> {
    reply.text().expect("a text").split(' ').map(str::to_owned).collect()
}

fn blocks_do_not_run_ahead_of_the_clock(mut lock: Lock) {
    let ahead = lock.server_us() + 3_600_000_000;
    lock.set_last_token(ahead);
    let wish = Wish { turns: 64, ..Wish::patient() };
    let granted = lock.ask("a", Write, wish);
    assert!(matches!(granted, Acquired::Granted { token, turns: 1, .. } if token == ahead + 1), "{granted:?}");
    lock.ask("b", Write, wish);
    lock.leave("a");
    let granted = lock.ask("b", Write, wish);
    assert!(matches!(granted, Acquired::Granted { token, turns: 1, .. } if token == ahead + 2), "{granted:?}");
    // And by the long way: of two who wait, after a death, by a conversion.
    for id in ["c", "d"] {
        lock.ask(id, Write, wish);
    }
    lock.leave("b");
    let granted = lock.ask("c", Write, wish);
    assert!(matches!(granted, Acquired::Granted { token, turns: 1, .. } if token == ahead + 3), "{granted:?}");
    lock.leave("d");
    lock.expire("c");
    let granted = lock.ask("e", Write, wish);
    assert!(matches!(granted, Acquired::Granted { token, turns: 1, .. } if token == ahead + 4), "{granted:?}");
    lock.turned("e", "r", Read);
    let turned = lock.turn("r", "w", Write, wish);
    assert!(matches!(turned, Turned::Granted { token, turns: 1, .. } if token == ahead + 6), "{turned:?}");
}

fn queue_leaves_nothing_behind(mut lock: Lock) {
    lock.granted("w", Write);
    for (id, mode) in [("a", Write), ("b", Read), ("c", Read), ("d", Write)] {
        lock.queued(id, mode);
    }
    for id in ["w", "b", "c", "a", "d"] {
        assert_eq!(lock.leave(id), Left::Held);
    }
    let fields = invariants::fields(&mut lock);
    assert_eq!(fields.keys().collect::<Vec<_>>(), ["b", "t"]);
}

fn whole_patience_is_covered(mut lock: Lock) {
    let wish = Wish { patience_ms: LONG_MS, ..Wish::default() };
    let before_ms = lock.now_ms();
    lock.granted("w", Write);
    lock.ask("a", Write, wish);
    lock.ask("b", Read, wish);
    lock.queued("c", Write);
    for _ in 0..2 {
        lock.renewed("w", LEASE_MS);
        lock.assert_covered_until(before_ms + LONG_MS);
        lock.granted("w", Write);
        lock.assert_covered_until(before_ms + LONG_MS);
        lock.queued("c", Write);
        lock.leave("c");
        lock.contended("d", Read);
        lock.assert_covered_until(before_ms + LONG_MS);
    }
    lock.leave("w");
    lock.renewed("b", LEASE_MS);
    lock.assert_covered_until(before_ms + LONG_MS);
    lock.granted("b", Read);
    lock.assert_covered_until(before_ms + LONG_MS);
    lock.leave("b");
    assert_eq!(lock.field("u"), None, "nobody waits any more");
}

impl Lock {
    fn encoding(&mut self) -> String {
        let key = self.key();
        let encoding = self.command(&["OBJECT", "ENCODING", &key]);
        encoding.text().expect("a text").into_owned()
    }
}

/// Headers with an id are long, with one as long as those of managers are.
fn holder_makes_the_hash_a_table(mut lock: Lock) {
    for mode in [Read, Write] {
        lock.granted(&own(1), mode);
        assert_eq!(lock.encoding(), "hashtable");
        lock = lock.lab.lock(lock.scheme);
    }
}

/// The same behind somebody who does not know us.
fn waiting_writer_makes_the_hash_a_table(mut lock: Lock) {
    let now_ms = lock.now_ms();
    lock.set_field("write", now_ms);
    lock.queued(&own(1), Read);
    assert_eq!(lock.encoding(), "listpack");
    lock.queued(&own(2), Write);
    assert_eq!(lock.encoding(), "hashtable");
}

fn eighth_waiting_reader_makes_the_hash_a_table(mut lock: Lock) {
    lock.granted("w", Write);
    for n in 1..10 {
        lock.queued(&n.to_string(), Read);
        assert_eq!(lock.encoding(), if n < 8 { "listpack" } else { "hashtable" }, "{n} wait");
    }
}

/// So many that no script could remove them all.
const CROWD: usize = 10_000;

impl Lock {
    /// A queue of dead ones, without asking the server for each.
    fn crowd(&mut self, mode: Mode, count: usize, until_ms: i64) {
        let key = self.key();
        let (until, since) = (until_ms.to_string(), (self.now_ms() - 1).to_string());
        let mut fields: Vec<String> = Vec::new();
        let mut add = |name: String, value: &str| fields.extend([name, value.to_owned()]);
        for n in 1..=count {
            let id = own(n);
            add(format!("U{id}"), &format!("{until} {LEASE_MS} {since} 1"));
            if mode == Read {
                add(format!("y{n}"), &id);
                add(format!("Q{id}"), &format!("y{n}"));
                continue;
            }
            add(format!("P{id}"), &if n == 1 { "-".to_owned() } else { own(n - 1) });
            add(format!("N{id}"), &if n == count { "-".to_owned() } else { own(n + 1) });
        }
        let header = match mode {
            Read => format!("2 {until} x 0 {count} 0 - -"),
            Write => format!("2 {until} x 0 0 {count} {} {}", own(1), own(count)),
        };
        add("u".to_owned(), &header);
        for part in fields.chunks(1000) {
            let part: Vec<_> = part.iter().map(String::as_str).collect();
            self.command(&[&["HSET", &key][..], &part].concat());
        }
    }
}

fn dead_waiters_are_removed_some_at_a_time(mut lock: Lock) {
    for mode in [Write, Read] {
        lock.granted("w", Write);
        let past_ms = lock.now_ms() - 1;
        lock.crowd(mode, CROWD, past_ms);
        assert_eq!(lock.leave("w"), Left::Held);
        let args = lock.leave_args("stranger");
        let mut scripts = 1;
        let key = lock.key();
        while lock.int(&["HEXISTS", &key, "u"]) == 1 {
            lock.try_run("leave", &args);
            scripts += 1;
        }
        assert_eq!(scripts, CROWD.div_ceil(MOST_RECORDS), "{mode:?}");
        assert_eq!(invariants::fields(&mut lock).into_keys().collect::<Vec<_>>(), ["b", "t"]);
    }
}

/// Whoever asks meanwhile is told to ask again at once.
fn live_waiter_behind_many_dead_ones_comes_in(mut lock: Lock) {
    lock.granted("w", Write);
    let past_ms = lock.now_ms() - 1;
    lock.crowd(Write, 250, past_ms);
    lock.queued("next", Write);
    lock.leave("w");
    assert_eq!(lock.contended("impatient", Read), 1);
    assert_eq!(lock.holders(), [""; 0]);
    lock.contended("impatient", Write);
    assert_eq!(lock.holders(), ["next"]);

    // Dead readers have their turn, and it is over.
    let past_ms = lock.now_ms() - 1;
    lock.crowd(Read, 120, past_ms);
    lock.queued("last", Write);
    lock.leave("next");
    assert_eq!(lock.holders(), [""; 0]);
    assert!(lock.contended("impatient", Write) > 1);
    assert_eq!(lock.holders(), ["last"]);
}

impl Lock {
    /// How many readers are recorded.
    fn readers(&mut self) -> usize {
        let key = self.key();
        let header = self.command(&["HGET", &key, "h"]);
        let header = header.text().unwrap_or_default();
        let mut words = header.split(' ').skip(1);
        if words.next() != Some("r") {
            return 0;
        }
        words.next().and_then(|count| count.parse().ok()).expect("a number")
    }
}

/// 5,000 readers and 50 writers wait, and readers that come later. Whoever is woken asks, and nobody else does.
fn whole_turn_of_readers_is_in_before_the_next_writer(mut lock: Lock) {
    const READERS: usize = 5000;
    lock.granted("w", Write);
    let until_ms = lock.now_ms() + LEASE_MS;
    lock.crowd(Read, READERS, until_ms);
    for n in 0..50 {
        let args = lock.wish_args(&format!("writer.{n}"), Write, Wish::patient());
        lock.try_run("acquire", &args);
    }
    let mut listener = Listener::new(&lock, &lock.wake_channel(MANAGER));
    let mut slowest = Vec::new();
    let mut next: Option<String> = None;
    let args = lock.leave_args("w");
    let mut scripts = 0;
    loop {
        lock.command(&["CONFIG", "RESETSTAT"]);
        let (script, args) = match &next {
            None => ("leave", args.clone()),
            Some(id) => ("acquire", lock.wish_args(id, Read, Wish::patient())),
        };
        let before = lock.readers();
        let reply = lock.try_run(script, &args);
        assert!(reply.error().is_none(), "{reply:?}");
        slowest.push(lock.evalsha_us());
        scripts += 1;
        let entered = lock.readers() - before;
        assert!((1..=MOST_RECORDS).contains(&entered), "{entered} entered");
        // A newcomer is not of this turn, and a writer does not come in.
        if scripts == 3 {
            lock.queued("newcomer", Read);
            lock.queued("writer.0", Write);
        }
        if lock.readers() == READERS {
            break;
        }
        let heard = listener.heard(&mut lock);
        next = heard.into_iter().find(|message| !message.contains(' '));
        assert!(next.is_some(), "somebody is woken while there is more to do");
    }
    assert!(scripts <= READERS.div_ceil(MOST_RECORDS) + 2, "{scripts} scripts");
    invariants::check(&mut lock);
    slowest.sort_unstable();
    println!("of {scripts} scripts the median took {} us", slowest[slowest.len() / 2]);
    lock.queued("writer.0", Write);
    lock.queued("newcomer", Read);
    for n in 1..=READERS {
        let args = lock.leave_args(&own(n));
        lock.try_run("leave", &args);
    }
    assert_eq!(lock.holders(), ["writer.0"]);
    lock.leave("writer.0");
    assert_eq!(lock.holders(), ["newcomer"], "it waited when this writer left");
}

/// What is left of a turn is remembered, however many writers and newcomers come.
fn readers_left_behind_come_before_writers(mut lock: Lock) {
    lock.granted("w", Write);
    let until_ms = lock.now_ms() + LEASE_MS;
    lock.crowd(Read, 200, until_ms);
    lock.queued("v", Write);
    lock.leave("w");
    let first = lock.inspect();
    assert_eq!(first.holders.len(), MOST_RECORDS - MOST_RECORDS / 2);
    assert_eq!(first.more_holders as usize, MOST_RECORDS / 2);
    // Those inside leave. The last one's release lets more in, and not the writer.
    for round in 1..=2 {
        for n in 1..=200 {
            let id = own(n);
            let key = lock.key();
            if lock.int(&["HEXISTS", &key, &format!("R{id}")]) == 1 {
                let args = lock.leave_args(&id);
                lock.try_run("leave", &args);
            }
        }
        assert_eq!(lock.field("W").is_some(), round == 2);
    }
    assert_eq!(lock.holders(), ["v"]);
}

/// Its channel has the first 32 characters of the id.
const MANAGER: &str = "0123456789abcdef0123456789abcdef";

fn own(n: usize) -> String {
    format!("{MANAGER}.{n}.label")
}

impl Lock {
    pub(crate) fn wake_channel(&self, manager: &str) -> String {
        format!("{}:wake:{manager}", self.key())
    }
}

fn notices_are_exact(mut lock: Lock) {
    let mut listener = Listener::new(&lock, &lock.wake_channel(MANAGER));
    lock.granted("w", Write);
    let wish = Wish { turns: 9, ..Wish::patient() };
    lock.ask(&own(1), Write, wish);
    lock.queued(&own(2), Write);
    lock.queued("somebody.else's", Write);
    lock.queued(&own(3), Read);
    lock.queued(&own(4), Read);
    assert_eq!(listener.heard(&mut lock), [""; 0]);

    let expect = |lock: &mut Lock, ids: &[String], turns: i64, waiting: u8| -> Vec<String> {
        let view = lock.inspect();
        let message = |id: &String| {
            let field = if turns > 1 { "D".to_owned() } else { format!("R{id}") };
            let deadline_ms = lock.field(&field).or_else(|| lock.field("D")).expect("it holds");
            let server_us = view.token; // A phase begins at the server's time, and its tokens reach back.
            let last = view.token;
            format!("{id} {last} {turns} {deadline_ms} {server_us} {waiting}")
        };
        ids.iter().map(message).collect()
    };
    lock.leave("w");
    let mut heard = listener.heard(&mut lock);
    heard.sort();
    assert_eq!(heard, expect(&mut lock, &[own(3), own(4)], 1, 1));
    lock.leave(&own(3));
    lock.leave(&own(4));
    assert_eq!(listener.heard(&mut lock), expect(&mut lock, &[own(1)], 9, 1));
    lock.leave(&own(1));
    assert_eq!(listener.heard(&mut lock), expect(&mut lock, &[own(2)], 1, 1));
    lock.leave(&own(2));
    assert_eq!(listener.heard(&mut lock), [""; 0], "that one has another channel");
    lock.queued(&own(5), Write);
    lock.leave("somebody.else's");
    assert_eq!(listener.heard(&mut lock), expect(&mut lock, &[own(5)], 1, 0));

    // Round numbers, which a shortest form would write as an exponent.
    lock.queued(&own(6), Write);
    let round = (lock.server_us() / 100_000_000_000_000 + 2) * 100_000_000_000_000;
    lock.set_last_token(round - 1);
    lock.leave(&own(5));
    let heard = listener.heard(&mut lock).concat();
    assert!(heard.starts_with(&format!("{} {round} 1 ", own(6))), "{heard}");
}

fn asker_is_told_by_its_answer_only(mut lock: Lock) {
    let mut listener = Listener::new(&lock, &lock.wake_channel(MANAGER));
    for mode in [Read, Write] {
        lock.granted("dead", Write);
        lock.queued(&own(1), mode);
        lock.queued(&own(2), mode);
        lock.expire("dead");
        let granted = lock.ask(&own(1), mode, Wish::patient());
        assert!(matches!(granted, Acquired::Granted { remaining_ms: LEASE_MS, .. }), "{granted:?}");
        let heard = listener.heard(&mut lock);
        assert_eq!(heard.len(), usize::from(mode == Read), "{heard:?}");
        lock.force();
        lock.force();
        listener.heard(&mut lock);
    }
}

fn notices_without_the_right_do_not_undo(mut lock: Lock) {
    let user = lock.channel.replace(' ', "-");
    let rights = ["on", ">pw", "~*", "+@all", "resetchannels"];
    lock.command(&[&["ACL", "SETUSER", &user][..], &rights].concat());
    lock.command(&["AUTH", &user, "pw"]);
    lock.granted("w", Write);
    lock.queued("a", Write);
    lock.queued("b", Read);
    assert_eq!(lock.leave("w"), Left::Held);
    assert_eq!(lock.leave("b"), Left::Held);
    assert_eq!(lock.holders(), ["a"]);
}

fn their_writer_keeps_all_waiters_out(mut lock: Lock) {
    let stamp_ms = lock.they_hold(Write);
    for (id, mode) in [("w", Write), ("r", Read)] {
        assert!((WRITE_LIMIT_MS / 2..=WRITE_LIMIT_MS + 1).contains(&lock.queued(id, mode)));
    }
    lock.leave("stranger");
    lock.contended("s", Read);
    assert_eq!((lock.holders(), lock.waiters()), (vec![], vec!["w".to_owned(), "r".to_owned()]));
    assert_eq!(lock.field_ms("write"), stamp_ms);
    lock.they_leave(Write, stamp_ms);
    lock.queued("r", Read);
    assert_eq!(lock.holders(), ["w"], "nobody knows who was last: writers first");
    lock.leave("w");
    assert_eq!(lock.holders(), ["r"]);

    // A dead stamp is in nobody's way.
    lock.queued("w", Write);
    lock.expire("r");
    let dead_ms = lock.now_ms() - WRITE_LIMIT_MS - READ_LIMIT_MS;
    lock.set_field("write", dead_ms);
    lock.set_field("read", dead_ms);
    lock.leave("stranger");
    assert_eq!(lock.holders(), ["w"]);
}

fn their_reader_keeps_a_waiting_writer_out_and_those_behind_it(mut lock: Lock) {
    for covered in [false, true] {
        let stamp_ms = lock.they_hold(Read);
        if covered {
            lock.granted("a", Read);
        }
        lock.queued("w", Write);
        if covered {
            lock.leave("a");
        }
        assert!((READ_LIMIT_MS / 2..=READ_LIMIT_MS + 1).contains(&lock.queued("w", Write)));
        assert!((READ_LIMIT_MS / 2..=READ_LIMIT_MS + 1).contains(&lock.queued("r", Read)));
        assert_eq!((lock.holders(), lock.waiters()), (vec![], vec!["w".to_owned(), "r".to_owned()]));
        assert_eq!(lock.field_ms("read"), stamp_ms);
        lock.they_leave(Read, stamp_ms);
        lock.queued("r", Read);
        assert_eq!(lock.holders(), ["w"]);
        lock.leave("w");
        lock.leave("r");
    }
    // Beside a dead reader of ours, which covered it.
    let stamp_ms = lock.they_hold(Read);
    lock.granted("dead", Read);
    lock.queued("w", Write);
    lock.expire("dead");
    lock.queued("w", Write);
    assert_eq!(lock.holders(), [""; 0]);
    assert!(lock.contended("v", Write) > READ_LIMIT_MS / 2);
    lock.leave("dead");
    assert_eq!(lock.field_ms("read"), stamp_ms, "their stamp is back");
    lock.they_leave(Read, stamp_ms);
    lock.queued("r", Read);
    assert_eq!(lock.holders(), ["w"]);
}

/// It came in by a clock that is far ahead.
fn their_reader_beside_our_writer_keeps_the_next_one_out(mut lock: Lock) {
    lock.granted("w", Write);
    lock.queued("a", Write);
    let stamp_ms = lock.now_ms();
    lock.set_field("read", stamp_ms);
    assert_eq!(lock.leave("w"), Left::Held);
    assert_eq!((lock.holders(), lock.waiters()), (vec![], vec!["a".to_owned()]));
    lock.they_leave(Read, stamp_ms);
    lock.leave("stranger");
    assert_eq!(lock.holders(), ["a"]);
}

fn their_covered_reader_counts_until_its_limit(mut lock: Lock) {
    for dead in [false, true] {
        lock.they_hold(Read);
        lock.granted("a", Read);
        lock.queued("w", Write);
        if dead {
            let covered_ms = lock.field_ms("v");
            lock.set_field("v", covered_ms - READ_LIMIT_MS - 1);
        } else {
            // Another one came and left: nothing stands in `read`.
            let stamp_ms = lock.now_ms() + 1;
            assert!(lock.their_lock(Read, stamp_ms));
            lock.they_leave(Read, stamp_ms);
        }
        assert_eq!(lock.leave("a"), Left::Held);
        assert_eq!(lock.holders().is_empty(), !dead);
        lock.leave("w");
        lock.force();
    }
}

fn their_covered_reader_outlives_our_dead_ones(mut lock: Lock) {
    let stamp_ms = lock.they_hold(Read);
    lock.granted("dead", Read);
    lock.queued("w", Write);
    lock.queued("r", Read);
    lock.expire("dead");
    lock.expire("r");
    // The waiting reader would have come in: so ours are looked at, and all are dead.
    assert_eq!(lock.leave("w"), Left::Queued);
    assert_eq!((lock.field("a"), lock.field("v")), (None, None));
    assert_eq!(lock.field_ms("read"), stamp_ms, "their stamp is back");
    assert!(lock.contended("w", Write) > READ_LIMIT_MS / 2);
}

fn their_reader_beside_waiting_readers_is_covered(mut lock: Lock) {
    lock.granted("w", Write);
    lock.queued("r", Read);
    // Their clock runs ahead: they got in beside our dead writer.
    let stamp_ms = lock.now_ms();
    lock.set_field("read", stamp_ms);
    lock.leave("w");
    assert_eq!(lock.holders(), ["r"]);
    assert_eq!(lock.field_ms("v"), stamp_ms);
    assert_eq!(lock.field("read"), lock.field("m"));
    lock.they_leave(Read, stamp_ms);
    let now_ms = lock.now_ms();
    assert!(!lock.their_lock(Write, now_ms));
}

fn stamps_are_ours_after_a_hand_over(mut lock: Lock) {
    for mode in [Read, Write] {
        lock.granted("w", Write);
        lock.queued("a", mode);
        lock.queued("b", mode);
        lock.leave("w");
        let now_ms = lock.now_ms();
        assert!(!lock.their_lock(Write, now_ms));
        assert_eq!(lock.their_lock(Read, now_ms), mode == Read);
        lock.force();
        lock.force();
        let now_ms = lock.now_ms();
        assert!(lock.their_lock(Write, now_ms));
        lock.force();
    }
}

/// Any of twelve, of whom the first half reads.
fn anybody(rng: &mut Rng) -> (String, Mode) {
    let n = rng.u32(..12);
    (format!("m.{n}.label"), if n < 6 { Read } else { Write })
}

/// One operation, and whose hold it may have ended.
fn step(lock: &mut Lock, rng: &mut Rng) -> Option<String> {
    let (id, mode) = anybody(rng);
    let wish = Wish { patience_ms: rng.i64(0..3) * PATIENCE_MS, turns: rng.i64(1..70), ..Wish::default() };
    match rng.u32(..20) {
        0..9 => _ = lock.ask(&id, mode, wish),
        9..12 => {
            lock.leave(&id);
            return Some(id);
        }
        12..14 => _ = lock.renew(&id, LEASE_MS),
        14..16 => {
            let (new, mode) = anybody(rng);
            lock.turn(&id, &new, mode, wish);
            return Some(id);
        }
        16..19 => {
            let view = lock.inspect();
            let known: Vec<_> = view.ids().into_iter().chain(view.waiting()).map(str::to_owned).collect();
            let id = rng.choice(known)?;
            lock.expire(&id);
            return Some(id);
        }
        _ => _ = lock.leave("stranger"),
    }
    None
}

fn random_operations_keep_the_invariants(mut lock: Lock) {
    for seed in 0..6 {
        let mut rng = Rng::with_seed(seed);
        let (mut before, mut token) = (lock.holders(), 0);
        for _ in 0..200 {
            let ended = step(&mut lock, &mut rng);
            let view = lock.inspect();
            assert!(view.token >= token);
            token = view.token;
            let holders = lock.holders();
            let kept = before.iter().filter(|id| Some(*id) != ended.as_ref());
            kept.for_each(|id| assert!(holders.contains(id), "{id} is cut off: {holders:?}"));
            before = holders;
        }
        // Whoever waits comes in when all before it have left.
        lock.leave("stranger");
        while let [first, ..] = &lock.holders()[..] {
            lock.leave(first);
        }
        assert_eq!(lock.waiters(), [""; 0]);
        lock = lock.lab.lock(lock.scheme);
    }
}

fn random_operations_beside_published_clients_keep_the_invariants(mut lock: Lock) {
    for seed in 0..6 {
        let mut rng = Rng::with_seed(seed);
        let mut theirs = Vec::new();
        for _ in 0..200 {
            match rng.u32(..12) {
                0 => {
                    let mode = if rng.bool() { Read } else { Write };
                    // A clock of their own: some stamps are dead when they are written.
                    let stamp_ms = lock.now_ms() - rng.i64(0..2 * WRITE_LIMIT_MS);
                    if lock.their_lock(mode, stamp_ms) {
                        theirs.push((mode, stamp_ms));
                    }
                }
                1 if !theirs.is_empty() => {
                    let (mode, stamp_ms) = theirs.swap_remove(rng.usize(..theirs.len()));
                    lock.they_leave(mode, stamp_ms);
                }
                2 => _ = lock.force(),
                _ => _ = step(&mut lock, &mut rng),
            }
        }
        lock = lock.lab.lock(lock.scheme);
    }
}
