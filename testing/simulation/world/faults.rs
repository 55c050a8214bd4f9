//! Faults of a server: it falls silent, dies, stands still, is slow, loses its data, or its clock steps.

use super::*;

impl World {
    pub fn servers(&self) -> usize {
        self.state.lock().servers.len()
    }

    /// Changes a server, and wakes the requests that wait for it.
    fn change(&self, place: Place, change: impl FnOnce(&mut Server)) {
        change(&mut self.state.lock().servers[place]);
        self.thawed.notify_waiters();
    }

    pub fn goes_down(&self, place: Place, down: Down) {
        let now = self.now();
        let mut state = self.state.lock();
        let server = &mut state.servers[place];
        server.down = Some(down);
        server.number += 1;
        if down == Down::Dead {
            server.node += 1;
            server.died = Some(now);
            server.frozen = false;
        }
        if down == Down::Refusing {
            // A process does not notice that a server is silent.
            state.confirmed.clear();
        }
        drop(state);
        self.record(What::Down { place, refuses: matches!(down, Down::Refusing | Down::Dead) });
        if down == Down::Dead {
            self.thawed.notify_waiters();
        }
    }

    /// Brings the server back, and subscribes all channels again.
    pub fn comes_up(self: &Arc<Self>, place: Place) {
        let now = self.now();
        let mut state = self.state.lock();
        let server = &mut state.servers[place];
        if server.down.take() == Some(Down::Dead) {
            server.up_since = now.cast_signed();
        }
        state.confirmed.clear();
        let channels: BTreeSet<_> = state.subscribers.values().map(|to| (to.process, to.lock)).collect();
        drop(state);
        self.record(What::Up { place });
        for (process, lock) in channels {
            self.confirm(process, lock);
        }
    }

    pub fn is_down(&self, place: Place) -> bool {
        self.state.lock().servers[place].down.is_some()
    }

    pub fn empties(&self, place: Place) {
        let mut state = self.state.lock();
        state.wrong.forget();
        let server = &mut state.servers[place];
        server.store.replace(Image::new());
        server.lineage += 1;
        drop(state);
        self.record(What::Emptied { place });
    }

    pub fn freezes(&self, place: Place) {
        self.state.lock().servers[place].frozen = true;
        self.record(What::Frozen { place });
    }

    pub fn thaws(&self, place: Place) {
        self.change(place, |server| server.frozen = false);
        self.record(What::Thawed { place });
    }

    pub fn slows(&self, place: Place, is_slow: bool) {
        self.change(place, |server| server.is_slow = is_slow);
        self.record(What::SlowServer { place, is_slow });
    }

    pub fn answers_after(&self, place: Place, time: Duration) {
        self.change(place, |server| server.answers_after = time);
    }

    /// Sets the clock of a server to this time before or after the true time.
    pub fn is_ahead(&self, place: Place, ms: i64) {
        self.change(place, |server| server.skew_ms = ms);
    }

    /// Cuts a process off from these servers, and from no others.
    pub fn cuts(&self, process: Process, places: &[Place]) {
        let mut state = self.state.lock();
        state.cut.retain(|(cut, _)| *cut != process);
        state.cut.extend(places.iter().map(|place| (process, *place)));
        drop(state);
        self.record(What::Cut { process, places: places.to_vec() });
    }

    pub fn steps_clock(&self, band_ms: i64) {
        let mut state = self.state.lock();
        let skew_ms = state.rng.i64(-band_ms / 2..=band_ms / 2);
        state.servers[ONLY].skew_ms = skew_ms;
        drop(state);
        self.record(What::Stepped { skew_ms });
    }

    /// Ends all faults.
    pub fn heals(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.healed = true;
        state.cut.clear();
        let mut down = Vec::new();
        for (place, server) in state.servers.iter_mut().enumerate() {
            (server.frozen, server.is_slow) = (false, false);
            down.extend(server.down.is_some().then_some(place));
        }
        drop(state);
        self.thawed.notify_waiters();
        down.into_iter().for_each(|place| self.comes_up(place));
        self.record(What::Healed);
    }
}
