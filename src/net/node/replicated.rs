//! Connections for grants that replicas must acknowledge. Each pipeline of scripts on them is followed by a `WAIT`.
//!
//! `WAIT` covers the writes of its own connection, and blocks this connection until it is answered. So these scripts
//! have a few connections of their own on each runtime. No other request stands behind a `WAIT`.
//!
//! While all these connections are busy, new calls wait. The next free connection sends them together, with one `WAIT`.
//! So a few connections serve any number of callers. A caller waits little longer than the pipelines that are under
//! way.
//!
//! A reply without a hold, such as a place in the queue, goes to the caller at once. Only the connection waits for the
//! replicas.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::future::join;
use parking_lot::Mutex;
use redis::{Cmd, ServerError, Value};
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;

use super::connection::{Load, Request};
use super::connections::{Connections, DialFault, OpenConnection, Sharing};
use super::in_flight::Precedence;
use super::{Admission, reply_if_admitted};
use crate::base::attempt::Answered;
use crate::base::durability::Durability;
use crate::base::error::Refusal;
use crate::base::lease::{self, Moment};
use crate::base::process;
use crate::net::fault::{Answer, Fault};
use crate::net::{Call, gives_hold};

/// Limit for replicated connections of one runtime to one node.
const MAX_REPLICATED_CONNECTIONS: usize = 8;
/// Number of calls from which on a pipeline takes no further batch. One batch alone may have more.
const MAX_CALLS: usize = 64;

/// Answer to one call.
type Said = Result<Answered<Value>, Fault>;

/// Replicated connections to one node. Each runtime has its own, and drives them itself.
pub(super) struct ReplicatedConnections {
    connections: Arc<Connections>,
    asked: u8,
    wait: Cmd,
    of: Mutex<Vec<(Id, Arc<ReplicatedPool>)>>,
}

impl ReplicatedConnections {
    /// Returns `None` if the primary's reply alone is enough.
    pub(super) fn new(connections: &Arc<Connections>, durability: Durability) -> Option<Self> {
        let (replicas, timeout_ms) = durability.acknowledgement()?;
        let mut wait = redis::cmd("WAIT");
        wait.arg(replicas.get()).arg(timeout_ms.to_string());
        Some(Self { connections: Arc::clone(connections), asked: replicas.get(), wait, of: Mutex::default() })
    }

    /// Sends calls in one pipeline. Returns one answer for each, in order. A hold is returned after `asked` replicas
    /// have acknowledged it.
    pub(super) async fn ask(&self, job: ReplicatedCalls) -> Result<Vec<Said>, Fault> {
        let pool = self.pool();
        let (answers, answer) = oneshot::channel();
        let connection = pool.put(ReplicatedJob { calls: job, answers });
        if let Some(connection) = connection {
            drop(process::spawn(connection.run()));
        }
        // The sender was dropped, so the runtime that drove the connection has ended.
        answer.await.unwrap_or_else(|_| Err(pool.unknown_fault(pool.connections.clock.now())))
    }

    /// Returns the connections of this runtime. If this runtime is new, removes the runtimes without a busy connection,
    /// since they may have ended.
    fn pool(&self) -> Arc<ReplicatedPool> {
        let runtime = Handle::current().id();
        let mut pools = self.of.lock();
        if let Some((_, pool)) = pools.iter().find(|(of, _)| *of == runtime) {
            return Arc::clone(pool);
        }
        pools.retain(|(_, pool)| pool.is_busy());
        let (connections, wait) = (Arc::clone(&self.connections), self.wait.clone());
        let pool = Arc::new(ReplicatedPool { connections, asked: self.asked, wait, state: Mutex::default() });
        pools.push((runtime, Arc::clone(&pool)));
        pool
    }
}

/// Batch: calls that are sent together.
pub(super) struct ReplicatedCalls {
    pub(super) calls: Vec<Call>,
    pub(super) load: Load,
    pub(super) admission: Admission,
    pub(super) precedence: Precedence,
}

/// Batch, and the sender for its answers.
struct ReplicatedJob {
    calls: ReplicatedCalls,
    answers: Answers,
}

/// Replicated connections of one runtime, and the batches that wait for one.
struct ReplicatedPool {
    connections: Arc<Connections>,
    asked: u8,
    wait: Cmd,
    state: Mutex<ReplicatedState>,
}

#[derive(Default)]
struct ReplicatedState {
    ahead: VecDeque<ReplicatedJob>,
    in_turn: VecDeque<ReplicatedJob>,
    idle: Vec<Arc<OpenConnection>>,
    /// Number of connections that carry a batch, or are being dialled.
    busy: usize,
}

impl ReplicatedState {
    /// Returns the batches of the next pipeline. Drops batches whose callers have stopped waiting.
    fn next(&mut self) -> Vec<ReplicatedJob> {
        let (mut jobs, mut count) = (Vec::new(), 0);
        while count < MAX_CALLS
            && let Some(job) = self.ahead.pop_front().or_else(|| self.in_turn.pop_front())
        {
            if !job.answers.is_closed() {
                count += job.calls.calls.len();
                jobs.push(job);
            }
        }
        jobs
    }

    fn take(&mut self) -> Vec<ReplicatedJob> {
        self.ahead.drain(..).chain(self.in_turn.drain(..)).collect()
    }
}

impl ReplicatedPool {
    fn is_busy(&self) -> bool {
        self.state.lock().busy > 0
    }

    /// Queues a batch. Returns a connection that the caller must run. Returns `None` if all are busy: the next free
    /// connection then takes the batch.
    fn put(self: &Arc<Self>, job: ReplicatedJob) -> Option<ReplicatedConnection> {
        let mut state = self.state.lock();
        match job.calls.precedence {
            Precedence::Ahead => state.ahead.push_back(job),
            Precedence::InTurn => state.in_turn.push_back(job),
        }
        if state.busy == MAX_REPLICATED_CONNECTIONS {
            return None;
        }
        state.busy += 1;
        state.idle.retain(|live| live.is_open());
        let live = state.idle.pop();
        Some(ReplicatedConnection { pool: Arc::clone(self), live })
    }

    /// Reports that a dial failed. The waiting callers get the fault only if no other connection can take their calls.
    fn fail(&self, fault: &DialFault) {
        let mut state = self.state.lock();
        let left = if state.busy == 1 { state.take() } else { Vec::new() };
        drop(state);
        left.into_iter().for_each(|job| tell(job.answers, Err(fault.clone().into())));
    }

    /// Returns the fault of calls that were sent and not answered.
    fn unknown_fault(&self, sent: Moment) -> Fault {
        let span = lease::max_delay(self.connections.limits.response_timeout, self.connections.limits.max_clock_skew);
        Fault::Unknown { arrives_until: sent.after(span), source: None }
    }

    /// Copies the fault for another call.
    fn copy(&self, fault: &Fault, sent: Moment) -> Fault {
        match fault {
            Fault::Unknown { arrives_until, source } => {
                Fault::Unknown { arrives_until: *arrives_until, source: source.clone() }
            }
            Fault::Broken { refusal, message } => Fault::Broken { refusal: *refusal, message: message.clone() },
            _ => self.unknown_fault(sent),
        }
    }

    /// Sends batches and waits for their answers. Returns true if the connection is still usable.
    async fn carry(&self, live: &Arc<OpenConnection>, jobs: Vec<ReplicatedJob>) -> bool {
        let (sent, not_after) = match self.connections.not_after(live).await {
            Ok(limits) => limits,
            Err(fault) => {
                let source = fault.into_source();
                jobs.into_iter().for_each(|job| tell(job.answers, Err(Fault::NotSent(source.clone()))));
                return false;
            }
        };
        // The clock sample may have taken long. A caller that stopped waiting meanwhile assumes that its calls are not
        // sent any more.
        let waited_for = jobs.into_iter().filter(|job| !job.answers.is_closed());
        let (batches, waiting): (Vec<ReplicatedCalls>, Vec<Answers>) =
            waited_for.map(|job| (job.calls, job.answers)).unzip();
        if batches.is_empty() {
            return true;
        }
        let asking = redis::cmd("ASKING");
        let mut requests = Vec::new();
        for batch in &batches {
            for (n, call) in batch.calls.iter().enumerate() {
                if batch.admission == Admission::Asking {
                    requests.push(Request::Command(&asking));
                }
                // The other calls of the batch are of the same script.
                let load = if n == 0 { batch.load } else { Load::Digest };
                requests.push(Request::Call { call, load, not_after });
            }
        }
        let (mut scripts, mut wait) = live.connection.ask_all_then(&requests, &self.wait);
        let answered = async {
            match self.connections.in_time(live, sent, Pin::new(&mut scripts)).await {
                Ok(values) => Ok(self.hand_out(live, &batches, waiting, sent, values)),
                Err(fault) => Err((fault, waiting)),
            }
        };
        let (answered, waited) = join(answered, self.connections.in_time(live, sent, Pin::new(&mut wait))).await;
        let waited = waited.and_then(|reply| {
            if is_demoted(&reply) {
                self.connections.leave(live);
            }
            read_acknowledged(reply, sent)
        });
        let is_well = answered.is_ok() && waited.is_ok();
        match answered {
            Ok(held_back) => {
                for (answers, mut said) in held_back {
                    said.iter_mut().for_each(|one| self.judge(one, &waited, sent));
                    tell(answers, Ok(said));
                }
            }
            Err((fault, waiting)) => {
                waiting.into_iter().for_each(|answers| tell(answers, Err(self.copy(&fault, sent))));
            }
        }
        is_well
    }

    /// Answers the callers whose batch got no hold. Returns the other batches, which wait for the replicas.
    fn hand_out(
        &self,
        live: &Arc<OpenConnection>,
        batches: &[ReplicatedCalls],
        waiting: Vec<Answers>,
        sent: Moment,
        values: Vec<Value>,
    ) -> Vec<(Answers, Vec<Said>)> {
        let (mut values, mut held_back) = (values.into_iter(), Vec::new());
        for (batch, answers) in batches.iter().zip(waiting) {
            let mut said = Vec::with_capacity(batch.calls.len());
            for call in &batch.calls {
                let mut next = || values.next().unwrap_or_default();
                let value = match batch.admission {
                    Admission::Owner => Ok(next()),
                    Admission::Asking => reply_if_admitted(next(), next()),
                };
                said.push(value.and_then(|value| self.connections.on_answer(live, call, sent, value)));
            }
            if said.iter().any(is_hold) { held_back.push((answers, said)) } else { tell(answers, Ok(said)) }
        }
        held_back
    }

    /// Replaces a hold with a fault if too few replicas acknowledged it.
    fn judge(&self, said: &mut Said, waited: &Result<u64, Fault>, sent: Moment) {
        if !is_hold(said) {
            return;
        }
        match waited {
            Ok(replicas) if *replicas >= self.asked.into() => {}
            Ok(replicas) => *said = Err(Fault::Unreplicated { asked: self.asked, acknowledged: *replicas }),
            Err(fault) => *said = Err(self.copy(fault, sent)),
        }
    }
}

type Answers = oneshot::Sender<Result<Vec<Said>, Fault>>;

/// Sends the answer to its caller, which may have stopped waiting.
fn tell(answers: Answers, said: Result<Vec<Said>, Fault>) {
    drop(answers.send(said));
}

fn is_hold(said: &Said) -> bool {
    said.as_ref().is_ok_and(|answer| gives_hold(&answer.value))
}

/// Returns true if the primary became a replica during the `WAIT`.
fn is_demoted(reply: &Value) -> bool {
    let says = |error: &ServerError| {
        error.code() == "UNBLOCKED" || error.details().is_some_and(|details| details.contains("replica instances"))
    };
    matches!(reply, Value::ServerError(error) if says(error))
}

/// Reads the answer to `WAIT`: the number of replicas that have all earlier writes of this connection.
fn read_acknowledged(reply: Value, sent: Moment) -> Result<u64, Fault> {
    let words = match reply {
        Value::Int(replicas) => return Ok(u64::try_from(replicas).unwrap_or(0)),
        Value::ServerError(error) => error,
        other => return Err(Fault::Broken { refusal: Refusal::Other, message: format!("{other:?} to WAIT") }),
    };
    let details = words.details().unwrap_or_default().to_owned();
    // The server became a replica during the `WAIT`. The scripts had run before, so no copy can arrive after `sent`.
    if words.code() == "UNBLOCKED" || details.contains("replica instances") {
        let source = Answer(format!("{} {details}", words.code()));
        return Err(Fault::Unknown { arrives_until: sent, source: Some(Arc::new(source)) });
    }
    Err(match Fault::of_server(&words) {
        // The scripts have run, so this is no refusal.
        Fault::Refused { refusal, message } | Fault::Broken { refusal, message } => Fault::Broken { refusal, message },
        _ => Fault::Unknown {
            arrives_until: sent,
            source: Some(Arc::new(Answer(format!("{} {details}", words.code())))),
        },
    })
}

/// Connection that carries batches, or is being dialled. It becomes idle when no batch waits.
struct ReplicatedConnection {
    pool: Arc<ReplicatedPool>,
    live: Option<Arc<OpenConnection>>,
}

impl ReplicatedConnection {
    async fn run(mut self) {
        let live = match self.live.take() {
            Some(live) => live,
            None => match self.pool.connections.dial(Sharing::Shared).await {
                Ok(live) => live,
                Err(fault) => return self.pool.fail(&fault),
            },
        };
        while let Some(jobs) = self.next(&live) {
            if !self.pool.carry(&live, jobs).await {
                return;
            }
        }
    }

    fn next(&self, live: &Arc<OpenConnection>) -> Option<Vec<ReplicatedJob>> {
        let mut state = self.pool.state.lock();
        let jobs = state.next();
        if jobs.is_empty() {
            state.idle.push(Arc::clone(live));
            return None;
        }
        Some(jobs)
    }
}

impl Drop for ReplicatedConnection {
    /// Runs also when the runtime ends. If this was the last connection, the waiting callers learn that nothing was
    /// sent.
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        state.busy -= 1;
        let left = if state.busy == 0 { state.take() } else { Vec::new() };
        drop(state);
        left.into_iter().for_each(|job| tell(job.answers, Err(Fault::NotSent(None))));
    }
}
