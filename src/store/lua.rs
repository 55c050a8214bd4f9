//! Typed calls of both Lua schemes. `lua/README.md` describes the protocol.
//!
//! A reply is one text of words. It may also be an array: the first element is such a text, and the other elements are
//! rows. The first words are a code, the id in the request, and the server's time as two words. Numbers follow. The
//! router has already compared the id with the request. A reply in another form comes from a foreign script. The
//! result of the request then counts as unknown, because that script may have changed the lock.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;
use redis::Value;

use crate::base::attempt::NodeId;
use crate::base::clock::Clock;
use crate::base::digits::Digits;
use crate::base::error::{Refusal, UnreachableSource};
use crate::base::health::{NodeHealth, Traffic};
use crate::base::key::{Key, Listing};
use crate::base::lease::{ClockSample, FencingToken, MAX_TOKENS, Moment, ServerTime};
use crate::base::recalls::Recalls;
use crate::net::{Call, Expiry, NO_ID, Router, Script, Words};
use crate::store::{
    Absence, AcquireRequest, Acquired, AcquisitionId, Answered, Attempt, BoxFuture, Converted, Failure, Floor, Forced,
    Granted, Holder, IfTaken, MasterScheme, Mode, NamedHolder, Note, Noted, Notification, NotifyingScheme,
    NotingScheme, QueuedWaiter, RecallingScheme, ReleaseReply, ReleaseRequest, RenewalRequest, Renewed, Route, Scheme,
    ServerContact, Subscription, View, refused_failure, scripts,
};

/// Scripts and key parts of one Lua scheme.
pub(crate) struct Scripts {
    pub(crate) acquire: Script,
    pub(crate) leave: Script,
    pub(crate) convert: Script,
    pub(crate) renew: Script,
    pub(crate) inspect: Script,
    pub(crate) force: Script,
    /// Script that sends the recall reply "in use" to a try. `None` in a scheme without recalls.
    pub(crate) used: Option<Script>,
    /// Script that sets the note of a hold. `None` in a scheme without notes.
    pub(crate) note: Option<Script>,
    /// Last part of the name of each key of a lock, in the order of `KEYS`.
    pub(crate) key_parts: &'static [&'static str],
}

impl Scripts {
    /// Returns the commands of the server that the scheme needs.
    pub(super) fn commands(&self) -> BTreeSet<&'static str> {
        let Scripts { acquire, leave, convert, renew, inspect, force, used, note, key_parts: _ } = self;
        let all = [acquire, leave, convert, renew, inspect, force].into_iter().chain(used).chain(note);
        all.flat_map(Script::commands).collect()
    }
}

pub(super) static RIGHTS: Script = Script::new(scripts::RIGHTS);

/// Place in which a scheme records the waiters of a lock.
pub(crate) enum ScriptQueue {
    /// The record of the lock has the queue. A script that frees the lock grants it to waiters and notifies them.
    /// `limits` is the text that tells a script how long foreign timestamps count: the milliseconds for readers, a
    /// blank, and the milliseconds for writers. Each script that may admit a client needs this text.
    InTheLock { limits: String },
    /// The readers' key has the queue. A script that frees the lock grants nothing to a waiter. It only notifies the
    /// next waiter, which then asks again.
    Beside,
}

/// Scheme that sends each attempt as a Lua script.
pub(crate) struct LuaScheme {
    scripts: &'static Scripts,
    router: Arc<Router>,
    queue: ScriptQueue,
}

impl fmt::Debug for LuaScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LuaScheme").field("router", &self.router).finish_non_exhaustive()
    }
}

impl LuaScheme {
    pub(crate) fn new(scripts: &'static Scripts, router: Arc<Router>, waiting: ScriptQueue) -> Self {
        Self { scripts, router, queue: waiting }
    }

    fn rights_call(&self, key: &Key, more: &[&str]) -> Call {
        let mut call = self.call(&RIGHTS, key);
        let commands: Vec<&str> = self.scripts.commands().into_iter().chain(more.iter().copied()).collect();
        call.arg(&commands.join(" "));
        call
    }

    /// Builds a call of `script` with its keys and without arguments.
    fn call(&self, script: &'static Script, key: &Key) -> Call {
        let mut call = Call::new(script, key.slot());
        for part in self.scripts.key_parts {
            call.key(key.pieces(part));
        }
        call
    }

    /// Adds all arguments of an acquisition except its time limit. The time limit comes before these arguments.
    fn acquire_args(&self, call: &mut Call, request: &AcquireRequest) {
        call.echoed_arg(request.id.as_str());
        call.arg(letter(request.mode));
        call.number(whole_millis(request.lease));
        match request.if_taken {
            IfTaken::Leave => call.arg("0"),
            // The argument is at least one millisecond, because 0 means that the acquisition does not wait.
            IfTaken::Queue { waiter_ttl } | IfTaken::Try { waiter_ttl } => {
                call.number(whole_millis(waiter_ttl.max(Duration::from_millis(1))))
            }
        }
        if let ScriptQueue::InTheLock { limits } = &self.queue {
            max_tokens_arg(call, request.max_tokens);
            call.arg(limits);
            match (request.caches, matches!(request.if_taken, IfTaken::Try { .. })) {
                (true, false) => call.arg(CACHE_FLAG),
                (false, true) => call.arg("t"),
                (true, true) => call.arg("kt"),
                (false, false) => {}
            }
        }
    }

    fn acquire_call(&self, key: &Key, request: &AcquireRequest) -> Call {
        let mut call = self.call(&self.scripts.acquire, key);
        self.acquire_args(&mut call, request);
        call.expiry = Expiry::ResponseTimeout;
        call.grants = true;
        call
    }

    /// Builds an acquisition whose token has a lower bound. Only the two-key scheme supports it.
    fn acquire_above_call(&self, key: &Key, request: &AcquireRequest, floor: Floor) -> Call {
        let mut call = self.acquire_call(key, request);
        match floor {
            Floor::New(floor) => call.number(floor.as_u64()),
            Floor::Any(floor) => {
                call.number(floor.as_u64());
                call.arg("raise");
            }
        }
        call
    }

    fn release_call(&self, request: &ReleaseRequest) -> Call {
        let mut call = self.call(&self.scripts.leave, &request.key);
        call.echoed_arg(request.id.as_str());
        self.add_limits(&mut call);
        if let Some(until) = request.rest_until {
            call.number(until.as_millis_up());
        }
        call
    }

    /// Adds all arguments of a conversion except its time limit. The time limit comes before these arguments.
    fn convert_args(&self, call: &mut Call, old: &AcquisitionId, request: &AcquireRequest) {
        call.arg(old.as_str());
        call.echoed_arg(request.id.as_str());
        call.arg(letter(request.mode));
        call.number(whole_millis(request.lease));
        if let ScriptQueue::InTheLock { .. } = self.queue {
            max_tokens_arg(call, request.max_tokens);
        }
        self.add_limits(call);
        if request.caches && self.has_recalls() {
            call.arg(CACHE_FLAG);
        }
    }

    fn convert_call(&self, key: &Key, old: &AcquisitionId, request: &AcquireRequest) -> Call {
        let mut call = self.call(&self.scripts.convert, key);
        self.convert_args(&mut call, old, request);
        call.expiry = Expiry::ResponseTimeout;
        call.grants = true;
        call
    }

    fn renew_call(&self, renewal: &RenewalRequest) -> Call {
        let mut call = self.call(&self.scripts.renew, &renewal.key);
        call.echoed_arg(renewal.id.as_str());
        call.number(whole_millis(renewal.lease));
        if renewal.caches && self.has_recalls() {
            call.arg(CACHE_FLAG);
            if renewal.tokens > 0 {
                call.number(renewal.tokens);
            }
        } else if let Some(until) = renewal.rest_until {
            call.arg(UNTIL_FLAG);
            call.number(until.as_millis_up());
        }
        call.grants = true;
        call
    }

    fn force_call(&self, key: &Key, seen: &View) -> Call {
        let mut call = self.call(&self.scripts.force, key);
        let token = seen.token.map_or(0, FencingToken::as_u64);
        for number in [token, seen.client_write_ms.unwrap_or(0), seen.client_read_ms.unwrap_or(0)] {
            call.number(number);
        }
        self.add_limits(&mut call);
        if self.has_recalls() {
            call.arg(&ids(seen));
        }
        call
    }

    fn in_use_call(&self, script: &'static Script, key: &Key, id: &str) -> Call {
        let mut call = self.call(script, key);
        call.echoed_arg(id);
        call
    }

    /// Builds a force of the holds that several servers have shown. Only the two-key scheme supports it.
    fn force_shown_call(&self, key: &Key, token: Option<FencingToken>, seen: &View) -> Call {
        let mut call = self.force_call(key, &View { token, ..View::default() });
        call.number(seen.token.map_or(0, FencingToken::as_u64));
        call.arg(&ids(seen));
        call
    }

    /// Adds the limits for foreign timestamps, if the scheme has them. The script needs them because it may admit
    /// another client.
    fn add_limits(&self, call: &mut Call) {
        if let ScriptQueue::InTheLock { limits } = &self.queue {
            call.arg(limits);
        }
    }

    /// Returns the channel on which recalls reach the processes that may cache the hold.
    fn recall_channel(&self, key: &Key) -> String {
        [&key.channels(self.scripts.key_parts[0]), ":", RECALL].concat()
    }

    /// Returns true if the scheme supports cached holds and recalls.
    fn has_recalls(&self) -> bool {
        matches!(self.queue, ScriptQueue::InTheLock { .. }) && self.router.can_subscribe()
    }

    /// Returns the channel on which notifications reach the waiters of one manager.
    fn channel(&self, key: &Key, manager: &str) -> String {
        match self.queue {
            ScriptQueue::InTheLock { .. } => {
                [&key.channels(self.scripts.key_parts[0]), ":", WAKE, ":", manager].concat()
            }
            ScriptQueue::Beside => [&key.part(WAKE), ":", manager].concat(),
        }
    }

    /// Acquires with a time limit that the caller chooses. The request is like a copy that was sent at another time.
    #[cfg(all(test, feature = "_testing"))]
    pub(crate) async fn acquire_until(
        &self,
        key: &Key,
        request: &AcquireRequest,
        not_after_ms: u64,
    ) -> Attempt<Acquired> {
        let mut call = self.call(&self.scripts.acquire, key);
        call.number(not_after_ms);
        self.acquire_args(&mut call, request);
        read_reply(self.router.call(call).await?, request.id.as_str(), parse_acquired)
    }

    /// Converts with a time limit that the caller chooses.
    #[cfg(all(test, feature = "_testing"))]
    pub(crate) async fn convert_until(
        &self,
        key: &Key,
        old: &AcquisitionId,
        request: &AcquireRequest,
        not_after_ms: u64,
    ) -> Attempt<Converted> {
        let mut call = self.call(&self.scripts.convert, key);
        call.number(not_after_ms);
        self.convert_args(&mut call, old, request);
        read_reply(self.router.call(call).await?, request.id.as_str(), parse_converted)
    }
}

/// Part of the name of a notification channel. It comes after the key, or replaces the last part of the key.
const WAKE: &str = "wake";
/// Last part of the name of the recall channel, after the key.
const RECALL: &str = "call";
/// Argument by which the process offers to cache the hold.
const CACHE_FLAG: &str = "k";
/// Argument of a renewal after which the time comes until which a write hold lasts at least.
const UNTIL_FLAG: &str = "u";

/// Reads from the reply to a check of rights which commands the user may not run.
pub(super) fn refused_commands(reply: &Value) -> Option<Vec<String>> {
    let mut words = Words::of(reply)?;
    words.word()?;
    words.word()?;
    words.time()?;
    let refused = std::iter::from_fn(|| words.word()).filter(|word| !word.is_empty());
    Some(refused.map(|word| String::from_utf8_lossy(word).into_owned()).collect())
}

/// Returns the ids of all holds in a view, with blanks between them.
pub(super) fn ids(seen: &View) -> String {
    seen.holders.iter().map(|holder| &*holder.id).collect::<Vec<_>>().join(" ")
}

pub(super) fn letter(mode: Mode) -> &'static str {
    match mode {
        Mode::Read => "r",
        Mode::Write => "w",
    }
}

fn max_tokens_arg(call: &mut Call, max_tokens: u64) {
    // A record stores this number with four digits, because a script may store the argument as it is.
    call.arg(&Digits::of(10_000 + max_tokens.min(MAX_TOKENS)).as_str()[1..]);
}

impl Scheme for LuaScheme {
    fn acquire<'a>(&'a self, key: &'a Key, request: &'a AcquireRequest) -> BoxFuture<'a, Attempt<Acquired>> {
        Box::pin(async move {
            let reply = self.router.call(self.acquire_call(key, request)).await?;
            read_reply(reply, request.id.as_str(), parse_acquired)
        })
    }

    fn release<'a>(&'a self, request: &'a ReleaseRequest) -> BoxFuture<'a, Attempt<ReleaseReply>> {
        Box::pin(async move {
            // The release overtakes acquisitions on the connection, because these may wait for the lock that the
            // release frees.
            let reply = self.router.call_ahead(self.release_call(request)).await?;
            read_reply(reply, request.id.as_str(), parse_released)
        })
    }

    fn can_send_inline(&self, leave: &ReleaseRequest) -> bool {
        self.router.can_send_inline(leave.key.slot())
    }

    fn release_all<'a>(
        &'a self,
        route: &'a Route,
        batch: &'a [ReleaseRequest],
    ) -> BoxFuture<'a, Vec<Attempt<ReleaseReply>>> {
        Box::pin(async move {
            let calls = batch.iter().map(|leave| self.release_call(leave)).collect();
            let replies = self.router.call_all(route, calls).await;
            let pairs = replies.into_iter().zip(batch);
            pairs.map(|(reply, leave)| read_reply(reply?, leave.id.as_str(), parse_released)).collect()
        })
    }

    fn convert<'a>(
        &'a self,
        key: &'a Key,
        old: &'a AcquisitionId,
        request: &'a AcquireRequest,
    ) -> BoxFuture<'a, Attempt<Converted>> {
        Box::pin(async move {
            let reply = self.router.call(self.convert_call(key, old, request)).await?;
            read_reply(reply, request.id.as_str(), parse_converted)
        })
    }

    fn renew<'a>(&'a self, route: &'a Route, batch: &'a [RenewalRequest]) -> BoxFuture<'a, Vec<Attempt<Renewed>>> {
        Box::pin(async move {
            let calls = batch.iter().map(|renewal| self.renew_call(renewal)).collect();
            let replies = self.router.call_all(route, calls).await;
            let pairs = replies.into_iter().zip(batch);
            pairs.map(|(reply, renewal)| read_reply(reply?, renewal.id.as_str(), parse_renewed)).collect()
        })
    }

    fn route(&self, key: &Key) -> Route {
        self.router.route(key.slot())
    }

    fn changes(&self) -> Option<BoxStream<'static, ()>> {
        self.router.changes()
    }

    fn inspect<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Attempt<View>> {
        Box::pin(async move {
            // An `inspect` has a connection of its own, because it may take long and other requests would wait behind
            // it.
            let reply = self.router.call_apart(self.call(&self.scripts.inspect, key)).await?;
            read_reply(reply, "", parse_view)
        })
    }

    fn force<'a>(&'a self, key: &'a Key, seen: &'a View) -> BoxFuture<'a, Attempt<Forced>> {
        Box::pin(async move {
            let reply = self.router.call_apart(self.force_call(key, seen)).await?;
            read_reply(reply, "", parse_forced)
        })
    }

    fn contact(&self, key: &Key) -> ServerContact {
        self.router.server_contact(key.slot())
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(self.router.ready())
    }

    fn check_rights<'a>(&'a self, key: &'a Key, more: &'a [&'a str]) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let reply = self.router.call_ahead(self.rights_call(key, more)).await?;
            let refused = refused_commands(&reply.value).unwrap_or_default();
            if refused.is_empty() {
                return Ok(());
            }
            let node = self.router.route(key.slot()).0;
            let message = format!("the user may not run {} on the keys of locks", refused.join(", "));
            let node = (!node.is_empty()).then_some(node);
            Err(Failure::Refused { refusal: Refusal::Forbidden, node, message })
        })
    }

    fn notifications(&self) -> Option<&dyn NotifyingScheme> {
        self.router.can_subscribe().then_some(self as &dyn NotifyingScheme)
    }

    fn recalls(&self) -> Option<&dyn RecallingScheme> {
        self.has_recalls().then_some(self as &dyn RecallingScheme)
    }

    fn notes(&self) -> Option<&dyn NotingScheme> {
        self.scripts.note.is_some().then_some(self as &dyn NotingScheme)
    }

    fn names<'a>(&'a self, listing: &'a Listing) -> BoxFuture<'a, Result<BTreeSet<String>, Failure>> {
        Box::pin(async move {
            let mut names = BTreeSet::new();
            let parts = self.scripts.key_parts;
            let mut found = |key: &str| names.extend(listing.name_of(key, parts));
            self.router.scan(&listing.pattern(), &mut found).await?;
            Ok(names)
        })
    }

    fn health(&self) -> BoxFuture<'_, Vec<NodeHealth>> {
        Box::pin(self.router.health())
    }

    fn traffic(&self) -> Traffic {
        self.router.traffic()
    }

    fn clock(&self) -> Clock {
        self.router.clock()
    }
}

impl NotifyingScheme for LuaScheme {
    fn subscribe(&self, key: &Key, manager: &str) -> Subscription {
        self.router.subscribe(key.slot(), &self.channel(key, manager), read_notification)
    }

    fn subscribe_if_live(&self, key: &Key, manager: &str) -> Option<Subscription> {
        if !self.router.is_subscribing() {
            return None;
        }
        self.router.subscribe_if_live(&self.channel(key, manager))
    }
}

impl RecallingScheme for LuaScheme {
    fn listen(&self, key: &Key, calls: &Arc<Recalls>) -> bool {
        self.router.listen(key.slot(), &self.recall_channel(key), read_recall, calls)
    }

    fn reply_in_use<'a>(&'a self, key: &'a Key, id: &'a str) -> BoxFuture<'a, Attempt<()>> {
        Box::pin(async move {
            let script = self.scripts.used.as_ref().expect("a scheme with recalls has this script");
            if !AcquisitionId::is_one(id) {
                return Err(refused_failure("this is no id"));
            }
            let reply = self.router.call_ahead(self.in_use_call(script, key, id)).await?;
            read_reply(reply, id, |code, _| (code == "told").then_some(()))
        })
    }
}

impl NotingScheme for LuaScheme {
    fn set_note<'a>(&'a self, key: &'a Key, id: &'a AcquisitionId, note: &'a Note) -> BoxFuture<'a, Attempt<Noted>> {
        Box::pin(async move {
            let script = self.scripts.note.as_ref().expect("a scheme with notes has this script");
            let mut call = self.call(script, key);
            call.echoed_arg(id.as_str());
            call.number(note.number);
            call.arg(&note.text);
            read_reply(self.router.call(call).await?, id.as_str(), parse_noted)
        })
    }
}

impl MasterScheme for LuaScheme {
    fn acquire_above<'a>(
        &'a self,
        key: &'a Key,
        request: &'a AcquireRequest,
        floor: Floor,
    ) -> BoxFuture<'a, Attempt<Acquired>> {
        Box::pin(async move {
            let reply = self.router.call(self.acquire_above_call(key, request, floor)).await?;
            read_reply(reply, request.id.as_str(), parse_acquired)
        })
    }

    fn force_shown<'a>(
        &'a self,
        key: &'a Key,
        token: Option<FencingToken>,
        seen: &'a View,
    ) -> BoxFuture<'a, Attempt<Forced>> {
        Box::pin(async move {
            let reply = self.router.call_apart(self.force_shown_call(key, token, seen)).await?;
            read_reply(reply, "", parse_forced)
        })
    }

    fn clock_sample(&self) -> Option<ClockSample> {
        self.router.clock_sample()
    }

    fn up_since(&self) -> Option<Moment> {
        self.router.up_since()
    }
}

/// Converts a lease to whole milliseconds, the unit of the scripts. The options allow no lease that comes near the
/// largest 64-bit number.
pub(super) fn whole_millis(lease: Duration) -> u64 {
    lease.as_secs().saturating_mul(1000).saturating_add(lease.subsec_millis().into())
}

/// Checks the words that all replies have and hands the rest to `parse`.
pub(super) fn read_reply<T>(
    reply: Answered<Value>,
    id: &str,
    parse: impl FnOnce(&str, &mut Fields<'_>) -> Option<T>,
) -> Attempt<T> {
    let Answered { sent, node, value, .. } = reply;
    let read = Fields::of(&value).and_then(|mut fields| {
        let code = fields.text()?;
        if fields.words.word()? != if id.is_empty() { NO_ID } else { id.as_bytes() } {
            return None;
        }
        let server = fields.words.time()?;
        if code == "version" {
            return Some(Err(other_version()));
        }
        let value = parse(code, &mut fields)?;
        Some(Ok(Answered { sent, server, node, value }))
    });
    read.unwrap_or_else(|| {
        Err(Failure::Unknown {
            // A script has run and replied, so no copy of this request is on its way.
            arrives_until: sent,
            source: Some(Arc::new(UnreachableSource("the reply is not one to this request".to_owned()))),
        })
    })
}

fn other_version() -> Failure {
    let message = "another version of this crate, which keeps its records differently, holds the lock or waits for it";
    Failure::Refused { refusal: Refusal::OtherVersion, node: None, message: message.to_owned() }
}

pub(super) fn parse_acquired(code: &str, fields: &mut Fields<'_>) -> Option<Acquired> {
    match code {
        "granted" => Some(Acquired::Granted(parse_granted(fields)?)),
        "queued" | "contended" | "kept" => parse_refused(code, fields),
        "late" => Some(Acquired::Late),
        _ => None,
    }
}

/// Reads a refusal: the time, the flag of a recall, and the holder that the refusal names.
fn parse_refused(code: &str, fields: &mut Fields<'_>) -> Option<Acquired> {
    let (retry_in, is_cached) = (fields.millis()?, fields.number()? == 1);
    let holder = match fields.text() {
        Some("w") => Some(Arc::new(parse_named_writer(fields)?)),
        Some("s") => Some(Arc::new(parse_named_reader(fields)?)),
        Some(_) | None => None,
    };
    Some(match code {
        "queued" => Acquired::Queued { retry_in, is_cached, holder },
        "kept" => Acquired::Cached { retry_in, holder },
        _ => Acquired::Contended { retry_in, holder },
    })
}

/// Reads `deadline_ms since_ms tokens id holders`.
fn parse_named_writer(fields: &mut Fields<'_>) -> Option<NamedHolder> {
    let (deadline_ms, since_ms, _tokens) = (fields.number()?, fields.number()?, fields.number()?);
    parse_named(Mode::Write, deadline_ms, since_ms, fields)
}

/// Reads `deadline_ms since_ms id holders`.
fn parse_named_reader(fields: &mut Fields<'_>) -> Option<NamedHolder> {
    let (deadline_ms, since_ms) = (fields.number()?, fields.number()?);
    parse_named(Mode::Read, deadline_ms, since_ms, fields)
}

fn parse_named(mode: Mode, deadline_ms: u64, since_ms: u64, fields: &mut Fields<'_>) -> Option<NamedHolder> {
    // The two-key scheme does not read the time of a reader's grant, and says 0.
    let since_ms = Some(since_ms).filter(|&since_ms| since_ms > 0);
    let id = fields.text()?.to_owned();
    Some(NamedHolder { id, mode, since_ms, deadline_ms, more: fields.count()?.checked_sub(1)? })
}

fn parse_granted(fields: &mut Fields<'_>) -> Option<Granted> {
    let (last, tokens) = (fields.number()?, fields.number()?);
    Some(Granted {
        token: first_token(last, tokens)?,
        tokens,
        remaining: fields.millis()?,
        is_waited_for: fields.number()? == 1,
    })
}

/// Returns the first of `tokens` consecutive tokens. `last` is the last of them.
fn first_token(last: u64, tokens: u64) -> Option<FencingToken> {
    FencingToken::from_wire(last)?;
    FencingToken::from_wire(last.checked_sub(tokens.checked_sub(1)?)?)
}

pub(super) fn parse_converted(code: &str, fields: &mut Fields<'_>) -> Option<Converted> {
    match code {
        "granted" => Some(Converted::Granted(parse_granted(fields)?)),
        "refused" => Some(Converted::Refused),
        "kept" => Some(Converted::Cached),
        "lost" => Some(Converted::Lost { forced: fields.token()? }),
        "late" => Some(Converted::Late),
        _ => None,
    }
}

pub(super) fn parse_released(code: &str, fields: &mut Fields<'_>) -> Option<ReleaseReply> {
    match code {
        "held" => Some(ReleaseReply::Held),
        "queued" => Some(ReleaseReply::Queued),
        "none" => {
            Some(ReleaseReply::None(Absence { forced: fields.token()?, last: fields.token()?, first: fields.token()? }))
        }
        _ => None,
    }
}

pub(super) fn parse_renewed(code: &str, fields: &mut Fields<'_>) -> Option<Renewed> {
    match code {
        "renewed" => parse_renewed_hold(fields),
        "lost" => Some(Renewed::Lost { forced: fields.token()? }),
        _ => None,
    }
}

fn parse_noted(code: &str, _: &mut Fields<'_>) -> Option<Noted> {
    match code {
        "noted" => Some(Noted::Noted),
        "none" => Some(Noted::None),
        _ => None,
    }
}

fn parse_renewed_hold(fields: &mut Fields<'_>) -> Option<Renewed> {
    let remaining = fields.millis()?;
    // The reply has more numbers only if the renewal asked to cache the hold.
    let Some(waited_for) = fields.number() else {
        return Some(Renewed::of(remaining));
    };
    let (first, count) = (fields.token()?, fields.number()?);
    let tokens = first.filter(|_| count > 0).map(|first| (first, count));
    Some(Renewed::Renewed { remaining, is_waited_for: waited_for == 1, tokens })
}

pub(super) fn parse_view(code: &str, fields: &mut Fields<'_>) -> Option<View> {
    if code != "view" {
        return None;
    }
    let mut view = View {
        token: fields.token()?,
        client_write_ms: Some(fields.number()?).filter(|&stamp| stamp > 0),
        client_read_ms: Some(fields.number()?).filter(|&stamp| stamp > 0),
        holders: Vec::new(),
        more_holders: fields.count()?,
        waiters: Vec::new(),
        more_waiters: fields.count()?,
        tokens: Vec::new(),
        // Only the hash scheme has this number.
        is_recallable: fields.number() == Some(1),
    };
    while let Some(mut row) = fields.row() {
        let kind = row.text()?;
        let (id, mode, since_ms) = (row.text()?.to_owned(), row.mode()?, row.number()?);
        match kind {
            "hold" => {
                let remaining = row.millis()?;
                // The text may contain blanks, so it is an element of its own behind the row.
                let note = if row.text() == Some("note") { Some(fields.whole_text()?) } else { None };
                view.holders.push(Holder { id, mode, since_ms, remaining, note });
            }
            "wait" => view.waiters.push(QueuedWaiter { id, mode, since_ms }),
            _ => return None,
        }
    }
    view.waiters.sort_by_key(|waiter| waiter.since_ms);
    Some(view)
}

pub(super) fn parse_forced(code: &str, fields: &mut Fields<'_>) -> Option<Forced> {
    if code != "forced" {
        return None;
    }
    let more = fields.number()? == 1;
    let ids = std::iter::from_fn(|| fields.row()?.text().map(str::to_owned)).collect();
    Some(Forced { ids, has_more: more })
}

/// Reads a notification for waiters. The notification of a grant has the id of its acquisition. Any message that is
/// neither a grant nor a recall reply makes the waiter ask again.
fn read_notification(message: &[u8], clock_sample: Option<ClockSample>) -> Notification {
    if let Some(id) = message.strip_prefix(b"used ").and_then(id_of) {
        return Notification::Used { id };
    }
    clock_sample
        .and_then(|clock_sample| parse_grant_notification(message, clock_sample))
        .unwrap_or(Notification::AskAgain)
}

fn id_of(text: &[u8]) -> Option<Arc<str>> {
    str::from_utf8(text).ok().filter(|id| AcquisitionId::is_one(id)).map(Arc::from)
}

/// Reads a recall: `<last_token>`, or `<last_token> <id>` from a try. Any other message becomes a recall with a token
/// below all others, which recalls no hold.
fn read_recall(message: &[u8], _: Option<ClockSample>) -> Notification {
    parse_recall(message).unwrap_or(Notification::Called { token: FencingToken::LOWEST, id: None })
}

fn parse_recall(message: &[u8]) -> Option<Notification> {
    let mut words = message.splitn(2, |byte| *byte == b' ');
    let token = FencingToken::from_wire(str::from_utf8(words.next()?).ok()?.parse().ok()?)?;
    let id = match words.next() {
        Some(id) => Some(id_of(id)?),
        None => None,
    };
    Some(Notification::Called { token, id })
}

/// Reads `<id> <last_token> <tokens> <deadline_ms> <server_us> <is_waited_for>`. The remaining time counts from the
/// clock sample, which comes from an earlier answer of the same node. So a late message causes no error.
fn parse_grant_notification(message: &[u8], clock_sample: ClockSample) -> Option<Notification> {
    let mut words = std::str::from_utf8(message).ok()?.split(' ');
    let id = words.next()?.into();
    let mut number = || words.next()?.parse::<u64>().ok();
    let (last, tokens) = (number()?, number()?);
    let token = first_token(last, tokens)?;
    let deadline = ServerTime::from_micros(number()?.checked_mul(1000)?);
    let at = ServerTime::from_micros(number()?);
    let is_waited_for = number()? == 1;
    let micros = deadline.as_micros().checked_sub(clock_sample.server.as_micros()).filter(|&micros| micros > 0)?;
    let remaining = Duration::from_micros(micros);
    let value = Granted { token, tokens, remaining, is_waited_for };
    Some(Notification::Granted {
        id,
        at,
        answer: Answered { sent: clock_sample.sent, server: clock_sample.server, node: NodeId::default(), value },
    })
}

/// Words of a reply or of a row, and the rows of the reply.
pub(super) struct Fields<'a> {
    words: Words<'a>,
    rows: &'a [Value],
}

impl<'a> Fields<'a> {
    fn of(value: &'a Value) -> Option<Self> {
        let rows = match value {
            Value::Array(items) => items.get(1..)?,
            _ => &[],
        };
        Some(Self { words: Words::of(value)?, rows })
    }

    fn row(&mut self) -> Option<Self> {
        let (row, rows) = self.rows.split_first()?;
        self.rows = rows;
        Self::of(row)
    }

    /// Takes the next row, which is one text.
    fn whole_text(&mut self) -> Option<String> {
        let (row, rows) = self.rows.split_first()?;
        self.rows = rows;
        match row {
            Value::BulkString(text) => Some(String::from_utf8_lossy(text).into_owned()),
            _ => None,
        }
    }

    fn text(&mut self) -> Option<&'a str> {
        str::from_utf8(self.words.word()?).ok()
    }

    fn number(&mut self) -> Option<u64> {
        self.words.number()
    }

    fn count(&mut self) -> Option<usize> {
        self.number()?.try_into().ok()
    }

    fn mode(&mut self) -> Option<Mode> {
        match self.text()? {
            "r" => Some(Mode::Read),
            "w" => Some(Mode::Write),
            _ => None,
        }
    }

    fn millis(&mut self) -> Option<Duration> {
        self.number().map(Duration::from_millis)
    }

    /// Reads a token. The number 0 means that there is no token.
    fn token(&mut self) -> Option<Option<FencingToken>> {
        let raw = self.number()?;
        if raw == 0 {
            return Some(None);
        }
        FencingToken::from_wire(raw).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(words: &str) -> Answered<Value> {
        let value = Value::BulkString(words.as_bytes().to_vec());
        Answered { sent: Moment::from_nanos(5), server: ServerTime::default(), node: NodeId::default(), value }
    }

    fn token(raw: u64) -> FencingToken {
        FencingToken::from_wire(raw).expect("small")
    }

    #[test]
    fn granted_reply_is_read() {
        for (flag, is_waited_for) in [(0, false), (1, true)] {
            let words = format!("granted a.1.x 3 7 72 64 500 {flag}");
            let read = read_reply(reply(&words), "a.1.x", parse_acquired).expect("readable");
            assert_eq!(read.server.as_micros(), 3_000_007);
            let (token, remaining) = (token(9), Duration::from_millis(500));
            assert_eq!(read.value, Acquired::Granted(Granted { token, tokens: 64, remaining, is_waited_for }));
        }
    }

    #[test]
    fn reply_to_another_request_is_never_believed() {
        let read = read_reply(reply("granted b.1.x 3 7 9 1 500 0"), "a.1.x", parse_acquired);
        assert!(matches!(read, Err(Failure::Unknown { .. })));
    }

    #[test]
    fn reply_of_another_shape_is_unknown_not_denied() {
        for words in [
            "",
            "granted",
            "granted a.1.x 3 7 9 64 500 0",
            "granted a.1.x 3 7 9 0 500 0",
            "late a.1.x soon 3",
            "late a.1.x 3",
            "granted a.1.x 3 7 9 1",
            "held a.1.x 3 7",
        ] {
            let read = read_reply(reply(words), "a.1.x", parse_acquired);
            assert!(matches!(read, Err(Failure::Unknown { .. })), "{words}");
        }
    }

    #[test]
    fn reply_of_another_version_is_a_refusal() {
        let read = read_reply(reply("version a.1.x 3 7"), "a.1.x", parse_acquired);
        assert!(matches!(read, Err(Failure::Refused { refusal: Refusal::OtherVersion, .. })));
    }

    const ANCHOR: ClockSample = ClockSample { sent: Moment::from_nanos(3), server: ServerTime::from_micros(5_000_400) };

    #[test]
    fn notification_of_a_grant_counts_from_the_clock_sample() {
        for (flag, is_waited_for) in [("0", false), ("1", true)] {
            let message = format!("m.1.label 9007199254740992 64 6000 5900123 {flag}");
            let Notification::Granted { id, at, answer } = read_notification(message.as_bytes(), Some(ANCHOR)) else {
                panic!("it is one")
            };
            assert_eq!((&*id, at.as_micros()), ("m.1.label", 5_900_123));
            assert_eq!((answer.sent, answer.server), (ANCHOR.sent, ANCHOR.server));
            let (token, remaining) = (token((1 << 53) - 63), Duration::from_micros(999_600));
            assert_eq!(answer.value, Granted { token, tokens: 64, remaining, is_waited_for });
        }
    }

    #[test]
    fn other_notices_mean_that_it_is_time_to_ask() {
        let granted = "m.1.label 72 64 6000 5900123 0";
        // Without a clock sample, no deadline can be trusted.
        assert!(matches!(read_notification(granted.as_bytes(), None), Notification::AskAgain));
        let others = [
            "",
            "m.1.label",                      // the two-key scheme names the next waiter
            "m.1.label 9 64 6000 5900123",    // too short
            "m.1.label 72 64 soon 5900123 0", // no number
            "m.1.label 72 64 5000 4900123 0", // over before the clock sample
            "m.1.label 9007199254740993 1 6000 5900123 0",
            "m.1.label 72 64 18446744073709551615 5900123 0",
            "m.1.label 9 64 6000 5900123 0", // more tokens than there are
        ];
        for other in others {
            assert!(matches!(read_notification(other.as_bytes(), Some(ANCHOR)), Notification::AskAgain), "{other}");
        }
        assert!(matches!(read_notification(b"\xff", Some(ANCHOR)), Notification::AskAgain));
    }

    #[test]
    fn waiters_are_read_in_the_order_in_which_they_came() {
        let rows = ["view - 0 7 9 0 0 3 4", "hold h r 1 2", "wait a w 5", "wait b w 7", "wait c r 6"];
        let value = Value::Array(rows.map(|row| Value::BulkString(row.as_bytes().to_vec())).into());
        let view = read_reply(Answered { value, ..reply("") }, "", parse_view).expect("readable").value;
        let ids: Vec<_> = view.waiters.iter().map(|waiter| (waiter.id.as_str(), waiter.mode)).collect();
        assert_eq!(ids, [("a", Mode::Write), ("c", Mode::Read), ("b", Mode::Write)]);
        assert_eq!((view.holders.len(), view.more_holders, view.more_waiters), (1, 3, 4));
    }
}
