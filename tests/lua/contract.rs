//! Keys that have another type.

use cluster_testenv::Reply;

use crate::lab::{Lock, Scheme, all_cases};

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
            for (script, args) in lock.every_script() {
                let reply = lock.try_run(script, &args);
                let wrong = matches!(&reply, Reply::Error(text) if text.starts_with("WRONGTYPE"));
                assert!(wrong, "{script} {other:?}: {reply:?}");
                assert_eq!(lock.stored(), stored, "{script} {other:?}");
            }
            lock.command(&["DEL", key]);
        }
    }
}
