//! A client of the published scheme overwrote or removed our stamp: what is mended, and what is given up as lost.

use crate::lab::{
    LEASE_MS, LONG_MS, Left, Lock, Mode, READ_LIMIT_MS, Read, Renewed, WRITE_LIMIT_MS, Write, hash_cases,
};

hash_cases!(shared:
    overwritten_read_stamp_is_covered_by_the_next_of_us,
    removed_read_stamp_is_written_again,
    newest_covered_stamp_is_kept,
    foreign_read_stamp_stays_when_the_last_of_us_leaves,
    covered_stamp_returns_when_no_stamp_is_there,
    stamp_covers_the_longest_reader,
    stamp_rises_above_a_foreign_one_in_the_future,
    dead_writer_takes_its_stamp_along,
    intruder_beside_readers_is_noticed,
    dead_intruder_beside_readers_goes_with_the_next_grant,
    readers_overrun_by_a_dead_intruder_are_told_so,
    readers_after_an_intruder_are_not_overrun,
    absence_after_an_intruder_is_never_known,
    absence_after_a_dead_intruder_is_never_known,
    reader_beside_an_intruder_never_comes_back_with_the_old_token,
    only_the_answer_to_its_repeat_tells_an_overrun_reader,
    overwritten_writer_is_lost,
    overwritten_writer_that_asks_again_begins_anew,
    foreign_writer_in_the_gap_is_not_protected_against,
);

const LOST: Renewed = Renewed::Lost { forced: 0 };
const NONE: Left = Left::None { forced: 0 };

fn overwritten_read_stamp_is_covered_by_the_next_of_us(mut lock: Lock) {
    // Who comes next: a newcomer, a repeat, a renewal.
    let nexts: [fn(&mut Lock); 3] = [
        |lock| _ = lock.granted("b", Read),
        |lock| _ = lock.granted("a", Read),
        |lock| _ = lock.renewed("a", LEASE_MS),
    ];
    for next in nexts {
        lock.granted("a", Read);
        let stamp_ms = lock.they_hold(Read);
        assert_eq!(lock.field_ms("read"), stamp_ms);
        next(&mut lock);
        assert_eq!(lock.field_ms("v"), stamp_ms);
        assert_eq!(lock.field("read"), lock.field("m"));
        lock.they_leave(Read, stamp_ms);
        let now_ms = lock.now_ms();
        assert!(!lock.their_lock(Write, now_ms));
        lock.contended("w", Write);
        lock.force();
    }
}

fn removed_read_stamp_is_written_again(mut lock: Lock) {
    let nexts: [fn(&mut Lock); 3] = [
        |lock| _ = lock.granted("b", Read),
        |lock| _ = lock.granted("a", Read),
        |lock| _ = lock.renewed("a", LEASE_MS),
    ];
    for next in nexts {
        lock.granted("a", Read);
        let stamp_ms = lock.they_hold(Read);
        lock.they_leave(Read, stamp_ms);
        assert_eq!(lock.field("read"), None);
        lock.contended("w", Write); // ours are not misled
        next(&mut lock);
        assert_eq!(lock.field("read"), lock.field("m"));
        assert_eq!(lock.field("v"), None);
        lock.force();
    }
}

fn newest_covered_stamp_is_kept(mut lock: Lock) {
    lock.granted("a", Read);
    let now_ms = lock.now_ms();
    for (stamp_ms, covered_ms) in [(now_ms, now_ms), (now_ms + 9, now_ms + 9), (now_ms + 5, now_ms + 9)] {
        for renewal in [false, true] {
            assert!(lock.their_lock(Read, stamp_ms));
            if renewal {
                lock.renewed("a", LEASE_MS);
            } else {
                lock.granted("a", Read);
            }
            assert_eq!(lock.field_ms("v"), covered_ms);
        }
    }
    assert_eq!(lock.leave("a"), Left::Held);
    assert_eq!(lock.field_ms("read"), now_ms + 9);
}

fn foreign_read_stamp_stays_when_the_last_of_us_leaves(mut lock: Lock) {
    let first_ms = lock.they_hold(Read);
    lock.granted("a", Read);
    let stamp_ms = first_ms + 1;
    assert!(lock.their_lock(Read, stamp_ms));
    assert_eq!(lock.leave("a"), Left::Held);
    assert_eq!(lock.field_ms("read"), stamp_ms, "theirs, the newer");
    assert_eq!(lock.field("v"), None);

    lock.force();
    lock.granted("a", Read);
    let stamp_ms = lock.they_hold(Read);
    assert_eq!(lock.leave("a"), Left::Held);
    assert_eq!(lock.field_ms("read"), stamp_ms, "theirs, not covered yet");
}

fn covered_stamp_returns_when_no_stamp_is_there(mut lock: Lock) {
    let first_ms = lock.they_hold(Read);
    lock.granted("a", Read);
    let second_ms = first_ms + 1;
    assert!(lock.their_lock(Read, second_ms));
    lock.they_leave(Read, second_ms);
    assert_eq!(lock.leave("a"), Left::Held);
    assert_eq!(lock.field_ms("read"), first_ms, "that one may still be inside");

    lock.force();
    lock.granted("a", Read);
    let stamp_ms = lock.they_hold(Read);
    lock.they_leave(Read, stamp_ms);
    assert_eq!(lock.leave("a"), Left::Held);
    assert_eq!(lock.field("read"), None, "nobody");
}

fn stamp_covers_the_longest_reader(mut lock: Lock) {
    lock.granted("short", Read);
    lock.granted_for("long", Read, LONG_MS);
    let stamp_ms = lock.field_ms("read");
    assert_eq!(lock.field_ms("Rlong"), stamp_ms);
    lock.granted("short", Read);
    lock.renewed("short", LEASE_MS);
    lock.granted("third", Read);
    assert_eq!(lock.field_ms("read"), stamp_ms);
    lock.renewed("short", 2 * LONG_MS);
    assert!(lock.field_ms("read") > stamp_ms);
    assert_eq!(lock.field_ms("read"), lock.field_ms("Rshort"));
    // A new phase starts low again, also when the old one died.
    for id in ["short", "long", "third"] {
        lock.expire(id);
    }
    lock.granted("new", Read);
    assert_eq!(lock.field_ms("read"), lock.field_ms("Rnew"));
}

fn stamp_rises_above_a_foreign_one_in_the_future(mut lock: Lock) {
    for renewal in [false, true] {
        lock.granted("a", Read);
        let ahead_ms = lock.now_ms() + LONG_MS;
        assert!(lock.their_lock(Read, ahead_ms));
        if renewal {
            lock.renewed("a", LEASE_MS);
        } else {
            lock.granted("a", Read);
        }
        assert_eq!(lock.field("read"), Some(format!("{ahead_ms}.0")), "and never equals theirs");
        lock.force();
    }
}

fn dead_writer_takes_its_stamp_along(mut lock: Lock) {
    for renewal in [false, true] {
        lock.granted("a", Write);
        lock.expire("a");
        if renewal {
            assert_eq!(lock.renew("a", LEASE_MS), LOST);
        } else {
            assert_eq!(lock.leave("a"), NONE);
        }
        assert_eq!(lock.field("write"), None);
        assert_eq!(lock.inspect().ids(), [""; 0]);
        let now_ms = lock.now_ms();
        assert!(lock.their_lock(Write, now_ms), "their limit has not to pass");
        lock.they_leave(Write, now_ms);
    }
}

fn intruder_beside_readers_is_noticed(mut lock: Lock) {
    lock.granted("a", Read);
    lock.granted("b", Read);
    // The published flaw lets them in, as below.
    let stamp_ms = lock.now_ms();
    lock.set_field("write", stamp_ms);
    assert!(lock.contended("c", Read) > WRITE_LIMIT_MS / 2);
    assert_eq!(lock.renew("a", LEASE_MS), LOST);
    assert_eq!(lock.leave("b"), NONE);
    assert_eq!(lock.inspect().ids(), [""; 0]);
    assert_eq!(lock.leave("a"), NONE);
    assert_eq!(lock.field_ms("write"), stamp_ms, "theirs to delete");
    lock.they_leave(Write, stamp_ms);
    lock.granted("w", Write);
}

fn dead_intruder_beside_readers_goes_with_the_next_grant(mut lock: Lock) {
    lock.granted("a", Read);
    let dead_ms = lock.now_ms() - WRITE_LIMIT_MS - 1;
    lock.set_field("write", dead_ms);
    lock.granted("b", Read);
    assert_eq!(lock.field("write"), None);
    assert_eq!(lock.leave("b"), Left::Held);

    lock.set_field("write", dead_ms);
    assert_eq!(lock.renew("a", LEASE_MS), LOST, "it had been inside, dead or not");
    lock.granted("w", Write);
}

impl Lock {
    /// An intruder comes in beside our readers, and its limit passes.
    fn was_overrun(&mut self) {
        let dead_ms = self.now_ms() - WRITE_LIMIT_MS - 1;
        self.set_field("write", dead_ms);
        self.tick();
    }

    /// Waits for another millisecond.
    fn tick(&mut self) {
        let now_ms = self.now_ms();
        while self.now_ms() == now_ms {}
    }
}

fn readers_overrun_by_a_dead_intruder_are_told_so(mut lock: Lock) {
    // Who removes the evidence: a newcomer, or one of the overrun that repeats.
    for next in ["new", "a"] {
        for renewal in [true, false] {
            let before = lock.granted("a", Read);
            lock.granted("b", Read);
            lock.was_overrun();
            assert!(lock.granted(next, Read) > before, "a new acquisition, and never with the old token");
            assert_eq!(lock.field("write"), None);
            for id in ["a", "b"].into_iter().filter(|id| *id != next) {
                if renewal {
                    assert_eq!(lock.renew(id, LEASE_MS), LOST, "{id}");
                    assert_eq!(lock.renew(id, LEASE_MS), LOST, "{id}");
                }
                assert_eq!(lock.leave(id), NONE, "{id}");
            }
            lock.renewed(next, LEASE_MS);
            assert_eq!(lock.leave(next), Left::Held);
            assert_eq!(lock.field("o"), None, "it goes with the last reader");
            lock.granted("w", Write);
            assert_eq!(lock.leave("w"), Left::Held);
        }
    }
    // Dead ones are in no writer's way, and take the mark along.
    lock.granted("a", Read);
    lock.was_overrun();
    lock.granted("b", Read);
    for id in ["a", "b"] {
        lock.expire(id);
    }
    lock.granted("w", Write);
    assert_eq!(lock.field("o"), None);
}

fn readers_after_an_intruder_are_not_overrun(mut lock: Lock) {
    lock.granted("old", Read);
    lock.was_overrun();
    for id in ["a", "b", "c"] {
        lock.granted(id, Read);
        lock.renewed(id, LEASE_MS);
    }
    // Slots change as others leave; what a reader is does not.
    assert_eq!(lock.leave("old"), NONE);
    lock.renewed("b", LEASE_MS);
    for id in ["a", "b", "c"] {
        assert_eq!(lock.leave(id), Left::Held, "{id}");
    }
    // A second intruder, and a phase that begins beside dead readers only.
    lock.granted("old", Read);
    lock.was_overrun();
    lock.granted("a", Read);
    lock.was_overrun();
    lock.granted("b", Read);
    assert_eq!(lock.renew("a", LEASE_MS), LOST);
    assert_eq!(lock.renew("old", LEASE_MS), LOST);
    lock.expire("b");
    lock.granted("new", Read);
    lock.renewed("new", LEASE_MS);
    assert_eq!(lock.leave("new"), Left::Held);
}

impl Lock {
    /// Releases `id`, which is not there any more. Whether its token counts as known, so that a client whose earlier copy of the
    /// release went unanswered takes that for the one that ended the hold.
    fn absence_is_known(&mut self, id: &str, token: i64) -> bool {
        assert_eq!(self.leave(id), NONE, "{id}");
        let (last, first) = self.known;
        (first..=last).contains(&token)
    }

    /// Who comes after an intruder is known again.
    fn later_holds_are_known(&mut self) {
        for mode in [Write, Read] {
            let token = self.granted("later", mode);
            assert_eq!(self.leave("later"), Left::Held);
            assert!(self.absence_is_known("later", token));
        }
    }
}

fn absence_after_an_intruder_is_never_known(mut lock: Lock) {
    // What was answered while the intruder was inside, and got lost on the way.
    let answers: [fn(&mut Lock, Mode); 3] = [
        |lock, _| assert_eq!(lock.leave("a"), NONE),
        |lock, _| assert_eq!(lock.renew("a", LEASE_MS), LOST),
        |lock, mode| _ = lock.contended("a", mode),
    ];
    for (n, answer) in answers.into_iter().enumerate() {
        for mode in [Read, Write] {
            let token = lock.granted("a", mode);
            let stamp_ms = lock.they_hold_by_force();
            answer(&mut lock, mode);
            lock.they_leave(Write, stamp_ms);
            assert!(!lock.absence_is_known("a", token), "answer {n}, {mode:?}");
            lock.later_holds_are_known();
        }
        // Several readers.
        let token = lock.granted("a", Read);
        lock.granted("b", Read);
        let stamp_ms = lock.they_hold_by_force();
        answer(&mut lock, Read);
        lock.they_leave(Write, stamp_ms);
        assert!(!lock.absence_is_known("a", token), "answer {n}");
        lock.leave("b");
        lock.later_holds_are_known();
    }
    // Nobody's stamp in the place of our writer's.
    let token = lock.granted("a", Write);
    lock.delete_field("write");
    assert_eq!(lock.renew("a", LEASE_MS), LOST);
    assert!(!lock.absence_is_known("a", token));
    lock.later_holds_are_known();
}

fn absence_after_a_dead_intruder_is_never_known(mut lock: Lock) {
    for next in ["new", "b"] {
        let token = lock.granted("a", Read);
        lock.granted("b", Read);
        lock.was_overrun();
        let later = lock.granted(next, Read);
        assert_eq!(lock.leave("a"), NONE);
        assert!(!lock.absence_is_known("a", token));
        assert_eq!(lock.leave(next), Left::Held);
        assert!(lock.absence_is_known(next, later), "it came after the intruder");
        lock.leave("b");
        lock.later_holds_are_known();
    }
}

fn reader_beside_an_intruder_never_comes_back_with_the_old_token(mut lock: Lock) {
    let before = lock.granted("a", Read);
    lock.granted("b", Read);
    let stamp_ms = lock.they_hold_by_force();
    lock.contended("a", Read);
    lock.they_leave(Write, stamp_ms);
    assert!(lock.granted("a", Read) > before, "beside the other, but as a new acquisition");
}

fn only_the_answer_to_its_repeat_tells_an_overrun_reader(mut lock: Lock) {
    let before = lock.granted("a", Read);
    lock.was_overrun();
    assert!(lock.granted("a", Read) > before, "another hold under this id");
    // If that answer is lost nobody learns of it: the limit that `docs/PROTOCOL.md` names.
    lock.renewed("a", LEASE_MS);
    assert_eq!(lock.leave("a"), Left::Held);
}

fn overwritten_writer_is_lost(mut lock: Lock) {
    for foreign in [true, false] {
        for renewal in [true, false] {
            lock.granted("a", Write);
            let stamp_ms = lock.now_ms();
            if foreign {
                lock.set_field("write", stamp_ms);
            } else {
                lock.delete_field("write");
            }
            assert!(lock.contended("b", Read) > LEASE_MS / 2, "its holder does not know");
            assert_eq!(lock.inspect().ids(), [""; 0]);
            if renewal {
                assert_eq!(lock.renew("a", LEASE_MS), LOST);
                assert_eq!(lock.field_ms("D"), 0, "dead from now on");
            }
            assert_eq!(lock.leave("a"), NONE);
            assert_eq!(lock.field("W"), None);
            if foreign {
                assert_eq!(lock.field_ms("write"), stamp_ms, "theirs to delete");
                lock.contended("b", Write);
                lock.they_leave(Write, stamp_ms);
            }
            lock.granted("b", Write);
            assert_eq!(lock.leave("b"), Left::Held);
        }
    }
    // A force lists what was live, and this was not.
    lock.granted("a", Write);
    lock.delete_field("write");
    assert_eq!(lock.force(), [""; 0]);
}

fn overwritten_writer_that_asks_again_begins_anew(mut lock: Lock) {
    let token = lock.granted("a", Write);
    let stamp_ms = lock.they_hold_by_force();
    lock.contended("a", Write);
    lock.they_leave(Write, stamp_ms);
    let again = lock.granted("a", Write);
    assert!(again > token, "somebody was inside in between");
    assert_eq!(lock.granted("a", Write), again);
    assert_eq!(lock.leave("a"), Left::Held);
}

impl Lock {
    /// Puts their `write` where they would have been refused.
    fn they_hold_by_force(&mut self) -> i64 {
        let stamp_ms = self.now_ms();
        self.set_field("write", stamp_ms);
        stamp_ms
    }
}

fn foreign_writer_in_the_gap_is_not_protected_against(mut lock: Lock) {
    lock.granted_for("a", Read, LONG_MS);
    let reader_ms = lock.they_hold(Read);
    lock.they_leave(Read, reader_ms);
    let writer_ms = lock.they_hold(Write); // beside our reader: one stamp for all readers
    lock.they_leave(Write, writer_ms);
    // It came and went before we looked: nobody can know.
    assert!(matches!(lock.renew("a", LEASE_MS), Renewed::Renewed { .. }));
    // From then on they are kept out again.
    let now_ms = lock.now_ms();
    assert!(!lock.their_lock(Write, now_ms + READ_LIMIT_MS));
}
