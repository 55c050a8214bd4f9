//! Finds the node that owns a slot, and follows it when it moves.
//!
//! Redirects and refusals that prove that nothing ran are followed or repeated within one response timeout. Silence is
//! not: the caller is told that the outcome is unknown, and meanwhile the slot map is asked of other nodes.
//! Source: the redirection rules of the Redis cluster specification.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, Value};

use crate::clock::Clock;
use crate::error::{Error, Refusal, Result};
use crate::options::Options;
use crate::scheme::{Answered, BoxFuture, Failure, Route, Subscription};
use crate::topology::{Kind, Topology};
use crate::transport::fault::{Answer, Fault};
use crate::transport::node::{Admission, Limits, Node, Role, invalid_url};
use crate::transport::push::Push;
use crate::transport::slots::{SlotMap, complete};
use crate::transport::{Call, Transport};

/// Pause before a node that said "not now" is asked again.
const AGAIN_PAUSE: Duration = Duration::from_millis(10);

pub(crate) struct Router {
    directory: Directory,
    clock: Clock,
    response_timeout: Duration,
}

/// Who owns what.
enum Directory {
    /// One node owns everything.
    Single {
        node: Arc<Node>,
        push: Push,
    },
    Cluster(Arc<Cluster>),
}

/// A cluster's nodes as far as they are known.
struct Cluster {
    /// How to connect to a node but for its address.
    template: ConnectionInfo,
    limits: Limits,
    clock: Clock,
    seeds: Vec<String>,
    nodes: Mutex<HashMap<String, Arc<Node>>>,
    map: Mutex<SlotMap>,
    refreshing: AtomicBool,
    refresh_lock: tokio::sync::Mutex<()>,
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.directory {
            Directory::Single { node, .. } => f.debug_tuple("Router").field(node).finish(),
            Directory::Cluster(cluster) => f.debug_tuple("Router").field(&cluster.seeds).finish(),
        }
    }
}

impl Router {
    pub(super) fn new(topology: &Topology, options: &Options) -> Result<Self> {
        let clock = Clock::System;
        let directory = match topology.kind() {
            Kind::Node(url) => {
                let info = parse(url)?;
                let limits = Limits::new(options, Role::Standalone);
                let node = Node::new(address_of(info.addr()), info.clone(), limits, clock)?;
                let push = Push::new(info, options.response_timeout);
                Directory::Single { node: Arc::new(node), push }
            }
            Kind::Cluster(urls) => Directory::Cluster(Arc::new(Cluster::new(urls, options, clock)?)),
        };
        Ok(Self { directory, clock, response_timeout: options.response_timeout })
    }

    /// Carries a call to the owner of its slot, wherever that goes.
    async fn carry(&self, call: Call, lane: Lane) -> Result<Answered<Value>, Failure> {
        let give_up = self.clock.now().after(self.response_timeout);
        let mut next = self.owner(call.slot).await.map_err(Fault::into_failure)?;
        let mut admission = Admission::Owner;
        loop {
            let answer = match lane {
                Lane::Shared => next.call(&call, admission).await,
                Lane::Apart if admission == Admission::Owner => next.call_apart(&call).await,
                Lane::Apart => next.call(&call, admission).await,
            };
            let fault = match answer {
                Ok(answer) => return Ok(answer),
                Err(fault) => fault,
            };
            admission = Admission::Owner;
            if self.clock.now() >= give_up {
                self.lose_trust(&next, &fault);
                return Err(fault.into_failure());
            }
            match (fault, &self.directory) {
                (Fault::Moved { address }, Directory::Cluster(cluster)) => {
                    next =
                        cluster.moved(call.slot, &complete(&address, next.address())).map_err(Fault::into_failure)?;
                }
                (Fault::Ask { address }, Directory::Cluster(cluster)) => {
                    next = cluster.node(&complete(&address, next.address())).map_err(Fault::into_failure)?;
                    admission = Admission::Asking;
                }
                (Fault::Again(_), _) => {
                    tokio::time::sleep(AGAIN_PAUSE).await;
                    next = self.owner(call.slot).await.map_err(Fault::into_failure)?;
                }
                // A primary that has become a replica: its successor is known elsewhere.
                (fault @ Fault::Refused { refusal: Refusal::ReadOnly, .. }, Directory::Cluster(cluster)) => {
                    cluster.refresh(Some(next.address())).await;
                    tokio::time::sleep(AGAIN_PAUSE).await;
                    next = self.owner(call.slot).await.map_err(|_| fault.into_failure())?;
                }
                (Fault::Moved { .. } | Fault::Ask { .. }, Directory::Single { .. }) => {
                    return Err(Failure::Refused {
                        refusal: Refusal::OtherTopology,
                        message: "the server is part of a cluster, the topology says it is not".to_owned(),
                    });
                }
                (fault, _) => {
                    self.lose_trust(&next, &fault);
                    return Err(fault.into_failure());
                }
            }
        }
    }

    /// After silence, or a failed connection, others are asked who owns the node's slots now.
    fn lose_trust(&self, node: &Arc<Node>, fault: &Fault) {
        if let (Directory::Cluster(cluster), Fault::Unknown { .. } | Fault::NotSent(_)) = (&self.directory, fault) {
            cluster.refresh_in_background(Some(node.address().to_owned()));
        }
    }

    async fn owner(&self, slot: u16) -> Result<Arc<Node>, Fault> {
        match &self.directory {
            Directory::Single { node, .. } => Ok(Arc::clone(node)),
            Directory::Cluster(cluster) => cluster.owner(slot).await,
        }
    }

    /// Renewals and the like: one pipeline, and what the node did not carry out goes its own way.
    async fn carry_all(&self, route: &Route, calls: Vec<Call>) -> Vec<Result<Answered<Value>, Failure>> {
        let node = match &self.directory {
            Directory::Single { node, .. } => Ok(Arc::clone(node)),
            Directory::Cluster(cluster) if route.0.is_empty() => {
                cluster.owner(calls.first().map_or(0, |call| call.slot)).await
            }
            Directory::Cluster(cluster) => cluster.node(&route.0),
        };
        let answers = match node {
            Ok(node) => {
                let answers = node.call_all(&calls).await;
                if let Err(fault) = &answers {
                    self.lose_trust(&node, fault);
                }
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
        let settle = |(call, answer)| async move {
            match answer {
                Ok(answer) => Ok(answer),
                Err(Fault::Moved { .. } | Fault::Ask { .. } | Fault::Again(_) | Fault::NoScript) => {
                    self.carry(call, Lane::Shared).await
                }
                Err(fault) => Err(fault.into_failure()),
            }
        };
        join_all(calls.into_iter().zip(answers).map(settle)).await
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
        Route(match &self.directory {
            Directory::Single { node, .. } => node.address().into(),
            Directory::Cluster(cluster) => cluster.map.lock().owner(slot).unwrap_or_default().into(),
        })
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(async move {
            match &self.directory {
                Directory::Single { node, .. } => node.ready().await.map_err(Fault::into_failure),
                Directory::Cluster(cluster) => cluster.ready().await.map_err(Fault::into_failure),
            }
        })
    }

    fn subscribe(&self, _: u16, channel: &str) -> Option<Subscription> {
        match &self.directory {
            Directory::Single { push, .. } => Some(push.subscribe(channel)),
            Directory::Cluster(_) => None,
        }
    }

    fn clock(&self) -> Clock {
        self.clock
    }
}

impl Cluster {
    fn new(urls: &[String], options: &Options, clock: Clock) -> Result<Self> {
        let infos = urls.iter().map(|url| parse(url)).collect::<Result<Vec<_>>>()?;
        let Some(template) = infos.first().cloned() else {
            return Err(Error::InvalidOption {
                option: "topology",
                reason: "a cluster needs the URL of at least one node".to_owned(),
            });
        };
        Ok(Self {
            template,
            limits: Limits::new(options, Role::ClusterMember),
            clock,
            seeds: infos.iter().map(|info| address_of(info.addr())).collect(),
            nodes: Mutex::default(),
            map: Mutex::default(),
            refreshing: AtomicBool::new(false),
            refresh_lock: tokio::sync::Mutex::new(()),
        })
    }

    /// The node at `host:port`, with a connection as soon as it is used.
    fn node(&self, address: &str) -> Result<Arc<Node>, Fault> {
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.get(address) {
            return Ok(Arc::clone(node));
        }
        let unusable = || Fault::NotSent(Some(Arc::new(Answer(format!("{address:?} is no address of a node")))));
        let (host, port) = address.rsplit_once(':').ok_or_else(unusable)?;
        let port = port.parse().map_err(|_| unusable())?;
        let info = self.template.clone().set_addr(with_host(self.template.addr(), host, port));
        let node = Node::new(address.to_owned(), info, self.limits, self.clock).map_err(|_| unusable())?;
        let node = Arc::new(node);
        nodes.insert(address.to_owned(), Arc::clone(&node));
        Ok(node)
    }

    async fn owner(self: &Arc<Self>, slot: u16) -> Result<Arc<Node>, Fault> {
        let known = |cluster: &Self| cluster.map.lock().owner(slot).map(str::to_owned);
        let address = match known(self) {
            Some(address) => Some(address),
            None => {
                self.refresh(None).await;
                known(self)
            }
        };
        match address {
            Some(address) => self.node(&address),
            None => {
                Err(Fault::NotSent(Some(Arc::new(Answer(format!("no node of the cluster says who owns slot {slot}"))))))
            }
        }
    }

    /// One slot has moved; others may have too.
    fn moved(self: &Arc<Self>, slot: u16, address: &str) -> Result<Arc<Node>, Fault> {
        self.map.lock().set_owner(slot, address);
        self.refresh_in_background(None);
        self.node(address)
    }

    fn refresh_in_background(self: &Arc<Self>, suspect: Option<String>) {
        if self.refreshing.swap(true, Ordering::AcqRel) {
            return;
        }
        let cluster = Arc::clone(self);
        drop(tokio::spawn(async move {
            cluster.refresh(suspect.as_deref()).await;
            // A pause, so that a node that stays silent does not make every request ask the others.
            tokio::time::sleep(AGAIN_PAUSE * 5).await;
            cluster.refreshing.store(false, Ordering::Release);
        }));
    }

    /// Asks all nodes that are known, but for the suspect, for the slot map, and takes the first answer.
    async fn refresh(&self, suspect: Option<&str>) {
        let _one_at_a_time = self.refresh_lock.lock().await;
        let mut answers: FuturesUnordered<_> =
            self.candidates(suspect).into_iter().map(|node| async move { ask_for_slots(&node).await }).collect();
        while let Some(answer) = answers.next().await {
            if let Ok(map) = answer {
                *self.map.lock() = map;
                return;
            }
        }
    }

    async fn ready(&self) -> Result<(), Fault> {
        let mut fault = None;
        let mut answers: FuturesUnordered<_> =
            self.candidates(None).into_iter().map(|node| async move { ask_for_slots(&node).await }).collect();
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(map) => {
                    *self.map.lock() = map;
                    return Ok(());
                }
                Err(refused @ Fault::Refused { .. }) => fault = Some(refused),
                Err(other) => fault = fault.or(Some(other)),
            }
        }
        Err(fault.unwrap_or(Fault::NotSent(None)))
    }

    fn candidates(&self, suspect: Option<&str>) -> Vec<Arc<Node>> {
        let mut addresses = self.map.lock().addresses().to_vec();
        addresses.extend(self.seeds.iter().cloned());
        addresses.sort();
        addresses.dedup();
        addresses.retain(|address| Some(address.as_str()) != suspect);
        fastrand::shuffle(&mut addresses);
        addresses.iter().filter_map(|address| self.node(address).ok()).collect()
    }
}

async fn ask_for_slots(node: &Node) -> Result<SlotMap, Fault> {
    let mut question = redis::cmd("CLUSTER");
    question.arg("SLOTS");
    let reply = node.ask(&question).await?;
    let map = SlotMap::parse(&reply, node.address()).filter(|map| !map.is_empty());
    map.ok_or_else(|| Fault::NotSent(Some(Arc::new(Answer(format!("{} knows no slots", node.address()))))))
}

fn parse(url: &str) -> Result<ConnectionInfo> {
    url.into_connection_info().map_err(|error| invalid_url(&error))
}

fn address_of(address: &ConnectionAddr) -> String {
    match address {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => format!("{host}:{port}"),
        other => other.to_string(),
    }
}

/// The address of another node that is reached the same way.
fn with_host(template: &ConnectionAddr, host: &str, port: u16) -> ConnectionAddr {
    let host = host.to_owned();
    match template {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => ConnectionAddr::Tcp(host, port),
    }
}
