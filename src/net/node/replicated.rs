//! Connections for grants that replicas must acknowledge. The requests on these connections are pipelines of script
//! calls, each with a `WAIT` at the end.
//!
//! `WAIT` waits for the replicas to acknowledge all earlier writes of its connection. Until the `WAIT` is answered, the
//! server executes no other request of the connection. So these calls have a few connections of their own on each
//! runtime, and no other request waits behind a `WAIT`.
//!
//! While all these connections are busy, new calls wait. The next free connection sends the waiting calls together,
//! with one `WAIT`. So a few connections are enough for any number of callers. A call waits little longer than the
//! pipelines that were sent before it. Calls that one task sends in one step, for several locks, are sent together.
//!
//! If a reply grants no hold, its caller gets the reply at once, and only the connection waits for the replicas. An
//! example is a reply with a place in the queue.

#[cfg(all(test, feature = "_testing"))]
#[path = "../../../testing/unit/net/node/replicated.rs"]
mod tests;

use std::collections::VecDeque;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::future::join;
use parking_lot::Mutex;
use redis::{ServerError, Value};
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;

use super::connection::{Load, Request, with_wordings};
use super::connections::{Connections, DialFault, OpenConnection, Sharing, not_sent};
use super::in_flight::Precedence;
use super::replicas::{ReplicaNames, RequiredReplicas};
use super::{Admission, CallAnswer, reply_if_admitted};
use crate::base::cork::after_step;
use crate::base::error::Refusal;
use crate::base::lease::{Moment, ServerTime};
use crate::base::process;
use crate::net::CLOCK;
use crate::net::fault::Fault;
use crate::net::script::Dialect;
use crate::net::{Call, gives_hold};

/// Limit for the replicated connections of one runtime to one node.
const MAX_REPLICATED_CONNECTIONS: usize = 8;
/// Number of calls at which a pipeline is full and takes no further batch. A single batch may have more calls.
const MAX_CALLS: usize = 64;

/// Replicated connections to one node. Each runtime has connections of its own, and reads and writes them itself.
pub(super) struct ReplicatedConnections {
    connections: Arc<Connections>,
    required: Arc<RequiredReplicas>,
    timeout_ms: u128,
    of: Mutex<Vec<(Id, Arc<ReplicatedPool>)>>,
}

impl ReplicatedConnections {
    /// Returns `None` if the durability asks for no acknowledgement by replicas.
    pub(super) fn new(connections: &Arc<Connections>, names: ReplicaNames) -> Option<Self> {
        let (replicas, timeout_ms) = connections.limits.durability.acknowledgement()?;
        let required = Arc::new(RequiredReplicas::new(replicas, names));
        Some(Self { connections: Arc::clone(connections), required, timeout_ms, of: Mutex::default() })
    }

    /// Fails if fewer replicas are attached than must acknowledge a grant. Asks on the shared connection `live`.
    pub(super) async fn check(&self, live: &OpenConnection) -> Result<(), Fault> {
        let look = self.required.look(&self.connections, live).await?;
        if look.attached >= look.required {
            return Ok(());
        }
        Err(Fault::Unreplicated { asked: look.required, acknowledged: look.attached })
    }

    /// Sends calls in one pipeline. Returns one answer for each call, in order. If an answer grants a hold, it is
    /// returned after the required replicas have acknowledged the hold.
    pub(super) async fn ask(&self, job: ReplicatedCalls) -> Result<Vec<CallAnswer>, Fault> {
        let pool = self.pool();
        let (answers, answer) = oneshot::channel();
        if pool.state.lock().put(ReplicatedJob { calls: job, answers }) {
            let pool = Arc::clone(&pool);
            after_step(move || pool.start());
        }
        // If the sender was dropped, the runtime of the connection has ended, and the calls may have been sent.
        answer.await.unwrap_or_else(|_| Err(pool.unknown_fault(CLOCK.now())))
    }

    /// Returns the pool of this runtime. If this runtime has no pool yet, first removes the pools without a busy
    /// connection, because their runtimes may have ended.
    fn pool(&self) -> Arc<ReplicatedPool> {
        let runtime = Handle::current().id();
        let mut pools = self.of.lock();
        if let Some((_, pool)) = pools.iter().find(|(of, _)| *of == runtime) {
            return Arc::clone(pool);
        }
        pools.retain(|(_, pool)| pool.state.lock().busy > 0);
        let pool = Arc::new(ReplicatedPool {
            connections: Arc::clone(&self.connections),
            required: Arc::clone(&self.required),
            timeout_ms: self.timeout_ms,
            state: Mutex::default(),
        });
        pools.push((runtime, Arc::clone(&pool)));
        pool
    }
}

/// Limit for the looks before one pipeline.
const MAX_LOOKS: usize = 2;

/// Batch: calls of one caller and of one script, which are sent together.
pub(super) struct ReplicatedCalls {
    pub(super) calls: Vec<Call>,
    pub(super) load: Load,
    pub(super) admission: Admission,
    pub(super) precedence: Precedence,
}

/// Batch, with the sender that returns the answers to its caller.
struct ReplicatedJob {
    calls: ReplicatedCalls,
    answers: Answers,
}

/// Replicated connections of one runtime, and the batches that wait for a free connection.
struct ReplicatedPool {
    connections: Arc<Connections>,
    required: Arc<RequiredReplicas>,
    timeout_ms: u128,
    state: Mutex<ReplicatedState>,
}

#[derive(Default)]
struct ReplicatedState {
    ahead: VecDeque<ReplicatedJob>,
    in_turn: VecDeque<ReplicatedJob>,
    idle: Vec<Arc<OpenConnection>>,
    /// Number of connections that carry a batch or are being dialled.
    busy: usize,
    /// Batches of the present step. [`start`](ReplicatedPool::start) queues them after the step, so that no connection that
    /// becomes free during the step takes only some of them.
    step: Vec<ReplicatedJob>,
}

impl ReplicatedState {
    /// Adds a batch to the present step. Returns true if it is the first one: its caller must call
    /// [`start`](ReplicatedPool::start) after the step, which is enough for the later batches too.
    fn put(&mut self, job: ReplicatedJob) -> bool {
        self.step.push(job);
        self.step.len() == 1
    }

    /// Queues the batches of a step that is over.
    fn queue_step(&mut self) {
        for job in mem::take(&mut self.step) {
            match job.calls.precedence {
                Precedence::Ahead => self.ahead.push_back(job),
                Precedence::InTurn => self.in_turn.push_back(job),
            }
        }
    }

    /// Takes the batches of the next pipeline from the queues. Drops the batches whose callers have stopped waiting.
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

    /// Takes the waiting batches, unless more than `busy` connections are busy, or batches of the present step will start
    /// another one.
    fn take_unless_busy(&mut self, busy: usize) -> Vec<ReplicatedJob> {
        if self.busy > busy || !self.step.is_empty() {
            return Vec::new();
        }
        self.ahead.drain(..).chain(self.in_turn.drain(..)).collect()
    }
}

impl ReplicatedPool {
    /// Lets a connection send the waiting batches. If all connections are busy, the next free one sends them.
    fn start(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.queue_step();
        if state.busy == MAX_REPLICATED_CONNECTIONS || state.ahead.is_empty() && state.in_turn.is_empty() {
            return;
        }
        state.busy += 1;
        state.idle.retain(|live| live.is_open());
        let live = state.idle.pop();
        drop(state);
        drop(process::spawn(ReplicatedConnection { pool: Arc::clone(self), live }.run()));
    }

    /// Handles a failed dial. Passes the fault to the waiting callers, unless another busy connection will take their
    /// batches.
    fn fail(&self, fault: &DialFault) {
        let left = self.state.lock().take_unless_busy(1);
        left.into_iter().for_each(|job| tell(job.answers, Err(fault.clone().into())));
    }

    /// Returns the fault of calls that were sent at `sent` and got no answer.
    fn unknown_fault(&self, sent: Moment) -> Fault {
        Fault::Unknown { arrives_until: self.connections.limits.arrives_until(sent), source: None }
    }

    /// Copies the fault of one call for another call of the same pipeline.
    fn copy(&self, fault: &Fault, sent: Moment) -> Fault {
        match fault {
            Fault::Unknown { .. } | Fault::Broken { .. } => fault.clone(),
            _ => self.unknown_fault(sent),
        }
    }

    /// Returns the present moment, the server time after which the server must refuse calls that are sent now, and the
    /// number of replicas that must acknowledge them. Asks the server if one of these is not known well enough. Fails
    /// before anything is sent that changes the server.
    async fn prepare(&self, live: &OpenConnection) -> Result<(Moment, ServerTime, u64), Fault> {
        // A look takes round trips, so the time limit of the calls begins anew after it. A slow look may be too old then,
        // and the next one is quicker.
        for _ in 0..=MAX_LOOKS {
            let (sent, not_after) = self.connections.not_after(live).await?;
            if let Some(required) = self.required.number_at(sent) {
                return Ok((sent, not_after, required));
            }
            Box::pin(self.required.look_or_wait(&self.connections, live)).await?;
        }
        Err(Fault::unsent("the answers about replicas take longer than a second"))
    }

    /// Sends batches in one pipeline and waits for their answers. Returns true if the connection can carry another
    /// pipeline.
    async fn carry(&self, live: &OpenConnection, jobs: Vec<ReplicatedJob>) -> bool {
        let (sent, not_after, required) = match self.prepare(live).await {
            Ok(limits) => limits,
            Err(fault) => {
                let fault = not_sent(fault);
                jobs.into_iter().for_each(|job| tell(job.answers, Err(fault.clone().into())));
                // The login of the connection may have ended.
                let has_login = !matches!(fault, DialFault::Refused(Refusal::Unauthenticated, _));
                return matches!(fault, DialFault::Refused(..)) && has_login && live.is_open();
            }
        };
        // The questions of `prepare` may have taken long. A caller that has stopped waiting since then assumes
        // that its calls are not sent any more, so its batch is dropped.
        let waited_for = jobs.into_iter().filter(|job| !job.answers.is_closed());
        let (batches, waiting): (Vec<ReplicatedCalls>, Vec<Answers>) =
            waited_for.map(|job| (job.calls, job.answers)).unzip();
        if batches.is_empty() {
            return true;
        }
        let (asking, dialect) = (redis::cmd("ASKING"), self.connections.dialect());
        let mut requests = Vec::new();
        for batch in &batches {
            for (call, wording) in with_wordings(&batch.calls, batch.load, dialect) {
                if batch.admission == Admission::Asking {
                    requests.push(Request::Command(&asking));
                }
                requests.push(Request::Call { call, wording, not_after });
            }
        }
        let wait = redis::cmd("WAIT").arg(required).arg(self.timeout_ms.to_string()).take();
        let (mut scripts, mut wait) = live.connection.ask_all_then(&requests, &wait);
        let answered = async {
            match self.connections.in_time(live, sent, Pin::new(&mut scripts)).await {
                Ok(values) => Ok(self.hand_out(live, &batches, waiting, (sent, dialect), values)),
                Err(fault) => Err((fault, waiting)),
            }
        };
        let (answered, waited) = join(answered, self.connections.in_time(live, sent, Pin::new(&mut wait))).await;
        let waited = waited.and_then(|reply| {
            if matches!(&reply, Value::ServerError(error) if is_of_replica(error)) {
                self.connections.leave(live);
            }
            read_acknowledged(reply, sent)
        });
        let is_well = answered.is_ok() && waited.is_ok();
        match answered {
            Ok(held_back) => {
                for (answers, mut said) in held_back {
                    said.iter_mut().for_each(|one| self.judge(one, required, &waited, sent));
                    tell(answers, Ok(said));
                }
            }
            Err((fault, waiting)) => {
                waiting.into_iter().for_each(|answers| tell(answers, Err(self.copy(&fault, sent))));
            }
        }
        is_well
    }

    /// Sends the answers of each batch without a hold to its caller. Returns the answers of the other batches, which
    /// wait for the acknowledgement of the replicas.
    fn hand_out(
        &self,
        live: &OpenConnection,
        batches: &[ReplicatedCalls],
        waiting: Vec<Answers>,
        (sent, dialect): (Moment, Dialect),
        values: Vec<Value>,
    ) -> Vec<(Answers, Vec<CallAnswer>)> {
        let (mut values, mut held_back) = (values.into_iter(), Vec::new());
        for (batch, answers) in batches.iter().zip(waiting) {
            let mut said = Vec::with_capacity(batch.calls.len());
            for (call, wording) in with_wordings(&batch.calls, batch.load, dialect) {
                let mut next = || values.next().unwrap_or_default();
                let value = match batch.admission {
                    Admission::Owner => Ok(next()),
                    Admission::Asking => reply_if_admitted(next(), next()),
                };
                said.push(value.and_then(|value| self.connections.on_answer(live, call, wording, sent, value)));
            }
            if said.iter().any(is_hold) { held_back.push((answers, said)) } else { tell(answers, Ok(said)) }
        }
        held_back
    }

    /// Replaces the answer to a call by a fault, if it grants a hold that too few replicas have acknowledged.
    fn judge(&self, said: &mut CallAnswer, required: u64, waited: &Result<u64, Fault>, sent: Moment) {
        if !is_hold(said) {
            return;
        }
        match waited {
            Ok(replicas) if *replicas >= required => {}
            Ok(replicas) => *said = Err(Fault::Unreplicated { asked: required, acknowledged: *replicas }),
            Err(fault) => *said = Err(self.copy(fault, sent)),
        }
    }
}

type Answers = oneshot::Sender<Result<Vec<CallAnswer>, Fault>>;

/// Sends the answers to their caller. The caller may have stopped waiting.
fn tell(answers: Answers, said: Result<Vec<CallAnswer>, Fault>) {
    drop(answers.send(said));
}

fn is_hold(said: &CallAnswer) -> bool {
    said.as_ref().is_ok_and(|answer| gives_hold(&answer.value))
}

/// Returns true if the error that answers a `WAIT` says that the primary has become a replica.
fn is_of_replica(error: &ServerError) -> bool {
    error.code() == "UNBLOCKED" || error.details().is_some_and(|details| details.contains("replica instances"))
}

/// Reads the reply to `WAIT`: the number of replicas that have all earlier writes of this connection.
fn read_acknowledged(reply: Value, sent: Moment) -> Result<u64, Fault> {
    let words = match reply {
        Value::Int(replicas) => return Ok(u64::try_from(replicas).unwrap_or(0)),
        Value::ServerError(error) => error,
        other => return Err(Fault::Broken { refusal: Refusal::Other, message: format!("{other:?} to WAIT") }),
    };
    let text = format!("{} {}", words.code(), words.details().unwrap_or_default());
    let unknown = Fault::unknown(sent, text);
    // The server became a replica during the `WAIT`. It had executed the scripts before that, so they cannot run again
    // later. The time until which a copy may arrive is therefore already over.
    if is_of_replica(&words) {
        return Err(unknown);
    }
    Err(match Fault::of_server(&words) {
        // Not a refusal of the calls, because the scripts have run.
        Fault::Refused { refusal, message } | Fault::Broken { refusal, message } => Fault::Broken { refusal, message },
        _ => unknown,
    })
}

/// Busy connection: it carries batches, or is being dialled. It becomes idle when no batch waits.
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
    /// Counts the connection as no longer busy. Also runs when the runtime ends. If no other connection is busy, the
    /// waiting callers get a fault, which says that their calls were not sent.
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        state.busy -= 1;
        let left = state.take_unless_busy(0);
        drop(state);
        left.into_iter().for_each(|job| tell(job.answers, Err(Fault::NotSent(None))));
    }
}
