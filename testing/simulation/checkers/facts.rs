//! Facts of a history, by request, guard, attempt and process.

mod hold_state;
mod listening;
mod notified;
mod trust;

use super::*;
use listening::Listening;
use notified::ArrivedGrant;

pub use trust::Trust;

pub const MS: Micros = 1_000;
pub const SECOND: Micros = 1_000_000;
/// Time after which other waiters notice that a future is no longer polled.
pub const RUNTIME_NOTICED: Micros = 5_100 * MS;

#[derive(Default)]
pub struct Facts<'h> {
    pub events: &'h [Event],
    pub processes: BTreeMap<Process, ProcessFacts>,
    pub attempts: BTreeMap<Attempt, AttemptFacts>,
    pub guards: BTreeMap<Guard, GuardFacts>,
    pub requests: BTreeMap<Request, RequestFacts>,
    /// Time of the first grant of each hold, and the number of primaries before the one that granted it.
    pub granted: BTreeMap<Id, (Micros, u32)>,
    /// Notifications of grants, for each id.
    notified: BTreeMap<Id, Vec<ArrivedGrant>>,
    /// Token of the last notification of a grant that a server has sent, by acquisition.
    offered: BTreeMap<Id, u64>,
    /// Times at which the server lost data.
    pub losses: Vec<Micros>,
    /// Times at which each hold was ended by force.
    forced: BTreeMap<Id, Vec<Micros>>,
    /// Highest token that a replaced primary granted for each lock.
    pub deposed: BTreeMap<Lock, u64>,
    by_id: BTreeMap<Id, Vec<Request>>,
    guards_by_id: BTreeMap<Id, Vec<Guard>>,
    /// Conversions, by the hold that they give up.
    conversions: BTreeMap<Id, Vec<Request>>,
    /// Pushes and subscriptions of each process, for each lock of which it may cache the hold.
    listening: BTreeMap<(Process, Lock), Listening>,
    /// Times at which the server was away, another one took over, or its clock stepped.
    troubles: Vec<Micros>,
    /// True if one request touches few records, so a crowd of waiters takes several requests.
    pub small_batches: bool,
    replicated: bool,
    /// Facts of the masters, if a quorum decides.
    pub quorum: Option<QuorumFacts<'h>>,
    pub healed: Micros,
    pub over: Micros,
}

pub struct QuorumFacts<'h> {
    pub masters: usize,
    /// Majority of masters that have no fault, if there is one.
    pub faultless: &'h [Place],
    pub lease: Micros,
}

#[derive(Clone, Debug, Default)]
pub struct ProcessFacts {
    pub response_timeout: Micros,
    pub unreachable_after: Micros,
    pub max_clock_skew: Micros,
    pub join_window: Micros,
    pub max_handoffs: u64,
    pub cache_for: Micros,
    pub crashed: Option<Micros>,
    pub closing: Option<Micros>,
    /// Pauses of the process, from and to.
    pub paused: Vec<(Micros, Micros)>,
    /// Spans in which a runtime was not driven, from and to.
    pub stopped: BTreeMap<u32, Vec<(Micros, Micros)>>,
}

fn within(spans: &[(Micros, Micros)], from: Micros, to: Micros) -> Micros {
    spans.iter().map(|(begin, end)| (*end).min(to).saturating_sub((*begin).max(from))).sum()
}

impl ProcessFacts {
    /// Returns how much of a span the process was paused.
    pub fn paused_within(&self, from: Micros, to: Micros) -> Micros {
        within(&self.paused, from, to)
    }

    /// Returns the end of a span, extended by the pauses in it.
    pub fn runs_until(&self, from: Micros, until: Micros) -> Micros {
        let mut end = until;
        loop {
            let later = until.saturating_add(self.paused_within(from, end));
            if later == end {
                return end;
            }
            end = later;
        }
    }

    /// Returns the longest time until the task of another waiter becomes the requester after one is no longer polled.
    pub fn handing_on(&self, from: Micros, to: Micros) -> Micros {
        if self.was_a_runtime_stopped(from, to) { RUNTIME_NOTICED } else { 0 }
    }

    /// Returns true if a runtime of the process was not driven, or had ended, at some moment of the span.
    pub fn was_a_runtime_stopped(&self, from: Micros, to: Micros) -> bool {
        self.stopped.values().flatten().any(|(begin, end)| *begin <= to && from <= *end)
    }

    /// Returns the time after its sending within which the server may carry out a request with a limit.
    pub fn max_delay(&self) -> Micros {
        let span = 2 * self.response_timeout;
        span + span / 100 + 2 * MS + self.max_clock_skew
    }

    /// Returns the part of a lease that is left after the margins.
    pub fn usable(&self, lease: Micros) -> Micros {
        (lease - lease / 100).saturating_sub(2 * MS + self.max_clock_skew)
    }
}

pub struct AttemptFacts {
    pub process: Process,
    /// Runtime that polls the attempt.
    pub runtime: u32,
    pub wish: Wish,
    pub asked: Micros,
    pub index: usize,
    /// Time and event of the end: with a guard, without one, or by a crash.
    pub ended: Option<(Micros, usize)>,
    pub end: Option<End>,
    pub guard: Option<Guard>,
}

pub struct GuardFacts {
    pub process: Process,
    pub attempt: Attempt,
    pub index: usize,
    pub token: u64,
    /// Side of the hold.
    pub mode: Mode,
    /// Outermost guard of the chain of nestings and conversions. This guard shares its time.
    pub root: Guard,
    pub root_asked: Micros,
    pub root_granted: Micros,
    /// Downgrades of this guard: start, and end of the time in which the outcome was open.
    pub converting: Vec<(Micros, Micros)>,
    pub wish: Wish,
    pub id: Id,
    pub granted: Micros,
    /// Remaining validity at the grant.
    pub began_with: Micros,
    /// Time at which the user dropped or released the guard, or its process died. `None` for a leaked guard.
    pub over: Option<Micros>,
    pub lost: Option<Micros>,
    pub letting: Option<Letting>,
}

impl AttemptFacts {
    /// Returns the process and the lock.
    pub fn scope(&self) -> (Process, Lock) {
        (self.process, self.wish.lock)
    }

    /// Returns true if the attempt is under way at some moment of the span.
    pub fn is_under_way(&self, from: Micros, to: Micros) -> bool {
        self.asked <= to && self.ended.is_none_or(|(ended, _)| from <= ended)
    }
}

impl GuardFacts {
    pub fn scope(&self) -> (Process, Lock) {
        (self.process, self.wish.lock)
    }

    /// Returns when the user let go of the guard, or saw its loss.
    pub fn gone(&self) -> Option<Micros> {
        [self.over, self.lost].into_iter().flatten().min()
    }

    /// Returns true while a downgrade is under way or its outcome is unknown.
    pub fn is_converting(&self, now: Micros) -> bool {
        self.converting.iter().any(|(from, until)| (*from..=*until).contains(&now))
    }
}

pub struct RequestFacts {
    pub process: Process,
    pub lock: Lock,
    pub op: Op,
    /// Attempt whose future sent the request.
    pub attempt: Option<Attempt>,
    /// Server that the process asks.
    pub server: u32,
    pub sent: Micros,
    pub index: usize,
    pub answered: Option<(Micros, Reply)>,
    /// Time at which the answered copy was carried out, and the server that did it.
    pub applied: Option<(Micros, u32)>,
    /// Time of that server at that moment.
    pub server_us: Option<u64>,
    /// Time at which the sender gave up.
    pub failed: Option<Micros>,
    /// True if the request certainly never arrived.
    pub not_done: bool,
}

impl RequestFacts {
    pub fn scope(&self) -> (Process, Lock) {
        (self.process, self.lock)
    }

    /// Returns when the sender got the answer, or gave up.
    pub fn ended(&self) -> Option<Micros> {
        self.answered.as_ref().map(|(at, _)| *at).or(self.failed)
    }

    pub fn is_answered(&self, now: Micros) -> bool {
        self.answered.as_ref().is_some_and(|(at, _)| *at <= now)
    }

    /// Returns true if the sender gave up and cannot know the outcome.
    pub fn is_unanswered(&self) -> bool {
        self.failed.is_some() && !self.not_done
    }
}

/// Returns the acquisition that a request is about.
pub fn id_of(op: Op) -> Option<Id> {
    match op {
        Op::Acquire { id, .. } | Op::Conversion { id, .. } | Op::Leave { id } | Op::Renew { id, .. } => Some(id),
        Op::Inspect | Op::Force { .. } | Op::Time => None,
    }
}

impl<'h> Facts<'h> {
    pub fn of(history: &'h History) -> Self {
        let mut facts = Self { events: &history.events, ..Self::default() };
        for (index, event) in history.events.iter().enumerate() {
            facts.of_world(event);
            facts.of_users(index, event);
            facts.of_requests(index, event);
            facts.on_recall_event(event);
        }
        facts
    }

    fn of_world(&mut self, event: &'h Event) {
        let at = event.at;
        if let What::Down { .. }
        | What::Up { .. }
        | What::Stepped { .. }
        | What::Frozen { .. }
        | What::Promoted { .. }
        | What::Rerouted { .. } = event.what
        {
            self.troubles.push(at);
        }
        match event.what {
            What::Started {
                process,
                response_timeout_ms,
                unreachable_after_ms,
                max_clock_skew_ms,
                join_window_ms,
                max_handoffs,
                cache_for_ms,
            } => {
                let facts = ProcessFacts {
                    response_timeout: response_timeout_ms * MS,
                    unreachable_after: unreachable_after_ms * MS,
                    max_clock_skew: max_clock_skew_ms * MS,
                    join_window: join_window_ms * MS,
                    max_handoffs,
                    cache_for: cache_for_ms * MS,
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
            // A quorum survives the loss of one master's data.
            What::Emptied { .. } if self.quorum.is_some() => {}
            What::Emptied { .. } | What::Stale { .. } | What::Promoted { .. } => self.losses.push(at),
            What::SmallBatches => self.small_batches = true,
            What::Replicated => self.replicated = true,
            What::Quorum { masters, ref faultless, lease_ms } => {
                self.quorum = Some(QuorumFacts { masters, faultless, lease: lease_ms * MS });
            }
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
                    self.guard_mut(guard).converting.push((at, Micros::MAX));
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
                    converting: Vec::new(),
                    wish,
                    id,
                    granted: at,
                    began_with: remaining_us,
                    over: None,
                    lost: None,
                    letting: None,
                };
                self.guards_by_id.entry(id).or_default().push(guard);
                self.guards.insert(guard, facts);
            }
            What::Failed { attempt, end } => {
                let facts = self.attempts.get_mut(&attempt).expect("asked before");
                facts.ended = Some((at, index));
                facts.end = Some(end);
                if let (Some(guard), Mode::Read) = (facts.wish.converts, facts.wish.mode)
                    && let Some(converting) = self.guard_mut(guard).converting.last_mut()
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
            What::Sent { request, process, lock, op, attempt, server, .. } => {
                let facts = RequestFacts {
                    process: *process,
                    lock: *lock,
                    op: *op,
                    attempt: *attempt,
                    server: *server,
                    sent: at,
                    index,
                    answered: None,
                    applied: None,
                    server_us: None,
                    failed: None,
                    not_done: false,
                };
                self.requests.insert(*request, facts);
                if let Some(id) = id_of(*op) {
                    self.by_id.entry(id).or_default().push(*request);
                }
                if let Op::Conversion { old, .. } = *op {
                    self.conversions.entry(old).or_default().push(*request);
                }
            }
            What::Notified { process, id, clock_sample: Some((sent, remaining_us)), .. } => {
                let token = self.offered.get(id).copied().unwrap_or_default();
                let arrived = ArrivedGrant { process: *process, at, sent: *sent, left: *remaining_us, token };
                self.notified.entry(*id).or_default().push(arrived);
            }
            What::Applied { .. } => self.on_applied(at, &event.what),
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

    fn on_applied(&mut self, at: Micros, what: &What) {
        let What::Applied {
            request, copy, primary, deposed, lock, op, reply, server_us, notifications, before, ..
        } = what
        else {
            return;
        };
        if *copy == 1 {
            let facts = self.request_mut(*request);
            (facts.applied, facts.server_us) = (Some((at, *primary)), Some(*server_us));
        }
        if let (Op::Force { seen, .. }, Reply::Forced(ended)) = (op, reply) {
            // A force ends all of them at once, however few records one request removes.
            let all = before.held.iter().filter(|_| before.token <= *seen).map(|held| held.id);
            for id in ended.iter().copied().chain(all) {
                self.forced.entry(id).or_default().push(at);
            }
        }
        if let (Op::Acquire { id, .. } | Op::Conversion { id, .. }, Reply::Granted { .. }) = (op, reply) {
            self.grants(*id, at, *primary);
        }
        for notification in notifications {
            self.grants(notification.id, at, *primary);
            self.offered.insert(notification.id, notification.token);
        }
        if *deposed {
            let granted = Given::by(what).into_iter().map(|given| (given.token, given.tokens));
            let renewed = if let Reply::Renewed { tokens, .. } = reply { *tokens } else { None };
            let last = granted.chain(renewed).map(|(first, tokens)| first + tokens - 1).max();
            let highest = self.deposed.entry(*lock).or_default();
            *highest = (*highest).max(last.unwrap_or_default());
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

    pub fn process(&self, process: Process) -> &ProcessFacts {
        &self.processes[&process]
    }

    /// Returns true if the server had trouble in the span.
    pub fn is_troubled(&self, from: Micros, to: Micros) -> bool {
        let troubles = self.troubles.iter().chain(&self.losses);
        troubles.filter(|at| (from..=to).contains(*at)).count() > 0
    }

    /// Notes a grant. Two primaries may both grant the same id: the first moment and the older primary count.
    fn grants(&mut self, id: Id, at: Micros, primary: u32) {
        let (_, first) = self.granted.entry(id).or_insert((at, primary));
        *first = primary.min(*first);
    }

    /// Returns the requests about one acquisition, in order.
    pub fn about(&self, id: Id) -> impl Iterator<Item = &RequestFacts> {
        self.by_id.get(&id).into_iter().flatten().map(|request| &self.requests[request])
    }

    /// Returns the requests about one acquisition with their numbers, in order.
    pub fn by_number(&self, id: Id) -> impl Iterator<Item = (Request, &RequestFacts)> {
        self.by_id.get(&id).into_iter().flatten().map(|request| (*request, &self.requests[request]))
    }

    /// Returns the conversions that were to give up this hold.
    pub fn conversions_of(&self, id: Id) -> impl Iterator<Item = &RequestFacts> {
        self.conversions.get(&id).into_iter().flatten().map(|request| &self.requests[request])
    }

    /// Returns the requests of all acquisitions, by id.
    pub fn by_id(&self) -> BTreeMap<Id, Vec<&RequestFacts>> {
        self.by_id.keys().map(|id| (*id, self.about(*id).collect())).collect()
    }

    /// Returns the guards of a hold.
    pub fn guards_of(&self, id: Id) -> impl Iterator<Item = &GuardFacts> {
        self.guards_by_id.get(&id).into_iter().flatten().map(|guard| &self.guards[guard])
    }

    /// Returns the guards of each hold.
    pub fn guards_by_id(&self) -> BTreeMap<Id, Vec<&GuardFacts>> {
        self.guards_by_id.keys().map(|id| (*id, self.guards_of(*id).collect())).collect()
    }

    pub fn each(&self) -> impl Iterator<Item = (usize, Micros, &'h What)> + use<'h> {
        self.events.iter().enumerate().map(|(index, event)| (index, event.at, &event.what))
    }
}

/// Grant by one request: id, side, first token and number of tokens.
pub struct Given {
    pub id: Id,
    pub mode: Mode,
    pub token: u64,
    pub tokens: u64,
}

impl Given {
    pub fn by(what: &What) -> Vec<Self> {
        let What::Applied { op, reply, after, notifications, .. } = what else {
            return Vec::new();
        };
        let mut given: Vec<_> = notifications
            .iter()
            .filter_map(|notification| {
                Some(Self {
                    id: notification.id,
                    mode: mode_in(after, notification.id)?,
                    token: notification.token,
                    tokens: notification.tokens,
                })
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
