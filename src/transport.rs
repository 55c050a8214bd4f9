//! What a scheme needs of servers: a script carried to whoever owns its slot, and the answer or its absence brought back.

use std::fmt;
use std::sync::{Arc, OnceLock};

use redis::Value;

use crate::clock::Clock;
use crate::error::Result;
use crate::lease::ServerTime;
use crate::options::Options;
use crate::scheme::{Answered, BoxFuture, Failure, Route, Subscription};
use crate::topology::Topology;

mod address;
mod fault;
mod fleet;
mod node;
mod push;
mod router;
mod sentinels;
mod slots;

/// A Lua script and its digest.
pub(crate) struct Script {
    text: &'static str,
    digest: OnceLock<String>,
}

impl Script {
    pub(crate) const fn new(text: &'static str) -> Self {
        Self { text, digest: OnceLock::new() }
    }

    fn digest(&self) -> &str {
        self.digest.get_or_init(|| redis::Script::new(self.text).get_hash().to_owned())
    }
}

/// Whether a request may be carried out late.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expiry {
    /// Late, it changes nothing more.
    Never,
    /// Its first argument is the server's time after which it is refused, put in when it is sent: a response timeout on.
    ResponseTimeout,
}

/// One script call.
pub(crate) struct Call {
    pub(crate) script: &'static Script,
    pub(crate) slot: u16,
    pub(crate) expiry: Expiry,
    keys: Vec<String>,
    args: Vec<String>,
}

impl Call {
    pub(crate) fn new(script: &'static Script, slot: u16) -> Self {
        Self { script, slot, expiry: Expiry::Never, keys: Vec::with_capacity(2), args: Vec::with_capacity(5) }
    }

    pub(crate) fn key(&mut self, key: String) {
        self.keys.push(key);
    }

    pub(crate) fn arg(&mut self, arg: &str) {
        self.args.push(arg.to_owned());
    }
}

/// Carries calls. An answer is one to this copy of this call, or none.
pub(crate) trait Transport: fmt::Debug + Send + Sync + 'static {
    fn call(&self, call: Call) -> BoxFuture<'_, Result<Answered<Value>, Failure>>;
    /// The same on a connection of its own, for what may take long.
    fn call_apart(&self, call: Call) -> BoxFuture<'_, Result<Answered<Value>, Failure>>;
    /// Calls of one route in one pipeline; one answer each, in order.
    fn call_all<'a>(
        &'a self,
        route: &'a Route,
        calls: Vec<Call>,
    ) -> BoxFuture<'a, Vec<Result<Answered<Value>, Failure>>>;
    fn route(&self, slot: u16) -> Route;
    /// Succeeds when a server answers that we can work with.
    fn ready(&self) -> BoxFuture<'_, Result<(), Failure>>;
    fn subscribe(&self, slot: u16, channel: &str) -> Option<Subscription>;
    fn clock(&self) -> Clock;
}

/// A transport to these servers. Connects at first use.
pub(crate) fn open(topology: Topology, options: &Options) -> Result<Arc<dyn Transport>> {
    Ok(Arc::new(router::Router::new(&topology, options)?))
}

/// The server's time in the reply of a script: the third element of all of them, in microseconds.
fn server_time(value: &Value) -> Option<ServerTime> {
    match value {
        Value::Array(items) => match items.get(2) {
            Some(Value::Int(micros)) => u64::try_from(*micros).ok().map(ServerTime::from_micros),
            _ => None,
        },
        _ => None,
    }
}
