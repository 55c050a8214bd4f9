//! Tests against servers that are slow or silent: how many requests they get, from which callers, and which callers
//! wait.

use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::runtime::{Builder, Runtime};

use super::connections::Sharing;
use super::in_flight::MAX_IN_FLIGHT;
use super::*;
use crate::base::error::Refusal;
use crate::base::topology::{Access, Tls};
use crate::net::Script;
use crate::net::conditions::ConditionsOf;
use crate::net::fake::{Fake, Pace, listening, node_at};

pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
pub(super) const AT_ONCE: Pace = Pace::Every(usize::MAX, Duration::ZERO);

static SCRIPT: Script = Script::new("return 1");

impl NodeSetup {
    pub(in crate::net) fn for_test() -> Self {
        let conditions = Conditions::new(ConditionsOf::default(), Duration::from_millis(100));
        let secrets = Secrets::new(&Tls::new(), &Access::default(), &BackgroundRuntime::Process);
        let (conditions, secrets) = (Arc::new(conditions), Arc::new(secrets.expect("no files")));
        let limits = Limits::new(&Options::default(), Role::Standalone);
        Self::new(limits, &BackgroundRuntime::Process, &conditions, &secrets)
    }
}

/// Starts a server with this pace, and a node for it.
async fn served(pace: Pace) -> (Fake, Arc<Node>) {
    let fake = Fake::start(pace).await;
    let node = node(&fake);
    (fake, node)
}

fn node(fake: &Fake) -> Arc<Node> {
    node_on(fake, BackgroundRuntime::Process)
}

fn node_on(fake: &Fake, background: BackgroundRuntime) -> Arc<Node> {
    node_as(fake, Role::Standalone, background)
}

fn node_as(fake: &Fake, role: Role, background: BackgroundRuntime) -> Arc<Node> {
    let options = Options { response_timeout: RESPONSE_TIMEOUT, ..Options::default() };
    node_at(fake.addr, &options, role, background)
}

fn runtime() -> Runtime {
    Runtime::new().expect("a runtime")
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Starts a server that has answered a call, and answers nothing any more, as its node has found out.
async fn silenced() -> (Fake, Arc<Node>) {
    let (fake, node) = served(AT_ONCE).await;
    call(&node).await.expect("answered");
    falls_silent(&fake, &node).await;
    (fake, node)
}

async fn falls_silent(fake: &Fake, node: &Node) {
    fake.set(Pace::Never);
    assert!(matches!(call(node).await, Err(Fault::Unknown { .. })));
}

/// Counts the errors among the answers to so many calls at once.
async fn unanswered(node: &Node, calls: usize) -> usize {
    join_all((0..calls).map(|_| call(node))).await.iter().filter(|answer| answer.is_err()).count()
}

pub(super) async fn call(node: &Node) -> Result<(), Fault> {
    node.call(&Call::new(&SCRIPT, 0), Admission::Owner, Precedence::InTurn).await.map(drop)
}

#[tokio::test]
async fn burst_waits_for_room_and_is_answered_on_one_connection() {
    // All together take longer than a response timeout.
    let (fake, node) = served(Pace::Every(MAX_IN_FLIGHT, RESPONSE_TIMEOUT / 3)).await;
    let calls = MAX_IN_FLIGHT * 6;
    let began = Instant::now();
    assert_eq!(unanswered(&node, calls).await, 0);
    assert!(began.elapsed() > RESPONSE_TIMEOUT, "{:?}", began.elapsed());
    assert_eq!((fake.scripts(), fake.connections()), (calls, 1));
    assert!(fake.peak() <= MAX_IN_FLIGHT, "{} at a time", fake.peak());
}

#[tokio::test]
async fn slow_server_is_sent_no_more_than_it_answers_in_time() {
    // The upper bound of requests would take three times as long as an answer may take.
    let (fake, node) = served(Pace::Every(8, RESPONSE_TIMEOUT / 10)).await;
    let calls = MAX_IN_FLIGHT + MAX_IN_FLIGHT / 2;
    assert_eq!(unanswered(&node, calls).await, 0);
    assert_eq!((fake.scripts(), fake.connections()), (calls, 1));
}

#[tokio::test]
async fn what_gives_back_does_not_wait_behind_those_who_acquire() {
    let (fake, node) = served(Pace::Every(1, RESPONSE_TIMEOUT / 50)).await;
    let acquiring: Vec<_> = (0..MAX_IN_FLIGHT)
        .map(|_| {
            let node = Arc::clone(&node);
            tokio::spawn(async move { call(&node).await })
        })
        .collect();
    while fake.scripts() == 0 {
        tokio::task::yield_now().await;
    }
    node.call(&Call::new(&SCRIPT, 0), Admission::Owner, Precedence::Ahead).await.expect("answered");
    let waiting = acquiring.iter().filter(|acquiring| !acquiring.is_finished()).count();
    assert!(waiting > MAX_IN_FLIGHT / 2, "{waiting} have no room yet");
}

#[tokio::test]
async fn answer_behind_a_refused_asking_counts() {
    let fake = Fake::start(AT_ONCE).await;
    let answer = node(&fake).call(&Call::new(&SCRIPT, 0), Admission::Asking, Precedence::InTurn).await;
    assert!(answer.is_ok(), "it was carried out: {answer:?}");
    let refused = reply_if_admitted(error("NOPERM no"), error("MOVED 1 h:1"));
    assert!(matches!(refused, Err(Fault::Refused { refusal: Refusal::Forbidden, .. })), "{refused:?}");
    let broken = "ERR The user executing the script can't run this command script: d7be, on @user_script:3.";
    assert!(reply_if_admitted(error("NOPERM no"), error(broken)).is_ok(), "it may have begun");
}

fn error(line: &str) -> Value {
    redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).expect("an error reply")
}

#[tokio::test]
async fn scripts_that_a_server_has_forgotten_are_told_once_for_a_pipeline() {
    let (fake, node) = served(AT_ONCE).await;
    call(&node).await.expect("answered");
    fake.forget_scripts();
    let calls: Vec<_> = (0..10).map(|_| Call::new(&SCRIPT, 0)).collect();
    let answers = node.call_all(&calls).await.expect("answered");
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(fake.scripts(), 1 + 2 * calls.len());
}

#[tokio::test]
async fn call_apart_that_takes_long_is_no_silence_of_the_node() {
    let (_fake, node) = served(Pace::Every(0, RESPONSE_TIMEOUT * 2)).await;
    let long = Call::new(&SCRIPT, 0);
    assert!(matches!(node.call_apart(&long).await, Err(Fault::Unknown { .. })));
    assert!(!node.server_contact().is_silent, "one long call says nothing of others");
}

#[test]
fn runtime_that_stands_still_keeps_no_connection_apart_from_others() {
    let (servers, stands, goes_on) = (runtime(), current_thread(), current_thread());
    let (fake, node) = servers.block_on(served(AT_ONCE));
    let long = Call::new(&SCRIPT, 0);
    stands.block_on(call(&node)).expect("answered");
    goes_on.block_on(call(&node)).expect("answered");
    fake.set(Pace::Never);
    let mut pending: Vec<_> = (0..apart::MAX_APART).map(|_| Box::pin(node.call_apart(&long))).collect();
    stands.block_on(async {
        for future in &mut pending {
            assert!(future.now_or_never().is_none(), "it has a place");
        }
    });
    fake.set(AT_ONCE);
    assert!(goes_on.block_on(node.call_apart(&long)).is_ok());
    stands.block_on(async { pending.clear() });
}

/// A runtime that has ended drops a task as soon as it is spawned.
#[test]
fn node_whose_runtime_has_ended_is_probed_by_nobody() {
    let (servers, ends) = (runtime(), runtime());
    let fake = servers.block_on(Fake::start(AT_ONCE));
    let node = node_on(&fake, BackgroundRuntime::On(ends.handle().clone()));
    drop(ends);
    servers.block_on(async {
        call(&node).await.expect("answered");
        falls_silent(&fake, &node).await;
        assert!(matches!(call(&node).await, Err(Fault::NotSent(_))), "nobody has its word");
    });
}

#[tokio::test]
async fn futures_that_nobody_polls_keep_no_room_from_others() {
    let (fake, node) = served(AT_ONCE).await;
    call(&node).await.expect("answered");
    let call_of_ours = Call::new(&SCRIPT, 0);
    let mut unpolled: Vec<_> =
        (0..MAX_IN_FLIGHT).map(|_| Box::pin(node.call(&call_of_ours, Admission::Owner, Precedence::InTurn))).collect();
    for future in &mut unpolled {
        assert!(future.now_or_never().is_none(), "it has been sent");
    }
    tokio::time::timeout(RESPONSE_TIMEOUT * 6, call(&node))
        .await
        .expect("room on another connection")
        .expect("answered");
    assert_eq!(fake.connections(), 2);
}

#[tokio::test]
async fn request_without_an_answer_in_time_leaves_a_connection_that_answers_others() {
    let (fake, node) = served(Pace::Every(1, RESPONSE_TIMEOUT / 8)).await;
    // The last calls would have to wait twice as long as they can.
    let answers = join_all((0..16).map(|_| call(&node))).await;
    assert!(answers.iter().any(Result::is_ok));
    assert!(matches!(answers.last(), Some(Err(Fault::Unknown { .. }))), "{:?}", answers.last());
    assert!(!node.server_contact().is_silent, "it answers");
    fake.set(AT_ONCE);
    call(&node).await.expect("answered");
    assert_eq!(fake.connections(), 1, "nobody gave it up");
}

#[tokio::test]
async fn silent_node_is_asked_by_one_and_answers_all_who_waited() {
    let (fake, node) = silenced().await;
    assert!(node.server_contact().is_silent);
    let (scripts, connections) = (fake.scripts(), fake.connections());
    let waiting: Vec<_> = (0..500)
        .map(|_| {
            let node = Arc::clone(&node);
            tokio::spawn(async move {
                loop {
                    match call(&node).await {
                        Ok(()) => return,
                        Err(fault) => assert!(matches!(fault, Fault::NotSent(_)), "nothing was sent: {fault:?}"),
                    }
                }
            })
        })
        .collect();
    tokio::time::sleep(RESPONSE_TIMEOUT * 4).await;
    assert_eq!(fake.scripts(), scripts, "those who wait ask nothing");
    // A probe without an answer takes a response timeout, and so does each new connection.
    assert!(fake.connections() - connections <= 5, "{} probes", fake.connections() - connections);
    fake.set(AT_ONCE);
    let back = Instant::now();
    for waits in waiting {
        waits.await.expect("no panic");
    }
    assert!(back.elapsed() < Duration::from_secs(2), "{:?}", back.elapsed());
    assert!(fake.peak() <= MAX_IN_FLIGHT, "{} at a time", fake.peak());
}

#[tokio::test]
async fn node_that_nobody_asks_is_not_probed() {
    let (fake, node) = silenced().await;
    // One probe may have begun.
    tokio::time::sleep(RESPONSE_TIMEOUT * 2).await;
    let connections = fake.connections();
    tokio::time::sleep(RESPONSE_TIMEOUT * 4).await;
    assert_eq!(fake.connections(), connections);
    fake.set(AT_ONCE);
    call(&node).await.expect("the first who asks has it probed");
}

#[test]
fn each_runtime_has_a_connection_that_goes_with_it() {
    let (servers, ends, stays) = (runtime(), current_thread(), current_thread());
    let (fake, node) = servers.block_on(served(AT_ONCE));
    for runtime in [&ends, &stays, &ends, &stays] {
        runtime.block_on(call(&node)).expect("answered");
    }
    assert_eq!(fake.connections(), 2);
    drop(ends);
    stays.block_on(call(&node)).expect("answered");
    assert_eq!(fake.connections(), 2, "what ends takes nobody's along");
    current_thread().block_on(call(&node)).expect("answered");
    let kept = node.connections.of.lock().len();
    assert!(kept <= 2, "{kept} are kept");
}

fn names(node: &Node, fakes: &[&Fake], pause: Duration) {
    names::set(node.address(), fakes.iter().map(|fake| fake.addr).collect(), pause);
}

#[tokio::test]
async fn primary_is_found_among_the_addresses_of_a_name() {
    let (replica, primary) = (Fake::start(AT_ONCE).await, Fake::start(AT_ONCE).await);
    replica.follows_another();
    for _ in 0..20 {
        let node = node(&replica);
        names(&node, &[&replica, &primary], Duration::ZERO);
        call(&node).await.expect("there is a primary");
        node.call_apart(&Call::new(&SCRIPT, 0)).await.expect("apart as well");
    }
}

async fn dial(node: &Node) -> Arc<OpenConnection> {
    node.connections.dial(Sharing::Apart).await.expect("a server answers")
}

/// Gives a name the address of a server and one at which no server listens.
fn name_half(node: &Node, fake: &Fake) {
    names::set(node.address(), vec![fake.addr, ([127, 0, 0, 1], 1).into()], Duration::ZERO);
}

#[tokio::test]
async fn servers_of_one_proxy_do_not_close_the_connections_of_each_other() {
    for role in [Role::Proxy, Role::Standalone] {
        let (one, two) = (Fake::start(AT_ONCE).await, Fake::start(AT_ONCE).await);
        let node = node_as(&one, role, BackgroundRuntime::Process);
        name_half(&node, &one);
        let first = dial(&node).await;
        name_half(&node, &two);
        let second = dial(&node).await;
        assert_eq!((one.connections(), two.connections()), (1, 1));
        assert!(second.is_open());
        assert_eq!(first.is_open(), role == Role::Proxy, "only a proxy has several good servers");
    }
}

#[tokio::test]
async fn primary_with_several_addresses_is_dialled_at_the_same_one() {
    let (one, two) = (Fake::start(AT_ONCE).await, Fake::start(AT_ONCE).await);
    let node = node(&one);
    name_half(&node, &one);
    let first = dial(&node).await;
    names(&node, &[&two, &one], Duration::ZERO);
    for _ in 0..5 {
        assert!(dial(&node).await.is_open());
    }
    assert!(first.is_open(), "it is the same primary");
    assert_eq!((one.connections(), two.connections()), (6, 0));
    one.follows_another();
    assert!(dial(&node).await.is_open());
    assert_eq!(two.connections(), 1, "the other address has the primary");
    assert!(!first.is_open(), "it leads to a replica");
}

#[test]
fn primary_is_found_if_its_last_address_is_gone() {
    let (ends, stays) = (runtime(), runtime());
    let (gone, other) = (ends.block_on(Fake::start(AT_ONCE)), stays.block_on(Fake::start(AT_ONCE)));
    let node = node(&gone);
    name_half(&node, &gone);
    stays.block_on(async { drop(dial(&node).await) });
    drop(ends);
    names(&node, &[&gone, &other], Duration::ZERO);
    for _ in 0..2 {
        assert!(stays.block_on(dial(&node)).is_open());
    }
    assert_eq!((gone.connections(), other.connections()), (1, 2));
}

#[tokio::test]
async fn primary_that_became_a_replica_is_left_for_the_next_one() {
    let (old, new) = (Fake::start(AT_ONCE).await, Fake::start(AT_ONCE).await);
    let node = node(&old);
    names(&node, &[&old], Duration::ZERO);
    call(&node).await.expect("answered");
    old.follows_another();
    names(&node, &[&new], Duration::ZERO);
    assert!(matches!(call(&node).await, Err(Fault::WrongServer(_))));
    call(&node).await.expect("the next one has another connection");
    assert_eq!(new.scripts(), 1);
}

#[tokio::test]
async fn replica_that_nobody_replaces_is_dialled_at_a_bounded_pace() {
    let replica = Fake::start(AT_ONCE).await;
    let node = node(&replica);
    call(&node).await.expect("answered");
    replica.follows_another();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(1) {
        assert!(matches!(call(&node).await, Err(Fault::WrongServer(_))));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // 20, 40, 80, 160, and then 250 ms, or half of it each.
    assert!((3..=16).contains(&replica.connections()), "{} connections", replica.connections());
}

#[tokio::test]
async fn slow_name_is_waited_for() {
    let (fake, node) = served(AT_ONCE).await;
    names(&node, &[&fake], RESPONSE_TIMEOUT * 6 / 5);
    node.ready().await.expect("600 ms are not too many");
}

#[tokio::test]
async fn step_that_takes_too_long_is_named() {
    let (fake, node) = served(AT_ONCE).await;
    names(&node, &[&fake], RESPONSE_TIMEOUT * 20);
    let Err(Fault::NotSent(Some(source))) = call(&node).await else { panic!("no name was found") };
    let words = source.to_string();
    assert!(words.starts_with("name resolution:") && words.contains("`response_timeout`"), "{words}");
    fake.set(Pace::Never);
    names(&node, &[&fake], Duration::ZERO);
    let silent = node_on(&fake, BackgroundRuntime::Process);
    let Err(Fault::NotSent(Some(source))) = call(&silent).await else { panic!("it says nothing") };
    assert!(source.to_string().starts_with("greeting:"), "{source}");
}

/// Starts a server that accepts connections, says one thing on each, and closes it without reading.
async fn says_and_closes(words: &'static str) -> Arc<Node> {
    let (listener, addr) = listening().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::io::AsyncWriteExt::write_all(&mut stream, words.as_bytes()).await.unwrap_or_default();
        }
    });
    node_at(addr, &Options::default(), Role::Standalone, BackgroundRuntime::Process)
}

#[tokio::test]
async fn words_of_a_server_that_admits_nobody_are_told() {
    let protected = "-DENIED Redis is running in protected mode because protected mode is enabled\r\n";
    for _ in 0..20 {
        let Err(Fault::Refused { message, .. }) = says_and_closes(protected).await.ready().await else {
            panic!("it says that it refuses")
        };
        assert!(message.starts_with("DENIED Redis is running in protected mode"), "{message}");
    }
    let full = says_and_closes("-ERR max number of clients reached\r\n").await;
    let Err(Fault::NotSent(Some(source))) = full.ready().await else { panic!("it has no room") };
    assert!(source.to_string().contains("max number of clients"), "{source}");
    let old = says_and_closes("-ERR unknown command `HELLO`, with args beginning with: `3`,\r\n").await;
    let refusal = old.ready().await;
    assert!(matches!(refusal, Err(Fault::Refused { refusal: Refusal::UnsupportedServer, .. })), "{refusal:?}");
}
