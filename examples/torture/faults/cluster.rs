//! Faults of a cluster's primaries and replicas.

use std::thread::sleep;
use std::time::{Duration, Instant};

use cluster_testenv::{Node, Server};
use fastrand::Rng;

use super::network::{any, millis};
use super::{Column, Fault, Mixes, Scene, left, right};
use crate::tasks::{COLD, LOCKS, SLOW, lock_name};
use crate::{LEASE, Result};

const SURVIVED: &[Fault] = &[
    left("restart", Mixes::No, restart, "a primary is killed (kill -9) and comes back with its data"),
    left("pause", Mixes::No, pause, "a primary stands still (SIGSTOP) for a part of a lease"),
    left(
        "long-pause",
        Mixes::No,
        long_pause,
        "a primary stands still for longer than a lease, and nobody takes its place",
    ),
    left("failover", Mixes::No, failover, "a replica takes over in agreement with its primary"),
    left("lag", Mixes::No, lag, "a replica does not answer for 2 s, then takes over in agreement with its primary"),
    left("migrate", Mixes::No, migrate, "the slot of a lock moves to another primary and back"),
];

/// What a level that waits for replicas survives too.
const LOST_WRITES: &[Fault] = &[
    right(
        "lost-write",
        lost_write,
        "a primary is killed whose replica has not heard of it for a second, and that takes over",
    ),
    right("forced-failover", forced, "such a replica takes over by votes while its primary lives"),
    right(
        "woken-primary",
        woken,
        "a primary is paused, its replica takes over, and it wakes up with requests in its sockets",
    ),
];

const NOT_SURVIVED: &[Fault] = &[
    right("takeover", takeover, "a replica that is a second behind takes over without asking anybody"),
    right("restart-empty", restart_empty, "a primary is killed and comes back without its data"),
    right("flush", flush, "FLUSHALL at all primaries"),
    right("delete", delete, "the keys of the locks are deleted"),
];

/// Between a replica's last word from its primary and its turn: longer than a client takes to connect anew.
const BEHIND: (u64, u64) = (900, 1400);

pub(super) fn at_primary() -> Vec<Fault> {
    [SURVIVED, LOST_WRITES, NOT_SURVIVED].concat()
}

pub(super) fn at_replicated() -> Vec<Fault> {
    let now_survived = LOST_WRITES.iter().map(|fault| Fault { column: Column::Left, ..*fault }).collect();
    [SURVIVED.to_vec(), now_survived, NOT_SURVIVED.to_vec()].concat()
}

/// The primary of most locks that are held for long.
fn of_slow<'a>(scene: &Scene<'a>) -> &'a Node {
    scene.field.grantors(SLOW.start)[0]
}

fn restart(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    let primary = any(scene, rng);
    primary.kill();
    sleep(millis(rng, 0, 1500));
    Ok(primary.restart()?)
}

fn pause(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    let primary = any(scene, rng);
    primary.pause();
    sleep(millis(rng, 100, 1500));
    primary.resume();
    Ok(())
}

fn long_pause(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    let primary = of_slow(scene);
    primary.pause();
    sleep(LEASE + millis(rng, 100, 600));
    primary.resume();
    Ok(())
}

fn failover(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    let primary = any(scene, rng);
    scene.field.with_votes(|cluster| cluster.failover(primary))
}

fn lag(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    let (cluster, primary) = (scene.field.cluster()?, any(scene, rng));
    let replicas = cluster.replicas_of(primary);
    let behind = Duration::from_secs(2);
    replicas.first().ok_or("no replica")?.pause_clients(behind)?;
    sleep(behind);
    scene.field.with_votes(|cluster| cluster.failover(primary))
}

fn migrate(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    let cluster = scene.field.cluster()?;
    let slot = cluster.keyslot(lock_name(rng.usize(..LOCKS)));
    let from = cluster.primary_of_slot(slot);
    let others: Vec<_> = cluster.primaries().into_iter().filter(|node| node.port() != from.port()).collect();
    let to = others[rng.usize(..others.len())];
    for to in [to, from] {
        if from.server() == Server::Valkey91 && rng.bool() {
            cluster.migrate_slot_atomically(slot, to)?;
        } else {
            cluster.migrate_slot(slot, to)?;
        }
        sleep(millis(rng, 0, 500));
        cluster.wait_ok()?;
    }
    Ok(())
}

/// The replica does not know, nor does the primary, that nothing comes through any more. Clients find out, and connect anew.
fn part(primary: &Node, rng: &mut Rng) {
    primary.proxy().black_hole();
    sleep(Duration::from_millis(20));
    primary.proxy().heal();
    sleep(millis(rng, BEHIND.0, BEHIND.1));
}

fn lost_write(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    let primary = of_slow(scene);
    part(primary, rng);
    primary.kill();
    scene.field.with_votes(|cluster| cluster.failover_force(primary))?;
    sleep(LEASE / 2);
    Ok(())
}

fn forced(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    let primary = of_slow(scene);
    part(primary, rng);
    scene.field.with_votes(|cluster| cluster.failover_force(primary))?;
    sleep(LEASE / 2);
    Ok(())
}

fn takeover(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    let (cluster, primary) = (scene.field.cluster()?, of_slow(scene));
    part(primary, rng);
    cluster.takeover(primary)?;
    sleep(LEASE / 2);
    Ok(())
}

/// It wakes before its clients give it up, and after others have come who were told of its successor.
fn woken(scene: &Scene<'_>, rng: &mut Rng) -> Result<()> {
    let primary = scene.field.grantors(COLD.start)[0];
    let mut paused = Instant::now();
    scene.field.with_votes(|cluster| {
        primary.pause();
        paused = Instant::now();
        cluster.failover_force(primary)
    })?;
    sleep(millis(rng, 300, 450).saturating_sub(paused.elapsed()));
    primary.resume();
    sleep(LEASE / 2);
    Ok(())
}

fn restart_empty(scene: &Scene<'_>, _: &mut Rng) -> Result<()> {
    of_slow(scene).restart_empty()?;
    sleep(LEASE / 2);
    Ok(())
}

fn flush(scene: &Scene<'_>, _: &mut Rng) -> Result<()> {
    scene.field.cluster()?.flush_all()?;
    sleep(LEASE / 2);
    Ok(())
}

fn delete(scene: &Scene<'_>, _: &mut Rng) -> Result<()> {
    for lock in 0..LOCKS {
        scene.field.delete(lock, &scene.field.grantors(lock))?;
    }
    sleep(LEASE / 2);
    Ok(())
}
