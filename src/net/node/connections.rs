//! Connections to one node: one for each runtime that calls it.
//!
//! The runtime that dialled a connection also drives it. So a runtime that ends, or stands still, affects only its own
//! callers. The runtime that waits for a reply also reads the reply. A connection serves all callers of its runtime. A
//! separate task dials it, so the dial goes on when its caller gives up.
//!
//! After a server has closed a connection, nothing more is sent on it. So the server has certainly not executed a
//! request that waits for the next connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::ConnectionInfo;
use tokio::runtime::{Handle, Id};

use super::connection::Connection;
use super::dial::Departures;
use super::in_flight::InFlightLimit;
use super::outage::Outage;
use super::steps::Steps;
use super::{OnLoss, Reports};
use crate::base::attempt::NodeId;
use crate::base::background_runtime::BackgroundRuntime;
use crate::base::clock::Clock;
use crate::base::error::{Refusal, Source};
use crate::base::lease::{ClockSample, Moment};
use crate::base::metrics::Counter;
use crate::base::process;
use crate::base::topology::AddressSource;
use crate::net::conditions::Conditions;
use crate::net::fault::Fault;
use crate::net::node::Limits;
use crate::net::outages::Outages;
use crate::net::secrets::Secrets;

/// Time for which the fault of a dial answers all callers. Without this time, callers would dial one after the other.
const DIAL_PAUSE: Duration = Duration::from_millis(50);

/// Connections to one node. This type knows nothing of calls.
pub(super) struct Connections {
    pub(super) address: Arc<str>,
    /// Address for errors. It includes its source, unless the user named the address.
    pub(super) shown: Arc<str>,
    pub(super) id: NodeId,
    pub(super) info: ConnectionInfo,
    pub(super) secrets: Arc<Secrets>,
    pub(super) on_loss: Option<OnLoss>,
    pub(super) departures: Mutex<Departures>,
    pub(super) steps: Steps,
    pub(super) limits: Limits,
    pub(super) clock: Clock,
    pub(super) background_runtime: BackgroundRuntime,
    of: Mutex<Vec<RuntimeConnection>>,
    /// Number of connections that were dialled so far.
    pub(super) dialed: AtomicU64,
    /// Number of connections that replaced another one.
    reconnects: AtomicU64,
    reconnects_counter: Counter,
    failed: Mutex<Option<(Moment, DialFault)>>,
    /// Time at which the node last executed a request, in nanoseconds of the local clock; zero for never.
    served: AtomicU64,
    /// Time since which the node has been running, in nanoseconds of the local clock; zero if no connection asked.
    pub(super) up_since: AtomicU64,
    pub(super) outage: Outage,
    pub(super) outages: Arc<Outages>,
    pub(super) conditions: Arc<Conditions>,
    /// Time at which the server's clock was last compared with others, in nanoseconds of the local clock.
    pub(super) clock_noted: AtomicU64,
}

/// Connection of one runtime.
struct RuntimeConnection {
    runtime: Id,
    live: Option<Arc<OpenConnection>>,
    /// True after the first connection.
    has_had: bool,
    /// Lock that is held by the task that dials.
    dialing: Arc<tokio::sync::Mutex<()>>,
}

/// Connection, and the clock sample of its server.
pub(super) struct OpenConnection {
    /// Number that is unique among the connections to this node.
    pub(super) number: u64,
    pub(super) connection: Connection,
    pub(super) clock_sample: Mutex<ClockSample>,
    /// True once the connection is closed, by the server or with its runtime. Later requests are never sent.
    pub(super) is_closed: Arc<AtomicBool>,
    /// Time at which the last answer came, in nanoseconds of the local clock.
    answered: AtomicU64,
    pub(super) space: InFlightLimit,
    /// True for a dedicated connection, which carries one call at a time.
    pub(super) is_apart: bool,
}

/// Use of a connection: by several requests at a time, or by one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sharing {
    Shared,
    Apart,
}

/// Fault of a dial. Several callers may get a clone of it.
#[derive(Clone, Debug, thiserror::Error)]
pub(in crate::net) enum DialFault {
    #[error("{}", .0.as_ref().map_or_else(|| "no connection".to_owned(), ToString::to_string))]
    NotSent(Option<Source>),
    #[error("{1}")]
    Refused(Refusal, String),
}

impl OpenConnection {
    pub(super) fn new(
        number: u64,
        connection: Connection,
        clock_sample: ClockSample,
        closed: Arc<AtomicBool>,
        response_timeout: Duration,
        sharing: Sharing,
    ) -> Self {
        Self {
            number,
            connection,
            clock_sample: Mutex::new(clock_sample),
            is_closed: closed,
            answered: AtomicU64::new(clock_sample.sent.as_nanos()),
            space: InFlightLimit::new(response_timeout),
            is_apart: sharing == Sharing::Apart,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        !self.is_closed.load(Ordering::Acquire)
    }

    /// Notes that a reply came at `now`.
    pub(super) fn has_answered(&self, now: Moment) {
        self.answered.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Returns true if a reply has come since `moment`.
    pub(super) fn has_answered_since(&self, moment: Moment) -> bool {
        self.answered.load(Ordering::Relaxed) >= moment.as_nanos()
    }
}

impl Connections {
    pub(super) fn new(
        address: &str,
        info: ConnectionInfo,
        limits: Limits,
        clock: Clock,
        background_runtime: BackgroundRuntime,
        reports: Reports,
    ) -> Self {
        let shown = shown(address, &reports.source).into();
        let (id, address) = (NodeId::of(address), address.into());
        let outage = Outage::new(&address, reports.source, Arc::clone(&reports.outages));
        Self {
            address,
            shown,
            id,
            info,
            secrets: reports.secrets,
            on_loss: reports.on_loss,
            departures: Mutex::default(),
            steps: Steps::new(limits.response_timeout),
            limits,
            clock,
            background_runtime,
            of: Mutex::default(),
            dialed: AtomicU64::new(0),
            reconnects: AtomicU64::new(0),
            reconnects_counter: Counter::of_reconnects(),
            failed: Mutex::new(None),
            served: AtomicU64::new(0),
            up_since: AtomicU64::new(0),
            outage,
            outages: reports.outages,
            conditions: reports.conditions,
            clock_noted: AtomicU64::new(0),
        }
    }

    /// Notes that the node executed a request.
    pub(super) fn has_served(&self, live: &OpenConnection) {
        // Copies the time from the connection that brought the reply.
        self.served.store(live.answered.load(Ordering::Relaxed), Ordering::Relaxed);
        self.outage.is_over();
    }

    pub(super) fn last_served(&self) -> Option<Moment> {
        let nanos = self.served.load(Ordering::Relaxed);
        (nanos > 0).then_some(Moment::from_nanos(nanos))
    }

    /// Returns the time since which the newest server has been running. A connection learns this time before it sends
    /// any other request, so a restart is always noticed.
    pub(super) fn up_since(&self) -> Option<Moment> {
        let nanos = self.up_since.load(Ordering::Acquire);
        (nanos > 0).then_some(Moment::from_nanos(nanos))
    }

    /// Returns the connection of this runtime, if it has one.
    pub(super) fn current(&self) -> Option<Arc<OpenConnection>> {
        let runtime = Handle::try_current().ok()?.id();
        let connections = self.of.lock();
        let connection = connections.iter().find(|connection| connection.runtime == runtime)?;
        connection.live.as_ref().filter(|live| live.is_open()).cloned()
    }

    #[cfg(all(test, feature = "_testing"))]
    pub(super) fn count(&self) -> usize {
        self.of.lock().len()
    }

    /// Returns true if any runtime has a connection.
    pub(super) fn is_connected(&self) -> bool {
        self.of.lock().iter().any(|connection| connection.live.as_ref().is_some_and(|live| live.is_open()))
    }

    /// Returns true if the node has answered on another connection since `since`.
    pub(super) fn has_answered_elsewhere(&self, live: &Arc<OpenConnection>, since: Moment) -> bool {
        let others = self.of.lock();
        let mut others = others.iter().filter_map(|connection| connection.live.as_ref());
        others.any(|other| !Arc::ptr_eq(other, live) && other.is_open() && other.has_answered_since(since))
    }

    /// Sends nothing more on a connection. Callers that wait for its permits use another connection.
    pub(super) fn give_up(&self, live: &Arc<OpenConnection>) {
        let is_it = |connection: &&mut RuntimeConnection| {
            connection.live.as_ref().is_some_and(|current| Arc::ptr_eq(current, live))
        };
        if let Some(connection) = self.of.lock().iter_mut().find(is_it) {
            connection.live = None;
        }
        live.space.close();
    }

    /// Gives up all closed connections, on all runtimes.
    pub(super) fn give_up_closed(&self) {
        let mut closed = Vec::new();
        for connection in self.of.lock().iter_mut() {
            closed.extend(connection.live.take_if(|live| !live.is_open()));
        }
        closed.iter().for_each(|live| live.space.close());
    }

    /// Returns the connection of this runtime. Dials it if there is none.
    pub(super) async fn live(self: &Arc<Self>) -> Result<Arc<OpenConnection>, Fault> {
        if let Some(live) = self.current() {
            return Ok(live);
        }
        let most = self.limits.response_timeout * 3;
        let in_time = tokio::time::timeout(most, self.dial_in_turn()).await;
        in_time.unwrap_or_else(|_| Err(self.steps.no_connection_within(most))).map_err(Fault::from)
    }

    async fn dial_in_turn(self: &Arc<Self>) -> Result<Arc<OpenConnection>, DialFault> {
        let runtime = Handle::current();
        let dialing = self.dialing(runtime.id()).lock_owned().await;
        if let Some(live) = self.current() {
            return Ok(live);
        }
        if let Some((at, fault)) = &*self.failed.lock()
            && self.clock.now().since(*at) < DIAL_PAUSE
        {
            return Err(fault.clone());
        }
        let connections = Arc::clone(self);
        // The task goes on when its caller gives up. Otherwise callers with short time limits would never get a
        // connection.
        let dialed = process::spawn_on(&runtime, async move {
            let _dialing = dialing;
            connections.connect().await
        });
        // A task without a result has ended with its runtime.
        dialed.await.unwrap_or(Err(DialFault::NotSent(None)))
    }

    /// Returns the lock for dialling on a runtime. If the runtime is new, removes runtimes without a connection, since
    /// they may have ended.
    fn dialing(&self, runtime: Id) -> Arc<tokio::sync::Mutex<()>> {
        let mut connections = self.of.lock();
        if let Some(connection) = connections.iter().find(|connection| connection.runtime == runtime) {
            return Arc::clone(&connection.dialing);
        }
        connections.retain(|connection| {
            Arc::strong_count(&connection.dialing) > 1 || connection.live.as_ref().is_some_and(|live| live.is_open())
        });
        let dialing = Arc::default();
        connections.push(RuntimeConnection { runtime, live: None, has_had: false, dialing: Arc::clone(&dialing) });
        dialing
    }

    async fn connect(self: Arc<Self>) -> Result<Arc<OpenConnection>, DialFault> {
        let began = self.clock.now();
        let dialed = self.dial(Sharing::Shared).await;
        let now = self.clock.now();
        *self.failed.lock() = dialed.as_ref().err().map(|fault| (now, fault.clone()));
        match &dialed {
            Ok(live) => {
                self.begins(live);
                self.outage.note_greeting(now);
                self.check_up_in_background(live);
            }
            // A refusal is an answer, so the node is not silent.
            Err(DialFault::Refused(refusal, words)) => self.outage.refuses(*refusal, words, now),
            Err(DialFault::NotSent(source)) => self.outage.begins(source.clone(), began, now),
        }
        dialed
    }

    /// Notes a new connection of this runtime.
    fn begins(&self, live: &Arc<OpenConnection>) {
        let runtime = Handle::current().id();
        let mut connections = self.of.lock();
        match connections.iter_mut().find(|connection| connection.runtime == runtime) {
            Some(connection) => {
                let is_another = std::mem::replace(&mut connection.has_had, true);
                self.reconnects.fetch_add(u64::from(is_another), Ordering::Relaxed);
                if is_another {
                    self.reconnects_counter.add_one();
                }
                connection.live = Some(Arc::clone(live));
            }
            None => {
                let live = Some(Arc::clone(live));
                connections.push(RuntimeConnection { runtime, live, has_had: true, dialing: Arc::default() });
            }
        }
    }

    pub(super) fn reconnects(&self) -> u64 {
        self.reconnects.load(Ordering::Relaxed)
    }
}

/// Returns an address with its source. Returns only the address if the user named it.
pub(in crate::net) fn shown(address: &str, source: &AddressSource) -> String {
    match source {
        AddressSource::User => address.to_owned(),
        source => format!("{address} ({source})"),
    }
}

impl From<DialFault> for Fault {
    fn from(fault: DialFault) -> Self {
        match fault {
            DialFault::NotSent(source) => Self::NotSent(source),
            DialFault::Refused(refusal, message) => Self::Refused { refusal, message },
        }
    }
}

/// Converts a fault of a connection attempt. No request was sent, whatever the fault is.
pub(in crate::net) fn not_sent(fault: Fault) -> DialFault {
    match fault {
        Fault::Refused { refusal, message } | Fault::Broken { refusal, message } => {
            DialFault::Refused(refusal, message)
        }
        Fault::NotSent(source) | Fault::Unknown { source, .. } => DialFault::NotSent(source),
        Fault::Again(source) | Fault::WrongServer(source) => DialFault::NotSent(Some(source)),
        Fault::Moved { .. } | Fault::Ask { .. } | Fault::NoScript | Fault::Unreplicated { .. } => {
            DialFault::NotSent(None)
        }
    }
}
