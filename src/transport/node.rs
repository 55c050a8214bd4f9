//! One server: the connections that everybody shares, and a pool for what needs a connection to itself.
//!
//! The hot path keeps the shared [connection](lines) of its runtime, because a pool's `get` costs a round trip. Only so many
//! requests are under way on it: whoever finds no [room] waits, which costs nothing but the caller's patience, and the response
//! timeout begins when a request is sent. A connection is given up when a request had no answer and nobody else either since
//! that was sent: what still comes on it is never believed.

use std::fmt;
use std::iter;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ConnectionInfo, RedisError, Value};
use tokio::sync::oneshot;

use crate::attempt::{Answered, Hearing, NodeId, Route};
use crate::clock::Clock;
use crate::durability::Durability;
use crate::error::Result;
use crate::home::Home;
use crate::lease::{self, Anchor, Moment, ServerTime};
use crate::options::Options;
use crate::topology::AddressSource;
#[cfg(test)]
use crate::topology::Tls;
use crate::transport::conditions::Conditions;
#[cfg(test)]
use crate::transport::conditions::Place;
use crate::transport::fault::{self, Answer, Fault};
use crate::transport::outages::Outages;
use crate::transport::pushed::Hear;
use crate::transport::secrets::Secrets;
use crate::transport::{Call, Expiry, is_reply_to, server_time};
use apart::Apart;
use connection::Load;
pub(super) use connection::{Connection, Request};
use greeting::unreadable;
pub(super) use greeting::{hello_field, parse_time};
use lanes::{Calls, Lanes};
pub(super) use lines::{DialFault, not_sent, shown};
use lines::{Lines, Live};
pub(super) use room::Precedence;
pub(super) use steps::ask_once;

mod apart;
mod checkup;
mod connection;
mod dial;
mod ears;
mod greeting;
#[cfg(test)]
mod hostile;
mod lanes;
mod lines;
#[cfg(test)]
mod mutations;
#[cfg(test)]
mod names;
mod prober;
mod room;
mod silence;
mod steps;
#[cfg(test)]
mod tests;
#[cfg(all(test, feature = "tls"))]
mod tls;
mod wire;

/// An older anchor is not used: at 1 % its error would pass the clock margin.
const MAX_ANCHOR_AGE: Duration = Duration::from_secs(5);

/// What all nodes of a manager have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) response_timeout: Duration,
    pub(super) clock_margin: Duration,
    pub(super) role: Role,
    pub(super) durability: Durability,
}

impl Limits {
    pub(super) fn new(options: &Options, role: Role) -> Self {
        Self {
            response_timeout: options.response_timeout,
            clock_margin: options.clock_margin,
            role,
            durability: options.durability,
        }
    }
}

/// What a node is expected to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Standalone,
    /// One of several that know nothing of each other. It is asked how long it has been running.
    Voter,
    ClusterMember,
}

/// How a call travels to a node that is about to own its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Admission {
    Owner,
    Asking,
}

/// Called when a server has closed a shared connection.
pub(super) type OnLoss = Arc<dyn Fn() + Send + Sync>;

/// Belongings of a node that it shares with others: who hears of what happens to it, and its secrets.
#[derive(Clone)]
pub(super) struct Reports {
    pub(super) on_loss: Option<OnLoss>,
    pub(super) outages: Arc<Outages>,
    pub(super) conditions: Arc<Conditions>,
    /// Source of the node's address.
    pub(super) source: AddressSource,
    pub(super) secrets: Arc<Secrets>,
}

#[cfg(test)]
impl Reports {
    pub(super) fn for_test() -> Self {
        let conditions = Conditions::new(Place::default(), Clock::System, Duration::from_millis(100));
        Self {
            on_loss: None,
            outages: Arc::default(),
            conditions: Arc::new(conditions),
            source: AddressSource::User,
            secrets: Arc::new(Secrets::new(&Tls::new(), None).expect("no files")),
        }
    }
}

pub(super) struct Node {
    lines: Arc<Lines>,
    apart: Apart,
    /// For what is to be on replicas before it counts.
    lanes: Option<Lanes>,
    limits: Limits,
    clock: Clock,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Node").field(&self.lines.address).finish()
    }
}

impl Node {
    pub(super) fn new(
        address: &str,
        info: ConnectionInfo,
        limits: Limits,
        clock: Clock,
        home: Home,
        reports: Reports,
    ) -> Result<Self> {
        let lines = Arc::new(Lines::new(address, info, limits, clock, home, reports));
        let lanes = Lanes::new(&lines, limits.durability);
        Ok(Self { lines, apart: Apart::default(), lanes, limits, clock })
    }

    pub(super) fn address(&self) -> &str {
        &self.lines.address
    }

    /// The address for errors: with its source, unless the user named it.
    pub(super) fn shown(&self) -> &str {
        &self.lines.shown
    }

    pub(super) fn id(&self) -> NodeId {
        self.lines.id
    }

    /// A connection of its own for what is subscribed. Both are told within the task that reads it.
    pub(super) async fn dial_link(&self, on_loss: OnLoss, hear: Hear) -> Result<Connection, DialFault> {
        self.lines.dial_link(on_loss, hear).await
    }

    /// The number of this runtime's connection, and what is known by it of the server's clock; `None` without one.
    pub(super) fn anchor(&self) -> Option<(u64, Anchor)> {
        self.lines.current().map(|live| (live.number, *live.anchor.lock()))
    }

    /// How many connections were made in place of another.
    pub(super) fn reconnects(&self) -> u64 {
        self.lines.reconnects()
    }

    pub(super) fn up_since(&self) -> Option<Moment> {
        self.lines.up_since()
    }

    pub(super) fn is_connected(&self) -> bool {
        self.lines.is_connected()
    }

    pub(super) fn route(&self) -> Route {
        Route(Arc::clone(&self.lines.address))
    }

    pub(super) fn hearing(&self) -> Hearing {
        Hearing { served: self.lines.served(), is_silent: self.lines.silence.is() }
    }

    /// Whether this runtime has a connection with room.
    pub(super) fn is_at_hand(&self) -> bool {
        !self.lines.silence.is() && self.lines.current().is_some_and(|live| live.space.has_room())
    }

    /// Returns when the node is not silent, or after a response timeout with the reason why it is.
    pub(super) async fn word(&self) -> Result<(), Fault> {
        self.lines.word().await
    }

    /// Sends one call on the shared connection.
    pub(super) async fn call(
        &self,
        call: &Call,
        admission: Admission,
        precedence: Precedence,
    ) -> Result<Answered<Value>, Fault> {
        if call.grants
            && let Some(lanes) = &self.lanes
        {
            return Box::pin(self.call_replicated(lanes, call, admission, precedence)).await;
        }
        // Paths that are seldom taken are boxed here and below: the future of a call is moved more than once.
        if !self.lines.silence.is()
            && let Some(live) = self.lines.current()
            && let Some(_room) = live.space.try_take()
        {
            return self.send_or_load(&live, call, admission).await;
        }
        Box::pin(self.call_in_turn(call, admission, precedence)).await
    }

    async fn call_replicated(
        &self,
        lanes: &Lanes,
        call: &Call,
        admission: Admission,
        precedence: Precedence,
    ) -> Result<Answered<Value>, Fault> {
        let calls = |load| Calls { calls: vec![call.clone()], load, admission, precedence };
        match self.ask_replicated(lanes, calls(Load::Digest)).await?.pop() {
            Some(Err(Fault::NoScript)) => {
                let again = self.ask_replicated(lanes, calls(Load::Text)).await?.pop();
                again.unwrap_or(Err(Fault::NoScript))
            }
            answer => answer.unwrap_or(Err(Fault::NoScript)),
        }
    }

    async fn ask_replicated(&self, lanes: &Lanes, calls: Calls) -> Result<Vec<Result<Answered<Value>, Fault>>, Fault> {
        self.word().await?;
        // Whoever cannot be connected with says so here.
        self.lines.live().await?;
        lanes.ask(calls).await
    }

    async fn call_in_turn(
        &self,
        call: &Call,
        admission: Admission,
        precedence: Precedence,
    ) -> Result<Answered<Value>, Fault> {
        loop {
            self.word().await?;
            let live = self.lines.live().await?;
            // Whoever has room and is polled gives it back within a response timeout, answered or not, but for a second
            // one with the text of a script.
            if let Some(_room) = live.space.take(precedence, self.limits.response_timeout * 2).await
                && live.is_open()
            {
                return self.send_or_load(&live, call, admission).await;
            }
            self.lines.give_up(&live);
        }
    }

    async fn send_or_load(
        &self,
        live: &Arc<Live>,
        call: &Call,
        admission: Admission,
    ) -> Result<Answered<Value>, Fault> {
        match self.send(live, call, Load::Digest, admission).await {
            Err(Fault::NoScript) => Box::pin(self.send(live, call, Load::Text, admission)).await,
            other => other,
        }
    }

    /// Sends calls in one pipeline; one answer each, in order.
    pub(super) async fn call_all(&self, calls: &[Call]) -> Result<Vec<Result<Answered<Value>, Fault>>, Fault> {
        let all: Vec<_> = calls.iter().collect();
        let mut answers = self.send_all(&all, Load::Digest).await?;
        let unknown: Vec<_> = (0..calls.len()).filter(|&n| matches!(answers[n], Err(Fault::NoScript))).collect();
        if !unknown.is_empty() {
            let again: Vec<_> = unknown.iter().map(|&n| &calls[n]).collect();
            match self.send_all(&again, Load::Text).await {
                Ok(again) => unknown.into_iter().zip(again).for_each(|(n, answer)| answers[n] = answer),
                Err(Fault::Unknown { stray_until, source }) => unknown.into_iter().for_each(|n| {
                    answers[n] = Err(Fault::Unknown { stray_until, source: source.clone() });
                }),
                // Not done, as it was before.
                Err(_) => {}
            }
        }
        Ok(answers)
    }

    /// Only the first has the text, if any: those behind it are of the same script.
    async fn send_all(&self, calls: &[&Call], first: Load) -> Result<Vec<Result<Answered<Value>, Fault>>, Fault> {
        if let Some(lanes) = self.lanes.as_ref().filter(|_| calls.iter().any(|call| call.grants)) {
            let calls = calls.iter().map(|&call| call.clone()).collect();
            let (admission, precedence) = (Admission::Owner, Precedence::Ahead);
            return self.ask_replicated(lanes, Calls { calls, load: first, admission, precedence }).await;
        }
        self.word().await?;
        let live = &self.lines.live().await?;
        let (sent, not_after) = self.lines.not_after(live).await?;
        let loads = iter::once(first).chain(iter::repeat(Load::Digest));
        let requests = calls.iter().zip(loads).map(|(call, load)| Request::Call { call, load, not_after });
        let requests: Vec<_> = requests.collect();
        let values = self.ask_all(live, &requests, sent).await?;
        let pairs = calls.iter().zip(values);
        Ok(pairs.map(|(call, value)| self.lines.answered(live, call, sent, value)).collect())
    }

    /// Asks a question that changes nothing. Whoever asks has a pace of its own, and waits for nobody's word.
    pub(super) async fn ask(&self, question: &Cmd) -> Result<Value, Fault> {
        self.ask_now(Request::Command(question)).await
    }

    /// Asks for the map of the cluster, as [`ask`](Self::ask) does.
    pub(super) async fn ask_for_map(&self, question: &Cmd) -> Result<Value, Fault> {
        self.ask_now(Request::Map(question)).await
    }

    async fn ask_now(&self, question: Request<'_>) -> Result<Value, Fault> {
        let live = self.lines.live().await?;
        let sent = self.clock.now();
        let reply = pin!(live.connection.ask(question));
        fault::reply(self.lines.in_time(&live, sent, reply).await?)
    }

    /// Succeeds when the server answers that we can work with.
    pub(super) async fn ready(&self) -> Result<(), Fault> {
        self.word().await?;
        // Also what goes in the background has its connection from the beginning.
        let (tell, told) = oneshot::channel();
        let lines = Arc::clone(&self.lines);
        self.lines.home.spawn(async move {
            // Whether it has one shows when it is needed.
            drop(lines.live().await);
            tell.send(()).unwrap_or_default();
        });
        self.lines.live().await?;
        // In time, or later.
        drop(tokio::time::timeout(self.limits.response_timeout, told).await);
        Ok(())
    }

    async fn send(
        &self,
        live: &Arc<Live>,
        call: &Call,
        load: Load,
        admission: Admission,
    ) -> Result<Answered<Value>, Fault> {
        let (sent, not_after) = match call.expiry {
            Expiry::ResponseTimeout => self.lines.not_after(live).await?,
            Expiry::Never => (self.clock.now(), ServerTime::default()),
        };
        let request = Request::Call { call, load, not_after };
        let value = match admission {
            Admission::Owner => {
                let reply = pin!(live.connection.ask(request));
                self.lines.in_time(live, sent, reply).await?
            }
            Admission::Asking => {
                let asking = redis::cmd("ASKING");
                let requests = [Request::Command(&asking), request];
                let mut replies = Box::pin(self.ask_all(live, &requests, sent)).await?.into_iter();
                let mut next = || replies.next().unwrap_or_default();
                admitted(next(), next())?
            }
        };
        self.lines.answered(live, call, sent, value)
    }

    async fn ask_all(&self, live: &Arc<Live>, requests: &[Request<'_>], sent: Moment) -> Result<Vec<Value>, Fault> {
        let replies = pin!(live.connection.ask_all(requests));
        self.lines.in_time(live, sent, replies).await
    }
}

impl Lines {
    /// Waits for what was sent at `sent`, for as long as a reply is believed. Without one the connection is given up, unless
    /// it brought others theirs of late: each reply is given to its own request, and a late one to nobody.
    async fn in_time<T>(
        self: &Arc<Self>,
        live: &Arc<Live>,
        sent: Moment,
        reply: Pin<&mut impl Future<Output = Result<T, RedisError>>>,
    ) -> Result<T, Fault> {
        let response_timeout = self.limits.response_timeout;
        let outcome = tokio::time::timeout(response_timeout, reply).await;
        let now = self.clock.now();
        let stray_until = sent.after(lease::stray_span(response_timeout, self.limits.clock_margin));
        match outcome {
            // A runtime that stood still sees the reply before the timer: the clock decides.
            Ok(Ok(value)) => {
                live.has_answered(now);
                live.space.is_back(sent, now);
                self.silence.ends(now);
                if now.since(sent) <= response_timeout { Ok(value) } else { Err(self.unanswered(stray_until)) }
            }
            Ok(Err(error)) => {
                let fault = Fault::of_request(error, stray_until);
                if matches!(fault, Fault::Unknown { .. }) {
                    self.give_up(live);
                }
                Err(fault)
            }
            Err(_) => {
                let fault = self.unanswered(stray_until);
                live.space.is_back(sent, now);
                // Answers of its first moments do not say that it works still.
                let of_late = sent.after(response_timeout / 2);
                if !live.has_answered_since(of_late) {
                    self.give_up(live);
                    // One that stood still itself knows nothing of the node, nor does a call apart, which may take long.
                    if !live.is_apart && now.since(sent) < response_timeout * 2 {
                        self.is_missed(live, sent, now, &fault);
                    }
                }
                Err(fault)
            }
        }
    }

    /// A connection has brought nothing of late to what was sent then. Nor has the node, unless another connection to it has.
    fn is_missed(self: &Arc<Self>, live: &Arc<Live>, sent: Moment, now: Moment, fault: &Fault) {
        let of_late = sent.after(self.limits.response_timeout / 2);
        if let Fault::Unknown { source, .. } = fault
            && !self.has_answered_elsewhere(live, of_late)
        {
            self.silence.begins(source.clone(), sent, now);
        }
    }

    fn unanswered(&self, stray_until: Moment) -> Fault {
        let silence = format!("no answer within {:?}", self.limits.response_timeout);
        Fault::Unknown { stray_until, source: Some(Arc::new(Answer(silence))) }
    }

    fn answered(
        self: &Arc<Self>,
        live: &Arc<Live>,
        call: &Call,
        sent: Moment,
        value: Value,
    ) -> Result<Answered<Value>, Fault> {
        let value = fault::reply(value).map_err(|fault| fault::with_command(fault, call.script.text));
        let value = value.inspect_err(|fault| {
            self.note_refusal(fault);
            if fault.is_of_no_primary() {
                self.leave(live);
            }
        })?;
        if !is_reply_to(&value, call.echo()) {
            // The connection hands out replies to the wrong callers. Ours may still be under way.
            self.give_up(live);
            return Err(Fault::Unknown {
                stray_until: sent.after(lease::stray_span(self.limits.response_timeout, self.limits.clock_margin)),
                source: Some(Arc::new(Answer("the reply is not one to this request".to_owned()))),
            });
        }
        self.has_served(live);
        let server = server_time(&value).unwrap_or_default();
        if server != ServerTime::default() {
            *live.anchor.lock() = Anchor { sent, server };
            self.note_time_if_due(server, sent);
        }
        Ok(Answered { sent, server, node: self.id, value })
    }

    /// Now, and the server's time after which a call that is sent now must not be carried out any more.
    async fn not_after(self: &Arc<Self>, live: &Arc<Live>) -> Result<(Moment, ServerTime), Fault> {
        let mut now = self.clock.now();
        let mut anchor = *live.anchor.lock();
        if anchor.age_at(now) > MAX_ANCHOR_AGE {
            anchor = Box::pin(self.time_of(live)).await?;
            *live.anchor.lock() = anchor;
            now = self.clock.now();
        }
        Ok((now, anchor.server_time_at(now).after(self.limits.response_timeout)))
    }

    async fn time_of(self: &Arc<Self>, live: &Arc<Live>) -> Result<Anchor, Fault> {
        let sent = self.clock.now();
        let time = redis::cmd("TIME");
        let reply = pin!(live.connection.ask(Request::Command(&time)));
        let value = fault::reply(self.in_time(live, sent, reply).await?)?;
        let server = parse_time(&value).ok_or_else(|| unreadable("TIME"))?;
        Ok(Anchor { sent, server })
    }
}

/// The reply to a call behind `ASKING`. Refused that, a node sends the call back to where it came from, and so on; but one that
/// owns the slot by then, or is no member of a cluster, carries it out all the same.
fn admitted(asking: Value, reply: Value) -> Result<Value, Fault> {
    match (fault::reply(asking), &reply) {
        (Err(refusal), Value::ServerError(error)) if !matches!(Fault::of_server(error), Fault::Broken { .. }) => {
            Err(refusal)
        }
        _ => Ok(reply),
    }
}
