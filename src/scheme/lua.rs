//! The typed calls that both Lua schemes share: arguments in, replies out. `lua/README.md` is the protocol.
//!
//! Every reply begins with its code, the id that the request named and the server's time. The transport has compared the
//! id. A reply of another shape means that the script is not ours: it counts as unknown, since something has run.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;
use redis::Value;

use crate::clock::Clock;
use crate::error::UnreachableSource;
use crate::key::Key;
use crate::lease::{Anchor, FencingToken, ServerTime};
use crate::scheme::{
    Acquired, Acquisition, Answered, Ask, Attempt, BoxFuture, Failure, Granted, Holder, IfTaken, Left, Mode, Notice,
    Renewal, Renewed, Route, Scheme, Subscription, Turned, View, Waiter,
};
use crate::transport::{Call, Expiry, Script, Transport};

/// What one Lua scheme consists of.
pub(crate) struct Scripts {
    pub(crate) acquire: Script,
    pub(crate) leave: Script,
    pub(crate) turn: Script,
    pub(crate) renew: Script,
    pub(crate) inspect: Script,
    pub(crate) force: Script,
    /// The last parts of the keys that each script is called with, in order.
    pub(crate) key_parts: &'static [&'static str],
}

/// Where those wait who cannot have a lock.
pub(crate) enum Waiting {
    /// In its queue, and each manager has a channel on which it is told of its grants. Whoever lets others in has to know for
    /// how long the stamps of published clients count, in milliseconds: the readers' and the writers'.
    InTheLock { limits: [String; 2] },
    /// The server does not know them. All are told on one channel when the lock can be taken.
    Outside,
}

/// A scheme whose attempts are scripts.
pub(crate) struct LuaScheme {
    scripts: &'static Scripts,
    transport: Arc<dyn Transport>,
    waiting: Waiting,
}

impl fmt::Debug for LuaScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LuaScheme").field("transport", &self.transport).finish_non_exhaustive()
    }
}

impl LuaScheme {
    pub(crate) fn new(scripts: &'static Scripts, transport: Arc<dyn Transport>, waiting: Waiting) -> Self {
        Self { scripts, transport, waiting }
    }

    /// A call without arguments yet.
    fn call(&self, script: &'static Script, key: &Key) -> Call {
        let mut call = Call::new(script, key.slot());
        for part in self.scripts.key_parts {
            call.key(key.pieces(part));
        }
        call
    }

    /// All arguments of an acquisition but the limit, which comes before them.
    fn acquire_args(&self, call: &mut Call, ask: &Ask) {
        call.echoed_arg(ask.id.as_str());
        call.arg(letter(ask.mode));
        call.arg(&whole_millis(ask.lease));
        if let Waiting::InTheLock { limits } = &self.waiting {
            match ask.if_taken {
                IfTaken::Leave => call.arg("0"),
                // Not less than one: nothing means that it does not wait.
                IfTaken::Queue { patience } => call.arg(&whole_millis(patience.max(Duration::from_millis(1)))),
            }
            turns_arg(call, ask.turns);
            limits.iter().for_each(|limit| call.arg(limit));
        }
    }

    fn acquire_call(&self, key: &Key, ask: &Ask) -> Call {
        let mut call = self.call(&self.scripts.acquire, key);
        self.acquire_args(&mut call, ask);
        call.expiry = Expiry::ResponseTimeout;
        call
    }

    fn leave_call(&self, key: &Key, id: &Acquisition) -> Call {
        let mut call = self.call(&self.scripts.leave, key);
        call.echoed_arg(id.as_str());
        self.surroundings(&mut call, key);
        call
    }

    /// All arguments of a turn but the limit, which comes before them.
    fn turn_args(&self, call: &mut Call, key: &Key, old: &Acquisition, ask: &Ask) {
        call.arg(old.as_str());
        call.echoed_arg(ask.id.as_str());
        call.arg(letter(ask.mode));
        call.arg(&whole_millis(ask.lease));
        if let Waiting::InTheLock { .. } = self.waiting {
            turns_arg(call, ask.turns);
        }
        self.surroundings(call, key);
    }

    fn turn_call(&self, key: &Key, old: &Acquisition, ask: &Ask) -> Call {
        let mut call = self.call(&self.scripts.turn, key);
        self.turn_args(&mut call, key, old, ask);
        call.expiry = Expiry::ResponseTimeout;
        call
    }

    fn renew_call(&self, renewal: &Renewal) -> Call {
        let mut call = self.call(&self.scripts.renew, &renewal.key);
        call.echoed_arg(renewal.id.as_str());
        call.arg(&whole_millis(renewal.lease));
        call
    }

    fn force_call(&self, key: &Key, seen: &View) -> Call {
        let mut call = self.call(&self.scripts.force, key);
        let token = seen.token.map_or(0, FencingToken::as_u64);
        for number in [token, seen.foreign_write_ms.unwrap_or(0), seen.foreign_read_ms.unwrap_or(0)] {
            call.arg(&number.to_string());
        }
        self.surroundings(&mut call, key);
        call
    }

    /// What a script has to know that may let others in.
    fn surroundings(&self, call: &mut Call, key: &Key) {
        match &self.waiting {
            Waiting::InTheLock { limits } => limits.iter().for_each(|limit| call.arg(limit)),
            Waiting::Outside => call.arg(&key.part(WAKE)),
        }
    }

    fn channel(&self, key: &Key, manager: &str) -> String {
        match self.waiting {
            Waiting::InTheLock { .. } => [&key.part(WAKE), ":", manager].concat(),
            Waiting::Outside => key.part(WAKE),
        }
    }

    /// An acquisition with a limit of the caller's choice: the copy of a request that was sent at another time.
    #[cfg(test)]
    pub(crate) async fn acquire_until(&self, key: &Key, ask: &Ask, not_after_ms: u64) -> Attempt<Acquired> {
        let mut call = self.call(&self.scripts.acquire, key);
        call.arg(&not_after_ms.to_string());
        self.acquire_args(&mut call, ask);
        read_reply(self.transport.call(call).await?, ask.id.as_str(), acquired)
    }

    /// The same of a turn.
    #[cfg(test)]
    pub(crate) async fn turn_until(
        &self,
        key: &Key,
        old: &Acquisition,
        ask: &Ask,
        not_after_ms: u64,
    ) -> Attempt<Turned> {
        let mut call = self.call(&self.scripts.turn, key);
        call.arg(&not_after_ms.to_string());
        self.turn_args(&mut call, key, old, ask);
        read_reply(self.transport.call(call).await?, ask.id.as_str(), turned)
    }
}

/// The last part of the channels.
const WAKE: &str = "wake";

fn letter(mode: Mode) -> &'static str {
    match mode {
        Mode::Read => "r",
        Mode::Write => "w",
    }
}

fn turns_arg(call: &mut Call, turns: u64) {
    match turns {
        1 => call.arg("1"),
        _ => call.arg(&turns.to_string()),
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
            let reply = self.transport.call(self.leave_call(key, id)).await?;
            read_reply(reply, id.as_str(), left)
        })
    }

    fn turn<'a>(&'a self, key: &'a Key, old: &'a Acquisition, ask: &'a Ask) -> BoxFuture<'a, Attempt<Turned>> {
        Box::pin(async move {
            let reply = self.transport.call(self.turn_call(key, old, ask)).await?;
            read_reply(reply, ask.id.as_str(), turned)
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

    fn changes(&self) -> Option<BoxStream<'static, ()>> {
        self.transport.changes()
    }

    fn inspect<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Attempt<View>> {
        Box::pin(async move {
            let reply = self.transport.call_apart(self.call(&self.scripts.inspect, key)).await?;
            read_reply(reply, "", view)
        })
    }

    fn force<'a>(&'a self, key: &'a Key, seen: &'a View) -> BoxFuture<'a, Attempt<Vec<String>>> {
        Box::pin(async move {
            let reply = self.transport.call_apart(self.force_call(key, seen)).await?;
            read_reply(reply, "", forced)
        })
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), Failure>> {
        self.transport.ready()
    }

    fn subscribe(&self, key: &Key, manager: &str) -> Option<Subscription> {
        self.transport.subscribe(key.slot(), &self.channel(key, manager), read_notice)
    }

    fn subscribed(&self, key: &Key, manager: &str) -> Option<Subscription> {
        if !self.transport.is_subscribing() {
            return None;
        }
        self.transport.subscribed(key.slot(), &self.channel(key, manager), read_notice)
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
        "granted" => Some(Acquired::Granted(granted(fields)?)),
        "queued" => Some(Acquired::Queued { retry_in: fields.millis()? }),
        "contended" => Some(Acquired::Contended { retry_in: fields.millis()? }),
        "late" => Some(Acquired::Late),
        _ => None,
    }
}

fn granted(fields: &mut Fields) -> Option<Granted> {
    Some(Granted {
        token: FencingToken::from_wire(fields.number()?)?,
        turns: fields.number()?,
        remaining: fields.millis()?,
        writers_waiting: fields.number()? == 1,
    })
}

fn turned(code: &str, fields: &mut Fields) -> Option<Turned> {
    match code {
        "granted" => Some(Turned::Granted(granted(fields)?)),
        "refused" => Some(Turned::Refused),
        "lost" => Some(Turned::Lost { forced: fields.token()? }),
        "late" => Some(Turned::Late),
        _ => None,
    }
}

fn left(code: &str, fields: &mut Fields) -> Option<Left> {
    match code {
        "held" => Some(Left::Held),
        "queued" => Some(Left::Queued),
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
        let mode = holders.mode()?;
        view.holders.push(Holder { id, mode, since_ms: holders.number()?, remaining: holders.millis()? });
    }
    let mut waiters = fields.list()?;
    while let Some(id) = waiters.text() {
        view.waiters.push(Waiter { id, mode: waiters.mode()?, since_ms: waiters.number()? });
    }
    view.waiters.sort_by_key(|waiter| waiter.since_ms);
    Some(view)
}

fn forced(code: &str, fields: &mut Fields) -> Option<Vec<String>> {
    if code != "forced" {
        return None;
    }
    let mut ids = fields.list()?;
    Some(std::iter::from_fn(|| ids.text()).collect())
}

/// Reads what a lock publishes. A grant names who was granted; anything else says that the lock can be taken.
fn read_notice(message: &[u8], anchor: Option<Anchor>) -> Notice {
    anchor.and_then(|anchor| granted_notice(message, anchor)).unwrap_or(Notice::AskAgain)
}

/// `<id> <token> <turns> <deadline_ms> <server_us> <writers_waiting>`, counted from the anchor: the deadline alone is what
/// matters, whatever time has passed since.
fn granted_notice(message: &[u8], anchor: Anchor) -> Option<Notice> {
    let mut words = std::str::from_utf8(message).ok()?.split(' ');
    let id = words.next()?.into();
    let mut number = || words.next()?.parse::<u64>().ok();
    let token = FencingToken::from_wire(number()?)?;
    let turns = number()?;
    let deadline = ServerTime::from_micros(number()?.checked_mul(1000)?);
    let at = ServerTime::from_micros(number()?);
    let writers_waiting = number()? == 1;
    let micros = deadline.as_micros().checked_sub(anchor.server.as_micros()).filter(|&micros| micros > 0)?;
    let remaining = Duration::from_micros(micros);
    let value = Granted { token, turns, remaining, writers_waiting };
    Some(Notice::Granted { id, at, answer: Answered { sent: anchor.sent, server: anchor.server, value } })
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

    fn mode(&mut self) -> Option<Mode> {
        match self.text()?.as_str() {
            "r" => Some(Mode::Read),
            "w" => Some(Mode::Write),
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

    fn token(raw: u64) -> FencingToken {
        FencingToken::from_wire(raw).expect("small")
    }

    #[test]
    fn granted_reply_is_read() {
        for (flag, writers_waiting) in [(0, false), (1, true)] {
            let numbers = [7, 9, 64, 500, flag].map(Value::Int);
            let items = [text("granted"), text("a.1.x")].into_iter().chain(numbers).collect();
            let read = read_reply(reply(items), "a.1.x", acquired).expect("readable");
            assert_eq!(read.server.as_micros(), 7);
            let (token, remaining) = (token(9), Duration::from_millis(500));
            assert_eq!(read.value, Acquired::Granted(Granted { token, turns: 64, remaining, writers_waiting }));
        }
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

    const ANCHOR: Anchor = Anchor { sent: Moment::from_nanos(3), server: ServerTime::from_micros(5_000_400) };

    #[test]
    fn notice_of_a_grant_counts_from_the_anchor() {
        for (flag, writers_waiting) in [("0", false), ("1", true)] {
            let message = format!("m.1.label 9007199254740992 64 6000 5900123 {flag}");
            let Notice::Granted { id, at, answer } = read_notice(message.as_bytes(), Some(ANCHOR)) else {
                panic!("it is one")
            };
            assert_eq!((&*id, at.as_micros()), ("m.1.label", 5_900_123));
            assert_eq!((answer.sent, answer.server), (ANCHOR.sent, ANCHOR.server));
            let (token, remaining) = (token(1 << 53), Duration::from_micros(999_600));
            assert_eq!(answer.value, Granted { token, turns: 64, remaining, writers_waiting });
        }
    }

    #[test]
    fn other_notices_mean_that_it_is_time_to_ask() {
        let granted = "m.1.label 9 64 6000 5900123 0";
        // No anchor to trust.
        assert!(matches!(read_notice(granted.as_bytes(), None), Notice::AskAgain));
        let others = [
            "",                              // a force of the two-key scheme
            "m.1.label",                     // a release of it
            "m.1.label 9 64 6000 5900123",   // too short
            "m.1.label 9 64 soon 5900123 0", // no number
            "m.1.label 9 64 5000 4900123 0", // over before the anchor
            "m.1.label 9007199254740993 1 6000 5900123 0",
            "m.1.label 9 64 18446744073709551615 5900123 0",
        ];
        for other in others {
            assert!(matches!(read_notice(other.as_bytes(), Some(ANCHOR)), Notice::AskAgain), "{other}");
        }
        assert!(matches!(read_notice(b"\xff", Some(ANCHOR)), Notice::AskAgain));
    }

    #[test]
    fn waiters_are_read_in_the_order_in_which_they_came() {
        let list = |items: &[(&str, &str, i64)]| {
            let flat = items.iter().flat_map(|(id, mode, since)| [text(id), text(mode), Value::Int(*since)]);
            Value::Array(flat.collect())
        };
        let waiters = list(&[("a", "w", 5), ("b", "w", 7), ("c", "r", 6)]);
        let head = [text("view"), text("")].into_iter().chain([7, 9, 0, 0].map(Value::Int));
        let items = head.chain([Value::Array(Vec::new()), waiters]).collect();
        let view = read_reply(reply(items), "", view).expect("readable").value;
        let ids: Vec<_> = view.waiters.iter().map(|waiter| (waiter.id.as_str(), waiter.mode)).collect();
        assert_eq!(ids, [("a", Mode::Write), ("c", Mode::Read), ("b", Mode::Write)]);
    }
}
