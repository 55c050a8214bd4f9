//! Processes per lock. Each is a manager with connections of its own, so the server sees as many processes. They share
//! one process, because a machine with two cores cannot start thousands.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis_rwlock::{Error, RedisManager, RwLockManager, Topology};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::climb::{Quantity, Reading};
use super::probe::{Meter, Prober, kib_each, micros, whole};
use super::{Loader, obey};
use crate::setup::{Effort, few_at_a_time, start_node};

const PROCESSES: Quantity = Quantity {
    name: "processes",
    watched: "us for each turn",
    columns: &[
        "turns a second",
        "wait p50, ms",
        "wait p99, ms",
        "others' p99, us",
        "connections each",
        "client, % of a core",
        "server, %",
        "client, KiB each",
        "server, KiB each",
    ],
};

/// The other process. `connect N` connects managers until there are N, and `write MS` lets each of them write under one
/// lock for so long. Answers with the number of turns, and with the p50 and the p99 of the waits in microseconds.
pub(super) fn compete(url: &str) {
    let runtime = Runtime::new().expect("a runtime");
    let mut managers: Vec<RedisManager> = Vec::new();
    obey(|order| {
        runtime.block_on(async {
            let (verb, number) = order.split_once(' ').expect("a verb and a number");
            let number: usize = number.parse().expect("a number");
            if verb == "connect" {
                let connect = async |_| RedisManager::connect(Topology::node(url)).await;
                for manager in few_at_a_time(managers.len()..number, connect).await {
                    managers.push(manager?);
                }
                return Ok(vec![]);
            }
            write(&managers, Duration::from_millis(number as u64)).await
        })
    });
}

async fn write(managers: &[RedisManager], span: Duration) -> Result<Vec<f64>, Error> {
    let (stop, mut tasks) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
    let began = Instant::now();
    for manager in managers {
        let (manager, stop) = (manager.clone(), Arc::clone(&stop));
        tasks.spawn(async move {
            let mut waits = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let began = Instant::now();
                let guard = manager.write("one").await?;
                waits.push(began.elapsed());
                guard.release().await?;
            }
            Ok::<_, Error>(waits)
        });
    }
    tokio::time::sleep(span).await;
    stop.store(true, Ordering::Relaxed);
    let mut waits = Vec::new();
    while let Some(end) = tasks.join_next().await {
        waits.extend(end.expect("no panic")?);
    }
    let took_us = began.elapsed().as_secs_f64() * 1e6;
    Ok(vec![waits.len() as f64, took_us, micros(&mut waits, 0.5), micros(&mut waits, 0.99)])
}

pub(super) fn run(effort: Effort) {
    let loads = effort.of(&[10, 30, 100, 300, 1_000, 2_000, 3_000, 4_000, 6_000][..], &[10, 100, 1_000], &[2, 4]);
    let span = effort.of(8_000, 4_000, 100);
    let node = start_node();
    let prober = Prober::connect(Topology::node(node.url()));
    let mut loader = Loader::start("processes", &node.url());
    let mut meter = Meter::start(&node, loader.pid());
    let (start, connections) = (meter.bytes(), meter.connections());
    PROCESSES.climb(loads, |count| {
        if let Err(failure) = loader.order::<0>(&format!("connect {count}")) {
            return Reading::of_failure(failure);
        }
        meter.reset();
        let (turns, mut felt) = prober.probe_during(|| loader.order(&format!("write {span}")));
        let [client, server] = meter.shares();
        let bytes = meter.bytes();
        let [turns, took_us, p50, p99] = match turns {
            Ok(numbers) => numbers,
            Err(failure) => return Reading::of_failure(failure),
        };
        Reading {
            watched: took_us / turns,
            cells: vec![
                whole(turns / took_us * 1e6),
                format!("{:.1}", p50 / 1e3),
                format!("{:.1}", p99 / 1e3),
                whole(felt.micros(0.99)),
                format!("{:.1}", (meter.connections() - connections) / count as f64),
                whole(client),
                whole(server),
                kib_each(bytes[0], start[0], count),
                kib_each(bytes[1], start[1], count),
            ],
            bytes: bytes[0].max(bytes[1]),
            failure: felt.failure.take(),
        }
    });
}
