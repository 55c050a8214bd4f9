//! The typed calls that both Lua schemes share: arguments in, replies out. `lua/README.md` is the protocol.
//!
//! Every reply begins with its code, the id that the request named and the server's time. The transport has compared the
//! id. A reply of another shape means that the script is not ours: it counts as unknown, since something has run.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::clock::Clock;
use crate::error::UnreachableSource;
use crate::key::Key;
use crate::lease::{FencingToken, ServerTime};
use crate::scheme::{
    Acquired, Acquisition, Answered, Ask, Attempt, BoxFuture, Failure, Granted, Holder, Left, Mode, Notice, Renewal,
    Renewed, Route, Scheme, Subscription, Turned, View,
};
use crate::transport::{Call, Expiry, Script, Transport};

/// What one Lua scheme consists of.
pub(crate) struct Scripts {
    pub(crate) acquire: Script,
    pub(crate) leave: Script,
    pub(crate) renew: Script,
    pub(crate) inspect: Script,
    pub(crate) force: Script,
    /// The last parts of the keys that each script is called with, in order.
    pub(crate) key_parts: &'static [&'static str],
    /// The last part of the channel that releases are published on, if they are.
    pub(crate) wake_part: Option<&'static str>,
}

/// A scheme whose attempts are scripts.
pub(crate) struct LuaScheme {
    scripts: &'static Scripts,
    transport: Arc<dyn Transport>,
    /// Arguments of `acquire` that only this scheme has.
    acquire_args: Vec<String>,
}

impl fmt::Debug for LuaScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LuaScheme").field("transport", &self.transport).finish_non_exhaustive()
    }
}

impl LuaScheme {
    pub(crate) fn new(scripts: &'static Scripts, transport: Arc<dyn Transport>, acquire_args: Vec<String>) -> Self {
        Self { scripts, transport, acquire_args }
    }

    /// A call for `id`, which is one of the arguments and comes back in the reply; empty for none.
    fn call<'a>(&self, script: &'static Script, key: &Key, id: &str, args: impl IntoIterator<Item = &'a str>) -> Call {
        let mut call = Call::new(script, key.slot());
        for part in self.scripts.key_parts {
            call.key(key.pieces(part));
        }
        for arg in args {
            if arg == id { call.echoed_arg(arg) } else { call.arg(arg) }
        }
        call
    }

    fn channel(&self, key: &Key) -> Option<String> {
        self.scripts.wake_part.map(|part| key.part(part))
    }

    fn acquire_call(&self, key: &Key, ask: &Ask) -> Call {
        let lease_ms = whole_millis(ask.lease);
        let mut call = self.call(&self.scripts.acquire, key, ask.id.as_str(), self.acquire_args(ask, &lease_ms));
        call.expiry = Expiry::ResponseTimeout;
        call
    }

    /// All arguments but the limit, which comes before them.
    fn acquire_args<'a>(&'a self, ask: &'a Ask, lease_ms: &'a str) -> impl Iterator<Item = &'a str> {
        let mode = match ask.mode {
            Mode::Read => "r",
            Mode::Write => "w",
        };
        let extra = self.acquire_args.iter().map(String::as_str);
        [ask.id.as_str(), mode, lease_ms].into_iter().chain(extra)
    }

    fn renew_call(&self, renewal: &Renewal) -> Call {
        let lease_ms = whole_millis(renewal.lease);
        self.call(&self.scripts.renew, &renewal.key, renewal.id.as_str(), [renewal.id.as_str(), &lease_ms])
    }

    /// An acquisition with a limit of the caller's choice: the copy of a request that was sent at another time.
    #[cfg(test)]
    pub(crate) async fn acquire_until(&self, key: &Key, ask: &Ask, not_after_ms: u64) -> Attempt<Acquired> {
        let (not_after_ms, lease_ms) = (not_after_ms.to_string(), whole_millis(ask.lease));
        let args = [not_after_ms.as_str()].into_iter().chain(self.acquire_args(ask, &lease_ms));
        let reply = self.transport.call(self.call(&self.scripts.acquire, key, ask.id.as_str(), args)).await?;
        read_reply(reply, ask.id.as_str(), acquired)
    }
}

impl Scheme for LuaScheme {
    fn acquire<'a>(&'a self, key: &'a Key, ask: &'a Ask) -> BoxFuture<'a, Attempt<Acquired>> {
        Box::pin(async move {
            let reply = self.transport.call(self.acquire_call(key, ask)).await?;
            read_reply(reply, ask.id.as_str(), acquired)
        })
    }

    fn leave<'a>(&'a self, key: &'a Key, id: &'a Acquisition) -> BoxFuture<'a, Attempt<Left>> {
        Box::pin(async move {
            let channel = self.channel(key);
            let args = [id.as_str()].into_iter().chain(channel.as_deref());
            let reply = self.transport.call(self.call(&self.scripts.leave, key, id.as_str(), args)).await?;
            read_reply(reply, id.as_str(), left)
        })
    }

    fn renew<'a>(&'a self, route: &'a Route, batch: &'a [Renewal]) -> BoxFuture<'a, Vec<Attempt<Renewed>>> {
        Box::pin(async move {
            let calls = batch.iter().map(|renewal| self.renew_call(renewal)).collect();
            let replies = self.transport.call_all(route, calls).await;
            let pairs = replies.into_iter().zip(batch);
            pairs.map(|(reply, renewal)| read_reply(reply?, renewal.id.as_str(), renewed)).collect()
        })
    }

    fn route(&self, key: &Key) -> Route {
        self.transport.route(key.slot())
    }

    fn inspect<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Attempt<View>> {
        Box::pin(async move {
            let reply = self.transport.call_apart(self.call(&self.scripts.inspect, key, "", [])).await?;
            read_reply(reply, "", view)
        })
    }

    fn force<'a>(&'a self, key: &'a Key, seen: &'a View) -> BoxFuture<'a, Attempt<Vec<String>>> {
        Box::pin(async move {
            let channel = self.channel(key);
            let token = seen.token.map_or(0, FencingToken::as_u64);
            let seen = [token, seen.foreign_write_ms.unwrap_or(0), seen.foreign_read_ms.unwrap_or(0)];
            let seen = seen.map(|number| number.to_string());
            let args = seen.iter().map(String::as_str).chain(channel.as_deref());
            let call = self.call(&self.scripts.force, key, "", args);
            let reply = self.transport.call_apart(call).await?;
            read_reply(reply, "", forced)
        })
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), Failure>> {
        self.transport.ready()
    }

    fn turn<'a>(&'a self, _: &'a Key, _: &'a Acquisition, _: &'a Ask) -> BoxFuture<'a, Attempt<Turned>> {
        Box::pin(std::future::ready(Err(Failure::NotDone { source: None })))
    }

    fn subscribe(&self, key: &Key, _: &str) -> Option<Subscription> {
        self.transport.subscribe(key.slot(), &self.channel(key)?, |_, _| Notice::AskAgain)
    }

    fn subscribed(&self, key: &Key, _: &str) -> Option<Subscription> {
        if !self.transport.is_subscribing() {
            return None;
        }
        self.transport.subscribed(key.slot(), &self.channel(key)?, |_, _| Notice::AskAgain)
    }

    fn clock(&self) -> Clock {
        self.transport.clock()
    }
}

/// A lease as scripts take it. Options keep leases far below what 64 bits hold.
fn whole_millis(lease: Duration) -> String {
    u64::try_from(lease.as_millis()).unwrap_or(u64::MAX).to_string()
}

/// Checks what all replies have in common and hands the rest to `parse`.
fn read_reply<T>(reply: Answered<Value>, id: &str, parse: impl FnOnce(&str, &mut Fields) -> Option<T>) -> Attempt<T> {
    let Answered { sent, value, .. } = reply;
    let read = Fields::of(value).and_then(|mut fields| {
        let code = fields.text()?;
        if fields.text()? != id {
            return None;
        }
        let server = ServerTime::from_micros(fields.number()?);
        let value = parse(&code, &mut fields)?;
        Some(Answered { sent, server, value })
    });
    read.ok_or_else(|| Failure::Unknown {
        // The script that gave this answer has run: nothing of it is still under way.
        stray_until: sent,
        source: Some(Arc::new(UnreachableSource("the reply is not one to this request".to_owned()))),
    })
}

fn acquired(code: &str, fields: &mut Fields) -> Option<Acquired> {
    match code {
        "granted" => {
            let token = FencingToken::from_wire(fields.number()?)?;
            Some(Acquired::Granted(Granted { token, turns: 1, remaining: fields.millis()?, writers_waiting: false }))
        }
        "contended" => Some(Acquired::Contended { retry_in: fields.millis()? }),
        "late" => Some(Acquired::Late),
        _ => None,
    }
}

fn left(code: &str, fields: &mut Fields) -> Option<Left> {
    match code {
        "held" => Some(Left::Held),
        "none" => Some(Left::None { forced: fields.token()? }),
        _ => None,
    }
}

fn renewed(code: &str, fields: &mut Fields) -> Option<Renewed> {
    match code {
        "renewed" => Some(Renewed::Renewed { remaining: fields.millis()? }),
        "lost" => Some(Renewed::Lost { forced: fields.token()? }),
        _ => None,
    }
}

fn view(code: &str, fields: &mut Fields) -> Option<View> {
    if code != "view" {
        return None;
    }
    let mut view = View {
        token: fields.token()?,
        foreign_write_ms: Some(fields.number()?).filter(|&stamp| stamp > 0),
        foreign_read_ms: Some(fields.number()?).filter(|&stamp| stamp > 0),
        holders: Vec::new(),
        waiters: Vec::new(),
    };
    let mut holders = fields.list()?;
    while let Some(id) = holders.text() {
        let mode = match holders.text()?.as_str() {
            "r" => Mode::Read,
            "w" => Mode::Write,
            _ => return None,
        };
        view.holders.push(Holder { id, mode, since_ms: holders.number()?, remaining: holders.millis()? });
    }
    Some(view)
}

fn forced(code: &str, fields: &mut Fields) -> Option<Vec<String>> {
    if code != "forced" {
        return None;
    }
    let mut ids = fields.list()?;
    Some(std::iter::from_fn(|| ids.text()).collect())
}

/// The elements of a reply, read from the front.
struct Fields(std::vec::IntoIter<Value>);

impl Fields {
    fn of(value: Value) -> Option<Self> {
        match value {
            Value::Array(items) => Some(Self(items.into_iter())),
            _ => None,
        }
    }

    fn text(&mut self) -> Option<String> {
        match self.0.next()? {
            Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
            Value::SimpleString(text) => Some(text),
            _ => None,
        }
    }

    fn number(&mut self) -> Option<u64> {
        match self.0.next()? {
            Value::Int(number) => u64::try_from(number).ok(),
            _ => None,
        }
    }

    fn millis(&mut self) -> Option<Duration> {
        self.number().map(Duration::from_millis)
    }

    /// A token, where 0 stands for none.
    fn token(&mut self) -> Option<Option<FencingToken>> {
        let raw = self.number()?;
        if raw == 0 {
            return Some(None);
        }
        FencingToken::from_wire(raw).map(Some)
    }

    fn list(&mut self) -> Option<Self> {
        Self::of(self.0.next()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Moment;

    fn reply(items: Vec<Value>) -> Answered<Value> {
        Answered { sent: Moment::from_nanos(5), server: ServerTime::default(), value: Value::Array(items) }
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn granted_reply_is_read() {
        let items = vec![text("granted"), text("a.1.x"), Value::Int(7), Value::Int(9), Value::Int(500)];
        let read = read_reply(reply(items), "a.1.x", acquired).expect("readable");
        assert_eq!(read.server.as_micros(), 7);
        let token = FencingToken::from_wire(9).expect("small");
        let remaining = Duration::from_millis(500);
        assert_eq!(read.value, Acquired::Granted(Granted { token, turns: 1, remaining, writers_waiting: false }));
    }

    #[test]
    fn reply_to_another_request_is_never_believed() {
        let items = vec![text("granted"), text("b.1.x"), Value::Int(7), Value::Int(9), Value::Int(500)];
        let read = read_reply(reply(items), "a.1.x", acquired);
        assert!(matches!(read, Err(Failure::Unknown { .. })));
    }

    #[test]
    fn reply_of_another_shape_is_unknown_not_denied() {
        for items in [vec![], vec![text("granted")], vec![text("late"), text("a.1.x"), text("soon")]] {
            let read = read_reply(reply(items), "a.1.x", acquired);
            assert!(matches!(read, Err(Failure::Unknown { .. })));
        }
    }
}
