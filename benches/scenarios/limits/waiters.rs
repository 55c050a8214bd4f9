//! Waiters of one lock: tasks of one process, which the server sees as one waiter, and entries of the server's queue.

use super::*;

/// Name of the lock.
const LOCK: &str = "crowd";
/// Hand-overs that are measured in each step.
const TURNS: usize = 1_000;

/// The other process. `come N` lets N tasks wait for the lock, `go` releases it and waits until each task has had it.
pub(super) fn wait(url: &str) {
    let runtime = runtime();
    let builder = || RedisManager::builder(url);
    let holder = runtime.block_on(connect(builder()));
    let here = runtime.block_on(connect(builder().max_waiters(usize::MAX)));
    let (mut held, mut tasks) = (None, JoinSet::new());
    obey(|order| {
        runtime.block_on(async {
            match order.strip_prefix("come ") {
                Some(count) => {
                    held = Some(holder.write(LOCK).await?);
                    come(&here, &mut tasks, count.parse().expect("a number")).await?;
                    Ok(vec![])
                }
                None => go(held.take().expect("a crowd came before"), &mut tasks).await,
            }
        })
    });
}

async fn come(here: &RedisManager, tasks: &mut JoinSet<Result<(), Error>>, count: usize) -> Result<(), Error> {
    for _ in 0..count {
        let here = here.clone();
        tasks.spawn(async move { here.write(LOCK).await?.release().await });
    }
    while here.stats().waiters < count {
        if let Some(end) = tasks.try_join_next() {
            end.expect("no panic")?;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn go(held: WriteGuard, tasks: &mut JoinSet<Result<(), Error>>) -> Result<Vec<f64>, Error> {
    let began = Instant::now();
    held.release().await?;
    while let Some(turn) = tasks.join_next().await {
        turn.expect("no panic")?;
    }
    Ok(vec![micros(began.elapsed())])
}

/// Lets so many tasks of another process wait, and then have the lock one after the other.
fn climb_tasks(effort: Effort) {
    let loads = effort.of(
        &[1_000, 4_000, 16_000, 64_000, 128_000, 256_000, 512_000, 1_000_000][..],
        &[1_000, 16_000, 128_000],
        &[10, 20],
    );
    let span = Duration::from_secs(effort.of(3, 2, 1));
    let Site { prober, loader: mut crowd, mut meter, .. } = Site::start("waiters");
    climb(["waiting tasks", "us for each turn"], loads, |count| {
        crowd.order::<0>(format!("come {count}"))?;
        meter.reset();
        let mut waiting = prober.probe_for(span);
        let ([client, _], bytes) = (meter.shares(), meter.bytes());
        let (turns, mut meanwhile) = prober.probe_during(|| crowd.order("go"));
        let [took_us] = turns?;
        let [client_kib, _] = meter.kib_each(bytes, count);
        Ok(Reading {
            watched: took_us / count as f64,
            cells: vec![
                ("others' p99 while they wait", whole(waiting.micros(0.99))),
                ("others' p99 during the turns", whole(meanwhile.micros(0.99))),
                ("client while they wait, % of a core", format!("{client:.1}")),
                ("client, KiB each", client_kib),
            ],
            bytes: bytes[0],
            failure: waiting.failure.take().or(meanwhile.failure.take()),
        })
    });
}

/// Lets so many managers wait in the server's queue, and hands the lock from one to the next. The managers do not exist.
fn climb_queue(effort: Effort) {
    let loads = effort.of(&[4_000, 16_000, 64_000, 256_000, 500_000, 1_000_000][..], &[4_000, 64_000], &[20, 40]);
    let turns = effort.of((TURNS, 20), (TURNS, 20), (5, 2));
    Members::Writers.climb(["waiting managers", "p99 of a hand-over, us"], loads, turns);
}

pub(crate) fn run(effort: Effort) {
    climb_tasks(effort);
    climb_queue(effort);
}
