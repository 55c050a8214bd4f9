//! What the masters may have of each acquisition: holds, and copies of requests that may yet be carried out.
//!
//! A majority decides, and the others answer later or never. What they may have by then is known here until it was given
//! back: an id that came to nothing or was released is *left*, and whatever a master grants under it after that is given back
//! as well, by id, as often as it takes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::master::{Debt, Master};
use crate::base::attempt::{AcquisitionId, Attempt, Failure};
use crate::base::clock::Clock;
use crate::base::in_doubt::InDoubt;
use crate::base::key::Key;
use crate::base::lease::{self, FencingToken, Moment};
use crate::base::mode::Mode;
use crate::store::{Absence, ReleaseReply, Scheme};

/// Fewer are not worth a look for those that nobody has told us the end of.
const MIN_SWEEP: usize = 256;

#[derive(Debug)]
pub(super) struct Traces {
    masters: Vec<Arc<Master>>,
    clock: Clock,
    max_clock_skew: Duration,
    stray_span: Duration,
    of: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    by_id: HashMap<AcquisitionId, Trace>,
    sweep_at: usize,
}

#[derive(Debug)]
struct Trace {
    key: Arc<Key>,
    mode: Mode,
    at: Vec<At>,
    /// A majority has granted it.
    token: Option<FencingToken>,
    /// Up to which token an operator has ended what a master had, if this was among it.
    forced: Option<FencingToken>,
    /// It is to be given back, or was.
    is_left: bool,
    /// Nobody will ask what came of giving it back.
    is_settled: bool,
    /// How long a master keeps a hold that it grants now.
    covers: Duration,
    /// By then no master has it, unless it was asked for again.
    until: Moment,
}

/// What one master may have.
#[derive(Clone, Debug, Default)]
struct At {
    copies: InDoubt,
    may_hold: bool,
    /// When its last answer came that said so.
    held_at: Option<Moment>,
    /// So many releases are on their way.
    telling: u32,
    /// It has granted it while a release was on its way, which may have come before that.
    is_late: bool,
    /// A release has ended what the only copy had brought that is on its way still.
    is_ended: bool,
    /// What it answered to the release: whether it had been ours to the end.
    released: Option<bool>,
    /// It was told of the release and did not answer.
    in_doubt: bool,
    /// It is told again and again until it does.
    is_owed: bool,
}

/// What a release finds at one master.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// It has nothing to give back.
    Nothing,
    /// It has answered before.
    Released { was_held: bool },
    /// It is to be told.
    MayHold,
}

impl Trace {
    fn debt(&self, id: &AcquisitionId, stray_until: Option<Moment>, now: Moment) -> Debt {
        let until = stray_until.unwrap_or(now).max(now).after(self.covers).max(self.until);
        Debt { key: Arc::clone(&self.key), id: id.clone(), stray_until, until }
    }

    fn is_over(&self) -> bool {
        let is_awaited = self.at.iter().any(|at| at.telling > 0 || at.copies.in_flight() > 0);
        self.is_left && self.is_settled && !is_awaited
    }
}

impl Traces {
    pub(super) fn new(
        masters: Vec<Arc<Master>>,
        clock: Clock,
        max_clock_skew: Duration,
        stray_span: Duration,
    ) -> Arc<Self> {
        Arc::new(Self { masters, clock, max_clock_skew, stray_span, of: Mutex::default() })
    }

    /// The token of a hold that a majority has granted.
    pub(super) fn token_of(&self, id: &AcquisitionId) -> Option<FencingToken> {
        self.of.lock().by_id.get(id)?.token
    }

    /// Masters are asked for it from now on, or asked to keep it for longer.
    pub(super) fn begin(&self, id: &AcquisitionId, mode: Mode, key: &Arc<Key>, lease: Duration) {
        let (now, covers) = (self.clock.now(), lease::surely_over(lease, self.max_clock_skew));
        let mut table = self.of.lock();
        if table.by_id.len() >= table.sweep_at {
            table.by_id.retain(|_, trace| trace.until > now);
            table.sweep_at = (table.by_id.len() * 2).max(MIN_SWEEP);
        }
        let trace = table.by_id.entry(id.clone()).or_insert_with(|| Trace {
            key: Arc::clone(key),
            mode,
            at: vec![At::default(); self.masters.len()],
            token: None,
            forced: None,
            is_left: false,
            is_settled: false,
            covers,
            until: now,
        });
        trace.extend(covers, now.after(self.stray_span));
    }

    /// The same for a hold that is there.
    pub(super) fn extend(&self, id: &AcquisitionId, lease: Duration) {
        let (now, covers) = (self.clock.now(), lease::surely_over(lease, self.max_clock_skew));
        if let Some(trace) = self.of.lock().by_id.get_mut(id) {
            trace.extend(covers, now.after(self.stray_span));
        }
    }

    /// A copy is on its way to a master from now on.
    pub(super) fn sends(self: &Arc<Self>, id: &AcquisitionId, master: usize) -> Copy {
        self.counts(id, master);
        Copy { traces: Arc::clone(self), id: id.clone(), master, is_settled: false }
    }

    /// The same for one more. `None` if all was given back meanwhile, of which nothing is known any more: what it would bring
    /// would be given back by nobody.
    pub(super) fn sends_again(self: &Arc<Self>, id: &AcquisitionId, master: usize) -> Option<Copy> {
        let copy = || Copy { traces: Arc::clone(self), id: id.clone(), master, is_settled: false };
        self.counts(id, master).then(copy)
    }

    /// Whether anything is known of it.
    fn counts(&self, id: &AcquisitionId, master: usize) -> bool {
        let mut table = self.of.lock();
        let trace = table.by_id.get_mut(id);
        trace.is_some_and(|trace| {
            trace.at[master].copies.begin();
            true
        })
    }

    /// A copy is on its way, from now on, to a master that does not have what a majority keeps until then. What is to be had, and
    /// the token that the majority has. `None` if that is over, released or ended by force, or an earlier copy may yet bring it.
    pub(super) fn brings(
        self: &Arc<Self>,
        id: &AcquisitionId,
        master: usize,
        lease: Duration,
        until: Moment,
    ) -> Option<(Copy, Mode, FencingToken)> {
        let (now, covers) = (self.clock.now(), lease::surely_over(lease, self.max_clock_skew));
        let mut table = self.of.lock();
        let trace = table.by_id.get_mut(id).filter(|trace| trace.is_wanted() && until > now)?;
        let (mode, token, copies) = (trace.mode, trace.token?, &mut trace.at[master].copies);
        if copies.in_flight() > 0 || copies.arrives_until().is_some_and(|until| until > now) {
            return None;
        }
        copies.begin();
        trace.extend(covers, now.after(self.stray_span));
        drop(table);
        Some((Copy { traces: Arc::clone(self), id: id.clone(), master, is_settled: false }, mode, token))
    }

    /// A master does not have it, and tells up to which token it was told to end what it had. What was ended by force at any
    /// master is over.
    pub(super) fn lacks(&self, id: &AcquisitionId, forced: Option<FencingToken>) {
        if let Some(trace) = self.of.lock().by_id.get_mut(id)
            && trace.token.is_some_and(|token| Some(token) <= forced)
        {
            trace.forced = trace.forced.max(forced);
        }
    }

    /// Up to which token an operator has ended what there was, if this was among it.
    pub(super) fn forced(&self, id: &AcquisitionId) -> Option<FencingToken> {
        self.of.lock().by_id.get(id)?.forced
    }

    pub(super) fn master(&self, place: usize) -> &dyn Scheme {
        &*self.masters[place].scheme
    }

    /// A majority has granted it.
    pub(super) fn granted(&self, id: &AcquisitionId, token: FencingToken) {
        if let Some(trace) = self.of.lock().by_id.get_mut(id) {
            trace.token = Some(token);
        }
    }

    /// It came to nothing: whoever has granted it is told, and whoever grants it yet will be.
    pub(super) fn give_back(&self, id: &AcquisitionId) {
        let now = self.clock.now();
        let mut owed = Vec::new();
        let mut table = self.of.lock();
        let Some(trace) = table.by_id.get_mut(id) else {
            return;
        };
        (trace.is_left, trace.is_settled) = (true, true);
        trace.token = None;
        for (master, at) in trace.at.iter().enumerate() {
            let stray_until = at.copies.arrives_until();
            if at.may_hold || stray_until.is_some() {
                owed.push((master, trace.debt(id, stray_until, now)));
            }
        }
        Self::tidy(&mut table, id);
        drop(table);
        owed.into_iter().for_each(|(master, debt)| self.masters[master].owe(debt));
    }

    fn tidy(table: &mut Table, id: &AcquisitionId) {
        if table.by_id.get(id).is_some_and(Trace::is_over) {
            table.by_id.remove(id);
        }
    }

    /// Something has become of a copy. `has` says whether the master has a hold by it, if that is known.
    fn settle(&self, id: &AcquisitionId, master: usize, has: Option<bool>, settles: impl FnOnce(&mut InDoubt)) {
        let now = self.clock.now();
        let mut table = self.of.lock();
        let Some(trace) = table.by_id.get_mut(id) else {
            return;
        };
        let at = &mut trace.at[master];
        at.held_at = if has == Some(true) { Some(now) } else { at.held_at };
        settles(&mut at.copies);
        let stray_until = at.copies.arrives_until();
        let owes = at.is_owed_for(has) && trace.is_left;
        let debt = owes.then(|| trace.debt(id, stray_until, now));
        Self::tidy(&mut table, id);
        drop(table);
        if let Some(debt) = debt {
            self.masters[master].owe(debt);
        }
    }

    /// A conversion that was sent then has taken the hold away from a master, and put another in its place. It may have come back
    /// since, if the answer is late.
    pub(super) fn was_converted(&self, id: &AcquisitionId, master: usize, sent: Moment) {
        if let Some(trace) = self.of.lock().by_id.get_mut(id) {
            let at = &mut trace.at[master];
            at.may_hold &= at.held_at.is_some_and(|held_at| sent < held_at);
        }
    }

    /// It is released: what is to be done at each master. `None` if nothing is known of it.
    pub(super) fn leaving(&self, id: &AcquisitionId) -> Option<Vec<Standing>> {
        let mut table = self.of.lock();
        let trace = table.by_id.get_mut(id)?;
        trace.is_left = true;
        let standing = |at: &At| match at.released {
            Some(was_held) => Standing::Released { was_held },
            None if at.may_hold || !at.copies.is_none() => Standing::MayHold,
            None => Standing::Nothing,
        };
        Some(trace.at.iter().map(standing).collect())
    }

    /// A master has said what it had of it: whether that was ours to the end.
    fn released(&self, id: &AcquisitionId, master: usize, sent: Moment, reply: &ReleaseReply) -> bool {
        let now = self.clock.now();
        let mut table = self.of.lock();
        let Some(trace) = table.by_id.get_mut(id) else {
            return *reply == ReleaseReply::Held;
        };
        let (token, at) = (trace.token, &mut trace.at[master]);
        at.no_longer_told();
        let was_held = match reply {
            ReleaseReply::Held => true,
            ReleaseReply::Queued => false,
            // An earlier copy that was not answered may have done it.
            ReleaseReply::None(absence) => at.in_doubt && token.is_some_and(|token| knew(absence, token)),
        };
        at.is_ended = *reply == ReleaseReply::Held && !at.may_hold && at.copies.in_flight() == 1;
        let overtaken = std::mem::take(&mut at.is_late) && *reply != ReleaseReply::Held;
        (at.released, at.may_hold) = (Some(was_held), false);
        let stray_until = at.copies.arrives_until().filter(|until| *until > sent);
        let debt = (overtaken || stray_until.is_some()).then(|| trace.debt(id, stray_until, now));
        Self::tidy(&mut table, id);
        drop(table);
        if let Some(debt) = debt {
            self.masters[master].owe(debt);
        }
        was_held
    }

    /// A master has not answered to the release: it is told until it does.
    fn unreleased(&self, id: &AcquisitionId, master: usize, was_sent: Sent) {
        let now = self.clock.now();
        let mut table = self.of.lock();
        let Some(trace) = table.by_id.get_mut(id) else {
            return;
        };
        let at = &mut trace.at[master];
        at.no_longer_told();
        at.in_doubt |= was_sent == Sent::Perhaps;
        let (is_owed, stray_until) = (std::mem::replace(&mut at.is_owed, true), at.copies.arrives_until());
        let is_late = std::mem::take(&mut at.is_late);
        let debt = (!is_owed || is_late).then(|| trace.debt(id, stray_until, now));
        Self::tidy(&mut table, id);
        drop(table);
        if let Some(debt) = debt {
            self.masters[master].owe(debt);
        }
    }

    /// What came of giving it back is known, as far as anybody wants to know.
    pub(super) fn has_left(&self, id: &AcquisitionId) {
        let mut table = self.of.lock();
        if let Some(trace) = table.by_id.get_mut(id) {
            trace.is_settled = true;
        }
        Self::tidy(&mut table, id);
    }
}

fn knew(absence: &Absence, token: FencingToken) -> bool {
    absence.knew(token, token)
}

impl At {
    /// Whoever began when nothing was known of it has not been counted.
    fn no_longer_told(&mut self) {
        self.telling = self.telling.saturating_sub(1);
    }

    /// What a copy has brought, if that is known; whether it is to be given back if nobody wants it any more. A release that is
    /// on its way most likely comes behind a copy that was sent before it: its answer tells.
    fn is_owed_for(&mut self, has: Option<bool>) -> bool {
        // Without an answer it may have been carried out once more.
        if std::mem::take(&mut self.is_ended) && has.is_some() {
            return false;
        }
        let had = self.may_hold;
        self.may_hold = has.unwrap_or(had);
        if self.telling > 0 && has == Some(true) && !had {
            self.is_late = true;
            return false;
        }
        has == Some(true) || has.is_none() && self.copies.arrives_until().is_some()
    }
}

impl Trace {
    fn is_wanted(&self) -> bool {
        !self.is_left && self.forced.is_none()
    }

    fn extend(&mut self, covers: Duration, from: Moment) {
        self.covers = self.covers.max(covers);
        self.until = self.until.max(from.after(covers));
    }
}

/// A copy of a request on its way to one master. Dropped before it was answered, it may arrive at any time until its limit.
#[derive(Debug)]
pub(super) struct Copy {
    traces: Arc<Traces>,
    id: AcquisitionId,
    master: usize,
    is_settled: bool,
}

impl Copy {
    /// What became of it; `has` says of an answer whether the master has a hold now, if it says that.
    pub(super) fn settle<T>(mut self, attempt: &Attempt<T>, has: impl FnOnce(&T) -> Option<bool>) {
        self.is_settled = true;
        let has = match attempt {
            Ok(answer) => has(&answer.value),
            Err(Failure::Broken { .. } | Failure::Unreplicated { .. }) => Some(true),
            Err(Failure::Unknown { .. } | Failure::NotDone { .. } | Failure::Refused { .. }) => None,
        };
        self.traces.settle(&self.id, self.master, has, |copies| copies.resolve(attempt));
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if !self.is_settled {
            let until = self.traces.clock.now().after(self.traces.stray_span);
            self.traces.settle(&self.id, self.master, None, |copies| copies.abandon(until));
        }
    }
}

/// Whether a release may have reached its master.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    No,
    Perhaps,
}

/// A release on its way to one master. Dropped before it was answered, the master is told again.
#[derive(Debug)]
pub(super) struct Telling {
    traces: Arc<Traces>,
    id: AcquisitionId,
    master: usize,
    is_told: bool,
}

impl Telling {
    pub(super) fn new(traces: &Arc<Traces>, id: &AcquisitionId, master: usize) -> Self {
        if let Some(trace) = traces.of.lock().by_id.get_mut(id) {
            trace.at[master].telling += 1;
        }
        Self { traces: Arc::clone(traces), id: id.clone(), master, is_told: false }
    }

    /// Whether the hold was ours to the end, if the master says.
    pub(super) fn told(mut self, attempt: &Attempt<ReleaseReply>) -> Option<bool> {
        self.is_told = true;
        match attempt {
            Ok(answer) => Some(self.traces.released(&self.id, self.master, answer.sent, &answer.value)),
            Err(failure) => {
                let not_sent = matches!(failure, Failure::NotDone { .. });
                self.traces.unreleased(&self.id, self.master, if not_sent { Sent::No } else { Sent::Perhaps });
                None
            }
        }
    }
}

impl Telling {
    /// It is no use to ask this master now.
    pub(super) fn not_sent(mut self) {
        self.is_told = true;
        self.traces.unreleased(&self.id, self.master, Sent::No);
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        if !self.is_told {
            self.traces.unreleased(&self.id, self.master, Sent::Perhaps);
        }
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../../testing/unit/store/quorum/traces/tests.rs"]
mod tests;
