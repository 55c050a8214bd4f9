//! A proxy in front of one server, which makes the network bad.
//!
//! One thread carries all bytes and does what rules say ([`engine`]). A connection is two flows of chunks, of which each
//! waits for a moment or behind a gate ([`flow`]); requests and replies are told apart ([`wire`]) and paired ([`pending`]),
//! so that a rule finds its request in the middle of a pipeline and knows which reply is the one.

use std::{
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroU32,
    time::{Duration, Instant},
};

use crate::{Result, port::PortReservation, wait_for};
use engine::{Engine, Mode, Remote, State};
use rules::{Action, Rule};

mod connection;
mod engine;
mod flow;
mod held;
mod limit;
mod matcher;
mod messages;
mod pending;
mod rules;
mod wire;

pub use held::{Fault, HeldReply, HeldRequest};
pub use matcher::{Matcher, Request};

/// A TCP proxy in front of a server: passes everything on until it is told otherwise.
///
/// What a method orders has taken effect when it returns. Faults of the connections ([`delay`](Self::delay),
/// [`freeze`](Self::freeze), [`black_hole`](Self::black_hole), [`cut`](Self::cut), [`refuse`](Self::refuse)) concern all that
/// goes through the proxy, the links from replicas included. Faults of one request concern the next one that matches, on
/// whichever connection, and no other; when several wait for the same request the oldest takes it.
///
/// Bytes that are not RESP, such as TLS, are passed on without a look at them, so no matcher finds anything there; neither
/// does one after `SYNC`, `PSYNC`, `MONITOR` or `CLIENT REPLY` on the same connection.
#[derive(Debug)]
pub struct Proxy {
    engine: Engine,
    port: PortReservation,
}

impl Proxy {
    /// Starts a proxy on a port of its own in front of the server at `server`, which need not run yet.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) when the operating system refuses a port or a thread.
    pub fn before(server: SocketAddr) -> Result<Self> {
        let port = PortReservation::new()?;
        Ok(Self { engine: Engine::start(port.port(), server)?, port })
    }

    /// Where the proxy listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    /// The port on which the proxy listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.port()
    }

    /// `redis://127.0.0.1:PORT`, with the proxy's port.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    /// Everything that comes from now on is passed on so much later, in each direction: a round trip takes twice as long
    /// more. Order and throughput stay as they are.
    pub fn delay(&self, each_way: Duration) {
        self.order(move |state| state.delay = each_way);
    }

    /// Nothing gets through from now on, and nothing is lost: it all arrives late, after [`heal`](Self::heal). Connections
    /// are accepted, none is reset.
    pub fn freeze(&self) {
        self.order(|state| state.set_mode(Mode::Frozen));
    }

    /// Everything that is on its way or comes from now on vanishes, in both directions, without a reset. Connections are
    /// accepted and ignored. A connection that has been in the black hole stays silent even after [`heal`](Self::heal), as
    /// after a firewall that forgot it.
    pub fn black_hole(&self) {
        self.order(|state| state.set_mode(Mode::BlackHole));
    }

    /// Resets all connections, on both sides. New ones work.
    pub fn cut(&self) {
        self.order(State::cut);
    }

    /// Leads new connections to another server. Those that are there go on with the old one, as behind a virtual address.
    pub fn lead_to(&self, server: SocketAddr) {
        self.order(move |state| state.lead_to(server));
    }

    /// Refuses new connections. Those that are there go on.
    ///
    /// # Panics
    ///
    /// Never: only listening again can fail.
    pub fn refuse(&self) {
        self.order(|state| state.set_refusing(true)).expect("a listener can always be closed");
    }

    /// Lets so many scripts pass in a second from now on, on all connections together, as a server does that is slow or has
    /// much to do. The others wait here, first come, first served; on a connection, what follows a script waits with it.
    /// Quiet time is not saved up for later. What passes in the same millisecond on several connections may reach the server
    /// in any order.
    pub fn limit_scripts(&self, per_second: NonZeroU32) {
        self.order(move |state| state.rules.limit.begin(per_second, Instant::now()));
    }

    /// How many scripts have come to the proxy and have not been passed on to the server yet.
    pub fn scripts_waiting(&self) -> usize {
        self.order(|state| state.scripts_waiting())
    }

    /// Ends [`delay`](Self::delay), [`freeze`](Self::freeze), [`black_hole`](Self::black_hole), [`refuse`](Self::refuse) and
    /// [`limit_scripts`](Self::limit_scripts), of which what waits passes when it would have.
    /// What waits for single requests stays.
    ///
    /// # Panics
    ///
    /// When another program has taken the port although it is reserved.
    pub fn heal(&self) {
        let healed = self.order(|state| {
            state.delay = Duration::ZERO;
            state.rules.limit.end();
            state.set_mode(Mode::Passing);
            state.set_refusing(false)
        });
        healed.expect("the port is reserved");
    }

    /// Lets the server apply the next matching request, drops the reply and resets the connection.
    pub fn cut_after_apply(&self, matcher: impl Into<Matcher>) -> Fault {
        Fault::new(self.remote(), self.arm(matcher, Action::CutAfterApply))
    }

    /// Sends the next matching request twice, and drops the second reply.
    pub fn duplicate_request(&self, matcher: impl Into<Matcher>) -> Fault {
        Fault::new(self.remote(), self.arm(matcher, Action::Duplicate))
    }

    /// Lets the server apply the next matching request, and keeps its reply, with all that follows on that connection, until
    /// told otherwise.
    pub fn hold_reply(&self, matcher: impl Into<Matcher>) -> HeldReply {
        HeldReply::new(self.remote(), self.arm(matcher, Action::HoldReply))
    }

    /// Keeps the next matching request, with all that follows on that connection, from the server until told otherwise.
    pub fn hold_request(&self, matcher: impl Into<Matcher>) -> HeldRequest {
        HeldRequest::new(self.remote(), self.arm(matcher, Action::HoldRequest))
    }

    /// Loses the next `count` messages that a server publishes on channels whose name contains `channel`, on whichever connections,
    /// and nothing else. For clients that speak version 3 of the protocol.
    pub fn lose_messages(&self, channel: impl Into<Vec<u8>>, count: usize) {
        let channel = channel.into();
        self.order(move |state| state.rules.messages.lose(channel, count));
    }

    /// How many messages have been lost by [`lose_messages`](Self::lose_messages) for this `channel`.
    pub fn messages_lost(&self, channel: impl Into<Vec<u8>>) -> usize {
        let channel = channel.into();
        self.order(move |state| state.rules.messages.count(&channel))
    }

    /// How many matching requests have come to the proxy, from its start or from [`Proxy::forget_requests`] on. It keeps a
    /// copy of all requests for this.
    pub fn requests_seen(&self, matcher: impl Into<Matcher>) -> usize {
        let matcher = matcher.into();
        self.order(move |state| state.rules.count_seen(&matcher))
    }

    /// Waits until at least `count` matching requests have come to the proxy.
    ///
    /// # Errors
    ///
    /// [`Error::NotInTime`](crate::Error::NotInTime) when they have not after `timeout`.
    pub fn wait_for_requests(&self, matcher: impl Into<Matcher>, count: usize, timeout: Duration) -> Result<()> {
        let matcher = matcher.into();
        let what = format!("{count} matching requests");
        wait_for(what, timeout, || (self.requests_seen(matcher.clone()) >= count).then_some(()))
    }

    /// Counts requests from zero again.
    pub fn forget_requests(&self) {
        self.order(|state| state.rules.forget_seen());
    }

    /// How many connections there are at the moment.
    pub fn connections(&self) -> usize {
        self.order(|state| state.connections())
    }

    /// How many connections there have been since the proxy was started.
    pub fn connections_made(&self) -> u64 {
        self.order(|state| state.connections_made())
    }

    /// Refuses connections because there is no server for them, or no longer does.
    pub(crate) fn set_server_down(&self, is_down: bool) -> Result<()> {
        self.order(move |state| state.set_server_down(is_down))
    }

    fn arm(&self, matcher: impl Into<Matcher>, action: Action) -> Rule {
        let matcher = matcher.into();
        self.order(move |state| state.rules.arm(matcher, action))
    }

    fn order<T: Send + 'static>(&self, order: impl FnOnce(&mut State) -> T + Send + 'static) -> T {
        self.remote().ask(order).expect("the proxy's thread lives as long as the proxy, unless a matcher panics")
    }

    fn remote(&self) -> &Remote {
        self.engine.remote()
    }
}
