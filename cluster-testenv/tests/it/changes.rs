//! Failovers and slot migrations that a test orders. A password and proxies make them harder.

use std::time::{Duration, Instant};

use cluster_testenv::{Cluster, Error, Node, Reply, Server, SlotMigration};

/// Node timeout that is longer than any pause here, so that no failover happens by itself.
const NO_FAILOVER: Duration = Duration::from_secs(10);
/// Limit for the news of a failover, far longer than it takes.
const BELIEVED_WITHIN: Duration = Duration::from_secs(10);
const SUPPORTED: [Server; 2] = [Server::Redis82, Server::Valkey91];

fn start(server: Server) -> Cluster {
    Cluster::builder(server).node_timeout(NO_FAILOVER).proxied().password("secret").start().unwrap()
}

/// Returns a node that owns slots, but not `slot`.
fn other_primary(cluster: &Cluster, slot: u16) -> &Node {
    let owner = cluster.primary_of_slot(slot).port();
    cluster.primaries().into_iter().find(|node| node.port() != owner).unwrap()
}

#[test]
fn failover_of_each_kind_returns_a_primary_that_works() {
    for server in SUPPORTED {
        let cluster = start(server);
        let slot = cluster.keyslot("a");
        type Kind = for<'a> fn(&'a Cluster, &Node) -> Result<&'a Node, Error>;
        let kinds: [(&str, Kind); 3] =
            [("plain", Cluster::failover), ("force", Cluster::failover_force), ("takeover", Cluster::takeover)];
        for (expected, (name, fail_over)) in (1..).zip(kinds) {
            let old = cluster.primary_of_slot(slot);
            let replica = cluster.replicas_of(old)[0];
            let started = Instant::now();
            let new = fail_over(&cluster, old).unwrap();
            println!("{server}: {name} failover took {} ms", started.elapsed().as_millis());
            assert_eq!(new.port(), replica.port());
            assert_eq!(new.command(&["INCR", "a"]).unwrap(), Reply::Int(expected), "{server}, {name}");
            assert_eq!(cluster.primary_of_slot(slot).port(), new.port());
            cluster.wait_ok().unwrap();
        }
    }
}

#[test]
fn primary_that_is_paused_or_dead_is_replaced_by_force_and_by_takeover() {
    for server in SUPPORTED {
        let cluster = start(server);
        let slot = cluster.keyslot("a");
        let old = cluster.primary_of_slot(slot);
        old.pause();
        let new = cluster.failover_force(old).unwrap();
        assert!(new.command(&["SET", "a", "1"]).unwrap().is_ok());
        old.resume();
        cluster.wait_ok().unwrap();

        new.kill();
        let newest = cluster.takeover(new).unwrap();
        assert_eq!(newest.port(), old.port());
        assert!(newest.command(&["SET", "a", "2"]).unwrap().is_ok());
        let error = cluster.failover(newest).unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)), "the only replica is dead: {error}");
    }
}

/// Fails over and back faster than the nodes forget their votes, while the replaced primary cannot learn of it.
#[test]
fn replica_that_was_elected_a_moment_ago_is_believed_by_all() {
    for server in SUPPORTED {
        let cluster = start(server);
        let slot = cluster.keyslot("a");
        for round in 0..4 {
            let old = cluster.primary_of_slot(slot);
            let other = other_primary(&cluster, slot);
            old.pause();
            let new = cluster.failover_force(old).unwrap();
            let moved = format!("MOVED {slot} {}", new.proxy().addr());
            let began = Instant::now();
            while other.command(&["GET", "a"]).unwrap().error() != Some(moved.as_str()) {
                assert!(began.elapsed() < BELIEVED_WITHIN, "{server}, round {round}: nobody believes the new primary");
            }
            old.resume();
            cluster.wait_ok().unwrap();
        }
    }
}

#[test]
fn slot_migrates_step_by_step() {
    for server in SUPPORTED {
        let cluster = start(server);
        let slot = cluster.keyslot("{a}");
        let (old, new) = (cluster.primary_of_slot(slot), other_primary(&cluster, slot));
        for number in 0..250 {
            assert!(old.command(&["SET", &format!("{{a}}{number}"), "1"]).unwrap().is_ok());
        }
        let error = |node: &Node, command: &[&str]| node.command(command).unwrap().error().unwrap().to_owned();
        let asked = format!("ASK {slot} {}", new.proxy().addr());

        let migration = SlotMigration::begin(&cluster, slot, new).unwrap();
        assert_eq!((migration.from().port(), migration.to().port()), (old.port(), new.port()));
        assert_eq!(old.command(&["GET", "{a}0"]).unwrap().bytes(), Some(&b"1"[..]));
        assert_eq!(error(old, &["GET", "{a}new"]), asked);

        assert!(migration.move_key("{a}0").unwrap());
        assert!(!migration.move_key("{a}0").unwrap());
        assert_eq!(error(old, &["GET", "{a}0"]), asked);
        assert!(error(old, &["MGET", "{a}0", "{a}1"]).starts_with("TRYAGAIN"));
        let mut client = new.client().unwrap();
        assert!(client.command(&["ASKING"]).unwrap().is_ok());
        assert_eq!(client.command(&["GET", "{a}0"]).unwrap().bytes(), Some(&b"1"[..]));

        migration.move_keys().unwrap();
        assert!(migration.keys_left().unwrap().is_empty());
        assert_eq!(cluster.primary_of_slot(slot).port(), old.port());

        migration.finish().unwrap();
        assert_eq!(error(old, &["GET", "{a}0"]), format!("MOVED {slot} {}", new.proxy().addr()));
        for number in 0..250 {
            let value = new.command(&["GET", &format!("{{a}}{number}")]).unwrap();
            assert_eq!(value.bytes(), Some(&b"1"[..]), "{number}");
        }
        assert_eq!(cluster.primary_of_slot(slot).port(), new.port());
        cluster.wait_ok().unwrap();
        cluster.migrate_slot(slot, old).unwrap();
        assert_eq!(old.command(&["GET", "{a}0"]).unwrap().bytes(), Some(&b"1"[..]));
    }
}

#[test]
fn abandoned_migration_leaves_the_slot_where_it_was() {
    for server in SUPPORTED {
        let cluster = start(server);
        let slot = cluster.keyslot("a");
        let (old, new) = (cluster.primary_of_slot(slot), other_primary(&cluster, slot));
        SlotMigration::begin(&cluster, slot, new).unwrap().abandon().unwrap();
        assert!(old.command(&["GET", "a"]).unwrap().is_nil());
        assert!(matches!(SlotMigration::begin(&cluster, slot, old).unwrap_err(), Error::Refused(_)));
        cluster.wait_ok().unwrap();
    }
}

#[test]
fn slot_migrates_at_once_where_the_server_can() {
    let cluster = start(Server::Valkey91);
    assert!(cluster.can_migrate_atomically().unwrap());
    let slot = cluster.keyslot("a");
    let (old, new) = (cluster.primary_of_slot(slot), other_primary(&cluster, slot));
    assert!(old.command(&["SET", "a", "1"]).unwrap().is_ok());
    // Moves the slot there and back: the second time an older migration is in the list.
    for (from, to) in [(old, new), (new, old)] {
        let started = Instant::now();
        cluster.migrate_slot_atomically(slot, to).unwrap();
        println!("atomic migration took {} ms", started.elapsed().as_millis());
        assert_eq!(cluster.primary_of_slot(slot).port(), to.port());
        assert_eq!(to.command(&["GET", "a"]).unwrap().bytes(), Some(&b"1"[..]));
        let moved = from.command(&["GET", "a"]).unwrap();
        assert_eq!(moved.error().unwrap(), format!("MOVED {slot} {}", to.proxy().addr()));
    }
    cluster.wait_ok().unwrap();
}

#[test]
fn server_that_cannot_migrate_at_once_is_named() {
    for server in [Server::Redis70, Server::Redis82, Server::Valkey81] {
        let cluster = Cluster::builder(server).primaries(2).replicas(0).start().unwrap();
        assert!(!cluster.can_migrate_atomically().unwrap());
        let error = cluster.migrate_slot_atomically(0, &cluster.nodes()[1]).unwrap_err();
        assert!(matches!(&error, Error::Unsupported(what) if what.contains(&server.to_string())), "{error}");
    }
}
