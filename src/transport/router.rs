//! Finds the node that owns a slot, and follows it when it moves.
//!
//! Redirects and refusals that prove that nothing ran are followed or repeated for one response timeout. Silence is
//! not: the caller is told that the outcome is unknown, and meanwhile the slot map is asked of other nodes. Behind
//! Sentinels it is the same with one primary that owns all slots, and the Sentinels are asked who it is.
//! Source: the redirection rules of the Redis cluster specification.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, BoxStream};
use redis::Value;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::error::{Refusal, Result};
use crate::lease;
use crate::options::Options;
use crate::scheme::{Answered, BoxFuture, Failure, Route, Subscription};
use crate::topology::{Kind, Topology};
use crate::transport::address::{address_of, parse_all, parse_one};
use crate::transport::directory::Directory;
use crate::transport::fault::{Answer, Fault};
use crate::transport::fleet::{Doubt, Fleet};
use crate::transport::node::{Admission, Limits, Node, Role};
use crate::transport::push::{Pace, Push};
use crate::transport::slots::{SlotMap, complete};
use crate::transport::{Call, ReadNotice, Transport};

/// Pause before a node that said "not now" is asked again.
const AGAIN_PAUSE: Duration = Duration::from_millis(10);

pub(crate) struct Router {
    directory: Directory,
    push: Push,
    clock: Clock,
    limits: Limits,
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.directory {
            Directory::Single { node } => f.debug_tuple("Router").field(node).finish(),
            Directory::Many(fleet) => f.debug_tuple("Router").field(fleet).finish(),
        }
    }
}

impl Router {
    pub(super) fn new(topology: &Topology, options: &Options) -> Result<Self> {
        let clock = Clock::System;
        let tls = topology.certificates();
        let directory = match topology.kind() {
            Kind::Node(url) => {
                let info = parse_one(url, tls)?;
                let limits = Limits::new(options, Role::Standalone);
                let node = Node::new(address_of(info.addr()), info, limits, clock)?;
                Directory::Single { node: Arc::new(node) }
            }
            Kind::Cluster(urls) => {
                let infos = parse_all(urls, tls)?;
                Directory::Many(Arc::new(Fleet::cluster(infos, options, clock)?))
            }
            Kind::Sentinel { primary, urls } => {
                let infos = parse_all(urls, tls)?;
                Directory::Many(Arc::new(Fleet::behind_sentinels(primary, infos, options, clock)?))
            }
        };
        let push = Push::new(directory.clone(), clock, Pace::new(options.response_timeout));
        Ok(Self { directory, push, clock, limits: Limits::new(options, Role::Standalone) })
    }

    /// Carries a call to the owner of its slot, wherever that goes.
    async fn carry(&self, call: Call, lane: Lane) -> Result<Answered<Value>, Failure> {
        let mut give_up = None;
        let mut next = self.owner(call.slot).await.map_err(Fault::into_failure)?;
        let mut admission = Admission::Owner;
        let mut redirects = 0;
        loop {
            let fault = match self.send(&next, &call, lane, admission).await {
                Ok(answer) => return Ok(answer),
                Err(fault) => fault,
            };
            // From the first fault on: a call that is answered at once, as most are, looks at no clock for this.
            let now = self.clock.now();
            if now >= *give_up.get_or_insert(now.after(self.limits.response_timeout)) {
                return Err(self.for_now(fault));
            }
            redirects += 1;
            if redirects > 1 {
                // Two nodes that name each other would be asked as fast as they answer.
                tokio::time::sleep(AGAIN_PAUSE).await;
            }
            // Boxed, as are the other paths that are seldom taken: the future of a call is moved more than once.
            (next, admission) = Box::pin(self.follow(fault, call.slot, &next)).await?;
        }
    }

    /// A fault that outlasted an attempt. A replica among several nodes is a failover that is not over.
    fn for_now(&self, fault: Fault) -> Failure {
        match (fault, &self.directory) {
            (Fault::Refused { refusal: Refusal::ReadOnly, message }, Directory::Many(_)) => {
                Failure::NotDone { source: Some(Arc::new(Answer(message))) }
            }
            (fault, _) => fault.into_failure(),
        }
    }

    /// Sends a call to one node, and tells the fleet what that says about the node.
    async fn send(
        &self,
        node: &Arc<Node>,
        call: &Call,
        lane: Lane,
        admission: Admission,
    ) -> Result<Answered<Value>, Fault> {
        let suspect_in = match &self.directory {
            Directory::Many(fleet) if fleet.suspects(node) => Some(fleet),
            Directory::Many(_) | Directory::Single { .. } => None,
        };
        let answer = match suspect_in {
            Some(fleet) => Box::pin(self.send_to_suspect(fleet, node, call, lane, admission)).await,
            None => carry_to(node, call, lane, admission).await,
        };
        self.judge(node, answer.as_ref().err());
        answer
    }

    async fn send_to_suspect(
        &self,
        fleet: &Fleet,
        node: &Node,
        call: &Call,
        lane: Lane,
        admission: Admission,
    ) -> Result<Answered<Value>, Fault> {
        let sent = self.clock.now();
        tokio::select! {
            biased;
            answer = carry_to(node, call, lane, admission) => answer,
            // Its successor is known: no need to wait for a node that most likely never answers.
            () = fleet.abandoned(call.slot, node) => Err(Fault::Unknown {
                stray_until: sent.after(lease::stray_span(self.limits.response_timeout, self.limits.clock_margin)),
                source: Some(Arc::new(Answer(format!("{} was replaced", node.address())))),
            }),
        }
    }

    /// A node that is silent, or that says it cannot serve its slots, is suspect until it answers.
    fn judge(&self, node: &Node, fault: Option<&Fault>) {
        let Directory::Many(fleet) = &self.directory else {
            return;
        };
        match fault {
            Some(Fault::Unknown { .. } | Fault::NotSent(_)) => fleet.suspect(node, Doubt::Silent),
            Some(Fault::Again(_) | Fault::Refused { refusal: Refusal::ReadOnly, .. }) => {
                fleet.suspect(node, Doubt::Refuses);
            }
            Some(Fault::Moved { .. } | Fault::Ask { .. } | Fault::NoScript | Fault::Refused { .. }) | None => {
                fleet.trust(node);
            }
        }
    }

    /// Where a call goes after a fault that proves that nothing ran.
    async fn follow(&self, fault: Fault, slot: u16, from: &Node) -> Result<(Arc<Node>, Admission), Failure> {
        let next = match (fault, &self.directory) {
            (Fault::Moved { address }, Directory::Many(fleet)) => {
                fleet.moved(slot, &complete(&address, from.address()))
            }
            (Fault::Ask { address }, Directory::Many(fleet)) => {
                let node = fleet.node(&complete(&address, from.address()));
                return node.map(|node| (node, Admission::Asking)).map_err(Fault::into_failure);
            }
            (Fault::Moved { .. } | Fault::Ask { .. }, Directory::Single { .. }) => Err(Fault::Refused {
                refusal: Refusal::OtherTopology,
                message: "the server is part of a cluster, the topology says it is not".to_owned(),
            }),
            // Also a primary that has become a replica: its successor is known elsewhere, or will be.
            (Fault::Again(_), _) | (Fault::Refused { refusal: Refusal::ReadOnly, .. }, Directory::Many(_)) => {
                tokio::time::sleep(AGAIN_PAUSE).await;
                self.owner(slot).await
            }
            (fault, _) => Err(fault),
        };
        next.map(|node| (node, Admission::Owner)).map_err(Fault::into_failure)
    }

    async fn owner(&self, slot: u16) -> Result<Arc<Node>, Fault> {
        match &self.directory {
            Directory::Single { node } => Ok(Arc::clone(node)),
            Directory::Many(fleet) => fleet.owner(slot).await,
        }
    }

    /// Renewals and the like: one pipeline, and what the node did not carry out goes its own way.
    async fn carry_all(&self, route: &Route, calls: Vec<Call>) -> Vec<Result<Answered<Value>, Failure>> {
        let node = match &self.directory {
            Directory::Many(fleet) if !route.is_unknown() => fleet.node(&route.0),
            Directory::Many(_) | Directory::Single { .. } => {
                self.owner(calls.first().map_or(0, |call| call.slot)).await
            }
        };
        let answers = match node {
            Ok(node) => {
                let answers = node.call_all(&calls).await;
                self.judge(&node, answers.as_ref().err());
                answers
            }
            Err(fault) => Err(fault),
        };
        let answers = match answers {
            Ok(answers) => answers,
            Err(fault) => {
                let failure = fault.into_failure();
                return calls.iter().map(|_| Err(failure.clone())).collect();
            }
        };
        if answers.iter().all(Result::is_ok) {
            return answers.into_iter().map(|answer| answer.map_err(Fault::into_failure)).collect();
        }
        let settle = |(call, answer)| async move {
            match answer {
                Ok(answer) => Ok(answer),
                Err(
                    Fault::Moved { .. }
                    | Fault::Ask { .. }
                    | Fault::Again(_)
                    | Fault::NoScript
                    | Fault::Refused { refusal: Refusal::ReadOnly, .. },
                ) => self.carry(call, Lane::Shared).await,
                Err(fault) => Err(fault.into_failure()),
            }
        };
        join_all(calls.into_iter().zip(answers).map(settle)).await
    }
}

async fn carry_to(node: &Node, call: &Call, lane: Lane, admission: Admission) -> Result<Answered<Value>, Fault> {
    match (lane, admission) {
        (Lane::Apart, Admission::Owner) => Box::pin(node.call_apart(call)).await,
        (Lane::Apart, Admission::Asking) | (Lane::Shared, _) => node.call(call, admission).await,
    }
}

/// Which connection a call takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lane {
    Shared,
    Apart,
}

impl Transport for Router {
    fn call(&self, call: Call) -> BoxFuture<'_, Result<Answered<Value>, Failure>> {
        Box::pin(self.carry(call, Lane::Shared))
    }

    fn call_apart(&self, call: Call) -> BoxFuture<'_, Result<Answered<Value>, Failure>> {
        Box::pin(self.carry(call, Lane::Apart))
    }

    fn call_all<'a>(
        &'a self,
        route: &'a Route,
        calls: Vec<Call>,
    ) -> BoxFuture<'a, Vec<Result<Answered<Value>, Failure>>> {
        Box::pin(self.carry_all(route, calls))
    }

    fn route(&self, slot: u16) -> Route {
        match &self.directory {
            Directory::Single { node } => node.route(),
            Directory::Many(fleet) => Route(fleet.owner_address(slot).unwrap_or_default()),
        }
    }

    fn changes(&self) -> Option<BoxStream<'static, ()>> {
        let maps = self.directory.changes()?;
        let next = async |mut maps: watch::Receiver<SlotMap>| maps.changed().await.ok().map(|()| ((), maps));
        Some(Box::pin(stream::unfold(maps, next)))
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(async move {
            match &self.directory {
                Directory::Single { node } => node.ready().await.map_err(Fault::into_failure),
                Directory::Many(fleet) => fleet.ready().await.map_err(Fault::into_failure),
            }
        })
    }

    fn subscribe(&self, slot: u16, channel: &str, read: ReadNotice) -> Option<Subscription> {
        Some(self.push.subscribe(slot, channel, read))
    }

    fn subscribed(&self, _: u16, channel: &str, _: ReadNotice) -> Option<Subscription> {
        self.push.subscribed(channel)
    }

    fn is_subscribing(&self) -> bool {
        self.push.is_in_use()
    }

    fn clock(&self) -> Clock {
        self.clock
    }
}
