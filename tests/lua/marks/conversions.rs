//! Holds that are kept, and conversions.

use super::KEEP;
use crate::lab::{Lock, Read, Turned, Wish, Write, hash_cases};

hash_cases!(shared:
    conversion_calls_whom_it_finds_in_its_way,
    conversion_beside_nobody_who_keeps_calls_nobody,
    conversion_before_waiters_marks_and_remembers_the_call,
);

fn conversion_calls_whom_it_finds_in_its_way(mut lock: Lock) {
    lock.granted("o", Read);
    let token = lock.keeps("k", Read);
    let mut calls = lock.calls();
    for _ in 0..2 {
        assert_eq!(lock.turn("o", "n", Write, Wish::default()), Turned::Kept);
        assert_eq!(calls.heard(&mut lock), [format!("{token} n")], "as a try does, however soon");
        assert_eq!(lock.holders(), ["k", "o"], "the old hold stands");
        assert_eq!(lock.field("k"), Some(token.to_string()), "it does not count as a call of those who wait");
    }
    lock.leave("k");
    lock.queued("w", Write);
    assert_eq!(lock.turn("o", "n", Write, Wish::default()), Turned::Kept, "whoever is in the way");
    lock.leave("w");
    lock.turned("o", "n", Write);
}

fn conversion_beside_nobody_who_keeps_calls_nobody(mut lock: Lock) {
    let mut calls = lock.calls();
    for was_marked in [false, true] {
        if was_marked {
            lock.keeps("k", Read);
            lock.leave("k");
        }
        for id in ["o", "p"] {
            lock.granted(id, Read);
        }
        assert_eq!(lock.turn("o", "n", Write, Wish::default()), Turned::Refused);
        assert_eq!(lock.holders(), ["o", "p"]);
        assert_eq!(calls.heard(&mut lock), [""; 0]);
        for id in ["o", "p"] {
            lock.leave(id);
        }
    }
}

fn conversion_before_waiters_marks_and_remembers_the_call(mut lock: Lock) {
    for was_marked in [false, true] {
        if was_marked {
            lock.keeps("w", Write);
        } else {
            lock.granted("w", Write);
        }
        lock.queued("v", Write);
        let Turned::Granted { token, waited_for: true, .. } = lock.turn("w", "r", Read, KEEP) else {
            panic!("not granted")
        };
        assert_eq!(lock.field("k"), Some(token.to_string()));
        lock.queued("v", Write);
        let called = lock.field("k");
        assert_ne!(called, Some(token.to_string()), "called");
        for repeat in [KEEP, Wish::default()] {
            lock.turn("w", "r", Read, repeat);
            assert_eq!(lock.field("k"), called, "somebody waits: when it was called is remembered");
        }
        lock.set_field("k", token - 1);
        lock.turn("w", "r", Read, KEEP);
        assert_eq!(lock.field("k"), Some(token.to_string()), "that of an earlier phase is none");
        lock.leave("v");
        lock.called_ago(0);
        lock.turn("w", "r", Read, KEEP);
        assert_eq!(lock.field("k"), Some(token.to_string()), "nobody waits: it is new");
        lock.leave("r");
    }
}
