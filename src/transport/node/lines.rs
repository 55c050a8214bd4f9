//! The connections to one node: one for each runtime that calls it.
//!
//! What drives a connection is a task of the runtime that dialled it. A runtime that ends, or stands still, takes nobody
//! along but its own callers, and a reply is read by the runtime that waits for it. A connection is made for everybody on its
//! runtime, in a task of its own: a caller that gives up does not take it along.
//!
//! From the moment on at which a server closes it nothing is sent on it, so what waits for the next connection is known not to have
//! been carried out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::ConnectionInfo;
use tokio::runtime::{Handle, Id};

use super::connection::Connection;
use super::dial::Departures;
use super::room::Space;
use super::silence::Silence;
use super::steps::Steps;
use super::{OnLoss, Reports};
use crate::attempt::NodeId;
use crate::clock::Clock;
use crate::error::{Refusal, Source};
use crate::home::Home;
use crate::lease::{Anchor, Moment};
use crate::meter::Tally;
use crate::process;
use crate::topology::AddressSource;
use crate::transport::conditions::Conditions;
use crate::transport::fault::Fault;
use crate::transport::node::Limits;
use crate::transport::outages::Outages;
use crate::transport::secrets::Secrets;

/// After a failed dial others are told the same for this long, instead of queueing up to dial one after the other.
const DIAL_PAUSE: Duration = Duration::from_millis(50);

/// What can be done with one node without knowing any call.
pub(super) struct Lines {
    pub(super) address: Arc<str>,
    /// The address for errors.
    pub(super) shown: Arc<str>,
    pub(super) id: NodeId,
    pub(super) info: ConnectionInfo,
    pub(super) secrets: Arc<Secrets>,
    pub(super) on_loss: Option<OnLoss>,
    pub(super) departures: Mutex<Departures>,
    pub(super) steps: Steps,
    pub(super) limits: Limits,
    pub(super) clock: Clock,
    pub(super) home: Home,
    of: Mutex<Vec<Line>>,
    /// How many connections there have been.
    pub(super) dialed: AtomicU64,
    /// How many of them came in place of another one.
    reconnects: AtomicU64,
    reconnects_tally: Tally,
    failed: Mutex<Option<(Moment, DialFault)>>,
    /// When the node last did what it was asked, in nanoseconds of the local clock; zero for never.
    served: AtomicU64,
    /// Since when it has been running, likewise; zero where nobody has asked.
    pub(super) up_since: AtomicU64,
    pub(super) silence: Silence,
    pub(super) outages: Arc<Outages>,
    pub(super) conditions: Arc<Conditions>,
    /// When the server's clock was last compared with others, in nanoseconds of the local clock.
    pub(super) clock_noted: AtomicU64,
}

/// The connection of one runtime.
struct Line {
    runtime: Id,
    live: Option<Arc<Live>>,
    /// There has been a connection.
    has_had: bool,
    /// Whoever has it dials.
    dialing: Arc<tokio::sync::Mutex<()>>,
}

/// A connection, and what is known of its server's clock.
pub(super) struct Live {
    /// No other connection to this node has the same.
    pub(super) number: u64,
    pub(super) connection: Connection,
    pub(super) anchor: Mutex<Anchor>,
    /// By the server, or with its runtime. What is not handed over by then is never sent.
    pub(super) is_closed: Arc<AtomicBool>,
    /// When the last request was sent that was answered: nanoseconds of the local clock.
    answered: AtomicU64,
    pub(super) space: Space,
    /// Nobody else waits for what comes on it.
    pub(super) is_apart: bool,
}

/// Whether a connection serves several requests at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sharing {
    Shared,
    Apart,
}

/// A fault that can be told more than once.
#[derive(Clone, Debug, thiserror::Error)]
pub(in crate::transport) enum DialFault {
    #[error("{}", .0.as_ref().map_or_else(|| "no connection".to_owned(), ToString::to_string))]
    NotSent(Option<Source>),
    #[error("{1}")]
    Refused(Refusal, String),
}

impl Live {
    pub(super) fn new(
        number: u64,
        connection: Connection,
        anchor: Anchor,
        closed: Arc<AtomicBool>,
        response_timeout: Duration,
        sharing: Sharing,
    ) -> Self {
        Self {
            number,
            connection,
            anchor: Mutex::new(anchor),
            is_closed: closed,
            answered: AtomicU64::new(anchor.sent.as_nanos()),
            space: Space::new(response_timeout),
            is_apart: sharing == Sharing::Apart,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        !self.is_closed.load(Ordering::Acquire)
    }

    /// A reply has come now.
    pub(super) fn has_answered(&self, now: Moment) {
        self.answered.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Whether any reply has come since that moment.
    pub(super) fn has_answered_since(&self, moment: Moment) -> bool {
        self.answered.load(Ordering::Relaxed) >= moment.as_nanos()
    }
}

impl Lines {
    pub(super) fn new(
        address: &str,
        info: ConnectionInfo,
        limits: Limits,
        clock: Clock,
        home: Home,
        reports: Reports,
    ) -> Self {
        let shown = shown(address, &reports.source).into();
        let (id, address) = (NodeId::of(address), address.into());
        let silence = Silence::new(&address, reports.source, Arc::clone(&reports.outages));
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
            home,
            of: Mutex::default(),
            dialed: AtomicU64::new(0),
            reconnects: AtomicU64::new(0),
            reconnects_tally: Tally::of_reconnects(),
            failed: Mutex::new(None),
            served: AtomicU64::new(0),
            up_since: AtomicU64::new(0),
            silence,
            outages: reports.outages,
            conditions: reports.conditions,
            clock_noted: AtomicU64::new(0),
        }
    }

    /// The node has done what it was asked.
    pub(super) fn has_served(&self, live: &Live) {
        // As the connection has it, whose reply it is.
        self.served.store(live.answered.load(Ordering::Relaxed), Ordering::Relaxed);
        self.silence.is_over();
    }

    pub(super) fn served(&self) -> Option<Moment> {
        let nanos = self.served.load(Ordering::Relaxed);
        (nanos > 0).then_some(Moment::from_nanos(nanos))
    }

    /// Since when the server has been running that whoever is connected now is connected to. One that has restarted has said so
    /// before it is asked anything else.
    pub(super) fn up_since(&self) -> Option<Moment> {
        let nanos = self.up_since.load(Ordering::Acquire);
        (nanos > 0).then_some(Moment::from_nanos(nanos))
    }

    /// The connection of this runtime, if it has one.
    pub(super) fn current(&self) -> Option<Arc<Live>> {
        let runtime = Handle::try_current().ok()?.id();
        let lines = self.of.lock();
        let line = lines.iter().find(|line| line.runtime == runtime)?;
        line.live.as_ref().filter(|live| live.is_open()).cloned()
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.of.lock().len()
    }

    /// Whether any runtime has one.
    pub(super) fn is_connected(&self) -> bool {
        self.of.lock().iter().any(|line| line.live.as_ref().is_some_and(|live| live.is_open()))
    }

    /// Whether the node has answered on another connection since that moment.
    pub(super) fn has_answered_elsewhere(&self, live: &Arc<Live>, since: Moment) -> bool {
        let others = self.of.lock();
        let mut others = others.iter().filter_map(|line| line.live.as_ref());
        others.any(|other| !Arc::ptr_eq(other, live) && other.is_open() && other.has_answered_since(since))
    }

    /// Nothing more is sent on a connection, and whoever waits for room on it goes elsewhere.
    pub(super) fn give_up(&self, live: &Arc<Live>) {
        let is_it = |line: &&mut Line| line.live.as_ref().is_some_and(|current| Arc::ptr_eq(current, live));
        if let Some(line) = self.of.lock().iter_mut().find(is_it) {
            line.live = None;
        }
        live.space.close();
    }

    /// Gives up the connections of all runtimes that were closed meanwhile.
    pub(super) fn give_up_closed(&self) {
        let mut closed = Vec::new();
        for line in self.of.lock().iter_mut() {
            closed.extend(line.live.take_if(|live| !live.is_open()));
        }
        closed.iter().for_each(|live| live.space.close());
    }

    /// The connection of this runtime, which is made if there is none.
    pub(super) async fn live(self: &Arc<Self>) -> Result<Arc<Live>, Fault> {
        if let Some(live) = self.current() {
            return Ok(live);
        }
        let most = self.limits.response_timeout * 3;
        let in_time = tokio::time::timeout(most, self.dial_in_turn()).await;
        in_time.unwrap_or_else(|_| Err(self.steps.no_connection_within(most))).map_err(Fault::from)
    }

    async fn dial_in_turn(self: &Arc<Self>) -> Result<Arc<Live>, DialFault> {
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
        let lines = Arc::clone(self);
        // Goes on when its caller does not: callers that wait less long than a connection takes would never get one.
        let dialed = process::spawn_on(&runtime, async move {
            let _dialing = dialing;
            lines.connect().await
        });
        // Without an outcome: its runtime has ended.
        dialed.await.unwrap_or(Err(DialFault::NotSent(None)))
    }

    /// The right to dial for a runtime. Lines of those that have ended go.
    fn dialing(&self, runtime: Id) -> Arc<tokio::sync::Mutex<()>> {
        let mut lines = self.of.lock();
        if let Some(line) = lines.iter().find(|line| line.runtime == runtime) {
            return Arc::clone(&line.dialing);
        }
        lines.retain(|line| {
            Arc::strong_count(&line.dialing) > 1 || line.live.as_ref().is_some_and(|live| live.is_open())
        });
        let dialing = Arc::default();
        lines.push(Line { runtime, live: None, has_had: false, dialing: Arc::clone(&dialing) });
        dialing
    }

    async fn connect(self: Arc<Self>) -> Result<Arc<Live>, DialFault> {
        let began = self.clock.now();
        let dialed = self.dial(Sharing::Shared).await;
        let now = self.clock.now();
        *self.failed.lock() = dialed.as_ref().err().map(|fault| (now, fault.clone()));
        match &dialed {
            Ok(live) => {
                self.begins(live);
                self.silence.greeted(now);
                self.check_up_in_background(live);
            }
            // It speaks.
            Err(DialFault::Refused(refusal, words)) => self.silence.refuses(*refusal, words, now),
            Err(DialFault::NotSent(source)) => self.silence.begins(source.clone(), began, now),
        }
        dialed
    }

    /// This runtime has a connection from now on.
    fn begins(&self, live: &Arc<Live>) {
        let runtime = Handle::current().id();
        let mut lines = self.of.lock();
        match lines.iter_mut().find(|line| line.runtime == runtime) {
            Some(line) => {
                let is_another = std::mem::replace(&mut line.has_had, true);
                self.reconnects.fetch_add(u64::from(is_another), Ordering::Relaxed);
                if is_another {
                    self.reconnects_tally.add_one();
                }
                line.live = Some(Arc::clone(live));
            }
            None => {
                let live = Some(Arc::clone(live));
                lines.push(Line { runtime, live, has_had: true, dialing: Arc::default() });
            }
        }
    }

    pub(super) fn reconnects(&self) -> u64 {
        self.reconnects.load(Ordering::Relaxed)
    }
}

/// An address with its source, unless the user named it.
pub(in crate::transport) fn shown(address: &str, source: &AddressSource) -> String {
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

/// While connecting nothing of ours was sent, whatever went wrong.
pub(in crate::transport) fn not_sent(fault: Fault) -> DialFault {
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
