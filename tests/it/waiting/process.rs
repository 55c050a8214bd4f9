//! Processes that record the grants of the server.

use std::fmt::Debug;
use std::sync::Arc;

use parking_lot::Mutex;
use redis_rwlock::Mode;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

use crate::fixture::{Fixture, Manager, Settings, now_us};

/// A manager with a runtime of its own, and a record of its waits and holds on the server.
pub struct Process {
    number: usize,
    runtime: Option<Runtime>,
    pub manager: Manager,
    told: Arc<Mutex<Vec<Told>>>,
}

/// Event of a process.
#[derive(Clone, Debug, Default)]
pub struct Told {
    pub process: usize,
    pub at_us: u64,
    pub what: String,
    pub lock: String,
    /// Empty if the event has no mode.
    mode: String,
    /// The time of the grant, by the server's clock, of the first of a hold's tokens.
    pub token: u64,
}

impl Told {
    pub fn is_grant(&self) -> bool {
        matches!(self.what.as_str(), "granted" | "granted by notification")
    }

    pub fn is(&self, mode: Mode) -> bool {
        self.mode == mode.to_string()
    }
}

impl Process {
    pub async fn start(f: &Fixture, number: usize, settings: Settings) -> Self {
        let told = Arc::<Mutex<Vec<Told>>>::default();
        crate::record::asks_all_subscribers();
        let dispatch = Dispatch::new(Listener { process: number, told: Arc::clone(&told) });
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).enable_all();
        // Forgotten, so that the subscriber stays for as long as the thread lives.
        builder.on_thread_start(move || std::mem::forget(tracing::dispatcher::set_default(&dispatch)));
        let runtime = builder.build().expect("a runtime starts");
        // The background runs there too, so that its events are recorded.
        let settings = Settings { background: Some(runtime.handle().clone()), ..settings };
        let manager = runtime.spawn(f.connecting(settings)).await.expect("no panic").expect("the manager connects");
        Self { number, runtime: Some(runtime), manager, told }
    }

    pub async fn several(f: &Fixture, count: usize, settings: &Settings) -> Vec<Self> {
        let mut all = Vec::new();
        for number in 0..count {
            let label = format!("process-{number}");
            all.push(Self::start(f, number, Settings { label, ..settings.clone() }).await);
        }
        all
    }

    pub fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime.as_ref().expect("it lives").spawn(task)
    }

    /// All events of the process so far.
    pub fn told(&self) -> Vec<Told> {
        self.told.lock().clone()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

struct Listener {
    process: usize,
    told: Arc<Mutex<Vec<Told>>>,
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // A subscriber of long waits would make the manager ask the server for the holders, which counts as a script.
        metadata.target().starts_with("redis_rwlock") && *metadata.level() != Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut told = Told { process: self.process, at_us: now_us(), ..Told::default() };
        event.record(&mut told);
        self.told.lock().push(told);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Visit for Told {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "token" {
            self.token = value;
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "lock" {
            value.clone_into(&mut self.lock);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.what = format!("{value:?}"),
            "mode" => self.mode = format!("{value:?}"),
            _ => {}
        }
    }
}

/// A wait of one process in the server's queue: it was there from `since_us` on at the latest.
#[derive(Debug)]
pub struct Wait {
    pub process: usize,
    pub since_us: u64,
    pub token: u64,
}

/// Waits of one side of a lock that ended with a grant, by the events of the processes.
pub fn waits(processes: &[Process], lock: &str, mode: Mode) -> Vec<Wait> {
    let mut waits = Vec::new();
    for process in processes {
        let mut since_us = None;
        for told in process.told().iter().filter(|told| told.lock == lock && told.is(mode)) {
            if told.what == "queued" {
                since_us.get_or_insert(told.at_us);
            } else if told.is_grant()
                && let Some(since_us) = since_us.take()
            {
                waits.push(Wait { process: process.number, since_us, token: told.token });
            }
        }
    }
    waits
}

/// The process and the first token of each hold of one side of a lock, in the order in which they were granted.
pub fn holds(processes: &[Process], lock: &str, mode: Mode) -> Vec<(u64, usize)> {
    let told = processes.iter().flat_map(Process::told);
    let ours = told.filter(|told| told.is_grant() && told.lock == lock && told.is(mode));
    let mut holds: Vec<_> = ours.map(|told| (told.token, told.process)).collect();
    holds.sort_unstable();
    holds
}

/// Processes other than the waiter's that got the lock to write during a wait.
pub fn writers_during(holds: &[(u64, usize)], wait: &Wait) -> Vec<usize> {
    let from = holds.partition_point(|(token, _)| *token <= wait.since_us);
    let during = holds[from..].iter().take_while(|(token, _)| *token < wait.token);
    during.map(|(_, process)| *process).filter(|process| *process != wait.process).collect()
}
