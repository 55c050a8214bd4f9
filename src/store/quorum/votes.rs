//! Votes of the masters, and the verdict on them. This module has no I/O and no clock.
//!
//! A majority decides, and any two majorities share a master. That is enough for holds, but not for tokens. Each master
//! counts its own tokens, and the shared master may be the one with the lowest token. So a token counts only when a
//! majority has *stored* this token or a higher one.
//!
//! The ballot takes the least token that is not below the answers of some majority. That majority shares a master with
//! the majority of each earlier grant. So the token is above the token of each earlier grant. The manager then asks
//! masters with a lower token to raise it. When a majority has stored the token, each later grant has a higher one.
//!
//! The proof: let `m` be the size of the largest minority, and `T` the token of an earlier grant. All masters except at
//! most `m` have stored `T` or more, and each of these grants a new token above `T`. So at most `m` of the masters that
//! say yes grant a token up to `T`. The (`m` + 1)-th lowest of the tokens is therefore above `T`, however many masters
//! answer. Since `m` + 1 is a majority, this is the token that the ballot takes.
//!
//! A clock that is years ahead does not break this proof, but it produces tokens that are just as far ahead. Suppose
//! that a majority stored such a token. Once the records and that master are gone, the next tokens would be lower.
//!
//! At most a minority of clocks is wrong. So the (`m` + 1)-th lowest of *all* tokens never comes from a wrong clock
//! alone. The ballot therefore delays its verdict while its token is above all right clocks and missing answers can
//! lower it. If these answers do not come, the token counts all the same, since it may be the only token above `T`.
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
    /// The master has not answered and will not answer, or it may not vote.
    Silent,
}

/// Verdict on the votes so far.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Missing answers decide the result.
    Open,
    /// A majority says yes, but the masters in `at` have stored a lower token than `to`.
    Raise { to: FencingToken, at: Vec<usize> },
    /// A majority says yes and has stored the token.
    Won(Yes),
    /// More masters than a minority say no, so no majority can say yes.
    Lost,
    /// No majority can say yes any more, but too few masters say no for `Lost`.
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
            Some(Vote::No | Vote::Silent) | None => None,
        };
        self.votes.iter().enumerate().filter_map(yes)
    }

    /// Returns true if so many masters are silent that the others cannot form a majority.
    pub(super) fn is_silent(&self) -> bool {
        self.count(|vote| vote == Some(Vote::Silent)) > self.votes.len() - majority(self.votes.len())
    }

    /// Returns true if missing answers can still lead to a majority of yes or to the verdict `Lost`.
    pub(super) fn is_open(&mut self) -> bool {
        match self.verdict() {
            Verdict::Open => true,
            Verdict::Undecided => {
                let or_no = self.count(|vote| matches!(vote, None | Some(Vote::No)));
                self.count(|vote| vote.is_none()) > 0 && or_no > self.votes.len() - majority(self.votes.len())
            }
            Verdict::Raise { .. } | Verdict::Won(_) | Verdict::Lost => false,
        }
    }

    /// Returns true if missing answers should be awaited. The token of these votes is then above all right clocks, and
    /// missing answers can still lower it below one.
    fn must_wait_for_clocks(&self, sorted: &[FencingToken]) -> bool {
        let Some(reached) = self.reached else { return false };
        let (last, missing) = (majority(self.votes.len()) - 1, self.count(|vote| vote.is_none()));
        // At least a majority has said yes, so `missing` is at most `last`.
        sorted[last] > reached && sorted[last - missing] <= reached
    }

    pub(super) fn verdict(&mut self) -> Verdict {
        let needed = majority(self.votes.len());
        let mut tokens: Vec<_> = self.yes().map(|(_, yes)| yes.token).collect();
        if tokens.len() < needed {
            let open = self.count(|vote| vote.is_none());
            let noes = self.count(|vote| vote == Some(Vote::No));
            return match () {
                () if noes > self.votes.len() - needed => Verdict::Lost,
                () if tokens.len() + open >= needed => Verdict::Open,
                () => Verdict::Undecided,
            };
        }
        tokens.sort_unstable();
        if self.token.is_none() && self.must_wait_for_clocks(&tokens) {
            return Verdict::Open;
        }
        // The token stays once it is chosen, since requests to raise other masters to it may be under way.
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
