//! Who holds is told by each answer whether somebody waits whom the hold keeps out.

use super::{KEEP, KEEP_WAITING};
use crate::lab::{Acquired, LEASE_MS, Listener, Lock, MOST_RECORDS, Read, Turned, Wish, Write, hash_cases};

hash_cases!(shared:
    renewal_tells_whether_somebody_waits,
    repeat_tells_a_writer_of_waiting_readers,
    conversion_tells_a_writer_of_waiting_readers,
    notice_tells_a_writer_of_waiting_readers,
    readers_are_not_told_of_the_rest_of_their_turn,
);

impl Lock {
    /// Who waits was not heard of for long, by its own record and by the header.
    fn not_heard_of(&mut self, id: &str) {
        self.expire(id);
        let past_ms = self.field_ms(&format!("U{id}"));
        self.set_field("u", past_ms);
    }

    /// What a repeat of the writer's acquisition is told.
    fn is_waited_for(&mut self, id: &str) -> bool {
        let repeated = self.ask(id, Write, KEEP_WAITING);
        let Acquired::Granted { waited_for, .. } = repeated else { panic!("{id}: {repeated:?}") };
        waited_for
    }
}

fn renewal_tells_whether_somebody_waits(mut lock: Lock) {
    for more in [false, true] {
        lock.keeps("k", Read);
        if more {
            lock.granted("l", Read);
        }
        assert!(!lock.renew_kept("k", 0).waited_for);
        lock.queued("w", Write);
        assert!(lock.renew_kept("k", 0).waited_for);
        lock.leave("w");
        assert!(!lock.renew_kept("k", 0).waited_for);
        lock.queued("w", Write);
        lock.not_heard_of("w");
        assert!(!lock.renew_kept("k", 0).waited_for, "it was not heard of for long");
        lock.leave("w");
        // Waiting readers of a lock that is read are behind a writer that died: nothing keeps them out but that they ask.
        lock.queued("w", Write);
        lock.queued("r", Read);
        lock.leave("w");
        lock.leave("l");
        lock.leave("r");
        lock.leave("k");
    }
    lock.keeps("k", Write);
    for mode in [Read, Write] {
        assert!(!lock.renew_kept("k", 0).waited_for);
        lock.queued("a", mode);
        assert!(lock.renew_kept("k", 0).waited_for, "{mode:?}");
        lock.leave("a");
    }
    lock.queued("a", Read);
    lock.not_heard_of("a");
    assert!(!lock.renew_kept("k", 0).waited_for, "nobody was heard of for long");
    assert_eq!(lock.renewed("k", LEASE_MS), LEASE_MS, "who does not keep it is told nothing more");
}

fn repeat_tells_a_writer_of_waiting_readers(mut lock: Lock) {
    lock.keeps("k", Write);
    lock.queued("r", Read);
    assert!(lock.is_waited_for("k"));
    lock.leave("r");
    assert!(!lock.is_waited_for("k"));
    lock.queued("r", Read);
    lock.not_heard_of("r");
    assert!(!lock.is_waited_for("k"), "nobody was heard of for long");
}

fn conversion_tells_a_writer_of_waiting_readers(mut lock: Lock) {
    let repeated = |lock: &mut Lock| {
        let turned = lock.turn("r", "w", Write, KEEP);
        let Turned::Granted { waited_for, .. } = turned else { panic!("{turned:?}") };
        waited_for
    };
    lock.granted("r", Read);
    assert!(!repeated(&mut lock));
    lock.queued("a", Read);
    assert!(repeated(&mut lock));
    lock.not_heard_of("a");
    assert!(!repeated(&mut lock), "nobody was heard of for long");
}

fn notice_tells_a_writer_of_waiting_readers(mut lock: Lock) {
    for waits in [true, false] {
        lock.granted("a", Read);
        lock.queued("w", Write);
        lock.queued("r", Read);
        if !waits {
            lock.leave("r");
        }
        let mut notices = Listener::new(&lock, &lock.wake_channel("w"));
        lock.leave("a");
        let heard = notices.heard(&mut lock).concat();
        assert!(heard.ends_with(if waits { " 1" } else { " 0" }), "{heard}");
        lock.leave("w");
        lock.leave("r");
    }
}

/// More than one script lets in, so that some are left after the next as well.
fn readers_are_not_told_of_the_rest_of_their_turn(mut lock: Lock) {
    lock.granted("w", Write);
    for n in 0..2 * MOST_RECORDS + 1 {
        let args = lock.wish_args(&format!("r{n}"), Read, Wish::patient());
        lock.try_run("acquire", &args);
    }
    lock.leave("w");
    let first = lock.holders().remove(0);
    assert!(!lock.renew_kept(&first, 0).waited_for);
    let repeated = lock.ask(&first, Read, KEEP);
    assert!(matches!(repeated, Acquired::Granted { waited_for: false, .. }), "{repeated:?}");
    assert_eq!(lock.field_ms("turn readers"), 1, "one is left");
}
