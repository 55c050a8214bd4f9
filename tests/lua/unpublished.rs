//! Answers of scripts whose notification the server refuses: their head ends with the word `unpublished`.

use cluster_testenv::Reply;

use crate::lab::{LEASE_MS, Lock, Mode, Read, Wish, Write, hash_cases, two_key_cases};

hash_cases!(alone: refused_notification_is_in_the_answer, refused_recall_is_in_the_answer);
two_key_cases!(alone: refused_notification_is_in_the_answer);

/// Runs a script, and returns whether its answer reports a refused notification.
fn is_unpublished(lock: &mut Lock, script: &'static str, args: &[String], code: &str) -> bool {
    let reply = lock.try_run(script, args);
    let head = reply.array().map_or(&reply, |rows| &rows[0]);
    let head = head.text().unwrap_or_else(|| panic!("not a text: {head:?}")).into_owned();
    assert_eq!(head.split(' ').next(), Some(code), "{head}");
    head.ends_with(" unpublished")
}

fn wait(lock: &mut Lock, id: &str, mode: Mode) {
    let args = lock.wish_args(id, mode, Wish::patient());
    assert!(matches!(lock.try_run("acquire", &args), Reply::Bulk(reply) if reply.starts_with(b"queued")), "{id} waits");
}

/// Enters after its turn has come, and returns whether the answer reports a refused notification.
fn enters(lock: &mut Lock, id: &str, mode: Mode) -> bool {
    let args = lock.wish_args(id, mode, Wish::patient());
    is_unpublished(lock, "acquire", &args, "granted")
}

fn refused_notification_is_in_the_answer(mut lock: Lock) {
    for is_refused in [false, true] {
        if is_refused {
            lock.lose_channels();
        }
        let [leave_a, leave_b, leave_c] = ["a", "b", "c"].map(|id| lock.leave_args(id));
        lock.granted("a", Write);
        assert!(!is_unpublished(&mut lock, "leave", &leave_a, "held"), "nobody waits");
        lock.granted("a", Write);
        wait(&mut lock, "b", Write);
        wait(&mut lock, "c", Read);
        assert_eq!(is_unpublished(&mut lock, "leave", &leave_a, "held"), is_refused, "from a writer to a reader");
        assert!(!enters(&mut lock, "c", Read), "an answer to the waiter itself");
        assert_eq!(is_unpublished(&mut lock, "leave", &leave_c, "held"), is_refused, "from a reader to a writer");
        assert!(!enters(&mut lock, "b", Write));
        wait(&mut lock, "a", Write);
        assert_eq!(is_unpublished(&mut lock, "leave", &leave_b, "held"), is_refused, "from a writer to a writer");
        lock.try_run("leave", &leave_a);
        // A conversion, and a force.
        lock.granted("a", Write);
        wait(&mut lock, "b", Read);
        let convert = lock.convert_args("a", "c", Read, Wish::default());
        assert_eq!(is_unpublished(&mut lock, "convert", &convert, "granted"), is_refused, "convert");
        [leave_b.clone(), leave_c].iter().for_each(|args| drop(lock.try_run("leave", args)));
        lock.granted("a", Write);
        wait(&mut lock, "b", Write);
        let seen = lock.inspect();
        let force = lock.force_args(&seen);
        assert_eq!(is_unpublished(&mut lock, "force", &force, "forced"), is_refused, "force");
        lock.try_run("leave", &leave_b);
    }
}

fn refused_recall_is_in_the_answer(mut lock: Lock) {
    for is_refused in [false, true] {
        if is_refused {
            lock.lose_channels();
        }
        let caching = Wish { letters: "k", ..Wish::default() };
        let hold = lock.wish_args("a", Write, caching);
        assert!(!is_unpublished(&mut lock, "acquire", &hold, "granted"));
        let waits = lock.wish_args("b", Write, Wish::patient());
        assert_eq!(is_unpublished(&mut lock, "acquire", &waits, "queued"), is_refused, "a waiter recalls");
        assert_eq!(is_unpublished(&mut lock, "used", &["b".to_owned()], "told"), is_refused, "used");
        for id in ["b", "a"] {
            let args = lock.leave_args(id);
            lock.try_run("leave", &args);
        }
        // Two readers: neither can be converted, and the cached hold of the other is recalled.
        for id in ["a", "b"] {
            let read = lock.wish_args(id, Read, Wish { lease_ms: LEASE_MS, ..caching });
            assert!(!is_unpublished(&mut lock, "acquire", &read, "granted"));
        }
        let convert = lock.convert_args("a", "c", Write, Wish::default());
        assert_eq!(is_unpublished(&mut lock, "convert", &convert, "kept"), is_refused, "a conversion recalls");
        let seen = lock.inspect();
        let force = lock.force_args(&seen);
        assert_eq!(is_unpublished(&mut lock, "force", &force, "forced"), is_refused, "a force recalls");
    }
}
