//! Proxy in front of one server, which simulates a bad network.
//!
//! One thread carries all bytes and applies the rules ([`engine`]). A connection is two flows of chunks, each of which
//! waits for a moment or behind a gate ([`flow`]). Requests and replies are parsed ([`wire`]) and paired ([`pending`]).
//! So a rule finds its request in the middle of a pipeline, and knows which reply belongs to it.

use std::{
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroU32,
    time::{Duration, Instant},
};

use crate::{Result, client::encode, port::PortReservation, wait_for};
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

/// TCP proxy in front of a server. It forwards everything until a test orders a fault.
///
/// An order has taken effect when its method returns.
///
/// Faults of the connections ([`delay`](Self::delay), [`freeze`](Self::freeze), [`black_hole`](Self::black_hole),
/// [`cut`](Self::cut), [`refuse`](Self::refuse)) concern all connections, the links from replicas included. A fault of
/// one request concerns only the next request that matches, on any connection. If several faults wait for the same
/// request, the oldest fault takes it.
///
/// The proxy does not parse bytes that are not RESP, such as TLS. So no matcher finds a request in such bytes. The
/// proxy also stops parsing after `SYNC`, `PSYNC`, `MONITOR` or `CLIENT REPLY` on the same connection.
#[derive(Debug)]
pub struct Proxy {
    engine: Engine,
    port: PortReservation,
}

impl Proxy {
    /// Starts a proxy on a new port in front of the server at `server`. The server need not run yet.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) when the operating system refuses a port or a thread.
    pub fn before(server: SocketAddr) -> Result<Self> {
        let port = PortReservation::new()?;
        Ok(Self { engine: Engine::start(port.port(), server)?, port })
    }

    /// Address on which the proxy listens.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    /// Port on which the proxy listens.
    pub fn port(&self) -> u16 {
        self.port.port()
    }

    /// URL of the proxy, `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    /// Delays all bytes that arrive from now on by `each_way` in each direction. A round trip takes twice this time
    /// longer. Order and throughput do not change.
    pub fn delay(&self, each_way: Duration) {
        self.order(move |state| state.delay = each_way);
    }

    /// Stops all traffic from now on, but loses no bytes. All bytes arrive late, after [`heal`](Self::heal). The proxy
    /// accepts new connections and resets none.
    pub fn freeze(&self) {
        self.order(|state| state.set_mode(Mode::Frozen));
    }

    /// Drops all traffic, on its way or new, in both directions and without a reset.
    ///
    /// New connections are accepted and ignored. A connection that was in the black hole stays silent even after
    /// [`heal`](Self::heal), as with a firewall that has forgotten the connection.
    pub fn black_hole(&self) {
        self.order(|state| state.set_mode(Mode::BlackHole));
    }

    /// Resets all connections, on both sides. New connections work.
    pub fn cut(&self) {
        self.order(State::cut);
    }

    /// Connects new connections to another server. Existing connections go on with the old server, as behind a virtual
    /// address.
    pub fn lead_to(&self, server: SocketAddr) {
        self.order(move |state| state.lead_to(server));
    }

    /// Refuses new connections. Existing connections go on.
    ///
    /// # Panics
    ///
    /// Never, since only a start of listening can fail.
    pub fn refuse(&self) {
        self.order(|state| state.set_refusing(true)).expect("a listener can always be closed");
    }

    /// Limits the scripts per second, on all connections together, as a slow or busy server does.
    ///
    /// Scripts above the limit wait in the proxy, in the order of their arrival. Later requests on the connection of a
    /// waiting script wait too. Unused time does not raise the limit later. Scripts that pass in the same millisecond
    /// on several connections may reach the server in any order.
    pub fn limit_scripts(&self, per_second: NonZeroU32) {
        self.order(move |state| state.rules.limit.begin(per_second, Instant::now()));
    }

    /// Number of scripts that have arrived and have not been forwarded to the server yet.
    pub fn scripts_waiting(&self) -> usize {
        self.order(|state| state.scripts_waiting())
    }

    /// Ends [`delay`](Self::delay), [`freeze`](Self::freeze), [`black_hole`](Self::black_hole),
    /// [`refuse`](Self::refuse) and [`limit_scripts`](Self::limit_scripts).
    ///
    /// Scripts that wait because of a limit keep their times. Faults of single requests stay.
    ///
    /// # Panics
    ///
    /// When another program has taken the port despite the reservation.
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

    /// Lets the server apply the next matching request. Holds the reply, and all bytes after it on the same connection,
    /// until the test releases the reply.
    pub fn hold_reply(&self, matcher: impl Into<Matcher>) -> HeldReply {
        HeldReply::new(self.remote(), self.arm(matcher, Action::HoldReply))
    }

    /// Holds the next matching request, and all bytes after it on the same connection, until the test releases the
    /// request.
    pub fn hold_request(&self, matcher: impl Into<Matcher>) -> HeldRequest {
        HeldRequest::new(self.remote(), self.arm(matcher, Action::HoldRequest))
    }

    /// Replaces all matching requests by `command` from now on. The client gets the server's reply to this command, such
    /// as an error. A matcher sees both the request and the command.
    pub fn replace_requests(&self, matcher: impl Into<Matcher>, command: &[impl AsRef<[u8]>]) {
        let (matcher, mut bytes) = (matcher.into(), Vec::new());
        encode(command, &mut bytes);
        self.order(move |state| state.rules.replace(matcher, bytes));
    }

    /// Drops the next `count` messages on channels whose name contains `channel`, on any connection, and nothing else.
    /// Only for clients that speak version 3 of the protocol.
    pub fn lose_messages(&self, channel: impl Into<Vec<u8>>, count: usize) {
        let channel = channel.into();
        self.order(move |state| state.rules.messages.lose(channel, count));
    }

    /// Number of messages for this `channel` that [`lose_messages`](Self::lose_messages) has dropped.
    pub fn messages_lost(&self, channel: impl Into<Vec<u8>>) -> usize {
        let channel = channel.into();
        self.order(move |state| state.rules.messages.count(&channel))
    }

    /// Number of matching requests since the start, or since [`Proxy::forget_requests`]. The proxy keeps a copy of all
    /// requests for this.
    pub fn requests_seen(&self, matcher: impl Into<Matcher>) -> usize {
        let matcher = matcher.into();
        self.order(move |state| state.rules.count_seen(&matcher))
    }

    /// Waits until at least `count` matching requests have arrived.
    ///
    /// # Errors
    ///
    /// [`Error::NotInTime`](crate::Error::NotInTime) when fewer requests have arrived after `timeout`.
    pub fn wait_for_requests(&self, matcher: impl Into<Matcher>, count: usize, timeout: Duration) -> Result<()> {
        let matcher = matcher.into();
        let what = format!("{count} matching requests");
        wait_for(what, timeout, || (self.requests_seen(matcher.clone()) >= count).then_some(()))
    }

    /// Counts requests from zero again.
    pub fn forget_requests(&self) {
        self.order(|state| state.rules.forget_seen());
    }

    /// Number of connections at present.
    pub fn connections(&self) -> usize {
        self.order(|state| state.connections())
    }

    /// Number of connections since the proxy was started.
    pub fn connections_made(&self) -> u64 {
        self.order(|state| state.connections_made())
    }

    /// Refuses connections while the server does not run.
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
