//! What only the two-key scheme has: publishing, the writer's string, dead members.

use crate::{
    invariants,
    lab::{LEASE_MS, LONG_MS, Left, Listener, Lock, Mode, Read, Renewed, Write, two_key_cases},
};

two_key_cases!(shared:
    publishes_when_the_lock_becomes_takeable,
    publishing_without_the_right_does_not_undo,
    writers_string_without_ttl_gets_the_callers_lease,
    writers_string_of_a_stranger_blocks_like_one,
    dead_readers_are_removed_at_most_a_hundred_at_a_time,
    readers_key_holds_the_token_alone_in_the_end,
    writers_string_goes_at_its_deadline,
    downgrade_tells_waiting_readers,
);

fn publishes_when_the_lock_becomes_takeable(mut lock: Lock) {
    let mut listener = Listener::new(&lock, &lock.channel);
    lock.granted("w", Write);
    lock.contended("b", Write);
    lock.leave("b");
    lock.renewed("w", LEASE_MS);
    assert_eq!(listener.heard(&mut lock), [""; 0]);
    lock.leave("w");
    assert_eq!(listener.heard(&mut lock), ["w"]);
    lock.leave("w");
    assert_eq!(listener.heard(&mut lock), [""; 0]);

    lock.granted("a", Read);
    lock.granted("b", Read);
    lock.leave("a");
    assert_eq!(listener.heard(&mut lock), [""; 0], "b still reads");
    lock.leave("b");
    assert_eq!(listener.heard(&mut lock), ["b"]);

    lock.granted("a", Read);
    lock.granted_for("dead", Read, LONG_MS);
    lock.expire("dead");
    lock.leave("a");
    assert_eq!(listener.heard(&mut lock), ["a"], "a dead one is nobody");
    lock.leave("dead");
    assert_eq!(listener.heard(&mut lock), [""; 0]);

    lock.force();
    assert_eq!(listener.heard(&mut lock), [""]);
}

fn publishing_without_the_right_does_not_undo(mut lock: Lock) {
    let user = lock.channel.replace(' ', "-");
    let rights = ["on", ">pw", "~*", "+@all", "resetchannels"];
    lock.command(&[&["ACL", "SETUSER", &user][..], &rights].concat());
    lock.command(&["AUTH", &user, "pw"]);
    let publish = ["SPUBLISH", &lock.channel, "x"];
    let refused = lock.client.command(&publish).expect("the server answers");
    assert!(refused.error().is_some_and(|text| text.starts_with("NOPERM")), "{refused:?}");

    lock.granted("w", Write);
    assert_eq!(lock.leave("w"), Left::Held);
    lock.granted("r", Read);
    assert_eq!(lock.leave("r"), Left::Held);
    lock.granted("w", Write);
    assert_eq!(lock.force(), ["w"]);
    lock.granted("w", Write);
    assert_eq!(lock.inspect().ids(), ["w"]);
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

fn readers_key_holds_the_token_alone_in_the_end(mut lock: Lock) {
    lock.granted("a", Read);
    lock.granted("b", Read);
    lock.leave("a");
    lock.leave("b");
    lock.granted("w", Write);
    lock.leave("w");
    let members = invariants::members(&mut lock);
    assert_eq!(members.into_keys().collect::<Vec<_>>(), ["#token"]);
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
    let mut listener = Listener::new(&lock, &lock.channel);
    lock.granted("w", Write);
    lock.turned("w", "r", Read);
    assert_eq!(listener.heard(&mut lock), ["w"]);
    lock.turned("w", "r", Read);
    lock.turned("r", "v", Write);
    assert_eq!(listener.heard(&mut lock), [""; 0]);
}
