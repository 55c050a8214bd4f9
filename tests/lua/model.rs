//! Random operations against a model that knows only who holds what.

use std::collections::BTreeSet;

use fastrand::Rng;

use crate::lab::{Acquired, LEASE_MS, Left, Lock, Read, Renewed, Write, all_cases};

all_cases!(shared: random_operations_agree_with_the_model, many_readers_come_and_go);

/// Who is live, of how many that ever came.
struct Model {
    readers: BTreeSet<String>,
    writer: Option<String>,
    /// Dead ones whose records may still be there.
    dead: BTreeSet<String>,
    token: i64,
    next: u32,
}

impl Model {
    fn new() -> Self {
        Self { readers: BTreeSet::new(), writer: None, dead: BTreeSet::new(), token: 0, next: 0 }
    }

    fn fresh(&mut self) -> String {
        self.next += 1;
        format!("m.{}.label", self.next)
    }

    fn live(&self) -> Vec<&str> {
        let live = self.readers.iter().chain(&self.writer);
        let mut live: Vec<_> = live.map(String::as_str).collect();
        live.sort_unstable();
        live
    }

    fn anybody(&self, rng: &mut Rng) -> Option<String> {
        let all: Vec<_> = self.live().into_iter().map(str::to_owned).collect();
        let all: Vec<_> = all.into_iter().chain(self.dead.iter().cloned()).collect();
        rng.choice(all)
    }

    fn is_live(&self, id: &str) -> bool {
        self.readers.contains(id) || self.writer.as_deref() == Some(id)
    }

    fn read(&mut self, lock: &mut Lock, id: String) {
        if self.writer.is_some() {
            lock.contended(&id, Read);
            return;
        }
        let token = lock.granted(&id, Read);
        let joins = !self.readers.is_empty();
        assert_eq!(token == self.token, joins, "{id} beside {:?}", self.readers);
        assert!(token >= self.token);
        self.token = token;
        self.dead.remove(&id);
        self.readers.insert(id);
    }

    fn write(&mut self, lock: &mut Lock, id: String) {
        if !self.readers.is_empty() || self.writer.as_ref().is_some_and(|w| *w != id) {
            lock.contended(&id, Write);
            return;
        }
        let token = lock.granted(&id, Write);
        let repeats = self.writer.is_some();
        assert_eq!(token == self.token, repeats, "{id} beside {:?}", self.writer);
        assert!(token >= self.token);
        self.token = token;
        self.dead.remove(&id);
        self.writer = Some(id);
    }

    fn leave(&mut self, lock: &mut Lock, id: &str) {
        let held = lock.leave(id) == Left::Held;
        assert_eq!(held, self.is_live(id), "{id}");
        self.forget(id);
        self.dead.remove(id);
    }

    fn expire(&mut self, lock: &mut Lock, id: &str) {
        lock.expire(id);
        self.forget(id);
        self.dead.insert(id.to_owned());
    }

    fn renew(&self, lock: &mut Lock, id: &str) {
        let renewed = matches!(lock.renew(id, LEASE_MS), Renewed::Renewed { .. });
        assert_eq!(renewed, self.is_live(id), "{id}");
    }

    fn forget(&mut self, id: &str) {
        self.readers.remove(id);
        self.writer = self.writer.take().filter(|writer| writer != id);
    }

    fn step(&mut self, lock: &mut Lock, rng: &mut Rng) {
        let known = self.anybody(rng);
        match (rng.u32(..20), known) {
            (0..6, _) => {
                let id = self.fresh();
                self.read(lock, id);
            }
            (6..8, _) => {
                let id = self.fresh();
                self.write(lock, id);
            }
            (8..12, Some(id)) => self.leave(lock, &id),
            (12..15, Some(id)) if self.is_live(&id) => self.expire(lock, &id),
            (15..17, Some(id)) => self.renew(lock, &id),
            // A repeat of a live one or a second try of a dead one.
            (17..19, Some(id)) if self.writer.as_ref() == Some(&id) => self.write(lock, id),
            (17..19, Some(id)) if self.writer.is_none() => self.read(lock, id),
            (19, _) if rng.u32(..8) == 0 => {
                assert_eq!(lock.force(), self.live());
                *self = Self { token: self.token, next: self.next, ..Self::new() };
            }
            _ => {
                lock.leave("never-came");
            }
        }
        let view = lock.inspect();
        assert_eq!(view.ids(), self.live());
        assert_eq!(view.token, self.token);
    }
}

fn random_operations_agree_with_the_model(mut lock: Lock) {
    for seed in 0..8 {
        let mut rng = Rng::with_seed(seed);
        let mut model = Model::new();
        for _ in 0..150 {
            model.step(&mut lock, &mut rng);
        }
        lock = lock.lab.lock(lock.scheme);
    }
}

fn many_readers_come_and_go(mut lock: Lock) {
    let mut rng = Rng::with_seed(1);
    let mut model = Model::new();
    for _ in 0..60 {
        let id = model.fresh();
        model.read(&mut lock, id);
    }
    for _ in 0..200 {
        match (rng.u32(..5), model.anybody(&mut rng)) {
            (0 | 1, Some(id)) => model.leave(&mut lock, &id),
            (2, Some(id)) if model.is_live(&id) => model.expire(&mut lock, &id),
            _ => {
                let id = model.fresh();
                model.read(&mut lock, id);
            }
        }
    }
    assert_eq!(lock.inspect().ids(), model.live());
    lock.contended("w", Write);
    for id in model.readers.clone() {
        model.leave(&mut lock, &id);
    }
    let granted = lock.acquire("w", Write, LEASE_MS);
    assert!(matches!(granted, Acquired::Granted { .. }), "{granted:?}");
}
