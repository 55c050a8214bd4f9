//! Requests per second on one node: pairs of independent locks, as many a second as are asked for.

use tokio::time::MissedTickBehavior;

use super::*;

/// Tasks of the client, each with a lock of its own.
const TASKS: usize = 512;
/// Smallest share of the pairs that have to be done in time.
const DONE: f64 = 0.95;

/// The other process: makes so many pairs a second for so many milliseconds. Answers with the number of pairs, and with
/// the time they took.
pub(super) fn load(url: &str) {
    let (runtime, manager) = connect_for_load(url);
    obey(|order| {
        let numbers: Vec<f64> = order.split(' ').map(|word| word.parse().expect("a number")).collect();
        let (rate, span) = (numbers[0], Duration::from_secs_f64(numbers[1] / 1e3));
        runtime.block_on(pairs(&manager, rate, span))
    });
}

async fn pairs(manager: &RedisManager, rate: f64, span: Duration) -> Result<Vec<f64>, Error> {
    let (mut tasks, began) = (JoinSet::new(), tokio::time::Instant::now());
    let interval = Duration::from_secs_f64(TASKS as f64 / rate);
    for task in 0..TASKS {
        let manager = manager.clone();
        // The tasks begin one after the other, so that the pairs are spread over the interval.
        let first = began + interval.mul_f64(task as f64 / TASKS as f64);
        tasks.spawn(async move {
            let (name, mut done) = (format!("load-{task}"), 0_u32);
            let mut ticks = tokio::time::interval_at(first, interval);
            // A late task catches up, so that the load stays what was asked for.
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            while began.elapsed() < span {
                ticks.tick().await;
                manager.write(&name).await?.release().await?;
                done += 1;
            }
            Ok::<_, Error>(done)
        });
    }
    let mut done = 0;
    while let Some(end) = tasks.join_next().await {
        done += end.expect("no panic")?;
    }
    Ok(vec![f64::from(done), began.elapsed().as_secs_f64()])
}

pub(crate) fn run(effort: Effort) {
    let loads = effort.of(
        &[1_000, 2_000, 4_000, 8_000, 12_000, 16_000, 20_000, 24_000, 28_000, 32_000, 40_000, 48_000, 56_000][..],
        &[1_000, 8_000, 24_000, 48_000],
        &[1_000],
    );
    let span_ms = effort.of(6_000, 4_000, 100);
    let Site { prober, mut loader, mut meter, .. } = Site::start("requests");
    climb(["pairs a second", "others' p99, us"], loads, |rate| {
        let began = Instant::now();
        meter.reset();
        let (pairs, mut felt) = prober.probe_during(|| loader.order(format!("{rate} {span_ms}")));
        let [client, server] = meter.shares();
        let elapsed_us = micros(began.elapsed());
        let [done, took_s] = pairs?;
        let achieved = done / took_s;
        let each = |share: f64| format!("{:.1}", share / 100.0 * elapsed_us / done);
        let is_short = achieved < DONE * rate as f64 && effort != Effort::Once;
        Ok(Reading {
            watched: felt.micros(0.99),
            cells: vec![
                ("others' p50", whole(felt.micros(0.5))),
                ("done a second", whole(achieved)),
                ("client, % of a core", whole(client)),
                ("server, %", whole(server)),
                ("us of client a pair", each(client)),
                ("us of server a pair", each(server)),
            ],
            failure: felt.failure.take().or_else(|| is_short.then(|| format!("only {achieved:.0} a second are done"))),
            ..Reading::default()
        })
    });
}
