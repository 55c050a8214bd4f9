//! Locks per `locks()`: so many locks on the node, and as many keys that have nothing to do with locks.

use super::crowd::Crowd;
use super::*;
use crate::setup::process::peak_bytes;

/// The other process: lists the locks for at least so many milliseconds. Answers with the number of calls, the time
/// of all of them in microseconds, the number of locks, and the peak of the memory.
pub(super) fn list(url: &str) {
    let (runtime, manager) = connect_for_load(url);
    obey(|order| {
        let span = Duration::from_millis(order.parse().expect("a number"));
        runtime.block_on(list_for(&manager, span))
    });
}

async fn list_for(manager: &RedisManager, span: Duration) -> Result<Vec<f64>, Error> {
    let (began, mut calls, mut found) = (Instant::now(), 0_u32, 0);
    while calls == 0 || began.elapsed() < span {
        found = manager.locks().await?.len();
        calls += 1;
    }
    Ok(vec![f64::from(calls), micros(began.elapsed()), found as f64, peak_bytes() as f64])
}

pub(crate) fn run(effort: Effort) {
    let loads = effort.of(
        &[1_000, 10_000, 100_000, 250_000, 500_000, 1_000_000, 2_000_000][..],
        &[1_000, 10_000, 100_000],
        &[10, 20],
    );
    let span_ms = effort.of(4_000, 2_000, 10);
    let Site { node, prober, mut loader, mut meter } = Site::start("list");
    let (mut crowd, mut there) = (Crowd::connect(&node), 0);
    climb(["locks    ", "us for each key"], loads, |count| {
        crowd.acquire((there, count), |member| format!("held-lock-{member:07}"), "w", "0");
        crowd.add_other_keys((there, count));
        there = count;
        meter.reset();
        let (listing, mut felt) = prober.probe_during(|| loader.order(span_ms));
        let ([client, server], [_, bytes]) = (meter.shares(), meter.bytes());
        let [calls, took_us, found, peak] = listing?;
        let each_us = took_us / calls;
        // The lock of the prober is there, too.
        let missing = (found < count as f64).then(|| format!("only {found} of them are in the list"));
        let mib = |bytes: f64| whole(bytes / 1024.0 / 1024.0);
        Ok(Reading {
            watched: each_us / (2 * count) as f64,
            cells: vec![
                ("ms for the list", whole(each_us / 1e3)),
                ("others' p99 during it, us", whole(felt.micros(0.99))),
                ("longest SCAN, ms", meter.longest()),
                ("client, % of a core", whole(client)),
                ("server, %", whole(server)),
                ("client, peak MiB", mib(peak)),
                ("server, MiB", mib(bytes)),
            ],
            bytes: peak.max(bytes),
            failure: felt.failure.take().or(missing),
        })
    });
}
