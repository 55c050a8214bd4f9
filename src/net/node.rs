//! Node: one server, with the connections of this process to that server. Most connections are shared by all callers of
//! a runtime. A few connections carry one call at a time.
//!
//! Most calls use the shared [connection](connections) of their runtime. A pool would be slower, because it would need
//! a round trip for each `get`. Each connection limits its [requests in flight](in_flight). A caller above this limit
//! waits in this process for a permit. Its response timeout begins when its request is sent.
//!
//! If a request has no answer within one response timeout, the node checks whether another answer came in the second
//! half of that time. If none came, the node gives the connection up. No caller gets an answer that arrives after its
//! response timeout.

use std::fmt;
use std::iter;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{Cmd, ConnectionInfo, Value};
use tokio::sync::oneshot;

use crate::base::attempt::{Answered, NodeId, Route, ServerContact};
use crate::base::background_runtime::BackgroundRuntime;
use crate::base::durability::Durability;
use crate::base::error::Result;
use crate::base::lease::{self, ClockSample, Moment, ServerTime};
use crate::base::options::Options;
use crate::base::topology::AddressSource;
use crate::net::CLOCK;
use crate::net::conditions::Conditions;
use crate::net::fault::{self, Fault};
use crate::net::outages::Outages;
use crate::net::script::PublishCommand;
use crate::net::secrets::Secrets;
use crate::net::{Call, Expiry};
use apart::Apart;
pub(super) use connection::{Connection, Request};
use connection::{Load, Wording, with_wordings};
use connections::{Connections, OpenConnection};
pub(super) use connections::{DialFault, not_sent, shown};
use greeting::hello_of_info;
pub(super) use greeting::{hello_field, hello_value, info, info_field, info_text, list_items, parse_time};
pub(super) use in_flight::Precedence;
pub(super) use replicas::ReplicaNames;
use replicated::{ReplicatedCalls, ReplicatedConnections};
pub(super) use steps::ask_once;

mod answers;
mod apart;
mod checkup;
mod connection;
mod connections;
mod dial;
mod dialects;
mod greeting;
#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/net/node/hostile.rs"]
mod hostile;
mod in_flight;
#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/net/node/mutations.rs"]
mod mutations;
#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/net/node/names.rs"]
mod names;
mod outage;
mod probe;
mod push_handler;
mod relogin;
mod replicas;
mod replicated;
mod steps;
#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/net/node/tests.rs"]
mod tests;
#[cfg(all(test, feature = "_testing", feature = "tls"))]
#[path = "../../testing/unit/net/node/tls.rs"]
mod tls;
mod wire;

/// Limit for the texts of a script that are sent for one call. A server that refuses the first form of the script gets the
/// second. One more is for a runtime that connects meanwhile, after which the node gets the first form again.
const MAX_TEXTS: usize = 3;

/// Settings that all nodes of a manager share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) response_timeout: Duration,
    pub(super) max_clock_skew: Duration,
    pub(super) role: Role,
    pub(super) durability: Durability,
}

impl Limits {
    pub(super) fn new(options: &Options, role: Role) -> Self {
        Self {
            response_timeout: options.response_timeout,
            max_clock_skew: options.max_clock_skew,
            role,
            durability: options.durability,
        }
    }

    /// Returns the moment until which a copy of a request may arrive that was sent at `sent`.
    pub(super) fn arrives_until(&self, sent: Moment) -> Moment {
        sent.after(lease::max_delay(self.response_timeout, self.max_clock_skew))
    }
}

/// Kind of server that a node expects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Standalone,
    /// Master of a quorum, which is one of several independent servers. Each new connection asks its master for the
    /// uptime.
    Voter,
    ClusterMember,
    /// Proxy, which sends each request to one of several servers.
    Proxy,
}

/// Form in which a call is sent. The owner of a slot gets the call alone. A node to which the slot is being migrated
/// gets `ASKING` before the call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Admission {
    Owner,
    Asking,
}

/// Answer to one call, or its fault.
pub(super) type CallAnswer = Result<Answered<Value>, Fault>;

/// Callback that runs when a connection is lost.
pub(super) type OnLoss = Arc<dyn Fn() + Send + Sync>;

/// Values that a node gets from its creator: its limits and its background runtime, the receivers of the node's events,
/// the source of its address, its secrets, and the source of the names of its replicas.
#[derive(Clone)]
pub(super) struct NodeSetup {
    pub(super) limits: Limits,
    pub(super) background_runtime: BackgroundRuntime,
    pub(super) on_loss: Option<OnLoss>,
    pub(super) outages: Arc<Outages>,
    pub(super) conditions: Arc<Conditions>,
    /// Source of the node's address: the user, a cluster member or a Sentinel.
    pub(super) source: AddressSource,
    pub(super) secrets: Arc<Secrets>,
    pub(super) replica_names: ReplicaNames,
}

impl NodeSetup {
    /// Returns the values for a node that the user named.
    pub(super) fn new(
        limits: Limits,
        background_runtime: &BackgroundRuntime,
        conditions: &Arc<Conditions>,
        secrets: &Arc<Secrets>,
    ) -> Self {
        Self {
            limits,
            background_runtime: background_runtime.clone(),
            on_loss: None,
            outages: Arc::default(),
            conditions: Arc::clone(conditions),
            source: AddressSource::User,
            secrets: Arc::clone(secrets),
            replica_names: ReplicaNames::Nobody,
        }
    }
}

pub(super) struct Node {
    connections: Arc<Connections>,
    apart: Apart,
    /// Connections for grants that replicas must acknowledge. `None` if a grant counts as soon as the primary has
    /// answered.
    replicated_connections: Option<ReplicatedConnections>,
    limits: Limits,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Node").field(&self.connections.address).finish()
    }
}

impl Node {
    pub(super) fn new(address: &str, info: ConnectionInfo, setup: NodeSetup) -> Self {
        let (limits, replica_names) = (setup.limits, setup.replica_names.clone());
        let connections = Arc::new(Connections::new(address, info, setup));
        let replicated_connections = ReplicatedConnections::new(&connections, replica_names);
        Self { connections, apart: Apart::default(), replicated_connections, limits }
    }

    pub(super) fn address(&self) -> &str {
        &self.connections.address
    }

    /// Returns the address for error messages. If the user did not name the address, the text includes the server that
    /// announced it.
    pub(super) fn shown(&self) -> &str {
        &self.connections.shown
    }

    pub(super) fn id(&self) -> NodeId {
        self.connections.id
    }

    /// Returns the number and the clock sample of this runtime's connection, or `None` if this runtime has no
    /// connection.
    pub(super) fn clock_sample(&self) -> Option<(u64, ClockSample)> {
        self.connections.current().map(|live| (live.number, *live.clock_sample.lock()))
    }

    /// Returns how many connections replaced an earlier connection.
    pub(super) fn reconnects(&self) -> u64 {
        self.connections.reconnects.load(Ordering::Relaxed)
    }

    pub(super) fn up_since(&self) -> Option<Moment> {
        let nanos = self.connections.up_since.load(Ordering::Acquire);
        (nanos > 0).then_some(Moment::from_nanos(nanos))
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connections.of.lock().iter().any(|connection| connection.open().is_some())
    }

    pub(super) fn route(&self) -> Route {
        Route(Arc::clone(&self.connections.address))
    }

    pub(super) fn server_contact(&self) -> ServerContact {
        ServerContact { served: self.connections.last_served(), is_silent: self.connections.outage.is() }
    }

    /// Returns true if the node is not in an outage and this runtime has a connection with a free permit.
    pub(super) fn can_send_inline(&self) -> bool {
        !self.connections.outage.is() && self.connections.current().is_some_and(|live| live.space.has_free_permit())
    }

    /// Sends one call on the shared connection.
    pub(super) async fn call(&self, call: &Call, admission: Admission, precedence: Precedence) -> CallAnswer {
        if call.grants
            && let Some(replicated_connections) = &self.replicated_connections
        {
            return Box::pin(self.call_replicated(replicated_connections, call, admission, precedence)).await;
        }
        // The next call is boxed because it is rarely needed. Unboxed, it would enlarge the future of every call, which
        // is moved several times. The same is true for the other boxed calls in this file.
        if !self.connections.outage.is()
            && let Some(live) = self.connections.current()
            && let Some(_permit) = live.space.try_take()
        {
            return self.send_or_load(&live, call, admission).await;
        }
        Box::pin(self.call_in_turn(call, admission, precedence)).await
    }

    async fn call_replicated(
        &self,
        replicated_connections: &ReplicatedConnections,
        call: &Call,
        admission: Admission,
        precedence: Precedence,
    ) -> CallAnswer {
        for load in iter::once(Load::Digest).chain([Load::Text; MAX_TEXTS]) {
            let calls = ReplicatedCalls { calls: vec![call.clone()], load, admission, precedence };
            match self.ask_replicated(replicated_connections, calls).await?.pop() {
                Some(Err(Fault::NoScript)) => {}
                answer => return answer.unwrap_or(Err(Fault::NoScript)),
            }
        }
        Err(Fault::NoScript)
    }

    /// Fails if fewer replicas are attached than must acknowledge a grant.
    pub(super) async fn check_replicas(&self) -> Result<(), Fault> {
        let Some(replicated_connections) = &self.replicated_connections else { return Ok(()) };
        let live = self.connections.live().await?;
        replicated_connections.check(&live).await
    }

    async fn ask_replicated(
        &self,
        replicated_connections: &ReplicatedConnections,
        calls: ReplicatedCalls,
    ) -> Result<Vec<CallAnswer>, Fault> {
        self.wait_for_answer().await?;
        // If this process cannot connect to the node, the call fails here, with the reason of the failed dial.
        self.connections.live().await?;
        replicated_connections.ask(calls).await
    }

    async fn call_in_turn(&self, call: &Call, admission: Admission, precedence: Precedence) -> CallAnswer {
        loop {
            self.wait_for_answer().await?;
            let live = self.connections.live().await?;
            // Waits for up to two response timeouts, because a caller keeps its permit that long if it also sends the
            // script's text. A permit that is kept longer belongs to a future that no task polls.
            if let Some(_permit) = live.space.take(precedence, self.limits.response_timeout * 2).await
                && live.is_open()
            {
                return self.send_or_load(&live, call, admission).await;
            }
            self.connections.give_up(&live);
        }
    }

    async fn send_or_load(&self, live: &OpenConnection, call: &Call, admission: Admission) -> CallAnswer {
        match self.send(live, call, Load::Digest, admission).await {
            Err(Fault::NoScript) => Box::pin(self.load(live, call, admission)).await,
            other => other,
        }
    }

    /// Sends a call with the text of its script, in one form after the other.
    async fn load(&self, live: &OpenConnection, call: &Call, admission: Admission) -> CallAnswer {
        for _ in 0..MAX_TEXTS {
            match self.send(live, call, Load::Text, admission).await {
                Err(Fault::NoScript) => {}
                answer => return answer,
            }
        }
        Err(Fault::NoScript)
    }

    /// Sends calls in one pipeline. Returns one answer for each call, in the order of the calls.
    pub(super) async fn call_all(&self, calls: &[Call]) -> Result<Vec<CallAnswer>, Fault> {
        let all: Vec<_> = calls.iter().collect();
        let mut answers = self.send_all(&all, Load::Digest).await?;
        for _ in 0..MAX_TEXTS {
            let unknown: Vec<_> = (0..calls.len()).filter(|&n| matches!(answers[n], Err(Fault::NoScript))).collect();
            if unknown.is_empty() {
                break;
            }
            let again: Vec<_> = unknown.iter().map(|&n| &calls[n]).collect();
            match self.send_all(&again, Load::Text).await {
                Ok(again) => unknown.into_iter().zip(again).for_each(|(n, answer)| answers[n] = answer),
                Err(fault @ Fault::Unknown { .. }) => {
                    unknown.into_iter().for_each(|n| answers[n] = Err(fault.clone()));
                }
                // The scripts did not run. Their answers are `NoScript`, which already says this.
                Err(_) => {}
            }
        }
        Ok(answers)
    }

    /// Sends calls of one script in one pipeline. If `first` is `Load::Text`, only the first call carries the script's
    /// text.
    async fn send_all(&self, calls: &[&Call], first: Load) -> Result<Vec<CallAnswer>, Fault> {
        if let Some(replicated_connections) =
            self.replicated_connections.as_ref().filter(|_| calls.iter().any(|call| call.grants))
        {
            let calls = calls.iter().map(|&call| call.clone()).collect();
            let (admission, precedence) = (Admission::Owner, Precedence::Ahead);
            return self
                .ask_replicated(replicated_connections, ReplicatedCalls { calls, load: first, admission, precedence })
                .await;
        }
        self.wait_for_answer().await?;
        let live = &self.connections.live().await?;
        let (sent, not_after) = self.connections.not_after(live).await?;
        let dialect = self.connections.dialect();
        let worded = || with_wordings(calls, first, dialect);
        let requests: Vec<_> = worded().map(|(call, wording)| Request::Call { call, wording, not_after }).collect();
        let values = self.ask_all(live, &requests, sent).await?;
        let on_answer =
            |((call, wording), value): ((&&Call, _), _)| self.connections.on_answer(live, call, wording, sent, value);
        Ok(worded().zip(values).map(on_answer).collect())
    }

    /// Sends a question that changes nothing on the server. Sends it even during an outage of the node, because the
    /// callers of this function pause between their questions themselves.
    pub(super) async fn ask(&self, question: &Cmd) -> Result<Value, Fault> {
        let live = self.connections.live().await?;
        self.connections.ask(&live, question).await.map(|(_, answer)| answer)
    }

    /// Returns true if the server, or a proxy in front of it, does not know `HELLO 3`. A connection that has subscribed
    /// then takes no other requests.
    pub(super) fn speaks_resp2(&self) -> bool {
        self.connections.speaks_resp2.load(Ordering::Relaxed)
    }

    /// Returns the command by which scripts on this server publish. Subscribers need the same kind of channels.
    pub(super) fn publish_command(&self) -> PublishCommand {
        self.connections.dialect().publish
    }

    /// Returns the server's answer to `HELLO`. Every connected user may send this command, and its answer has the same
    /// fields in all versions. If the server does not know the command, the answer is made from answers to `INFO`.
    pub(super) async fn hello(&self) -> Result<Value, Fault> {
        if !self.speaks_resp2() {
            return self.ask(&redis::cmd("HELLO")).await;
        }
        let (server, replication) = (self.ask(&info("server")).await?, self.ask(&info("replication")).await?);
        Ok(hello_of_info(&server, &replication))
    }

    /// Asks for the slot map of the cluster. Like [`ask`](Self::ask), sends the question even during an outage.
    pub(super) async fn ask_for_map(&self, question: &Cmd) -> Result<Value, Fault> {
        let live = self.connections.live().await?;
        let _awaited = live.connection.wire.await_map();
        self.connections.ask(&live, question).await.map(|(_, answer)| answer)
    }

    /// Succeeds as soon as the server has answered and this library can work with the server.
    pub(super) async fn ready(&self) -> Result<(), Fault> {
        self.wait_for_answer().await?;
        // The background runtime dials its connection now, so that its first request need not wait for the dial.
        let (tell, told) = oneshot::channel();
        let connections = Arc::clone(&self.connections);
        self.connections.background_runtime.spawn(async move {
            // The error is ignored here. If the node still cannot be reached later, the request that needs this
            // connection fails.
            drop(connections.live().await);
            tell.send(()).unwrap_or_default();
        });
        self.connections.live().await?;
        // Waits for a limited time only, because the caller itself does not need the connection of the background
        // runtime.
        drop(tokio::time::timeout(self.limits.response_timeout, told).await);
        Ok(())
    }

    async fn send(&self, live: &OpenConnection, call: &Call, load: Load, admission: Admission) -> CallAnswer {
        let (sent, not_after) = match call.expiry {
            Expiry::ResponseTimeout => self.connections.not_after(live).await?,
            Expiry::Never => (CLOCK.now(), ServerTime::default()),
        };
        let wording = Wording { load, dialect: self.connections.dialect() };
        let request = Request::Call { call, wording, not_after };
        let value = match admission {
            Admission::Owner => {
                let reply = pin!(live.connection.ask(request));
                self.connections.in_time(live, sent, reply).await?
            }
            Admission::Asking => {
                let asking = redis::cmd("ASKING");
                let requests = [Request::Command(&asking), request];
                let mut replies = Box::pin(self.ask_all(live, &requests, sent)).await?.into_iter();
                let mut next = || replies.next().unwrap_or_default();
                reply_if_admitted(next(), next())?
            }
        };
        self.connections.on_answer(live, call, wording, sent, value)
    }

    async fn ask_all(
        &self,
        live: &OpenConnection,
        requests: &[Request<'_>],
        sent: Moment,
    ) -> Result<Vec<Value>, Fault> {
        let replies = pin!(live.connection.ask_all(requests));
        self.connections.in_time(live, sent, replies).await
    }
}

/// Returns the reply to a call that was sent after `ASKING`, or the refusal of `ASKING`.
///
/// A node may refuse `ASKING` and then redirect the call to the slot's owner, which redirects the call to this node
/// again. In that case this function returns the refusal, so that the caller does not follow redirects for ever. The
/// node may also execute the call in spite of its refusal. It then owns the slot by now, or is no member of a cluster.
/// In that case this function returns the reply.
fn reply_if_admitted(asking: Value, reply: Value) -> Result<Value, Fault> {
    match (fault::reply(asking), &reply) {
        (Err(refusal), Value::ServerError(error)) if !matches!(Fault::of_server(error), Fault::Broken { .. }) => {
            Err(refusal)
        }
        _ => Ok(reply),
    }
}
