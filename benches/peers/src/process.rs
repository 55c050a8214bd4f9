//! Workers: processes that carry a load, all at the same time.

use std::io::{BufRead, Write};
use std::process::{ChildStdin, Command};
use std::sync::mpsc::{self, Receiver};

use serde::de::DeserializeOwned;

use super::*;
use crate::load::Ready;
use crate::measure::Meter;
use crate::setup::child::Killed;

/// Time after which a worker without an answer counts as failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Worker {
    _process: Killed,
    orders: ChildStdin,
    lines: Receiver<String>,
    /// First line of the worker: its versions, or its address.
    pub(crate) ready: String,
}

impl Worker {
    /// Starts a worker, and waits until it is connected and warm.
    pub(crate) fn start(kind: Kind, servers: &Servers, load: &Load) -> Result<Self, String> {
        let mut command = kind.facts().program.command();
        command.arg("--lock").arg(kind.key()).arg("--urls").arg(servers.urls().join(",")).args(load.arguments());
        Self::spawn(&mut command)
    }

    /// Starts a process, and waits until it is ready.
    pub(crate) fn spawn(command: &mut Command) -> Result<Self, String> {
        let started = Killed::start(command).map_err(|error| format!("it does not start: {error}"));
        let (_process, orders, answers) = started?;
        let (sender, lines) = mpsc::channel();
        // The thread ends with the process, because the end of the process closes the pipe.
        std::thread::spawn(move || answers.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut worker = Self { _process, orders, lines, ready: String::new() };
        worker.ready = worker.line::<Ready>(PATIENCE)?.ready;
        Ok(worker)
    }

    pub(crate) fn line<T: DeserializeOwned>(&self, patience: Duration) -> Result<T, String> {
        let line = self.lines.recv_timeout(patience).map_err(|error| match error {
            mpsc::RecvTimeoutError::Timeout => "it does not answer".to_owned(),
            mpsc::RecvTimeoutError::Disconnected => "it ended before its answer".to_owned(),
        })?;
        serde_json::from_str(&line).map_err(|error| format!("its answer is not understood: {error}"))
    }

    pub(crate) fn begin(&self) -> Result<(), String> {
        writeln!(&self.orders, "go").map_err(|error| format!("it does not listen: {error}"))
    }

    pub(crate) fn outcome(&self, load: &Load) -> Result<Outcome, String> {
        self.line(load.span() + PATIENCE)
    }
}

/// Runs a load in several processes at the same time, each with its part of the tasks.
pub(crate) fn carry(kind: Kind, servers: &Servers, load: &Load, processes: usize) -> Result<Turn, String> {
    let mut part = load.clone();
    part.tasks = load.tasks / processes;
    let mut workers = Vec::new();
    for _ in 0..processes {
        workers.push(Worker::start(kind, servers, &part)?);
    }
    let versions = workers[0].ready.clone();
    let meter = Meter::start(servers);
    let began = Instant::now();
    for worker in &workers {
        worker.begin()?;
    }
    let mut outcomes = Vec::new();
    for worker in &workers {
        outcomes.push(worker.outcome(&part)?);
    }
    // The time until the slowest process was done. The time that the answers took on their way does not count.
    let longest = outcomes.iter().map(|outcome| outcome.elapsed_ns).max().unwrap_or(0);
    let elapsed = Duration::from_nanos(longest).min(began.elapsed());
    let used = meter.stop();
    let served = outcomes.iter().flat_map(|outcome| per_client(outcome, &part, processes)).collect();
    let client = outcomes.iter().map(|outcome| Duration::from_nanos(outcome.cpu_ns)).sum();
    let latencies = outcomes.into_iter().flat_map(|outcome| outcome.latencies_ns).collect();
    Ok(Turn::new(latencies, elapsed, client, used, served, versions))
}

/// Returns the number of acquisitions of each client, or of each task if there is only one client.
fn per_client(outcome: &Outcome, load: &Load, processes: usize) -> Vec<u64> {
    if load.clients * processes == 1 {
        return outcome.served.clone();
    }
    let of = |client: usize| outcome.served.iter().skip(client).step_by(load.clients).sum();
    (0..load.clients).map(of).collect()
}
