//! Dials and leaves a server: takes the [steps](super::steps), and chooses among the IP addresses of the server's name.
//!
//! One name may lead to several servers, and one IP address may later lead to another server. Examples are a virtual
//! address, a Kubernetes Service, and the endpoint of a managed primary. So a dial looks for a primary among all
//! addresses of a name.
//!
//! Several addresses may lead to the same primary, such as an IPv4 and an IPv6 address. So a dial begins with the
//! address of the primary that was greeted last. Otherwise each dial could choose another address. A proxy or a member
//! of a cluster is wanted at any address of its name.
//!
//! If a server reports that it is no primary, the node *leaves* this server. To leave means that the node gives up all
//! its connections, and resolves the name again for the next connection. For a while there may be no primary at any
//! address. So the pauses between two departures grow. During such a pause, callers can still inspect locks on a
//! replica.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use redis::{ConnectionAddr, Value};

use super::connection::{Connection, Request};
use super::connections::{Connections, DialFault, OpenConnection, Sharing, not_sent};
use super::dialects::publishing_question;
use super::greeting::{
    check_server, hello_field, info, is_replica, parse_time, parse_uptime, speaks_resp2, unreadable,
};
use super::in_flight::InFlightLimit;
use super::push_handler::PushHandler;
use super::relogin::Relogin;
use super::steps::unsupported_address;
use super::wire::Stream;
use super::{Node, OnLoss, Role};
use crate::base::backoff::{Backoff, Jitter};
use crate::base::error::Refusal;
use crate::base::lease::{ClockSample, Moment};
use crate::net::CLOCK;
use crate::net::fault;
use crate::net::pushed::OnPush;
use crate::net::secrets::Login;

/// Limit for the addresses of one name whose servers are greeted in one dial.
const MAX_GREETED: usize = 8;
/// Limit for the logins of one dial. After each refused login, the dial uses newer credentials, if the provider has some.
/// Credentials may change again during a slow dial, so a single repetition would not be enough.
const MAX_LOGINS: usize = 5;
/// Time after a departure. If the node leaves no server during this time, the pauses begin with the shortest again.
const DEPARTURES_APART: Duration = Duration::from_secs(2);

/// Choice among the addresses of a name, for one connection.
#[derive(Clone, Copy)]
enum Choice<'a> {
    /// All addresses of the name except these.
    AllBut(&'a [SocketAddr]),
    /// Only the address of the primary that was greeted last. All addresses of the name, if no primary was greeted or
    /// the name no longer has this address.
    Primary,
    /// Same address as for `Primary`. If this address cannot be reached, all other addresses of the name.
    PrimaryFirst,
}

/// Connected stream to a server that was not greeted yet.
struct Reached {
    stream: Stream,
    peer: Option<SocketAddr>,
    /// Number of other addresses of the name that could be chosen instead.
    others: usize,
    /// Address of the primary that was greeted last, if it could not be reached this time.
    unreached: Option<SocketAddr>,
}

/// Open connections of a node, and the times of its departures from servers.
#[derive(Default)]
pub(super) struct Departures {
    open: Vec<(Weak<AtomicBool>, Option<OnLoss>)>,
    /// Address of the primary that was greeted last. It is noted only if the name has several addresses, and never for
    /// a proxy or a member of a cluster.
    primary: Option<SocketAddr>,
    last: Option<Moment>,
    not_before: Option<Moment>,
    backoff: Backoff,
}

impl Departures {
    /// Returns true if the node may leave its server now. If so, notes the time of this departure.
    fn begins(&mut self, now: Moment) -> bool {
        if self.not_before.is_some_and(|at| now < at) {
            return false;
        }
        if self.last.is_none_or(|last| now.since(last) > DEPARTURES_APART) {
            self.backoff.reset();
        }
        self.last = Some(now);
        self.not_before = Some(now.after(self.backoff.pause(Jitter::draw())));
        true
    }
}

impl Connections {
    /// Leaves a server that is no primary, unless the node has left this server already. Later requests wait for a new
    /// connection, which resolves the name again. Requests that were sent already still get their answers.
    pub(super) fn leave(&self, live: &OpenConnection) {
        if live.is_open() {
            self.leave_now();
        }
    }

    fn leave_now(&self) {
        let mut departures = self.departures.lock();
        if !departures.begins(CLOCK.now()) {
            return;
        }
        departures.primary = None;
        self.close_all_but(departures, None);
    }

    fn close_all_but(&self, mut departures: MutexGuard<'_, Departures>, stays: Option<&Arc<AtomicBool>>) {
        let mut lost = Vec::new();
        departures.open.retain(|(flag, on_loss)| {
            let Some(flag) = flag.upgrade() else { return false };
            if stays.is_some_and(|stays| Arc::ptr_eq(stays, &flag)) {
                return true;
            }
            flag.store(true, Ordering::Release);
            lost.extend(on_loss.clone());
            false
        });
        // The lock is released first, because the handlers take locks of their own.
        drop(departures);
        self.give_up_closed();
        lost.iter().for_each(|on_loss| on_loss());
    }

    fn register(&self, is_closed: &Arc<AtomicBool>, on_loss: Option<OnLoss>) {
        let mut departures = self.departures.lock();
        departures.open.retain(|(flag, _)| flag.strong_count() > 0);
        departures.open.push((Arc::downgrade(is_closed), on_loss));
    }

    /// Notes the address of a primary. If this is another address than before, gives up all connections except the
    /// connection to which the flag `is_closed` belongs.
    fn note_primary(&self, peer: SocketAddr, is_closed: &Arc<AtomicBool>) {
        let mut departures = self.departures.lock();
        if departures.primary.replace(peer) == Some(peer) {
            return;
        }
        self.close_all_but(departures, Some(is_closed));
    }

    /// Connects, and asks the server for its role and its clock. If no address leads to a primary, returns a connection
    /// to a replica instead.
    pub(super) async fn dial(&self, sharing: Sharing) -> Result<Arc<OpenConnection>, DialFault> {
        self.with_newest_login(|login| async move { self.dial_with(&login, sharing).await }).await
    }

    /// Dials, and dials again with newer credentials after a refused login.
    async fn with_newest_login<T, F: Future<Output = Result<T, DialFault>>>(
        &self,
        dial: impl Fn(Arc<Login>) -> F,
    ) -> Result<T, DialFault> {
        let limit = self.limits.response_timeout;
        let mut login = Arc::new(self.secrets.login(&self.info, limit).await?);
        for _ in 1..MAX_LOGINS {
            let refused = match dial(Arc::clone(&login)).await {
                Err(refused @ DialFault::Refused(Refusal::Unauthenticated, _)) => refused,
                dialed => return dialed,
            };
            login = Arc::new(self.secrets.login_after_refusal(&login, limit).await.ok_or(refused)?);
        }
        dial(login).await
    }

    async fn dial_with(&self, login: &Login, sharing: Sharing) -> Result<Arc<OpenConnection>, DialFault> {
        let (mut tried, mut replica, mut failed) = (Vec::new(), None, None);
        loop {
            let is_closed = Arc::<AtomicBool>::default();
            self.register(&is_closed, self.on_loss.clone());
            let choice = if tried.is_empty() { Choice::PrimaryFirst } else { Choice::AllBut(&tried) };
            let reached = match self.reach(choice).await {
                Ok(reached) => reached,
                Err(fault) => return replica.ok_or(failed.unwrap_or(fault)),
            };
            let (peer, others) = (reached.peer, reached.others);
            tried.extend(reached.unreached);
            let push_handler = PushHandler::new(Arc::clone(&is_closed), self.on_loss.clone(), None);
            match self.greet(login, reached, push_handler, &is_closed, sharing).await {
                Ok((live, hello)) if self.has_one_primary() && is_replica(&hello) => replica = replica.or(Some(live)),
                Ok((live, _)) => {
                    if self.has_one_primary()
                        && let Some(peer) = peer.filter(|_| others > 0 || !tried.is_empty())
                    {
                        self.note_primary(peer, &is_closed);
                    }
                    return Ok(live);
                }
                Err(fault) => failed = failed.or(Some(fault)),
            }
            match peer {
                Some(peer) if others > 0 && tried.len() < MAX_GREETED => tried.push(peer),
                _ => return replica.ok_or(failed.unwrap_or(DialFault::NotSent(None))),
            }
        }
    }

    /// Dials a connection for subscriptions. Uses the address of the primary that was greeted last, if the name still
    /// has this address. Otherwise uses any address of the name.
    async fn dial_link_with(&self, login: &Login, on_loss: &OnLoss, on_push: &OnPush) -> Result<Connection, DialFault> {
        let is_closed = Arc::<AtomicBool>::default();
        self.register(&is_closed, Some(Arc::clone(on_loss)));
        let reached = self.reach(Choice::Primary).await?;
        let push_handler = PushHandler::new(is_closed, Some(Arc::clone(on_loss)), Some(Arc::clone(on_push)));
        // The link needs the answer, and may be dialled before any other connection.
        let publishing = publishing_question();
        let (connection, _, answers) =
            self.log_in(login, reached, push_handler, &[Request::Command(&publishing)]).await?;
        answers.first().iter().for_each(|answer| self.dialects.note_publishing(answer));
        Ok(connection)
    }

    async fn reach(&self, choice: Choice<'_>) -> Result<Reached, DialFault> {
        let alone = |stream| Reached { stream, peer: None, others: 0, unreached: None };
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                let addresses = self.steps.look_up(&self.address, host, *port).await?;
                self.reach_among(addresses, choice).await
            }
            ConnectionAddr::Unix(path) => self.steps.connect_path(path).await.map(alone),
            other => Err(unsupported_address(other)),
        }
    }

    /// Connects to an address of a name.
    async fn reach_among(&self, mut addresses: Vec<SocketAddr>, choice: Choice<'_>) -> Result<Reached, DialFault> {
        let primary = match choice {
            Choice::AllBut(tried) => {
                addresses.retain(|address| !tried.contains(address));
                None
            }
            Choice::Primary | Choice::PrimaryFirst => {
                self.departures.lock().primary.filter(|noted| addresses.contains(noted))
            }
        };
        if let Some(primary) = primary {
            let fault = match self.steps.connect(&[primary]).await {
                Ok((stream, peer)) => {
                    let others = addresses.len() - 1;
                    return Ok(Reached { stream, peer: Some(peer), others, unreached: None });
                }
                Err(fault) => fault,
            };
            addresses.retain(|address| *address != primary);
            if matches!(choice, Choice::Primary) || addresses.is_empty() {
                return Err(fault);
            }
        }
        let (stream, peer) = self.steps.connect(&addresses).await?;
        Ok(Reached { stream, peer: Some(peer), others: addresses.len() - 1, unreached: primary })
    }

    /// Returns true if one server is the primary, so that another address is wrong or leads to the same server. Returns
    /// false if a server at any address of the name is as good as the others.
    fn has_one_primary(&self) -> bool {
        matches!(self.limits.role, Role::Standalone | Role::Voter)
    }

    /// Encrypts the stream if the URL requires TLS, logs in, and sends `questions` with the same write. Checks the
    /// server's answer to `HELLO`.
    async fn log_in(
        &self,
        login: &Login,
        reached: Reached,
        push_handler: PushHandler,
        questions: &[Request<'_>],
    ) -> Result<(Connection, Value, Vec<Value>), DialFault> {
        let (info, response_timeout) = (&login.info, self.limits.response_timeout);
        let stream = self.steps.encrypt(reached.stream, info.addr(), &self.secrets).await?;
        let (check, subscribes) = (|hello| check_server(hello, self.limits.role), push_handler.is_subscribing());
        let logged_in = self.steps.log_in(stream, info.redis_settings(), push_handler, questions, check).await?;
        let (mut connection, hello, answers) = logged_in;
        self.speaks_resp2.store(speaks_resp2(&hello), Ordering::Relaxed);
        // In RESP2, a connection that has subscribed takes no `AUTH`. If the server ends it, the next one logs in anew.
        let takes_auth = !subscribes || !speaks_resp2(&hello);
        if takes_auth {
            connection._relogin = Relogin::start(&connection.wire, login, &self.address, response_timeout);
        }
        Ok((connection, hello, answers))
    }

    /// Greets a server. Returns the connection, and the server's answer to `HELLO`.
    async fn greet(
        &self,
        login: &Login,
        reached: Reached,
        push_handler: PushHandler,
        is_closed: &Arc<AtomicBool>,
        sharing: Sharing,
    ) -> Result<(Arc<OpenConnection>, Value), DialFault> {
        let (time, of_server, publishing) = (redis::cmd("TIME"), info("server"), publishing_question());
        let mut questions = vec![Request::Command(&publishing), Request::Command(&time)];
        if self.limits.role == Role::Voter {
            questions.push(Request::Command(&of_server));
        }
        let sent = CLOCK.now();
        let (connection, hello, mut answers) = self.log_in(login, reached, push_handler, &questions).await?;
        if self.limits.role == Role::Voter
            && let Some(uptime) = answers.pop().and_then(|info| parse_uptime(&info))
        {
            // Counted from the answer: a moment that is too late delays a vote, and one that is too early could allow it.
            let up_since = CLOCK.now().before(uptime).as_nanos();
            // Several servers may have been greeted at this address. The latest of their starts counts, because
            // connections to an older server bring no answers any more.
            self.up_since.fetch_max(up_since.max(1), Ordering::AcqRel);
        }
        let named = |field| hello_field(&hello, field).unwrap_or_default();
        let time = fault::reply(answers.swap_remove(1)).map_err(not_sent)?;
        self.dialects.note_publishing(&answers.swap_remove(0));
        let server = parse_time(&time).ok_or_else(|| not_sent(unreadable("TIME")))?;
        self.conditions.note_connected(&self.address, &named("server"), &named("version"));
        self.note_time(server, sent, CLOCK.now());
        let live = OpenConnection {
            number: self.dialed.fetch_add(1, Ordering::Relaxed),
            connection,
            clock_sample: Mutex::new(ClockSample { sent, server }),
            is_closed: Arc::clone(is_closed),
            opened: sent,
            answered: AtomicU64::new(sent.as_nanos()),
            space: InFlightLimit::new(self.limits.response_timeout),
            is_apart: sharing == Sharing::Apart,
        };
        Ok((Arc::new(live), hello))
    }
}

impl Node {
    /// Dials a connection that carries only subscriptions. `on_push` receives the pushes of the server. `on_loss` runs
    /// when the connection is lost.
    pub(in crate::net) async fn dial_link(&self, on_loss: OnLoss, on_push: OnPush) -> Result<Connection, DialFault> {
        let (connections, on_loss, on_push) = (&self.connections, &on_loss, &on_push);
        let dial = |login: Arc<Login>| async move { connections.dial_link_with(&login, on_loss, on_push).await };
        connections.with_newest_login(dial).await
    }

    /// Leaves the server if `hello` shows that it is a replica. `hello` is the server's answer to `HELLO` on another
    /// connection.
    pub(in crate::net) fn note_role(&self, hello: &Value) {
        if is_replica(hello) {
            self.connections.leave_now();
        }
    }
}
