//! Typed calls of all Lua schemes. `lua/README.md` describes the protocol.

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/store/lua/late.rs"]
mod late;
mod replies;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;

use self::replies::{
    Fields, parse_acquired, parse_converted, parse_forced, parse_noted, parse_released, parse_renewed, parse_view,
    read_notification, read_recall, read_reply, refused_commands,
};
use crate::base::clock::Clock;
use crate::base::digits::Digits;
use crate::base::error::Refusal;
use crate::base::health::{NodeHealth, Traffic};
use crate::base::key::{Key, Listing};
use crate::base::lease::{ClockSample, FencingToken, MAX_TOKENS, Moment};
use crate::base::recalls::Recalls;
use crate::net::{Call, CallRoute, Expiry, Router, Script};
use crate::store::redisson::{self, Names, names};
use crate::store::{
    Ability, AcquireRequest, Acquired, AcquisitionId, Attempt, BoxAttempt, BoxFuture, Converted, Failure, Floor,
    Forced, Granted, IfTaken, MasterScheme, Mode, Note, Noted, Notification, NotifyingScheme, NotingScheme,
    RecallingScheme, ReleaseReply, ReleaseRequest, RenewalRequest, Renewed, Route, Scheme, ServerContact, Subscription,
    View, refused_failure, scripts,
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
    /// Last part of the name of each key of a lock, in the order of `KEYS`. Redisson's keys have other names.
    pub(crate) key_parts: &'static [&'static str],
}

/// Builds the scripts of a scheme from its texts in the module `scripts`.
macro_rules! scripts_of {
    ($scheme:ident { $($more:tt)* }) => {
        Scripts {
            acquire: Script::new($scheme::ACQUIRE),
            leave: Script::new($scheme::LEAVE),
            convert: Script::new($scheme::CONVERT),
            renew: Script::new($scheme::RENEW),
            inspect: Script::new($scheme::INSPECT),
            force: Script::new($scheme::FORCE),
            $($more)*
        }
    };
}
pub(super) use scripts_of;

impl Scripts {
    /// Returns the commands of the server that the scheme needs.
    pub(super) fn commands(&self) -> BTreeSet<&'static str> {
        let Scripts { acquire, leave, convert, renew, inspect, force, used, note, key_parts: _ } = self;
        let all = [acquire, leave, convert, renew, inspect, force].into_iter().chain(used).chain(note);
        all.flat_map(Script::commands).collect()
    }
}

static RIGHTS: Script = Script::new(scripts::RIGHTS);

/// Place in which a scheme records the waiters of a lock. `Nowhere` is the format of Redisson, which has its own keys and
/// arguments too.
pub(crate) enum ScriptQueue {
    /// The record of the lock has the queue. A script that frees the lock grants it to waiters and notifies them.
    /// `limits` is the text that tells a script how long foreign timestamps count: the milliseconds for readers, a
    /// blank, and the milliseconds for writers. Each script that may admit a client needs this text.
    InTheLock { limits: String },
    /// The readers' key has the queue. A script that frees the lock grants nothing to a waiter. It only notifies the
    /// next waiter, which then asks again.
    Beside,
    /// There is no queue. A waiter subscribes to the channel of the lock, and asks again when a message
    /// comes. `longest_lease` is the longest time for which a manager relies on an answer of the server.
    Nowhere { longest_lease: Duration },
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
    pub(crate) fn new(scripts: &'static Scripts, router: Arc<Router>, queue: ScriptQueue) -> Self {
        Self { scripts, router, queue }
    }

    fn is_of_redisson(&self) -> bool {
        matches!(self.queue, ScriptQueue::Nowhere { .. })
    }

    /// Builds a call of `script` with its keys and without arguments.
    fn call(&self, script: &'static Script, key: &Key) -> Call {
        let mut call = Call::new(script, key.slot());
        if self.is_of_redisson() {
            call.key([key.name(), "", ""]);
            call.key([&Names::of(key).tokens(), "", ""]);
        }
        for part in self.scripts.key_parts {
            call.key(key.pieces(part));
        }
        call
    }

    /// Builds the same call with a key for the timeout of each of these holds, if the scheme has such keys.
    fn call_of_holds(&self, script: &'static Script, key: &Key, ids: &[&AcquisitionId]) -> Call {
        let mut call = self.call(script, key);
        for id in ids.iter().filter(|_| self.is_of_redisson()) {
            call.key([&Names::of(key).timeout(id.as_str()), "", ""]);
        }
        call
    }

    /// Adds all arguments of an acquisition except its time limit. The time limit comes before these arguments.
    fn acquire_args(&self, call: &mut Call, request: &AcquireRequest) {
        call.echoed_arg(request.id.as_str());
        call.arg(letter(request.mode));
        call.number(whole_millis(request.lease));
        if self.is_of_redisson() {
            return;
        }
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
        let mut call = self.call_of_holds(&self.scripts.acquire, key, &[&request.id]);
        self.acquire_args(&mut call, request);
        call.expiry = Expiry::ResponseTimeout;
        call.grants = true;
        call
    }

    /// Builds an acquisition whose token has a lower bound. Only the two-key scheme supports it.
    fn acquire_above_call(&self, key: &Key, request: &AcquireRequest, floor: Floor) -> Call {
        let mut call = self.acquire_call(key, request);
        let (Floor::New(token) | Floor::Any(token)) = floor;
        call.number(token.as_u64());
        if let Floor::Any(_) = floor {
            call.arg("raise");
        }
        call
    }

    fn release_call(&self, request: &ReleaseRequest) -> Call {
        let mut call = self.call_of_holds(&self.scripts.leave, &request.key, &[&request.id]);
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
        let mut call = self.call_of_holds(&self.scripts.convert, key, &[old, &request.id]);
        self.convert_args(&mut call, old, request);
        call.expiry = Expiry::ResponseTimeout;
        call.grants = true;
        call
    }

    fn renew_call(&self, renewal: &RenewalRequest) -> Call {
        let mut call = self.call_of_holds(&self.scripts.renew, &renewal.key, &[&renewal.id]);
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

    /// Builds the call of a script that finds the holds of the lock itself.
    fn call_of_lock(&self, script: &'static Script, key: &Key) -> Call {
        let mut call = self.call(script, key);
        if self.is_of_redisson() {
            call.arg(&Names::of(key).beginning());
        }
        call
    }

    fn force_call(&self, key: &Key, seen: &View) -> Call {
        let mut call = self.call_of_lock(&self.scripts.force, key);
        if self.is_of_redisson() {
            call.arg(&ids(seen));
            return call;
        }
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
            // All waiters of all clients of Redisson share one channel.
            ScriptQueue::Nowhere { .. } => Names::of(key).channel(),
        }
    }

    /// Returns the time for which the manager relies on a hold that has this time left.
    fn relied_on(&self, remaining: Duration) -> Duration {
        if let ScriptQueue::Nowhere { longest_lease } = self.queue { remaining.min(longest_lease) } else { remaining }
    }

    fn limit_remaining(&self, granted: Granted) -> Granted {
        Granted { remaining: self.relied_on(granted.remaining), ..granted }
    }

    /// Returns the answer to an acquisition as the engine needs it. For the engine, a waiter of Redisson's format is
    /// queued, because it gets messages about releases.
    fn adapt_acquired(&self, answer: Acquired, request: &AcquireRequest) -> Acquired {
        match (answer, request.if_taken) {
            (Acquired::Contended { retry_in, holder }, IfTaken::Queue { .. }) if self.is_of_redisson() => {
                Acquired::Queued { retry_in, is_cached: false, holder }
            }
            (Acquired::Granted(granted), _) => Acquired::Granted(self.limit_remaining(granted)),
            (answer, _) => answer,
        }
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

/// Returns the ids of all holds in a view, with blanks between them.
fn ids(seen: &View) -> String {
    seen.holders.iter().map(|holder| &*holder.id).collect::<Vec<_>>().join(" ")
}

fn letter(mode: Mode) -> &'static str {
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
    fn lacks(&self, ability: Ability) -> Option<&'static str> {
        self.is_of_redisson().then(|| redisson::reason_to_lack(ability))
    }

    fn acquire<'a>(&'a self, key: &'a Key, request: &'a AcquireRequest) -> BoxAttempt<'a, Acquired> {
        Box::pin(async move {
            let reply = self.router.call(self.acquire_call(key, request), CallRoute::Shared).await?;
            read_reply(reply, request.id.as_str(), |code, fields| {
                Some(self.adapt_acquired(parse_acquired(code, fields)?, request))
            })
        })
    }

    fn release<'a>(&'a self, request: &'a ReleaseRequest) -> BoxAttempt<'a, ReleaseReply> {
        Box::pin(async move {
            // The release overtakes acquisitions on the connection, because these may wait for the lock that the
            // release frees.
            let reply = self.router.call(self.release_call(request), CallRoute::Ahead).await?;
            read_reply(reply, request.id.as_str(), parse_released)
        })
    }

    fn can_send_inline(&self, leave: &ReleaseRequest) -> bool {
        self.router.can_send_inline(leave.key.slot())
    }

    fn can_renew_inline(&self, key: &Key) -> bool {
        self.router.can_send_inline(key.slot())
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
    ) -> BoxAttempt<'a, Converted> {
        Box::pin(async move {
            let reply = self.router.call(self.convert_call(key, old, request), CallRoute::Shared).await?;
            read_reply(reply, request.id.as_str(), |code, fields| {
                Some(match parse_converted(code, fields)? {
                    Converted::Granted(granted) => Converted::Granted(self.limit_remaining(granted)),
                    other => other,
                })
            })
        })
    }

    fn renew<'a>(&'a self, route: &'a Route, batch: &'a [RenewalRequest]) -> BoxFuture<'a, Vec<Attempt<Renewed>>> {
        Box::pin(async move {
            let calls = batch.iter().map(|renewal| self.renew_call(renewal)).collect();
            let replies = self.router.call_all(route, calls).await;
            let pairs = replies.into_iter().zip(batch);
            let read = |code: &str, fields: &mut Fields<'_>| {
                Some(match parse_renewed(code, fields)? {
                    Renewed::Renewed { remaining, is_waited_for, tokens } => {
                        Renewed::Renewed { remaining: self.relied_on(remaining), is_waited_for, tokens }
                    }
                    lost => lost,
                })
            };
            pairs.map(|(reply, renewal)| read_reply(reply?, renewal.id.as_str(), read)).collect()
        })
    }

    fn route(&self, key: &Key) -> Route {
        self.router.route(key.slot())
    }

    fn changes(&self) -> Option<BoxStream<'static, ()>> {
        self.router.changes()
    }

    fn inspect<'a>(&'a self, key: &'a Key) -> BoxAttempt<'a, View> {
        Box::pin(async move {
            // An `inspect` has a connection of its own, because it may take long and other requests would wait behind
            // it.
            let reply = self.router.call(self.call_of_lock(&self.scripts.inspect, key), CallRoute::Dedicated).await?;
            read_reply(reply, "", parse_view)
        })
    }

    fn force<'a>(&'a self, key: &'a Key, seen: &'a View) -> BoxAttempt<'a, Forced> {
        Box::pin(async move {
            let reply = self.router.call(self.force_call(key, seen), CallRoute::Dedicated).await?;
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
            let mut call = self.call(&RIGHTS, key);
            let commands: Vec<&str> = self.scripts.commands().into_iter().chain(more.iter().copied()).collect();
            call.arg(&commands.join(" "));
            let reply = self.router.call(call, CallRoute::Ahead).await?;
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
            if self.is_of_redisson() {
                // By the keys of their tokens, because a lock's own key shows nothing of its kind.
                let mut found = |key: &str| names.extend(names::lock_of_tokens(key));
                self.router.scan(&names::pattern_of_tokens(), &mut found).await?;
            } else {
                let mut found = |key: &str| names.extend(listing.name_of(key, self.scripts.key_parts));
                self.router.scan(&listing.pattern(), &mut found).await?;
            }
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
        // No message on the channel of Redisson grants a lock. The messages are `0` and `1`, and other clients may send
        // others.
        let read = if self.is_of_redisson() { |_: &[u8], _| Notification::AskAgain } else { read_notification };
        self.router.push.subscribe(key.slot(), &self.channel(key, manager), read)
    }

    fn subscribe_if_live(&self, key: &Key, manager: &str) -> Option<Subscription> {
        if !self.router.push.is_in_use() {
            return None;
        }
        self.router.push.subscribe_if_live(&self.channel(key, manager))
    }
}

impl RecallingScheme for LuaScheme {
    fn listen(&self, key: &Key, calls: &Arc<Recalls>) -> bool {
        self.router.push.listen(key.slot(), &self.recall_channel(key), read_recall, calls)
    }

    fn reply_in_use<'a>(&'a self, key: &'a Key, id: &'a str) -> BoxAttempt<'a, ()> {
        Box::pin(async move {
            let script = self.scripts.used.as_ref().expect("a scheme with recalls has this script");
            if !AcquisitionId::is_one(id) {
                return Err(refused_failure("this is no id"));
            }
            let mut call = self.call(script, key);
            call.echoed_arg(id);
            read_reply(self.router.call(call, CallRoute::Ahead).await?, id, |code, _| (code == "told").then_some(()))
        })
    }
}

impl NotingScheme for LuaScheme {
    fn set_note<'a>(&'a self, key: &'a Key, id: &'a AcquisitionId, note: &'a Note) -> BoxAttempt<'a, Noted> {
        Box::pin(async move {
            let script = self.scripts.note.as_ref().expect("a scheme with notes has this script");
            let mut call = self.call(script, key);
            call.echoed_arg(id.as_str());
            call.number(note.number);
            call.arg(&note.text);
            read_reply(self.router.call(call, CallRoute::Shared).await?, id.as_str(), parse_noted)
        })
    }
}

impl MasterScheme for LuaScheme {
    fn acquire_above<'a>(
        &'a self,
        key: &'a Key,
        request: &'a AcquireRequest,
        floor: Floor,
    ) -> BoxAttempt<'a, Acquired> {
        Box::pin(async move {
            let reply = self.router.call(self.acquire_above_call(key, request, floor), CallRoute::Shared).await?;
            read_reply(reply, request.id.as_str(), parse_acquired)
        })
    }

    fn force_shown<'a>(&'a self, key: &'a Key, token: Option<FencingToken>, seen: &'a View) -> BoxAttempt<'a, Forced> {
        Box::pin(async move {
            // Only the script of the two-key scheme reads what is added here.
            let mut call = self.force_call(key, &View { token, ..View::default() });
            call.number(seen.token.map_or(0, FencingToken::as_u64));
            call.arg(&ids(seen));
            read_reply(self.router.call(call, CallRoute::Dedicated).await?, "", parse_forced)
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
fn whole_millis(lease: Duration) -> u64 {
    lease.as_secs().saturating_mul(1000).saturating_add(lease.subsec_millis().into())
}
