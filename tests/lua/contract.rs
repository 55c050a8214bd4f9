//! Keys that have another type.

use cluster_testenv::Reply;

use crate::lab::{Lock, Mode, Scheme, Wish, all_cases};
use crate::transcripts::Seen;

all_cases!(shared: keys_of_another_type_stay_untouched);

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
            let stored = lock.stored();
            for (script, args) in every_script(&lock) {
                let reply = lock.try_run(script, &args);
                let wrong = matches!(&reply, Reply::Error(text) if text.starts_with("WRONGTYPE"));
                assert!(wrong, "{script} {other:?}: {reply:?}");
                assert_eq!(lock.stored(), stored, "{script} {other:?}");
            }
            lock.command(&["DEL", key]);
        }
    }
}

/// Each script with arguments that could succeed.
fn every_script(lock: &Lock) -> Vec<(&'static str, Vec<String>)> {
    vec![
        ("acquire", lock.wish_args("a", Mode::Read, Wish::AT_ONCE)),
        ("acquire", lock.wish_args("a", Mode::Write, Wish::AT_ONCE)),
        ("leave", lock.leave_args("a")),
        ("convert", lock.convert_args("a", "b", Mode::Read, Wish::AT_ONCE)),
        ("convert", lock.convert_args("a", "b", Mode::Write, Wish::AT_ONCE)),
        ("renew", vec!["a".to_owned(), "1000".to_owned()]),
        ("inspect", Vec::new()),
        ("force", lock.force_args(&Seen { token: 1 << 53, ..Seen::default() })),
    ]
}
