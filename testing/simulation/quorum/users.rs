//! What users do at a quorum, and the judge: of each guard it knows from when to when somebody relied on it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::super::gate::CutAt;
use super::super::history::{End, Id, Lock, Process, Released, Wish};
use super::super::workload::{AnyGuard, SimManager, released, taking};
use super::super::world::is_valid;
use super::masters::Field;
use crate::base::error::LossReason;
use crate::base::reentry::OwnerId;
use crate::face::guard::HoldWatch;
use crate::store::Mode;

/// What was seen of promises.
#[derive(Default)]
pub(super) struct Judge {
    of: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    inside: Vec<Inside>,
    next: u32,
    highest: BTreeMap<Lock, Highest>,
    /// When guards of a hold were first had.
    since: BTreeMap<Id, Duration>,
    violations: Vec<String>,
    /// How often each thing has happened.
    happened: BTreeMap<&'static str, u32>,
}

/// The highest tokens of a lock.
#[derive(Clone, Copy, Default)]
struct Highest {
    of_writers: u64,
    of_all: u64,
}

/// Somebody who relies on a guard.
struct Inside {
    number: u32,
    process: Process,
    lock: Lock,
    mode: Mode,
    hold: Id,
    watch: HoldWatch,
}

impl Judge {
    pub(super) fn breaks(&self, field: &Field, text: &str) {
        field.tells(|| format!("BROKEN: {text}"));
        self.of.lock().violations.push(format!("at {:?}: {text}", field.now()));
    }

    pub(super) fn happens(&self, what: &'static str) {
        *self.of.lock().happened.entry(what).or_default() += 1;
    }

    pub(super) fn verdict(&self) -> (Vec<String>, BTreeMap<&'static str, u32>) {
        let mut seen = self.of.lock();
        (std::mem::take(&mut seen.violations), std::mem::take(&mut seen.happened))
    }

    /// A guard is relied on from now on.
    fn enters(&self, field: &Field, process: Process, lock: Lock, guard: &AnyGuard) -> u32 {
        let (mode, token, hold, watch) = (guard.mode(), guard.token().as_u64(), guard.id(), guard.watch());
        let is_forced = field.is_forced(hold);
        let mut seen = self.of.lock();
        seen.next += 1;
        seen.since.entry(hold).or_insert_with(|| field.now());
        let number = seen.next;
        let conflicts = |other: &&Inside| {
            let is_beside = other.lock == lock && (mode, other.mode) != (Mode::Read, Mode::Read);
            is_beside && is_valid(other.watch.state()) && !is_forced && !field.is_forced(other.hold)
        };
        // What two of a process have in their guards is one state: the engine's own matter.
        let beside = seen.inside.iter().find(conflicts).map(|other| (other.number, other.process, other.mode));
        let highest = seen.highest.entry(lock).or_default();
        let before = if mode == Mode::Write { highest.of_all } else { highest.of_writers };
        highest.of_all = highest.of_all.max(token);
        if mode == Mode::Write {
            highest.of_writers = highest.of_writers.max(token);
        }
        seen.inside.push(Inside { number, process, lock, mode, hold, watch });
        drop(seen);
        field.tells(|| format!("process {process} has guard {number}, {mode}, token {token}: {guard:?}"));
        if let Some((other, of, with)) = beside {
            self.breaks(
                field,
                &format!("{mode} guard {number} of process {process} beside {with} guard {other} of {of}"),
            );
        }
        if token <= before && !is_forced {
            self.breaks(field, &format!("{mode} guard {number} has token {token} after {before}"));
        }
        number
    }

    /// For how long a hold has been relied on.
    fn age(&self, field: &Field, hold: Id) -> Duration {
        self.of.lock().since.get(&hold).map_or(Duration::ZERO, |since| field.now() - *since)
    }

    /// Whoever gives a write hold up for a read hold relies on nothing more from then on, and again on all if it stays.
    fn relies_as(&self, number: u32, mode: Mode) {
        let mut seen = self.of.lock();
        let inside = seen.inside.iter_mut().find(|inside| inside.number == number);
        inside.expect("it is inside").mode = mode;
    }

    fn leaves(&self, number: u32) {
        self.of.lock().inside.retain(|inside| inside.number != number);
    }
}

/// One task of a process.
pub(super) struct User {
    pub(super) field: Arc<Field>,
    pub(super) judge: Arc<Judge>,
    pub(super) process: Process,
    pub(super) manager: SimManager,
    pub(super) rng: fastrand::Rng,
    pub(super) owner: OwnerId,
}

impl User {
    pub(super) async fn work(mut self, things: u32) {
        for _ in 0..things {
            let think = self.rng.u64(0..300);
            tokio::time::sleep(Duration::from_millis(think)).await;
            let wish = self.wish();
            if let Some(guard) = self.take(wish).await {
                self.use_it(guard, wish).await;
            }
        }
    }

    /// One lock is much wanted.
    fn wish(&mut self) -> Wish {
        let rng = &mut self.rng;
        let lock = [b'a', b'a', b'a', b'b'][rng.usize(0..4)];
        let mode = if rng.bool() { Mode::Read } else { Mode::Write };
        let lease_ms = u64::try_from(self.field.profile.lease.as_millis()).expect("short");
        let (once, wait_ms) = (rng.u32(0..6) == 0, Some(rng.u64(0..3_000)).filter(|_| rng.u32(0..3) > 0));
        // Who has left something behind keeps others out for as long as their leases are.
        let wait_ms = wait_ms.or((lease_ms > 10_000).then_some(3_000));
        Wish {
            lock,
            mode,
            lease_ms,
            max_hold_ms: 3_600_000,
            wait_ms,
            once,
            reentrant: false,
            within: None,
            converts: None,
        }
    }

    async fn take(&mut self, wish: Wish) -> Option<AnyGuard> {
        let taking = taking(self.manager.clone(), self.owner, wish);
        let outcome = match (self.rng.u32(0..6) == 0).then(|| self.rng.u32(0..8)) {
            Some(waits) => CutAt::new(waits, taking).await,
            None => Some(taking.await),
        };
        match outcome {
            Some(Ok(Some(guard))) => {
                self.judge.happens("granted");
                return Some(guard);
            }
            Some(Ok(None)) => self.judge.happens("refused"),
            Some(Err(error)) => match End::of(&error) {
                End::TimedOut => self.judge.happens("waited in vain"),
                _ => self.fails("no quorum", &error.to_string()),
            },
            None => self.judge.happens("acquisition cut"),
        }
        None
    }

    /// A hold that only a bare majority has granted, since others had not yet been told of a release before it, is lost with one
    /// of those, until a renewal has brought it to the others: the loss is told within two leases, also by what began before it.
    /// One that all have to which nothing happens is not.
    fn loses(&self, guard: Id, what: &'static str, how: &str) {
        if self.is_of_few(guard) { self.judge.happens(what) } else { self.fails(what, how) }
    }

    fn is_of_few(&self, guard: Id) -> bool {
        let is_new = self.judge.age(&self.field, guard) < self.field.profile.lease * 2;
        is_new && !self.field.is_held_by_the_spared(guard)
    }

    /// Where a majority is well nobody is to notice anything.
    fn fails(&self, what: &'static str, how: &str) {
        self.field.tells(|| format!("process {}: {what}: {how}", self.process));
        self.judge.happens(what);
        if self.field.profile.spares_a_majority {
            self.judge
                .breaks(&self.field, &format!("process {}, while a majority is well: {what}: {how}", self.process));
        }
    }

    async fn use_it(&mut self, guard: AnyGuard, wish: Wish) {
        let mut number = self.judge.enters(&self.field, self.process, wish.lock, &guard);
        let mut held = Some(guard);
        if let Some(guard) = &held
            && self.hold(guard).await
            && self.rng.u32(0..3) == 0
        {
            let guard = held.take().expect("just seen");
            held = self.convert(&mut number, guard, wish).await;
            if let Some(guard) = &held {
                self.hold(guard).await;
            }
        }
        self.judge.leaves(number);
        self.field.tells(|| format!("guard {number} is let go"));
        if let Some(guard) = held {
            self.let_go(guard).await;
        }
    }

    /// Whether the guard is good to the end of it.
    async fn hold(&mut self, guard: &AnyGuard) -> bool {
        let lease = self.field.profile.lease;
        let long = self.rng.u32(0..3) == 0;
        let rest = Duration::from_millis(self.rng.u64(0..if long { 2_500 } else { 200 }));
        tokio::select! {
            biased;
            reason = guard.lost() => {
                self.loses(guard.id(), "lost", &format!("{reason:?}, lease {lease:?}"));
                false
            }
            () = tokio::time::sleep(rest) => true,
        }
    }

    async fn convert(&mut self, number: &mut u32, guard: AnyGuard, wish: Wish) -> Option<AnyGuard> {
        let (from, to_write) = (guard.mode(), guard.mode() == Mode::Read);
        self.judge.relies_as(*number, Mode::Read);
        self.field.tells(|| format!("guard {number} is converted"));
        let converting = guard.turn();
        let outcome = match (self.rng.u32(0..6) == 0).then(|| self.rng.u32(0..8)) {
            Some(waits) => CutAt::new(waits, converting).await,
            None => Some(converting.await),
        };
        match outcome {
            Some(Ok(guard)) => {
                self.judge.happens(if to_write { "upgraded" } else { "downgraded" });
                self.judge.leaves(*number);
                *number = self.judge.enters(&self.field, self.process, wish.lock, &guard);
                Some(guard)
            }
            Some(Err((guard, end))) => {
                self.judge.happens(match end {
                    End::Conflict => "upgrade refused",
                    End::Lost(_) => "lost by a conversion",
                    _ => "conversion failed",
                });
                self.judge.relies_as(*number, from);
                if !is_valid(guard.state()) {
                    self.judge.leaves(*number);
                }
                Some(guard)
            }
            None => {
                self.judge.leaves(*number);
                None
            }
        }
    }

    async fn let_go(&mut self, guard: AnyGuard) {
        let (id, state, is_of_few) = (guard.id(), guard.state(), self.is_of_few(guard.id()));
        match self.rng.u32(0..8) {
            0..2 => return drop(guard),
            2 => {
                let waits = self.rng.u32(0..4);
                drop(CutAt::new(waits, guard.release()).await);
                return;
            }
            _ => {}
        }
        match released(Some(guard.release().await)) {
            Released::Ours => self.judge.happens("released"),
            Released::Lost(LossReason::Closed) | Released::Cut => {}
            Released::Lost(reason) => self.loses(id, "lost at its release", &format!("{reason:?}, after {state:?}")),
            // Nor can a bare majority say that it was released, without one of those.
            Released::Unreachable if is_of_few => self.judge.happens("release not answered"),
            Released::Unreachable => self.fails("release not answered", ""),
        }
    }
}
