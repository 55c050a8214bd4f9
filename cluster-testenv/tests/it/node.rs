//! Tests the promises about a single node, on every server.

use std::time::Duration;

use cluster_testenv::{Client, Error, Node, Reply, Sentinels, Server, TlsClients, wait_for};

const BOUND: Duration = Duration::from_secs(10);

#[test]
fn node_is_the_server_that_was_asked_for() {
    let versions = [
        (Server::Redis70, "redis_version:7.0."),
        (Server::Redis82, "redis_version:8.2."),
        (Server::Valkey81, "valkey_version:8.1."),
        (Server::Valkey91, "valkey_version:9.1."),
        (Server::Redis62, "redis_version:6.2."),
    ];
    for (server, version) in versions {
        let node = Node::start(server).unwrap();
        assert_eq!(node.server(), server);
        let info = node.command(&["INFO", "server"]).unwrap();
        let info = info.text().unwrap();
        assert!(info.lines().any(|line| line.starts_with(version)), "{info}");
        assert!(info.contains(&format!("process_id:{}\r\n", node.pid())));
        assert!(info.contains(&format!("tcp_port:{}\r\n", node.port())));
        assert_eq!(node.url(), format!("redis://127.0.0.1:{}", node.port()));
    }
}

#[test]
fn server_tells_what_it_can_do() {
    // Atomic migration is younger than the argument, and the argument younger than the command.
    let expected = [
        (Server::Redis62, [false, false, false]),
        (Server::Redis70, [true, false, false]),
        (Server::Redis82, [true, false, false]),
        (Server::Valkey81, [true, true, false]),
        (Server::Valkey91, [true, true, true]),
    ];
    for (server, expected) in expected {
        let node = Node::start(server).unwrap();
        let knows = node.has_command("cluster|setslot").unwrap();
        let takes = knows && node.has_argument("cluster|setslot", "TIMEOUT").unwrap();
        assert_eq!([knows, takes, node.has_command("cluster|migrateslots").unwrap()], expected, "{server}");
        assert!(node.has_command("get").unwrap() && !node.has_command("no-such-command").unwrap());
    }
    let old = Node::start(Server::Redis62).unwrap();
    assert!(matches!(old.has_argument("set", "EX").unwrap_err(), Error::Refused(_)), "it has no COMMAND DOCS");
}

#[test]
fn what_the_server_cannot_do_is_refused_with_the_reason() {
    for server in Server::ALL {
        let error = Node::builder(server).arg("--no-such-thing", "1").start().unwrap_err();
        assert!(matches!(&error, Error::NotStarted { log, .. } if log.contains("no-such-thing")), "{error:?}");
    }
    for server in [Server::Redis82, Server::Valkey81, Server::Valkey91, Server::Redis62] {
        let error = Node::builder(server).tls(TlsClients::Required).start().unwrap_err().to_string();
        assert!(error.contains(&format!("{server} without TLS")), "{error}");
    }
    let slow = Sentinels::start(Server::Redis62).unwrap_err();
    assert!(matches!(&slow, Error::Unsupported(what) if what.contains("redis-6.2")), "{slow}");
}

#[test]
fn sentinels_know_a_password_that_has_to_be_quoted() {
    let sentinels = Sentinels::builder(Server::Redis82).password("a \"b\\ c").start().unwrap();
    let primary = sentinels.primary();
    let stranger = Client::connect(primary.addr()).unwrap().command(&["GET", "a"]).unwrap();
    assert!(stranger.error().unwrap().starts_with("NOAUTH"));
    sentinels.failover().unwrap();
    sentinels.wait_ok().unwrap();
}

#[test]
fn new_clients_are_refused_while_it_is_wanted_and_old_ones_stay() {
    let node = Node::builder(Server::Redis70).proxied().start().unwrap();
    let mut old = node.client().unwrap();
    old.command(&["PING"]).unwrap();
    let refused = node.refuse_clients().unwrap();
    // The server speaks before any request, and the proxy passes it.
    let refusal = Client::connect(node.proxy().addr()).unwrap().receive().unwrap();
    assert!(refusal.error().unwrap().contains("max number of clients"), "{refusal:?}");
    assert!(old.command(&["SET", "a", "1"]).unwrap().is_ok());
    drop(refused);
    assert!(node.command(&["SET", "a", "1"]).unwrap().is_ok());
}

#[test]
fn server_that_ends_by_itself_is_noticed() {
    let node = Node::start(Server::Redis70).unwrap();
    let mut client = node.client().unwrap();
    client.send(&["SHUTDOWN", "NOSAVE"]).unwrap();
    wait_for("the server ending", BOUND, || (!node.is_running()).then_some(())).unwrap();
    node.restart().unwrap();
}

#[test]
fn clock_moves_what_the_server_takes_for_the_time() {
    const HOUR: Duration = Duration::from_secs(3600);
    let time = |node: &Node| -> Duration {
        let reply = node.command(&["EVAL", "return redis.call('TIME')", "0"]).unwrap();
        let number = |part: &Reply| part.text().unwrap().parse::<u64>().unwrap();
        let [seconds, micros] = reply.array().unwrap() else { panic!("{reply:?}") };
        Duration::from_secs(number(seconds)) + Duration::from_micros(number(micros))
    };
    for server in Server::ALL {
        let (node, other) = (Node::builder(server).clock().start().unwrap(), Node::start(server).unwrap());
        let set = |name| node.command(&["SET", name, "value", "EX", "1800"]).unwrap();
        let exists = |name| node.command(&["EXISTS", name]).unwrap() == Reply::Int(1);
        // Both servers share the machine's clock, so its changes do not matter. A command takes less than a minute.
        let ahead_by = |ahead: Duration| {
            let (before, now, after) = (time(&other), time(&node), time(&other));
            assert!(before + ahead <= now && now <= after + ahead, "{server}: {before:?} {now:?} {after:?}");
        };
        ahead_by(Duration::ZERO);
        set("old");
        node.clock().step_forward(HOUR);
        ahead_by(HOUR);
        assert!(!exists("old"), "{server}");
        set("new");
        node.clock().step_back(HOUR / 2);
        ahead_by(HOUR / 2);
        node.restart().unwrap();
        ahead_by(HOUR / 2);
        set("new");
        node.clock().set_right();
        ahead_by(Duration::ZERO);
        assert!(exists("new"), "{server}");
        node.clock().step_back(HOUR);
        assert!(time(&node) + HOUR / 2 < time(&other), "{server}");
    }
}
