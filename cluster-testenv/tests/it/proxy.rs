//! Tests the promises of a proxy, on every server where they may differ. No test waits for time to pass, except where
//! time is the promise.

use std::{
    io,
    net::TcpStream,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use cluster_testenv::{Client, Cluster, Error, Matcher, Node, Proxy, Reply, Server, wait_for};

const BOUND: Duration = Duration::from_secs(10);
/// Time without bytes that counts as silence. Only a faulty proxy could make a test depend on its length.
const SILENCE: Duration = Duration::from_millis(100);

fn proxied() -> Node {
    Node::builder(Server::Redis70).proxied().start().unwrap()
}

/// Connects a client through the proxy.
fn client(node: &Node) -> Client {
    Client::connect_within(node.proxy().addr(), BOUND).unwrap()
}

fn assert_silent(client: &mut Client) {
    client.set_timeout(SILENCE).unwrap();
    let error = client.receive().unwrap_err();
    assert!(error.is_timeout(), "{error}");
    client.set_timeout(BOUND).unwrap();
}

fn assert_reset(outcome: Result<Reply, Error>) {
    let error = outcome.unwrap_err();
    let is_reset = matches!(&error, Error::Io { source, .. } if source.kind() == io::ErrorKind::ConnectionReset);
    assert!(is_reset, "{error:?}");
}

#[test]
fn everything_passes_unharmed() {
    for server in Server::ALL {
        let node = Node::builder(server).proxied().start().unwrap();
        assert_eq!(node.url(), node.proxy().url());
        assert_ne!(node.port(), node.proxy().port());
        let mut client = client(&node);
        // This value is larger than all buffers on the way.
        let large = vec![b'\r'; 20 << 20];
        assert!(client.command(&[&b"SET"[..], b"large", &large]).unwrap().is_ok());
        assert_eq!(client.command(&["GET", "large"]).unwrap().bytes(), Some(&large[..]));
        let commands: Vec<_> = (0..10_000).map(|_| ["INCR", "counter"]).collect();
        let replies = client.pipeline(&commands).unwrap();
        assert!(replies.into_iter().eq((1..=10_000).map(Reply::Int)));
    }
}

#[test]
fn delay_makes_each_round_trip_longer_and_keeps_pipelines_whole() {
    let node = proxied();
    let mut client = client(&node);
    node.proxy().delay(Duration::from_millis(50));
    let started = Instant::now();
    let replies = client.pipeline(&[["INCR", "a"]; 100]).unwrap();
    let took = started.elapsed();
    assert!(replies.into_iter().eq((1..=100).map(Reply::Int)));
    assert!(took >= Duration::from_millis(100), "{took:?}");
    assert!(took < Duration::from_secs(5), "a delay each is not a delay of all: {took:?}");
    node.proxy().heal();
    assert_eq!(client.command(&["INCR", "a"]).unwrap(), Reply::Int(101));
}

#[test]
fn freeze_delivers_late() {
    let node = proxied();
    let mut old = client(&node);
    old.command(&["PING"]).unwrap();
    node.proxy().freeze();
    old.send(&["INCR", "a"]).unwrap();
    let mut new = client(&node);
    new.send(&["INCR", "a"]).unwrap();
    node.proxy().wait_for_requests("a", 2, BOUND).unwrap();
    assert_silent(&mut old);
    assert!(node.command(&["GET", "a"]).unwrap().is_nil());
    node.proxy().heal();
    let mut replies = [old.receive().unwrap().int(), new.receive().unwrap().int()];
    replies.sort_unstable();
    assert_eq!(replies, [Some(1), Some(2)]);
}

#[test]
fn black_hole_swallows_silently_and_new_connections_work_when_it_is_healed() {
    let node = proxied();
    let mut old = client(&node);
    old.command(&["PING"]).unwrap();
    node.proxy().black_hole();
    let mut new = client(&node);
    for client in [&mut old, &mut new] {
        client.send(&["INCR", "a"]).unwrap();
        assert_silent(client);
    }
    node.proxy().heal();
    for client in [&mut old, &mut new] {
        client.send(&["INCR", "a"]).unwrap();
        assert_silent(client);
    }
    assert_eq!(client(&node).command(&["INCR", "a"]).unwrap(), Reply::Int(1), "none of the others arrived");
}

#[test]
fn black_hole_hides_the_servers_end_until_it_is_healed() {
    let node = proxied();
    let mut client = client(&node);
    client.command(&["PING"]).unwrap();
    node.proxy().black_hole();
    node.kill();
    assert_silent(&mut client);
    node.proxy().heal();
    assert_reset(client.receive());
}

#[test]
fn cut_resets_all_connections_and_lets_new_ones_in() {
    let node = proxied();
    let mut clients = [client(&node), client(&node)];
    // One of the clients has never sent a byte.
    clients[0].command(&["PING"]).unwrap();
    node.proxy().cut();
    assert_eq!(node.proxy().connections(), 0);
    for client in &mut clients {
        assert_reset(client.receive());
    }
    assert!(client(&node).command(&["SET", "a", "1"]).unwrap().is_ok());
}

#[test]
fn refusal_is_of_new_connections_only() {
    let node = proxied();
    let mut old = client(&node);
    node.proxy().refuse();
    let refused = || TcpStream::connect(node.proxy().addr()).unwrap_err().kind();
    assert_eq!(refused(), io::ErrorKind::ConnectionRefused);
    assert_eq!(old.command(&["INCR", "a"]).unwrap(), Reply::Int(1));
    // The port stays the proxy's even through a restart of the server.
    node.restart().unwrap();
    assert_eq!(refused(), io::ErrorKind::ConnectionRefused);
    node.proxy().heal();
    assert_eq!(client(&node).command(&["INCR", "a"]).unwrap(), Reply::Int(1));
}

#[test]
fn dead_server_is_dead_behind_its_proxy() {
    let node = proxied();
    let mut client = client(&node);
    client.command(&["PING"]).unwrap();
    node.kill();
    assert!(client.command(&["PING"]).is_err());
    let refused = TcpStream::connect(node.proxy().addr()).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    node.restart().unwrap();
    assert!(Client::connect(node.proxy().addr()).unwrap().command(&["SET", "a", "1"]).unwrap().is_ok());
}

#[test]
fn request_is_applied_when_it_is_cut_after_that() {
    for server in Server::ALL {
        let node = Node::builder(server).proxied().start().unwrap();
        let (mut hurt, mut other) = (client(&node), client(&node));
        let fault = node.proxy().cut_after_apply(Matcher::command("incr").and("the id"));
        assert_eq!(other.command(&["INCR", "another id"]).unwrap(), Reply::Int(1));
        // The replies before the cut one arrive.
        hurt.send(&["GET", "another id"]).unwrap();
        hurt.send(&["INCR", "the id"]).unwrap();
        assert_eq!(hurt.receive().unwrap().bytes(), Some(&b"1"[..]));
        assert_reset(hurt.receive());
        fault.wait_applied(BOUND).unwrap();
        assert_eq!(node.command(&["GET", "the id"]).unwrap().bytes(), Some(&b"1"[..]));
        // The fault concerned only the next request, and only its connection.
        assert_eq!(other.command(&["INCR", "the id"]).unwrap(), Reply::Int(2));
    }
}

#[test]
fn cancelled_fault_does_not_happen() {
    let node = proxied();
    node.proxy().cut_after_apply("a").cancel();
    assert_eq!(client(&node).command(&["INCR", "a"]).unwrap(), Reply::Int(1));
}

#[test]
fn held_reply_of_an_applied_request_comes_when_it_is_released() {
    for server in Server::ALL {
        let node = Node::builder(server).proxied().start().unwrap();
        let (mut hurt, mut other) = (client(&node), client(&node));
        let held = node.proxy().hold_reply("the id");
        assert!(held.wait_seen(Duration::from_millis(1)).is_err());
        for name in ["before", "the id", "after"] {
            hurt.send(&["INCR", name]).unwrap();
        }
        held.wait_applied(BOUND).unwrap();
        assert_eq!(node.command(&["GET", "the id"]).unwrap().bytes(), Some(&b"1"[..]));
        assert_eq!(hurt.receive().unwrap(), Reply::Int(1));
        // Later replies on the same connection wait too, but not those on others.
        assert_silent(&mut hurt);
        assert_eq!(other.command(&["INCR", "the id"]).unwrap(), Reply::Int(2));
        held.release();
        assert_eq!([hurt.receive().unwrap(), hurt.receive().unwrap()], [Reply::Int(1), Reply::Int(1)]);
    }
}

#[test]
fn held_reply_is_released_when_its_handle_is_dropped_even_before_it_came() {
    let node = proxied();
    let mut client = client(&node);
    drop(node.proxy().hold_reply("a"));
    assert_eq!(client.command(&["INCR", "a"]).unwrap(), Reply::Int(1));

    let held = node.proxy().hold_reply("a");
    node.pause();
    client.send(&["INCR", "a"]).unwrap();
    held.wait_seen(BOUND).unwrap();
    drop(held);
    node.resume();
    assert_eq!(client.receive().unwrap(), Reply::Int(2));
}

#[test]
fn dropped_reply_shifts_those_that_follow() {
    let node = proxied();
    let mut client = client(&node);
    let held = node.proxy().hold_reply("a");
    client.send(&["INCR", "a"]).unwrap();
    client.send(&["ECHO", "next"]).unwrap();
    held.wait_applied(BOUND).unwrap();
    held.drop_reply();
    assert_eq!(client.receive().unwrap().text().unwrap(), "next");

    // The result is the same when the test drops the reply before it came.
    let held = node.proxy().hold_reply("a");
    node.pause();
    client.send(&["INCR", "a"]).unwrap();
    held.wait_seen(BOUND).unwrap();
    held.drop_reply();
    node.resume();
    assert_eq!(client.command(&["ECHO", "next"]).unwrap().text().unwrap(), "next");
    assert_eq!(node.command(&["GET", "a"]).unwrap().bytes(), Some(&b"2"[..]));
}

#[test]
fn held_reply_can_be_cut() {
    let node = proxied();
    let (mut hurt, mut other) = (client(&node), client(&node));
    let held = node.proxy().hold_reply("a");
    hurt.send(&["INCR", "a"]).unwrap();
    held.wait_applied(BOUND).unwrap();
    held.cut();
    assert_reset(hurt.receive());
    assert_eq!(other.command(&["INCR", "a"]).unwrap(), Reply::Int(2));
}

#[test]
fn reply_is_awaited_even_when_the_client_has_gone() {
    for server in Server::ALL {
        let node = Node::builder(server).proxied().start().unwrap();
        let held = node.proxy().hold_reply("a");
        let mut client = client(&node);
        node.pause();
        client.send(&["INCR", "a"]).unwrap();
        held.wait_seen(BOUND).unwrap();
        drop(client);
        node.resume();
        held.wait_applied(BOUND).unwrap();
        assert_eq!(node.command(&["GET", "a"]).unwrap().bytes(), Some(&b"1"[..]));
        held.release();
        wait_for("the connection ending", BOUND, || (node.proxy().connections() == 0).then_some(())).unwrap();
    }
}

#[test]
fn held_request_is_applied_when_it_is_released_and_those_behind_it_too() {
    let node = proxied();
    let mut client = client(&node);
    let held = node.proxy().hold_request("the id");
    for name in ["before", "the id", "after"] {
        client.send(&["INCR", name]).unwrap();
    }
    held.wait_held(BOUND).unwrap();
    assert_eq!(client.receive().unwrap(), Reply::Int(1));
    assert_silent(&mut client);
    assert_eq!(node.command(&["EXISTS", "the id", "after"]).unwrap(), Reply::Int(0));
    held.release_and_wait(BOUND).unwrap();
    assert_eq!(node.command(&["EXISTS", "the id"]).unwrap(), Reply::Int(1));
    assert_eq!([client.receive().unwrap(), client.receive().unwrap()], [Reply::Int(1), Reply::Int(1)]);
}

#[test]
fn held_request_of_a_client_that_has_gone_still_arrives() {
    for server in Server::ALL {
        let node = Node::builder(server).proxied().start().unwrap();
        let held = node.proxy().hold_request("a");
        let mut client = client(&node);
        client.send(&["INCR", "a"]).unwrap();
        held.wait_held(BOUND).unwrap();
        drop(client);
        held.release_and_wait(BOUND).unwrap();
        assert_eq!(node.command(&["GET", "a"]).unwrap().bytes(), Some(&b"1"[..]));
    }
}

#[test]
fn held_request_that_is_cut_never_arrives() {
    let node = proxied();
    let mut client = client(&node);
    let held = node.proxy().hold_request("a");
    client.send(&["INCR", "a"]).unwrap();
    held.wait_held(BOUND).unwrap();
    held.cut();
    assert_reset(client.receive());
    assert!(node.command(&["GET", "a"]).unwrap().is_nil());
}

#[test]
fn duplicated_request_is_applied_twice_and_answered_once() {
    for server in Server::ALL {
        let node = Node::builder(server).proxied().start().unwrap();
        let mut client = client(&node);
        let fault = node.proxy().duplicate_request("a");
        assert_eq!(client.command(&["INCR", "a"]).unwrap(), Reply::Int(1));
        fault.wait_applied(BOUND).unwrap();
        assert_eq!(client.command(&["INCR", "a"]).unwrap(), Reply::Int(3));
        assert_eq!(node.proxy().requests_seen("a"), 2, "what the proxy sends is not what it has seen");
    }
}

#[test]
fn requests_are_counted_by_what_they_contain() {
    let node = proxied();
    let mut client = client(&node);
    client.pipeline(&[vec!["SET", "a", "1"], vec!["GET", "a"], vec!["get", "b"]]).unwrap();
    let proxy = node.proxy();
    let counts = [Matcher::any(), Matcher::command("GET"), "a".into(), Matcher::command("GET").and("a")];
    assert_eq!(counts.map(|matcher| proxy.requests_seen(matcher)), [3, 2, 2, 1]);
    let by_arity = Matcher::new(|request| request.args().len() == 3 && request.name() == "SET");
    assert_eq!(proxy.requests_seen(by_arity), 1);
    proxy.forget_requests();
    assert_eq!(proxy.requests_seen(Matcher::any()), 0);
}

#[test]
fn oldest_fault_for_a_request_takes_it() {
    let node = proxied();
    let mut client = client(&node);
    let first = node.proxy().hold_reply("a");
    let second = node.proxy().hold_reply("a");
    client.send(&["INCR", "a"]).unwrap();
    first.wait_applied(BOUND).unwrap();
    assert!(second.wait_seen(Duration::from_millis(1)).is_err());
    client.send(&["INCR", "a"]).unwrap();
    second.wait_applied(BOUND).unwrap();
    // The second one is behind the first, which is still held.
    second.release();
    assert_silent(&mut client);
    first.release();
    assert_eq!([client.receive().unwrap(), client.receive().unwrap()], [Reply::Int(1), Reply::Int(2)]);
}

#[test]
fn messages_of_a_subscription_are_not_taken_for_replies() {
    for server in Server::ALL {
        let node = Node::builder(server).proxied().start().unwrap();
        let mut client = client(&node);
        client.command(&["SUBSCRIBE", "news"]).unwrap();
        let held = node.proxy().hold_reply(Matcher::command("ping"));
        // The server sends one message before the request and one after it. The reply comes between or before them, but
        // is none of them.
        node.command(&["PUBLISH", "news", "1"]).unwrap();
        client.send(&["PING", "an answer"]).unwrap();
        held.wait_applied(BOUND).unwrap();
        node.command(&["PUBLISH", "news", "2"]).unwrap();
        let text = |reply: Reply, index: usize| reply.array().unwrap()[index].text().unwrap().into_owned();
        assert_eq!(text(client.receive().unwrap(), 2), "1");
        assert_silent(&mut client);
        held.release();
        assert_eq!(text(client.receive().unwrap(), 1), "an answer");
        assert_eq!(text(client.receive().unwrap(), 2), "2");
    }
}

#[test]
fn servers_words_before_any_request_reach_the_client() {
    let node = Node::builder(Server::Redis70).proxied().arg("--maxclients", "1").start().unwrap();
    // Connections of the start may be counted for a while, and then this client is refused.
    let _first = wait_for("a client that is served", BOUND, || {
        let mut first = node.client().ok()?;
        first.command(&["PING"]).ok()?.error().is_none().then_some(first)
    })
    .unwrap();
    let refused = client(&node).receive().unwrap();
    assert!(refused.error().unwrap().contains("max number of clients"), "{refused:?}");
}

#[test]
fn proxy_can_stand_before_a_server_that_is_not_ours_and_ends_when_it_is_dropped() {
    let node = Node::start(Server::Redis70).unwrap();
    let proxy = Proxy::before(node.addr()).unwrap();
    let mut client = Client::connect(proxy.addr()).unwrap();
    assert!(client.command(&["SET", "a", "1"]).unwrap().is_ok());
    let (addr, held) = (proxy.addr(), proxy.hold_reply("a"));
    drop(proxy);
    assert!(client.command(&["GET", "a"]).is_err());
    assert!(Client::connect(addr).is_err());
    // A handle may outlive its proxy.
    held.release();
}

#[test]
fn proxy_serves_many_connections_at_once() {
    let node = proxied();
    let (failed, failures) = mpsc::channel();
    thread::scope(|scope| {
        for number in 0..32 {
            let (node, failed) = (&node, failed.clone());
            scope.spawn(move || {
                let (mut client, key) = (client(node), number.to_string());
                for expected in 1..=200 {
                    if client.command(&["INCR", &key]).unwrap() != Reply::Int(expected) {
                        failed.send(key.clone()).unwrap();
                    }
                }
            });
        }
    });
    drop(failed);
    assert_eq!(failures.iter().collect::<Vec<_>>(), Vec::<String>::new());
    wait_for("all connections ending", BOUND, || (node.proxy().connections() == 0).then_some(())).unwrap();
}

#[test]
fn clients_and_replicas_of_a_cluster_are_led_through_its_proxies() {
    for server in Server::ALL {
        let cluster = Cluster::builder(server).proxied().node_timeout(BOUND).start().unwrap();
        let slot = cluster.keyslot("a");
        let primary = cluster.primary_of_slot(slot);
        let replica = cluster.replicas_of(primary)[0];
        let other = cluster.primaries().into_iter().find(|node| node.port() != primary.port()).unwrap();
        let moved = other.command(&["GET", "a"]).unwrap();
        assert_eq!(moved.error().unwrap(), format!("MOVED {slot} {}", primary.proxy().addr()));
        assert!(cluster.urls().contains(&primary.proxy().url()));

        let slots = client(other).command(&["CLUSTER", "SLOTS"]).unwrap();
        let port = |node: &Reply| node.array().unwrap()[1].int().unwrap();
        let listed = slots.array().unwrap().iter().flat_map(|range| range.array().unwrap()[2..].iter().map(port));
        let mut listed: Vec<i64> = listed.collect();
        let mut proxies: Vec<i64> = cluster.nodes().iter().map(|node| node.proxy().port().into()).collect();
        listed.sort_unstable();
        proxies.sort_unstable();
        assert_eq!(listed, proxies);

        // The replica's link was there before any client's connection. So writes that the proxy stops do not arrive at
        // the replica.
        primary.proxy().freeze();
        assert!(primary.command(&["SET", "a", "1"]).unwrap().is_ok());
        let acknowledged = |timeout_ms| {
            let mut client = primary.client().unwrap();
            client.pipeline(&[vec!["SET", "a", "2"], vec!["WAIT", "1", timeout_ms]]).unwrap()[1].clone()
        };
        assert_eq!(acknowledged("100"), Reply::Int(0));
        primary.proxy().heal();
        assert_eq!(acknowledged("5000"), Reply::Int(1));
        primary.proxy().cut();
        cluster.wait_ok().unwrap();
        let mut reader = replica.client().unwrap();
        reader.command(&["READONLY"]).unwrap();
        assert_eq!(reader.command(&["GET", "a"]).unwrap().bytes(), Some(&b"2"[..]));
    }
}

#[test]
fn replaced_requests_get_the_reply_to_the_other_command() {
    let node = proxied();
    let mut client = client(&node);
    node.proxy().replace_requests(Matcher::command("GET").and("secret"), &["NONE", "of", "these"]);
    let commands = [["SET", "secret", "1"].as_slice(), &["GET", "secret"], &["GET", "other"], &["GET", "secret"]];
    let replies = client.pipeline(&commands).unwrap();
    assert!(replies[0].is_ok() && replies[2].is_nil(), "{replies:?}");
    for reply in [&replies[1], &replies[3]] {
        assert!(matches!(reply, Reply::Error(text) if text.contains("unknown command 'NONE'")), "{replies:?}");
    }
    assert_eq!(node.proxy().requests_seen(Matcher::command("GET")), 3);
    assert_eq!(node.proxy().requests_seen(Matcher::command("NONE")), 2);
}
