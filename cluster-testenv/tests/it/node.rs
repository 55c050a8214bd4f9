//! Tests the promises about a single node, on every server.

use std::{sync::mpsc, thread, time::Duration};

use cluster_testenv::{Client, Error, Node, Reply, Server, wait_for};

const BOUND: Duration = Duration::from_secs(10);

fn info(node: &Node, section: &str) -> String {
    let reply = node.command(&["INFO", section]).unwrap();
    reply.text().unwrap().into_owned()
}

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
        let info = info(&node, "server");
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
fn arguments_reach_the_server() {
    for server in Server::ALL {
        let node = Node::builder(server).arg("--maxmemory", "7mb").arg("--requirepass", "secret word").start().unwrap();
        let mut client = node.client().unwrap();
        assert!(client.command(&["PING"]).unwrap().error().unwrap().starts_with("NOAUTH"));
        assert!(client.command(&["AUTH", "secret word"]).unwrap().is_ok());
        let answer = client.command(&["CONFIG", "GET", "maxmemory"]).unwrap();
        assert_eq!(answer.array().unwrap()[1].bytes(), Some(&b"7340032"[..]));
    }
}

#[test]
fn refused_argument_is_an_error_with_the_servers_words() {
    for server in Server::ALL {
        let error = Node::builder(server).arg("--no-such-thing", "1").start().unwrap_err();
        assert!(matches!(error, Error::NotStarted { .. }), "{error:?}");
        assert!(error.to_string().contains("no-such-thing"), "{error}");
    }
}

#[test]
fn pipeline_returns_every_reply_in_order() {
    let node = Node::start(Server::Redis70).unwrap();
    let mut client = node.client().unwrap();
    let commands = [vec!["SET", "a", "1"], vec!["INCR", "a"], vec!["NO-SUCH"], vec!["GET", "b"]];
    let replies = client.pipeline(&commands).unwrap();
    assert!(replies[0].is_ok());
    assert_eq!(replies[1], Reply::Int(2));
    assert!(matches!(replies[2].clone().into_result(), Err(Error::Refused(_))));
    assert!(replies[3].is_nil());
}

#[test]
fn killed_node_is_gone_at_once() {
    for server in Server::ALL {
        let node = Node::start(server).unwrap();
        let mut client = node.client().unwrap();
        assert!(node.is_running());
        node.kill();
        node.kill();
        assert!(!node.is_running());
        assert!(client.command(&["PING"]).is_err());
        assert!(node.client().is_err());
        // Neither call is an error, and neither restarts the server.
        node.pause();
        node.resume();
        assert!(!node.is_running());
    }
}

#[test]
fn server_that_ends_by_itself_is_noticed() {
    let node = Node::start(Server::Redis70).unwrap();
    let mut client = node.client().unwrap();
    client.send(&["SHUTDOWN", "NOSAVE"]).unwrap();
    wait_for("the server ending", BOUND, || (!node.is_running()).then_some(())).unwrap();
    node.restart().unwrap();
    assert!(node.is_running());
}

#[test]
fn paused_node_is_silent_and_answers_when_resumed() {
    for server in Server::ALL {
        let node = Node::start(server).unwrap();
        node.pause();
        node.pause();
        assert!(!node.is_running());
        // The kernel accepts the connection and the command, but the server does not answer.
        let timeout = Duration::from_millis(100);
        let mut client = Client::connect_within(node.addr(), timeout).unwrap();
        assert!(client.command(&["INCR", "counter"]).unwrap_err().is_timeout());
        node.resume();
        node.resume();
        assert!(node.is_running());
        client.set_timeout(BOUND).unwrap();
        assert_eq!(client.receive().unwrap(), Reply::Int(1), "the command was queued, not lost");
    }
}

#[test]
fn restarted_node_is_empty_with_the_same_port_and_arguments() {
    for server in Server::ALL {
        let node = Node::builder(server).arg("--maxclients", "77").start().unwrap();
        let (port, first_pid) = (node.port(), node.pid());
        // Restarts from each of the three states: running, paused, killed.
        for hurt in [|_: &Node| (), Node::pause, Node::kill] {
            assert!(node.command(&["SET", "name", "value"]).unwrap().is_ok());
            hurt(&node);
            node.restart().unwrap();
            assert!(node.is_running());
            assert_eq!(node.port(), port);
            assert_eq!(node.command(&["DBSIZE"]).unwrap(), Reply::Int(0));
            assert!(info(&node, "clients").contains("maxclients:77\r\n"));
        }
        assert_ne!(node.pid(), first_pid);
    }
}

#[test]
fn node_with_a_file_comes_back_with_its_data_unless_that_is_removed() {
    for server in [Server::Redis70, Server::Valkey91] {
        let node = Node::builder(server).arg("--appendonly", "yes").arg("--appendfsync", "no").start().unwrap();
        // The server answers `LOADING` at first.
        let keys = || wait_for("its data", BOUND, || node.command(&["DBSIZE"]).ok()?.int()).unwrap();
        assert!(node.command(&["SET", "name", "value"]).unwrap().is_ok());
        node.restart().unwrap();
        assert_eq!(keys(), 1);
        node.restart_empty().unwrap();
        assert_eq!(keys(), 0);
    }
}

#[test]
fn node_can_be_hurt_by_one_thread_while_another_uses_it() {
    let node = Node::start(Server::Redis70).unwrap();
    let (saw_failure, failure) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let fails = || node.command(&["PING"]).is_err().then_some(());
            wait_for("the node failing", BOUND, fails).unwrap();
            saw_failure.send(()).unwrap();
            wait_for("the node answering", BOUND, || node.command(&["PING"]).ok()).unwrap();
        });
        node.kill();
        failure.recv_timeout(BOUND).unwrap();
        node.restart().unwrap();
    });
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
