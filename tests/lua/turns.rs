//! One hold given up for one of the other side, in one step.

use crate::lab::{
    LEASE_MS, LONG_MS, Left, Listener, Lock, READ_LIMIT_MS, Read, Renewed, Turned, WRITE_LIMIT_MS, Wish, Write,
    all_cases, hash_cases,
};

all_cases!(shared:
    writer_becomes_a_reader,
    only_reader_becomes_a_writer,
    readers_beside_it_stop_an_upgrade,
    dead_readers_do_not_stop_an_upgrade,
    repeat_extends_the_new_hold,
    turn_of_what_is_lost_is_lost,
    late_turn_changes_nothing,
    turned_hold_is_covered_and_shown,
);
mod in_the_hash {
    use super::*;

    hash_cases!(shared:
        downgrade_lets_all_waiting_readers_in,
        waiting_writer_stops_an_upgrade_but_no_downgrade,
        upgrade_reserves_a_block,
        their_stamps_stop_an_upgrade,
        overwritten_hold_is_not_turned,
        stamps_are_ours_after_a_turn,
        new_hold_does_not_wait_any_more,
    hold_can_be_turned_in_the_script_that_grants_it,
        repeat_beside_many_dead_readers_keeps_the_phase,
    );
}

fn writer_becomes_a_reader(mut lock: Lock) {
    let first = lock.granted("w", Write);
    let token = lock.turned("w", "r", Read);
    assert!(token > first, "a phase of its own");
    let view = lock.inspect();
    assert_eq!((view.ids(), view.holders[0].mode, view.token), (vec!["r"], Read, token));
    assert_eq!(lock.granted("s", Read), token);
    lock.contended("v", Write);
    assert_eq!(lock.renew("w", LEASE_MS), Renewed::Lost { forced: 0 });
    assert_eq!(lock.leave("w"), Left::None { forced: 0 });
    assert_eq!(lock.leave("r"), Left::Held);
    assert_eq!(lock.leave("s"), Left::Held);
    lock.granted("v", Write);
}

fn only_reader_becomes_a_writer(mut lock: Lock) {
    let first = lock.granted("r", Read);
    let token = lock.turned("r", "w", Write);
    assert!(token > first);
    let view = lock.inspect();
    assert_eq!((view.ids(), view.holders[0].mode, view.token), (vec!["w"], Write, token));
    lock.contended("s", Read);
    assert_eq!(lock.renew("r", LEASE_MS), Renewed::Lost { forced: 0 });
    assert_eq!(lock.leave("r"), Left::None { forced: 0 });
    assert_eq!(lock.leave("w"), Left::Held);
    lock.granted("s", Read);
}

fn readers_beside_it_stop_an_upgrade(mut lock: Lock) {
    for old in ["a", "b", "c"] {
        for id in ["a", "b", "c"] {
            lock.granted(id, Read);
        }
        assert_eq!(lock.turn(old, "w", Write, Wish::default()), Turned::Refused);
        assert_eq!(lock.inspect().ids(), ["a", "b", "c"], "the old hold stands");
        for id in ["a", "b", "c"] {
            assert_eq!(lock.leave(id), Left::Held);
        }
    }
}

fn dead_readers_do_not_stop_an_upgrade(mut lock: Lock) {
    for old in ["a", "b", "c"] {
        for id in ["a", "b", "c"] {
            lock.granted(id, Read);
        }
        for id in ["a", "b", "c"] {
            if id != old {
                lock.expire(id);
            }
        }
        lock.turned(old, "w", Write);
        assert_eq!(lock.inspect().ids(), ["w"]);
        assert_eq!(lock.leave("w"), Left::Held);
    }
}

fn repeat_extends_the_new_hold(mut lock: Lock) {
    for (held, asked) in [(Write, Read), (Read, Write)] {
        lock.granted("old", held);
        let token = lock.turned("old", "new", asked);
        let wish = Wish { lease_ms: LONG_MS, ..Wish::default() };
        let again = lock.turn("old", "new", asked, wish);
        let extended = matches!(again, Turned::Granted { token: same, remaining_ms: LONG_MS, .. } if same == token);
        assert!(extended, "{again:?}");
        let again = lock.turn("old", "new", asked, Wish::default());
        let kept = matches!(again, Turned::Granted { token: same, remaining_ms, .. } if same == token && remaining_ms > LEASE_MS);
        assert!(kept, "{again:?}");
        assert_eq!(lock.inspect().token, token);
        assert_eq!(lock.leave("new"), Left::Held);
        assert_eq!(lock.turn("old", "new", asked, Wish::default()), Turned::Lost { forced: 0 }, "once is enough");
        assert_eq!(lock.inspect().ids(), [""; 0]);
    }
}

fn turn_of_what_is_lost_is_lost(mut lock: Lock) {
    assert_eq!(lock.turn("old", "new", Read, Wish::default()), Turned::Lost { forced: 0 });
    assert_eq!(lock.turn("old", "new", Write, Wish::default()), Turned::Lost { forced: 0 });
    assert!(lock.snapshot().iter().all(|(value, _)| value.is_nil()));
    for (held, asked) in [(Write, Read), (Read, Write)] {
        let token = lock.granted("old", held);
        // Not to the side that it has.
        assert_eq!(lock.turn("old", "new", held, Wish::default()), Turned::Lost { forced: 0 });
        assert_eq!(lock.turn("other", "new", asked, Wish::default()), Turned::Lost { forced: 0 });
        lock.expire("old");
        assert_eq!(lock.turn("old", "new", asked, Wish::default()), Turned::Lost { forced: 0 });
        assert_eq!(lock.inspect().ids(), [""; 0]);
        lock.force();
        let forced = lock.turn("old", "new", asked, Wish::default());
        assert_eq!(forced, Turned::Lost { forced: token });
        for key in lock.keys.clone() {
            lock.command(&["DEL", &key]);
        }
    }
}

fn late_turn_changes_nothing(mut lock: Lock) {
    let late = Wish { not_after_ms: lock.now_ms() - 1, ..Wish::default() };
    for (held, asked) in [(Write, Read), (Read, Write)] {
        lock.granted("old", held);
        lock.persist(); // not even this is mended
        let stored = lock.snapshot();
        assert_eq!(lock.turn("old", "new", asked, late), Turned::Late);
        assert_eq!(lock.snapshot(), stored);
        lock.granted("old", held);
        assert_eq!(lock.leave("old"), Left::Held);
    }
}

fn turned_hold_is_covered_and_shown(mut lock: Lock) {
    for (held, asked) in [(Write, Read), (Read, Write)] {
        lock.granted("old", held);
        lock.persist();
        let now_ms = lock.now_ms();
        lock.turned("old", "new", asked);
        lock.assert_covered_until(now_ms + LEASE_MS);
        let holder = &lock.inspect().holders[0];
        assert!(holder.since_ms >= now_ms);
        assert!((LEASE_MS / 2..=LEASE_MS).contains(&holder.remaining_ms));
        lock.persist();
        let other = if asked == Read { Write } else { Read };
        assert!(matches!(lock.turn("stranger", "x", other, Wish::default()), Turned::Lost { .. }));
        lock.leave("new");
    }
}

fn downgrade_lets_all_waiting_readers_in(mut lock: Lock) {
    lock.granted("w", Write);
    for (id, mode) in [("a", Read), ("v", Write), ("b", Read)] {
        lock.queued(id, mode);
    }
    let turned = lock.turn("w", "r", Read, Wish::default());
    let Turned::Granted { token, waited_for: true, .. } = turned else { panic!("{turned:?}") };
    assert_eq!(lock.holders(), ["a", "b", "r"]);
    assert_eq!(lock.granted("a", Read), token, "they share the phase");
    assert_eq!(lock.inspect().waiting(), ["v"]);
}

fn waiting_writer_stops_an_upgrade_but_no_downgrade(mut lock: Lock) {
    lock.granted("r", Read);
    lock.queued("v", Write);
    assert_eq!(lock.turn("r", "w", Write, Wish::default()), Turned::Refused);
    lock.expire("v");
    lock.turned("r", "w", Write);
    lock.queued("v", Write);
    lock.turned("w", "s", Read);
    assert_eq!((lock.holders(), lock.inspect().waiting()), (vec!["s".to_owned()], vec!["v"]));
    assert_eq!(lock.leave("s"), Left::Held);
    assert_eq!(lock.holders(), ["v"]);
}

fn upgrade_reserves_a_block(mut lock: Lock) {
    lock.granted("r", Read);
    let wish = Wish { turns: 9, ..Wish::default() };
    for _ in 0..2 {
        let turned = lock.turn("r", "w", Write, wish);
        let Turned::Granted { token, turns: 9, .. } = turned else { panic!("{turned:?}") };
        assert_eq!(lock.inspect().token, token + 8);
    }
    let last = lock.inspect().token;
    assert!(lock.turned("w", "s", Read) > last);
}

fn their_stamps_stop_an_upgrade(mut lock: Lock) {
    // One that came later, and one that our reader covers.
    for covered in [false, true] {
        lock.granted("r", Read);
        let stamp_ms = lock.they_hold(Read);
        if covered {
            lock.renewed("r", LEASE_MS);
        }
        assert_eq!(lock.turn("r", "w", Write, Wish::default()), Turned::Refused);
        assert_eq!(lock.holders(), ["r"]);
        let dead_ms = stamp_ms - READ_LIMIT_MS - WRITE_LIMIT_MS;
        lock.set_field(if covered { "v" } else { "read" }, dead_ms);
        lock.turned("r", "w", Write);
        assert_eq!((lock.field("read"), lock.field("v")), (None, None));
        assert_eq!(lock.leave("w"), Left::Held);
    }
}

fn overwritten_hold_is_not_turned(mut lock: Lock) {
    for (held, asked) in [(Write, Read), (Read, Write)] {
        lock.granted("old", held);
        let stamp_ms = lock.now_ms();
        lock.set_field("write", stamp_ms);
        assert_eq!(lock.turn("old", "new", asked, Wish::default()), Turned::Lost { forced: 0 });
        assert_eq!(lock.field_ms("write"), stamp_ms, "theirs to delete");
        lock.force();
        lock.command(&["DEL", &lock.key()]);
    }
    // Nor one that was overrun, when its successor has removed the evidence.
    for (old, new, asked) in [("old", "new", Write), ("w", "old", Read)] {
        if asked == Read {
            lock.granted("w", Write);
            lock.turned("w", "old", Read);
        } else {
            lock.granted("old", Read);
        }
        let past_ms = lock.now_ms() - WRITE_LIMIT_MS - 1;
        lock.set_field("write", past_ms);
        let since_ms = lock.now_ms();
        while lock.now_ms() == since_ms {}
        lock.granted("other", Read);
        assert_eq!(lock.leave("other"), Left::Held);
        assert_eq!(lock.turn(old, new, asked, Wish::default()), Turned::Lost { forced: 0 });
        lock.force();
        lock.command(&["DEL", &lock.key()]);
    }
}

fn stamps_are_ours_after_a_turn(mut lock: Lock) {
    lock.granted("w", Write);
    lock.turned("w", "r", Read);
    let now_ms = lock.now_ms();
    assert!(!lock.their_lock(Write, now_ms));
    assert_eq!((lock.field("read"), lock.field("write")), (lock.field("m"), None));
    lock.turned("r", "x", Write);
    let now_ms = lock.now_ms();
    assert!(!lock.their_lock(Write, now_ms) && !lock.their_lock(Read, now_ms));
    assert_eq!(lock.field("write"), lock.field("D"));
    assert_eq!(lock.leave("x"), Left::Held);
    lock.they_hold(Write);
}

fn new_hold_does_not_wait_any_more(mut lock: Lock) {
    lock.granted("w", Write);
    lock.queued("r", Read);
    lock.turned("w", "r", Read);
    let view = lock.inspect();
    assert_eq!((view.ids(), view.waiting()), (vec!["r"], vec![]));
}

fn repeat_beside_many_dead_readers_keeps_the_phase(mut lock: Lock) {
    lock.granted("w", Write);
    let token = lock.turned("w", "r", Read);
    for n in 0..250 {
        lock.granted(&format!("dead.{n}"), Read);
    }
    // To the bottom, below more dead ones than one script removes.
    let (slot, first) = (lock.field("sr").expect("a slot"), lock.field("r1").expect("a reader"));
    for (field, value) in [("r1", "r"), ("sr", "1"), (&format!("r{slot}"), &first), (&format!("s{first}"), &slot)] {
        let key = lock.key();
        lock.command(&["HSET", &key, field, value]);
    }
    for n in 0..250 {
        lock.expire(&format!("dead.{n}"));
    }
    assert_eq!(lock.turned("w", "r", Read), token);
    assert_eq!(lock.holders(), ["r"]);
}

/// Its owner does not know that it was granted, so it has no reason to; and yet everybody is told what is true.
fn hold_can_be_turned_in_the_script_that_grants_it(mut lock: Lock) {
    let channel = format!("{}:wake:w", lock.key());
    let mut listener = Listener::new(&lock, &channel);
    lock.granted("dead", Read);
    lock.queued("w", Write);
    lock.queued("a", Read);
    lock.expire("dead");
    let token = lock.turned("w", "r", Read);
    assert_eq!(lock.holders(), ["a", "r"]);
    let heard = listener.heard(&mut lock).concat();
    assert!(heard.starts_with(&format!("w {} 1 ", token - 1)), "{heard}");
}
