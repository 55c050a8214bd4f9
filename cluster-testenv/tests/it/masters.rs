//! Tests the promises about independent servers.

use std::collections::BTreeSet;

use cluster_testenv::{Masters, Reply, Server};

#[test]
fn masters_share_nothing() {
    for server in Server::ALL {
        let masters = Masters::start(server, 5).unwrap();
        assert_eq!(masters.nodes().len(), 5);
        assert_eq!(masters.urls().iter().collect::<BTreeSet<_>>().len(), 5);
        for node in masters.nodes() {
            // Each server counts from one, because no server has the key of another.
            assert_eq!(node.command(&["INCR", "counter"]).unwrap(), Reply::Int(1));
        }
    }
}

#[test]
fn one_masters_end_is_not_anothers() {
    let masters = Masters::start(Server::Valkey91, 3).unwrap();
    masters.nodes()[1].kill();
    let running: Vec<bool> = masters.nodes().iter().map(|node| node.is_running()).collect();
    assert_eq!(running, [true, false, true]);
    for node in [&masters.nodes()[0], &masters.nodes()[2]] {
        assert!(node.command(&["SET", "a", "1"]).unwrap().is_ok());
    }
}

#[test]
fn no_masters_are_an_empty_environment() {
    assert!(Masters::start(Server::Redis70, 0).unwrap().nodes().is_empty());
}
