//! Answers of both sides, and the difference that is allowed between them.

use super::*;
use crate::store::{Absence, Holder, NamedHolder, Noted, ReleaseReply};

/// Live holders when an answer was given.
#[derive(Debug, Default)]
pub(super) struct LiveHolders {
    pub(super) deadlines: Vec<u64>,
    /// Live holders, as a refusal may name them.
    pub(super) named: Vec<NamedHolder>,
    /// True if an operation may give up before it finds a live reader among dead ones.
    pub(super) is_limited: bool,
}

impl LiveHolders {
    /// Returns true if a refusal may name `real` where the specification names `specified`. Any of several readers may be
    /// named. The two-key scheme does not know the age of a reader, and does not count the others.
    fn agree(&self, real: Option<&NamedHolder>, specified: Option<&NamedHolder>) -> bool {
        let is_live = |real: &NamedHolder| {
            self.named.iter().any(|live| match real.since_ms {
                Some(_) => real == live,
                None => (&real.id, real.mode, real.deadline_ms) == (&live.id, live.mode, live.deadline_ms),
            })
        };
        match (real, specified) {
            (Some(real), Some(specified)) => real == specified || is_live(real),
            (None, Some(_)) => self.is_limited,
            (real, None) => real.is_none(),
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Answer {
    Acquired(Acquired),
    ReleaseReply(ReleaseReply),
    Converted(Mode, Converted),
    Renewed(Renewed),
    Noted(Noted),
    View(View),
    Forced(Forced),
    Theirs(Mode, bool),
}

impl Answer {
    pub(super) fn kinds(&self) -> Vec<&'static str> {
        let mut kinds = vec![self.kind()];
        if let Self::View(view) = self {
            kinds.extend(view.client_read_ms.map(|_| "view with their read"));
            kinds.extend(view.client_write_ms.map(|_| "view with their write"));
            let is_rest = |holder: &Holder| holder.id.starts_with('@');
            kinds.extend(view.holders.iter().any(is_rest).then_some("view of a rest"));
            kinds.extend(view.holders.iter().any(|holder| holder.note.is_some()).then_some("view with notes"));
            kinds.extend(view.is_recallable.then_some("view of a marked lock"));
            kinds.extend((view.more_holders + view.more_waiters > 0).then_some("view of some"));
        }
        kinds
    }

    fn retry_in(&self) -> Option<Duration> {
        match self {
            Self::Acquired(
                Acquired::Queued { retry_in, .. }
                | Acquired::Contended { retry_in, .. }
                | Acquired::Cached { retry_in, .. },
            ) => Some(*retry_in),
            _ => None,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Acquired(Acquired::Granted(granted)) if granted.is_waited_for => "granted, and waited for",
            Self::Acquired(Acquired::Granted(granted)) if granted.tokens > 1 => "granted, several tokens",
            Self::Acquired(Acquired::Granted(_)) => "granted",
            Self::Acquired(Acquired::Contended { .. }) => "contended",
            Self::Acquired(Acquired::Cached { .. }) => "kept",
            Self::Acquired(Acquired::Queued { is_cached: true, .. }) => "queued at a marked lock",
            Self::Acquired(Acquired::Queued { .. }) => "queued",
            Self::Acquired(Acquired::Late) => "late",
            Self::ReleaseReply(ReleaseReply::Held) => "held",
            Self::ReleaseReply(ReleaseReply::Queued) => "dequeued",
            Self::ReleaseReply(ReleaseReply::None(Absence { forced: None, .. })) => "none",
            Self::ReleaseReply(ReleaseReply::None(Absence { forced: Some(_), .. })) => "none, by force",
            Self::Converted(Mode::Read, Converted::Granted(_)) => "turned to read",
            Self::Converted(Mode::Write, Converted::Granted(_)) => "turned to write",
            Self::Converted(_, Converted::Refused) => "not turned",
            Self::Converted(_, Converted::Cached) => "not turned, and called",
            Self::Converted(_, Converted::Lost { forced: None }) => "turn lost",
            Self::Converted(_, Converted::Lost { forced: Some(_) }) => "turn lost, by force",
            Self::Converted(_, Converted::Late) => "turn late",
            Self::Renewed(Renewed::Renewed { tokens: Some(_), .. }) => "renewed with tokens",
            Self::Renewed(Renewed::Renewed { is_waited_for: true, .. }) => "renewed, and waited for",
            Self::Renewed(Renewed::Renewed { .. }) => "renewed",
            Self::Renewed(Renewed::Lost { forced: None }) => "lost",
            Self::Renewed(Renewed::Lost { forced: Some(_) }) => "lost, by force",
            Self::Noted(Noted::Noted) => "noted",
            Self::Noted(Noted::None) => "not noted",
            Self::View(view) if !view.waiters.is_empty() => "view with waiters",
            Self::View(_) => "view",
            Self::Forced(Forced { has_more: true, .. }) => "forced some",
            Self::Forced(_) => "forced",
            Self::Theirs(Mode::Read, true) => "their read",
            Self::Theirs(Mode::Read, false) => "their read refused",
            Self::Theirs(Mode::Write, true) => "their write",
            Self::Theirs(Mode::Write, false) => "their write refused",
        }
    }

    /// Returns true if the answers agree.
    pub(super) fn agrees_with(&self, specified: &Self, now_ms: u64, live: &LiveHolders) -> bool {
        let ends_in =
            |retry_in| live.deadlines.iter().any(|ends_ms| Duration::from_millis(ends_ms - now_ms) == retry_in);
        if let (Self::Acquired(real), Self::Acquired(specified)) = (self, specified)
            && !live.agree(real.named_holder().map(AsRef::as_ref), specified.named_holder().map(AsRef::as_ref))
        {
            return false;
        }
        match (self, specified) {
            (Self::Acquired(Acquired::Contended { retry_in, .. }), Self::Acquired(Acquired::Contended { .. }))
            | (Self::Acquired(Acquired::Cached { retry_in, .. }), Self::Acquired(Acquired::Cached { .. })) => {
                specified.retry_in() == Some(*retry_in) || ends_in(*retry_in)
            }
            (
                Self::Acquired(Acquired::Queued { retry_in, is_cached, .. }),
                Self::Acquired(Acquired::Queued { is_cached: specified_cached, .. }),
            ) => is_cached == specified_cached && (specified.retry_in() == Some(*retry_in) || ends_in(*retry_in)),
            _ => self == specified,
        }
    }
}
