//! Pending writes and old values: faults that an order of the parts of a script can bring. After each script the lab checks
//! the invariants, which most of these faults break.

use crate::lab::{Left, Lock, READ_LIMIT_MS, Read, Wish, Write, hash_cases};

hash_cases!(shared:
    foreign_read_equal_to_our_deadline_is_foreign,
    dead_first_waiters_leave_no_link,
    upgrade_deletes_a_stamp_of_the_same_script,
    downgrade_of_an_admitted_writer_forgets_the_covered_stamp,
    dead_waiter_begins_anew_in_its_own_place,
);

/// One script looks at two records.
mod limited {
    use super::*;

    hash_cases!(limited:
        dead_first_waiter_begins_anew_behind_removed_ones,
        own_dead_record_is_removed_after_new_slots_are_written,
    );
}

/// A foreign `read` may have the text of our writer's deadline. Only `write` is the writer's stamp.
fn foreign_read_equal_to_our_deadline_is_foreign(mut lock: Lock) {
    lock.granted("w", Write);
    let deadline_ms = lock.field_ms("write");
    lock.set_field("read", deadline_ms);
    lock.queued("v", Write);
    assert_eq!(lock.leave("w"), Left::Held);
    assert_eq!(lock.holders(), [""; 0], "the foreign reader is inside");
    assert_eq!(lock.field_ms("read"), deadline_ms);
    lock.contended("u", Write);
}

/// The link back of the new first waiter is not written if that waiter is removed in the same script.
fn dead_first_waiters_leave_no_link(mut lock: Lock) {
    for last in [false, true] {
        lock.granted("r", Read);
        for id in ["a", "b"] {
            lock.queued(id, Write);
        }
        if last {
            lock.queued("c", Write);
        }
        for id in ["a", "b"] {
            lock.expire(id);
        }
        assert_eq!(lock.leave("r"), Left::Held);
        assert_eq!(lock.holders(), if last { vec!["c"] } else { vec![] });
        for name in ["Pa", "Na", "Ua", "Pb", "Nb", "Ub", "Pc", "Nc", "Uc"] {
            assert_eq!(lock.field(name), None, "{name}");
        }
        lock.leave("c");
    }
}

/// The first waiter is dead, but there were too many dead ones before it to remove it. When it begins anew, its old link
/// names a removed waiter.
fn dead_first_waiter_begins_anew_behind_removed_ones(mut lock: Lock) {
    for others in [false, true] {
        lock.granted("r", Read);
        for id in ["a", "b", "c"] {
            lock.queued(id, Write);
        }
        if others {
            lock.queued("d", Write);
        }
        for id in ["a", "b", "c"] {
            lock.expire(id);
        }
        lock.queued("c", Write);
        assert_eq!(lock.field("N").as_deref(), Some(if others { "d" } else { "c" }), "the first");
        assert_eq!(lock.field("P").as_deref(), Some("c"), "the last");
        lock.leave("r");
        assert_eq!(lock.holders(), [if others { "d" } else { "c" }]);
        lock.leave("d");
        assert_eq!(lock.holders(), ["c"]);
        assert_eq!(lock.leave("c"), Left::Held);
        assert_eq!(lock.holders(), [""; 0]);
    }
}

/// The record moves another reader into its slot, which may have entered in the same script.
fn own_dead_record_is_removed_after_new_slots_are_written(mut lock: Lock) {
    lock.granted("w", Write);
    for id in ["a", "b", "c", "d"] {
        lock.queued(id, Read);
    }
    lock.queued("v", Write);
    assert_eq!(lock.leave("w"), Left::Held);
    let (first, second) = (lock.field("r1").expect("a reader"), lock.field("r2").expect("a reader"));
    assert_eq!(lock.field("a").as_deref(), Some("2"), "two of the four entered");
    lock.expire(&first);
    lock.queued(&first, Read); // lets in the other two, and waits behind the writer
    assert_eq!(lock.field("a").as_deref(), Some("3"), "one went and two entered");
    for id in ["a", "b", "c", "d"] {
        assert_eq!(lock.field(&format!("R{id}")).is_some(), id != first, "{id}");
    }
    assert!(lock.field(&format!("s{second}")).is_some());
}

/// A reader that enters in a conversion stamps `read`. The conversion of this reader deletes the stamp.
fn upgrade_deletes_a_stamp_of_the_same_script(mut lock: Lock) {
    lock.granted("w", Write);
    lock.queued("r", Read);
    lock.expire("w");
    lock.turned("r", "v", Write);
    assert_eq!(lock.holders(), ["v"]);
    assert_eq!(lock.field("read"), None);
    assert_eq!(lock.leave("v"), Left::Held);
    lock.granted("u", Write);
}

/// A writer enters after the limit of a covered stamp, so the stamp ends with the readers before.
fn downgrade_of_an_admitted_writer_forgets_the_covered_stamp(mut lock: Lock) {
    lock.granted("a", Read);
    let over_ms = lock.now_ms() - READ_LIMIT_MS - 1_000;
    lock.set_field("v", over_ms);
    lock.queued("w", Write);
    lock.expire("a");
    lock.turned("w", "r", Read);
    assert_eq!(lock.holders(), ["r"]);
    assert_eq!(lock.field("v"), None);
    assert_eq!(lock.leave("r"), Left::Held);
    assert_eq!(lock.field("read"), None);
}

/// A dead waiter that begins anew in the place that it had is not deleted with that place.
fn dead_waiter_begins_anew_in_its_own_place(mut lock: Lock) {
    lock.granted("w", Write);
    for id in ["a", "b"] {
        lock.queued(id, Read);
    }
    lock.expire("b");
    lock.queued("b", Read);
    assert_eq!(lock.waiters(), ["a", "b"]);
    lock.expire("a");
    let args = lock.wish_args("a", Write, Wish::patient());
    lock.try_run("acquire", &args);
    assert_eq!(lock.waiters(), ["a", "b"], "it waits to write now");
    assert_eq!(lock.leave("w"), Left::Held);
    assert_eq!(lock.holders(), ["b"]);
    lock.leave("b");
    assert_eq!(lock.holders(), ["a"]);
}
