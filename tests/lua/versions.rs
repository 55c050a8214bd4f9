//! Records that another version of the crate keeps: they are left as they are, and whoever meets them says so.

use cluster_testenv::Reply;

use crate::lab::{Lock, Mode, Read, Wish, Write, hash_cases};

hash_cases!(shared:
    first_layout_is_left_alone,
    other_layout_is_left_alone,
    lock_that_the_first_layout_has_left_is_free,
);

/// The scripts of the first layout, with their common part in its place.
const OLD_ACQUIRE: &str = include_str!("../../benches/baseline/acquire.lua");
const OLD_LEAVE: &str = include_str!("../../benches/baseline/leave.lua");
const OLD_QUEUE: &str = include_str!("../../benches/baseline/queue.lua");

/// The first layout had an argument for each of the published limits.
fn apart(mut args: Vec<String>) -> Vec<String> {
    let limits = args.pop().expect("the published limits");
    args.extend(limits.split(' ').map(str::to_owned));
    args
}

impl Lock {
    fn old_script(&mut self, text: &str, args: &[String]) -> Reply {
        let text = text.replace("--@queue", OLD_QUEUE);
        let key = self.key();
        let args = args.iter().map(String::as_str);
        let command: Vec<&str> = ["EVAL", &text, "1", &key].into_iter().chain(args).collect();
        self.command(&command)
    }

    fn old_acquire(&mut self, id: &str, mode: Mode) {
        self.old_script(OLD_ACQUIRE, &apart(self.wish_args(id, mode, Wish::PATIENT)));
    }

    /// Every script says that this is another version's, and nothing is changed.
    fn is_left_alone(&mut self) {
        self.is_left_alone_by(self.every_script());
    }

    fn is_left_alone_by(&mut self, scripts: Vec<(&'static str, Vec<String>)>) {
        let stored = self.stored();
        for (script, args) in scripts {
            let reply = self.try_run(script, &args);
            assert!(reply.text().is_some_and(|text| text.starts_with("version ")), "{script}: {reply:?}");
            assert_eq!(self.stored(), stored, "{script}");
        }
    }
}

fn first_layout_is_left_alone(mut lock: Lock) {
    for mode in [Read, Write] {
        lock.old_acquire("holder", mode);
        lock.is_left_alone();
        lock.old_acquire("waiter", Write);
        lock.is_left_alone();
        lock.delete();
    }
    // Only waiters, behind a foreign stamp.
    let now_ms = lock.now_ms();
    lock.set_field("write", now_ms);
    lock.old_acquire("waiter", Read);
    lock.is_left_alone();
}

fn other_layout_is_left_alone(mut lock: Lock) {
    let key = lock.key();
    for (field, value) in
        [("h", "2 w 5 5 01 a"), ("h", "4 something else"), ("u", "4 something else"), ("h", "30 r 1 5.0 0 0")]
    {
        lock.command(&["HSET", &key, "t", "5", field, value]);
        lock.command(&["PEXPIRE", &key, "60000"]);
        lock.is_left_alone();
        lock.delete();
    }
    // One of the two is ours.
    lock.granted("w", Write);
    lock.command(&["HSET", &key, "u", "4 something else"]);
    lock.command(&["PEXPIRE", &key, "60000"]);
    let scripts = vec![("acquire", lock.wish_args("a", Read, Wish::PATIENT)), ("leave", lock.leave_args("w"))];
    lock.is_left_alone_by(scripts);
}

fn lock_that_the_first_layout_has_left_is_free(mut lock: Lock) {
    for mode in [Read, Write] {
        lock.old_acquire("holder", mode);
        let token: i64 = lock.field("t").and_then(|token| token.parse().ok()).expect("a token");
        lock.old_script(OLD_LEAVE, &apart(lock.leave_args("holder")));
        assert!(lock.granted("a", Write) > token, "tokens go on");
        lock.leave("a");
    }
}
