//! The history by request, guard, attempt and process.

use std::collections::BTreeMap;

use crate::scheme::Mode;
use crate::simulation::history::{
    Attempt, End, Event, Guard, History, Id, Letting, Lock, Micros, Op, Process, Reply, Request, Seen, What, Wish,
};

pub(super) const MS: Micros = 1_000;
pub(super) const SECOND: Micros = 1_000_000;

pub(super) struct Facts<'h> {
    pub(super) events: &'h [Event],
    pub(super) processes: BTreeMap<Process, ProcessFacts>,
    pub(super) attempts: BTreeMap<Attempt, AttemptFacts>,
    pub(super) guards: BTreeMap<Guard, GuardFacts>,
    pub(super) requests: BTreeMap<Request, RequestFacts>,
    /// When each hold was granted by the server for the first time.
    pub(super) granted: BTreeMap<Id, Micros>,
    /// What notices let their readers count on: when each came, and until when.
    pub(super) noticed: BTreeMap<Id, Vec<(Micros, Micros)>>,
    /// When the server lost data.
    pub(super) losses: Vec<Micros>,
    /// When holds were ended by force.
    pub(super) forced: Vec<(Lock, Micros)>,
    /// When somebody used force, whether there was anything to end or not.
    pub(super) operators: Vec<(Lock, Micros)>,
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
}

impl ProcessFacts {
    /// How much of a span it stood still.
    pub(super) fn paused_within(&self, from: Micros, to: Micros) -> Micros {
        let within = |(begin, end): &(Micros, Micros)| (*end).min(to).saturating_sub((*begin).max(from));
        self.paused.iter().map(within).sum()
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
    /// The guard that it is nested in, or was turned from, and so on: the first of them, whose time it shares.
    pub(super) root: Guard,
    pub(super) root_asked: Micros,
    pub(super) root_granted: Micros,
    /// When it was to become a reader, and until when that was open.
    pub(super) turning: Option<(Micros, Micros)>,
    pub(super) wish: Wish,
    pub(super) id: Id,
    pub(super) granted: Micros,
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
    /// When its sender gave up.
    pub(super) failed: Option<Micros>,
}

/// The acquisition that a request is about.
pub(super) fn id_of(op: Op) -> Option<Id> {
    match op {
        Op::Acquire { id, .. } | Op::Turn { id, .. } | Op::Leave { id } | Op::Renew { id, .. } => Some(id),
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
            forced: Vec::new(),
            operators: Vec::new(),
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
            What::Crashed { process } => self.crash(process, at),
            What::Closing { process } => self.process_mut(process).closing = Some(at),
            What::Emptied | What::Stale { .. } => self.losses.push(at),
            What::Healed => self.healed = at,
            What::Over => self.over = at,
            _ => {}
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
            What::Asked { attempt, process, wish } => {
                let facts = AttemptFacts { process, wish, asked: at, index, ended: None, end: None, guard: None };
                self.attempts.insert(attempt, facts);
                if let (Some(guard), Mode::Read) = (wish.turns, wish.mode) {
                    self.guard_mut(guard).turning = Some((at, Micros::MAX));
                }
            }
            What::Granted { attempt, guard, id, token } => {
                let facts = self.attempts.get_mut(&attempt).expect("asked before");
                facts.ended = Some((at, index));
                facts.guard = Some(guard);
                let (process, wish) = (facts.process, facts.wish);
                let asked = facts.asked;
                let outer = wish.within.or(wish.turns).map(|outer| &self.guards[&outer]);
                let facts = GuardFacts {
                    process,
                    attempt,
                    index,
                    token,
                    mode: outer.filter(|_| wish.within.is_some()).map_or(wish.mode, |outer| outer.mode),
                    root: outer.map_or(guard, |outer| outer.root),
                    root_asked: outer.map_or(asked, |outer| outer.root_asked),
                    root_granted: outer.map_or(at, |outer| outer.root_granted),
                    turning: None,
                    wish,
                    id,
                    granted: at,
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
                if let Some(turning) = facts.wish.turns.and_then(|guard| self.guard_mut(guard).turning.as_mut()) {
                    turning.1 = at;
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
                let facts = RequestFacts { process, lock, op, attempt, sent: at, index, answered: None, failed: None };
                self.requests.insert(*request, facts);
            }
            What::Noticed { process, id, anchor: Some((sent, remaining_ms)), .. } => {
                let until = sent + self.process(*process).usable(remaining_ms * MS);
                self.noticed.entry(*id).or_default().push((at, until));
            }
            What::Applied { lock, op, reply, news, .. } => {
                if matches!(op, Op::Force { .. }) {
                    self.operators.push((*lock, at));
                }
                if matches!(reply, Reply::Forced(ended) if !ended.is_empty()) {
                    self.forced.push((*lock, at));
                }
                if let (Op::Acquire { id, .. } | Op::Turn { id, .. }, Reply::Granted { .. }) = (op, reply) {
                    self.granted.entry(*id).or_insert(at);
                }
                for news in news {
                    self.granted.entry(news.id).or_insert(at);
                }
            }
            What::Answered { request, reply } => {
                self.request_mut(*request).answered = Some((at, reply.clone()));
            }
            What::Unanswered { request } | What::NotDone { request } => {
                self.request_mut(*request).failed = Some(at);
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

    /// Whether the server lost data, or an operator ended all holds, since a hold was granted: then it may be gone.
    pub(super) fn excused(&self, id: Id, lock: Lock, until: Micros) -> bool {
        let Some(granted) = self.granted.get(&id) else {
            return false;
        };
        let since = |at: Micros| *granted <= at && at <= until;
        self.losses.iter().any(|at| since(*at)) || self.forced.iter().any(|(forced, at)| *forced == lock && since(*at))
    }

    /// Until when the answers so far let a hold be trusted by the local clock.
    pub(super) fn vouched(&self, id: Id, requests: &[&RequestFacts], now: Micros) -> Micros {
        // A notice counts only if it began the hold.
        let begun = self.guards.values().filter(|guard| guard.id == id).map(|guard| guard.granted).min();
        let notices = self.noticed.get(&id).into_iter().flatten();
        let notices = notices
            .filter(|(at, until)| *at <= now && begun.is_some_and(|begun| *at <= begun && begun < *until))
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

    /// Whether its acquisition had a guard before it was sent.
    pub(super) fn is_had(&self, request: &RequestFacts) -> bool {
        let id = id_of(request.op);
        self.guards.values().any(|guard| Some(guard.id) == id && guard.index < request.index)
    }

    /// Requests about one acquisition, in order.
    pub(super) fn by_id(&self) -> BTreeMap<Id, Vec<&RequestFacts>> {
        let mut by_id: BTreeMap<Id, Vec<&RequestFacts>> = BTreeMap::new();
        for request in self.requests.values() {
            if let Some(id) = id_of(request.op) {
                by_id.entry(id).or_default().push(request);
            }
        }
        by_id
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
    pub(super) turns: u64,
}

impl Given {
    pub(super) fn by(what: &What) -> Vec<Self> {
        let What::Applied { op, reply, after, news, .. } = what else {
            return Vec::new();
        };
        let mut given: Vec<_> = news
            .iter()
            .filter_map(|news| {
                Some(Self { id: news.id, mode: mode_in(after, news.id)?, token: news.token, turns: news.turns })
            })
            .collect();
        if let (Op::Acquire { id, mode, .. } | Op::Turn { id, mode, .. }, Reply::Granted { token, turns, .. }) =
            (op, reply)
            && given.iter().all(|given| given.id != *id)
        {
            given.push(Self { id: *id, mode: *mode, token: *token, turns: *turns });
        }
        given
    }
}

fn mode_in(seen: &Seen, id: Id) -> Option<Mode> {
    seen.held.iter().find(|held| held.id == id).map(|held| held.mode)
}
