//! Router: finds the node that owns a slot, and follows the slot when it moves.
//!
//! After a redirect, or a refusal that proves that nothing ran, the router sends the call again. It does so for one
//! response timeout. The router does not repeat a call that got no answer. Instead, the caller learns that the outcome
//! is unknown, and the fleet asks other nodes for the slot map.
//!
//! Behind Sentinels, one primary owns all slots. The Sentinels name this primary.
//!
//! Source: the redirection rules of the Redis cluster specification.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, BoxStream};
use redis::{ConnectionInfo, Value};
use tokio::sync::watch;

use crate::base::attempt::{Attempt, Failure, Route, ServerContact};
use crate::base::background_runtime::BackgroundRuntime;
use crate::base::clock::Clock;
use crate::base::error::{Error, Refusal, Result};
use crate::base::health::{NodeHealth, Traffic};
use crate::base::lease::{ClockSample, Moment};
use crate::base::options::Options;
use crate::base::topology::{Access, Kind, Tls, Topology};
use crate::net::address::{address_of, parse_all, parse_one};
use crate::net::conditions::{Conditions, ConditionsOf};
use crate::net::fault::{Answer, Fault};
use crate::net::fleet::{Fleet, SuspectReason};
use crate::net::node::{Admission, CallAnswer, Limits, Node, NodeSetup, Precedence, Role};
use crate::net::push::{Pace, Push};
use crate::net::recheck::Recheck;
use crate::net::secrets::Secrets;
use crate::net::slot_owners::SlotOwners;
use crate::net::slots::SlotMap;
use crate::net::survey;
use crate::net::{CLOCK, Call, CountGuard};

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/net/router.rs"]
mod tests;

/// Pause before a call is sent again.
const AGAIN_PAUSE: Duration = Duration::from_millis(10);

pub(crate) struct Router {
    slot_owners: SlotOwners,
    pub(crate) push: Push,
    limits: Limits,
    in_flight: AtomicUsize,
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owners: &dyn fmt::Debug = match &self.slot_owners {
            SlotOwners::Single(node) => node,
            SlotOwners::Many(fleet) => fleet,
        };
        f.debug_tuple("Router").field(owners).finish()
    }
}

impl Router {
    /// Creates a router to the servers of a topology. The router connects when it is first used.
    pub(crate) fn new(topology: &Topology, options: &Options, background_runtime: &BackgroundRuntime) -> Result<Self> {
        let access = topology.access()?;
        let secrets = Arc::new(Secrets::new(&topology.tls, access, background_runtime)?);
        let tls = &secrets.certificates();
        let setup_of = |infos: &[ConnectionInfo], role| {
            let place =
                ConditionsOf { servers: servers(&topology.kind, infos), durability: options.durability.to_string() };
            let conditions = Arc::new(Conditions::new(place, options.max_clock_skew));
            NodeSetup::new(Limits::new(options, role), background_runtime, &conditions, &secrets)
        };
        let fleet = match &topology.kind {
            Kind::Node(url) | Kind::Proxy(url) => {
                let role = if topology.is_proxied() { Role::Proxy } else { Role::Standalone };
                let info = parse_one(url, tls)?;
                let infos = std::slice::from_ref(&info);
                secrets.check(infos)?;
                let setup = setup_of(infos, role);
                return Ok(Self::single(info, setup, options));
            }
            Kind::Cluster(urls) => {
                let infos = parse_all(urls, tls)?;
                // All members of a cluster use the password of the first URL, so only this URL is checked for one.
                secrets.check(&infos[..1])?;
                secrets.check_provider(&infos)?;
                Fleet::cluster(&infos, access, setup_of(&infos, Role::ClusterMember))?
            }
            Kind::Sentinel { primary, urls } => {
                let infos = parse_all(urls, tls)?;
                // The URLs are not checked here, because Sentinels may have passwords of their own.
                let setup = setup_of(&infos, Role::Standalone);
                Fleet::behind_sentinels(primary, infos, access, setup)?
            }
        };
        Ok(Self::of(SlotOwners::Many(Arc::clone(&fleet)), &fleet.setup, options))
    }

    /// Creates one router for each of several independent servers.
    pub(crate) fn voters(
        urls: &[String],
        tls: &Tls,
        access: &Access,
        options: &Options,
        background_runtime: &BackgroundRuntime,
    ) -> Result<Vec<Self>> {
        let secrets = Arc::new(Secrets::new(tls, access, background_runtime)?);
        let tls = &secrets.certificates();
        let infos = urls.iter().map(|url| parse_one(url, tls)).collect::<Result<Vec<_>>>()?;
        secrets.check(&infos)?;
        let addresses: Vec<_> = infos.iter().map(|info| address_of(info.addr())).collect();
        check_distinct(&addresses)?;
        let durability = format!("Quorum ({} of {})", urls.len() / 2 + 1, urls.len());
        let place = ConditionsOf { servers: addresses.join(", "), durability };
        // All servers share one value, because it compares their clocks.
        let conditions = Arc::new(Conditions::new(place, options.max_clock_skew));
        let limits = Limits::new(options, Role::Voter);
        let setup = || NodeSetup::new(limits, background_runtime, &conditions, &secrets);
        Ok(infos.into_iter().map(|info| Self::single(info, setup(), options)).collect())
    }

    fn single(info: ConnectionInfo, setup: NodeSetup, options: &Options) -> Self {
        let node = Node::new(&address_of(info.addr()), info, setup.clone());
        Self::of(SlotOwners::Single(Arc::new(node)), &setup, options)
    }

    fn of(slot_owners: SlotOwners, setup: &NodeSetup, options: &Options) -> Self {
        Recheck::install(&slot_owners, setup);
        let push = Push::new(slot_owners.clone(), setup.background_runtime.clone(), Pace::of(options));
        Self { slot_owners, push, limits: setup.limits, in_flight: AtomicUsize::new(0) }
    }

    /// Sends a call to the owner of its slot, and follows the slot when it moves.
    async fn carry(&self, call: Call, call_route: CallRoute) -> Attempt<Value> {
        let mut give_up = None;
        let mut next = self.owner(call.slot).await.map_err(Fault::into_failure)?;
        let mut admission = Admission::Owner;
        let mut redirects = 0;
        loop {
            let fault = match self.send(&next, &call, call_route, admission).await {
                Ok(answer) => return Ok(answer),
                Err(fault) => fault,
            };
            // The time limit begins with the first fault. Most calls have no fault, so they need not read the clock.
            let now = CLOCK.now();
            // The address of a single node has led twice to a server that is no primary. The call ends here, because
            // its caller has longer pauses and a time limit for this case.
            let is_left_twice = redirects > 0 && self.is_one_server() && matches!(fault, Fault::WrongServer(_));
            if is_left_twice || now >= *give_up.get_or_insert(now.after(self.limits.response_timeout)) {
                return Err(self.for_now(fault).at(next.shown()));
            }
            redirects += 1;
            if redirects > 1 {
                // The first redirect is followed without a pause. Later redirects are followed after a pause. Otherwise
                // two nodes that name each other would get the call as fast as they answer.
                tokio::time::sleep(AGAIN_PAUSE).await;
            }
            // Boxed because it is rarely needed. Unboxed, it would enlarge the future of every call, which is moved
            // several times.
            (next, admission) = Box::pin(self.follow(fault, call.slot, &next)).await?;
        }
    }

    /// Returns true if all calls reach the same server.
    fn is_one_server(&self) -> bool {
        self.slot_owners.fleet().is_none() && self.limits.role != Role::Proxy
    }

    /// Converts a fault after the time limit for redirects and retries. If several nodes can be primary, a refusal by a
    /// replica means that a failover is not over. The result then allows the caller to try again.
    fn for_now(&self, fault: Fault) -> Failure {
        match (fault, self.is_one_server()) {
            (Fault::Refused { refusal: Refusal::ReadOnly, message }, false) => {
                Failure::NotDone { source: Some(Answer::error(message)) }
            }
            (Fault::WrongServer(source), false) => Failure::NotDone { source: Some(Answer::error(source.to_string())) },
            (fault, _) => fault.into_failure(),
        }
    }

    /// Sends a call to one node. Depending on the outcome, marks the node as suspect or as trusted.
    async fn send(&self, node: &Arc<Node>, call: &Call, call_route: CallRoute, admission: Admission) -> CallAnswer {
        let answer = match self.slot_owners.fleet().filter(|fleet| fleet.suspects(node)) {
            Some(fleet) => Box::pin(self.send_to_suspect(fleet, node, call, call_route, admission)).await,
            None => carry_to(node, call, call_route, admission).await,
        };
        self.judge(node, answer.as_ref().err());
        answer
    }

    async fn send_to_suspect(
        &self,
        fleet: &Fleet,
        node: &Node,
        call: &Call,
        call_route: CallRoute,
        admission: Admission,
    ) -> CallAnswer {
        // A call is sent to a suspect only after the suspect has answered its probe.
        tokio::select! {
            biased;
            answer = node.wait_for_answer() => answer?,
            () = fleet.abandoned(call.slot, node) => return Err(Fault::unsent(REPLACED)),
        }
        tokio::select! {
            // The branch for the answer is checked first. So an answer that has arrived is returned, even if a new
            // owner is known as well.
            biased;
            answer = carry_to(node, call, call_route, admission) => answer,
            // Another node owns the slot now, and the suspect will most likely never answer.
            () = fleet.abandoned(call.slot, node) => Err(self.was_replaced()),
        }
    }

    /// Marks a node as suspect if it did not answer or cannot serve its slots. Marks it as trusted after any other
    /// outcome. If replicas have not acknowledged a grant, also asks the Sentinels for the primary.
    fn judge(&self, node: &Node, fault: Option<&Fault>) {
        let Some(fleet) = self.slot_owners.fleet() else { return };
        match fault {
            Some(Fault::Unknown { .. } | Fault::NotSent(_)) => fleet.suspect(node, SuspectReason::Silent),
            Some(Fault::Again(_) | Fault::WrongServer(_) | Fault::Refused { refusal: Refusal::ReadOnly, .. }) => {
                fleet.suspect(node, SuspectReason::Refuses);
            }
            Some(Fault::Unreplicated { .. }) => {
                fleet.trust(node);
                // A replaced primary still answers, but its replicas follow the new primary.
                fleet.refresh_when_unreplicated();
            }
            Some(
                Fault::Moved { .. }
                | Fault::Ask { .. }
                | Fault::NoScript
                | Fault::Refused { .. }
                | Fault::Broken { .. },
            )
            | None => fleet.trust(node),
        }
    }

    /// Returns the node to which a call is sent next, after a fault that proves that nothing ran.
    async fn follow(&self, fault: Fault, slot: u16, from: &Node) -> Result<(Arc<Node>, Admission), Failure> {
        let next = match (fault, &self.slot_owners) {
            (Fault::Moved { address }, SlotOwners::Many(fleet)) => fleet.on_moved(slot, &address, from.address()),
            (Fault::Ask { address }, SlotOwners::Many(fleet)) => {
                fleet.migrates(slot);
                let node = fleet.node(&fleet.announced.on_announced(&address, from.address()));
                return node.map(|node| (node, Admission::Asking)).map_err(Fault::into_failure);
            }
            (Fault::Moved { .. } | Fault::Ask { .. }, SlotOwners::Single(_)) => Err(is_of_cluster(self.limits.role)),
            // The fault may come from a primary that has become a replica. Other nodes may know the new primary, or the
            // same address may lead to it soon. The node has already given up its connections to the replica.
            (Fault::Again(_) | Fault::WrongServer(_), _)
            | (Fault::Refused { refusal: Refusal::ReadOnly, .. }, SlotOwners::Many(_)) => {
                tokio::time::sleep(AGAIN_PAUSE).await;
                self.owner(slot).await
            }
            (fault, _) => Err(fault),
        };
        // This error belongs to the node `from`, because its fault could not be followed. The next node will report its
        // own faults.
        next.map(|node| (node, Admission::Owner)).map_err(|fault| fault.into_failure().at(from.shown()))
    }

    async fn owner(&self, slot: u16) -> Result<Arc<Node>, Fault> {
        match &self.slot_owners {
            SlotOwners::Single(node) => Ok(Arc::clone(node)),
            SlotOwners::Many(fleet) => fleet.owner(slot).await,
        }
    }

    async fn call_all_of(&self, node: &Node, calls: &[Call]) -> Result<Vec<CallAnswer>, Fault> {
        match (&self.slot_owners, calls.first()) {
            (SlotOwners::Many(fleet), Some(first)) if fleet.suspects(node) => {
                tokio::select! {
                    biased;
                    answers = node.call_all(calls) => answers,
                    () = fleet.abandoned(first.slot, node) => Err(self.was_replaced()),
                }
            }
            _ => node.call_all(calls).await,
        }
    }

    /// Returns the fault of a request to a node that no longer owns the slot. The request may have been sent only just
    /// now, because it may have waited for a permit before. So the time in which it may still run is counted from now.
    fn was_replaced(&self) -> Fault {
        Fault::unknown(self.limits.arrives_until(CLOCK.now()), REPLACED)
    }

    /// Sends calls, such as renewals, in one pipeline.
    ///
    /// If the node does not execute a call, that call gets a failure as its answer, and the caller sends it again
    /// later. So the other answers do not wait for a redirect. In a fleet, some calls are not sent in a pipeline, but
    /// one by one, and follow redirects. This is done for a single call, and for calls whose route is unknown, for
    /// example because their slot is migrating.
    ///
    /// Returns one answer for each call, in the order of the calls. `route` is the route of all calls.
    pub(crate) async fn call_all(&self, route: &Route, calls: Vec<Call>) -> Vec<Attempt<Value>> {
        let _in_flight = CountGuard::new(&self.in_flight, calls.len());
        let node = match &self.slot_owners {
            SlotOwners::Single(node) => Ok(Arc::clone(node)),
            SlotOwners::Many(fleet) if calls.len() > 1 && !route.is_unknown() => fleet.node(&route.0),
            SlotOwners::Many(_) => {
                return join_all(calls.into_iter().map(|call| self.carry(call, CallRoute::Ahead))).await;
            }
        };
        let failure = match node {
            Ok(node) => {
                let answers = self.call_all_of(&node, &calls).await;
                self.judge(&node, answers.as_ref().err());
                match answers {
                    Ok(answers) => {
                        let put_off = |(call, answer): (&Call, CallAnswer)| {
                            answer.map_err(|fault| self.put_off(fault, call.slot, &node))
                        };
                        return calls.iter().zip(answers).map(put_off).collect();
                    }
                    Err(fault) => fault.into_failure().at(node.shown()),
                }
            }
            Err(fault) => fault.into_failure(),
        };
        vec![Err(failure); calls.len()]
    }

    /// Returns the failure of a call in a pipeline that the node did not execute. If the fault names another owner of
    /// the slot, notes this owner for the next attempt.
    fn put_off(&self, mut fault: Fault, slot: u16, node: &Node) -> Failure {
        self.judge(node, Some(&fault));
        match (&self.slot_owners, &fault) {
            (SlotOwners::Single(_), Fault::Moved { .. } | Fault::Ask { .. }) => {
                fault = is_of_cluster(self.limits.role);
            }
            // The result is ignored. After an invalid address, the fleet only asks for the slot map once more.
            (SlotOwners::Many(fleet), Fault::Moved { address }) => drop(fleet.on_moved(slot, address, node.address())),
            (SlotOwners::Many(fleet), Fault::Ask { .. }) => fleet.migrates(slot),
            _ => {}
        }
        self.for_now(fault).at(node.shown())
    }
}

/// Refuses masters that are one server, however their URLs are written.
fn check_distinct(addresses: &[String]) -> Result<()> {
    // Names of hosts have no case, and paths of sockets have one.
    let is_path = |address: &str| address.starts_with('/');
    let are_equal = |one: &String, other: &String| one == other || !is_path(one) && one.eq_ignore_ascii_case(other);
    let is_repeated = |n: usize| addresses[..n].iter().any(|earlier| are_equal(earlier, &addresses[n]));
    if (0..addresses.len()).any(is_repeated) {
        let reason = "one master is named twice, and each master has one vote";
        return Err(Error::invalid("masters", reason));
    }
    Ok(())
}

/// Returns the addresses that the user named, without passwords and the other parts of the URLs.
fn servers(kind: &Kind, infos: &[ConnectionInfo]) -> String {
    let addresses = infos.iter().map(|info| address_of(info.addr())).collect::<Vec<_>>().join(", ");
    match kind {
        Kind::Node(_) => addresses,
        Kind::Cluster(_) => format!("cluster {addresses}"),
        Kind::Sentinel { primary, .. } => format!("{primary:?} behind Sentinels {addresses}"),
        Kind::Proxy(_) => format!("proxy {addresses}"),
    }
}

fn is_of_cluster(role: Role) -> Fault {
    let message = match role {
        Role::Proxy => "the proxy passes redirects of a cluster on: use `Topology::cluster`",
        _ => "it is a member of a cluster: use `Topology::cluster`",
    };
    Fault::refusal(Refusal::OtherTopology, message)
}

/// Reason of a fault when another node owns the slot of the call now.
const REPLACED: &str = "it was replaced";

async fn carry_to(node: &Node, call: &Call, call_route: CallRoute, admission: Admission) -> CallAnswer {
    if call_route == CallRoute::Dedicated && admission == Admission::Owner {
        return Box::pin(node.call_apart(call)).await;
    }
    let precedence = if call_route == CallRoute::Ahead { Precedence::Ahead } else { Precedence::InTurn };
    node.call(call, admission, precedence).await
}

/// Connection on which a call is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CallRoute {
    Shared,
    /// Shared connection, with precedence over the waiting calls that acquire locks.
    Ahead,
    /// Connection that carries no other call at that time. For calls that may take long.
    Dedicated,
}

/// Requests of the schemes. A call may be sent more than once. The returned answer always belongs to the last copy.
impl Router {
    pub(crate) async fn call(&self, call: Call, call_route: CallRoute) -> Attempt<Value> {
        let _in_flight = CountGuard::new(&self.in_flight, 1);
        self.carry(call, call_route).await
    }

    pub(crate) fn route(&self, slot: u16) -> Route {
        match &self.slot_owners {
            SlotOwners::Single(node) => node.route(),
            SlotOwners::Many(fleet) if fleet.is_migrating(slot) => Route(Arc::default()),
            SlotOwners::Many(fleet) => Route(fleet.owner_address(slot).unwrap_or_default()),
        }
    }

    /// Yields an item when routes may have changed. Returns `None` if routes never change.
    pub(crate) fn changes(&self) -> Option<BoxStream<'static, ()>> {
        let maps = self.slot_owners.changes()?;
        let next = async |mut maps: watch::Receiver<SlotMap>| maps.changed().await.ok().map(|()| ((), maps));
        Some(Box::pin(stream::unfold(maps, next)))
    }

    /// Returns true if this runtime has a connection that can send a call for `slot` at once.
    pub(crate) fn can_send_inline(&self, slot: u16) -> bool {
        self.slot_owners.known_owner(slot).is_some_and(|node| node.can_send_inline())
    }

    /// Returns the last contact with the owner of `slot`, or the default value if the owner is not known.
    pub(crate) fn server_contact(&self, slot: u16) -> ServerContact {
        if self.limits.role == Role::Proxy {
            // An answer through the proxy says nothing about the server of this slot.
            return ServerContact::default();
        }
        self.slot_owners.known_owner(slot).map(|node| node.server_contact()).unwrap_or_default()
    }

    /// Returns the newest clock sample of this runtime's connection. Returns `None` if there are several servers.
    pub(crate) fn clock_sample(&self) -> Option<ClockSample> {
        self.slot_owners.single()?.clock_sample().map(|(_, clock_sample)| clock_sample)
    }

    /// Returns a moment at which the present server process was already running or was just being started. Returns
    /// `None` with several servers, or if no connection asked for the server's uptime.
    pub(crate) fn up_since(&self) -> Option<Moment> {
        self.slot_owners.single()?.up_since()
    }

    /// Succeeds as soon as a server has answered and this library can work with that server.
    pub(crate) async fn ready(&self) -> Result<(), Failure> {
        match &self.slot_owners {
            SlotOwners::Single(node) => {
                node.ready().await.map_err(|fault| fault.into_failure().at(node.shown()))?;
            }
            SlotOwners::Many(fleet) => fleet.ready().await.map_err(Fault::into_failure)?,
        }
        if self.limits.durability.acknowledgement().is_some() {
            self.slot_owners.check_replicas().await?;
        }
        Ok(())
    }

    /// Returns true if the servers can notify this process. A proxy passes no notifications on.
    pub(crate) fn can_subscribe(&self) -> bool {
        self.limits.role != Role::Proxy
    }

    /// Searches every primary for keys that match `pattern`, and passes each of them to `found`. A key may be passed
    /// twice.
    pub(crate) async fn scan(&self, pattern: &str, found: &mut (dyn FnMut(&str) + Send)) -> Result<(), Failure> {
        if self.limits.role == Role::Proxy {
            let message = "a proxy shows the keys of one of its servers: list the locks at the servers".to_owned();
            return Err(Failure::Refused { refusal: Refusal::OtherTopology, node: None, message });
        }
        self.slot_owners.scan(pattern, found).await.map_err(Fault::into_failure)
    }

    /// Asks each server for its health. Ends within a time limit, even if servers do not answer.
    pub(crate) async fn health(&self) -> Vec<NodeHealth> {
        survey::health(&self.slot_owners, self.limits.response_timeout).await
    }

    /// Returns the load on this router.
    pub(crate) fn traffic(&self) -> Traffic {
        let (reconnects, map_refreshes) = match &self.slot_owners {
            SlotOwners::Single(node) => (node.reconnects(), 0),
            SlotOwners::Many(fleet) => (fleet.reconnects(), fleet.map_refreshes.load(Ordering::Relaxed)),
        };
        Traffic { in_flight: self.in_flight.load(Ordering::Relaxed), reconnects, map_refreshes }
    }

    pub(crate) fn clock(&self) -> Clock {
        CLOCK
    }
}
