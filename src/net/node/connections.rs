//! Connections of this process to one node. Each runtime that calls the node has one connection.
//!
//! All callers of a runtime share its connection. The runtime that dialled the connection also reads and writes it. So
//! a runtime that ends or stands still affects only its own callers. A separate task dials the connection, so the dial
//! goes on even if the caller that began it gives up.
//!
//! When a server has closed a connection, this process sends nothing more on it. A request that waits for the next
//! connection was therefore never sent, and the server has certainly not executed it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::ConnectionInfo;
use tokio::runtime::{Handle, Id};

use super::connection::Connection;
use super::dial::Departures;
use super::dialects::Dialects;
use super::in_flight::InFlightLimit;
use super::outage::Outage;
use super::steps::Steps;
use super::{NodeSetup, OnLoss};
use crate::base::attempt::NodeId;
use crate::base::background_runtime::BackgroundRuntime;
use crate::base::error::{Refusal, Source};
use crate::base::lease::{ClockSample, Moment};
use crate::base::metrics::Counter;
use crate::base::process;
use crate::base::topology::AddressSource;
use crate::net::CLOCK;
use crate::net::conditions::Conditions;
use crate::net::fault::Fault;
use crate::net::node::Limits;
use crate::net::outages::Outages;
use crate::net::secrets::Secrets;

/// Time after a failed dial in which its fault answers all callers. Otherwise each waiting caller would dial again, one
/// after the other.
const DIAL_PAUSE: Duration = Duration::from_millis(50);

/// Connections to one node. This type does not know the meaning of requests.
pub(super) struct Connections {
    pub(super) address: Arc<str>,
    /// Address for error messages. If the user did not name the address, the text includes the server that announced
    /// it.
    pub(super) shown: Arc<str>,
    pub(super) id: NodeId,
    pub(super) info: ConnectionInfo,
    pub(super) secrets: Arc<Secrets>,
    pub(super) on_loss: Option<OnLoss>,
    pub(super) departures: Mutex<Departures>,
    pub(super) steps: Steps,
    pub(super) limits: Limits,
    pub(super) background_runtime: BackgroundRuntime,
    pub(super) of: Mutex<Vec<RuntimeConnection>>,
    /// Number of connections that were opened so far.
    pub(super) dialed: AtomicU64,
    /// Number of connections that replaced an earlier connection.
    pub(super) reconnects: AtomicU64,
    reconnects_counter: Counter,
    failed: Mutex<Option<(Moment, DialFault)>>,
    /// Time at which the node last executed a request, in nanoseconds of the local clock. Zero if it has executed none.
    served: AtomicU64,
    /// Time at which the server started, in nanoseconds of the local clock. Zero if no connection asked for the uptime.
    pub(super) up_since: AtomicU64,
    pub(super) outage: Outage,
    pub(super) outages: Arc<Outages>,
    pub(super) conditions: Arc<Conditions>,
    /// Time at which the server's clock was last checked, in nanoseconds of the local clock.
    pub(super) clock_noted: AtomicU64,
    /// True if the last connection speaks RESP2.
    pub(super) speaks_resp2: AtomicBool,
    pub(super) dialects: Dialects,
}

/// Connection of one runtime.
pub(super) struct RuntimeConnection {
    runtime: Id,
    live: Option<Arc<OpenConnection>>,
    /// True if this runtime has had a connection before.
    has_had: bool,
    /// Lock that a task holds while it dials, so that only one task of the runtime dials.
    dialing: Arc<tokio::sync::Mutex<()>>,
}

impl RuntimeConnection {
    pub(super) fn open(&self) -> Option<&Arc<OpenConnection>> {
        self.live.as_ref().filter(|live| live.is_open())
    }
}

/// Open connection, with its state and the newest clock sample of its server.
pub(super) struct OpenConnection {
    /// Number that is unique among the connections that one `Connections` has made.
    pub(super) number: u64,
    pub(super) connection: Connection,
    pub(super) clock_sample: Mutex<ClockSample>,
    /// True when the server has closed the connection or the runtime has ended. No request is sent after that.
    pub(super) is_closed: Arc<AtomicBool>,
    /// Time at which the greeting was sent.
    pub(super) opened: Moment,
    /// Time at which the last answer came, in nanoseconds of the local clock.
    pub(super) answered: AtomicU64,
    pub(super) space: InFlightLimit,
    /// True for a dedicated connection, which carries one call at a time.
    pub(super) is_apart: bool,
}

/// Number of requests that a connection carries at a time: several, or one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sharing {
    Shared,
    Apart,
}

/// Fault of a dial. Several callers may get a copy of the fault.
#[derive(Clone, Debug, thiserror::Error)]
pub(in crate::net) enum DialFault {
    #[error("{}", .0.as_ref().map_or_else(|| "no connection".to_owned(), ToString::to_string))]
    NotSent(Option<Source>),
    #[error("{1}")]
    Refused(Refusal, String),
}

impl OpenConnection {
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
    pub(super) fn new(address: &str, info: ConnectionInfo, setup: NodeSetup) -> Self {
        let shown = shown(address, &setup.source).into();
        let (id, address) = (NodeId::of(address), address.into());
        let outage = Outage::new(&address, setup.source, Arc::clone(&setup.outages));
        Self {
            address,
            shown,
            id,
            info,
            secrets: setup.secrets,
            on_loss: setup.on_loss,
            departures: Mutex::default(),
            steps: Steps::new(setup.limits.response_timeout),
            limits: setup.limits,
            background_runtime: setup.background_runtime,
            of: Mutex::default(),
            dialed: AtomicU64::new(0),
            reconnects: AtomicU64::new(0),
            reconnects_counter: Counter::of("rwlock_reconnects_total"),
            failed: Mutex::new(None),
            served: AtomicU64::new(0),
            up_since: AtomicU64::new(0),
            outage,
            outages: setup.outages,
            conditions: setup.conditions,
            clock_noted: AtomicU64::new(0),
            speaks_resp2: AtomicBool::new(false),
            dialects: Dialects::default(),
        }
    }

    /// Notes that the node executed a request.
    pub(super) fn has_served(&self, live: &OpenConnection) {
        // The time is that of the connection's newest reply, so the clock need not be read again.
        self.served.store(live.answered.load(Ordering::Relaxed), Ordering::Relaxed);
        self.outage.is_over();
    }

    pub(super) fn last_served(&self) -> Option<Moment> {
        let nanos = self.served.load(Ordering::Relaxed);
        (nanos > 0).then_some(Moment::from_nanos(nanos))
    }

    /// Returns this runtime's connection, if it is open.
    pub(super) fn current(&self) -> Option<Arc<OpenConnection>> {
        let runtime = Handle::try_current().ok()?.id();
        let connections = self.of.lock();
        let connection = connections.iter().find(|connection| connection.runtime == runtime)?;
        connection.open().cloned()
    }

    /// Returns true if the node has sent an answer since `since` on a connection other than `live`.
    pub(super) fn has_answered_elsewhere(&self, live: &OpenConnection, since: Moment) -> bool {
        let others = self.of.lock();
        let mut others = others.iter().filter_map(RuntimeConnection::open);
        others.any(|other| other.number != live.number && other.has_answered_since(since))
    }

    /// Gives up a connection: no new request is sent on it. Callers that wait for its permits use another connection.
    pub(super) fn give_up(&self, live: &OpenConnection) {
        for connection in self.of.lock().iter_mut() {
            drop(connection.live.take_if(|current| current.number == live.number));
        }
        live.space.close();
    }

    /// Gives up the connections that are closed, on all runtimes.
    pub(super) fn give_up_closed(&self) {
        let mut closed = Vec::new();
        for connection in self.of.lock().iter_mut() {
            closed.extend(connection.live.take_if(|live| !live.is_open()));
        }
        closed.iter().for_each(|live| live.space.close());
    }

    /// Returns this runtime's connection. Dials a new connection if there is none.
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
            && CLOCK.now().since(*at) < DIAL_PAUSE
        {
            return Err(fault.clone());
        }
        let connections = Arc::clone(self);
        // The dial is a task of its own, which goes on when its caller gives up. Otherwise callers with short time
        // limits would never get a connection.
        let dialed = process::spawn_on(&runtime, async move {
            let _dialing = dialing;
            connections.connect().await
        });
        // A dial without a result means that the runtime has ended.
        dialed.await.unwrap_or(Err(DialFault::NotSent(None)))
    }

    /// Returns the lock that a task of this runtime must hold while it dials. If the runtime has no entry yet, first
    /// removes the entries of runtimes without a connection, because those runtimes may have ended.
    fn dialing(&self, runtime: Id) -> Arc<tokio::sync::Mutex<()>> {
        let mut connections = self.of.lock();
        if let Some(connection) = connections.iter().find(|connection| connection.runtime == runtime) {
            return Arc::clone(&connection.dialing);
        }
        connections.retain(|connection| Arc::strong_count(&connection.dialing) > 1 || connection.open().is_some());
        let dialing = Arc::default();
        connections.push(RuntimeConnection { runtime, live: None, has_had: false, dialing: Arc::clone(&dialing) });
        dialing
    }

    async fn connect(self: Arc<Self>) -> Result<Arc<OpenConnection>, DialFault> {
        let began = CLOCK.now();
        let dialed = self.dial(Sharing::Shared).await;
        let now = CLOCK.now();
        *self.failed.lock() = dialed.as_ref().err().map(|fault| (now, fault.clone()));
        if let Ok(live) = &dialed {
            self.begins(live);
        }
        self.note_dial(&dialed, began, now);
        // Last, so that the log tells the end of an outage before what the check-up finds.
        if let Ok(live) = &dialed {
            self.check_up_in_background(live);
        }
        dialed
    }

    /// Notes whether the server has accepted a connection. The dial lasted from `began` until `now`.
    pub(super) fn note_dial(&self, dialed: &Result<Arc<OpenConnection>, DialFault>, began: Moment, now: Moment) {
        match dialed {
            Ok(_) => self.outage.note_greeting(now),
            // A refusal is an answer, so the node is in no outage.
            Err(DialFault::Refused(refusal, words)) => self.outage.refuses(*refusal, words, now),
            Err(DialFault::NotSent(source)) => self.outage.begins(source.clone(), began, now),
        }
    }

    /// Makes a new connection the connection of this runtime.
    fn begins(&self, live: &Arc<OpenConnection>) {
        // The connection may lead to another server, which takes the fast form.
        self.dialects.forget_refusal();
        let runtime = Handle::current().id();
        let mut connections = self.of.lock();
        // The entry exists, because the dial holds its lock.
        if let Some(connection) = connections.iter_mut().find(|connection| connection.runtime == runtime) {
            let is_another = std::mem::replace(&mut connection.has_had, true);
            if is_another {
                self.reconnects.fetch_add(1, Ordering::Relaxed);
                self.reconnects_counter.add_one();
            }
            connection.live = Some(Arc::clone(live));
        }
    }
}

/// Returns an address for error messages. If the user did not name the address, the text includes its source.
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

/// Converts a fault that happened before a connection was open. No request was sent, so the result never says that a
/// request may have run.
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
