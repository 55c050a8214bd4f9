//! Cases that need a server of their own: its memory is full, or all its writes are counted.

use cluster_testenv::Reply;

use crate::lab::{LEASE_MS, Left, Lock, Read, Renewed, Scheme, Write, all_cases};

all_cases!(alone:
    full_server_refuses_acquire_only,
    granted_repeats_and_renewals_always_write,
    denials_and_late_ones_write_nothing,
);

fn full_server_refuses_acquire_only(mut lock: Lock) {
    let full = |lock: &mut Lock, yes: bool| {
        let limit = if yes { "1" } else { "0" };
        lock.command(&["CONFIG", "SET", "maxmemory", limit]);
    };
    lock.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    for mode in [Read, Write] {
        let token = lock.granted("a", mode);
        if mode == Read {
            lock.granted("b", mode);
        }
        full(&mut lock, true);
        let stored = lock.snapshot();
        for id in ["a", "c"] {
            let args = lock.acquire_args(id, mode, LEASE_MS);
            let reply = lock.try_run("acquire", &args);
            let refused = matches!(&reply, Reply::Error(text) if text.starts_with("OOM"));
            assert!(refused, "{reply:?}");
            assert_eq!(lock.snapshot(), stored);
        }
        lock.renewed("a", LEASE_MS);
        assert_eq!(lock.renew("c", LEASE_MS), Renewed::Lost { forced: 0 });
        assert_eq!(lock.inspect().token, token);
        if lock.scheme == Scheme::Hash {
            lock.used("t");
        }
        assert_eq!(lock.leave("a"), Left::Held);
        assert_eq!(lock.leave("a"), Left::None { forced: 0 });
        assert_eq!(lock.leave("b") == Left::Held, mode == Read);
        full(&mut lock, false);
    }
    lock.granted("a", Write);
    full(&mut lock, true);
    assert_eq!(lock.force(), ["a"]);
}

impl Lock {
    /// Whether `call` makes the server write something that replicas would be sent.
    fn writes<T>(&mut self, call: impl FnOnce(&mut Self) -> T) -> bool {
        let before = self.changes();
        call(self);
        self.changes() > before
    }

    fn changes(&mut self) -> u64 {
        let info = self.command(&["INFO", "persistence"]);
        let info = info.text().expect("a text").into_owned();
        let mut lines = info.lines();
        let count = lines.find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
        count.and_then(|n| n.parse().ok()).expect("a count")
    }
}

fn granted_repeats_and_renewals_always_write(mut lock: Lock) {
    for mode in [Read, Write] {
        lock.granted_for("a", mode, 10 * LEASE_MS);
        // Nothing to extend: the deadline is far ahead already.
        assert!(lock.writes(|lock| lock.granted_for("a", mode, 1)));
        assert!(lock.writes(|lock| lock.renewed("a", 1)));
        lock.leave("a");
    }
}

fn denials_and_late_ones_write_nothing(mut lock: Lock) {
    for (held, asked) in [(Write, Write), (Write, Read), (Read, Write)] {
        lock.granted("a", held);
        assert!(!lock.writes(|lock| lock.contended("b", asked)));
        assert!(!lock.writes(|lock| lock.acquire_until("a", held, LEASE_MS, 1)));
        assert!(!lock.writes(|lock| lock.leave("b")));
        assert!(!lock.writes(|lock| lock.renew("b", LEASE_MS)));
        assert!(!lock.writes(Lock::inspect));
        lock.leave("a");
    }
}
