//! The shortest courses of an acquisition with `at_least`, at the specification: each order of its requests, their copies
//! and answers, the end of its lease, a dropped future, a death of its process, and another process that wants the lock.
//!
//! A tick is a millisecond. The client is a model of the rules in `docs/GUARANTEES.md#at-least`, since the engine has
//! more states than can be explored. Each planted fault of the client must break a promise.

use super::courses::{Explored, explore};
use super::*;

const LEASE: u64 = 3;
const CLAIM: u64 = 2;
const AT_LEAST: u64 = 6;
/// Time after which no copy of an acquisition is carried out.
const TRANSIT: u64 = 1;
const END: u64 = 10;
const OURS: u64 = 1;
const COPIES: u8 = 2;
/// Number of states after which the exploration ends. The shortest courses come first, and each planted fault shows
/// within a third of a million states.
const MAX_STATES: usize = 2_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// The guard is handed out when the arming is sent.
    Early,
    /// A hold that the clock ends before its guard is not given back.
    SilentLoss,
    /// A hold without a guard is given back with a rest.
    CancelRests,
    /// A repeated arming has a time of its own.
    OtherTime,
    /// The release is not repeated after the last copy of the acquisition.
    ToldOnce,
    /// The release of a guard carries no time.
    NoRest,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Message {
    Acquire { sent: u64 },
    Renew { sent: u64, until: u64 },
    Leave { sent: u64, until: u64 },
    Granted { valid: u64 },
    Renewed { valid: u64, is_armed: bool },
    Lost,
    Left { sent: u64 },
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
enum Stage {
    #[default]
    Asking,
    Arming,
    Guard,
    Gone,
}

/// Hold or place that is given back until the server has answered.
#[derive(Clone, Copy, Hash)]
struct Back {
    until: u64,
    /// Time from which no copy of the acquisition arrives.
    after: u64,
    told: u8,
    is_answered: bool,
}

#[derive(Clone, Default, Hash)]
struct State {
    now: u64,
    record: Record,
    net: Vec<Message>,
    is_alive: bool,
    stage: Stage,
    asked: u8,
    /// Time until which a copy of the acquisition may arrive.
    arrives_until: u64,
    valid: u64,
    until: u64,
    armings: u8,
    renewals: u8,
    back: Option<Back>,
    /// Latest end of a lease that the server has given to our hold, and first time that was sent.
    leased: u64,
    first_until: u64,
    is_handed_out: bool,
    others: u64,
    copies: u8,
}

fn request(id: AcquisitionId, waiter_ttl: u64) -> AcquireRequest {
    let millis = Duration::from_millis;
    let if_taken = if waiter_ttl > 0 { IfTaken::Queue { waiter_ttl: millis(waiter_ttl) } } else { IfTaken::Leave };
    AcquireRequest { id, mode: Mode::Write, lease: millis(LEASE), max_tokens: 1, if_taken, caches: false }
}

/// Takes each change that can come next, and keeps the state after it.
type Branches<'a> = dyn FnMut(&dyn Fn(&mut State)) + 'a;

impl State {
    fn new(is_held: bool) -> Self {
        let mut record = Record::default();
        if is_held {
            record.acquire(at(0), u64::MAX, &request(id(10), 0));
        }
        Self { record, is_alive: true, copies: 1, ..Self::default() }
    }

    fn rest_until(until: u64) -> Option<ServerTime> {
        (until > 0).then(|| at(until))
    }

    /// Carries out a request, and puts the answer into the network.
    fn serve(&mut self, message: Message) {
        let (now, ours, lease) = (self.now, id(OURS), Duration::from_millis(LEASE));
        match message {
            Message::Acquire { sent } => {
                let limit_ms = T0_US / 1000 + sent + TRANSIT;
                if let Acquired::Granted(granted) = self.record.acquire(at(now), limit_ms, &request(ours, CLAIM)) {
                    self.granted(sent, granted);
                }
            }
            Message::Renew { sent, until } => {
                match self.record.renew_until(at(now), &ours, lease, Self::rest_until(until)) {
                    Renewed::Renewed { .. } => {
                        self.leased = self.leased.max(now + LEASE);
                        self.net.push(Message::Renewed { valid: sent + LEASE, is_armed: until > 0 });
                    }
                    Renewed::Lost { .. } => self.net.push(Message::Lost),
                }
            }
            Message::Leave { sent, until } => {
                self.record.release_until(at(now), &ours, Self::rest_until(until));
                self.net.push(Message::Left { sent });
            }
            _ => unreachable!("it is an answer"),
        }
        self.publish();
    }

    fn granted(&mut self, sent: u64, granted: Granted) {
        let remaining = u64::try_from(granted.remaining.as_millis()).expect("short").min(LEASE);
        self.leased = self.leased.max(self.now + remaining);
        self.net.push(Message::Granted { valid: sent + remaining });
    }

    fn publish(&mut self) {
        for notification in self.record.take_notifications() {
            if notification.id == id(OURS) {
                self.granted(self.now, notification.granted);
            }
        }
    }

    /// Receives an answer.
    fn hear(&mut self, message: Message, fault: Fault) {
        match message {
            Message::Granted { valid } if self.stage == Stage::Asking && valid > self.now => {
                (self.stage, self.valid) = (Stage::Arming, valid);
            }
            Message::Renewed { valid, is_armed } if matches!(self.stage, Stage::Arming | Stage::Guard) => {
                self.valid = self.valid.max(valid);
                if is_armed && self.stage == Stage::Arming {
                    self.hand_out();
                }
            }
            Message::Lost if matches!(self.stage, Stage::Arming | Stage::Guard) => self.lose(fault),
            Message::Left { sent } => {
                if let Some(back) = &mut self.back {
                    back.is_answered = true;
                    if sent >= back.after || fault == Fault::ToldOnce {
                        self.back = None;
                    }
                }
            }
            _ => {}
        }
    }

    fn hand_out(&mut self) {
        (self.stage, self.is_handed_out) = (Stage::Guard, true);
    }

    fn lose(&mut self, fault: Fault) {
        if fault == Fault::SilentLoss && self.stage == Stage::Arming {
            self.stage = Stage::Gone;
        } else {
            self.give_back(fault);
        }
    }

    fn give_back(&mut self, fault: Fault) {
        let rests = (self.is_handed_out && fault != Fault::NoRest) || fault == Fault::CancelRests;
        let (until, after) = (if rests { self.until } else { 0 }, self.arrives_until + 1);
        self.stage = Stage::Gone;
        self.back = Some(Back { until, after, told: 0, is_answered: false });
        self.tell();
    }

    fn tell(&mut self) {
        if let Some(back) = &mut self.back {
            back.told += 1;
            self.net.push(Message::Leave { sent: self.now, until: back.until });
        }
    }

    /// Returns the states after one step.
    fn next(&self, fault: Fault) -> Vec<Self> {
        let mut all = Vec::new();
        let mut step = |change: &dyn Fn(&mut Self)| {
            let mut state = self.clone();
            change(&mut state);
            state.tidy();
            all.push(state);
        };
        if self.now < END {
            step(&|state| state.tick(fault));
        }
        for (place, message) in self.net.iter().copied().enumerate() {
            if self.net[..place].contains(&message) {
                continue;
            }
            let is_request = message.is_request();
            step(&|state| {
                state.net.remove(place);
                if is_request { state.serve(message) } else { state.hear(message, fault) }
            });
            if is_request && self.copies > 0 {
                step(&|state| {
                    state.copies -= 1;
                    state.serve(message);
                });
            }
        }
        let other = id(10 + self.others);
        if self.record.live_holds(T0_US / 1000 + self.now).iter().any(|(holder, ..)| *holder == other.as_str()) {
            step(&|state| {
                state.record.release(at(state.now), &other);
                state.others += 1;
                state.publish();
            });
        } else if self.others < 2 {
            step(&|state| {
                state.record.acquire(at(state.now), u64::MAX, &request(other.clone(), 0));
                state.publish();
            });
        }
        if self.is_alive {
            self.client_steps(fault, &mut step);
        }
        all
    }

    fn client_steps(&self, fault: Fault, step: &mut Branches<'_>) {
        step(&|state| (state.is_alive, state.stage, state.back) = (false, Stage::Gone, None));
        match self.stage {
            Stage::Asking if self.asked < COPIES => step(&|state| {
                state.asked += 1;
                state.arrives_until = state.now + TRANSIT;
                state.net.push(Message::Acquire { sent: state.now });
            }),
            Stage::Arming if self.armings < COPIES => step(&|state| {
                state.armings += 1;
                if state.until == 0 || fault == Fault::OtherTime {
                    state.until = state.now + AT_LEAST;
                }
                state.first_until = if state.armings == 1 { state.until } else { state.first_until };
                state.net.push(Message::Renew { sent: state.now, until: state.until });
                if fault == Fault::Early {
                    state.hand_out();
                }
            }),
            Stage::Guard if self.renewals < 1 => step(&|state| {
                state.renewals += 1;
                state.net.push(Message::Renew { sent: state.now, until: state.until });
            }),
            _ => {}
        }
        if self.stage != Stage::Gone && self.asked > 0 {
            // The future, or the guard, is dropped.
            step(&|state| state.give_back(fault));
        }
        if self.back.is_some_and(|back| back.told < COPIES && (!back.is_answered || self.now >= back.after)) {
            step(&Self::tell);
        }
    }

    fn tick(&mut self, fault: Fault) {
        self.now += 1;
        if matches!(self.stage, Stage::Arming | Stage::Guard) && self.valid <= self.now {
            self.lose(fault);
        }
    }

    /// Forgets messages that no process receives.
    fn tidy(&mut self) {
        let (now, is_alive) = (self.now, self.is_alive);
        self.net.retain(|message| match message {
            Message::Acquire { sent } => sent + TRANSIT >= now,
            other => is_alive || other.is_request(),
        });
        self.net.sort_unstable();
        self.record.forget_ms = 0;
    }

    /// Returns the promise that this state breaks.
    fn broken(&self) -> Option<&'static str> {
        let (now, ours, rest) = (self.now, id(OURS), id(OURS).of_rest());
        for (holder, _, deadline_ms) in self.record.live_holds(T0_US / 1000 + now) {
            let deadline = deadline_ms - T0_US / 1000;
            if holder != ours.as_str() && holder != rest.as_str() {
                if self.stage == Stage::Guard && self.valid > now {
                    return Some("two valid holders");
                }
                if self.is_handed_out && now < self.first_until {
                    return Some("granted before the time");
                }
                continue;
            }
            let is_armed = deadline > self.leased || holder == rest.as_str();
            let is_open = self.back.is_some() || matches!(self.stage, Stage::Asking | Stage::Arming);
            if is_armed && self.is_alive && !self.is_handed_out && (!is_open || holder == rest.as_str()) {
                return Some("taken for nobody");
            }
            if deadline > self.leased.max(self.first_until) {
                return Some("taken for too long");
            }
        }
        None
    }
}

impl Message {
    fn is_request(self) -> bool {
        matches!(self, Self::Acquire { .. } | Self::Renew { .. } | Self::Leave { .. })
    }
}

fn explored(fault: Fault) -> Explored {
    explore([State::new(false), State::new(true)], MAX_STATES, |state| state.next(fault), State::broken)
}

fn assert_found(fault: Fault) {
    explored(fault).assert_found(fault);
}

#[test]
fn each_planted_fault_breaks_a_promise() {
    [Fault::CancelRests, Fault::OtherTime].into_iter().for_each(assert_found);
}

#[test]
#[cfg_attr(not(redis_rwlock_optimised), ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn each_planted_fault_after_many_states_breaks_a_promise() {
    [Fault::Early, Fault::SilentLoss, Fault::ToldOnce, Fault::NoRest].into_iter().for_each(assert_found);
}

#[test]
#[cfg_attr(not(redis_rwlock_optimised), ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn no_course_of_an_acquisition_breaks_a_promise() {
    let Explored { broken, states, .. } = explored(Fault::None);
    println!("{states} states");
    assert_eq!(broken, None);
}
