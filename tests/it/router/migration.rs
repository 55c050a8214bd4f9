//! Slots that move under load: no request fails, no hold is lost, no writer is inside beside another holder.

use cluster_testenv::{Cluster, Node, Server, SlotMigration};
use redis_rwlock::{HoldState, WriteGuard};
use tokio::task::JoinHandle;

use super::field::{Field, Load, name_of, on_own_servers};
use crate::fixture::{Manager, RENEWED, Settings};
use crate::wait::{Outcome, granted, spawn};

on_own_servers![
    slot_moves_step_by_step_under_load,
    slot_moves_at_once_there_and_back_under_load,
    slot_that_stays_after_all_loses_nothing,
    locks_without_a_key_are_taken_at_the_new_owner,
    renewals_do_not_wait_for_one_that_goes_elsewhere,
];

/// Locks that change hands all the time, and one that is held over all steps while another manager waits for it.
struct Traffic {
    load: Load,
    held: WriteGuard,
    waiting: JoinHandle<redis_rwlock::Result<WriteGuard>>,
    names: Vec<String>,
}

impl Traffic {
    async fn start(field: &Field, tag: &str) -> Self {
        let managers: [Manager; 2] =
            [field.manager_with(Settings::lease(RENEWED)).await, field.manager_with(Settings::lease(RENEWED)).await];
        let name = name_of(tag, 99);
        let held = managers[0].write(&name).await.expect("granted");
        let waiting = spawn(managers[1].write(&name));
        let busy: Vec<String> = (0..4).map(|n| name_of(tag, n)).collect();
        let load = Load::start(&managers, busy.clone(), 16);
        let names = busy.into_iter().chain([name]).collect();
        let traffic = Self { load, held, waiting, names };
        traffic.goes_on("in the beginning").await;
        traffic
    }

    async fn goes_on(&self, when: &str) {
        self.load.goes_on(when, 10).await;
        assert_eq!(self.held.state(), HoldState::Held, "{when}");
        assert!(!self.waiting.is_finished(), "{when}: the waiter got in beside the holder");
    }

    /// Waits for longer than a lease, so that the hold was renewed at its present node.
    async fn renews(&self, when: &str) {
        tokio::time::sleep(RENEWED).await;
        self.goes_on(when).await;
    }

    async fn end(self, field: &Field) {
        let token = self.held.fencing_token();
        self.held.release().await.expect("ours to the end");
        let heir = granted(self.waiting).await;
        assert!(heir.fencing_token() > token);
        heir.release().await.expect("released");
        self.load.end().await;
        field.nothing_is_left(self.names).await;
    }
}

/// A primary that does not own the tag's slot.
fn another(cluster: &Cluster, slot: u16) -> &Node {
    let owner = cluster.primary_of_slot(slot).port();
    cluster.primaries().into_iter().find(|node| node.port() != owner).expect("there are three")
}

/// Begins to move the tag's slot to another primary.
fn migrate<'a>(field: &'a Field, tag: &str) -> SlotMigration<'a> {
    let slot = field.cluster.keyslot(tag);
    SlotMigration::begin(&field.cluster, slot, another(&field.cluster, slot)).expect("the migration begins")
}

async fn slot_moves_step_by_step_under_load(server: Server) {
    let field = Field::primaries(server);
    let tag = field.tag();
    let traffic = Traffic::start(&field, &tag).await;
    let migration = migrate(&field, &tag);
    traffic.goes_on("all keys are at the source").await;
    for name in &traffic.names {
        assert!(migration.move_key(field.hash_key(name)).expect("moved"), "{name} was there");
        traffic.goes_on("one key after the other moves").await;
    }
    traffic.renews("all keys have moved, the slot has not").await;
    migration.finish().expect("the migration ends");
    traffic.renews("the slot has moved").await;
    traffic.end(&field).await;
}

async fn slot_that_stays_after_all_loses_nothing(server: Server) {
    let field = Field::primaries(server);
    let tag = field.tag();
    let traffic = Traffic::start(&field, &tag).await;
    let migration = migrate(&field, &tag);
    traffic.goes_on("all keys are at the source").await;
    migration.abandon().expect("the slot stays");
    traffic.renews("the slot has stayed").await;
    traffic.end(&field).await;
}

async fn locks_without_a_key_are_taken_at_the_new_owner(server: Server) -> Outcome {
    let field = Field::primaries(server);
    let (holder, other) = (field.manager_with(Settings::lease(RENEWED)).await, field.manager().await);
    let tag = field.tag();
    let migration = migrate(&field, &tag);
    let (name, key) = (name_of(&tag, 0), field.hash_key(&name_of(&tag, 0)));
    let guard = holder.write(&name).await?;
    assert!(migration.keys_left()?.is_empty(), "the key is at the new owner");
    assert!(other.try_read(&name).await?.is_none(), "it is held there");
    let waiting = spawn(other.write(&name));
    tokio::time::sleep(RENEWED).await;
    assert_eq!(guard.state(), HoldState::Held, "it is renewed there");
    migration.finish()?;
    assert_eq!(field.owner(&tag).command(&["EXISTS", &key])?.int(), Some(1));
    let token = guard.fencing_token();
    guard.release().await?;
    let heir = granted(waiting).await;
    assert!(heir.fencing_token() > token);
    heir.release().await?;
    field.nothing_is_left([name]).await;
    Ok(())
}

/// A node is late with its answers for one slot alone: renewals of other slots must not wait for these.
async fn renewals_do_not_wait_for_one_that_goes_elsewhere(server: Server) -> Outcome {
    let field = Field::primaries(server);
    let holder = field.manager_with(Settings { response_timeout: RENEWED * 4, ..Settings::lease(RENEWED) }).await;
    let source = &field.cluster.nodes()[0];
    let slot_of = |tag: &str| field.cluster.keyslot(tag);
    let tag = field.tag_at(source);
    let mut tags = (0..).map(|n| format!("other{n}"));
    let other = tags.find(|other| field.owner(other).port() == source.port() && slot_of(other) != slot_of(&tag));
    let other = other.expect("there are always more");
    let gone = holder.write(&name_of(&tag, 0)).await?;
    let mut held = Vec::new();
    for n in 0..8 {
        held.push(holder.write(&name_of(&other, n)).await?);
    }
    let migration = migrate(&field, &tag);
    assert!(migration.move_key(field.hash_key(&name_of(&tag, 0))).expect("moved"), "it was there");
    migration.to().proxy().freeze();
    tokio::time::sleep(RENEWED * 2).await;
    let states: Vec<_> = held.iter().map(WriteGuard::state).collect();
    assert!(states.iter().all(|state| *state == HoldState::Held), "{states:?}");
    migration.to().proxy().heal();
    drop((gone, held));
    Ok(())
}

/// Moves a slot at once. Where the servers cannot, they refuse the order, and the slot stays.
async fn slot_moves_at_once_there_and_back_under_load(server: Server) {
    let field = Field::primaries(server);
    let tag = field.tag();
    let slot = field.cluster.keyslot(&tag);
    let traffic = Traffic::start(&field, &tag).await;
    for _ in 0..4 {
        let (from, to) = (field.owner(&tag).port(), another(&field.cluster, slot));
        let moved = field.cluster.migrate_slot_atomically(slot, to);
        if field.cluster.can_migrate_atomically().expect("answered") {
            moved.expect("the slot moves");
        } else {
            moved.expect_err("the servers cannot");
            assert_eq!(field.owner(&tag).port(), from, "the slot stays");
        }
        traffic.goes_on("after the order").await;
    }
    traffic.renews("all is quiet").await;
    traffic.end(&field).await;
}
