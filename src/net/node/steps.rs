//! Steps that open a connection: name lookup, TCP connect, TLS handshake and greeting. Each step has its own time
//! limit. All connections take these steps, including connections to Sentinels.

use std::fmt;
use std::io;
use std::iter;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Cmd, ConnectionAddr, RedisConnectionInfo, RedisError, Value};

use super::connection::{Connection, Request};
use super::connections::{DialFault, not_sent};
use super::greeting::{hello_of_info, info, unreadable};
use super::push_handler::PushHandler;
use super::wire::{AnswerMemory, Stream, Wire};
use crate::base::error::Refusal;
use crate::net::address::address_of;
use crate::net::fault::{self, Fault};
use crate::net::secrets::Secrets;

/// Step that opens a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Name,
    Tcp,
    Tls,
    Greeting,
}

impl Step {
    /// Returns the time limit of the step, as a number of response timeouts.
    fn budget(self) -> u32 {
        match self {
            // A resolver may ask several name servers, one after the other.
            Self::Name => 4,
            Self::Tcp | Self::Greeting => 1,
            // TLS 1.2 takes two round trips. TLS 1.3 also takes two if the server wants a key of another kind than the
            // client sent.
            Self::Tls => 2,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Name => "name resolution",
            Self::Tcp => "TCP connect",
            Self::Tls => "TLS handshake",
            Self::Greeting => "greeting",
        })
    }
}

/// Time limit for the steps to one server, and the step that began last.
pub(super) struct Steps {
    response_timeout: Duration,
    last: Mutex<Option<Step>>,
    /// Memory of the answers that this process is reading from the server, counted over all connections.
    answer_memory: Arc<AnswerMemory>,
}

impl Steps {
    pub(super) fn new(response_timeout: Duration) -> Self {
        Self { response_timeout, last: Mutex::new(None), answer_memory: Arc::default() }
    }

    /// Looks up the IP addresses of a host. Tests can choose the result for an `address`.
    pub(super) async fn look_up(&self, address: &str, host: &str, port: u16) -> Result<Vec<SocketAddr>, DialFault> {
        self.take(Step::Name, look_up(address, host, port)).await
    }

    /// Connects to all of these addresses at the same time, and returns the connection that is ready first.
    pub(super) async fn connect(&self, addresses: &[SocketAddr]) -> Result<(Stream, SocketAddr), DialFault> {
        if addresses.is_empty() {
            return Err(of_io(io::ErrorKind::NotFound, "the host has no address"));
        }
        self.take(Step::Tcp, Stream::connect_tcp(addresses)).await
    }

    /// Connects to a server on this machine, through the socket at this path.
    pub(super) async fn connect_path(&self, path: &std::path::Path) -> Result<Stream, DialFault> {
        self.take(Step::Tcp, Stream::connect_path(path)).await
    }

    /// Does the TLS handshake if the URL of the server requires TLS. Otherwise returns the stream unchanged.
    pub(super) async fn encrypt(
        &self,
        stream: Stream,
        address: &ConnectionAddr,
        secrets: &Secrets,
    ) -> Result<Stream, DialFault> {
        let ConnectionAddr::TcpTls { host, .. } = address else { return Ok(stream) };
        let unusable = |error: crate::Error| DialFault::NotSent(Some(Arc::new(error)));
        let connector = secrets.connector().map_err(unusable)?;
        let shaken = self.take(Step::Tls, stream.encrypt(&connector, host)).await;
        shaken.map_err(|fault| not_sent(fault::without_tls(fault.into())))
    }

    /// Logs in, and sends `questions` with the same write. `check` examines the server's answer to `HELLO`. Returns the
    /// connection, the answer to `HELLO`, and the answers to the questions.
    ///
    /// A server or a proxy that refuses `HELLO 3` is spoken to in RESP2, on the same connection. The answer to `HELLO` is
    /// then made from answers to other commands.
    pub(super) async fn log_in(
        &self,
        stream: Stream,
        settings: &RedisConnectionInfo,
        push_handler: PushHandler,
        questions: &[Request<'_>],
        check: impl Fn(Value) -> Result<(), Fault>,
    ) -> Result<(Connection, Value, Vec<Value>), DialFault> {
        let (login, then) = (hello(settings), after_login(settings));
        let count = then.len() + questions.len();
        let answer_memory = Arc::clone(&self.answer_memory);
        let (wire, first, others) = Wire::open(stream, push_handler, answer_memory, count, |bytes| {
            iter::once(&login).chain(&then).for_each(|command| Request::Command(command).encode(bytes));
            questions.iter().for_each(|question| question.encode(bytes));
        });
        // The answer to `HELLO` is read before the other answers. A server that accepts no more clients sends its
        // reason in this place, and then closes the connection.
        let mut hello = self.take(Step::Greeting, first).await?;
        let is_unknown = is_unknown(&hello, settings);
        if !is_unknown {
            check(hello.clone()).map_err(not_sent)?;
        }
        let mut answers = match self.take(Step::Greeting, others).await {
            Ok(answers) => answers,
            // The server has said why it closes the connection.
            Err(closed) => return Err(check(hello).map_or_else(not_sent, |()| closed)),
        };
        let connection = Connection { wire, _relogin: None };
        if is_unknown {
            (hello, answers) = self.log_in_without_hello(&connection, settings, questions).await?;
            check(hello.clone()).map_err(not_sent)?;
        }
        if answers.len() < count {
            return Err(not_sent(unreadable("HELLO")));
        }
        let answers_to_questions = answers.split_off(then.len());
        if settings.db() != 0 {
            fault::reply(answers.swap_remove(0)).map_err(not_sent)?;
        }
        Ok((connection, hello, answers_to_questions))
    }

    /// Logs in with `AUTH`, which a server without `HELLO` knows. Returns what the server would have answered to `HELLO`,
    /// as far as `INFO` tells that, and the answers to the commands after the login and to the questions.
    async fn log_in_without_hello(
        &self,
        connection: &Connection,
        settings: &RedisConnectionInfo,
        questions: &[Request<'_>],
    ) -> Result<(Value, Vec<Value>), DialFault> {
        let commands = [vec![auth(settings), info("server"), info("replication")], after_login(settings)].concat();
        let login = commands.iter().map(Request::Command).chain(questions.iter().copied());
        let mut answers = self.take(Step::Greeting, connection.ask_all(&login.collect::<Vec<_>>())).await?.into_iter();
        let mut next = || answers.next().unwrap_or_default();
        fault::reply(next()).map_err(not_sent)?;
        let hello = hello_of_info(&next(), &next());
        Ok((hello, answers.collect()))
    }

    /// Runs one step. If the step takes longer than its time limit, the fault names the step.
    async fn take<T, E: Into<RedisError>>(
        &self,
        step: Step,
        taking: impl Future<Output = Result<T, E>>,
    ) -> Result<T, DialFault> {
        *self.last.lock() = Some(step);
        let budget = self.response_timeout * step.budget();
        match tokio::time::timeout(budget, taking).await {
            Ok(taken) => taken.map_err(|error| not_sent(Fault::of_dial(error.into()))),
            Err(_) => Err(self.late(step, budget)),
        }
    }

    fn late(&self, step: Step, waited: Duration) -> DialFault {
        let words = format!(
            "{step}: no answer within {waited:?}; on a slow way raise `response_timeout`, which is {:?}",
            self.response_timeout
        );
        DialFault::NotSent(Some(Arc::new(io::Error::new(io::ErrorKind::TimedOut, words))))
    }

    /// Returns the fault of a connection that is still not open after `waited`.
    pub(super) fn no_connection_within(&self, waited: Duration) -> DialFault {
        let step = *self.last.lock();
        let fault = step.map_or(DialFault::NotSent(None), |step| self.late(step, waited));
        // A server without TLS reads the TLS handshake as a command, and waits for the rest of this command.
        if step == Some(Step::Tls) { not_sent(fault::without_tls(fault.into())) } else { fault }
    }
}

/// Asks questions on a new connection. Accepts servers of any kind, because the answers show whether the server is of
/// the right kind.
pub(in crate::net) async fn ask_once(
    address: &ConnectionAddr,
    settings: &RedisConnectionInfo,
    secrets: &Secrets,
    response_timeout: Duration,
    questions: &[Cmd],
) -> Result<Vec<Value>, Fault> {
    let steps = Steps::new(response_timeout);
    let stream = match address {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            let addresses = steps.look_up(&address_of(address), host, *port).await?;
            let (stream, _) = steps.connect(&addresses).await?;
            steps.encrypt(stream, address, secrets).await?
        }
        ConnectionAddr::Unix(path) => steps.connect_path(path).await?,
        other => return Err(unsupported_address(other).into()),
    };
    let admits = |hello| match fault::reply(hello) {
        Err(Fault::Refused { refusal: Refusal::Other, .. }) | Ok(_) => Ok(()),
        Err(fault) => Err(fault),
    };
    let push_handler = PushHandler::new(Arc::default(), None, None);
    let questions: Vec<_> = questions.iter().map(Request::Command).collect();
    let (_connection, _, answers) = steps.log_in(stream, settings, push_handler, &questions, admits).await?;
    Ok(answers)
}

async fn look_up(address: &str, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    #[cfg(all(test, feature = "_testing"))]
    {
        if let Some((addresses, pause)) = super::names::resolve(address) {
            tokio::time::sleep(pause).await;
            return Ok(addresses);
        }
    }
    #[cfg(not(all(test, feature = "_testing")))]
    let _ = address;
    Ok(tokio::net::lookup_host((host, port)).await?.collect())
}

/// Returns the first command on each connection. It names the protocol and the user.
fn hello(settings: &RedisConnectionInfo) -> Cmd {
    let mut hello = redis::cmd("HELLO");
    hello.arg(3);
    if let Some(password) = settings.password() {
        hello.arg("AUTH").arg(settings.username().unwrap_or("default")).arg(password);
    }
    hello
}

/// Returns the first command on a connection to a server that does not know `HELLO`.
fn auth(settings: &RedisConnectionInfo) -> Cmd {
    match settings.password() {
        Some(password) => redis::cmd("AUTH").arg(settings.username()).arg(password).take(),
        None => redis::cmd("PING"),
    }
}

/// Returns the commands that are sent next. They name the database and this library.
fn after_login(settings: &RedisConnectionInfo) -> Vec<Cmd> {
    let mut commands = Vec::new();
    if settings.db() != 0 {
        commands.push(redis::cmd("SELECT").arg(settings.db()).take());
    }
    for (field, value) in [("LIB-NAME", env!("CARGO_PKG_NAME")), ("LIB-VER", env!("CARGO_PKG_VERSION"))] {
        // The answer is ignored, because older servers do not know the command and some users may not call it.
        commands.push(redis::cmd("CLIENT").arg("SETINFO").arg(field).arg(value).take());
    }
    commands
}

/// Returns true if the server refused `HELLO`, and not the user or the client. A server that knows `HELLO` with a wrong
/// password answers `WRONGPASS`. A proxy may want `AUTH` before it looks at the name of the command.
fn is_unknown(hello: &Value, settings: &RedisConnectionInfo) -> bool {
    match fault::reply(hello.clone()) {
        Err(Fault::Refused { refusal: Refusal::Other, .. }) => true,
        Err(Fault::Refused { refusal: Refusal::Unauthenticated, message }) => {
            settings.password().is_some() && message.starts_with("NOAUTH")
        }
        _ => false,
    }
}

pub(super) fn unsupported_address(address: &ConnectionAddr) -> DialFault {
    of_io(io::ErrorKind::Unsupported, &address.to_string())
}

fn of_io(kind: io::ErrorKind, words: &str) -> DialFault {
    not_sent(Fault::of_dial(io::Error::new(kind, words).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_that_does_not_know_hello_is_told_from_one_that_refuses_the_user() {
        let of = |line: &str| redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).expect("an error");
        let (none, some) = (RedisConnectionInfo::default(), RedisConnectionInfo::default().set_password("s3cret"));
        for line in ["ERR unknown command 'HELLO'", "NOPROTO unsupported protocol version"] {
            assert!(is_unknown(&of(line), &none) && is_unknown(&of(line), &some), "{line}");
        }
        // A proxy may want `AUTH` first. Without a password, there is nothing to log in with.
        let first = of("NOAUTH Authentication required.");
        assert!(is_unknown(&first, &some) && !is_unknown(&first, &none));
        for line in ["WRONGPASS invalid username-password pair", "ERR max number of clients reached", "NOPERM no"] {
            assert!(!is_unknown(&of(line), &some), "{line}");
        }
    }
}
