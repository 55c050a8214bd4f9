//! Random operations for both sides.

use super::*;
use crate::store::{AcquireRequest, IfTaken};

/// Scheme that is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Face {
    Hash,
    /// Scheme without a queue, which grants one token at a time.
    TwoKey,
}

impl Face {
    pub(super) fn ask(self, who: usize, wish: Wish) -> AcquireRequest {
        let Wish { lease_ms, max_tokens, waiting, caches } = wish;
        let span = Duration::from_millis;
        let (max_tokens, if_taken) = match (self, waiting) {
            (Self::Hash, Waiting::Waits { ms }) => (max_tokens, IfTaken::Queue { waiter_ttl: span(ms) }),
            (Self::Hash, Waiting::Tries { ms }) => (max_tokens, IfTaken::Try { waiter_ttl: span(ms) }),
            (Self::Hash, Waiting::None) => (max_tokens, IfTaken::Leave),
            (Self::TwoKey, _) => (1, IfTaken::Leave),
        };
        AcquireRequest {
            id: acquisition(who),
            mode: MODES[who],
            lease: Duration::from_millis(lease_ms),
            max_tokens,
            if_taken,
            caches: self == Self::Hash && caches,
        }
    }

    /// Returns the kinds of answers that must all occur in the long run.
    pub(super) fn kinds(self) -> BTreeSet<&'static str> {
        let both = [
            "granted",
            "contended",
            "late",
            "held",
            "none",
            "none, by force",
            "renewed",
            "lost",
            "lost, by force",
            "view",
            "view of a rest",
            "forced",
            "turned to read",
            "turned to write",
            "not turned",
            "turn lost",
            "turn lost, by force",
            "turn late",
        ];
        let hash = [
            "granted, and waited for",
            "granted, several tokens",
            "kept",
            "not turned, and called",
            "queued",
            "queued at a marked lock",
            "dequeued",
            "renewed, and waited for",
            "renewed with tokens",
            "view with waiters",
            "view with notes",
            "noted",
            "not noted",
            "view of a marked lock",
            "called",
            "called by a try",
        ];
        both.into_iter().chain(hash.into_iter().filter(|_| self == Self::Hash)).collect()
    }
}

/// Modes of the clients. There are enough readers that one moves into the gap of another, and enough writers that one
/// leaves the middle of a list.
pub(super) const MODES: [Mode; 7] =
    [Mode::Read, Mode::Read, Mode::Read, Mode::Read, Mode::Write, Mode::Write, Mode::Write];
/// Name of a manager, with its real length, since the scripts cut the channel out of the id.
pub(super) const MANAGER: &str = "0123456789abcdef0123456789abcdef";

pub(super) fn acquisition(who: usize) -> AcquisitionId {
    AcquisitionId::new(MANAGER, who as u64, "label")
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) lease_ms: u64,
    pub(super) max_tokens: u64,
    pub(super) waiting: Waiting,
    /// True if the hold may be cached.
    pub(super) caches: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Waiting {
    None,
    Waits { ms: u64 },
    Tries { ms: u64 },
}

/// Hold to renew.
#[derive(Clone, Copy, Debug)]
pub(super) struct Renews {
    pub(super) who: usize,
    pub(super) lease_ms: u64,
    /// Number of tokens to bring, if the hold may be cached.
    pub(super) caches: Option<u64>,
    /// Time from the last reply until which a write hold lasts at least. Such a hold is not cached.
    pub(super) rest_ms: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) enum Operation {
    /// The request may be carried out until `limit_ms` after the time of the last reply.
    Acquire {
        who: usize,
        wish: Wish,
        limit_ms: Option<i64>,
    },
    Leave {
        who: usize,
        /// Time from the last reply until which a write hold rests.
        rest_ms: Option<u64>,
    },
    Conversion {
        old: usize,
        new: usize,
        wish: Wish,
        limit_ms: Option<i64>,
    },
    /// Upgrade. A reader requests a write while another reader may be inside.
    UpgradeBeside {
        old: usize,
        beside: usize,
        new: usize,
        wish: Wish,
    },
    /// Renews the holds in one batch.
    Renew(Vec<Renews>),
    /// Sets the note of a hold.
    Note {
        who: usize,
        number: u64,
    },
    Inspect,
    /// Inspects the lock, then forces.
    Force,
    /// Forces by the last inspection, even if the lock has changed since.
    ForceLate,
    /// Inspects, renews with tokens if asked for, then forces by the inspection.
    ForceRenewed(Renews),
    Pause {
        ms: u64,
    },
    /// A client of the timestamp scheme requests the lock. Its clock differs from the server's by `skew_ms`.
    TheirLock {
        mode: Mode,
        skew_ms: i64,
    },
    /// A client of the timestamp scheme releases, for the first time or again.
    TheirUnlock {
        nth: usize,
    },
    /// The server's clock steps.
    Step {
        ms: i64,
    },
    /// The server loses all keys of the lock.
    Lose,
}

pub(super) fn operation() -> impl Strategy<Value = Operation> {
    let who = || 0..MODES.len();
    // Some leases end within the next two operations, some last for several operations, and some never end.
    let time_ms = || prop_oneof![4 => 1..=5_u64, 1 => 6..=30_u64, 3 => Just(10_000_u64)];
    let waiting = || {
        prop_oneof![
            2 => Just(Waiting::None),
            5 => time_ms().prop_map(|ms| Waiting::Waits { ms }),
            1 => time_ms().prop_map(|ms| Waiting::Tries { ms }),
        ]
    };
    let max_tokens = || prop_oneof![Just(1_u64), 2..=2048_u64, Just(3000_u64)];
    let wish = || {
        let parts = (time_ms(), max_tokens(), waiting(), any::<bool>());
        parts.prop_map(|(lease_ms, max_tokens, waiting, caches)| Wish { lease_ms, max_tokens, waiting, caches })
    };
    let limit_ms = |weight| prop_oneof![weight => Just(None), 1 => (-2..=3_i64).prop_map(Some)];
    let caches = || prop_oneof![2 => Just(None), 1 => Just(Some(0_u64)), 1 => max_tokens().prop_map(Some)];
    let rest_ms = || prop_oneof![3 => Just(None), 1 => (0..=5_u64).prop_map(Some), 1 => (6..=30_u64).prop_map(Some)];
    let renews = || {
        let parts = (who(), time_ms(), caches(), rest_ms());
        parts.prop_map(|(who, lease_ms, caches, rest_ms)| {
            let rest_ms = rest_ms.filter(|_| caches.is_none());
            Renews { who, lease_ms, caches, rest_ms }
        })
    };
    let of = |mode| (0..MODES.len()).prop_filter("of that mode", move |who| MODES[*who] == mode);
    let (reader, writer) = (|| of(Mode::Read), || of(Mode::Write));
    let renews_writer = || {
        let parts = (writer(), time_ms(), max_tokens());
        parts.prop_map(|(who, lease_ms, tokens)| Renews { who, lease_ms, caches: Some(tokens), rest_ms: None })
    };
    prop_oneof![
        17 => (who(), wish(), limit_ms(5)).prop_map(|(who, wish, limit_ms)| Operation::Acquire { who, wish, limit_ms }),
        6 => (who(), rest_ms()).prop_map(|(who, rest_ms)| Operation::Leave { who, rest_ms }),
        7 => (who(), who(), wish(), limit_ms(6))
            .prop_map(|(old, new, wish, limit_ms)| Operation::Conversion { old, new, wish, limit_ms }),
        1 => (reader(), reader(), writer(), wish())
            .prop_map(|(old, beside, new, wish)| Operation::UpgradeBeside { old, beside, new, wish }),
        5 => vec(renews(), 1..4).prop_map(Operation::Renew),
        5 => (who(), 0..4_u64).prop_map(|(who, number)| Operation::Note { who, number }),
        3 => Just(Operation::Inspect),
        1 => Just(Operation::Force),
        1 => Just(Operation::ForceLate),
        2 => renews_writer().prop_map(Operation::ForceRenewed),
        3 => (1..=3_u64).prop_map(|ms| Operation::Pause { ms }),
    ]
}

pub(super) fn their_operation() -> impl Strategy<Value = Operation> {
    let mode = prop_oneof![2 => Just(Mode::Read), 1 => Just(Mode::Write)];
    // The stamp is exact, wrong by a little, wrong by more than a limit, or near the stamps of our long leases.
    let skew_ms = prop_oneof![
        4 => -2..=2_i64,
        2 => -20..=20_i64,
        1 => 9_990..=10_002_i64,
        1 => 10_003..=10_040_i64,
        // This number is no time.
        1 => Just(10_000_000_000_000_000_i64),
    ];
    prop_oneof![
        3 => (mode, skew_ms).prop_map(|(mode, skew_ms)| Operation::TheirLock { mode, skew_ms }),
        2 => (0..4_usize).prop_map(|nth| Operation::TheirUnlock { nth }),
    ]
}

/// Returns faults that no client causes.
pub(super) fn mishap() -> impl Strategy<Value = Operation> {
    let size_ms = prop_oneof![2 => 1..=5_i64, 2 => 6..=40_i64, 1 => 9_980..=10_020_i64, 2 => Just(71_000)];
    let ms = (size_ms, any::<bool>()).prop_map(|(ms, forward)| if forward { ms } else { -ms });
    prop_oneof![4 => ms.prop_map(|ms| Operation::Step { ms }), 1 => Just(Operation::Lose)]
}
