//! Cases that need a server of their own: all its writes are counted.

use crate::lab::{LEASE_MS, Lock, Read, Wish, Write, all_cases};

all_cases!(alone:
    granted_repeats_and_renewals_always_write,
    denials_and_late_ones_write_nothing,
);

impl Lock {
    /// Whether `call` makes the server write something that replicas would be sent.
    fn writes<T>(&mut self, call: impl FnOnce(&mut Self) -> T) -> bool {
        let before = self.changes();
        call(self);
        self.changes() > before
    }

    fn changes(&mut self) -> u64 {
        let info = self.text(&["INFO", "persistence"]);
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
        assert!(lock.writes(|lock| assert_eq!(lock.renew("a", 1), "renewed")));
        lock.leave("a");
    }
}

fn denials_and_late_ones_write_nothing(mut lock: Lock) {
    for (held, asked) in [(Write, Write), (Write, Read), (Read, Write)] {
        lock.granted("a", held);
        assert!(!lock.writes(|lock| lock.contended("b", asked)));
        assert!(!lock.writes(|lock| lock.ask("a", held, Wish { not_after_ms: 1, ..Wish::AT_ONCE })));
        assert!(!lock.writes(|lock| lock.leave("b")));
        assert!(!lock.writes(|lock| lock.renew("b", LEASE_MS)));
        assert!(!lock.writes(Lock::inspect));
        lock.leave("a");
    }
}
