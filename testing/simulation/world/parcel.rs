//! Requests, their answers, and the fates of both.

use super::*;

/// Request on its way to the server.
#[derive(Clone, Debug)]
pub enum Parcel {
    /// `floor` is the lower bound for the token, at a master of a quorum.
    Acquire {
        request: AcquireRequest,
        not_after_ms: u64,
        floor: Option<Floor>,
    },
    Conversion {
        old: AcquisitionId,
        request: AcquireRequest,
        not_after_ms: u64,
    },
    Leave {
        id: AcquisitionId,
        rest_until: Option<ServerTime>,
    },
    /// `caches` is the number of tokens to bring, if the hold may be cached.
    Renew {
        id: AcquisitionId,
        lease: Duration,
        caches: Option<u64>,
        rest_until: Option<ServerTime>,
    },
    Inspect,
    Force {
        seen: View,
    },
    /// Force at a master of a quorum, with the last token that the master has shown.
    ForceShown {
        token: Option<FencingToken>,
        seen: View,
    },
    Time,
}

/// Answer of the server.
#[derive(Clone, Debug)]
pub enum Answer {
    Acquired(Acquired),
    Converted(Converted),
    ReleaseReply(ReleaseReply),
    Renewed(Renewed),
    View(View),
    Forced(Forced),
    /// Time for which the server has been up.
    Time {
        up: Duration,
    },
}

/// End of a delivery, as far as the sender can learn of it.
#[derive(Clone, Debug)]
pub enum Delivery {
    Answered(Answer, ServerTime),
    Refused,
    /// The request gives a hold, and no replica has it.
    Unreplicated,
}

/// Fates of the first copy, and of the second if there is one.
pub type Fates = (Fate, Option<Fate>);

/// Fate of one copy.
#[derive(Clone, Copy, Debug)]
pub struct Fate {
    pub copy: u32,
    pub there: Duration,
    pub back: Duration,
    pub request_lost: bool,
    pub reply_lost: bool,
}

impl Parcel {
    pub fn op(&self) -> Op {
        match self {
            Self::Acquire { request, not_after_ms, floor } => Op::Acquire {
                id: Id::of(request.id.as_str()),
                mode: request.mode,
                lease_ms: millis(request.lease),
                not_after_ms: *not_after_ms,
                waiter_ttl_ms: match request.if_taken {
                    IfTaken::Leave => None,
                    IfTaken::Queue { waiter_ttl } | IfTaken::Try { waiter_ttl } => Some(millis(waiter_ttl)),
                },
                tries: matches!(request.if_taken, IfTaken::Try { .. }),
                caches: request.caches,
                floor: *floor,
            },
            Self::Conversion { old, request, not_after_ms } => Op::Conversion {
                old: Id::of(old.as_str()),
                id: Id::of(request.id.as_str()),
                mode: request.mode,
                lease_ms: millis(request.lease),
                not_after_ms: *not_after_ms,
                caches: request.caches,
            },
            Self::Leave { id, .. } => Op::Leave { id: Id::of(id.as_str()) },
            Self::Renew { id, lease, caches, rest_until } => Op::Renew {
                id: Id::of(id.as_str()),
                lease_ms: millis(*lease),
                caches: caches.is_some(),
                rest_until_ms: rest_until.map(ServerTime::as_millis_up),
            },
            Self::Inspect => Op::Inspect,
            Self::Force { seen } => {
                let writer = seen.holders.iter().find(|holder| holder.mode == Mode::Write);
                Op::Force { seen: raw(seen.token), writer: writer.map(|holder| Id::of(&holder.id)) }
            }
            Self::ForceShown { token, .. } => Op::Force { seen: raw(*token), writer: None },
            Self::Time => Op::Time,
        }
    }
}

impl Answer {
    pub fn gives_hold(&self) -> bool {
        matches!(
            self,
            Self::Acquired(Acquired::Granted(_))
                | Self::Converted(Converted::Granted(_))
                | Self::Renewed(Renewed::Renewed { .. })
        )
    }

    pub fn reply(&self) -> Reply {
        let sorted = |ids: &mut dyn Iterator<Item = &String>| {
            let mut ids: Vec<_> = ids.map(|id| Id::of(id)).collect();
            ids.sort_unstable();
            ids
        };
        match self {
            Self::Acquired(Acquired::Granted(granted)) | Self::Converted(Converted::Granted(granted)) => {
                Reply::Granted {
                    token: granted.token.as_u64(),
                    tokens: granted.tokens,
                    remaining_ms: millis(granted.remaining),
                    is_waited_for: granted.is_waited_for,
                }
            }
            Self::Acquired(Acquired::Queued { retry_in, .. }) => Reply::Queued { retry_in_ms: millis(*retry_in) },
            Self::Acquired(Acquired::Contended { retry_in, .. } | Acquired::Cached { retry_in, .. }) => {
                Reply::Contended { retry_in_ms: millis(*retry_in) }
            }
            Self::Acquired(Acquired::Late) | Self::Converted(Converted::Late) => Reply::Late,
            Self::Converted(Converted::Refused | Converted::Cached) => Reply::Refused,
            Self::ReleaseReply(ReleaseReply::Held) => Reply::Held,
            Self::ReleaseReply(ReleaseReply::Queued) => Reply::Waited,
            Self::ReleaseReply(ReleaseReply::None(Absence { forced, .. })) => Reply::None { forced: raw(*forced) },
            Self::Renewed(Renewed::Renewed { remaining, is_waited_for, tokens }) => Reply::Renewed {
                remaining_ms: millis(*remaining),
                is_waited_for: *is_waited_for,
                tokens: tokens.map(|(first, count)| (first.as_u64(), count)),
            },
            Self::Renewed(Renewed::Lost { forced }) | Self::Converted(Converted::Lost { forced }) => {
                Reply::Lost { forced: raw(*forced) }
            }
            Self::View(view) => Reply::View(shown(view)),
            Self::Forced(forced) => Reply::Forced(sorted(&mut forced.ids.iter())),
            Self::Time { .. } => Reply::Time,
        }
    }
}

fn raw(token: Option<FencingToken>) -> u64 {
    token.map_or(0, FencingToken::as_u64)
}

fn shown(view: &View) -> Shown {
    let holders = view.holders.iter();
    let mut holders: Vec<_> =
        holders.map(|holder| (Id::of(&holder.id), holder.mode, millis(holder.remaining))).collect();
    holders.sort_unstable_by_key(|(id, _, _)| *id);
    let waiters = view.waiters.iter().map(|waiter| (Id::of(&waiter.id), waiter.mode)).collect();
    Shown { token: raw(view.token), holders, waiters }
}

/// Carries a request out as a right server does.
pub fn operate(record: &mut Record, now: ServerTime, parcel: &Parcel) -> Answer {
    match parcel {
        Parcel::Acquire { request, not_after_ms, floor } => Answer::Acquired(match floor {
            None => record.acquire(now, *not_after_ms, request),
            Some(floor) => record.acquire_above(now, *not_after_ms, request, *floor),
        }),
        Parcel::Conversion { old, request, not_after_ms } => {
            Answer::Converted(record.convert(now, *not_after_ms, old, request))
        }
        Parcel::Leave { id, rest_until } => Answer::ReleaseReply(record.release_until(now, id, *rest_until)),
        Parcel::Renew { id, lease, caches: None, rest_until } => {
            Answer::Renewed(record.renew_until(now, id, *lease, *rest_until))
        }
        Parcel::Renew { id, lease, caches: Some(tokens), .. } => {
            Answer::Renewed(record.renew_cached(now, id, *lease, *tokens))
        }
        Parcel::Inspect => Answer::View(record.inspect(now)),
        Parcel::Force { seen } => Answer::Forced(record.force_seen(now, seen)),
        Parcel::ForceShown { token, seen } => Answer::Forced(record.force_shown(now, *token, seen)),
        Parcel::Time => Answer::Time { up: Duration::ZERO },
    }
}
