//! Tries at locks that are kept: whom they call, and what they are told.

use super::{MANAGER, TRY};
use crate::lab::{Acquired, LEASE_MS, Listener, Lock, Read, Wish, Write, hash_cases};

hash_cases!(shared:
    try_names_itself_and_does_not_count,
    try_at_once_is_told_that_the_hold_is_kept,
    try_takes_no_place_where_it_calls_nobody,
    used_is_told_to_the_trys_manager,
    what_is_no_id_is_told_to_nobody,
);

fn try_names_itself_and_does_not_count(mut lock: Lock) {
    for (mode, waiter) in [(Write, Write), (Write, Read), (Read, Write)] {
        let token = lock.keeps("k", mode);
        let mut calls = lock.calls();
        for _ in 0..2 {
            lock.tries("a", waiter);
            assert_eq!(calls.heard(&mut lock), [format!("{token} a")], "{waiter:?} behind {mode:?}");
        }
        lock.queued("b", waiter);
        assert_eq!(calls.heard(&mut lock), [token.to_string()], "a waiter calls for itself");
        let called = lock.field("k");
        lock.tries("a", waiter);
        assert_eq!(calls.heard(&mut lock), [format!("{token} a")], "however soon");
        assert_eq!(lock.field("k"), called, "when the others called is remembered");
        lock.leave("b");
        lock.leave("a");
        lock.leave("k");
    }
    // One that keeps what it gets is called by its id too, and marks.
    let token = lock.keeps("k", Write);
    let mut calls = lock.calls();
    lock.ask("a", Write, Wish { letters: "kt", ..TRY });
    assert_eq!(calls.heard(&mut lock), [format!("{token} a")]);
    lock.leave("k");
    lock.ask("a", Write, Wish { letters: "kt", ..TRY });
    assert!(lock.is_marked());
    lock.leave("a");
    for what in ["a grant", "a repeat"] {
        lock.ask("b", Write, TRY);
        assert!(!lock.is_marked(), "{what}: who only tries does not keep it");
    }
}

fn try_at_once_is_told_that_the_hold_is_kept(mut lock: Lock) {
    for (mode, others) in [(Write, [Write, Read].as_slice()), (Read, [Write].as_slice())] {
        for more in [false, true] {
            lock.granted("k", mode);
            if more && mode == Read {
                lock.granted("l", Read);
            }
            for other in others {
                let asked = lock.ask("t", *other, Wish::default());
                assert!(
                    matches!(asked, Acquired::Contended { .. }),
                    "{other:?} beside an unmarked {mode:?}: {asked:?}"
                );
            }
            lock.keeps("k", mode);
            let (mut calls, before) = (lock.calls(), lock.snapshot());
            for other in others {
                let asked = lock.ask("t", *other, Wish::default());
                assert!(
                    matches!(asked, Acquired::Kept { retry_in_ms } if retry_in_ms > LEASE_MS / 2),
                    "{other:?} beside {mode:?}: {asked:?}"
                );
            }
            assert_eq!(calls.heard(&mut lock), [""; 0]);
            assert_eq!(lock.snapshot(), before, "it leaves nothing behind");
            lock.leave("k");
            lock.leave("l");
        }
    }
}

fn try_takes_no_place_where_it_calls_nobody(mut lock: Lock) {
    for inside in [&[Write][..], &[Read], &[Read, Read]] {
        for (reader, mode) in ["k", "l"].into_iter().zip(inside) {
            lock.granted(reader, *mode);
        }
        let before = lock.snapshot();
        let asked = lock.ask("t", Write, TRY);
        assert!(matches!(asked, Acquired::Contended { .. }), "beside {inside:?}: {asked:?}");
        assert_eq!(lock.snapshot(), before, "it leaves nothing behind");
        // One that it has stays: it is to be given back.
        lock.keeps("k", inside[0]);
        lock.tries("t", Write);
        lock.delete_field("k");
        let asked = lock.ask("t", Write, TRY);
        assert!(matches!(asked, Acquired::Queued { is_kept: false, .. }), "beside {inside:?}: {asked:?}");
        for id in ["t", "k", "l"] {
            lock.leave(id);
        }
    }
    // A reader that only a waiting writer keeps out calls nobody either.
    lock.keeps("k", Read);
    lock.queued("w", Write);
    let asked = lock.ask("t", Read, TRY);
    assert!(matches!(asked, Acquired::Contended { .. }), "{asked:?}");
}

fn used_is_told_to_the_trys_manager(mut lock: Lock) {
    let id = format!("{MANAGER}.7.label");
    lock.keeps("k", Write);
    lock.tries(&id, Write);
    let mut hears = Listener::new(&lock, &lock.wake_channel(MANAGER));
    let before = lock.snapshot();
    lock.used(&id);
    assert_eq!(hears.heard(&mut lock), [format!("used {id}")]);
    assert_eq!(lock.snapshot(), before, "nothing changes");
}

fn what_is_no_id_is_told_to_nobody(mut lock: Lock) {
    let mut hears = Listener::new(&lock, &lock.wake_channel(MANAGER));
    let longest = format!("{MANAGER}.7.{:l<83}", "");
    assert_eq!(longest.len(), 118);
    let longer = format!("{longest}l");
    for other in ["", &format!("{MANAGER}.7.a b"), &format!("{MANAGER}.7.a\nb"), &format!("{MANAGER}.7.a\0b"), &longer]
    {
        let reply = lock.try_run("used", &[other]);
        assert!(reply.error().is_some(), "{other:?}: {reply:?}");
    }
    assert_eq!(hears.heard(&mut lock), [""; 0]);
    lock.used(&longest);
    assert_eq!(hears.heard(&mut lock), [format!("used {longest}")]);
}
