//! Conversion at a majority of the masters: a hold of one side becomes one of the other.
//!
//! Each master converts in one step, but not all masters at one moment. If a majority has converted, that is the new
//! hold, and the old one is released where it still exists. A conversion without a majority is undone where it was
//! done. Then the old hold remains if a majority has it. If that is not known of a majority, the hold counts as lost,
//! and both are released. An undone conversion is not requested again under its id: the release of that id may yet be
//! on its way.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;

use super::traces::{Copy, Traces};
use super::votes::{Verdict, Vote, majority};
use super::{Asked, Heard, Quorum, Said, Voters, answered, answered_by_majority, finish, granted, unknown};
use crate::base::attempt::{AcquisitionId, Answered, Attempt, BoxFuture, Failure};
use crate::base::key::Key;
use crate::base::mode::Mode;
use crate::base::process;
use crate::store::{AcquireRequest, Acquired, Converted, Floor, IfTaken, Scheme};

/// State of a conversion at one master, by its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    Nothing,
    Converted,
    /// The master still has the old hold.
    Stands,
    /// The master has neither hold.
    Lost,
}

/// Conversion that is under way at the masters.
struct Conversion {
    key: Arc<Key>,
    old: AcquisitionId,
    request: Arc<AcquireRequest>,
    said: Vec<At>,
    heard: Heard,
}

impl Conversion {
    fn count(&self, said: At) -> usize {
        self.said.iter().filter(|one| **one == said).count()
    }
}

impl Quorum {
    pub(super) async fn convert_by_majority(
        &self,
        key: &Key,
        old: &AcquisitionId,
        request: &AcquireRequest,
    ) -> Attempt<Converted> {
        let voters = voters(request.mode);
        let request = AcquireRequest { max_tokens: 1, if_taken: IfTaken::Leave, caches: false, ..request.clone() };
        let mut conversion = Conversion {
            key: Arc::new(key.clone()),
            old: old.clone(),
            request: Arc::new(request),
            said: vec![At::Nothing; self.masters.len()],
            heard: Heard { voters, ..Heard::default() },
        };
        let Conversion { key, request, .. } = &conversion;
        self.traces.begin(&request.id, request.mode, key, request.lease);
        let mut ballot = self.ballot();
        let mut asked: Asked<Answer> = FuturesUnordered::new();
        for (place, master) in self.masters.iter().enumerate() {
            if master.is_silent() {
                ballot.says(place, Vote::Silent);
            } else {
                asked.push(self.send_conversion(place, &conversion));
            }
        }
        let mut raised = vec![false; self.masters.len()];
        let won = loop {
            ballot.note_clocks(self.reached_token());
            match ballot.verdict() {
                Verdict::Open => {}
                Verdict::Undecided if ballot.is_open() => {}
                Verdict::Raise { to, at } => {
                    for place in at {
                        if !std::mem::replace(&mut raised[place], true) {
                            let copy = self.traces.sends(&conversion.request.id, place);
                            let raise = self.send(place, &conversion.key, &conversion.request, Floor::Any(to), copy);
                            asked.push(Box::pin(async move { Answer::Raised(raise.await) }));
                        }
                    }
                }
                Verdict::Won(won) => break Some(won),
                Verdict::Lost | Verdict::Undecided => break None,
            }
            let Some(answer) = asked.next().await else { break None };
            let (place, vote) = self.conversion_vote(&mut conversion, answer);
            ballot.says(place, vote);
        };
        if let Some(won) = won {
            self.traces.granted(&conversion.request.id, won.token);
            self.traces.give_back(old);
            finish(asked);
            return Ok(answered_by_majority(won, Converted::Granted(granted(won))));
        }
        self.not_converted(conversion, asked).await
    }

    fn send_conversion(&self, place: usize, conversion: &Conversion) -> BoxFuture<'static, Answer> {
        let (scheme, traces) = (Arc::clone(&self.masters[place].scheme), Arc::clone(&self.traces));
        let (key, old, request) =
            (Arc::clone(&conversion.key), conversion.old.clone(), Arc::clone(&conversion.request));
        let copy = traces.sends(&request.id, place);
        Box::pin(async move {
            let attempt = scheme.convert(&key, &old, &request).await;
            let has = |converted: &Converted| match converted {
                Converted::Granted(_) => Some(true),
                Converted::Refused | Converted::Kept | Converted::Lost { .. } => Some(false),
                Converted::Late => None,
            };
            if let Some(answer) = attempt.as_ref().ok().filter(|answer| has(&answer.value) == Some(true)) {
                traces.was_converted(&old, place, answer.sent);
            }
            copy.settle(&attempt, has);
            Answer::Converted((place, attempt))
        })
    }

    fn conversion_vote(&self, conversion: &mut Conversion, answer: Answer) -> (usize, Vote) {
        let (place, attempt) = match answer {
            Answer::Raised((place, attempt)) => return (place, self.vote_of(place, attempt, &mut conversion.heard)),
            Answer::Converted(said) => said,
        };
        let heard = &mut conversion.heard;
        let Answered { sent, server, value, .. } = match attempt {
            Ok(answer) => answer,
            Err(failure) => {
                heard.failures.push(failure);
                return (place, Vote::Silent);
            }
        };
        heard.server = heard.server.max(server);
        let (said, vote) = match value {
            Converted::Granted(granted) => (At::Converted, self.yes(place, sent, granted, heard)),
            Converted::Refused | Converted::Kept => (At::Stands, Vote::No),
            Converted::Lost { forced } => {
                heard.forced = heard.forced.max(forced);
                (At::Lost, Vote::No)
            }
            Converted::Late => (At::Nothing, Vote::Silent),
        };
        conversion.said[place] = said;
        (place, vote)
    }

    async fn not_converted(&self, conversion: Conversion, asked: Asked<Answer>) -> Attempt<Converted> {
        let (masters, now) = (self.masters.len(), self.clock.now());
        let (done, stands) = (conversion.count(At::Converted), conversion.count(At::Stands));
        // A young master has converted, but that may conflict with a hold that it has forgotten.
        let is_refused = stands > 0 || conversion.heard.young > 0;
        if conversion.request.mode == Mode::Write && is_refused && stands + done >= majority(masters) {
            return Ok(self.undo(conversion, asked).await);
        }
        let is_pending = !asked.is_empty();
        finish(asked);
        let Conversion { heard, said, .. } = conversion;
        if said.iter().filter(|said| **said == At::Lost).count() > masters - majority(masters) {
            return Ok(answered(now, heard.server, Converted::Lost { forced: heard.forced }));
        }
        let is_unknown = |failure: &Failure| matches!(failure, Failure::Unknown { .. } | Failure::Broken { .. });
        let may_be_done = is_pending || done > 0 || heard.failures.iter().any(is_unknown);
        let failure = heard.failure(masters);
        Err(if may_be_done { unknown(failure, now.after(self.margins.stray_span)) } else { failure })
    }

    /// Converts back at each master that has converted, or does so yet.
    async fn undo(&self, conversion: Conversion, mut asked: Asked<Answer>) -> Answered<Converted> {
        let Conversion { key, old, request, said, heard } = conversion;
        let gives_back = GivesBack { traces: Arc::clone(&self.traces), id: request.id.clone() };
        let back = AcquireRequest { id: old.clone(), mode: Mode::Read, ..AcquireRequest::clone(&request) };
        self.traces.begin(&old, back.mode, &key, back.lease);
        let turn_back = |place: usize| TurnBack {
            scheme: Arc::clone(&self.masters[place].scheme),
            place,
            key: Arc::clone(&key),
            new: request.id.clone(),
            back: back.clone(),
            // Counts from now on: if the old hold is released meanwhile, a hold that comes back is released too.
            copy: self.traces.sends(&old, place),
            traces: Arc::clone(&self.traces),
        };
        let at = |wanted: At| said.iter().enumerate().filter(move |(_, said)| **said == wanted).map(|(place, _)| place);
        let done: Vec<_> = at(At::Converted).map(turn_back).collect();
        let mut pending: Vec<_> = if asked.is_empty() { Vec::new() } else { at(At::Nothing).map(turn_back).collect() };
        let undone = join_all(done.into_iter().map(TurnBack::run)).await.into_iter().filter(|is_back| *is_back).count();
        drop(process::spawn(async move {
            while let Some(answer) = asked.next().await {
                if let Answer::Converted((place, Ok(Answered { value: Converted::Granted(_), .. }))) = answer
                    && let Some(next) = pending.iter().position(|turn_back| turn_back.place == place)
                {
                    pending.swap_remove(next).run().await;
                }
            }
            pending.into_iter().for_each(TurnBack::needless);
            drop(gives_back);
        }));
        let is_there = at(At::Stands).count() + undone >= majority(self.masters.len());
        let value = if is_there { Converted::Refused } else { Converted::Lost { forced: heard.forced } };
        answered(self.clock.now(), heard.server, value)
    }
}

/// Returns which masters may vote. A write hold excludes others as well as the read hold that it becomes. A read hold
/// may be beside others that a restarted master has forgotten.
fn voters(wanted: Mode) -> Voters {
    match wanted {
        Mode::Read => Voters::Holding,
        Mode::Write => Voters::Remembering,
    }
}

/// Conversion back at one master.
struct TurnBack {
    scheme: Arc<dyn Scheme>,
    place: usize,
    key: Arc<Key>,
    new: AcquisitionId,
    back: AcquireRequest,
    copy: Copy,
    traces: Arc<Traces>,
}

impl TurnBack {
    /// Returns true if the old hold is there again.
    async fn run(self) -> bool {
        let attempt = self.scheme.convert(&self.key, &self.new, &self.back).await;
        let back = attempt.as_ref().ok().filter(|answer| matches!(answer.value, Converted::Granted(_)));
        let sent = back.map(|answer| answer.sent);
        self.copy.settle(&attempt, |_| sent.map(|_| true));
        if let Some(sent) = sent {
            self.traces.was_converted(&self.new, self.place, sent);
        }
        sent.is_some()
    }

    /// Notes that the master has not converted: nothing is to be undone.
    fn needless(self) {
        self.copy.settle::<()>(&Err(Failure::NotDone { source: None }), |()| None);
    }
}

/// Releases what is left of a refused conversion, when its last answer is there or its task is gone.
struct GivesBack {
    traces: Arc<Traces>,
    id: AcquisitionId,
}

impl Drop for GivesBack {
    fn drop(&mut self) {
        self.traces.give_back(&self.id);
    }
}

/// Answer to a request of a conversion.
enum Answer {
    Converted(Said<Converted>),
    /// Answer to a request to raise the token of the new hold.
    Raised(Said<Acquired>),
}
