//! Tests the effects of each fault by command, and the clients that it concerns.

use std::time::{Duration, Instant};

use cluster_testenv::{Client, Cluster, Node, Reply, Server, wait_for};

const BOUND: Duration = Duration::from_secs(10);

fn is_closed(client: &mut Client) -> bool {
    client.receive().is_err_and(|error| !error.is_timeout())
}

fn each_server() -> impl Iterator<Item = Node> {
    Server::ALL.into_iter().map(|server| Node::start(server).unwrap())
}

#[test]
fn flushed_scripts_and_keys_are_gone() {
    for node in each_server() {
        let digest = node.command(&["SCRIPT", "LOAD", "return 1"]).unwrap().text().unwrap().into_owned();
        let call = ["EVALSHA", &digest, "0"];
        assert_eq!(node.command(&call).unwrap(), Reply::Int(1));
        node.script_flush().unwrap();
        assert!(node.command(&call).unwrap().error().unwrap().starts_with("NOSCRIPT"));

        assert!(node.command(&["SET", "a", "1"]).unwrap().is_ok());
        node.flush_all().unwrap();
        assert_eq!(node.command(&["DBSIZE"]).unwrap(), Reply::Int(0));
    }
}

#[test]
fn clients_and_subscribers_are_killed_apart() {
    for node in each_server() {
        let (mut client, mut subscriber) = (node.client().unwrap(), node.client().unwrap());
        client.command(&["PING"]).unwrap();
        subscriber.command(&["SUBSCRIBE", "news"]).unwrap();
        assert_eq!(node.kill_subscribers().unwrap(), 1);
        assert!(is_closed(&mut subscriber));
        assert_eq!(client.command(&["PING"]).unwrap().text().unwrap(), "PONG");

        let mut subscriber = node.client().unwrap();
        subscriber.command(&["SUBSCRIBE", "news"]).unwrap();
        assert!(node.kill_clients().unwrap() >= 1);
        assert!(is_closed(&mut client));
        assert_eq!(node.command(&["PUBLISH", "news", "text"]).unwrap(), Reply::Int(1));
    }
}

#[test]
fn paused_clients_are_answered_when_the_pause_is_over() {
    const PAUSE: Duration = Duration::from_millis(300);
    for node in each_server() {
        let started = Instant::now();
        node.pause_clients(PAUSE).unwrap();
        assert_eq!(node.command(&["INCR", "a"]).unwrap(), Reply::Int(1));
        // The server counts from its last look at the clock.
        assert!(started.elapsed() >= PAUSE / 2, "{:?}", started.elapsed());
    }
}

#[test]
fn paused_writes_wait_and_reads_do_not() {
    for node in each_server() {
        let mut client = node.client().unwrap();
        node.pause_writes(BOUND * 10).unwrap();
        client.send(&["INCR", "a"]).unwrap();
        assert!(node.command(&["GET", "a"]).unwrap().is_nil());
        node.unpause_writes().unwrap();
        assert_eq!(client.receive().unwrap(), Reply::Int(1));
    }
}

#[test]
fn server_at_its_memory_limit_refuses_to_grow_until_the_limit_is_lifted() {
    for node in each_server() {
        assert!(node.command(&["SET", "a", "1"]).unwrap().is_ok());
        node.set_memory_limit(1).unwrap();
        assert!(node.command(&["SET", "b", "1"]).unwrap().error().unwrap().starts_with("OOM"));
        assert_eq!(node.command(&["DEL", "a"]).unwrap(), Reply::Int(1), "nothing was evicted, and deleting works");
        node.set_memory_limit(0).unwrap();
        assert!(node.command(&["SET", "b", "1"]).unwrap().is_ok());
    }
}

#[test]
fn user_may_do_what_its_rules_say() {
    for node in each_server() {
        node.acl_set_user("reader", &["on", ">word", "~mine:*", "+get"]).unwrap();
        let mut client = node.client().unwrap();
        assert!(client.command(&["AUTH", "reader", "wrong"]).unwrap().error().unwrap().starts_with("WRONGPASS"));
        assert!(client.command(&["AUTH", "reader", "word"]).unwrap().is_ok());
        assert!(client.command(&["GET", "mine:a"]).unwrap().is_nil());
        for forbidden in [&["GET", "yours"][..], &["SET", "mine:a", "1"]] {
            assert!(client.command(forbidden).unwrap().error().unwrap().starts_with("NOPERM"));
        }
    }
}

#[test]
fn password_is_wanted_and_in_the_url() {
    for server in Server::ALL {
        let node = Node::builder(server).password("a/b c").start().unwrap();
        assert_eq!(node.url(), format!("redis://:a%2Fb%20c@{}", node.addr()));
        assert!(node.command(&["SET", "a", "1"]).unwrap().is_ok());
        let mut stranger = Client::connect(node.addr()).unwrap();
        assert!(stranger.command(&["GET", "a"]).unwrap().error().unwrap().starts_with("NOAUTH"));
        node.restart().unwrap();
        assert!(node.command(&["GET", "a"]).unwrap().is_nil());
    }
}

#[test]
fn new_clients_are_refused_while_it_is_wanted_and_old_ones_stay() {
    for node in each_server() {
        let mut old = node.client().unwrap();
        old.command(&["PING"]).unwrap();
        let refused = node.refuse_clients().unwrap();
        let mut new = node.client().unwrap();
        assert!(new.receive().unwrap().error().unwrap().contains("max number of clients"));
        assert!(old.command(&["SET", "a", "1"]).unwrap().is_ok());
        drop(refused);
        assert!(node.command(&["SET", "a", "1"]).unwrap().is_ok());
    }
}

#[test]
fn cluster_with_a_password_forgets_kills_and_admits_on_all_its_nodes() {
    for server in [Server::Redis70, Server::Valkey91] {
        let cluster = Cluster::builder(server).password("secret").node_timeout(BOUND).start().unwrap();
        let first = &cluster.nodes()[0];
        let stranger = Client::connect(first.addr()).unwrap().command(&["GET", "a"]).unwrap();
        assert!(stranger.error().unwrap().starts_with("NOAUTH"));

        let load = |node: &Node| node.command(&["SCRIPT", "LOAD", "return 1"]).unwrap();
        let digest = load(first).text().unwrap().into_owned();
        cluster.nodes().iter().for_each(|node| drop(load(node)));
        cluster.script_flush().unwrap();
        for node in cluster.nodes() {
            let exists = node.command(&["SCRIPT", "EXISTS", &digest]).unwrap();
            assert_eq!(exists, Reply::Array(vec![Reply::Int(0)]));
        }

        for (index, primary) in cluster.primaries().into_iter().enumerate() {
            let key = (0..).map(|n| n.to_string()).find(|key| {
                let slot = cluster.keyslot(key);
                cluster.primary_of_slot(slot).port() == primary.port()
            });
            assert!(primary.command(&["SET", &key.unwrap(), "1"]).unwrap().is_ok(), "{index}");
        }
        cluster.flush_all().unwrap();
        for node in cluster.nodes() {
            wait_for("replicas being empty too", BOUND, || {
                (node.command(&["DBSIZE"]).unwrap() == Reply::Int(0)).then_some(())
            })
            .unwrap();
        }

        let connect = |node: &Node| {
            let mut client = node.client().unwrap();
            client.command(&["SUBSCRIBE", "news"]).unwrap();
            client
        };
        let mut subscribers: Vec<Client> = cluster.nodes().iter().map(connect).collect();
        assert_eq!(cluster.kill_subscribers().unwrap(), 6);
        assert!(subscribers.iter_mut().all(is_closed));
        let mut clients: Vec<Client> = cluster.nodes().iter().map(|node| node.client().unwrap()).collect();
        assert!(cluster.kill_clients().unwrap() >= 6);
        assert!(clients.iter_mut().all(is_closed));
        cluster.wait_ok().unwrap();

        cluster.acl_set_user("reader", &["on", "nopass", "~*", "+get"]).unwrap();
        for node in cluster.nodes() {
            let mut client = Client::connect(node.addr()).unwrap();
            assert!(client.command(&["AUTH", "reader", "any"]).unwrap().is_ok());
        }
    }
}
