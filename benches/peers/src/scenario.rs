//! What the peers have to do.

mod crowd;
mod market;
mod uncontended;
mod wake_up;

use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use cluster_testenv::{Node, Server};
use tokio::runtime::Runtime;

use crate::measure::Turn;
use crate::peer::{Kind, Peer};

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Scenario {
    /// Locks of their own for 1, 16, 256 tasks.
    Uncontended,
    /// One lock that everybody writes.
    HotWrite,
    /// One lock that 99 of 100 read.
    HotRead,
    /// One waits, one leaves.
    WakeUp,
    /// The market of the articles in which the schemes were published.
    Market,
}

impl Scenario {
    pub(crate) const ALL: [Self; 5] = [Self::Uncontended, Self::HotWrite, Self::HotRead, Self::WakeUp, Self::Market];

    pub(crate) fn run(self, setting: &Setting) {
        match self {
            Self::Uncontended => uncontended::run(setting),
            Self::HotWrite => crowd::write(setting),
            Self::HotRead => crowd::read(setting),
            Self::WakeUp => wake_up::run(setting),
            Self::Market => market::run(setting),
        }
    }
}

/// How it is done.
pub(crate) struct Setting {
    pub(crate) server: Server,
    pub(crate) peers: Vec<Kind>,
    pub(crate) rounds: usize,
    pub(crate) span: Duration,
    pub(crate) market: Duration,
}

impl Setting {
    pub(crate) fn start_node(&self) -> Node {
        Node::start(self.server).expect("a server starts; cluster-testenv/install brings it")
    }

    /// Each peer has its turn in each round, on a server without data. A peer without a turn has none at all.
    pub(crate) fn turns(&self, node: &Node, turn: impl Fn(Kind) -> Option<Turn>) -> Vec<(Kind, Vec<Turn>)> {
        let mut all: Vec<_> = self.peers.iter().map(|peer| (*peer, Vec::new())).collect();
        for _ in 0..self.rounds {
            for (peer, turns) in &mut all {
                assert!(node.command(&["FLUSHALL"]).expect("an answer").is_ok());
                turns.extend(turn(*peer));
            }
        }
        all
    }
}

/// A runtime of its own, so that nothing of a peer goes on in the next one's turn.
pub(crate) fn runtime() -> Runtime {
    Runtime::new().expect("a runtime")
}

pub(crate) async fn clients(kind: Kind, url: &str, count: usize) -> Vec<Arc<dyn Peer>> {
    let mut clients = Vec::with_capacity(count);
    for _ in 0..count {
        clients.push(Arc::from(kind.connect(url).await));
    }
    clients
}
