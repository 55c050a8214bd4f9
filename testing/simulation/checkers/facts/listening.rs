//! Recall facts of a process: whether a recall for a cached hold would reach it, and whether one has come.

use super::{Facts, MS, SECOND};
use crate::testing::simulation::history::{Called, Event, Heard, Id, Lock, Micros, Op, Process, Reply, What};

/// Time for which a subscription counts as live after an answered ping was sent.
const FRESH: Micros = SECOND;

/// Recalls and subscription of one lock in one process.
#[derive(Default)]
pub(in crate::testing::simulation::checkers) struct Listening {
    /// Spans in which the process was subscribed, and at which server.
    subscribed: Vec<(Micros, Micros, u32)>,
    /// Pings that were answered: time of sending, time of the answer.
    pings: Vec<(Micros, Micros)>,
    calls: Vec<(Micros, Called)>,
    /// Times of recalls that were lost or delayed.
    missed: Vec<Micros>,
}

impl Listening {
    /// Returns true if the process was subscribed for the whole span.
    pub(in crate::testing::simulation::checkers) fn stood(&self, from: Micros, to: Micros) -> bool {
        self.subscribed.iter().any(|(begin, end, _)| *begin <= from && to < *end)
    }

    /// Returns how many recalls the process has missed.
    pub(in crate::testing::simulation::checkers) fn missed(&self, from: Micros, to: Micros) -> usize {
        self.missed.iter().filter(|at| (from..=to).contains(*at)).count()
    }

    fn is_fresh(&self, now: Micros) -> bool {
        self.pings.iter().any(|(sent, answered)| *answered <= now && now < *sent + FRESH + MS)
    }
}

/// Answer about a hold, with its request, the times of both, and whether it reports a waiter.
struct Word {
    sent: Micros,
    server: u32,
    keeps: bool,
    at: Micros,
    is_waited_for: bool,
}

impl Facts<'_> {
    pub(super) fn of_calls(&mut self, event: &Event) {
        let What::Hears { process, lock, heard } = event.what else { return };
        let listening = self.listening.entry((process, lock)).or_default();
        match heard {
            Heard::Call(called) => listening.calls.push((event.at, called)),
            Heard::Missed => listening.missed.push(event.at),
            Heard::Subscribed(server) => listening.subscribed.push((event.at, Micros::MAX, server)),
            Heard::Ping(sent) => listening.pings.push((sent, event.at)),
            Heard::Broken => {
                if let Some(last) = listening.subscribed.last_mut() {
                    last.1 = event.at;
                }
            }
        }
    }

    pub(in crate::testing::simulation::checkers) fn listening(
        &self,
        process: Process,
        lock: Lock,
    ) -> Option<&Listening> {
        self.listening.get(&(process, lock))
    }

    fn words(&self, id: Id) -> impl Iterator<Item = Word> {
        self.about(id).filter_map(|request| {
            let (at, reply) = request.answered.as_ref()?;
            let is_waited_for = match reply {
                Reply::Granted { is_waited_for, .. } | Reply::Renewed { is_waited_for, .. } => *is_waited_for,
                _ => return None,
            };
            let keeps = matches!(
                request.op,
                Op::Acquire { keeps: true, .. } | Op::Conversion { keeps: true, .. } | Op::Renew { keeps: true, .. }
            );
            Some(Word { sent: request.sent, server: request.server, keeps, at: *at, is_waited_for })
        })
    }

    /// Returns true if the hold has no guard then, and its process has no attempt for the lock.
    pub(in crate::testing::simulation::checkers) fn is_idle(&self, id: Id, lock: Lock, now: Micros) -> bool {
        let mut guards = self.guards.values().filter(|guard| guard.id == id).peekable();
        let is_used = guards.peek().is_none()
            || guards.any(|guard| guard.over.is_none_or(|over| over >= now) || guard.granted > now);
        !is_used && !self.is_wanted_here(id.process, lock, now, now)
    }

    /// Returns true if an attempt of the process wants the lock in that span.
    pub(in crate::testing::simulation::checkers) fn is_wanted_here(
        &self,
        process: Process,
        lock: Lock,
        from: Micros,
        to: Micros,
    ) -> bool {
        self.attempts.values().any(|attempt| {
            let same = attempt.process == process && attempt.wish.lock == lock;
            same && attempt.asked <= to && attempt.ended.is_none_or(|(ended, _)| ended >= from)
        })
    }

    fn first_token(&self, id: Id) -> u64 {
        self.guards.values().filter(|guard| guard.id == id).map(|guard| guard.token).min().unwrap_or_default()
    }

    /// Returns the times of recalls that end a hold. The recall of an attempt that only tries counts while the hold is
    /// idle.
    fn calls_for(&self, id: Id, lock: Lock) -> impl Iterator<Item = Micros> {
        let first = self.first_token(id);
        let calls = self.listening(id.process, lock).into_iter().flat_map(|listening| &listening.calls);
        let counts = move |(at, called): &&(Micros, Called)| called.tries.is_none() || self.is_idle(id, lock, *at);
        calls.filter(move |(_, called)| called.token >= first).filter(counts).map(|(at, _)| *at)
    }

    /// Returns the last time before `now` at which the process learned of a waiter for a hold that may be cached.
    pub(in crate::testing::simulation::checkers) fn called_at(&self, id: Id, lock: Lock, now: Micros) -> Micros {
        if !self.words(id).any(|word| word.keeps) {
            return 0;
        }
        let told = self.words(id).filter(|word| word.is_waited_for).map(|word| word.at);
        self.calls_for(id, lock).chain(told).filter(|at| *at < now).max().unwrap_or_default()
    }

    /// Returns true if guards of a hold may start without a request. Then every recall would arrive, and none has come
    /// since the server's last answer without waiters.
    pub(in crate::testing::simulation::checkers) fn is_door_open(&self, id: Id, lock: Lock, now: Micros) -> bool {
        let Some(listening) = self.listening(id.process, lock) else { return false };
        let called_at = self.called_at(id, lock, now);
        let words: Vec<_> = self.words(id).filter(|word| !word.is_waited_for && word.at <= now).collect();
        let relies = |word: &Word| {
            let spans = &listening.subscribed;
            let stood = |(from, to, server): &(_, _, _)| *from <= word.sent && now <= *to && *server == word.server;
            word.keeps && spans.iter().any(stood)
        };
        let is_taken_back = words.iter().any(|word| word.sent >= called_at);
        is_taken_back && words.iter().any(relies) && listening.is_fresh(now)
    }

    /// Returns until when a hold may stay cached that has no guard from `from` on.
    pub(in crate::testing::simulation::checkers) fn stays_until(&self, id: Id, lock: Lock, from: Micros) -> Micros {
        let cache_for = self.process(id.process).cache_for;
        if cache_for == 0 || !self.is_door_open(id, lock, from) {
            return from;
        }
        let spans = self.listening(id.process, lock).into_iter().flat_map(|listening| &listening.subscribed);
        let breaks = spans.map(|(_, to, _)| *to);
        let told = self.words(id).filter(|word| word.is_waited_for).map(|word| word.at);
        let ends = self.calls_for(id, lock).chain(breaks).chain(told).filter(|at| *at >= from);
        ends.min().unwrap_or(Micros::MAX).min(from + cache_for)
    }
}
