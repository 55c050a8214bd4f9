//! Tests Sentinels, and the primary that they name.

use std::time::Instant;

use cluster_testenv::{Client, Error, Node, Sentinels, Server};

const SUPPORTED: [Server; 2] = [Server::Redis82, Server::Valkey81];

/// Returns the port of the primary by the answer of one Sentinel, as a client asks for it.
fn primary_port(sentinel: &Node, sentinels: &Sentinels) -> u16 {
    let answer = sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", sentinels.primary_name()]).unwrap();
    let [ip, port] = answer.array().unwrap() else { panic!("{answer:?}") };
    assert_eq!(ip.text().unwrap(), "127.0.0.1");
    port.text().unwrap().parse().unwrap()
}

fn assert_all_call_it_primary(sentinels: &Sentinels, primary: &Node) {
    assert_eq!(sentinels.primary().port(), primary.port());
    for sentinel in sentinels.sentinels() {
        assert_eq!(primary_port(sentinel, sentinels), primary.port());
    }
}

#[test]
fn all_sentinels_name_a_primary_with_two_replicas() {
    for server in SUPPORTED {
        let started = Instant::now();
        let sentinels = Sentinels::start(server).unwrap();
        println!("{server}: ready after {} ms", started.elapsed().as_millis());
        assert_eq!((sentinels.urls().len(), sentinels.nodes().len(), sentinels.replicas().len()), (3, 3, 2));
        let primary = &sentinels.nodes()[0];
        assert_all_call_it_primary(&sentinels, primary);
        let mut client = primary.client().unwrap();
        let replies = client.pipeline(&[vec!["SET", "a", "1"], vec!["WAIT", "2", "5000"]]).unwrap();
        assert_eq!(replies[1].int(), Some(2));
        for replica in sentinels.replicas() {
            assert_eq!(replica.command(&["GET", "a"]).unwrap().bytes(), Some(&b"1"[..]));
            assert!(replica.command(&["SET", "a", "2"]).unwrap().error().unwrap().starts_with("READONLY"));
        }
    }
}

#[test]
fn ordered_failover_names_another_primary_everywhere() {
    for server in SUPPORTED {
        let sentinels = Sentinels::start(server).unwrap();
        let old = sentinels.primary();
        // The second round tests a failover after a failover.
        for _ in 0..2 {
            let started = Instant::now();
            let before = sentinels.primary();
            let new = sentinels.failover().unwrap();
            println!("{server}: failover took {} ms", started.elapsed().as_millis());
            assert_ne!(new.port(), before.port());
            assert!(new.command(&["SET", "a", "1"]).unwrap().is_ok());
            assert_all_call_it_primary(&sentinels, new);
            sentinels.wait_ok().unwrap();
        }
        assert_eq!(sentinels.nodes()[0].port(), old.port(), "the order of the nodes stays");
    }
}

#[test]
fn dead_and_paused_primaries_are_replaced_and_come_back_as_replicas() {
    for server in SUPPORTED {
        for (hurt, mend) in [
            (Node::kill as fn(&Node), (|node| node.restart().unwrap()) as fn(&Node)),
            (Node::pause as fn(&Node), Node::resume as fn(&Node)),
        ] {
            let sentinels = Sentinels::start(server).unwrap();
            let old = sentinels.primary();
            let started = Instant::now();
            hurt(old);
            assert_eq!(sentinels.primary().port(), old.port());
            let new = sentinels.wait_for_failover_from(old).unwrap();
            println!("{server}: replaced after {} ms", started.elapsed().as_millis());
            assert_all_call_it_primary(&sentinels, new);
            assert!(new.command(&["SET", "a", "1"]).unwrap().is_ok());
            mend(old);
            sentinels.wait_ok().unwrap();
            assert!(old.command(&["SET", "a", "2"]).unwrap().error().unwrap().starts_with("READONLY"));
        }
    }
}

#[test]
fn password_is_for_the_servers_and_known_to_the_sentinels() {
    for server in SUPPORTED {
        let sentinels = Sentinels::builder(server).password("a \"b\\ c").start().unwrap();
        let primary = sentinels.primary();
        let stranger = Client::connect(primary.addr()).unwrap().command(&["GET", "a"]).unwrap();
        assert!(stranger.error().unwrap().starts_with("NOAUTH"));
        let new = sentinels.failover().unwrap();
        assert!(new.command(&["SET", "a", "1"]).unwrap().is_ok());
        sentinels.wait_ok().unwrap();
    }
}

#[test]
fn sentinel_that_dies_and_comes_back_knows_the_primary() {
    let sentinels = Sentinels::start(Server::Redis70).unwrap();
    let hurt = &sentinels.sentinels()[0];
    hurt.kill();
    let new = sentinels.failover().unwrap();
    hurt.restart().unwrap();
    sentinels.wait_ok().unwrap();
    assert_all_call_it_primary(&sentinels, new);
}

#[test]
fn server_whose_sentinels_are_slow_is_refused() {
    let error = Sentinels::start(Server::Redis62).unwrap_err();
    assert!(matches!(&error, Error::Unsupported(what) if what.contains("redis-6.2")), "{error}");
}
