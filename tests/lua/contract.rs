//! Keys that have another type.

use cluster_testenv::Reply;

use crate::lab::{LEASE_MS, Lock, MAX_TOKEN, Mode, Scheme, View, Wish, all_cases};

all_cases!(shared: keys_of_another_type_stay_untouched);

/// A look at a free lock with this last token.
fn view_of(token: i64) -> View {
    let (holders, waiters) = (Vec::new(), Vec::new());
    View {
        token,
        foreign_write_ms: 0,
        foreign_read_ms: 0,
        holders,
        more_holders: 0,
        waiters,
        more_waiters: 0,
        is_marked: false,
    }
}

fn keys_of_another_type_stay_untouched(mut lock: Lock) {
    let clean = lock.keys.clone();
    for key in &clean {
        for other in
            [vec!["SET", key, "v"], vec!["HSET", key, "f", "v"], vec!["ZADD", key, "1", "m"], vec!["RPUSH", key, "v"]]
        {
            let right = match lock.scheme {
                Scheme::Hash => "HSET",
                Scheme::TwoKey if *key == clean[0] => "ZADD",
                Scheme::TwoKey => "SET",
            };
            if other[0] == right {
                continue;
            }
            lock.command(&other);
            let stored = lock.snapshot();
            for (script, args) in every_script(&lock) {
                let reply = lock.try_run(script, &args);
                let wrong = matches!(&reply, Reply::Error(text) if text.starts_with("WRONGTYPE"));
                assert!(wrong, "{script} {other:?}: {reply:?}");
                assert_eq!(lock.snapshot(), stored, "{script} {other:?}");
            }
            lock.command(&["DEL", key]);
        }
    }
}

/// Each script with arguments that could succeed.
fn every_script(lock: &Lock) -> Vec<(&'static str, Vec<String>)> {
    let own = |args: &[&str]| args.iter().map(ToString::to_string).collect::<Vec<_>>();
    vec![
        ("acquire", lock.acquire_args("a", Mode::Read, LEASE_MS)),
        ("acquire", lock.acquire_args("a", Mode::Write, LEASE_MS)),
        ("leave", lock.leave_args("a")),
        ("convert", lock.convert_args("a", "b", Mode::Read, Wish::default())),
        ("convert", lock.convert_args("a", "b", Mode::Write, Wish::default())),
        ("renew", own(&["a", "1000"])),
        ("inspect", own(&[])),
        ("force", lock.force_args(&view_of(MAX_TOKEN))),
    ]
}
