//! Recall facts of a process: whether a recall for a cached hold would reach it, and whether one has come.

use super::*;

/// Time for which a subscription counts as live after an answered ping was sent.
const LIVE_FOR: Micros = SECOND;

/// Span in which a listener was subscribed.
struct Subscribed {
    listener: u32,
    server: u32,
    from: Micros,
    to: Micros,
}

/// Recalls and subscriptions of one lock in one process.
#[derive(Default)]
pub struct Listening {
    subscribed: Vec<Subscribed>,
    /// Pings that were answered: time of sending, time of the answer.
    pings: Vec<(Micros, Micros)>,
    recalls: Vec<(Micros, Recalled)>,
    /// Times of recalls that were lost or delayed.
    missed: Vec<Micros>,
}

impl Listening {
    /// Returns true if the process was subscribed for the whole span.
    pub fn was_live(&self, from: Micros, to: Micros) -> bool {
        self.subscribed.iter().any(|span| span.from <= from && to < span.to)
    }

    /// Returns how many recalls the process has missed.
    pub fn missed(&self, from: Micros, to: Micros) -> usize {
        self.missed.iter().filter(|at| (from..=to).contains(*at)).count()
    }

    fn is_live(&self, now: Micros) -> bool {
        self.pings.iter().any(|(sent, answered)| *answered <= now && now < *sent + LIVE_FOR + MS)
    }
}

/// Answer about a hold, with its request, the times of both, and whether it reports a waiter.
struct HoldAnswer {
    sent: Micros,
    server: u32,
    caches: bool,
    at: Micros,
    is_waited_for: bool,
}

impl Facts<'_> {
    pub fn on_recall_event(&mut self, event: &Event) {
        let What::RecallEvent { process, lock, input } = event.what else { return };
        let listening = self.listening.entry((process, lock)).or_default();
        match input {
            RecallEvent::Recalled(recalled) => listening.recalls.push((event.at, recalled)),
            RecallEvent::Missed => listening.missed.push(event.at),
            RecallEvent::Subscribed { listener, server } => {
                listening.subscribed.push(Subscribed { listener, server, from: event.at, to: Micros::MAX });
            }
            RecallEvent::Ping(sent) => listening.pings.push((sent, event.at)),
            RecallEvent::Broken(listener) => {
                if let Some(last) = listening.subscribed.iter_mut().rfind(|span| span.listener == listener) {
                    last.to = event.at;
                }
            }
        }
    }

    pub fn listening(&self, process: Process, lock: Lock) -> Option<&Listening> {
        self.listening.get(&(process, lock))
    }

    fn hold_answers(&self, id: Id) -> impl Iterator<Item = HoldAnswer> {
        self.about(id).filter_map(|request| {
            let (at, reply) = request.answered.as_ref()?;
            let is_waited_for = reply.is_waited_for()?;
            let caches = request.op.caches();
            Some(HoldAnswer { sent: request.sent, server: request.server, caches, at: *at, is_waited_for })
        })
    }

    /// Returns true if the hold has no guard then, and its process has no attempt for the lock.
    pub fn is_unused(&self, id: Id, lock: Lock, now: Micros) -> bool {
        let mut guards = self.guards_of(id).peekable();
        let is_used = guards.peek().is_none()
            || guards.any(|guard| guard.over.is_none_or(|over| over >= now) || guard.granted > now);
        !is_used && !self.is_wanted_here(id.process, lock, now, now)
    }

    /// Returns true if an attempt of the process wants the lock in that span.
    pub fn is_wanted_here(&self, process: Process, lock: Lock, from: Micros, to: Micros) -> bool {
        self.attempts.values().any(|attempt| attempt.scope() == (process, lock) && attempt.is_under_way(from, to))
    }

    fn first_token(&self, id: Id) -> u64 {
        self.guards_of(id).map(|guard| guard.token).min().unwrap_or_default()
    }

    /// Returns the times of recalls that end a hold. The recall of an attempt that only tries counts while the hold is
    /// idle.
    fn recalls_of(&self, id: Id, lock: Lock) -> impl Iterator<Item = Micros> {
        let first = self.first_token(id);
        let recalls = self.listening(id.process, lock).into_iter().flat_map(|listening| &listening.recalls);
        let counts =
            move |(at, recalled): &&(Micros, Recalled)| recalled.tries.is_none() || self.is_unused(id, lock, *at);
        recalls.filter(move |(_, recalled)| recalled.token >= first).filter(counts).map(|(at, _)| *at)
    }

    /// Returns the last time before `now` at which the process learned of a waiter for a hold that may be cached.
    pub fn recalled_at(&self, id: Id, lock: Lock, now: Micros) -> Micros {
        if !self.hold_answers(id).any(|answer| answer.caches) {
            return 0;
        }
        let reported = self.hold_answers(id).filter(|answer| answer.is_waited_for).map(|answer| answer.at);
        self.recalls_of(id, lock).chain(reported).filter(|at| *at < now).max().unwrap_or_default()
    }

    /// Returns true if guards of a hold may start without a request. Then every recall would arrive, and none has come
    /// since the server's last answer without waiters.
    pub fn is_door_open(&self, id: Id, lock: Lock, now: Micros) -> bool {
        let Some(listening) = self.listening(id.process, lock) else { return false };
        let recalled_at = self.recalled_at(id, lock, now);
        let answers: Vec<_> =
            self.hold_answers(id).filter(|answer| !answer.is_waited_for && answer.at <= now).collect();
        let allows_caching = |answer: &HoldAnswer| {
            let was_live =
                |span: &Subscribed| span.from <= answer.sent && now <= span.to && span.server == answer.server;
            answer.caches && listening.subscribed.iter().any(was_live)
        };
        let is_taken_back = answers.iter().any(|answer| answer.sent >= recalled_at);
        is_taken_back && answers.iter().any(allows_caching) && listening.is_live(now)
    }

    /// Returns until when a hold may stay cached that has no guard from `from` on.
    pub fn cached_until(&self, id: Id, lock: Lock, from: Micros) -> Micros {
        let cache_for = self.process(id.process).cache_for;
        if cache_for == 0 || !self.is_door_open(id, lock, from) {
            return from;
        }
        let spans = self.listening(id.process, lock).into_iter().flat_map(|listening| &listening.subscribed);
        // It relies on one of the listeners that were subscribed then.
        let breaks = spans.filter(|span| (span.from..span.to).contains(&from)).map(|span| span.to).max();
        let reported = self.hold_answers(id).filter(|answer| answer.is_waited_for).map(|answer| answer.at);
        let ends = self.recalls_of(id, lock).chain(breaks).chain(reported).filter(|at| *at >= from);
        ends.min().unwrap_or(Micros::MAX).min(from + cache_for)
    }
}
