//! Votes of the masters and the verdict on them. Pure: votes in, a verdict out.
//!
//! A majority decides, and any two majorities have a master in common. For holds that is enough, for tokens it is not.
//! Each master counts its own tokens, so the next majority may share only the slowest master. So a token counts only
//! when a majority has *stored* it or a higher one. The ballot picks the least token that is not below any of a
//! majority of answers. That majority has a master in common with the majority of each earlier grant, so the token is
//! above the earlier one. Masters that granted a lower token are asked to raise it. With a majority at or above it, the
//! token of every later grant is higher.
//!
//! Of `n` masters let `m` be the largest minority, and let `T` be a token that was granted before. All but at most `m`
//! masters have stored `T` or more, and each of those grants a new one above it. So at most `m` of the masters that say
//! yes grant a token up to `T`. The (`m` + 1)-th lowest of their tokens, which is the majority-th, is above `T`,
//! however many answer.
//!
//! A clock that is years ahead breaks none of that, but its tokens are as far ahead. If such a token became the token
//! of all, tokens would fall back when that master and the records are gone. At most a minority of clocks is wrong, so
//! the majority-th lowest of *all* tokens never comes from such clocks alone. Hence a token that no right clock has
//! reached waits for missing answers, if one of them can lower it. If they do not come, the token counts all the same:
//! it may be the one token that is above `T`.
//! Source: Gifford, "Weighted Voting for Replicated Data" (1979), for the version numbers; the Redlock page for the
//! validity.

use crate::base::lease::{FencingToken, Moment};

/// Grant or confirmation of one master.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Yes {
    /// Send time of the request that it answers.
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
    /// The master has not answered and will not, or it may not vote.
    Silent,
}

/// Verdict on the votes so far.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// The result depends on missing answers.
    Open,
    /// A majority says yes, but the masters in `at` have stored a lower token.
    Raise { to: FencingToken, at: Vec<usize> },
    /// A majority says yes and has stored the token.
    Won(Yes),
    /// Too many masters say no for a majority.
    Lost,
    /// Neither side can reach a majority.
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

    /// Records the vote of a master. The last one counts.
    pub(super) fn cast(&mut self, master: usize, vote: Vote) {
        self.votes[master] = Some(vote);
    }

    fn count(&self, counts: impl Fn(Option<Vote>) -> bool) -> usize {
        self.votes.iter().filter(|vote| counts(**vote)).count()
    }

    /// Masters whose vote is silent.
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

    /// Returns true if too many masters are silent for a majority, whatever the others say.
    pub(super) fn is_silent(&self) -> bool {
        self.count(|vote| vote == Some(Vote::Silent)) > self.votes.len() - majority(self.votes.len())
    }

    /// Returns true if missing answers may yet change the result: to a majority of yes, or to a majority of no.
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

    /// Returns true if the token of these votes is above all right clocks, and missing answers can lower it to one that
    /// is not.
    fn must_wait_for_clocks(&self, sorted: &[FencingToken]) -> bool {
        let Some(reached) = self.reached else { return false };
        let (last, missing) = (majority(self.votes.len()) - 1, self.count(|vote| vote.is_none()));
        // A majority has said yes, so `missing` is at most `last`.
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
        // A token that was requested once stays: the requests under way are to reach it.
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
