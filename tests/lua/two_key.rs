//! What only the two-key scheme has: the writer's string, dead members, and waiters that are told to ask again.

use crate::{
    invariants,
    lab::{
        Acquired, HEARD, LEASE_MS, LONG_MS, Left, Listener, Lock, Mode, RESERVED_MS, Read, Renewed, Turned, Wish,
        Write, two_key_cases,
    },
};

two_key_cases!(shared:
    release_tells_the_first_waiting_writer_alone,
    nobody_passes_whoever_was_told,
    whoever_does_not_come_is_passed_and_forgotten,
    repeat_keeps_the_place_and_silence_loses_it,
    waiting_writer_stops_new_readers,
    readers_that_waited_come_in_after_a_writer,
    readers_beyond_a_hundred_are_told_as_a_chain,
    dead_waiters_are_skipped_a_hundred_at_a_time,
    waiter_that_leaves_is_forgotten_and_lets_others_on,
    first_to_find_a_dead_holder_tells_who_is_next,
    force_ends_no_waiting,
    upgrade_is_refused_while_a_writer_waits,
    whoever_holds_does_not_wait_for_itself,
    telling_without_the_right_does_not_undo,
    writers_string_without_ttl_gets_the_callers_lease,
    writers_string_of_a_stranger_blocks_like_one,
    dead_readers_are_removed_at_most_a_hundred_at_a_time,
    readers_key_holds_tokens_alone_in_the_end,
    writers_string_goes_at_its_deadline,
    downgrade_tells_waiting_readers,
    newcomer_does_not_pass_readers_that_are_told_since_a_writer_gave_up,
    new_token_is_not_below_the_floor,
    token_of_a_hold_is_raised_when_that_is_asked_for,
    what_several_servers_have_shown_is_ended_whatever_its_token_is,
    what_was_ended_by_force_elsewhere_is_not_raised_to_life,
);

/// So many are told by one script.
const TOLD: usize = 100;

impl Lock {
    /// Hears what a waiter is told.
    fn ear(&self, id: &str) -> Listener {
        let channel = format!("{}wake:{id}", self.keys[0].strip_suffix("read").expect("the readers' key"));
        Listener::new(self, &channel)
    }

    /// Acquires with a floor.
    fn ask_above(&mut self, id: &str, mode: Mode, floor: &[&str]) -> String {
        let mut args = self.acquire_args(id, mode, LEASE_MS);
        args.extend(floor.iter().map(|&word| word.to_owned()));
        self.try_run("acquire", &args).text().expect("a text").into_owned()
    }

    /// The same, and returns the token.
    fn granted_above(&mut self, id: &str, mode: Mode, floor: &[&str]) -> i64 {
        let reply = self.ask_above(id, mode, floor);
        let words: Vec<_> = reply.split(' ').collect();
        assert_eq!((words[0], words[1], words.len()), ("granted", id, 8), "{reply}");
        words[4].parse().expect("a number")
    }

    /// Ends what several servers have shown, of which this one had shown a token.
    fn force_shown(&mut self, token: i64, highest: i64, ids: &str) -> Vec<String> {
        let args = [&token.to_string(), "0", "0", &highest.to_string(), ids].map(str::to_owned);
        let reply = self.try_run("force", &args);
        let texts = reply.array().expect("an array").iter().map(|text| text.text().expect("a text").into_owned());
        texts.skip(1).collect()
    }

    /// Who of some waiters was told since the last time.
    fn told<'a>(&mut self, ears: &mut [(&'a str, Listener)]) -> Vec<&'a str> {
        let mut told = Vec::new();
        for (id, ear) in ears {
            for heard in ear.heard(self) {
                assert_eq!(heard, *id);
                told.push(*id);
            }
        }
        told
    }

    fn ears<'a, const N: usize>(&self, ids: [&'a str; N]) -> [(&'a str, Listener); N] {
        ids.map(|id| (id, self.ear(id)))
    }

    /// Whoever was told has not come in time.
    fn let_the_reservation_end(&mut self, ids: &[&str]) {
        let (key, past) = (self.key(), (1 - self.now_ms()).to_string());
        assert_eq!(self.int(&["ZADD", &key, "XX", "CH", &past, "#next"]), 1, "it was kept for somebody");
        ids.iter().for_each(|id| self.expire(id));
    }

    fn members_like(&mut self, prefix: &str) -> usize {
        invariants::members(self).keys().filter(|member| member.starts_with(prefix)).count()
    }
}

fn release_tells_the_first_waiting_writer_alone(mut lock: Lock) {
    let mut ears = lock.ears(["a", "b", "c", "t"]);
    lock.granted("w", Write);
    for id in ["a", "b", "c"] {
        assert!(lock.queued(id, Write) > LEASE_MS / 2);
    }
    lock.contended("t", Write);
    assert_eq!(lock.inspect().waiting(), ["a", "b", "c"]);
    lock.renewed("w", LEASE_MS);
    lock.leave("t");
    assert_eq!(lock.told(&mut ears), [""; 0], "nobody can come in");
    for (holder, next) in [("w", "a"), ("a", "b"), ("b", "c")] {
        assert_eq!(lock.leave(holder), Left::Held);
        assert_eq!(lock.told(&mut ears), [next]);
        assert_eq!(lock.leave(holder), Left::None { forced: 0 }, "a late copy");
        assert_eq!(lock.told(&mut ears), [""; 0]);
        lock.granted(next, Write);
        assert_eq!(lock.told(&mut ears), [""; 0]);
    }
    lock.leave("c");
    lock.granted("t", Write);
    assert_eq!(lock.told(&mut ears), [""; 0]);
}

fn nobody_passes_whoever_was_told(mut lock: Lock) {
    lock.granted("w", Write);
    lock.queued("a", Write);
    lock.queued("b", Write);
    lock.leave("w");
    for mode in [Write, Read] {
        assert!((1..=RESERVED_MS).contains(&lock.contended("n", mode)), "kept for a short time");
    }
    assert!(lock.queued("b", Write) <= RESERVED_MS);
    assert!(lock.queued("r", Read) <= RESERVED_MS);
    lock.granted("a", Write);
    assert!(lock.contended("n", Write) > LEASE_MS / 2);
    assert_eq!(lock.inspect().waiting(), ["b", "r"]);
}

fn whoever_does_not_come_is_passed_and_forgotten(mut lock: Lock) {
    let mut ears = lock.ears(["a", "b"]);
    lock.granted("w", Write);
    lock.queued("a", Write);
    lock.queued("b", Write);
    lock.leave("w");
    let believed_ms = -invariants::members(&mut lock)["#u a"] - HEARD - lock.now_ms();
    assert!(believed_ms <= RESERVED_MS, "no longer than the lock is kept: {believed_ms}");
    assert_eq!(lock.told(&mut ears), ["a"]);
    lock.let_the_reservation_end(&["a"]);
    lock.granted("n", Write);
    assert_eq!(lock.inspect().waiting(), ["b"]);
    lock.queued("a", Write);
    lock.leave("n");
    assert_eq!(lock.told(&mut ears), ["b"], "it begins anew at the end");
    lock.granted("b", Write);
    lock.leave("b");
    assert_eq!(lock.told(&mut ears), ["a"]);
}

fn repeat_keeps_the_place_and_silence_loses_it(mut lock: Lock) {
    lock.granted("w", Write);
    for (id, mode) in [("a", Write), ("b", Write), ("q", Read), ("r", Read)] {
        lock.queued(id, mode);
    }
    let before = lock.inspect();
    assert_eq!(before.waiting(), ["a", "b", "q", "r"]);
    lock.queued("a", Write);
    lock.queued("q", Read);
    let shorter = Wish { patience_ms: 1, ..Wish::patient() };
    assert!(matches!(lock.ask("a", Write, shorter), Acquired::Queued { .. }), "never shortened");
    assert_eq!(lock.inspect().waiters, before.waiters);
    lock.expire("a");
    lock.expire("q");
    assert_eq!(lock.inspect().waiting(), ["b", "r"]);
    lock.queued("a", Write);
    lock.queued("q", Read);
    assert_eq!(lock.inspect().waiting(), ["b", "a", "r", "q"]);
}

fn waiting_writer_stops_new_readers(mut lock: Lock) {
    lock.granted("r", Read);
    lock.granted("q", Read);
    lock.queued("a", Write);
    assert!(lock.contended("n", Read) > LEASE_MS / 2);
    let repeats = lock.acquire("r", Read, LEASE_MS);
    assert!(matches!(repeats, Acquired::Granted { waited_for: true, .. }), "{repeats:?}");
    let mut ears = lock.ears(["a", "n"]);
    lock.queued("n", Read);
    lock.leave("r");
    assert_eq!(lock.told(&mut ears), [""; 0]);
    lock.leave("q");
    assert_eq!(lock.told(&mut ears), ["a"]);
    lock.granted("a", Write);
    lock.leave("a");
    assert_eq!(lock.told(&mut ears), ["n"]);
    let enters = lock.ask("n", Read, Wish::patient());
    assert!(matches!(enters, Acquired::Granted { waited_for: false, .. }), "{enters:?}");
    lock.granted("m", Read);
}

fn readers_that_waited_come_in_after_a_writer(mut lock: Lock) {
    let mut ears = lock.ears(["a", "b", "p", "q", "late"]);
    lock.granted("w", Write);
    for (id, mode) in [("a", Write), ("p", Read), ("b", Write), ("q", Read)] {
        lock.queued(id, mode);
    }
    lock.leave("w");
    assert_eq!(lock.told(&mut ears), ["p", "q"]);
    assert!(lock.queued("a", Write) <= RESERVED_MS, "after the readers");
    lock.queued("late", Read);
    let phase = lock.granted("q", Read);
    lock.contended("late", Read);
    assert_eq!(lock.granted("p", Read), phase, "beside the other, though writers wait");
    lock.leave("p");
    lock.leave("q");
    assert_eq!(lock.told(&mut ears), ["a"], "before the reader that came during the readers' turn");
    lock.granted("a", Write);
    lock.leave("a");
    assert_eq!(lock.told(&mut ears), ["late"]);
    lock.granted("late", Read);
    lock.leave("late");
    assert_eq!(lock.told(&mut ears), ["b"]);
    lock.granted("b", Write);
}

fn readers_beyond_a_hundred_are_told_as_a_chain(mut lock: Lock) {
    const WAITING: usize = 2 * TOLD + 50;
    let ids: Vec<String> = (0..WAITING).map(|n| format!("r{n:03}")).collect();
    lock.granted("w", Write);
    for id in &ids {
        lock.queued(id, Read);
    }
    lock.queued("a", Write);
    let mut ears: Vec<_> = ids.iter().map(|id| (id.as_str(), lock.ear(id))).collect();
    lock.leave("w");
    assert_eq!(lock.told(&mut ears), ids[..TOLD]);
    for (entered, id) in ids.iter().enumerate() {
        lock.granted(id, Read);
        let next = ids.get(TOLD + entered);
        assert_eq!(lock.told(&mut ears[..]), next.into_iter().collect::<Vec<_>>(), "{id} tells one more");
    }
    assert_eq!(lock.members_like("#chain"), 0);
    assert_eq!(lock.inspect().waiting(), ["a"]);
}

fn dead_waiters_are_skipped_a_hundred_at_a_time(mut lock: Lock) {
    for mode in [Write, Read] {
        lock.granted("w", Write);
        for n in 0..250 {
            lock.queued(&format!("dead.{n}"), mode);
        }
        lock.queued("a", Write);
        for n in 0..250 {
            lock.expire(&format!("dead.{n}"));
        }
        lock.leave("w");
        assert_eq!(lock.members_like("#u dead"), 150);
        assert_eq!(
            lock.ask("a", Write, Wish::patient()),
            Acquired::Queued { retry_in_ms: 1, is_kept: false },
            "is one alive?"
        );
        assert_eq!(lock.members_like("#u dead"), 50);
        lock.granted("a", Write);
        lock.leave("a");
        lock.granted("n", Write);
        assert_eq!(
            lock.members_like("#"),
            2 + lock.members_like("#forced"),
            "the last and the first token alone are left"
        );
        lock.leave("n");
    }
}

fn waiter_that_leaves_is_forgotten_and_lets_others_on(mut lock: Lock) {
    let mut ears = lock.ears(["a", "b", "r"]);
    lock.granted("w", Write);
    lock.queued("a", Write);
    lock.queued("b", Write);
    lock.leave("w");
    assert_eq!(lock.told(&mut ears), ["a"]);
    assert_eq!(lock.leave("a"), Left::Queued);
    assert_eq!(lock.told(&mut ears), ["b"], "the lock is free");
    assert_eq!(lock.leave("a"), Left::None { forced: 0 });
    assert_eq!(lock.told(&mut ears), [""; 0]);
    assert_eq!(lock.leave("b"), Left::Queued);
    lock.granted("n", Read);
    assert_eq!(lock.members_like("#u"), 0);

    lock.queued("a", Write);
    lock.queued("r", Read);
    assert_eq!(lock.leave("a"), Left::Queued);
    assert_eq!(lock.told(&mut ears), ["r"], "readers are inside");
    lock.granted("r", Read);
    lock.queued("a", Write);
    lock.expire("a");
    assert_eq!(lock.leave("a"), Left::None { forced: 0 }, "it was dead");
    lock.granted("n2", Read);
}

fn newcomer_does_not_pass_readers_that_are_told_since_a_writer_gave_up(mut lock: Lock) {
    let mut ears = lock.ears(["r", "late", "a"]);
    lock.granted("w", Write);
    lock.queued("r", Read);
    lock.queued("a", Write);
    lock.leave("w");
    lock.granted("r", Read);
    lock.queued("late", Read);
    lock.leave("r");
    assert_eq!(lock.told(&mut ears), ["r", "a"]);
    assert_eq!(lock.leave("a"), Left::Queued);
    assert_eq!(lock.told(&mut ears), ["late"]);
    assert!((1..=RESERVED_MS).contains(&lock.contended("n", Write)), "the lock is kept for the reader");
    lock.granted("late", Read);
    assert_eq!(lock.leave("late"), Left::Held);
    lock.granted("n", Write);
}

fn first_to_find_a_dead_holder_tells_who_is_next(mut lock: Lock) {
    for mode in [Write, Read] {
        let mut ears = lock.ears(["a", "b"]);
        lock.granted("dead", mode);
        lock.queued("a", Write);
        lock.queued("b", Write);
        lock.expire("dead");
        assert!(lock.queued("b", Write) <= RESERVED_MS);
        assert_eq!(lock.told(&mut ears), ["a"]);
        assert!(lock.queued("b", Write) <= RESERVED_MS);
        assert_eq!(lock.told(&mut ears), [""; 0], "told once");
        lock.granted("a", Write);
        for id in ["a", "b"] {
            lock.leave(id);
        }
    }
}

fn force_ends_no_waiting(mut lock: Lock) {
    for (mode, next) in [(Read, "a"), (Write, "r")] {
        let mut ears = lock.ears(["a", "r"]);
        lock.granted("h", mode);
        lock.queued("a", Write);
        lock.queued("r", Read);
        assert_eq!(lock.force(), ["h"]);
        assert_eq!(lock.told(&mut ears), [next]);
        assert_eq!(lock.inspect().waiting(), ["a", "r"]);
        assert!(lock.contended("n", Write) <= RESERVED_MS);
        lock.granted(next, if next == "a" { Write } else { Read });
        for id in ["a", "r"] {
            lock.leave(id);
        }
    }
}

fn upgrade_is_refused_while_a_writer_waits(mut lock: Lock) {
    lock.granted("r", Read);
    lock.queued("a", Write);
    assert_eq!(lock.turn("r", "w", Write, Wish::default()), Turned::Refused);
    lock.expire("a");
    lock.turned("r", "w", Write);
}

fn whoever_holds_does_not_wait_for_itself(mut lock: Lock) {
    for (held, asked) in [(Write, Read), (Read, Write)] {
        lock.granted("h", held);
        let asks = lock.ask("h", asked, Wish::patient());
        assert!(matches!(asks, Acquired::Contended { .. }), "{asks:?}");
        assert_eq!(lock.leave("h"), Left::Held);
    }
}

fn telling_without_the_right_does_not_undo(mut lock: Lock) {
    let user = lock.channel.replace(' ', "-");
    let rights = ["on", ">pw", "~*", "+@all", "resetchannels"];
    lock.command(&[&["ACL", "SETUSER", &user][..], &rights].concat());
    lock.command(&["AUTH", &user, "pw"]);
    let publish = ["SPUBLISH", &lock.channel, "x"];
    let refused = lock.client.command(&publish).expect("the server answers");
    assert!(refused.error().is_some_and(|text| text.starts_with("NOPERM")), "{refused:?}");

    for mode in [Write, Read] {
        lock.granted("h", mode);
        lock.queued("a", Write);
        assert_eq!(lock.leave("h"), Left::Held);
        lock.granted("a", Write);
        lock.queued("b", Write);
        assert_eq!(lock.force(), ["a"]);
        lock.granted("b", Write);
        lock.queued("r", Read);
        lock.turned("b", "q", Read);
        for id in ["r", "q"] {
            lock.leave(id);
        }
    }
}

fn writers_string_without_ttl_gets_the_callers_lease(mut lock: Lock) {
    let write_key = lock.keys[1].clone();
    type Call = fn(&mut Lock);
    let calls: [(&str, Call, i64); 6] = [
        ("a reader is refused", |lock| _ = lock.contended("b", Read), LEASE_MS),
        ("a writer is refused", |lock| _ = lock.contended("b", Write), LEASE_MS),
        ("a stranger leaves", |lock| _ = lock.leave("b"), 60_000),
        ("a stranger renews", |lock| assert_eq!(lock.renew("b", LEASE_MS), Renewed::Lost { forced: 0 }), LEASE_MS),
        ("the writer repeats", |lock| _ = lock.granted("a", Write), LEASE_MS),
        ("the writer renews", |lock| _ = lock.renewed("a", LEASE_MS), LEASE_MS),
    ];
    for (what, call, ttl_ms) in calls {
        lock.granted("a", Write);
        lock.command(&["PERSIST", &write_key]);
        call(&mut lock);
        let left_ms = lock.int(&["PTTL", &write_key]);
        assert!((ttl_ms / 2..=ttl_ms).contains(&left_ms), "{what}: {left_ms}");
        assert_eq!(lock.leave("a"), Left::Held);
    }
    lock.granted("a", Write);
    lock.command(&["PERSIST", &write_key]);
    let holder = &lock.inspect().holders[0];
    assert_eq!((holder.id.as_str(), holder.remaining_ms), ("a", 0));
}

fn writers_string_of_a_stranger_blocks_like_one(mut lock: Lock) {
    let (write_key, ttl) = (lock.keys[1].clone(), LONG_MS.to_string());
    lock.command(&["SET", &write_key, "1", "PX", &ttl]);
    for mode in [Read, Write] {
        assert!(lock.contended("a", mode) > LONG_MS / 2);
    }
    assert_eq!(lock.renew("1", LEASE_MS), Renewed::Lost { forced: 0 });
    assert_eq!(lock.leave("1"), Left::None { forced: 0 });
    let view = lock.inspect();
    assert_eq!((view.ids(), view.holders[0].mode), (vec!["?"], Mode::Write));
    assert_eq!(lock.force(), [""; 0]);
    lock.granted("a", Read);
}

fn dead_readers_are_removed_at_most_a_hundred_at_a_time(mut lock: Lock) {
    let dead = |lock: &mut Lock| {
        let members = invariants::members(lock);
        members.keys().filter(|id| id.starts_with("dead")).count()
    };
    for mode in [Write, Read] {
        for n in 0..150 {
            lock.granted(&format!("dead.{n}"), Read);
        }
        for n in 0..150 {
            lock.expire(&format!("dead.{n}"));
        }
        lock.granted("a", mode);
        assert_eq!(dead(&mut lock), 50);
        lock.leave("a");
        lock.granted("b", mode);
        assert_eq!(dead(&mut lock), 0);
        lock.leave("b");
    }
}

fn readers_key_holds_tokens_alone_in_the_end(mut lock: Lock) {
    lock.granted("a", Read);
    lock.granted("b", Read);
    lock.leave("a");
    lock.leave("b");
    lock.granted("w", Write);
    lock.leave("w");
    let members = invariants::members(&mut lock);
    assert_eq!(members.into_keys().collect::<Vec<_>>(), ["#born", "#token"]);
    assert!(lock.snapshot()[1].0.is_nil());
}

fn writers_string_goes_at_its_deadline(mut lock: Lock) {
    let write_key = lock.keys[1].clone();
    let before_ms = lock.now_ms();
    lock.granted("w", Write);
    let after_ms = lock.now_ms();
    let ends_ms = lock.int(&["PEXPIRETIME", &write_key]) - LEASE_MS;
    assert!((before_ms..=after_ms).contains(&ends_ms));
    let value = lock.command(&["GET", &write_key]);
    let token = lock.inspect().token;
    assert_eq!(value.text().expect("a text"), format!("w {ends_ms} {token}"));
}

fn downgrade_tells_waiting_readers(mut lock: Lock) {
    let mut ears = lock.ears(["a", "p"]);
    lock.granted("w", Write);
    lock.queued("a", Write);
    lock.queued("p", Read);
    let turned = lock.turn("w", "r", Read, Wish::default());
    let Turned::Granted { token, waited_for: true, .. } = turned else { panic!("{turned:?}") };
    assert_eq!(lock.told(&mut ears), ["p"]);
    lock.turned("w", "r", Read);
    assert_eq!(lock.told(&mut ears), [""; 0], "a repeat");
    assert_eq!(lock.granted("p", Read), token, "beside it");
    for id in ["r", "p"] {
        lock.leave(id);
    }
    assert_eq!(lock.told(&mut ears), ["a"]);
}

/// Where one script looks at two who wait.
mod limits {
    use super::{Left, Lock, Read, Write, two_key_cases};

    two_key_cases!(limited:
        what_is_nobodys_place_takes_no_look,
        readers_are_told_two_at_a_time,
    );

    fn what_is_nobodys_place_takes_no_look(mut lock: Lock) {
        lock.granted("w", Write);
        lock.force();
        let mut ears = lock.ears(["a", "b"]);
        lock.granted("w", Write);
        lock.queued("a", Write);
        lock.queued("b", Write);
        lock.leave("w");
        assert_eq!(lock.told(&mut ears), ["a"]);
        lock.granted("a", Write);
        lock.leave("a");
        assert_eq!(lock.told(&mut ears), ["b"]);
        lock.granted("b", Write);
        lock.leave("b");
        lock.granted("n", Write);
    }

    fn readers_are_told_two_at_a_time(mut lock: Lock) {
        let mut ears = lock.ears(["p", "q", "r", "s", "a"]);
        lock.granted("w", Write);
        for id in ["p", "q", "r", "s"] {
            lock.queued(id, Read);
        }
        lock.queued("a", Write);
        lock.leave("w");
        assert_eq!(lock.told(&mut ears), ["p", "q"]);
        for (id, next) in [("p", &["r"][..]), ("q", &["s"]), ("r", &[]), ("s", &[])] {
            lock.granted(id, Read);
            assert_eq!(lock.told(&mut ears), next, "{id} tells one more");
        }
        for (id, next) in [("p", &[][..]), ("q", &[]), ("r", &[]), ("s", &["a"])] {
            assert_eq!(lock.leave(id), Left::Held);
            assert_eq!(lock.told(&mut ears), next);
        }
        lock.granted("a", Write);
    }
}

fn new_token_is_not_below_the_floor(mut lock: Lock) {
    let ahead = lock.server_us() + 60_000_000;
    let floor = &[ahead.to_string()];
    let floor: Vec<&str> = floor.iter().map(String::as_str).collect();
    for mode in [Write, Read] {
        let token = lock.granted_above("a", mode, &floor);
        assert!(token >= ahead, "{mode:?}: {token}");
        assert_eq!(lock.inspect().token, token);
        // A repeat has what it had, and so have readers that join.
        let higher = (token + 7).to_string();
        assert_eq!(lock.granted_above("a", mode, &[&higher]), token);
        if mode == Read {
            assert_eq!(lock.granted_above("b", mode, &[&higher]), token);
            lock.leave("b");
        }
        assert_eq!(lock.leave("a"), Left::Held);
    }
    // They go on from there, whatever the clock says.
    let last = lock.inspect().token;
    assert_eq!(lock.granted("c", Write), last + 1);
    lock.leave("c");
    assert_eq!(lock.granted_above("d", Write, &["1"]), last + 2, "a floor that lies below changes nothing");
}

fn token_of_a_hold_is_raised_when_that_is_asked_for(mut lock: Lock) {
    for mode in [Write, Read] {
        let token = lock.granted("a", mode);
        let (higher, lower) = ((token + 9_000_000).to_string(), token.to_string());
        assert_eq!(lock.granted_above("a", mode, &[&higher, "raise"]), token + 9_000_000);
        assert_eq!(lock.granted_above("a", mode, &[&lower, "raise"]), token + 9_000_000, "it is never lowered");
        assert_eq!(lock.granted("a", mode), token + 9_000_000, "it stays");
        assert_eq!(lock.inspect().token, token + 9_000_000);
        if mode == Read {
            assert_eq!(lock.granted("b", mode), token + 9_000_000, "it is the phase's");
            lock.leave("b");
        }
        invariants::check(&mut lock);
        assert_eq!(lock.leave("a"), Left::Held);
    }
    // What was raised by a hold that is over is a new grant.
    let higher = (lock.inspect().token + 5).to_string();
    let token = lock.granted_above("c", Write, &[&higher, "raise"]);
    assert!(token >= higher.parse().expect("a number"));
}

fn what_several_servers_have_shown_is_ended_whatever_its_token_is(mut lock: Lock) {
    for mode in [Write, Read] {
        let seen = lock.granted("a", mode);
        let raised = lock.granted_above("a", mode, &[&(seen + 9_000_000).to_string(), "raise"]);
        for ids in ["", "b ab"] {
            assert_eq!(lock.force_shown(seen, seen, ids), [""; 0], "it is a newer one for all that is known");
        }
        lock.renewed("a", LEASE_MS);
        assert_eq!(lock.force_shown(seen, seen, "b a"), ["a"]);
        assert_eq!(lock.renew("a", LEASE_MS), Renewed::Lost { forced: raised });
        assert_eq!(lock.force_shown(seen, seen, "b a"), [""; 0], "a late copy");
        invariants::check(&mut lock);
        lock.granted("n", Write);
        assert_eq!(lock.force_shown(seen, seen, "b a"), [""; 0], "a newer hold is nobody's that was shown");
        assert_eq!(lock.leave("n"), Left::Held);
    }
}

fn what_was_ended_by_force_elsewhere_is_not_raised_to_life(mut lock: Lock) {
    let highest = lock.server_us() + 60_000_000;
    let [at, above] = [highest, highest + 1].map(|token| token.to_string());
    for _ in 0..2 {
        assert_eq!(lock.force_shown(0, highest, "a"), [""; 0], "nothing is here");
        // A lower one that comes later takes nothing back.
        assert_eq!(lock.force_shown(0, highest - 1, "b"), [""; 0]);
        invariants::check(&mut lock);
        for mode in [Write, Read] {
            let reply = lock.ask_above("a", mode, &[&at, "raise"]);
            assert!(reply.starts_with("contended a "), "{reply}");
            // What is granted here has its token raised.
            lock.granted("c", mode);
            lock.granted_above("c", mode, &[&(highest - 1).to_string(), "raise"]);
            assert_eq!(lock.leave("c"), Left::Held);
            lock.granted_above("d", mode, &[&at]);
            assert_eq!(lock.leave("d"), Left::Held);
        }
        let keys = lock.keys.clone();
        keys.iter().for_each(|key| drop(lock.command(&["DEL", key])));
    }
    lock.force_shown(0, highest, "a");
    assert_eq!(lock.granted_above("e", Write, &[&above, "raise"]), highest + 1);
}
