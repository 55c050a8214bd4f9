//! The hash scheme: tokens at full speed, when its hash becomes a table, how dead readers are found, and what is no id.

use cluster_testenv::Reply;

use crate::invariants;
use crate::lab::{Listener, Lock, Read, Wish, Write, hash_cases};
use crate::transcripts::MANAGER;

hash_cases!(shared:
    tokens_grow_across_a_loss_at_full_speed,
    holder_makes_the_hash_a_table,
    waiting_writer_makes_the_hash_a_table,
    eighth_waiting_reader_makes_the_hash_a_table,
    eighth_reader_makes_the_hash_a_table,
    dead_reader_among_live_ones_is_found_in_the_long_run,
    what_is_no_id_is_told_to_nobody,
);

/// As many grants as the server can do, then the key is lost.
fn tokens_grow_across_a_loss_at_full_speed(mut lock: Lock) {
    let wish = Wish { turns: 64, ..Wish::AT_ONCE };
    let (take, give) = (lock.wish_args("a", Write, wish), lock.leave_args("a"));
    let pairs: Vec<_> = (0..500).flat_map(|_| [("acquire", take.clone()), ("leave", give.clone())]).collect();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(2);
    let (mut last, mut clock_us) = (0, 0);
    while std::time::Instant::now() < until {
        for reply in lock.pipeline(&pairs).iter().step_by(2) {
            let words: Vec<i64> = words(reply).iter().skip(2).map(|word| word.parse().expect("a number")).collect();
            let [seconds, micros, last_token, turns, ..] = words[..] else { panic!("{reply:?}") };
            assert!(last_token - turns >= last, "tokens grow");
            last = last_token;
            let now_us = seconds * 1_000_000 + micros;
            // A clock that was set back some microseconds is passed by one token for each grant.
            clock_us = now_us.max(clock_us + 1);
            assert!(last <= clock_us, "{} us ahead of the clock", last - now_us);
        }
    }
    lock.delete();
    assert!(lock.granted("b", Write) > last);
}

fn words(reply: &Reply) -> Vec<String> {
    reply.text().expect("a text").split(' ').map(str::to_owned).collect()
}

fn own(n: usize) -> String {
    format!("{MANAGER}.{n}.label")
}

/// Headers with an id are long, with one as long as those of managers are.
fn holder_makes_the_hash_a_table(mut lock: Lock) {
    for mode in [Read, Write] {
        lock.granted(&own(1), mode);
        assert_eq!(lock.encoding(), "hashtable");
        lock = lock.lab.lock(lock.scheme);
    }
}

/// The same behind somebody who does not know us.
fn waiting_writer_makes_the_hash_a_table(mut lock: Lock) {
    let now_ms = lock.now_ms();
    lock.set_field("write", now_ms);
    lock.queued(&own(1), Read);
    assert_eq!(lock.encoding(), "listpack");
    lock.queued(&own(2), Write);
    assert_eq!(lock.encoding(), "hashtable");
}

fn eighth_waiting_reader_makes_the_hash_a_table(mut lock: Lock) {
    lock.granted("w", Write);
    for n in 1..10 {
        lock.queued(&n.to_string(), Read);
        assert_eq!(lock.encoding(), if n < 8 { "listpack" } else { "hashtable" }, "{n} wait");
    }
}

fn eighth_reader_makes_the_hash_a_table(mut lock: Lock) {
    for n in 1..10 {
        lock.granted(&n.to_string(), Read);
        assert_eq!(lock.encoding(), if n < 8 { "listpack" } else { "hashtable" }, "{n} read");
    }
}

fn dead_reader_among_live_ones_is_found_in_the_long_run(mut lock: Lock) {
    for n in 0..5 {
        lock.granted(&format!("dead.{n}"), Read);
    }
    lock.granted("live", Read);
    for n in 0..5 {
        lock.expire(&format!("dead.{n}"));
    }
    // At every moment somebody is live. Six slots at most, so that a join misses one with 5/6: 2,000 do not.
    let mut before = "live".to_owned();
    for n in 0..2000 {
        let next = format!("n.{n}");
        lock.granted(&next, Read);
        lock.leave(&before);
        before = next;
        if lock.field("a").as_deref() == Some("1") {
            return;
        }
    }
    panic!("still there: {:?}", invariants::fields(&mut lock));
}

fn what_is_no_id_is_told_to_nobody(mut lock: Lock) {
    let mut hears = Listener::new(&lock, &format!("{}:wake:{MANAGER}", lock.key()));
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
