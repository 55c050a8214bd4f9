//! A quorum of five: acquire and release against three fan-outs of a script that does nothing to the same five masters, and against
//! one master alone; then with two of five killed, black-holed and frozen, the other three being the same. The rows take turns
//! operation by operation, so whatever else the machine does hits all of them alike.

mod figures;

use std::time::{Duration, Instant};

use cluster_testenv::{Node, Server};
use figures::process::resident_bytes;
use figures::{CommandStats, Effort, Target, bare_connection, quantile, server, tell};
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis_rwlock::{QuorumManager, RwLockManager, TwoKeyManager};
use tokio::runtime::Runtime;

const MASTERS: usize = 5;
const NOTHING: &str = "#!lua\nreturn 1";

fn urls(nodes: &[Node]) -> Vec<String> {
    nodes.iter().map(Node::url).collect()
}

fn start(count: usize) -> Vec<Node> {
    (0..count).map(|_| Node::start(server()).expect("the master starts")).collect()
}

/// Two that stop answering in one way. Each of them has a proxy, which counts who comes.
fn two(server: Server) -> Vec<Node> {
    (0..2).map(|_| Node::builder(server).proxied().start().expect("the master starts")).collect()
}

async fn quorum(nodes: &[Node], others: &[Node], prefix: &str) -> QuorumManager {
    let urls = [urls(nodes), urls(others)].concat();
    let builder = QuorumManager::builder(urls).key_prefix(prefix).restarts_are_delayed();
    builder.connect().await.expect("a majority answers")
}

async fn fan_out(connections: &[MultiplexedConnection], digest: &str) {
    let asks = connections.iter().map(|connection| async {
        let mut connection = connection.clone();
        let mut command = redis::cmd("EVALSHA");
        let answer: i64 = command.arg(digest).arg(0).query_async(&mut connection).await.expect("an answer");
        assert_eq!(answer, 1);
    });
    join_all(asks).await;
}

/// Somebody who can take a lock.
#[derive(Debug)]
enum Row {
    FanOuts(Vec<MultiplexedConnection>),
    Quorum(QuorumManager),
    Single(TwoKeyManager),
}

impl Row {
    async fn fan_outs(nodes: &[Node]) -> Self {
        let mut connections = Vec::new();
        for node in nodes {
            let mut connection = bare_connection(&node.url()).await;
            redis::cmd("SCRIPT").arg("LOAD").arg(NOTHING).query_async::<()>(&mut connection).await.expect("it loads");
            connections.push(connection);
        }
        Self::FanOuts(connections)
    }

    async fn turn(&self, digest: &str) -> Duration {
        let began = Instant::now();
        match self {
            Self::FanOuts(connections) => {
                for _ in 0..3 {
                    fan_out(connections, digest).await;
                }
            }
            Self::Quorum(manager) => pair(manager).await,
            Self::Single(manager) => pair(manager).await,
        }
        began.elapsed()
    }
}

async fn pair(manager: &impl RwLockManager) {
    manager.write("bench").await.expect("granted").release().await.expect("ours to the end");
}

fn main() {
    let effort = Effort::asked_for();
    let (warm_up, turns) = (effort.of(300, 100, 1), effort.of(5000, 1000, 3));
    let nodes = start(MASTERS);
    let silent = [two(server()), two(server()), two(server())];
    let digest = figures::digest(NOTHING);
    Runtime::new().expect("a runtime").block_on(async {
        let rows = [
            Row::fan_outs(&nodes).await,
            Row::Single(TwoKeyManager::builder(nodes[0].url()).connect().await.expect("it answers")),
            Row::Quorum(quorum(&nodes, &[], "healthy").await),
            Row::Quorum(quorum(&nodes[..3], &silent[0], "killed").await),
            Row::Quorum(quorum(&nodes[..3], &silent[1], "black-holed").await),
            Row::Quorum(quorum(&nodes[..3], &silent[2], "frozen").await),
        ];
        silent[0].iter().for_each(Node::kill);
        silent[1].iter().for_each(|node| node.proxy().black_hole());
        silent[2].iter().for_each(Node::pause);
        let mut times = [const { Vec::new() }; 6];
        let mut watch = Watch::begin(&silent);
        for turn in 0..warm_up + turns {
            if turn == warm_up {
                watch = Watch::begin(&silent);
                CommandStats::reset(&nodes[4]);
            }
            for (row, times) in rows.iter().zip(&mut times) {
                let time = row.turn(&digest).await;
                if turn >= warm_up {
                    times.push(time);
                }
            }
        }
        watch.tell(&silent);
        // Only the fan-outs and the quorum whose five are healthy ask this one.
        let asked = CommandStats::of(&nodes[4]).calls("evalsha") as f64 / turns as f64 - 3.0;
        println!("each master is asked {asked:.3} times for each acquisition and its release");
        tell_all(effort, times);
    });
}

/// What those cost that do not answer.
struct Watch {
    began: Instant,
    resident: u64,
    made: u64,
}

impl Watch {
    fn begin(silent: &[Vec<Node>]) -> Self {
        Self { began: Instant::now(), resident: resident_bytes(), made: made(silent) }
    }

    fn tell(&self, silent: &[Vec<Node>]) {
        let open = silent.iter().flatten().map(|node| open_to(node.proxy().port())).max().unwrap_or_default();
        println!(
            "in {:?}: {} connections made to the six that do not answer, at most {open} open at one of them, {} KiB more \
             memory in use",
            self.began.elapsed(),
            made(silent) - self.made,
            resident_bytes().saturating_sub(self.resident) / 1024,
        );
    }
}

/// The connections of this process to a port that it has not closed. The proxy does not see that one was, when nobody answers.
fn open_to(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/self/net/tcp").expect("Linux");
    let (there, established) = (format!(":{port:04X}"), "01");
    let fields = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields.filter(|fields| fields.get(2).is_some_and(|to| to.ends_with(&there)) && fields[3] == established).count()
}

fn made(silent: &[Vec<Node>]) -> u64 {
    silent.iter().flatten().map(|node| node.proxy().connections_made()).sum()
}

fn tell_all(effort: Effort, times: [Vec<Duration>; 6]) {
    let [fan_outs, single, healthy, killed, black_holed, frozen] = times.map(|mut times| quantile(&mut times, 0.5));
    let share = |time: Duration, of: Duration| time.as_secs_f64() / of.as_secs_f64();
    println!(
        "three fan-outs to five masters {fan_outs:?}, {:.2} times a pair of the two keys at one master, which is {single:?}; \
         a quorum's pair {:.2} times",
        share(fan_outs, single),
        share(healthy, single),
    );
    for (what, time, other, of) in [
        ("quorum of five, acquire and release", healthy, "three fan-outs", fan_outs),
        ("the same with two of five killed", killed, "healthy", healthy),
        ("the same with two of five black-holed", black_holed, "healthy", healthy),
        ("the same with two of five frozen", frozen, "healthy", healthy),
    ] {
        tell(effort, what, &format!("{time:?}, {other} {of:?}"), share(time, of), Target::AtMost(1.5));
    }
}
