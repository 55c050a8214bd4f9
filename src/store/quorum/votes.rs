//! What the masters have said, and what follows from it. Pure: votes in, a verdict out.
//!
//! A majority decides, and any two majorities have a master in common. For holds that is enough. For tokens it is not: each
//! master counts for itself, so the next majority may share only its slowest one. So a token counts only when a majority has
//! *stored* it or a higher one. It is the least that is not below any of a majority of answers: that majority has a master in
//! common with whoever was granted before, so it is above that one's token. Masters that granted a lower one are asked to
//! raise it, and with a majority at or above it every later grant's is higher.
//!
//! Of `n` masters let `m` be the largest minority, and let `T` be a token that was granted before. All but at most `m` masters have
//! stored `T` or more, and each of those grants a new one above it. So of the masters that say yes at most `m` grant a token up to
//! `T`, and the (`m` + 1)-th lowest of their tokens, which is the majority-th, is above `T`, however many answer.
//!
//! A clock that is years ahead breaks none of that, but its tokens are as far ahead. Taken as the token of all they would fall back
//! when that master and the records are gone. At most a minority of clocks is wrong, so the majority-th lowest of *all* tokens is
//! never due to such clocks alone. Hence a token that no right clock has reached waits for the answers that are missing, if one of
//! them can make it lower. Where they do not come it counts all the same: it may be the one token that is above `T`.
//! Source: Gifford, "Weighted Voting for Replicated Data" (1979), for the version numbers; the Redlock page for the validity.

use crate::base::lease::{FencingToken, Moment};

/// What one master granted or confirmed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Yes {
    /// When the request was sent that it answered.
    pub(super) sent: Moment,
    /// Until when it keeps that, counted from there.
    pub(super) until: Moment,
    pub(super) token: FencingToken,
}

/// What one master has said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Vote {
    Yes(Yes),
    No,
    /// It has not answered, and will not; or it may not vote.
    Silent,
}

/// What follows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It depends on those that have not answered.
    Open,
    /// A majority says yes, but these have stored a lower token.
    Raise { to: FencingToken, at: Vec<usize> },
    /// A majority says yes and has stored the token.
    Won(Yes),
    /// So many say no that no majority can be had.
    Lost,
    /// Neither.
    Undecided,
}

/// One question to all masters.
#[derive(Clone, Debug)]
pub(super) struct Ballot {
    votes: Vec<Option<Vote>>,
    /// What a majority has to store, once there is one that says yes.
    token: Option<FencingToken>,
    /// Highest token that a right clock has reached, as far as clocks are known.
    reached: Option<FencingToken>,
}

/// How many of so many are more than half.
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

    /// The last word of a master counts.
    pub(super) fn says(&mut self, master: usize, vote: Vote) {
        self.votes[master] = Some(vote);
    }

    fn count(&self, counts: impl Fn(Option<Vote>) -> bool) -> usize {
        self.votes.iter().filter(|vote| counts(**vote)).count()
    }

    /// Who is.
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

    /// Whether so few answer, whatever they say, that there is no majority.
    pub(super) fn is_silent(&self) -> bool {
        self.count(|vote| vote == Some(Vote::Silent)) > self.votes.len() - majority(self.votes.len())
    }

    /// Whether those that have not answered may yet change what is said: by a majority, or that so many say no.
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

    /// Whether the token of these is above all right clocks, and the answers that are missing can make it one that is not.
    fn waits_for_right_clocks(&self, sorted: &[FencingToken]) -> bool {
        let Some(reached) = self.reached else { return false };
        let (last, missing) = (majority(self.votes.len()) - 1, self.count(|vote| vote.is_none()));
        // With a majority there fewer are missing than this.
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
        if self.token.is_none() && self.waits_for_right_clocks(&tokens) {
            return Verdict::Open;
        }
        // Once asked for it stays: what is under way is to reach it.
        let token = *self.token.get_or_insert(tokens[needed - 1]);
        let (stored, below): (Vec<_>, Vec<_>) = self.yes().partition(|(_, yes)| yes.token >= token);
        if stored.len() < needed {
            return Verdict::Raise { to: token, at: below.into_iter().map(|(master, _)| master).collect() };
        }
        let mut untils: Vec<_> = stored.iter().map(|(_, yes)| yes.until).collect();
        untils.sort_unstable();
        // As long as a majority keeps it.
        let until = untils[untils.len() - needed];
        let sent = stored.iter().map(|(_, yes)| yes.sent).min().unwrap_or(until);
        Verdict::Won(Yes { sent, until, token })
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../../testing/unit/store/quorum/votes/tests.rs"]
mod tests;
