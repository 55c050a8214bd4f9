//! Processes per lock. Each is a manager with connections of its own, so the server sees as many processes. They share
//! one process, because a machine with two cores cannot start thousands.

use super::*;

/// The other process. `connect N` connects managers until there are N, and `write MS` lets each of them write under one
/// lock for so long. Answers with the number of turns, and with the p50 and the p99 of the waits in microseconds.
pub(super) fn compete(url: &str) {
    let runtime = runtime();
    let mut managers: Vec<RedisManager> = Vec::new();
    obey(|order| {
        runtime.block_on(async {
            let (verb, number) = order.split_once(' ').expect("a verb and a number");
            let number: usize = number.parse().expect("a number");
            if verb == "connect" {
                let connect = async |_| RedisManager::connect(url).await;
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
    let took_us = micros(began.elapsed());
    Ok(vec![waits.len() as f64, took_us, quantile_us(&mut waits, 0.5), quantile_us(&mut waits, 0.99)])
}

pub(crate) fn run(effort: Effort) {
    let loads = effort.of(&[10, 30, 100, 300, 1_000, 2_000, 3_000, 4_000, 6_000][..], &[10, 100, 1_000], &[2, 4]);
    let span = effort.of(8_000, 4_000, 100);
    let Site { prober, mut loader, mut meter, .. } = Site::start("processes");
    let connections = meter.connections();
    climb(["processes", "us for each turn"], loads, |count| {
        loader.order::<0>(format!("connect {count}"))?;
        meter.reset();
        let (turns, mut felt) = prober.probe_during(|| loader.order(format!("write {span}")));
        let ([client, server], bytes) = (meter.shares(), meter.bytes());
        let [client_kib, server_kib] = meter.kib_each(bytes, count);
        let [turns, took_us, p50, p99] = turns?;
        Ok(Reading {
            watched: took_us / turns,
            cells: vec![
                ("turns a second", whole(turns / took_us * 1e6)),
                ("wait p50, ms", format!("{:.1}", p50 / 1e3)),
                ("wait p99, ms", format!("{:.1}", p99 / 1e3)),
                ("others' p99, us", whole(felt.micros(0.99))),
                ("connections each", format!("{:.1}", (meter.connections() - connections) / count as f64)),
                ("client, % of a core", whole(client)),
                ("server, %", whole(server)),
                ("client, KiB each", client_kib),
                ("server, KiB each", server_kib),
            ],
            bytes: bytes[0].max(bytes[1]),
            failure: felt.failure.take(),
        })
    });
}
