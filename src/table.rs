//! This process's locks: what it holds of them, and who waits for them here.
//!
//! Redis sees at most one joinable hold and one waiter per lock and side of this process, however many tasks want it. Per
//! side one task at a time has the *turn*, which is the right to ask the server for that side. The others wait here:
//! readers join the hold that the first of them got, a writer that leaves hands its hold to the next. A waiting writer
//! stops readers from joining, here as on the server, where both sides then wait in the one queue of all processes.
//! Pure: no I/O, no clock.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::hold::{Hold, Parting, Share, Sharing, Ticket};
use crate::key::Key;
use crate::lease::Moment;
use crate::quest::Quest;
use crate::reentry::OwnerId;
use crate::scheme::Mode;

#[derive(Debug, Default)]
pub(crate) struct Table {
    locks: Mutex<Locks>,
}

#[derive(Debug, Default)]
struct Locks {
    by_name: HashMap<Arc<str>, Lock>,
    last_number: u64,
}

#[derive(Debug, Default)]
struct Lock {
    /// What the server has granted and has not been told to forget.
    holds: Vec<Arc<Hold>>,
    reads: Side,
    writes: Side,
}

#[derive(Debug, Default)]
struct Side {
    waiters: VecDeque<Waiter>,
    turn: Option<Number>,
    /// What the one that had the turn before has under way, until the one that has it now takes it.
    quest: Option<Quest>,
    /// Since when the server has not answered whoever had the turn.
    silent_since: Option<Moment>,
}

#[derive(Debug)]
struct Waiter {
    number: Number,
    want: Want,
    call: oneshot::Sender<Call>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Number(u64);

/// What a waiter wants of a hold, whenever it gets it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    pub(crate) owner: OwnerId,
    pub(crate) lease: Duration,
    pub(crate) max_hold: Duration,
}

impl Want {
    pub(crate) fn from(self, moment: Moment) -> Share {
        Share { owner: self.owner, lease: self.lease, ends: moment.after(self.max_hold) }
    }
}

/// What a waiter is called for.
#[derive(Debug)]
pub(crate) enum Call {
    /// It may ask the server.
    Turn,
    /// It has the lock.
    Handed(Arc<Hold>, Ticket),
}

/// A place among the waiters of one side of a lock, or its turn. To be [`left`](Place::leave).
#[derive(Debug)]
pub(crate) struct Place {
    table: Arc<Table>,
    key: Arc<Key>,
    mode: Mode,
    number: Number,
    /// Absent when the turn came at once, or has come.
    call: Option<oneshot::Receiver<Call>>,
}

/// What somebody finds that gives up its place.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    /// Nobody goes on with it.
    pub(crate) quest: Option<Quest>,
    /// It had been handed this.
    pub(crate) handed: Option<(Arc<Hold>, Ticket)>,
}

impl Side {
    fn is_idle(&self) -> bool {
        self.waiters.is_empty() && self.turn.is_none()
    }

    /// Calls the first waiter for its turn.
    fn call_next(&mut self) {
        if self.turn.is_some() {
            return;
        }
        match self.waiters.pop_front() {
            Some(first) => {
                self.turn = Some(first.number);
                call(first, Call::Turn);
            }
            // Nobody asks, so nothing is known of the server.
            None => self.silent_since = None,
        }
    }
}

/// A waiter is taken out of the queue before its receiver goes, both under the table's lock: it is there to be called.
fn call(waiter: Waiter, what: Call) {
    debug_assert!(!waiter.call.is_closed());
    drop(waiter.call.send(what));
}

impl Lock {
    fn side(&mut self, mode: Mode) -> &mut Side {
        match mode {
            Mode::Read => &mut self.reads,
            Mode::Write => &mut self.writes,
        }
    }

    fn holds_write(&self) -> bool {
        self.holds.iter().any(|hold| hold.mode() == Mode::Write)
    }

    /// Whether somebody of this side may ask the server, if it is first. A writer need not while this process holds the
    /// lock for another, which hands it on.
    fn may_ask(&self, mode: Mode) -> bool {
        mode == Mode::Read || !self.holds_write()
    }

    /// All waiting readers join a hold that the server has granted or confirmed just now.
    fn join_waiting(&mut self, hold: &Arc<Hold>, now: Moment) {
        let mut left = VecDeque::new();
        for waiter in std::mem::take(&mut self.reads.waiters) {
            match hold.join_phase(waiter.want.from(now), now) {
                Some(ticket) => call(waiter, Call::Handed(Arc::clone(hold), ticket)),
                None => left.push_back(waiter),
            }
        }
        self.reads.waiters = left;
    }

    fn advance(&mut self) {
        self.reads.call_next();
        if self.may_ask(Mode::Write) {
            self.writes.call_next();
        }
    }

    fn is_idle(&self) -> bool {
        self.holds.is_empty() && self.reads.is_idle() && self.writes.is_idle()
    }
}

impl Locks {
    fn number(&mut self) -> Number {
        self.last_number += 1;
        Number(self.last_number)
    }

    /// Changes a lock, lets the next waiters have their turns, and forgets the lock when it is idle.
    fn change<T>(&mut self, key: &Key, change: impl FnOnce(&mut Lock) -> T) -> Option<T> {
        let lock = self.by_name.get_mut(key.name())?;
        let changed = change(lock);
        lock.advance();
        if lock.is_idle() {
            self.by_name.remove(key.name());
        }
        Some(changed)
    }
}

impl Table {
    /// A reader joins a hold of this process, if it has one that may be joined now and no writer waits here.
    pub(crate) fn join(&self, name: &str, want: Want, now: Moment) -> Option<(Arc<Hold>, Ticket)> {
        let locks = self.locks.lock();
        let lock = locks.by_name.get(name)?;
        if !lock.writes.is_idle() {
            return None;
        }
        let joined = |hold: &Arc<Hold>| Some((Arc::clone(hold), hold.join(want.from(now), now)?));
        lock.holds.iter().find_map(joined)
    }

    /// A read hold that may be joined if the server says so.
    pub(crate) fn to_recheck(&self, key: &Key) -> Option<Arc<Hold>> {
        let locks = self.locks.lock();
        let lock = locks.by_name.get(key.name())?;
        let live = |hold: &&Arc<Hold>| hold.mode() == Mode::Read && hold.is_live();
        lock.holds.iter().find(live).filter(|_| lock.writes.is_idle()).cloned()
    }

    /// Waits for one side of `key`, or has the turn at once.
    pub(crate) fn enter(self: &Arc<Self>, key: &Arc<Key>, mode: Mode, want: Want) -> Place {
        let mut locks = self.locks.lock();
        let number = locks.number();
        let lock = locks.by_name.entry(key.shared_name()).or_default();
        let at_once = lock.may_ask(mode) && lock.side(mode).is_idle();
        let side = lock.side(mode);
        let call = if at_once {
            side.turn = Some(number);
            None
        } else {
            let (call, called) = oneshot::channel();
            side.waiters.push_back(Waiter { number, want, call });
            Some(called)
        };
        drop(locks);
        self.place(key, mode, number, call)
    }

    /// The right to ask the server once, unless somebody here holds the lock or waits for it. Somebody else who only asks
    /// is in nobody's way: then both do, this one without the turn.
    pub(crate) fn try_enter(self: &Arc<Self>, key: &Arc<Key>, mode: Mode) -> Option<Place> {
        let mut locks = self.locks.lock();
        let number = locks.number();
        let lock = locks.by_name.entry(key.shared_name()).or_default();
        let in_the_way = match mode {
            Mode::Read => lock.holds_write() || !lock.writes.is_idle(),
            Mode::Write => !lock.holds.is_empty() || !lock.reads.waiters.is_empty() || !lock.writes.waiters.is_empty(),
        };
        if in_the_way {
            return None;
        }
        lock.side(mode).turn.get_or_insert(number);
        drop(locks);
        Some(self.place(key, mode, number, None))
    }

    fn place(
        self: &Arc<Self>,
        key: &Arc<Key>,
        mode: Mode,
        number: Number,
        call: Option<oneshot::Receiver<Call>>,
    ) -> Place {
        Place { table: Arc::clone(self), key: Arc::clone(key), mode, number, call }
    }

    /// A guard lets go of its hold, which the next writer of this process has then, if it may.
    pub(crate) fn part(&self, hold: &Arc<Hold>, ticket: Ticket, now: Moment, sharing: Sharing) -> Parting {
        let mut locks = self.locks.lock();
        let mut waiters = locks.by_name.get_mut(hold.key().name()).map(|lock| &mut lock.writes.waiters);
        let next = waiters.as_ref().and_then(|waiters| waiters.front()).map(|first| first.want.from(now));
        let parting = hold.part(ticket, now, next, sharing);
        if let Parting::Passed(ticket) = parting
            && let Some(first) = waiters.as_mut().and_then(|waiters| waiters.pop_front())
        {
            call(first, Call::Handed(Arc::clone(hold), ticket));
        }
        parting
    }

    /// A hold is over: it is in nobody's way any more.
    pub(crate) fn ended(&self, hold: &Hold) {
        self.locks.lock().change(hold.key(), |lock| lock.holds.retain(|other| other.id() != hold.id()));
    }

    /// A hold was turned into one of the other side.
    pub(crate) fn turned(&self, old: &Hold, new: &Arc<Hold>, now: Moment) {
        let mut locks = self.locks.lock();
        locks.by_name.entry(old.key().shared_name()).or_default();
        locks.change(old.key(), |lock| {
            lock.holds.retain(|other| other.id() != old.id());
            lock.holds.push(Arc::clone(new));
            if new.mode() == Mode::Read {
                lock.join_waiting(new, now);
            }
        });
    }

    /// Whether a writer waits here.
    pub(crate) fn writer_waits(&self, key: &Key) -> bool {
        self.locks.lock().by_name.get(key.name()).is_some_and(|lock| !lock.writes.is_idle())
    }

    /// The holds of a lock.
    pub(crate) fn holds(&self, key: &Key) -> Vec<Arc<Hold>> {
        self.locks.lock().by_name.get(key.name()).map_or_else(Vec::new, |lock| lock.holds.clone())
    }

    /// A hold that this owner has a guard of.
    pub(crate) fn held_by(&self, key: &Key, owner: OwnerId, now: Moment) -> Option<Arc<Hold>> {
        let locks = self.locks.lock();
        locks.by_name.get(key.name())?.holds.iter().find(|hold| hold.is_held_by(owner, now)).cloned()
    }

    /// All holds of this process, of all locks, oldest first.
    pub(crate) fn all_holds(&self) -> Vec<Arc<Hold>> {
        let locks = self.locks.lock();
        let mut holds: Vec<_> = locks.by_name.values().flat_map(|lock| &lock.holds).cloned().collect();
        drop(locks);
        holds.sort_by(|a, b| (a.token(), a.key().name()).cmp(&(b.token(), b.key().name())));
        holds
    }

    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.locks.lock().by_name.is_empty()
    }

    /// Since when the server has not answered for this side of a lock.
    pub(crate) fn silent_since(&self, key: &Key, mode: Mode) -> Option<Moment> {
        self.locks.lock().by_name.get_mut(key.name())?.side(mode).silent_since
    }
}

impl Place {
    /// Whether the turn has come, as far as this waiter has looked.
    pub(crate) fn has_turn(&self) -> bool {
        self.call.is_none()
    }

    /// Returns when this waiter is called. Dropping the future keeps the place.
    pub(crate) async fn called(&mut self) -> Call {
        let Some(call) = &mut self.call else {
            return Call::Turn;
        };
        // The sender goes with the table's entry for a waiter, after a call only.
        let called = call.await.unwrap_or(Call::Turn);
        self.call = None;
        called
    }

    /// What the one that had the turn before has under way.
    pub(crate) fn take_quest(&self) -> Option<Quest> {
        let mut locks = self.table.locks.lock();
        let side = locks.by_name.get_mut(self.key.name())?.side(self.mode);
        if side.turn == Some(self.number) { side.quest.take() } else { None }
    }

    /// The server has not answered whoever has the turn since this moment, or has again.
    pub(crate) fn silent_since(&self, since: Option<Moment>) {
        let mut locks = self.table.locks.lock();
        if let Some(lock) = locks.by_name.get_mut(self.key.name()) {
            let side = lock.side(self.mode);
            side.silent_since = match (side.silent_since, since) {
                (Some(earlier), Some(_)) => Some(earlier),
                (_, since) => since,
            };
        }
    }

    /// The server has granted or confirmed a hold: whoever waits here to read has a share of it too.
    pub(crate) fn granted(self, hold: &Arc<Hold>, now: Moment) {
        let mut locks = self.table.locks.lock();
        // Without the turn, the lock may have been forgotten meanwhile.
        locks.by_name.entry(self.key.shared_name()).or_default();
        locks.change(&self.key, |lock| {
            let side = lock.side(self.mode);
            side.turn.take_if(|turn| *turn == self.number);
            side.silent_since = None;
            // One that is over by now was taken out, or will be.
            if hold.is_live() && !lock.holds.iter().any(|other| other.id() == hold.id()) {
                lock.holds.push(Arc::clone(hold));
            }
            if self.mode == Mode::Read {
                lock.join_waiting(hold, now);
            }
        });
    }

    /// Gives the place up. A quest goes to the next waiter, if there is one that may go on with it now.
    pub(crate) fn leave(mut self, mut quest: Option<Quest>) -> Leaving {
        let mut locks = self.table.locks.lock();
        let handed = locks.change(&self.key, |lock| {
            let may_ask = lock.may_ask(self.mode);
            let side = lock.side(self.mode);
            side.waiters.retain(|waiter| waiter.number != self.number);
            if side.turn == Some(self.number) {
                side.turn = None;
                quest = quest.take().or_else(|| side.quest.take());
                if may_ask && !side.waiters.is_empty() {
                    side.quest = quest.take();
                }
            }
            match self.call.as_mut().map(oneshot::Receiver::try_recv) {
                Some(Ok(Call::Handed(hold, ticket))) => Some((hold, ticket)),
                Some(Ok(Call::Turn) | Err(_)) | None => None,
            }
        });
        Leaving { quest, handed: handed.flatten() }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::clock::Clock;
    use crate::hold::{Grant, Terms};
    use crate::lease::FencingToken;
    use crate::scheme::Acquisition;

    fn key() -> Arc<Key> {
        Arc::new(Key::new("p", "cfg").expect("valid"))
    }

    fn want() -> Want {
        Want { owner: OwnerId::new(), lease: Duration::from_secs(10), max_hold: Duration::from_secs(3600) }
    }

    fn sharing() -> Sharing {
        Sharing { window: Duration::from_millis(50), turns: 64, turn_span: Duration::from_secs(60) }
    }

    fn granted(mode: Mode, turns: u64) -> (Arc<Hold>, Ticket) {
        let now = Clock::System.now();
        let token = FencingToken::from_wire(1000).expect("small");
        let terms = Terms { key: key(), id: Acquisition::new("m", 1, "l"), mode, token, turns };
        let lease = Duration::from_secs(10);
        let grant = Grant { sent: now, remaining: lease, asked: lease };
        let (hold, ticket) = Hold::new(terms, want().from(now), grant, None, Clock::System, Duration::ZERO);
        hold.share_until(Some(now.after(Duration::from_secs(5))));
        (Arc::new(hold), ticket)
    }

    /// What a waiter has been called for, if it has been.
    fn called(place: &mut Place) -> Option<Call> {
        let mut called = std::pin::pin!(place.called());
        match called.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(call) => Some(call),
            Poll::Pending => None,
        }
    }

    fn has_turn(place: &mut Place) -> bool {
        matches!(called(place), Some(Call::Turn))
    }

    #[test]
    fn one_waiter_of_a_side_has_the_turn() {
        let table = Arc::new(Table::default());
        let mut first = table.enter(&key(), Mode::Read, want());
        let mut second = table.enter(&key(), Mode::Read, want());
        let mut writer = table.enter(&key(), Mode::Write, want());
        assert!(has_turn(&mut first) && has_turn(&mut writer));
        assert!(called(&mut second).is_none());
        first.leave(None);
        assert!(has_turn(&mut second));
    }

    #[test]
    fn waiter_that_leaves_does_not_stop_those_behind_it() {
        let table = Arc::new(Table::default());
        let [first, second, mut third] = [0; 3].map(|_| table.enter(&key(), Mode::Write, want()));
        second.leave(None);
        first.leave(None);
        assert!(has_turn(&mut third));
    }

    #[test]
    fn turn_is_passed_on_when_it_came_to_a_future_that_died() {
        let table = Arc::new(Table::default());
        let [first, second, mut third] = [0; 3].map(|_| table.enter(&key(), Mode::Write, want()));
        first.leave(None); // the turn is second's now, though it never looked
        second.leave(None);
        assert!(has_turn(&mut third));
    }

    #[test]
    fn quest_goes_to_the_next_waiter_and_back_to_the_last() {
        let table = Arc::new(Table::default());
        let [first, second] = [0; 2].map(|_| table.enter(&key(), Mode::Write, want()));
        let quest = Quest::new(Acquisition::new("m", 1, "l"), crate::quest::Notices::Never);
        assert!(first.leave(Some(quest)).quest.is_none());
        let quest = second.take_quest().expect("left by the one before");
        assert!(second.leave(Some(quest)).quest.is_some(), "nobody goes on with it");
    }

    #[test]
    fn quest_is_not_forgotten_by_a_waiter_that_never_looked() {
        let table = Arc::new(Table::default());
        let [first, second] = [0; 2].map(|_| table.enter(&key(), Mode::Write, want()));
        let quest = Quest::new(Acquisition::new("m", 1, "l"), crate::quest::Notices::Never);
        first.leave(Some(quest));
        assert!(second.leave(None).quest.is_some());
    }

    #[test]
    fn quest_is_not_left_to_a_waiter_that_may_not_ask() {
        let table = Arc::new(Table::default());
        let first = table.enter(&key(), Mode::Write, want());
        let once = table.try_enter(&key(), Mode::Write).expect("nobody is in the way");
        let mut second = table.enter(&key(), Mode::Write, want());
        let (hold, ticket) = granted(Mode::Write, 64);
        once.granted(&hold, Clock::System.now());
        let quest = Quest::new(Acquisition::new("m", 1, "l"), crate::quest::Notices::Never);
        assert!(first.leave(Some(quest)).quest.is_some(), "the next one is handed the hold");
        table.part(&hold, ticket, Clock::System.now(), sharing());
        assert!(matches!(called(&mut second), Some(Call::Handed(..))));
    }

    #[test]
    fn hold_that_is_being_turned_is_not_due_for_renewal() {
        let (hold, _) = granted(Mode::Write, 1);
        hold.unanswered(Clock::System.now());
        assert!(hold.begin_turn(Clock::System.now()));
        // The task that finds it all the same would look again at once, and again.
        assert_eq!(hold.next(Clock::System.now()), crate::hold::Next::At(hold.deadline()));
    }

    #[test]
    fn server_is_told_for_as_long_as_a_stray_copy_may_last() {
        let (hold, _) = granted(Mode::Read, 1);
        let until = Clock::System.now().after(Duration::from_secs(60));
        hold.recheck_begins(until);
        hold.recheck_ends(Some(until));
        assert!(hold.server_until() >= until.after(Duration::from_secs(10)));
    }

    #[test]
    fn hold_that_is_over_does_not_come_back() {
        let table = Arc::new(Table::default());
        let reader = table.enter(&key(), Mode::Read, want());
        let (hold, _) = granted(Mode::Read, 1);
        hold.lose(crate::error::LossReason::Forced);
        table.ended(&hold);
        reader.granted(&hold, Clock::System.now());
        assert!(table.locks.lock().by_name.is_empty());
    }

    #[test]
    fn waiting_readers_enter_with_the_first() {
        let table = Arc::new(Table::default());
        let first = table.enter(&key(), Mode::Read, want());
        let mut others = [0; 3].map(|_| table.enter(&key(), Mode::Read, want()));
        let (hold, _) = granted(Mode::Read, 1);
        first.granted(&hold, Clock::System.now());
        assert!(others.iter_mut().all(|other| matches!(called(other), Some(Call::Handed(..)))));
    }

    #[test]
    fn reader_joins_unless_a_writer_waits() {
        let table = Arc::new(Table::default());
        let first = table.enter(&key(), Mode::Read, want());
        let (hold, _) = granted(Mode::Read, 1);
        first.granted(&hold, Clock::System.now());
        assert!(table.join("cfg", want(), Clock::System.now()).is_some());
        let writer = table.enter(&key(), Mode::Write, want());
        assert!(writer.has_turn(), "it may queue on the server");
        assert!(table.join("cfg", want(), Clock::System.now()).is_none());
        writer.leave(None);
        assert!(table.join("cfg", want(), Clock::System.now()).is_some());
    }

    #[test]
    fn writers_have_one_turn_after_the_other_with_a_token_each() {
        let table = Arc::new(Table::default());
        let first = table.enter(&key(), Mode::Write, want());
        let mut others = [0; 3].map(|_| table.enter(&key(), Mode::Write, want()));
        let (hold, mut ticket) = granted(Mode::Write, 3);
        first.granted(&hold, Clock::System.now());
        let mut tokens = vec![ticket.token];
        for other in &mut others[..2] {
            assert!(called(other).is_none());
            let parting = table.part(&hold, ticket, Clock::System.now(), sharing());
            assert!(matches!(parting, Parting::Passed(_)), "{parting:?}");
            let Some(Call::Handed(_, next)) = called(other) else { panic!("it has the lock") };
            tokens.push(next.token);
            ticket = next;
        }
        assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
        // Three tokens, three turns: the hold is given back, and then the next writer may ask.
        assert_eq!(table.part(&hold, ticket, Clock::System.now(), sharing()), Parting::Last);
        assert!(called(&mut others[2]).is_none());
        table.ended(&hold);
        assert!(has_turn(&mut others[2]));
    }

    #[test]
    fn writer_whose_time_is_over_hands_nothing_on_and_is_told() {
        let table = Arc::new(Table::default());
        let first = table.enter(&key(), Mode::Write, want());
        let mut second = table.enter(&key(), Mode::Write, want());
        let (hold, ticket) = granted(Mode::Write, 3);
        first.granted(&hold, Clock::System.now());
        let over = Clock::System.now();
        assert!(hold.accept(ticket, Share { ends: over, ..want().from(over) }, over));
        let parting = table.part(&hold, ticket, Clock::System.now(), sharing());
        assert_eq!(parting, Parting::LastLate(crate::error::LossReason::MaxHold));
        assert!(called(&mut second).is_none());
    }

    #[test]
    fn what_was_handed_to_a_future_that_died_is_given_back() {
        let table = Arc::new(Table::default());
        let first = table.enter(&key(), Mode::Write, want());
        let second = table.enter(&key(), Mode::Write, want());
        let (hold, ticket) = granted(Mode::Write, 3);
        first.granted(&hold, Clock::System.now());
        table.part(&hold, ticket, Clock::System.now(), sharing());
        assert!(second.leave(None).handed.is_some());
    }

    #[test]
    fn idle_locks_are_forgotten() {
        let table = Arc::new(Table::default());
        table.enter(&key(), Mode::Read, want()).leave(None);
        table.try_enter(&key(), Mode::Write).expect("free").leave(None);
        let place = table.enter(&key(), Mode::Read, want());
        let (hold, _) = granted(Mode::Read, 1);
        place.granted(&hold, Clock::System.now());
        table.ended(&hold);
        assert!(table.locks.lock().by_name.is_empty());
    }
}
