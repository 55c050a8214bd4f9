//! The history by request, guard, attempt and process.

use std::collections::BTreeMap;

use crate::scheme::Mode;
use crate::testing::simulation::history::{
    Attempt, End, Event, Guard, History, Id, Letting, Lock, Micros, Op, Process, Reply, Request, Seen, What, Wish,
};

pub(super) const MS: Micros = 1_000;
pub(super) const SECOND: Micros = 1_000_000;
/// That a future is not polled any more shows after so long to others who wait.
pub(super) const RUNTIME_NOTICED: Micros = 5_100 * MS;

pub(super) struct Facts<'h> {
    pub(super) events: &'h [Event],
    pub(super) processes: BTreeMap<Process, ProcessFacts>,
    pub(super) attempts: BTreeMap<Attempt, AttemptFacts>,
    pub(super) guards: BTreeMap<Guard, GuardFacts>,
    pub(super) requests: BTreeMap<Request, RequestFacts>,
    /// When each hold was granted by a server for the first time, and how many there had been before that one.
    pub(super) granted: BTreeMap<Id, (Micros, u32)>,
    /// What notices let their readers count on: when each came, and until when.
    pub(super) noticed: BTreeMap<Id, Vec<(Micros, Micros)>>,
    /// When the server lost data.
    pub(super) losses: Vec<Micros>,
    /// When each hold was ended by force.
    forced: BTreeMap<Id, Vec<Micros>>,
    /// Tokens that a primary granted that was replaced.
    pub(super) deposed: BTreeMap<Lock, u64>,
    by_id: BTreeMap<Id, Vec<Request>>,
    /// Those that were to give a hold up for another one.
    conversions: BTreeMap<Id, Vec<Request>>,
    /// A crowd takes several requests.
    pub(super) crowded: bool,
    replicated: bool,
    pub(super) healed: Micros,
    pub(super) over: Micros,
}

#[derive(Clone, Debug, Default)]
pub(super) struct ProcessFacts {
    pub(super) response_timeout: Micros,
    pub(super) unreachable_after: Micros,
    pub(super) clock_margin: Micros,
    pub(super) share_window: Micros,
    pub(super) hand_over_budget: u64,
    pub(super) crashed: Option<Micros>,
    pub(super) closing: Option<Micros>,
    /// When it stood still, from and to.
    pub(super) paused: Vec<(Micros, Micros)>,
    /// When nobody drove one of its runtimes, from and to.
    pub(super) stopped: BTreeMap<u32, Vec<(Micros, Micros)>>,
}

fn within(spans: &[(Micros, Micros)], from: Micros, to: Micros) -> Micros {
    spans.iter().map(|(begin, end)| (*end).min(to).saturating_sub((*begin).max(from))).sum()
}

impl ProcessFacts {
    /// How much of a span it stood still.
    pub(super) fn paused_within(&self, from: Micros, to: Micros) -> Micros {
        within(&self.paused, from, to)
    }

    /// How long it may take until another one asks in place of one that is not polled.
    pub(super) fn handing_on(&self, from: Micros, to: Micros) -> Micros {
        if self.was_a_runtime_stopped(from, to) { RUNTIME_NOTICED } else { 0 }
    }

    /// Whether one of its runtimes was not driven, or ended, at some moment of a span.
    pub(super) fn was_a_runtime_stopped(&self, from: Micros, to: Micros) -> bool {
        self.stopped.values().flatten().any(|(begin, end)| *begin <= to && from <= *end)
    }

    /// How long after its sending a request with a limit may still be carried out.
    pub(super) fn stray_span(&self) -> Micros {
        let span = 2 * self.response_timeout;
        span + span / 100 + 2 * MS + self.clock_margin
    }

    /// What is left of a lease after the margins.
    pub(super) fn usable(&self, lease: Micros) -> Micros {
        (lease - lease / 100).saturating_sub(2 * MS + self.clock_margin)
    }
}

pub(super) struct AttemptFacts {
    pub(super) process: Process,
    /// On which it is polled.
    pub(super) runtime: u32,
    pub(super) wish: Wish,
    pub(super) asked: Micros,
    pub(super) index: usize,
    /// When and at which event it was over: with a guard, without, or by a crash.
    pub(super) ended: Option<(Micros, usize)>,
    pub(super) end: Option<End>,
    pub(super) guard: Option<Guard>,
}

pub(super) struct GuardFacts {
    pub(super) process: Process,
    pub(super) attempt: Attempt,
    pub(super) index: usize,
    pub(super) token: u64,
    /// Which side its hold is of.
    pub(super) mode: Mode,
    /// The guard that it is nested in, or was converted from, and so on: the first of them, whose time it shares.
    pub(super) root: Guard,
    pub(super) root_asked: Micros,
    pub(super) root_granted: Micros,
    /// When it was to become a reader, and until when that was open.
    pub(super) converting: Option<(Micros, Micros)>,
    pub(super) wish: Wish,
    pub(super) id: Id,
    pub(super) granted: Micros,
    /// How much it had left then.
    pub(super) began_with: Micros,
    /// When its user let go of it or its process died. Never for a leaked one.
    pub(super) over: Option<Micros>,
    pub(super) lost: Option<Micros>,
    pub(super) letting: Option<Letting>,
}

pub(super) struct RequestFacts {
    pub(super) process: Process,
    pub(super) lock: Lock,
    pub(super) op: Op,
    /// Whose future sent it.
    pub(super) attempt: Option<Attempt>,
    pub(super) sent: Micros,
    pub(super) index: usize,
    pub(super) answered: Option<(Micros, Reply)>,
    /// When the copy was carried out that is answered, by which server, and at which event.
    pub(super) applied: Option<(Micros, u32)>,
    /// When its sender gave up.
    pub(super) failed: Option<Micros>,
    /// It certainly never arrived.
    pub(super) not_done: bool,
}

impl RequestFacts {
    /// Whether its sender gave up, and cannot know what came of it.
    pub(super) fn is_unanswered(&self) -> bool {
        self.failed.is_some() && !self.not_done
    }
}

/// The acquisition that a request is about.
pub(super) fn id_of(op: Op) -> Option<Id> {
    match op {
        Op::Acquire { id, .. } | Op::Conversion { id, .. } | Op::Leave { id } | Op::Renew { id, .. } => Some(id),
        Op::Inspect | Op::Force { .. } | Op::Time => None,
    }
}

impl<'h> Facts<'h> {
    pub(super) fn of(history: &'h History) -> Self {
        let mut facts = Self {
            events: &history.events,
            processes: BTreeMap::new(),
            attempts: BTreeMap::new(),
            guards: BTreeMap::new(),
            requests: BTreeMap::new(),
            granted: BTreeMap::new(),
            noticed: BTreeMap::new(),
            losses: Vec::new(),
            forced: BTreeMap::new(),
            deposed: BTreeMap::new(),
            by_id: BTreeMap::new(),
            conversions: BTreeMap::new(),
            crowded: false,
            replicated: false,
            healed: 0,
            over: 0,
        };
        for (index, event) in history.events.iter().enumerate() {
            facts.of_world(event);
            facts.of_users(index, event);
            facts.of_requests(index, event);
        }
        facts
    }

    fn of_world(&mut self, event: &Event) {
        let at = event.at;
        match event.what {
            What::Started {
                process,
                response_timeout_ms,
                unreachable_after_ms,
                clock_margin_ms,
                share_window_ms,
                hand_over_budget,
            } => {
                let facts = ProcessFacts {
                    response_timeout: response_timeout_ms * MS,
                    unreachable_after: unreachable_after_ms * MS,
                    clock_margin: clock_margin_ms * MS,
                    share_window: share_window_ms * MS,
                    hand_over_budget,
                    ..ProcessFacts::default()
                };
                self.processes.insert(process, facts);
            }
            What::Paused { process, .. } => self.process_mut(process).paused.push((at, Micros::MAX)),
            What::Resumed { process } => {
                if let Some(pause) = self.process_mut(process).paused.last_mut() {
                    pause.1 = at;
                }
            }
            What::RuntimeStopped { process, runtime, .. } => {
                self.process_mut(process).stopped.entry(runtime).or_default().push((at, Micros::MAX));
            }
            What::RuntimeGoesOn { process, runtime } => self.goes_on(process, runtime, at),
            What::RuntimeEnded { process, runtime, .. } => {
                self.goes_on(process, runtime, at);
                self.process_mut(process).stopped.entry(runtime).or_default().push((at, Micros::MAX));
            }
            What::Crashed { process } => self.crash(process, at),
            What::Closing { process } => self.process_mut(process).closing = Some(at),
            What::Emptied | What::Stale { .. } | What::Promoted { .. } => self.losses.push(at),
            What::Crowded => self.crowded = true,
            What::Replicated => self.replicated = true,
            What::Healed => self.healed = at,
            What::Over => self.over = at,
            _ => {}
        }
    }

    fn goes_on(&mut self, process: Process, runtime: u32, at: Micros) {
        let last = self.process_mut(process).stopped.get_mut(&runtime).and_then(|stops| stops.last_mut());
        if let Some(stop) = last.filter(|stop| stop.1 == Micros::MAX) {
            stop.1 = at;
        }
    }

    fn crash(&mut self, process: Process, at: Micros) {
        self.process_mut(process).crashed = Some(at);
        for guard in self.guards.values_mut().filter(|guard| guard.process == process) {
            guard.over.get_or_insert(at);
        }
        for attempt in self.attempts.values_mut().filter(|attempt| attempt.process == process) {
            attempt.ended.get_or_insert((at, usize::MAX));
        }
    }

    fn of_users(&mut self, index: usize, event: &Event) {
        let at = event.at;
        match event.what {
            What::Asked { attempt, process, runtime, wish } => {
                let facts =
                    AttemptFacts { process, runtime, wish, asked: at, index, ended: None, end: None, guard: None };
                self.attempts.insert(attempt, facts);
                if let (Some(guard), Mode::Read) = (wish.converts, wish.mode) {
                    self.guard_mut(guard).converting = Some((at, Micros::MAX));
                }
            }
            What::Granted { attempt, guard, id, token, remaining_us } => {
                let facts = self.attempts.get_mut(&attempt).expect("asked before");
                facts.ended = Some((at, index));
                facts.guard = Some(guard);
                let (process, wish) = (facts.process, facts.wish);
                let asked = facts.asked;
                let outer = wish.within.or(wish.converts).map(|outer| &self.guards[&outer]);
                let facts = GuardFacts {
                    process,
                    attempt,
                    index,
                    token,
                    mode: outer.filter(|_| wish.within.is_some()).map_or(wish.mode, |outer| outer.mode),
                    root: outer.map_or(guard, |outer| outer.root),
                    root_asked: outer.map_or(asked, |outer| outer.root_asked),
                    root_granted: outer.map_or(at, |outer| outer.root_granted),
                    converting: None,
                    wish,
                    id,
                    granted: at,
                    began_with: remaining_us,
                    over: None,
                    lost: None,
                    letting: None,
                };
                self.guards.insert(guard, facts);
            }
            What::Failed { attempt, end } => {
                let facts = self.attempts.get_mut(&attempt).expect("asked before");
                facts.ended = Some((at, index));
                facts.end = Some(end);
                if let Some(converting) =
                    facts.wish.converts.and_then(|guard| self.guard_mut(guard).converting.as_mut())
                {
                    converting.1 = at;
                }
            }
            What::LossSeen { guard, .. } => self.guard_mut(guard).lost = Some(at),
            What::LetGo { guard, how } => {
                let facts = self.guard_mut(guard);
                facts.letting = Some(how);
                facts.over = (how != Letting::Leak).then_some(at);
            }
            _ => {}
        }
    }

    fn of_requests(&mut self, index: usize, event: &Event) {
        let at = event.at;
        match &event.what {
            What::Sent { request, process, lock, op, attempt } => {
                let (process, lock, op) = (*process, *lock, *op);
                let attempt = *attempt;
                let (answered, applied, failed) = (None, None, None);
                let (sent, not_done) = (at, false);
                let facts =
                    RequestFacts { process, lock, op, attempt, sent, index, answered, applied, failed, not_done };
                self.requests.insert(*request, facts);
                if let Some(id) = id_of(op) {
                    self.by_id.entry(id).or_default().push(*request);
                }
                if let Op::Conversion { old, .. } = op {
                    self.conversions.entry(old).or_default().push(*request);
                }
            }
            What::Noticed { process, id, anchor: Some((sent, remaining_us)), .. } => {
                let until = sent + self.process(*process).usable(*remaining_us);
                self.noticed.entry(*id).or_default().push((at, until));
            }
            What::Applied { request, copy, primary, deposed, lock, op, reply, news, before, .. } => {
                if *copy == 1 {
                    self.request_mut(*request).applied = Some((at, *primary));
                }
                if let (Op::Force { seen }, Reply::Forced(ended)) = (op, reply) {
                    // All end at once, however few of them one call removes.
                    let all = before.held.iter().filter(|_| before.token <= *seen).map(|held| held.id);
                    for id in ended.iter().copied().chain(all) {
                        self.forced.entry(id).or_default().push(at);
                    }
                }
                if let (Op::Acquire { id, .. } | Op::Conversion { id, .. }, Reply::Granted { .. }) = (op, reply) {
                    self.grants(*id, at, *primary);
                }
                for news in news {
                    self.grants(news.id, at, *primary);
                }
                for given in Given::by(&event.what).into_iter().filter(|_| *deposed) {
                    let highest = self.deposed.entry(*lock).or_default();
                    *highest = (*highest).max(given.token + given.tokens - 1);
                }
            }
            What::Answered { request, reply } => {
                self.request_mut(*request).answered = Some((at, reply.clone()));
            }
            What::Unanswered { request } | What::NotDone { request } => {
                let facts = self.request_mut(*request);
                facts.failed = Some(at);
                facts.not_done = matches!(event.what, What::NotDone { .. });
            }
            _ => {}
        }
    }

    fn process_mut(&mut self, process: Process) -> &mut ProcessFacts {
        self.processes.get_mut(&process).expect("started before")
    }

    fn guard_mut(&mut self, guard: Guard) -> &mut GuardFacts {
        self.guards.get_mut(&guard).expect("granted before")
    }

    fn request_mut(&mut self, request: Request) -> &mut RequestFacts {
        self.requests.get_mut(&request).expect("sent before")
    }

    pub(super) fn process(&self, process: Process) -> &ProcessFacts {
        &self.processes[&process]
    }

    /// How much of a span the future of an attempt was not polled, or whoever has its guard.
    pub(super) fn asleep(&self, attempt: &AttemptFacts, from: Micros, to: Micros) -> Micros {
        let process = self.process(attempt.process);
        let stopped = process.stopped.get(&attempt.runtime).map_or(0, |stops| within(stops, from, to));
        process.paused_within(from, to) + stopped
    }

    /// The same of a guard's.
    pub(super) fn asleep_with(&self, guard: &GuardFacts, from: Micros, to: Micros) -> Micros {
        self.asleep(&self.attempts[&guard.attempt], from, to)
    }

    /// How many times the server had lost data by then.
    pub(super) fn lineage(&self, now: Micros) -> u32 {
        let losses = self.losses.iter().filter(|at| **at <= now).count();
        u32::try_from(losses).expect("few")
    }

    /// Whether a hold may be gone though nobody let go of it: it was granted by a server whose data was lost since, or an
    /// operator has ended it; and its process has not been told by the server that there is now.
    pub(super) fn excused(&self, id: Id, now: Micros) -> bool {
        let Some((_, primary)) = self.granted.get(&id) else {
            return false;
        };
        let lineage = self.lineage(now);
        let answered = |request: &RequestFacts| request.answered.as_ref().is_some_and(|(at, _)| *at <= now);
        // That the server does not know a hold that is being converted may be the turn.
        let heard = |request: &RequestFacts| match &request.answered {
            Some((at, Reply::Lost { .. })) if *at < now => !self.is_being_converted(id, now),
            Some((at, _)) => *at < now,
            None => false,
        };
        let applied = || self.about(id).filter(|request| heard(request)).filter_map(|request| request.applied);
        // What a primary says that was replaced counts for its process as long as that does not know better.
        let lost = self.losses.iter().rfind(|at| **at <= now).copied().unwrap_or_default();
        let mut all = self.about(id).filter(|request| answered(request)).filter_map(|request| request.applied);
        let misled = all.any(|(at, primary)| at > lost && primary < lineage);
        let untold = || *primary < lineage && !applied().any(|(_, primary)| primary == lineage);
        let of_loss = !self.replicated && (misled || untold());
        // Converted, it may have the other id already.
        let ids = std::iter::once(id).chain(self.conversions_of(id).filter_map(|conversion| id_of(conversion.op)));
        let of_force = ids.into_iter().any(|id| self.is_forced(id, now));
        of_loss || of_force
    }

    /// When a hold was ended by force, of late: a copy of its acquisition may have begun it anew before.
    pub(super) fn forced_at(&self, id: Id, now: Micros) -> Option<Micros> {
        self.forced.get(&id).into_iter().flatten().copied().filter(|at| *at <= now).max()
    }

    /// Whether an operator has ended a hold, and its process has not been answered about it since.
    fn is_forced(&self, id: Id, now: Micros) -> bool {
        let Some(forced) = self.forced_at(id, now) else {
            return false;
        };
        let heard = |request: &RequestFacts| request.answered.as_ref().is_some_and(|(at, _)| *at < now);
        let applied = self.about(id).filter(|request| heard(request)).filter_map(|request| request.applied);
        !applied.into_iter().any(|(at, _)| at > forced)
    }

    /// Whether the server has lost data since it granted a hold.
    pub(super) fn loss_since(&self, id: Id, now: Micros) -> bool {
        self.granted.get(&id).is_some_and(|(_, primary)| *primary < self.lineage(now))
    }

    /// Requests about one acquisition, in order.
    pub(super) fn about(&self, id: Id) -> impl Iterator<Item = &RequestFacts> {
        self.by_id.get(&id).into_iter().flatten().map(|request| &self.requests[request])
    }

    /// Until when the answers so far let a hold be trusted by the local clock.
    pub(super) fn vouched(&self, id: Id, requests: &[&RequestFacts], now: Micros) -> Micros {
        // A notice counts only if it began the hold, and no answer that came after it.
        let begun = self.guards.values().filter(|guard| guard.id == id).map(|guard| guard.granted).min();
        let was_answered = |since: Micros| {
            let answers = requests.iter().filter_map(|request| request.answered.as_ref());
            let mut grants = answers.filter(|(_, reply)| matches!(reply, Reply::Granted { .. })).map(|(at, _)| *at);
            grants.any(|at| since <= at && begun.is_some_and(|begun| at <= begun))
        };
        let notices = self.noticed.get(&id).into_iter().flatten();
        let notices = notices
            .filter(|(at, until)| *at <= now && begun.is_some_and(|begun| *at <= begun && begun < *until))
            .filter(|(at, _)| !was_answered(*at))
            .copied();
        let mut answers: Vec<_> = requests
            .iter()
            .filter_map(|request| match &request.answered {
                Some((at, Reply::Granted { remaining_ms, .. } | Reply::Renewed { remaining_ms })) if *at <= now => {
                    Some((*at, request.sent + self.process(request.process).usable(remaining_ms * MS)))
                }
                _ => None,
            })
            .chain(notices)
            .collect();
        answers.sort_unstable();
        // An answer that comes when the hold is over brings nothing back.
        let extend =
            |until: Micros, (at, to): (Micros, Micros)| if until == 0 || at < until { until.max(to) } else { until };
        answers.into_iter().fold(0, extend)
    }

    /// Two primaries may both grant it: the first moment counts, and the older one.
    fn grants(&mut self, id: Id, at: Micros, primary: u32) {
        let (_, first) = self.granted.entry(id).or_insert((at, primary));
        *first = primary.min(*first);
    }

    /// How long a guard may be trusted whose hold may have been converted: as long as the new hold lasts at least, counted from
    /// the last request by which the server was seen to know the old one.
    pub(super) fn in_doubt_until(&self, held: &GuardFacts, requests: &[&RequestFacts], now: Micros) -> Micros {
        let conversions = self.requests.values().filter_map(|request| match request.op {
            Op::Conversion { old, lease_ms, .. } if old == held.id && request.sent <= now => Some((request, lease_ms)),
            _ => None,
        });
        let conversions: Vec<_> = conversions.collect();
        let unanswered = conversions.iter().filter(|(request, _)| {
            request.answered.as_ref().is_none_or(|(at, _)| *at > now) && !self.is_settled(held, request, now)
        });
        let Some(&(first, lease_ms)) = unanswered.min_by_key(|(request, _)| request.sent) else {
            return Micros::MAX;
        };
        if let Some(since) = self.open_since(held, now).filter(|_| held.mode == Mode::Write) {
            return since;
        }
        let renewed = requests
            .iter()
            .copied()
            .filter(|request| matches!(&request.answered, Some((at, Reply::Renewed { .. })) if *at <= now));
        let refused = conversions
            .iter()
            .map(|(request, _)| *request)
            .filter(|request| matches!(&request.answered, Some((at, Reply::Refused)) if *at <= now));
        let stood = renewed.chain(refused).map(|request| request.sent).max().unwrap_or_default();
        first.sent.max(stood) + self.process(held.process).usable(lease_ms * MS)
    }

    /// Whether an answer has shown that a request to convert a hold was not carried out, and cannot be any more.
    fn is_settled(&self, held: &GuardFacts, request: &RequestFacts, now: Micros) -> bool {
        let arrives_by = request.sent + self.process(held.process).stray_span();
        let asked = |at: Micros| request.attempt.is_some_and(|attempt| self.is_asked(attempt, at));
        let stood = |other: &RequestFacts| match &other.answered {
            // As long as somebody asks, only what that one is answered counts.
            Some((at, Reply::Renewed { .. })) => *at <= now && other.sent >= arrives_by && !asked(*at),
            Some((at, Reply::Refused)) => *at <= now && other.sent >= arrives_by,
            _ => false,
        };
        self.about(held.id).chain(self.conversions_of(held.id)).any(stood)
    }

    /// Whether an attempt is under way.
    fn is_asked(&self, attempt: Attempt, now: Micros) -> bool {
        let attempt = &self.attempts[&attempt];
        attempt.asked <= now && attempt.ended.is_none_or(|(ended, _)| now < ended)
    }

    /// Since when nobody asks any more what came of the conversion of a hold, though that is not known.
    pub(super) fn open_since(&self, held: &GuardFacts, now: Micros) -> Option<Micros> {
        let open = self
            .conversions_of(held.id)
            .filter(|request| request.sent <= now && request.is_unanswered() && !self.is_settled(held, request, now));
        let attempts = open.filter_map(|request| request.attempt).map(|attempt| &self.attempts[&attempt]);
        let ended =
            attempts.filter(|attempt| attempt.end == Some(End::Unreachable)).filter_map(|attempt| attempt.ended);
        ended.map(|(ended, _)| ended).filter(|ended| *ended <= now).min()
    }

    /// Whether the server has converted it.
    pub(super) fn was_converted(&self, held: &GuardFacts) -> bool {
        self.conversions_of(held.id).filter_map(|request| id_of(request.op)).any(|id| self.granted.contains_key(&id))
    }

    /// Whether its process was granted a newer hold that conflicts with it: that shows that it was over, but not why.
    pub(super) fn is_overtaken(&self, held: &GuardFacts, now: Micros) -> bool {
        self.overtakers(held, now).next().is_some()
    }

    /// Guards of its process with newer grants that conflict with it.
    pub(super) fn overtakers(&self, held: &GuardFacts, now: Micros) -> impl Iterator<Item = &GuardFacts> {
        self.guards.values().filter(move |other| {
            let same = other.process == held.process && other.wish.lock == held.wish.lock;
            let conflict = other.mode == Mode::Write || held.mode == Mode::Write;
            same && conflict && other.token > held.token && other.granted <= now
        })
    }

    /// Whether its acquisition had a guard before it was sent.
    pub(super) fn is_had(&self, request: &RequestFacts) -> bool {
        let id = id_of(request.op);
        self.guards.values().any(|guard| Some(guard.id) == id && guard.index < request.index)
    }

    /// The same with their numbers.
    pub(super) fn by_number(&self, id: Id) -> impl Iterator<Item = (Request, &RequestFacts)> {
        self.by_id.get(&id).into_iter().flatten().map(|request| (*request, &self.requests[request]))
    }

    /// What was to give it up for another one.
    pub(super) fn conversions_of(&self, id: Id) -> impl Iterator<Item = &RequestFacts> {
        self.conversions.get(&id).into_iter().flatten().map(|request| &self.requests[request])
    }

    /// Whether somebody waits for the answer to its turn.
    pub(super) fn is_being_converted(&self, id: Id, now: Micros) -> bool {
        let is_open = |turn: &AttemptFacts| turn.ended.is_none_or(|(ended, _)| ended >= now);
        let mut conversions = self
            .conversions_of(id)
            .filter(|conversion| conversion.sent <= now)
            .filter_map(|conversion| conversion.attempt);
        conversions.any(|attempt| is_open(&self.attempts[&attempt]))
    }

    /// The same for all.
    pub(super) fn by_id(&self) -> BTreeMap<Id, Vec<&RequestFacts>> {
        self.by_id.keys().map(|id| (*id, self.about(*id).collect())).collect()
    }

    /// Guards by their hold.
    pub(super) fn guards_by_id(&self) -> BTreeMap<Id, Vec<&GuardFacts>> {
        let mut by_id: BTreeMap<Id, Vec<&GuardFacts>> = BTreeMap::new();
        for guard in self.guards.values() {
            by_id.entry(guard.id).or_default().push(guard);
        }
        by_id
    }

    pub(super) fn each(&self) -> impl Iterator<Item = (usize, Micros, &'h What)> + use<'h> {
        self.events.iter().enumerate().map(|(index, event)| (index, event.at, &event.what))
    }
}

/// What the server granted with one request: id, side, first token, how many.
pub(super) struct Given {
    pub(super) id: Id,
    pub(super) mode: Mode,
    pub(super) token: u64,
    pub(super) tokens: u64,
}

impl Given {
    pub(super) fn by(what: &What) -> Vec<Self> {
        let What::Applied { op, reply, after, news, .. } = what else {
            return Vec::new();
        };
        let mut given: Vec<_> = news
            .iter()
            .filter_map(|news| {
                Some(Self { id: news.id, mode: mode_in(after, news.id)?, token: news.token, tokens: news.tokens })
            })
            .collect();
        if let (Op::Acquire { id, mode, .. } | Op::Conversion { id, mode, .. }, Reply::Granted { token, tokens, .. }) =
            (op, reply)
            && given.iter().all(|given| given.id != *id)
        {
            given.push(Self { id: *id, mode: *mode, token: *token, tokens: *tokens });
        }
        given
    }
}

fn mode_in(seen: &Seen, id: Id) -> Option<Mode> {
    seen.held.iter().find(|held| held.id == id).map(|held| held.mode)
}
