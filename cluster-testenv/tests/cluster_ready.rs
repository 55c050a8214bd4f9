//! Measures the start of a cluster, and checks that it is complete. This binary has a single test, so that no other one
//! disturbs the measurement.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use cluster_testenv::{Cluster, Node, Reply, Server};

const SLOTS: usize = 16_384;

#[test]
fn cluster_is_ready_within_four_seconds_and_takes_replicated_writes_on_all_slots() {
    for server in Server::ALL {
        let started = Instant::now();
        let cluster = Cluster::start(server).unwrap();
        let took = started.elapsed();
        println!("{server}: ready after {} ms", took.as_millis());
        assert!(took < Duration::from_secs(4), "{server} took {took:?}");

        let mut written = 0;
        for (port, keys) in keys_by_owner(&cluster) {
            let node = cluster.nodes().iter().find(|node| node.port() == port).unwrap();
            written += keys.len();
            write_all(node, &keys);
        }
        assert_eq!(written, SLOTS);
    }
}

/// Returns one key of every slot, grouped by the port of the slot's owner.
fn keys_by_owner(cluster: &Cluster) -> BTreeMap<u16, Vec<String>> {
    const AT_ONCE: usize = 10_000;
    let mut client = cluster.nodes()[0].client().unwrap();
    let mut keys: BTreeMap<i64, String> = BTreeMap::new();
    let mut numbers = 0..;
    while keys.len() < SLOTS {
        let names: Vec<String> = numbers.by_ref().take(AT_ONCE).map(|n: u32| n.to_string()).collect();
        let asked: Vec<_> = names.iter().map(|name| ["CLUSTER", "KEYSLOT", name]).collect();
        let slots = client.pipeline(&asked).unwrap();
        keys.extend(slots.iter().map(|slot| slot.int().unwrap()).zip(names));
    }
    let mut by_owner: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    for primary in cluster.primaries() {
        for range in owned_ranges(primary) {
            let keys = range.map(|slot| keys[&slot].clone());
            by_owner.entry(primary.port()).or_default().extend(keys);
        }
    }
    by_owner
}

/// Returns the slots of a primary by the server's own answer, not by the library's computation.
fn owned_ranges(primary: &Node) -> Vec<std::ops::RangeInclusive<i64>> {
    let reply = primary.command(&["CLUSTER", "SLOTS"]).unwrap();
    let ranges = reply.array().unwrap().iter().map(|range| range.array().unwrap());
    let own = ranges.filter(|range| range[2].array().unwrap()[1] == Reply::Int(primary.port().into()));
    own.map(|range| range[0].int().unwrap()..=range[1].int().unwrap()).collect()
}

fn write_all(primary: &Node, keys: &[String]) {
    let mut client = primary.client().unwrap();
    let writes: Vec<_> = keys.iter().map(|key| ["SET", key, "value"]).collect();
    for (reply, key) in client.pipeline(&writes).unwrap().iter().zip(keys) {
        assert!(reply.is_ok(), "{key}: {reply:?}");
    }
    assert_eq!(client.command(&["WAIT", "1", "4000"]).unwrap(), Reply::Int(1));
}
