//! A quorum of five: acquire and release against three fan-outs of a script that does nothing, on all five healthy, with two dead
//! and with two black-holed. The rows take turns operation by operation, so whatever else the machine does hits all of them alike.

mod figures;

use std::time::{Duration, Instant};

use cluster_testenv::{Node, Server};
use figures::{bare_connection, server};
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis_rwlock::{QuorumManager, RwLockManager};
use tokio::runtime::Runtime;

const MASTERS: usize = 5;
const TURNS: usize = 3000;
const WARM_UP: usize = 200;

fn masters(server: Server) -> Vec<Node> {
    (0..MASTERS).map(|_| Node::builder(server).proxied().start().expect("the master starts")).collect()
}

/// To the servers themselves, or by their proxies.
async fn manager(urls: Vec<String>) -> QuorumManager {
    QuorumManager::builder(urls).restarts_are_delayed().connect().await.expect("a majority answers")
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

async fn pair(manager: &QuorumManager) -> Duration {
    let began = Instant::now();
    manager.write("bench").await.expect("granted").release().await.expect("ours to the end");
    began.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn main() {
    let nodes = [(); 3].map(|()| masters(server()));
    let urls = |nodes: &[Node]| nodes.iter().map(Node::url).collect::<Vec<_>>();
    Runtime::new().expect("a runtime").block_on(async {
        let [healthy, dead, silent] =
            [manager(urls(&nodes[0])).await, manager(urls(&nodes[1])).await, manager(urls(&nodes[2])).await];
        let mut connections = Vec::new();
        for node in &nodes[0] {
            let mut connection = bare_connection(&node.url()).await;
            let digest: String =
                redis::cmd("SCRIPT").arg("LOAD").arg("return 1").query_async(&mut connection).await.expect("loaded");
            connections.push((connection, digest));
        }
        let digest = connections[0].1.clone();
        let connections: Vec<_> = connections.into_iter().map(|(connection, _)| connection).collect();
        nodes[1][3..].iter().for_each(Node::kill);
        nodes[2][3..].iter().for_each(|node| node.proxy().black_hole());
        let mut rows = [const { Vec::new() }; 4];
        for turn in 0..WARM_UP + TURNS {
            let began = Instant::now();
            for _ in 0..3 {
                fan_out(&connections, &digest).await;
            }
            let fan_outs = began.elapsed();
            let times = [fan_outs, pair(&healthy).await, pair(&dead).await, pair(&silent).await];
            if turn >= WARM_UP {
                rows.iter_mut().zip(times).for_each(|(row, time)| row.push(time));
            }
        }
        let [fan_outs, healthy, dead, silent] = rows.map(median);
        println!("three fan-outs of a no-op script to five masters: {fan_outs:?}");
        for (name, time, of) in [
            ("acquire and release, five healthy", healthy, fan_outs),
            ("the same, two dead, of healthy", dead, healthy),
            ("the same, two black-holed, of healthy", silent, healthy),
        ] {
            println!("{name}: {time:?}, {:.2}", time.as_secs_f64() / of.as_secs_f64());
        }
    });
}
