//! Scheme of Redisson's read-write lock. Clients of Redisson (Java) and managers of this crate exclude each other on the
//! same keys. `lua/redisson/` has the scripts, and `lua/README.md` the layout.
//!
//! Each acquisition has a field of its own in the lock's hash: its id and `:1`, where Redisson has the id of a client and a
//! thread. So a repeated request finds the hold of the first one again, and a repeated release ends no other hold.
//!
//! The format has no queue and no recalls. A waiter subscribes to the channel of Redisson, and asks again when a message
//! comes. Tokens are in a sorted set beside the lock, which clients of Redisson do not know.

mod calls;
mod limits;
mod names;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;

pub(crate) use self::limits::adapt;
use self::names::Names;
use crate::base::clock::Clock;
use crate::base::error::Refusal;
use crate::base::health::{NodeHealth, Traffic};
use crate::base::key::{Key, Listing};
use crate::net::{Router, Script};
use crate::store::lua::replies::{
    parse_acquired, parse_converted, parse_forced, parse_released, parse_renewed, parse_view, read_reply,
    refused_commands,
};
use crate::store::scripts::redisson;
use crate::store::{
    Ability, AcquireRequest, Acquired, AcquisitionId, Answered, Attempt, BoxFuture, Converted, Failure, Forced,
    Granted, IfTaken, Notification, NotifyingScheme, RecallingScheme, ReleaseReply, ReleaseRequest, RenewalRequest,
    Renewed, Route, Scheme, ServerContact, Subscription, View,
};

static ACQUIRE: Script = Script::new(redisson::ACQUIRE);
static LEAVE: Script = Script::new(redisson::LEAVE);
static CONVERT: Script = Script::new(redisson::CONVERT);
static RENEW: Script = Script::new(redisson::RENEW);
static INSPECT: Script = Script::new(redisson::INSPECT);
static FORCE: Script = Script::new(redisson::FORCE);

/// Returns the commands that the scripts need.
fn commands() -> BTreeSet<&'static str> {
    [&ACQUIRE, &LEAVE, &CONVERT, &RENEW, &INSPECT, &FORCE].into_iter().flat_map(Script::commands).collect()
}

/// Scheme that shares its locks with clients of Redisson.
pub(crate) struct RedissonScheme {
    router: Arc<Router>,
    /// Longest time for which a manager relies on an answer of the server.
    longest_lease: Duration,
}

impl fmt::Debug for RedissonScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedissonScheme").field("router", &self.router).finish_non_exhaustive()
    }
}

impl RedissonScheme {
    pub(crate) fn new(router: Arc<Router>, longest_lease: Duration) -> Self {
        Self { router, longest_lease }
    }

    fn limit_remaining(&self, granted: Granted) -> Granted {
        Granted { remaining: granted.remaining.min(self.longest_lease), ..granted }
    }
}

/// Returns the answer to a waiter. For the engine, the waiter is queued, because it gets messages about releases.
fn to_waiter(answer: Acquired, request: &AcquireRequest) -> Acquired {
    match (answer, request.if_taken) {
        (Acquired::Contended { retry_in, holder }, IfTaken::Queue { .. }) => {
            Acquired::Queued { retry_in, is_cached: false, holder }
        }
        (answer, _) => answer,
    }
}

impl Scheme for RedissonScheme {
    fn lacks(&self, ability: Ability) -> Option<&'static str> {
        Some(match ability {
            Ability::Rests => {
                "the format of Redisson has no place for a lock that is taken without a holder: use `RedisManager`"
            }
            Ability::Waiters => {
                "the format of Redisson records no waiters, so nobody can see who waits for whom: use `RedisManager`"
            }
            Ability::Tickets => {
                "a client of Redisson could not tell a detached hold from one that its holder renews: use `RedisManager`"
            }
        })
    }

    fn acquire<'a>(&'a self, key: &'a Key, request: &'a AcquireRequest) -> BoxFuture<'a, Attempt<Acquired>> {
        Box::pin(async move {
            let reply = self.router.call(calls::acquire(key, request)).await?;
            let answer = read_reply(reply, request.id.as_str(), parse_acquired)?;
            let value = match to_waiter(answer.value, request) {
                Acquired::Granted(granted) => Acquired::Granted(self.limit_remaining(granted)),
                value => value,
            };
            Ok(Answered { value, ..answer })
        })
    }

    fn release<'a>(&'a self, leave: &'a ReleaseRequest) -> BoxFuture<'a, Attempt<ReleaseReply>> {
        Box::pin(async move {
            // The release overtakes acquisitions on the connection, because these may wait for the lock that it frees.
            let reply = self.router.call_ahead(calls::release(&leave.key, &leave.id)).await?;
            read_reply(reply, leave.id.as_str(), parse_released)
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
            let calls = batch.iter().map(|leave| calls::release(&leave.key, &leave.id)).collect();
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
            let reply = self.router.call(calls::convert(key, old, request)).await?;
            let answer = read_reply(reply, request.id.as_str(), parse_converted)?;
            let value = match answer.value {
                Converted::Granted(granted) => Converted::Granted(self.limit_remaining(granted)),
                value => value,
            };
            Ok(Answered { value, ..answer })
        })
    }

    fn renew<'a>(&'a self, route: &'a Route, batch: &'a [RenewalRequest]) -> BoxFuture<'a, Vec<Attempt<Renewed>>> {
        Box::pin(async move {
            let calls = batch.iter().map(calls::renew).collect();
            let replies = self.router.call_all(route, calls).await;
            let pairs = replies.into_iter().zip(batch);
            let read = pairs.map(|(reply, renewal)| {
                let answer = read_reply(reply?, renewal.id.as_str(), parse_renewed)?;
                let value = match answer.value {
                    Renewed::Renewed { remaining, .. } => Renewed::of(remaining.min(self.longest_lease)),
                    lost => lost,
                };
                Ok(Answered { value, ..answer })
            });
            read.collect()
        })
    }

    fn route(&self, key: &Key) -> Route {
        self.router.route(key.slot())
    }

    fn changes(&self) -> Option<BoxStream<'static, ()>> {
        self.router.changes()
    }

    fn inspect<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Attempt<View>> {
        Box::pin(async move { read_reply(self.router.call_apart(calls::inspect(key)).await?, "", parse_view) })
    }

    fn force<'a>(&'a self, key: &'a Key, seen: &'a View) -> BoxFuture<'a, Attempt<Forced>> {
        Box::pin(async move { read_reply(self.router.call_apart(calls::force(key, seen)).await?, "", parse_forced) })
    }

    fn contact(&self, key: &Key) -> ServerContact {
        self.router.server_contact(key.slot())
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(self.router.ready())
    }

    fn check_rights<'a>(&'a self, key: &'a Key, more: &'a [&'a str]) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let reply = self.router.call_ahead(calls::rights(key, more)).await?;
            let refused = refused_commands(&reply.value).unwrap_or_default();
            if refused.is_empty() {
                return Ok(());
            }
            let message = format!("the user may not run {} on the keys of locks", refused.join(", "));
            let node = Some(self.router.route(key.slot()).0).filter(|node| !node.is_empty());
            Err(Failure::Refused { refusal: Refusal::Forbidden, node, message })
        })
    }

    fn notifications(&self) -> Option<&dyn NotifyingScheme> {
        Some(self)
    }

    fn recalls(&self) -> Option<&dyn RecallingScheme> {
        None
    }

    /// Finds the locks by the keys of their tokens, because a lock's own key shows nothing of its kind.
    fn names<'a>(&'a self, _: &'a Listing) -> BoxFuture<'a, Result<BTreeSet<String>, Failure>> {
        Box::pin(async move {
            let mut names = BTreeSet::new();
            let mut found = |key: &str| names.extend(names::lock_of_tokens(key));
            self.router.scan(&names::pattern_of_tokens(), &mut found).await?;
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

impl NotifyingScheme for RedissonScheme {
    /// Subscribes to the channel of the lock, which all waiters of all clients share.
    fn subscribe(&self, key: &Key, _: &str) -> Subscription {
        // No message on this channel grants a lock. The messages are `0` and `1`, and other clients may send others.
        self.router.subscribe(key.slot(), &Names::of(key).channel(), |_, _| Notification::AskAgain)
    }

    fn subscribe_if_live(&self, key: &Key, _: &str) -> Option<Subscription> {
        if !self.router.is_subscribing() {
            return None;
        }
        self.router.subscribe_if_live(&Names::of(key).channel())
    }
}
