//! Faults of a cluster's primaries and replicas.

use cluster_testenv::SlotMigration;

use super::*;

const SURVIVED: &[Fault] = &[
    left("restart", restart, "a primary is killed (kill -9) and comes back with its data"),
    left("pause", pause, "a primary stands still (SIGSTOP) for a part of a lease"),
    left("long-pause", long_pause, "a primary stands still for longer than a lease, and nobody takes its place"),
    left("failover", failover, "a replica takes over in agreement with its primary"),
    left("lag", lag, "a replica does not answer for 2 s, then takes over in agreement with its primary"),
    left("migrate", migrate, "the slot of a lock moves to another primary and back"),
];

/// Faults that only the level `replicated` survives.
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
        "a primary is paused, its replica takes over, and it wakes up and does not hear of that for 1 to 2 s",
    ),
];

const NOT_SURVIVED: &[Fault] = &[
    right("takeover", takeover, "a replica that is a second behind takes over without asking anybody"),
    right("restart-empty", restart_empty, "a primary is killed and comes back without its data"),
    right("flush", flush, "FLUSHALL at all primaries"),
    right("delete", delete, "the keys of the locks are deleted"),
];

/// Time between a replica's last data from its primary and its promotion, in milliseconds. It is longer than a client
/// needs for a new connection.
const BEHIND: (u64, u64) = (900, 1400);
/// Limit for moving a slot, longer than any fault that may happen at the same time.
const MOVING: Duration = Duration::from_secs(15);
/// Time in milliseconds for which an old primary does not learn of its successor. It is shorter than the voters' node
/// timeout. After that timeout, the old primary would serve no client.
const CUT_OFF: (u64, u64) = (1000, 2000);

/// Fault during a migration. Only replicas of some servers know which slots are migrating.
const HALF_WAY: Fault = right(
    "migrate-failover",
    migrate_failover,
    "a replica takes over in agreement with its primary, when the keys of a slot are at another one already",
);

/// Faults of servers that move a slot with all its keys at once.
const AT_ONCE: &[Fault] = &[
    left(
        "atomic-failover",
        atomic_failover,
        "a replica takes over from the source or the target of an atomic slot migration, in agreement with it",
    ),
    left(
        "atomic-retries",
        atomic_retries,
        "an atomic slot migration is tried again and again, while the target stands still or the operator cancels it",
    ),
];

pub(super) fn at_primary(server: Server) -> Result<Vec<Fault>> {
    Ok([SURVIVED, LOST_WRITES, NOT_SURVIVED, &[half_way(server)?], at_once(server)?].concat())
}

pub(super) fn at_replicated(server: Server) -> Result<Vec<Fault>> {
    let now_survived = LOST_WRITES.iter().map(|fault| Fault { column: Column::Left, ..*fault }).collect();
    Ok([SURVIVED.to_vec(), now_survived, NOT_SURVIVED.to_vec(), vec![half_way(server)?], at_once(server)?.to_vec()]
        .concat())
}

/// Asks a server of this kind, which is started for the question.
fn at_once(server: Server) -> Result<&'static [Fault]> {
    let can = Node::start(server)?.has_command("cluster|migrateslots")?;
    Ok(if can { AT_ONCE } else { &[] })
}

/// Asks a server of this kind, which is started for the question.
fn half_way(server: Server) -> Result<Fault> {
    let survived = replicas_know_migrations(&Node::start(server)?)?;
    Ok(Fault { column: if survived { Column::Left } else { Column::Right }, ..HALF_WAY })
}

/// Returns true if a primary tells its replicas which slots are migrating. It then waits for them, for as long as the
/// argument `TIMEOUT` of CLUSTER SETSLOT says.
fn replicas_know_migrations(node: &Node) -> Result<bool> {
    Ok(node.has_argument("cluster|setslot", "TIMEOUT")?)
}

/// Returns the primary of most locks that tasks hold for a long time.
fn of_slow<'a>(scene: &Scene<'a>) -> &'a Node {
    scene.field.grantors(SLOW.start)[0]
}

fn restart(scene: &mut Scene<'_>) -> Result<()> {
    let primary = scene.any();
    primary.kill();
    scene.sleep(0, 1500);
    Ok(primary.restart()?)
}

fn pause(scene: &mut Scene<'_>) -> Result<()> {
    let primary = scene.any();
    primary.pause();
    scene.sleep(100, 1500);
    primary.resume();
    Ok(())
}

fn long_pause(scene: &mut Scene<'_>) -> Result<()> {
    let primary = of_slow(scene);
    primary.pause();
    sleep(LEASE + scene.millis(100, 600));
    primary.resume();
    Ok(())
}

fn failover(scene: &mut Scene<'_>) -> Result<()> {
    let primary = scene.any();
    scene.field.with_votes(|cluster| cluster.failover(primary))?;
    Ok(())
}

fn lag(scene: &mut Scene<'_>) -> Result<()> {
    let (cluster, primary) = (scene.field.cluster()?, scene.any());
    let replicas = cluster.replicas_of(primary);
    let behind = Duration::from_secs(2);
    replicas.first().ok_or("no replica")?.pause_clients(behind)?;
    sleep(behind);
    scene.field.with_votes(|cluster| cluster.failover(primary))?;
    Ok(())
}

fn migrate(scene: &mut Scene<'_>) -> Result<()> {
    let Move { slot, from, to, .. } = some_move(scene, 0..LOCKS)?;
    for to in [to, from] {
        move_slot(scene, slot, to)?;
        scene.sleep(0, 500);
    }
    Ok(())
}

fn migrate_failover(scene: &mut Scene<'_>) -> Result<()> {
    let Move { cluster, slot, from, to } = some_move(scene, SLOW)?;
    // Another fault may delay the keys for a while.
    let move_keys = || SlotMigration::begin(cluster, slot, to).and_then(|migration| migration.move_keys()).ok();
    wait_for(format!("the keys of slot {slot} moving"), MOVING, move_keys)?;
    let successor = scene.field.with_votes(|cluster| cluster.failover(from))?;
    if replicas_know_migrations(from)? {
        sleep(LEASE / 2);
        move_slot(scene, slot, to)?;
        return move_slot(scene, slot, successor);
    }
    scene.field.wait_until_known(successor)?;
    // A node that imports a slot does not learn the slot's new owner. Without this command, no node would serve the
    // slot to clients.
    let id = successor.command(&["CLUSTER", "MYID"])?.into_result()?;
    let id = id.text().unwrap_or_default();
    to.command(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &id])?.into_result()?;
    sleep(LEASE / 2);
    forget_slot(to, slot)
}

fn atomic_failover(scene: &mut Scene<'_>) -> Result<()> {
    let Move { cluster, slot, from, to } = some_move(scene, SLOW)?;
    begin_move(cluster, slot, to)?;
    scene.sleep(0, 30);
    let deposed = if scene.rng.bool() { from } else { to };
    let successor = scene.field.with_votes(|cluster| cluster.failover(deposed))?;
    sleep(LEASE / 2);
    // The failover has ended the migration, or came after its end.
    let home = if deposed.port() == from.port() { successor } else { from };
    move_slot(scene, slot, home)
}

fn atomic_retries(scene: &mut Scene<'_>) -> Result<()> {
    let Move { cluster, slot, from, to } = some_move(scene, SLOW)?;
    for _ in 0..scene.rng.u32(2..5) {
        if cluster.primary_of_slot(slot).port() != from.port() {
            break;
        }
        begin_move(cluster, slot, to)?;
        scene.sleep(0, 15);
        if scene.rng.bool() {
            to.pause();
            scene.sleep(100, 900);
            to.resume();
        }
        // The answer does not matter: the migration may be over.
        drop(from.command(&["CLUSTER", "CANCELSLOTMIGRATIONS"])?);
        scene.sleep(0, 300);
    }
    for to in [to, from] {
        move_slot(scene, slot, to)?;
    }
    Ok(())
}

/// Begins an atomic migration. A migration that was begun before may have to end first.
fn begin_move(cluster: &Cluster, slot: u16, to: &Node) -> Result<()> {
    let begin = || cluster.begin_atomic_migration(slot, to).ok().map(drop);
    Ok(wait_for(format!("the migration of slot {slot} beginning"), MOVING, begin)?)
}

/// Slot that moves from its owner to another primary.
struct Move<'a> {
    cluster: &'a Cluster,
    slot: u16,
    from: &'a Node,
    to: &'a Node,
}

/// Returns a random move of the slot of one of these locks.
fn some_move<'a>(scene: &mut Scene<'a>, locks: Range<usize>) -> Result<Move<'a>> {
    let cluster = scene.field.cluster()?;
    let slot = cluster.keyslot(lock_name(scene.rng.usize(locks)));
    let from = cluster.primary_of_slot(slot);
    let others: Vec<_> = cluster.primaries().into_iter().filter(|node| node.port() != from.port()).collect();
    Ok(Move { cluster, slot, from, to: others[scene.rng.usize(..others.len())] })
}

/// Removes the rest of a migration at `to`, after the source has forgotten the migration.
fn forget_slot(to: &Node, slot: u16) -> Result<()> {
    let (mut client, slot) = (to.client()?, slot.to_string());
    let keys = client.command(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"])?.into_result()?;
    for key in keys.array().unwrap_or_default().iter().filter_map(Reply::bytes) {
        client.command(&["ASKING"])?.into_result()?;
        client.command(&[b"DEL".as_slice(), key])?.into_result()?;
    }
    client.command(&["CLUSTER", "SETSLOT", &slot, "STABLE"])?.into_result()?;
    Ok(())
}

/// Moves a slot. Tries again if another fault prevents the move, as an operator would.
fn move_slot(scene: &mut Scene<'_>, slot: u16, to: &Node) -> Result<()> {
    let cluster = scene.field.cluster()?;
    let began = Instant::now();
    loop {
        match move_slot_once(cluster, slot, to, &mut scene.rng).and_then(|()| cluster.wait_ok()) {
            Ok(()) => return Ok(()),
            Err(error) if began.elapsed() > MOVING => return Err(error.into()),
            Err(_) => {}
        }
        sleep(Duration::from_millis(100));
    }
}

fn move_slot_once(cluster: &Cluster, slot: u16, to: &Node, rng: &mut Rng) -> cluster_testenv::Result<()> {
    if cluster.primary_of_slot(slot).port() == to.port() {
        Ok(())
    } else if cluster.can_migrate_atomically()? && rng.bool() {
        cluster.migrate_slot_atomically(slot, to)
    } else {
        cluster.migrate_slot(slot, to)
    }
}

/// Breaks the link between a primary and its replica in a way that neither of them notices. The clients notice the loss
/// of their connections, and connect again.
fn part(scene: &mut Scene<'_>, primary: &Node) {
    primary.proxy().black_hole();
    sleep(Duration::from_millis(20));
    primary.proxy().heal();
    scene.sleep(BEHIND.0, BEHIND.1);
}

fn lost_write(scene: &mut Scene<'_>) -> Result<()> {
    let primary = of_slow(scene);
    part(scene, primary);
    primary.kill();
    scene.field.with_votes(|cluster| cluster.failover_force(primary))?;
    done_after(LEASE / 2)
}

fn forced(scene: &mut Scene<'_>) -> Result<()> {
    let primary = of_slow(scene);
    part(scene, primary);
    scene.field.with_votes(|cluster| cluster.failover_force(primary))?;
    done_after(LEASE / 2)
}

fn takeover(scene: &mut Scene<'_>) -> Result<()> {
    let (cluster, primary) = (scene.field.cluster()?, of_slow(scene));
    part(scene, primary);
    cluster.takeover(primary)?;
    done_after(LEASE / 2)
}

/// Pauses a primary, promotes its replica, and resumes the old primary before its clients give up. The old primary does
/// not learn of its successor for a while. New clients go to the successor, and the other clients stay with the old
/// primary.
fn woken(scene: &mut Scene<'_>) -> Result<()> {
    let primary = scene.field.grantors(COLD.start)[0];
    let successor = scene.field.with_votes(|cluster| {
        primary.bus_proxy().freeze();
        primary.pause();
        cluster.failover_force(primary)
    })?;
    scene.field.wait_until_known(successor)?;
    scene.field.part_nodes();
    primary.resume();
    scene.sleep(CUT_OFF.0, CUT_OFF.1);
    scene.field.join_nodes();
    done_after(LEASE / 2)
}

fn restart_empty(scene: &mut Scene<'_>) -> Result<()> {
    of_slow(scene).restart_empty()?;
    done_after(LEASE / 2)
}

fn flush(scene: &mut Scene<'_>) -> Result<()> {
    scene.field.cluster()?.flush_all()?;
    done_after(LEASE / 2)
}

fn delete(scene: &mut Scene<'_>) -> Result<()> {
    for lock in 0..LOCKS {
        scene.field.delete(lock, &scene.field.grantors(lock))?;
    }
    done_after(LEASE / 2)
}
