//! Dialling and leaving a server: name, TCP and greeting, each within a time of its own.
//!
//! A name may lead to several servers, and an address to another one than before: behind a virtual address, a Service or the
//! endpoint of a managed primary. So a primary is looked for among all addresses of a name, and a server that says that it is
//! none is *left*: all connections to the node are given up, and the next one resolves the name anew. Pauses between two
//! departures grow, since there may be no primary for a while; meanwhile a replica can still be looked at.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionAddr, PushInfo, RedisConnectionInfo, RedisError, Value};

use super::connection::{Connection, Request};
use super::ears::Ears;
use super::greeting::{check_server, hello_field, is_replica, parse_time, parse_uptime, unreadable};
use super::lines::{DialFault, Lines, Live, Sharing, not_sent};
use super::wire::{self, Stream, Wire};
use super::{Node, OnLoss, Role};
use crate::backoff::Backoff;
use crate::lease::{Anchor, Moment};
use crate::transport::fault::{self, Fault};
use crate::transport::pushed::Hear;
use crate::transport::secrets::Peer;

/// Requests that may queue up in front of one connection: more than may be under way.
const PIPELINE_BUFFER: usize = 1024;
/// Response timeouts that a name may take: resolvers ask more than one server.
const NAME_BUDGET: u32 = 4;
/// Response timeouts that the library may take for name, TCP, TLS and greeting together: up to four round trips.
const TLS_BUDGET: u32 = 4;
/// Most addresses of one name that are greeted for one connection.
const MAX_GREETED: usize = 8;
/// A departure that is so long ago is not the one before this.
const DEPARTURES_APART: Duration = Duration::from_secs(2);

/// A step on the way to a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Name,
    Tcp,
    Tls,
    Greeting,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Name => "name resolution",
            Self::Tcp => "TCP connect",
            Self::Tls => "TLS handshake and greeting",
            Self::Greeting => "greeting",
        })
    }
}

/// The addresses to choose from for one connection.
#[derive(Clone, Copy)]
enum Choice<'a> {
    /// All but these.
    AllBut(&'a [SocketAddr]),
    /// The one at which a primary was greeted last, if there is one and the name still has it.
    Primary,
}

/// A stream, and the addresses of its name.
struct Reached {
    /// None where the library connects.
    stream: Option<Stream>,
    peer: Option<SocketAddr>,
    /// Number of addresses that were not tried.
    others: usize,
}

/// Open connections to a node, and when their server was left.
#[derive(Default)]
pub(super) struct Departures {
    open: Vec<(Weak<AtomicBool>, Option<OnLoss>)>,
    /// Address at which a primary was greeted last, among those of a name.
    primary: Option<SocketAddr>,
    last: Option<Moment>,
    not_before: Option<Moment>,
    backoff: Backoff,
}

impl Departures {
    /// Whether to leave now.
    fn begins(&mut self, now: Moment) -> bool {
        if self.not_before.is_some_and(|at| now < at) {
            return false;
        }
        if self.last.is_none_or(|last| now.since(last) > DEPARTURES_APART) {
            self.backoff.reset();
        }
        self.last = Some(now);
        self.not_before = Some(now.after(self.backoff.pause()));
        true
    }

    fn close_all_but(&mut self, stays: Option<&Arc<AtomicBool>>) -> Vec<OnLoss> {
        let mut lost = Vec::new();
        self.open.retain(|(flag, on_loss)| {
            let Some(flag) = flag.upgrade() else { return false };
            if stays.is_some_and(|stays| Arc::ptr_eq(stays, &flag)) {
                return true;
            }
            flag.store(true, Ordering::Release);
            lost.extend(on_loss.clone());
            false
        });
        lost
    }
}

impl Lines {
    /// Leaves a server that is no primary, unless it was left already: requests that come from now on wait for another
    /// connection, which resolves the name anew. Requests that are under way are still answered.
    pub(super) fn leave(&self, live: &Live) {
        if live.is_open() {
            self.leave_now();
        }
    }

    fn leave_now(&self) {
        let mut departures = self.departures.lock();
        if !departures.begins(self.clock.now()) {
            return;
        }
        departures.primary = None;
        let lost = departures.close_all_but(None);
        drop(departures);
        self.give_up_closed();
        lost.iter().for_each(|on_loss| on_loss());
    }

    fn register(&self, is_closed: &Arc<AtomicBool>, on_loss: Option<OnLoss>) {
        let mut departures = self.departures.lock();
        departures.open.retain(|(flag, _)| flag.strong_count() > 0);
        departures.open.push((Arc::downgrade(is_closed), on_loss));
    }

    /// A primary was greeted at one of several addresses. Connections to the others go.
    fn note_primary(&self, peer: SocketAddr, is_closed: &Arc<AtomicBool>) {
        let mut departures = self.departures.lock();
        if departures.primary.replace(peer) == Some(peer) {
            return;
        }
        let lost = departures.close_all_but(Some(is_closed));
        drop(departures);
        self.give_up_closed();
        lost.iter().for_each(|on_loss| on_loss());
    }

    /// Connects, and asks the server what it is and what its clock says. A replica is taken where a primary is wanted only if no
    /// address has one.
    pub(super) async fn dial(&self, sharing: Sharing) -> Result<Arc<Live>, DialFault> {
        let client = self.secrets.renewed(&self.client, Peer::Server).await;
        let (mut tried, mut replica, mut failed) = (Vec::new(), None, None);
        loop {
            let is_closed = Arc::<AtomicBool>::default();
            self.register(&is_closed, self.on_loss.clone());
            let reached = match self.reach(Choice::AllBut(&tried)).await {
                Ok(reached) => reached,
                Err(fault) => return replica.ok_or(failed.unwrap_or(fault)),
            };
            let (peer, others) = (reached.peer, reached.others);
            let ears = Ears::new(Arc::clone(&is_closed), self.on_loss.clone());
            match self.greet(&client, reached, ears, &is_closed, sharing).await {
                Ok((live, Found::Wanted)) => {
                    if let Some(peer) = peer.filter(|_| others > 0 || !tried.is_empty()) {
                        self.note_primary(peer, &is_closed);
                    }
                    return Ok(live);
                }
                Ok((live, Found::Replica)) => replica = replica.or(Some(live)),
                Err(fault) => failed = failed.or(Some(fault)),
            }
            match peer {
                Some(peer) if others > 0 && tried.len() < MAX_GREETED => tried.push(peer),
                _ => return replica.ok_or(failed.unwrap_or(DialFault::NotSent(None))),
            }
        }
    }

    /// Connects for what is subscribed, where the primary is as far as is known.
    pub(super) async fn dial_link(&self, on_loss: OnLoss, hear: Hear) -> Result<Connection, DialFault> {
        let client = self.secrets.renewed(&self.client, Peer::Server).await;
        let is_closed = Arc::<AtomicBool>::default();
        self.register(&is_closed, Some(Arc::clone(&on_loss)));
        let reached = self.reach(Choice::Primary).await?;
        let ears = Ears::new(is_closed, Some(on_loss)).hearing(hear);
        Ok(self.log_in(&client, reached, ears, &[]).await?.0)
    }

    async fn reach(&self, choice: Choice<'_>) -> Result<Reached, DialFault> {
        let timeout = self.limits.response_timeout;
        match self.client.get_connection_info().addr() {
            ConnectionAddr::Tcp(host, port) => {
                let looking_up = self.look_up(host, *port);
                let mut addresses = self.in_step(Step::Name, timeout * NAME_BUDGET, looking_up).await?;
                match choice {
                    Choice::AllBut(tried) => addresses.retain(|address| !tried.contains(address)),
                    Choice::Primary => {
                        let primary = self.departures.lock().primary;
                        if let Some(primary) = primary.filter(|primary| addresses.contains(primary)) {
                            addresses = vec![primary];
                        }
                    }
                }
                if addresses.is_empty() {
                    return Err(not_sent(Fault::of_dial(no_address().into())));
                }
                let connecting = Stream::connect_tcp(&addresses);
                let (stream, peer) = self.in_step(Step::Tcp, timeout, connecting).await?;
                Ok(Reached { stream: Some(stream), peer: Some(peer), others: addresses.len() - 1 })
            }
            address if wire::is_possible(address) => {
                let stream = self.in_step(Step::Tcp, timeout, Stream::connect_path(address)).await?;
                Ok(Reached { stream: Some(stream), peer: None, others: 0 })
            }
            _ => Ok(Reached { stream: None, peer: None, others: 0 }),
        }
    }

    async fn look_up(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        #[cfg(test)]
        {
            if let Some((addresses, pause)) = super::names::resolve(&self.address) {
                tokio::time::sleep(pause).await;
                return Ok(addresses);
            }
        }
        Ok(tokio::net::lookup_host((host, port)).await?.collect())
    }

    /// Logs in, and asks these questions with that. What the server says of itself was looked at.
    async fn log_in(
        &self,
        client: &Client,
        reached: Reached,
        ears: Ears,
        questions: &[Request<'_>],
    ) -> Result<(Connection, Value, Vec<Value>), DialFault> {
        let (budget, settings) = (self.limits.response_timeout, client.get_connection_info());
        let Some(stream) = reached.stream else { return self.log_in_by_library(client, ears, questions).await };
        let login = login(settings.redis_settings());
        let count = login.len() - 1 + questions.len();
        let (wire, mut opening) = Wire::open(stream, ears, count, |bytes| {
            login.iter().for_each(|command| Request::Command(command).encode(bytes));
            questions.iter().for_each(|question| question.encode(bytes));
        });
        // Alone: one that admits nobody says why, and closes the connection.
        let hello = self.in_step(Step::Greeting, budget, opening.first()).await?;
        check_server(hello.clone(), self.limits.role).map_err(not_sent)?;
        let mut answers = self.in_step(Step::Greeting, budget, opening.others()).await?;
        if answers.len() < count {
            return Err(not_sent(unreadable("HELLO")));
        }
        let answers_to_questions = answers.split_off(login.len() - 1);
        if settings.redis_settings().db() != 0 {
            fault::reply(answers.swap_remove(0)).map_err(not_sent)?;
        }
        Ok((Connection::Wire(wire), hello, answers_to_questions))
    }

    async fn log_in_by_library(
        &self,
        client: &Client,
        ears: Ears,
        questions: &[Request<'_>],
    ) -> Result<(Connection, Value, Vec<Value>), DialFault> {
        let timeout = self.limits.response_timeout;
        let hear = move |push: PushInfo| {
            ears.hear_library(&push);
            Ok::<_, std::convert::Infallible>(())
        };
        let config = library(timeout * TLS_BUDGET).set_push_sender(hear);
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let connected = self.in_step(Step::Tls, timeout * TLS_BUDGET, connecting).await;
        let connection = connected.map(Connection::Library).map_err(without_tls)?;
        let hello = redis::cmd("HELLO");
        let mut asked = vec![Request::Command(&hello)];
        asked.extend_from_slice(questions);
        let answers = connection.ask_all(&asked);
        let mut answers = self.in_step(Step::Greeting, timeout, answers).await?;
        if answers.len() < asked.len() {
            return Err(not_sent(unreadable("HELLO")));
        }
        let hello = answers.remove(0);
        check_server(hello.clone(), self.limits.role).map_err(not_sent)?;
        Ok((connection, hello, answers))
    }

    async fn greet(
        &self,
        client: &Client,
        reached: Reached,
        ears: Ears,
        is_closed: &Arc<AtomicBool>,
        sharing: Sharing,
    ) -> Result<(Arc<Live>, Found), DialFault> {
        let (time, mut info) = (redis::cmd("TIME"), redis::cmd("INFO"));
        info.arg("server");
        let mut questions = vec![Request::Command(&time)];
        if self.limits.role == Role::Voter {
            questions.push(Request::Command(&info));
        }
        let sent = self.clock.now();
        let (connection, hello, mut answers) = self.log_in(client, reached, ears, &questions).await?;
        if self.limits.role == Role::Voter
            && let Some(uptime) = answers.pop().and_then(|info| parse_uptime(&info))
        {
            let up_since = sent.as_nanos().saturating_sub(u64::try_from(uptime.as_nanos()).unwrap_or(u64::MAX));
            // The youngest that was ever met: a connection to the one before it brings no answer any more.
            self.up_since.fetch_max(up_since.max(1), Ordering::AcqRel);
        }
        let named = |field| hello_field(&hello, field).unwrap_or_default();
        let (name, version) = (named("server"), named("version"));
        let is_wanted = self.limits.role == Role::ClusterMember || !is_replica(&hello);
        let time = fault::reply(answers.swap_remove(0)).map_err(not_sent)?;
        let server = parse_time(&time).ok_or_else(|| not_sent(unreadable("TIME")))?;
        self.conditions.note_connected(&self.address, &name, &version);
        self.note_time(server, sent, self.clock.now());
        let number = self.dialed.fetch_add(1, Ordering::Relaxed);
        let anchor = Anchor { sent, server };
        let timeout = self.limits.response_timeout;
        let live = Live::new(number, connection, anchor, Arc::clone(is_closed), timeout, sharing);
        Ok((Arc::new(live), if is_wanted { Found::Wanted } else { Found::Replica }))
    }

    /// Takes one step, which is named where it takes too long.
    async fn in_step<T, E: Into<RedisError>>(
        &self,
        step: Step,
        budget: Duration,
        taking: impl Future<Output = Result<T, E>>,
    ) -> Result<T, DialFault> {
        *self.step.lock() = Some(step);
        let taken = tokio::time::timeout(budget, taking).await.map(|taken| taken.map_err(Into::into));
        match taken {
            Ok(Ok(taken)) => Ok(taken),
            // The library's own timer has the same length.
            Ok(Err(error)) if !error.is_timeout() => Err(not_sent(Fault::of_dial(error))),
            Ok(Err(_)) | Err(_) => Err(self.late(step, budget)),
        }
    }

    fn late(&self, step: Step, budget: Duration) -> DialFault {
        let words = format!(
            "{step}: no answer within {budget:?}; on a slow way raise `response_timeout`, which is {:?}",
            self.limits.response_timeout
        );
        let fault = DialFault::NotSent(Some(Arc::new(io::Error::new(io::ErrorKind::TimedOut, words))));
        // A server without TLS waits for the end of what it takes for a command.
        if step == Step::Tls { without_tls(fault) } else { fault }
    }

    /// A connection that is still on its way after so long.
    pub(super) fn no_connection_within(&self, waited: Duration) -> DialFault {
        let step = *self.step.lock();
        step.map_or(DialFault::NotSent(None), |step| self.late(step, waited))
    }
}

impl Node {
    /// Leaves the server if it says on another connection that it follows another one.
    pub(in crate::transport) fn note_role(&self, hello: &Value) {
        if is_replica(hello) {
            self.lines.leave_now();
        }
    }
}

/// A server that was greeted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    Wanted,
    Replica,
}

/// Returns what is said first on each connection: who we are, and which database we mean.
fn login(settings: &RedisConnectionInfo) -> Vec<Cmd> {
    let mut hello = redis::cmd("HELLO");
    hello.arg(3);
    if let Some(password) = settings.password() {
        hello.arg("AUTH").arg(settings.username().unwrap_or("default")).arg(password);
    }
    let mut login = vec![hello];
    if settings.db() != 0 {
        login.push(redis::cmd("SELECT").arg(settings.db()).take());
    }
    for (field, value) in [("LIB-NAME", env!("CARGO_PKG_NAME")), ("LIB-VER", env!("CARGO_PKG_VERSION"))] {
        // Its answer is looked at by nobody: older servers do not know it, and not everybody may say it.
        login.push(redis::cmd("CLIENT").arg("SETINFO").arg(field).arg(value).take());
    }
    login
}

fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the host has no address")
}

fn without_tls(fault: DialFault) -> DialFault {
    not_sent(fault::without_tls(fault.into()))
}

/// Replies are waited for here and with our own clock, so the library need not set a timer of its own for each.
fn library(connection_timeout: Duration) -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(connection_timeout))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(PIPELINE_BUFFER)
}
