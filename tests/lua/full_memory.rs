//! Each write on a server whose memory is full, with both forms of the scripts.
//!
//! With the line `#!lua flags=allow-oom` the server runs a script also at full memory. Without this line, it refuses the
//! first write of a script if that write needs memory. A script whose first write frees memory may go on.

use cluster_testenv::{Reply, Server};

use crate::lab::{Form, LONG_MS, Lock, Read, Scheme, Wish, Write};

/// Outcome of a script at full memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Works(&'static str),
    /// Refused, and nothing has changed.
    Refused,
}
use Outcome::{Refused, Works};

/// Name, state of the lock before the script, script and arguments. Then the outcomes with the fast form, the portable form
/// at a hash, and the portable form at two keys.
type Case = (&'static str, fn(&mut Lock), &'static str, fn(&Lock) -> Vec<String>, [Outcome; 3]);

fn writer(lock: &mut Lock) {
    lock.granted("a", Write);
}

fn reader(lock: &mut Lock) {
    lock.granted("a", Read);
}

fn readers(lock: &mut Lock) {
    reader(lock);
    lock.granted("b", Read);
}

fn writer_and_waiter(lock: &mut Lock) {
    writer(lock);
    lock.queued("b", Write);
}

fn longer(_: &Lock) -> Vec<String> {
    vec!["a".to_owned(), LONG_MS.to_string()]
}

fn own(lock: &Lock) -> Vec<String> {
    lock.leave_args("a")
}

const CASES: [Case; 18] = [
    ("acquire a free lock", |_| {}, "acquire", |lock| lock.wish_args("a", Write, Wish::AT_ONCE), [Refused; 3]),
    (
        "acquire again",
        writer,
        "acquire",
        |lock| lock.wish_args("a", Write, Wish::AT_ONCE),
        [Refused, Refused, Works("granted")],
    ),
    ("acquire beside a reader", reader, "acquire", |lock| lock.wish_args("b", Read, Wish::AT_ONCE), [Refused; 3]),
    ("wait for a writer", writer, "acquire", |lock| lock.wish_args("b", Write, Wish::PATIENT), [Refused; 3]),
    (
        "convert a writer",
        writer,
        "convert",
        |lock| lock.convert_args("a", "b", Read, Wish::AT_ONCE),
        [Refused, Works("granted"), Works("granted")],
    ),
    (
        "convert a reader",
        reader,
        "convert",
        |lock| lock.convert_args("a", "b", Write, Wish::AT_ONCE),
        [Refused, Works("granted"), Works("granted")],
    ),
    ("renew a writer", writer, "renew", longer, [Works("renewed"), Refused, Works("renewed")]),
    ("renew a reader", reader, "renew", longer, [Works("renewed"), Refused, Refused]),
    ("renew a hold that is lost", |_| {}, "renew", longer, [Works("lost"); 3]),
    ("release a writer", writer, "leave", own, [Works("held"); 3]),
    ("release a reader", reader, "leave", own, [Works("held"); 3]),
    ("release one of several readers", readers, "leave", own, [Works("held"), Refused, Works("held")]),
    ("release to a waiter", writer_and_waiter, "leave", own, [Works("held"), Refused, Works("held")]),
    ("release a hold that is lost", |_| {}, "leave", own, [Works("none"); 3]),
    ("leave the queue", writer_and_waiter, "leave", |lock| lock.leave_args("b"), [Works("queued"); 3]),
    ("inspect", writer, "inspect", |_| Vec::new(), [Works("view"); 3]),
    ("force a writer", writer, "force", Lock::force_args_now, [Works("forced"); 3]),
    ("force readers", readers, "force", Lock::force_args_now, [Works("forced"); 3]),
];

/// Runs all cases, and returns their number.
fn run_all(form: Form, scheme: Scheme, server: Server) -> usize {
    let mut lock = Lock::alone_in(form, scheme, server);
    lock.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    for (name, prepare, script, args, outcomes) in CASES {
        let expected = match (form, scheme) {
            (Form::Fast, _) => outcomes[0],
            (_, Scheme::Hash) => outcomes[1],
            (_, Scheme::TwoKey) => outcomes[2],
        };
        let mut lock = lock.lab.lock(scheme);
        prepare(&mut lock);
        let args = args(&lock);
        let before = lock.stored();
        let reply = full(&mut lock, |lock| lock.try_run(script, &args));
        match expected {
            Refused => {
                assert!(matches!(&reply, Reply::Error(text) if text.starts_with("OOM")), "{name}: {reply:?}");
                assert_eq!(lock.stored(), before, "{name} is refused before its first write");
            }
            Works(code) => {
                let head = reply.array().map_or(&reply, |rows| &rows[0]);
                assert_eq!(
                    head.text().as_deref().and_then(|text| text.split(' ').next()),
                    Some(code),
                    "{name}: {reply:?}"
                );
            }
        }
        lock.inspect();
    }
    CASES.len()
}

/// Runs a script while the memory of the server is full.
fn full<T>(lock: &mut Lock, run: impl FnOnce(&mut Lock) -> T) -> T {
    lock.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let ran = run(lock);
    lock.command(&["CONFIG", "SET", "maxmemory", "0"]);
    ran
}

impl Lock {
    /// Returns the arguments of a force that ends all present holds.
    fn force_args_now(&self) -> Vec<String> {
        let mut lock = self.lab.lock(self.scheme);
        lock.keys.clone_from(&self.keys);
        let seen = lock.inspect().seen;
        lock.force_args(&seen)
    }
}

#[test]
fn each_write_at_full_memory_does_what_the_documents_say() {
    let mut count = 0;
    for server in [Server::Redis70, Server::Redis82, Server::Valkey81, Server::Valkey91] {
        for form in [Form::Fast, Form::Portable] {
            for scheme in [Scheme::Hash, Scheme::TwoKey] {
                count += run_all(form, scheme, server);
            }
        }
    }
    assert_eq!(count, 16 * CASES.len());
}

/// A note is not worth more memory than the operator has given.
#[test]
fn note_is_refused_at_full_memory_in_both_forms_and_the_hold_stays() {
    for form in [Form::Fast, Form::Portable] {
        let mut lock = Lock::alone_in(form, Scheme::Hash, Server::Redis70);
        lock.granted("a", Write);
        assert_eq!(lock.note("a", 1, "before"), "noted");
        let reply = full(&mut lock, |lock| lock.try_run("note", &["a", "2", "deploy 4711"]));
        assert!(matches!(&reply, Reply::Error(text) if text.contains("OOM")), "{form:?}: {reply:?}");
        assert_eq!(lock.inspect().rows[1], "before", "{form:?}");
        assert_eq!(lock.leave("a"), "held");
    }
}

#[test]
fn recall_is_answered_at_full_memory_in_both_forms() {
    for form in [Form::Fast, Form::Portable] {
        let mut lock = Lock::alone_in(form, Scheme::Hash, Server::Redis70);
        lock.granted("a", Write);
        let reply = full(&mut lock, |lock| lock.try_run("used", &["t"]));
        assert!(reply.text().is_some_and(|text| text.starts_with("told t ")), "{form:?}: {reply:?}");
    }
}
