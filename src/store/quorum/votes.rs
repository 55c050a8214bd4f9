//! Votes of the masters, and the verdict on them. This module does no I/O and reads no clock.
//!
//! A majority decides, and any two majorities share a master. This is enough to exclude conflicting holds, but it is
//! not enough for tokens. Each master counts its own tokens, and the shared master may be the one with the lowest
//! token. So a token counts only when a majority has *stored* this token or a higher one.
//!
//! The ballot sorts the tokens of the masters that say yes. It takes the lowest token for which a majority of the
//! masters has granted this token or a lower one. That majority shares a master with the majority of each earlier
//! grant. So the token is above the token of each earlier grant. The manager then asks masters with a lower token to
//! raise it. When a majority has stored the token, each later grant has a higher one.
//!
//! The proof: let `m` be the size of the largest minority, and `T` the token of an earlier grant. All masters except at
//! most `m` have stored `T` or more, and each of these grants a new token above `T`. So at most `m` of the masters that
//! say yes grant a token that is not above `T`. The (`m` + 1)-th lowest of the tokens is therefore above `T`, however
//! many masters answer. Since `m` + 1 is a majority, this is the token that the ballot takes.
//!
//! A clock that is years ahead does not break this proof, but it produces tokens that are just as far ahead. Suppose
//! that a majority stored such a token, and that the masters lost their records and the wrong clock later. The next
//! tokens would then be lower than this token.
//!
//! At most a minority of the clocks is wrong. So at least one right clock has produced a token that is not below the
//! (`m` + 1)-th lowest of *all* tokens. The ballot therefore delays its verdict while its token is above all right
//! clocks and missing answers can still lower the token. If these answers do not come, the token counts nevertheless,
//! because it may be the only token above `T`.
//!
//! Source: Gifford, "Weighted Voting for Replicated Data" (1979), for the version numbers; the Redlock page for the
//! validity.

use crate::base::lease::{FencingToken, Moment};

/// Grant or confirmation of one master.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Yes {
    /// Send time of the request that the master answered.
    pub(super) sent: Moment,
    /// End of the master's hold, counted from `sent`.
    pub(super) until: Moment,
    pub(super) token: FencingToken,
}

/// Vote of one master.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Vote {
    Yes(Yes),
    No,
    /// The master will not answer, or it may not vote.
    Silent,
}

/// Verdict on the votes so far.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// The missing answers can still decide the result.
    Open,
    /// A majority says yes, but the masters in `at` have stored a lower token than `to`.
    Raise { to: FencingToken, at: Vec<usize> },
    /// A majority says yes and has stored the token.
    Won(Yes),
    /// No majority can say yes any more, because more than a minority of the masters says no.
    Lost,
    /// No majority can say yes any more, but too few masters say no for the verdict `Lost`.
    Undecided,
}

/// Ballot of all masters on one question.
#[derive(Clone, Debug)]
pub(super) struct Ballot {
    votes: Vec<Option<Vote>>,
    /// Token that a majority has to store, once a majority says yes.
    token: Option<FencingToken>,
    /// Highest token that a right clock has reached, as far as clocks are known.
    reached: Option<FencingToken>,
}

/// Returns the smallest number that is more than half of `masters`.
pub(super) fn majority(masters: usize) -> usize {
    masters / 2 + 1
}

/// Returns the largest number of masters without which a majority is left.
pub(super) fn minority(masters: usize) -> usize {
    masters - majority(masters)
}

impl Ballot {
    pub(super) fn new(masters: usize) -> Self {
        Self { votes: vec![None; masters], token: None, reached: None }
    }

    /// Notes the highest token that a right clock has reached by now.
    pub(super) fn note_clocks(&mut self, reached: Option<FencingToken>) {
        self.reached = reached;
    }

    /// Records the vote of a master. A later vote replaces an earlier one.
    pub(super) fn cast(&mut self, master: usize, vote: Vote) {
        self.votes[master] = Some(vote);
    }

    fn count(&self, counts: impl Fn(Option<Vote>) -> bool) -> usize {
        self.votes.iter().filter(|vote| counts(**vote)).count()
    }

    /// Returns the masters whose vote is silent.
    pub(super) fn silent(&self) -> impl Iterator<Item = usize> {
        let silent = |(master, vote): (usize, &Option<Vote>)| (*vote == Some(Vote::Silent)).then_some(master);
        self.votes.iter().enumerate().filter_map(silent)
    }

    fn yes(&self) -> impl Iterator<Item = (usize, Yes)> {
        let yes = |(master, vote): (usize, &Option<Vote>)| match vote {
            Some(Vote::Yes(yes)) => Some((master, *yes)),
            _ => None,
        };
        self.votes.iter().enumerate().filter_map(yes)
    }

    /// Returns true if so many masters are silent that the others are no majority.
    pub(super) fn is_silent(&self) -> bool {
        self.silent().count() > minority(self.votes.len())
    }

    /// Returns true if missing answers can still lead to a majority that says yes, or to the verdict `Lost`.
    pub(super) fn is_open(&mut self) -> bool {
        match self.verdict() {
            Verdict::Open => true,
            Verdict::Undecided => {
                let or_no = self.count(|vote| matches!(vote, None | Some(Vote::No)));
                self.count(|vote| vote.is_none()) > 0 && or_no > minority(self.votes.len())
            }
            Verdict::Raise { .. } | Verdict::Won(_) | Verdict::Lost => false,
        }
    }

    /// Returns true if the ballot should wait for missing answers. The token of the votes is then above all right
    /// clocks. Missing answers can still lower it to the time of a right clock.
    fn must_wait_for_clocks(&self, sorted: &[FencingToken]) -> bool {
        let Some(reached) = self.reached else { return false };
        let (last, missing) = (majority(self.votes.len()) - 1, self.count(|vote| vote.is_none()));
        // A majority has said yes, so at most a minority is missing, and `missing` is at most `last`.
        sorted[last] > reached && sorted[last - missing] <= reached
    }

    pub(super) fn verdict(&mut self) -> Verdict {
        let needed = majority(self.votes.len());
        let mut tokens: Vec<_> = self.yes().map(|(_, yes)| yes.token).collect();
        if tokens.len() < needed {
            let open = self.count(|vote| vote.is_none());
            let noes = self.count(|vote| vote == Some(Vote::No));
            return if noes > minority(self.votes.len()) {
                Verdict::Lost
            } else if tokens.len() + open >= needed {
                Verdict::Open
            } else {
                Verdict::Undecided
            };
        }
        tokens.sort_unstable();
        if self.token.is_none() && self.must_wait_for_clocks(&tokens) {
            return Verdict::Open;
        }
        // The token does not change once it is chosen, because requests that raise the tokens of other masters to it
        // may be under way.
        let token = *self.token.get_or_insert(tokens[needed - 1]);
        let (stored, below): (Vec<_>, Vec<_>) = self.yes().partition(|(_, yes)| yes.token >= token);
        if stored.len() < needed {
            return Verdict::Raise { to: token, at: below.into_iter().map(|(master, _)| master).collect() };
        }
        let mut untils: Vec<_> = stored.iter().map(|(_, yes)| yes.until).collect();
        untils.sort_unstable();
        // The hold lasts as long as a majority keeps it.
        let until = untils[untils.len() - needed];
        let sent = stored.iter().map(|(_, yes)| yes.sent).min().unwrap_or(until);
        Verdict::Won(Yes { sent, until, token })
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../../testing/unit/store/quorum/votes/tests.rs"]
mod tests;
