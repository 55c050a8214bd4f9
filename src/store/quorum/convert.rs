//! Conversion of a read hold into a write hold or back, at a majority of the masters.
//!
//! Each master converts in one step, but not all masters convert at the same moment. If a majority has converted, the
//! new hold counts, and the manager releases the old hold where it still exists. If no majority has converted, the
//! manager undoes the conversion at the masters that have done it. If a majority then has the old hold, the old hold
//! counts. Otherwise the hold is lost, and the manager releases both holds. The manager does not repeat an undone
//! conversion under the same id, because a release of this id may be on its way.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::join_all;

use super::outstanding::{AtMaster, Outstanding, RequestInFlight};
use super::votes::{Verdict, Vote, majority, minority};
use super::{
    AnswerSummary, MasterAnswer, PendingAnswers, Quorum, Voters, finish, into_unknown, majority_answer,
    request_to_master,
};
use crate::base::attempt::{AcquisitionId, Answered, Attempt, BoxFuture, Failure};
use crate::base::key::Key;
use crate::base::mode::Mode;
use crate::base::process;
use crate::store::{AcquireRequest, Acquired, Converted, Floor};

/// State of a conversion at one master.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ConversionState {
    Nothing,
    Converted,
    /// The master still has the old hold.
    Unconverted,
    /// The master has neither the old hold nor the new one.
    Lost,
}

/// Conversion that is under way at the masters, with the state at each master.
struct QuorumConversion {
    key: Arc<Key>,
    old: AcquisitionId,
    request: Arc<AcquireRequest>,
    states: Vec<ConversionState>,
    summary: AnswerSummary,
}

impl QuorumConversion {
    /// Returns the masters in this state. Those that have not answered, or have failed, are in the first one.
    fn masters(&self, said: ConversionState) -> impl Iterator<Item = usize> {
        self.states.iter().enumerate().filter(move |(_, one)| **one == said).map(|(place, _)| place)
    }
}

impl Quorum {
    pub(super) async fn convert_by_majority(
        &self,
        key: &Key,
        old: &AcquisitionId,
        request: &AcquireRequest,
    ) -> Attempt<Converted> {
        // A write hold excludes all other holders, also when it becomes a read hold. A read hold is different, because
        // a restarted master may have forgotten other read holds. So only masters that remember their grants may vote
        // when a read hold becomes a write hold.
        let voters = match request.mode {
            Mode::Read => Voters::Holding,
            Mode::Write => Voters::Remembering,
        };
        let mut conversion = QuorumConversion {
            key: Arc::new(key.clone()),
            old: old.clone(),
            request: Arc::new(request_to_master(&request.id, request.mode, request.lease)),
            states: vec![ConversionState::Nothing; self.masters.len()],
            summary: AnswerSummary { voters, ..AnswerSummary::default() },
        };
        let QuorumConversion { key, request, .. } = &conversion;
        self.outstanding.begin(&request.id, request.mode, key, request.lease);
        let mut ballot = self.ballot();
        let mut asked = self.ask(&mut ballot, |place| self.send_conversion(place, &conversion));
        let mut raised = vec![false; self.masters.len()];
        let won = loop {
            ballot.note_clocks(self.reached_token());
            match ballot.verdict() {
                Verdict::Open => {}
                Verdict::Undecided if ballot.is_open() => {}
                Verdict::Raise { to, at } => {
                    for place in at {
                        if !std::mem::replace(&mut raised[place], true) {
                            let copy = self.outstanding.begin_request(&conversion.request.id, place);
                            let raise = self.send(place, &conversion.key, &conversion.request, Floor::Any(to), copy);
                            asked.push(Box::pin(async move { ConversionAnswer::Raised(raise.await) }));
                        }
                    }
                }
                Verdict::Won(won) => break Some(won),
                Verdict::Lost | Verdict::Undecided => break None,
            }
            let Some(answer) = asked.next().await else { break None };
            let (place, vote) = self.conversion_vote(&mut conversion, answer);
            ballot.cast(place, vote);
        };
        if let Some(won) = won {
            self.outstanding.note_granted(&conversion.request.id, won.token);
            self.outstanding.give_back(old);
            finish(asked);
            return Ok(majority_answer(won, Converted::Granted));
        }
        self.on_not_converted(conversion, asked).await
    }

    fn send_conversion(&self, place: usize, conversion: &QuorumConversion) -> BoxFuture<'static, ConversionAnswer> {
        let outstanding = Arc::clone(&self.outstanding);
        let (key, old, request) =
            (Arc::clone(&conversion.key), conversion.old.clone(), Arc::clone(&conversion.request));
        let copy = outstanding.begin_request(&request.id, place);
        Box::pin(async move {
            let attempt = outstanding.master(place).convert(&key, &old, &request).await;
            if let Ok(Answered { sent, value: Converted::Granted(_), .. }) = attempt {
                outstanding.note_converted(&old, place, sent);
            }
            copy.resolve(&attempt, |converted| match converted {
                Converted::Granted(granted) => Some(AtMaster::of_grant(granted)),
                Converted::Refused | Converted::Cached | Converted::Lost { .. } => Some(AtMaster::Missing),
                Converted::Late => None,
            });
            ConversionAnswer::Converted((place, attempt))
        })
    }

    fn conversion_vote(&self, conversion: &mut QuorumConversion, answer: ConversionAnswer) -> (usize, Vote) {
        let (place, attempt) = match answer {
            ConversionAnswer::Raised((place, attempt)) => {
                return (place, self.vote_of(place, attempt, &mut conversion.summary));
            }
            ConversionAnswer::Converted(said) => said,
        };
        let summary = &mut conversion.summary;
        let Some(Answered { sent, value, .. }) = summary.note(attempt) else { return (place, Vote::Silent) };
        let (said, vote) = match value {
            Converted::Granted(granted) => (ConversionState::Converted, self.yes(place, sent, granted, summary)),
            Converted::Refused | Converted::Cached => (ConversionState::Unconverted, Vote::No),
            Converted::Lost { forced } => {
                self.outstanding.note_lacking(&conversion.old, place, forced);
                (ConversionState::Lost, Vote::No)
            }
            Converted::Late => (ConversionState::Nothing, Vote::Silent),
        };
        conversion.states[place] = said;
        (place, vote)
    }

    async fn on_not_converted(
        &self,
        conversion: QuorumConversion,
        asked: PendingAnswers<ConversionAnswer>,
    ) -> Attempt<Converted> {
        let (masters, now) = (self.masters.len(), self.clock.now());
        let done = conversion.masters(ConversionState::Converted).count();
        let unconverted = conversion.masters(ConversionState::Unconverted).count();
        let lost = conversion.masters(ConversionState::Lost).count();
        // A restarted master without a vote has converted, but its new hold may conflict with a hold that it has
        // forgotten. So its answer counts as a refusal here.
        let is_refused = (unconverted > 0 || conversion.summary.restarted > 0)
            && conversion.request.mode == Mode::Write
            && unconverted + done >= majority(masters);
        // An earlier copy may convert a master again after the undo, or after its refusal. The release of the new hold would then
        // end the old hold there. So the conversion stays unknown as long as such a copy may arrive.
        let may_arrive = |place| self.outstanding.may_arrive(&conversion.request.id, place);
        let is_in_doubt = is_refused
            && (conversion.masters(ConversionState::Converted).any(may_arrive)
                || conversion.masters(ConversionState::Unconverted).any(may_arrive));
        if is_refused && !is_in_doubt {
            return Ok(self.undo(conversion, asked).await);
        }
        let is_pending = is_in_doubt || !asked.is_empty();
        finish(asked);
        let QuorumConversion { summary, old, .. } = conversion;
        if lost > minority(masters) {
            let forced = self.outstanding.forced_token(&old);
            return Ok(self.answer(summary.server, Converted::Lost { forced }));
        }
        let is_unknown = |failure: &Failure| matches!(failure, Failure::Unknown { .. } | Failure::Broken { .. });
        let may_be_done = is_pending || done > 0 || summary.failures.iter().any(is_unknown);
        let failure = summary.failure(masters);
        Err(if may_be_done { into_unknown(failure, now.after(self.margins.max_delay)) } else { failure })
    }

    /// Undoes the conversion at each master that has converted or will still do so.
    async fn undo(
        &self,
        conversion: QuorumConversion,
        mut asked: PendingAnswers<ConversionAnswer>,
    ) -> Answered<Converted> {
        let QuorumConversion { key, old, request, .. } = &conversion;
        let gives_back = GiveBackOnDrop { outstanding: Arc::clone(&self.outstanding), id: request.id.clone() };
        let back = request_to_master(old, Mode::Read, request.lease);
        self.outstanding.begin(old, back.mode, key, back.lease);
        let turn_back = |place| ConversionUndo {
            place,
            key: Arc::clone(key),
            new: request.id.clone(),
            back: back.clone(),
            // The request to convert back is recorded from now on. If the old hold is released meanwhile, a master that
            // gets the old hold back has to release it too.
            in_flight: self.outstanding.begin_request(old, place),
            outstanding: Arc::clone(&self.outstanding),
        };
        let done: Vec<_> = conversion.masters(ConversionState::Converted).map(turn_back).collect();
        let mut pending: Vec<_> = if asked.is_empty() {
            Vec::new()
        } else {
            conversion.masters(ConversionState::Nothing).map(turn_back).collect()
        };
        let undone =
            join_all(done.into_iter().map(ConversionUndo::run)).await.into_iter().filter(|is_back| *is_back).count();
        drop(process::spawn(async move {
            while let Some(answer) = asked.next().await {
                if let ConversionAnswer::Converted((place, Ok(Answered { value: Converted::Granted(_), .. }))) = answer
                    && let Some(next) = pending.iter().position(|turn_back| turn_back.place == place)
                {
                    pending.swap_remove(next).run().await;
                }
            }
            pending.into_iter().for_each(ConversionUndo::cancel);
            drop(gives_back);
        }));
        let there = conversion.masters(ConversionState::Unconverted).count() + undone;
        let value = if there >= majority(self.masters.len()) {
            Converted::Refused
        } else {
            Converted::Lost { forced: self.outstanding.forced_token(old) }
        };
        self.answer(conversion.summary.server, value)
    }
}

/// Undo of a conversion at one master.
struct ConversionUndo {
    place: usize,
    key: Arc<Key>,
    new: AcquisitionId,
    back: AcquireRequest,
    in_flight: RequestInFlight,
    outstanding: Arc<Outstanding>,
}

impl ConversionUndo {
    /// Asks the master to convert back. Returns true if the master has the old hold again.
    async fn run(self) -> bool {
        let attempt = self.outstanding.master(self.place).convert(&self.key, &self.new, &self.back).await;
        self.in_flight.resolve(&attempt, |converted| match converted {
            Converted::Granted(granted) => Some(AtMaster::of_grant(granted)),
            _ => None,
        });
        let Ok(Answered { sent, value: Converted::Granted(_), .. }) = attempt else { return false };
        self.outstanding.note_converted(&self.new, self.place, sent);
        true
    }

    /// Notes that the master has not converted, so that it has nothing to undo.
    fn cancel(self) {
        self.in_flight.resolve::<()>(&Err(Failure::NotDone { source: None }), |()| None);
    }
}

/// Value that releases the new hold of a refused conversion when it is dropped. Its owner is the task that waits for
/// the last answers.
struct GiveBackOnDrop {
    outstanding: Arc<Outstanding>,
    id: AcquisitionId,
}

impl Drop for GiveBackOnDrop {
    fn drop(&mut self) {
        self.outstanding.give_back(&self.id);
    }
}

/// Answer to a request of a conversion.
enum ConversionAnswer {
    Converted(MasterAnswer<Converted>),
    /// Answer to a request to raise the token of the new hold.
    Raised(MasterAnswer<Acquired>),
}
