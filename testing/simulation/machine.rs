//! Machines. Each machine runs a process with its runtimes and their tasks. The process can pause, die or be closed.

use super::*;

/// Machine with its process and tasks.
pub struct Machine {
    world: Arc<World>,
    pub address: Address,
    pub manager: SimManager,
    /// Runtimes that have not ended. `next_runtime` is the number of all runtimes so far.
    runtimes: Vec<Arc<Runtime>>,
    next_runtime: u32,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Machine {
    pub fn start(world: &Arc<World>, process: Process, things: u32) -> Self {
        let address = Address::new(process);
        let manager = SimManager::start(world, &address);
        let mut machine = Self {
            world: Arc::clone(world),
            address,
            manager,
            runtimes: Vec::new(),
            next_runtime: 0,
            tasks: Vec::new(),
        };
        for _ in 0..world.profile.runtimes {
            machine.start_runtime();
        }
        let many = world.draw(|rng| rng.u32(1..=world.profile.cast.1));
        for task in 0..many.max(world.profile.runtimes) {
            machine.spawn(usize::try_from(task).expect("few"), things);
        }
        machine
    }

    fn start_runtime(&mut self) {
        let runtime = Runtime::new(self.next_runtime);
        self.next_runtime += 1;
        self.address.first.get_or_init(|| Arc::clone(&runtime));
        self.runtimes.push(runtime);
    }

    fn spawn(&mut self, task: usize, things: u32) {
        let runtime = &self.runtimes[task % self.runtimes.len()];
        let actor = Actor {
            world: Arc::clone(&self.world),
            address: self.address.clone(),
            manager: self.manager.clone(),
            rng: self.world.draw(fastrand::Rng::fork),
            owner: OwnerId::new(),
            runtime: Arc::clone(runtime),
        };
        let driven = runtime.drives(actor.work(things));
        self.tasks.push(tokio::spawn(Pausable::new(&self.address.gate, driven)));
    }

    pub fn pause(&self, for_ms: u64) {
        if !self.address.gate.is_open() {
            return;
        }
        let (world, address) = (Arc::clone(&self.world), self.address.clone());
        address.gate.close();
        world.record(What::Paused { process: address.process, for_ms });
        drop(tokio::spawn(async move {
            sleep_ms(for_ms).await;
            if !address.gate.is_dead() {
                world.record(What::Resumed { process: address.process });
                address.gate.open();
            }
        }));
    }

    /// Stops driving one runtime of the process, for a time or for good.
    pub fn stop_runtime(&self, pick: usize, for_ms: Option<u64>) {
        let (world, process) = (Arc::clone(&self.world), self.address.process);
        let runtime = Arc::clone(&self.runtimes[pick % self.runtimes.len()]);
        if !runtime.is_driven() || self.address.gate.is_dead() {
            return;
        }
        runtime.stops();
        world.record(What::RuntimeStopped { process, runtime: runtime.number, for_ms });
        let Some(for_ms) = for_ms else { return };
        let gate = Arc::clone(&self.address.gate);
        drop(tokio::spawn(async move {
            sleep_ms(for_ms).await;
            if !runtime.has_ended() && !gate.is_dead() {
                world.record(What::RuntimeGoesOn { process, runtime: runtime.number });
                runtime.goes_on();
            }
        }));
    }

    /// Ends one runtime of the process and starts another one.
    pub fn end_runtime(&mut self, pick: usize, leaks: bool, things: u32) {
        if self.address.gate.is_dead() {
            return;
        }
        let runtime = self.runtimes.remove(pick % self.runtimes.len());
        self.ends(&runtime, leaks);
        self.start_runtime();
        self.spawn(self.runtimes.len() - 1, things);
    }

    fn ends(&self, runtime: &Arc<Runtime>, leaks: bool) {
        let process = self.address.process;
        self.world.record(What::RuntimeEnded { process, runtime: runtime.number, leaks });
        runtime.ends(leaks);
    }

    /// Ends the runtimes that are no longer driven.
    pub fn end_stopped_runtimes(&self) {
        let stopped = self.runtimes.iter().filter(|runtime| !runtime.is_driven());
        for runtime in stopped.filter(|_| !self.address.gate.is_dead()) {
            self.ends(runtime, false);
        }
    }

    /// Ends the process at once. None of its tasks runs any more.
    pub fn crash(&mut self) {
        self.world.record(What::Crashed { process: self.address.process });
        self.address.gate.crash();
        for task in &self.tasks {
            task.abort();
        }
    }

    pub fn close(&mut self) {
        let (world, address, manager) = (Arc::clone(&self.world), self.address.clone(), self.manager.clone());
        let inner = async move {
            let process = address.process;
            world.record(What::Closing { process });
            let told = manager.close().await.is_ok();
            world.record(What::ClosedNow { process, told });
        };
        self.tasks.push(tokio::spawn(Pausable::new(&self.address.gate, inner)));
    }

    /// Returns when all tasks of the process have ended.
    pub async fn join(&mut self) {
        for task in self.tasks.drain(..) {
            match task.await {
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                Ok(()) | Err(_) => {}
            }
        }
    }
}
