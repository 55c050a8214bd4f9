//! Holds that may be kept when nobody is inside: the mark, who is called, and the tokens that a renewal brings.

use crate::lab::{
    Acquired, LEASE_MS, Listener, Lock, Mode, PATIENCE_MS, Read, Renewed, Turned, Wish, Write, hash_cases, rows,
};

mod conversions;
mod told;
mod tries;

hash_cases!(shared:
    whoever_may_keep_a_hold_marks_the_lock,
    mark_goes_with_its_phase_and_no_sooner,
    mark_is_that_of_the_new_phase,
    mark_of_an_earlier_phase_is_none,
    plain_requests_leave_the_mark,
    waiters_call_twice_a_second,
    nobody_calls_without_need,
    keeping_anew_is_called_for_at_once,
    keeping_anew_forgets_when_it_was_called,
    renewal_brings_tokens_from_the_past,
    tokens_of_a_renewal_are_the_repeats,
    force_calls_always,
    late_force_ends_whose_renewal_moved_the_token,
    force_without_ids_ends_nothing_newer,
    keys_without_a_tag_are_marked_and_called_for,
    calls_without_the_right_do_not_undo,
);

const KEEP: Wish = Wish { letters: "k", ..Wish::AT_ONCE };
const KEEP_WAITING: Wish = Wish { patience_ms: PATIENCE_MS, ..KEEP };
const TRY: Wish = Wish { letters: "t", patience_ms: PATIENCE_MS, ..Wish::AT_ONCE };
/// The channel of who waits has the first 32 characters of its id.
const MANAGER: &str = "0123456789abcdef0123456789abcdef";

impl Lock {
    fn keeps(&mut self, id: &str, mode: Mode) -> i64 {
        let acquired = self.ask(id, mode, KEEP);
        let Acquired::Granted { token, turns, waited_for: false, .. } = acquired else { panic!("{id}: {acquired:?}") };
        token + turns - 1
    }

    fn is_marked(&mut self) -> bool {
        let is_marked = self.inspect().is_marked;
        let (mark, last) = (self.field("k"), self.field("t"));
        assert_eq!(is_marked, mark.is_some_and(|mark| mark.split(' ').next() == last.as_deref()));
        is_marked
    }

    fn calls(&self) -> Listener {
        Listener::new(self, &format!("{}:call", self.key()))
    }

    /// The last call was so long ago.
    fn called_ago(&mut self, ms: i64) {
        let at_ms = self.now_ms() - ms;
        let last = self.field("t").expect("a token");
        self.set_field("k", format!("{last} {at_ms}"));
    }

    fn tries(&mut self, id: &str, mode: Mode) {
        let asked = self.ask(id, mode, TRY);
        assert!(matches!(asked, Acquired::Queued { is_kept: true, .. }), "{asked:?}");
    }

    /// Is queued, and returns whether it is told that somebody may keep the lock who is not inside.
    fn waits_for_a_kept_one(&mut self, id: &str, mode: Mode) -> bool {
        let asked = self.ask(id, mode, Wish::patient());
        let Acquired::Queued { is_kept, .. } = asked else { panic!("{asked:?}") };
        is_kept
    }
}

fn whoever_may_keep_a_hold_marks_the_lock(mut lock: Lock) {
    let marks = |lock: &mut Lock, what: &str| {
        assert!(lock.is_marked(), "{what}");
        lock.delete_field("k");
        assert!(!lock.is_marked());
    };
    for mode in [Read, Write] {
        lock.keeps("a", mode);
        marks(&mut lock, "a grant");
        lock.keeps("a", mode);
        marks(&mut lock, "a repeat");
        lock.renew_kept("a", 0);
        marks(&mut lock, "a renewal");
        lock.leave("a");
    }
    lock.granted("a", Read);
    for id in ["b", "c", "d"] {
        lock.keeps(id, Read);
        marks(&mut lock, "a join");
        lock.keeps(id, Read);
        marks(&mut lock, "a repeat beside others");
        lock.renew_kept(id, 0);
        marks(&mut lock, "a renewal beside others");
    }
    for id in ["b", "c", "d"] {
        lock.leave(id);
    }
    for (old, new, mode) in [("a", "w", Write), ("w", "r", Read)] {
        let turned = lock.turn(old, new, mode, KEEP);
        assert!(matches!(turned, Turned::Granted { waited_for: false, .. }), "{turned:?}");
        marks(&mut lock, "a conversion");
    }
    // By the long way: a writer waits.
    lock.queued("v", Write);
    for is_old in [false, true] {
        let token = lock.inspect().token;
        let unmarked = |lock: &mut Lock| if is_old { lock.set_field("k", token - 1) } else { lock.delete_field("k") };
        unmarked(&mut lock);
        lock.ask("r", Read, KEEP);
        marks(&mut lock, "a repeat before a writer");
        unmarked(&mut lock);
        lock.renew_kept("r", 0);
        marks(&mut lock, "a renewal before a writer");
    }
}

fn mark_goes_with_its_phase_and_no_sooner(mut lock: Lock) {
    lock.granted("a", Read);
    assert!(!lock.is_marked(), "nobody may keep it");
    lock.keeps("b", Read);
    lock.granted("c", Read);
    lock.granted("a", Read);
    lock.renewed("a", LEASE_MS);
    lock.leave("b");
    assert!(lock.is_marked(), "plain readers join, repeat, renew and leave");
    lock.leave("a");
    lock.leave("c");
    for mode in [Write, Read] {
        lock.granted("n", mode);
        assert!(!lock.is_marked(), "a phase of its own");
        lock.leave("n");
    }
    lock.keeps("w", Write);
    lock.queued("r", Read);
    lock.leave("w");
    assert!(!lock.is_marked(), "handed over");
}

fn mark_is_that_of_the_new_phase(mut lock: Lock) {
    for mode in [Read, Write] {
        lock.granted("dead", Write);
        lock.expire("dead");
        lock.keeps("k", mode);
        assert!(lock.is_marked(), "{mode:?} after a dead writer");
        lock.leave("k");
    }
}

fn mark_of_an_earlier_phase_is_none(mut lock: Lock) {
    let mut calls = lock.calls();
    for (holder, waiter) in [(Write, Write), (Write, Read), (Read, Write)] {
        lock.keeps("k", holder);
        lock.leave("k");
        lock.granted("h", holder);
        assert!(lock.field("k").is_some(), "it is there");
        assert!(matches!(lock.ask("t", waiter, Wish::default()), Acquired::Contended { .. }));
        assert!(!lock.waits_for_a_kept_one("a", waiter));
        lock.leave("a");
        assert_eq!(lock.force(), ["h"]);
    }
    assert_eq!(calls.heard(&mut lock), [""; 0]);
}

fn plain_requests_leave_the_mark(mut lock: Lock) {
    lock.keeps("k", Read);
    lock.renewed("k", LEASE_MS);
    assert!(lock.is_marked(), "a renewal");
    lock.granted("k", Read);
    assert!(lock.is_marked(), "a repeat");
    lock.granted("a", Read);
    lock.queued("w", Write);
    // By the long way.
    lock.granted("a", Read);
    assert!(lock.is_marked(), "a repeat before a writer");
    lock.renewed("a", LEASE_MS);
    assert!(lock.is_marked(), "a renewal before a writer");
    lock.leave("a");
    assert!(lock.is_marked(), "a release before a writer");
    lock.leave("w");
    assert!(lock.is_marked(), "a waiter that goes");
    lock.leave("k");
    lock.keeps("k", Write);
    lock.renewed("k", LEASE_MS);
    assert!(lock.is_marked(), "a writer's renewal");
    lock.granted("k", Write);
    assert!(lock.is_marked(), "its repeat");
}

fn waiters_call_twice_a_second(mut lock: Lock) {
    for (mode, waiter) in [(Write, Write), (Write, Read), (Read, Write)] {
        let token = lock.keeps("k", mode).to_string();
        let mut calls = lock.calls();
        assert!(lock.waits_for_a_kept_one("a", waiter));
        assert_eq!(calls.heard(&mut lock), [token.as_str()], "{waiter:?} behind {mode:?}, at once");
        lock.called_ago(300);
        for id in ["a", "b"] {
            assert!(lock.waits_for_a_kept_one(id, waiter), "whoever has called");
        }
        assert_eq!(calls.heard(&mut lock), [""; 0], "called already");
        lock.called_ago(500);
        for id in ["b", "a"] {
            lock.queued(id, waiter);
        }
        assert_eq!(calls.heard(&mut lock), [token.as_str()], "a heartbeat calls again");
        lock.ask("b", waiter, KEEP_WAITING);
        lock.called_ago(500);
        lock.ask("b", waiter, KEEP_WAITING);
        assert_eq!(calls.heard(&mut lock), [token.as_str()], "one that keeps what it gets is a waiter as any");
        // The clock was set back since.
        lock.called_ago(-60_000);
        lock.queued("a", waiter);
        assert_eq!(calls.heard(&mut lock), [token]);
        for id in ["k", "a", "b"] {
            lock.leave(id);
        }
    }
}

fn nobody_calls_without_need(mut lock: Lock) {
    let mut calls = lock.calls();
    for (holder, waiter) in [(Write, Write), (Write, Read), (Read, Write)] {
        lock.granted("h", holder);
        assert!(!lock.waits_for_a_kept_one("a", waiter));
        assert!(!lock.waits_for_a_kept_one("a", waiter), "nor a heartbeat");
        lock.leave("a");
        lock.leave("h");
    }
    assert_eq!(calls.heard(&mut lock), [""; 0], "nobody keeps it");
    lock.keeps("k", Read);
    lock.queued("w", Write);
    calls.heard(&mut lock);
    lock.called_ago(60_000);
    assert!(!lock.waits_for_a_kept_one("r", Read));
    assert!(!lock.waits_for_a_kept_one("r", Read));
    assert_eq!(calls.heard(&mut lock), [""; 0], "the writer calls, not who waits for it");
    assert!(matches!(lock.ask("s", Read, Wish::default()), Acquired::Contended { .. }), "the same");
    for id in ["r", "w", "k"] {
        lock.leave(id);
    }
    for (mode, other) in [(Read, Write), (Write, Read)] {
        lock.keeps("k", mode);
        if mode == Read {
            lock.granted("l", mode);
        }
        let asked = lock.ask("k", other, Wish::patient());
        assert!(matches!(asked, Acquired::Contended { .. }), "{asked:?}");
        assert_eq!(calls.heard(&mut lock), [""; 0], "who holds it does not wait for itself");
        lock.leave("k");
        lock.leave("l");
    }
}

fn keeping_anew_is_called_for_at_once(mut lock: Lock) {
    for mode in [Read, Write] {
        keeping_anew_in(mode, &mut lock);
        lock.leave("k");
    }
}

fn keeping_anew_in(mode: Mode, lock: &mut Lock) {
    let token = lock.keeps("k", mode).to_string();
    let mut calls = lock.calls();
    lock.queued("w", Write);
    let called = lock.field("k");
    lock.ask("k", mode, KEEP);
    assert!(lock.renew_kept("k", 0).waited_for);
    assert_eq!(lock.field("k"), called, "somebody waits: when it was called is remembered");
    lock.queued("w", Write);
    assert_eq!(calls.heard(lock), [token.as_str()]);
    lock.leave("w");
    for renews in [true, false] {
        if renews {
            lock.renew_kept("k", 0);
        } else {
            lock.keeps("k", mode);
        }
        lock.queued("w", Write);
        assert_eq!(calls.heard(lock), [token.as_str()], "nobody waited: at once");
        lock.leave("w");
    }
}

/// By each way in which nobody waits.
fn keeping_anew_forgets_when_it_was_called(mut lock: Lock) {
    lock.granted("dead", Write);
    lock.expire("dead");
    let token = lock.keeps("a", Read);
    for id in ["a", "b", "a", "c", "b"] {
        lock.called_ago(0);
        lock.keeps(id, Read);
        assert_eq!(lock.field("k"), Some(token.to_string()), "{id} keeps it");
        lock.called_ago(0);
        lock.renew_kept(id, 0);
        assert_eq!(lock.field("k"), Some(token.to_string()), "{id} renews it");
    }
}

fn renewal_brings_tokens_from_the_past(mut lock: Lock) {
    let mut last = lock.keeps("w", Write);
    for (wanted, most) in [(1, 1), (5, 5), (64, 64), (1000, 64)] {
        lock.pass_us(64);
        let kept = lock.renew_kept("w", wanted);
        assert_eq!(kept.turns, most);
        assert!(kept.first > last, "above all before");
        last = kept.first + kept.turns - 1;
        assert!(last <= lock.server_us(), "not ahead of the clock");
        assert_eq!(lock.inspect().token, last);
        assert!(lock.is_marked(), "the mark moves along");
    }
    let none = lock.renew_kept("w", 0);
    assert_eq!((none.first, none.turns, lock.inspect().token), (0, 0, last));
    // The clock is behind: one at a time.
    let ahead = lock.server_us() + 3_600_000_000;
    lock.set_field("T", ahead);
    lock.set_last_token(ahead);
    let kept = lock.renew_kept("w", 64);
    assert_eq!((kept.first, kept.turns), (ahead + 1, 1));
    // When it was called moves along, too.
    lock.queued("a", Write);
    let called = lock.field("k").expect("a mark").split_once(' ').expect("and a time").1.to_owned();
    let kept = lock.renew_kept("w", 1);
    assert_eq!(lock.field("k"), Some(format!("{} {called}", kept.first)));
    lock.leave("a");
    lock.leave("w");
    lock.keeps("r", Read);
    let kept = lock.renew_kept("r", 64);
    assert_eq!((kept.first, kept.turns), (0, 0), "readers share theirs");
}

fn tokens_of_a_renewal_are_the_repeats(mut lock: Lock) {
    lock.keeps("w", Write);
    lock.pass_us(64);
    let kept = lock.renew_kept("w", 64);
    let repeated = lock.ask("w", Write, KEEP);
    let same = matches!(repeated, Acquired::Granted { token, turns: 64, .. } if token == kept.first);
    assert!(same, "{kept:?}, then {repeated:?}");
}

fn force_calls_always(mut lock: Lock) {
    let mut calls = lock.calls();
    lock.granted("w", Write);
    lock.force();
    assert_eq!(calls.heard(&mut lock), [""; 0], "nobody keeps it");
    for mode in [Read, Write] {
        let token = lock.keeps("k", mode).to_string();
        lock.called_ago(0);
        lock.queued("w", Write);
        assert_eq!(calls.heard(&mut lock), [""; 0]);
        let seen = lock.inspect();
        assert_eq!(lock.force_seen(&seen), ["k"]);
        assert_eq!(calls.heard(&mut lock), [token], "of those who were inside");
        assert_eq!(lock.holders(), ["w"]);
        assert_eq!(lock.force_seen(&seen), [""; 0]);
        assert_eq!(calls.heard(&mut lock), [""; 0], "a late one changes nothing");
        lock.leave("w");
    }
}

fn late_force_ends_whose_renewal_moved_the_token(mut lock: Lock) {
    lock.keeps("w2", Write);
    let seen = lock.inspect();
    let kept = lock.renew_kept("w2", 1);
    assert!(kept.first > seen.token);
    assert_eq!(lock.force_seen(&seen), ["w2"]);
    assert_eq!(lock.renew("w2", LEASE_MS), Renewed::Lost { forced: kept.first });
    // Nothing newer, whatever it is, though its id is a part of the other's.
    for (newer, mode) in [("v", Write), ("w", Write), ("2", Write), ("w.", Write), ("w2", Read)] {
        lock.granted(newer, mode);
        assert_eq!(lock.force_seen(&seen), [""; 0], "{newer}");
        assert_eq!(lock.holders(), [newer]);
        lock.leave(newer);
    }
    // Readers have no tokens of their own: theirs are over when the last one is above.
    lock.keeps("r", Read);
    let seen = lock.inspect();
    lock.leave("r");
    lock.granted("s", Read);
    assert_eq!(lock.force_seen(&seen), [""; 0]);
    assert_eq!(lock.holders(), ["s"]);
}

fn force_without_ids_ends_nothing_newer(mut lock: Lock) {
    lock.keeps("w", Write);
    let seen = lock.inspect();
    let mut args = lock.force_args(&seen);
    args.pop();
    lock.renew_kept("w", 1);
    for ended in [0, 1] {
        let reply = lock.try_run("force", &args);
        assert_eq!((rows(&reply), reply.error()), (ended, None), "{reply:?}");
        args[0] = lock.inspect().token.to_string();
    }
    assert_eq!(lock.holders(), [""; 0]);
}

/// As those of services that run the published scheme are.
fn keys_without_a_tag_are_marked_and_called_for(mut lock: Lock) {
    let key = lock.key().replace(['{', '}'], "");
    lock.keys = vec![key.clone()];
    let mut calls = Listener::new(&lock, &format!("{{{key}}}:call"));
    for (mode, theirs) in [(Write, Read), (Read, Write)] {
        let token = lock.keeps("k", mode).to_string();
        let now_ms = lock.now_ms();
        assert!(!lock.their_lock(theirs, now_ms), "they see our stamp as ever");
        assert!(matches!(lock.ask("t", Write, Wish::default()), Acquired::Kept { .. }));
        for _ in 0..2 {
            lock.queued("w", Write);
        }
        assert_eq!(calls.heard(&mut lock), [token]);
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

fn calls_without_the_right_do_not_undo(mut lock: Lock) {
    let user = lock.channel.replace(' ', "-");
    let rights = ["on", ">pw", "~*", "+@all", "resetchannels"];
    lock.command(&[&["ACL", "SETUSER", &user][..], &rights].concat());
    lock.command(&["AUTH", &user, "pw"]);
    let token = lock.keeps("k", Write).to_string();
    assert!(lock.waits_for_a_kept_one("a", Write));
    assert_eq!(lock.field("k"), Some(token), "what was not called is not noted: others call");
    lock.tries("b", Write);
    lock.used("b");
    assert_eq!(lock.force(), ["k"]);
    assert_eq!(lock.holders(), ["a"]);
    for id in ["b", "a"] {
        lock.leave(id);
    }
    lock.keeps("k", Read);
    lock.granted("a", Read);
    assert_eq!(lock.turn("a", "w", Write, Wish::default()), Turned::Kept);
    assert_eq!(lock.holders(), ["a", "k"]);
}
