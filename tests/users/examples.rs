//! Tests that run the examples on real servers and check their output. `cargo test` builds them first. Before `--test
//! users` alone, run `cargo build --examples` with the same features.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use cluster_testenv::{Node, Sentinels, Server, TlsClients, wait_for};

pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// Returns a command that runs an example.
fn example(name: &str) -> Command {
    let tests = std::env::current_exe().expect("this program has a path");
    let folder = tests.ancestors().nth(2).expect("target/debug/deps").join("examples");
    let program = folder.join(name);
    let changed = |path: PathBuf| path.metadata().and_then(|file| file.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name).with_extension("rs");
    assert!(changed(program.clone()) > changed(source), "{name} is not built: cargo build --examples");
    let mut command = Command::new(program);
    command.stdout(Stdio::piped()).stderr(Stdio::inherit());
    command
}

/// Returns the output of a command, which must end with success.
fn printed(command: &mut Command) -> String {
    let child = command.spawn().expect("it starts");
    let Output { status, stdout, .. } = child.wait_with_output().expect("it ends");
    let text = String::from_utf8(stdout).expect("text");
    assert!(status.success(), "{status}\n{text}");
    text
}

/// Asserts that all parts are in the text, in this order.
fn assert_tells(text: &str, parts: &[&str]) {
    let mut rest = text;
    for part in parts {
        let at = rest.find(part).unwrap_or_else(|| panic!("no {part:?} in its place in\n{text}"));
        rest = &rest[at + part.len()..];
    }
}

fn node() -> Node {
    Node::start(Server::Redis70).expect("the server starts")
}

fn on(node: &Node, name: &str) -> String {
    printed(example(name).env("REDIS_URL", node.url()))
}

#[test]
fn change_over_holds_both_locks() {
    let text = on(&node(), "change_over");
    assert_tells(
        &text,
        &[
            "holds both locks, with token ",
            "a service with Redisson may enter: false",
            "a service with our lock alone may enter: false",
            "the work is done",
            "for lock \"cfg\": held by ",
        ],
    );
}

#[test]
fn quick_start_reads_writes_and_shows_who_is_inside() {
    let text = on(&node(), "quick_start");
    assert_tells(
        &text,
        &[
            "two read at the same time",
            "one writes, with token ",
            "may another one read now? false",
            "another one gave up: waited ",
            "holds it to write since",
            "may another one read now? true",
        ],
    );
}

#[test]
fn fencing_refuses_the_late_write() {
    let node = node();
    let text = on(&node, "fencing");
    assert_tells(&text, &["wrote \"one\"", "read Some(\"one\")", "its write is refused", "its release tells it"]);
    let value = node.command(&["HGET", "fencing:value", "value"]).expect("an answer");
    assert_eq!(value.text().as_deref(), Some("one"));
}

#[test]
fn stop_on_loss_stops() {
    let text = on(&node(), "stop_on_loss");
    assert_tells(&text, &["run: step 1", "operator: ended", "ended the hold by force"]);
    assert_tells(&text, &["task: told as soon as it is known: an operator ended the hold by force"]);
    assert!(text.contains("thread: stopped"), "{text}");
}

#[test]
fn blocking_and_reentrancy_nest_and_exclude() {
    let node = node();
    let text = on(&node, "blocking");
    assert_eq!(text.matches(" is alone, with token ").count(), 3, "{text}");
    let text = on(&node, "reentrancy");
    assert_tells(
        &text,
        &["by default: waited", "still held: Held", "two tasks, 2 guards", "cannot get it for writing now"],
    );
}

#[test]
fn single_flight_makes_each_value_once() {
    let text = on(&node(), "single_flight");
    assert_eq!(text, "60 callers in 3 processes, 1 made the value\n60 callers behind a dead maker, 1 made the value\n");
}

#[test]
fn leader_stops_steps_down_and_is_replaced() {
    let text = on(&node(), "leader");
    let leaders: Vec<(&str, u64)> = text
        .lines()
        .filter_map(|line| line.split_once(": leads, with token "))
        .map(|(name, token)| (name, token.parse().expect("a token")))
        .collect();
    let [(first, _), (second, _), (third, _), ..] = &*leaders else { panic!("{text}") };
    assert!(leaders.is_sorted_by(|earlier, later| earlier.1 < later.1), "{text}");
    assert!(first != second && second != third, "{text}");
    assert_tells(
        &text,
        &[
            &format!("{first}: stopped, because an operator ended the hold by force"),
            &format!("now {second} leads: true"),
            &format!("{second}: steps down"),
        ],
    );
}

#[test]
fn nightly_is_done_by_one_of_two_machines() {
    let node = node();
    let machines = ["2026-11-28T03:14:59.5Z", "2026-11-28T03:14:59Z"].map(|now| {
        let mut command = example("nightly");
        Running(command.env("REDIS_URL", node.url()).env("NOW", now).spawn().expect("it starts"))
    });
    let mut told = machines.map(|mut machine| {
        let mut line = String::new();
        BufReader::new(machine.0.stdout.take().expect("piped")).read_line(&mut line).expect("text");
        line
    });
    told.sort();
    let night = "2026-11-28 03:15:00 UTC";
    assert_eq!(told, [format!("{night}: another machine makes the report\n"), format!("{night}: made the report\n")]);
}

#[test]
fn open_telemetry_gets_the_spans_of_the_request() {
    // One batch has all spans, however slow this machine is.
    let node = node();
    let mut command = example("open_telemetry");
    let text = printed(command.env("REDIS_URL", node.url()).env("OTEL_BSP_SCHEDULE_DELAY", "600000"));
    let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{text}"));
    assert_tells(line("rwlock.acquire in request: "), &["lock=report", "mode=write", "outcome=granted"]);
    assert_tells(line("rwlock.hold in request: "), &["lock=report", "mode=write", "token=", "ended=released"]);
    line("request in no span: ");
}

/// Starts an example that serves HTTP. Returns what it prints after its address, and its port.
pub(crate) fn serve(name: &str, node: &Node) -> (Running, Lines<BufReader<ChildStdout>>, u16) {
    let mut service = Running(example(name).env("REDIS_URL", node.url()).env("PORT", "0").spawn().expect("it starts"));
    let mut lines = BufReader::new(service.0.stdout.take().expect("piped")).lines();
    let first = lines.next().expect("a line").expect("text");
    let port = first.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("listens on an address");
    (service, lines, port)
}

/// Sends one HTTP request, and returns the whole answer.
pub(crate) fn http(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(BOUND)).expect("a timeout");
    write!(stream, "{request} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn service_answers_is_ready_and_closes_what_it_holds() {
    let node = node();
    let (mut service, mut lines, port) = serve("service", &node);
    assert_tells(&http(port, "POST /report"), &["200 OK", "report made with token "]);
    assert_tells(&http(port, "GET /health"), &["200 OK", "ready"]);
    node.kill();
    assert_tells(&http(port, "GET /health"), &["503", "is_reachable: false"]);
    node.restart().expect("it starts again");
    wait_for("the service to be ready again", BOUND, || http(port, "GET /health").contains("200 OK").then_some(()))
        .expect("it is");
    let stopped = Command::new("kill").arg(service.0.id().to_string()).status().expect("there is a kill");
    assert!(stopped.success());
    assert_eq!(lines.next().expect("a line").expect("text"), "closed, 0 holds left");
    assert!(service.0.wait().expect("it ends").success());
}

/// Running program, which the drop ends, even if the test fails.
pub(crate) struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The kill fails if the program has ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Returns the ACL rules that `docs/OPERATIONS.md` has for one node.
fn least_rights() -> Vec<&'static str> {
    let document = include_str!("../../docs/OPERATIONS.md");
    let (_, rest) = document.split_once("# RedisManager on one node").expect("rules for it");
    let line = rest.lines().nth(1).expect("a line below the comment");
    line.strip_prefix("ACL SETUSER locks ").expect("a command that makes a user").split(' ').collect()
}

#[test]
fn tls_acl_works_with_little_and_no_more() {
    let node = Node::builder(Server::Redis70).tls(TlsClients::Required).start().expect("the server starts");
    node.acl_set_user("locks", &least_rights()).expect("the server knows all rights");
    let url = node.url().replace("rediss://", "rediss://locks:secret@");
    let text = printed(example("tls_acl").env("REDIS_URL", url).env("CERTIFICATES", node.certificates_dir()));
    assert_tells(
        &text,
        &["encrypted, as a user of little: token ", "(no permission)", "(not authenticated)", "(not authenticated)"],
    );
    assert!(!text.contains("secret"), "{text}");
}

/// Waits until the replicas have all writes so far. `WAIT` counts only writes of its own connection, so this function
/// writes first.
fn everybody_has_it(primary: &Node) {
    let mut client = primary.client().expect("connected");
    wait_for("the replicas", BOUND, || {
        client.command(&["SET", "mark", "here"]).ok()?;
        let acknowledged = client.command(&["WAIT", "2", "1000"]).ok()?;
        (acknowledged.int() == Some(2)).then_some(())
    })
    .expect("they follow");
}

#[test]
fn sentinel_follows_the_primary() {
    let sentinels = Sentinels::start(Server::Redis70).expect("they start");
    let mut command = example("sentinel");
    command.env("SENTINELS", sentinels.urls().join(",")).env("PRIMARY", sentinels.primary_name()).env("ROUNDS", "300");
    let mut program = Running(command.spawn().expect("it starts"));
    let mut lines = BufReader::new(program.0.stdout.take().expect("piped")).lines();
    let mut text = String::new();
    for line in lines.by_ref().map(|line| line.expect("text")) {
        text += &(line.clone() + "\n");
        if line.starts_with("round 1:") {
            everybody_has_it(sentinels.primary());
            sentinels.failover().expect("another one is primary");
        }
    }
    assert_tells(
        &text,
        &["the primary is ", "round 1: token ", "the primary is ", "the hold from the beginning is Held"],
    );
    assert!(program.0.wait().expect("it ends").success(), "{text}");
}
