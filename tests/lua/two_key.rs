//! Layout of the two-key scheme: the writer's string, and what is left in the end.

use crate::invariants;
use crate::lab::{LEASE_MS, LONG_MS, Lock, Read, Write, two_key_cases};

two_key_cases!(shared:
    writers_string_of_a_stranger_blocks_like_one,
    readers_key_holds_tokens_alone_in_the_end,
    writers_string_goes_at_its_deadline,
);

fn writers_string_of_a_stranger_blocks_like_one(mut lock: Lock) {
    let (write_key, ttl) = (lock.keys[1].clone(), LONG_MS.to_string());
    lock.command(&["SET", &write_key, "1", "PX", &ttl]);
    for mode in [Read, Write] {
        assert!(lock.contended("a", mode) > LONG_MS / 2);
    }
    assert_eq!(lock.renew("1", LEASE_MS), "lost");
    assert_eq!(lock.leave("1"), "none");
    assert!(lock.inspect().rows[0].starts_with("hold ? w "));
    assert_eq!(lock.force(), [""; 0]);
    lock.granted("a", Read);
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
    assert!(lock.stored()[1].0.is_empty());
}

fn writers_string_goes_at_its_deadline(mut lock: Lock) {
    let write_key = lock.keys[1].clone();
    let before_ms = lock.now_ms();
    lock.granted("w", Write);
    let after_ms = lock.now_ms();
    let ends_ms = lock.int(&["PEXPIRETIME", &write_key]) - LEASE_MS;
    assert!((before_ms..=after_ms).contains(&ends_ms));
    let value = lock.text(&["GET", &write_key]);
    let token = lock.inspect().seen.token;
    assert_eq!(value, format!("w {ends_ms} {token}"));
}
