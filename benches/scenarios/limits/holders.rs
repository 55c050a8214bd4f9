//! Holders of one lock: readers of different managers, which the server records, and guards of one process, which share
//! a hold.

use super::*;

const LOCK: &str = "crowd";

/// The other process: lets so many guards share a hold, and drops them. Answers with the nanoseconds for the joins and
/// for the drops, and with the memory of the guards.
pub(super) fn join(url: &str) {
    let (runtime, manager) = connect_for_load(url);
    obey(|order| runtime.block_on(join_and_drop(&manager, order.parse().expect("a number"))));
}

async fn join_and_drop(manager: &RedisManager, count: usize) -> Result<Vec<f64>, Error> {
    let mut guards: Vec<ReadGuard> = Vec::with_capacity(count);
    let began = Instant::now();
    for _ in 0..count {
        guards.push(manager.read(LOCK).await?);
    }
    let joins = began.elapsed();
    let bytes = resident_bytes();
    let began = Instant::now();
    drop(guards);
    let drops = began.elapsed();
    manager.flush().await?;
    Ok(vec![joins.as_secs_f64() * 1e9, drops.as_secs_f64() * 1e9, bytes as f64])
}

fn climb_readers(effort: Effort) {
    let loads = effort.of(
        &[1_000, 4_000, 16_000, 64_000, 256_000, 500_000, 1_000_000][..],
        &[1_000, 16_000, 128_000],
        &[10, 20],
    );
    let turns = effort.of((2_000, 20), (1_000, 20), (5, 2));
    Members::Readers.climb(["reading managers", "p99 of one more reader's pair, us"], loads, turns);
}

fn climb_guards(effort: Effort) {
    let loads = effort.of(
        &[1_000, 10_000, 100_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000][..],
        &[1_000, 100_000],
        &[10, 20],
    );
    let Site { mut loader, mut meter, .. } = Site::start("guards");
    let [start, _] = meter.bytes();
    climb(["guards of a hold", "ns for a join and its drop"], loads, |count| {
        let ([joins, drops, bytes], each) = (loader.order(count)?, count as f64);
        Ok(Reading {
            watched: (joins + drops) / each,
            cells: vec![
                ("ns for a join", whole(joins / each)),
                ("ns for a drop", whole(drops / each)),
                ("client, bytes each", whole((bytes - start).max(0.0) / each)),
            ],
            bytes,
            failure: None,
        })
    });
}

pub(crate) fn run(effort: Effort) {
    climb_readers(effort);
    climb_guards(effort);
}
