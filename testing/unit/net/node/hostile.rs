//! Servers that say too much, beside one that is well: their cost to this process, and to the locks of the other one.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster_testenv::{Node as Server, Server as Version};
use futures_util::future::{join, join_all};

use super::apart::MAX_APART;
use crate::base::topology::Topology;
use crate::net::fake;
use crate::{Error, HoldState, RedisManager, RwLockManager};

/// Environment variable that names the server for the process of a test.
const ROLE: &str = "REDIS_RWLOCK_HOSTILE";
/// Time with a hostile server. It is longer than the lease of the hold beside it, and that lease outlasts moments in
/// which other tests have both cores.
const MEETING: Duration = Duration::from_secs(9);
const LEASE: Duration = Duration::from_secs(8);
/// Pause between two requests: this process has other things to do.
const PAUSE: Duration = Duration::from_millis(20);
/// Limit for the memory that a hostile server may cost, in KiB.
const MAX_KIB: u64 = 32 << 10;

/// Request at which a server turns hostile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Greeting,
    /// Script of a try, on the shared connection.
    Script,
    /// Script of a look, on a connection of its own.
    Look,
    /// Subscription of a waiter.
    Link,
    /// Script on each connection of a manager: of a try, of its release, and of as many looks as there may be at one
    /// time.
    Everywhere,
    /// Question for the map of a cluster.
    Map,
}

impl At {
    /// Returns true if this command turns the server hostile.
    fn is(self, command: &str, is_apart: bool) -> bool {
        match self {
            Self::Greeting => command == "HELLO",
            Self::Script | Self::Everywhere => command.starts_with("EVAL"),
            Self::Look => command.starts_with("EVAL") && is_apart,
            Self::Link => command == "SSUBSCRIBE",
            Self::Map => command == "CLUSTER",
        }
    }

    fn mode(self) -> &'static str {
        if self == Self::Map { "cluster" } else { "standalone" }
    }

    fn topology(self, url: String) -> Topology {
        if self == Self::Map { Topology::cluster([url]) } else { Topology::node(url) }
    }

    /// Makes a manager send that request.
    async fn ask(self, hostile: &RedisManager) -> Result<(), Error> {
        match self {
            Self::Greeting | Self::Script | Self::Map => hostile.try_write("x").await.map(drop),
            Self::Look => hostile.inspect("x").await.map(drop),
            Self::Link => hostile.write("x").wait_timeout(LEASE / 4).await.map(drop),
            Self::Everywhere => {
                let looks = join_all((0..MAX_APART).map(|_| hostile.inspect("x")));
                let (tried, _) = join(hostile.try_write("x"), looks).await;
                tried.map(drop)
            }
        }
    }
}

/// Returns the first words of a server, the words that it repeats for ever, and the length of a piece.
fn flood(name: &str) -> (String, String, usize) {
    let large = "x".repeat(1 << 16);
    match name {
        "bulk" => ("$17179869184\r\n".to_owned(), large, 1 << 16),
        "long-bulk" => ("$4194000\r\n".to_owned(), large, 1 << 16),
        "array" => ("*100000\r\n".to_owned(), ":1\r\n".repeat(100), 7),
        "endless-array" => ("*4294967296\r\n".to_owned(), ":1\r\n".repeat(100), 7),
        "arrays" => (String::new(), format!("*1000\r\n{}", "$1\r\n1\r\n".repeat(1000)), 1 << 16),
        "large-maps" => (String::new(), format!("*270000\r\n{}", ":1\r\n".repeat(270_000)), 1 << 16),
        "depth" => (String::new(), "*1\r\n".to_owned(), 4),
        "line" => ("+".to_owned(), large, 1 << 16),
        "pushes" => (String::new(), format!(">2\r\n$7\r\nmessage\r\n${}\r\n{large}\r\n", large.len()), 1 << 16),
        other => panic!("no flood is called {other}"),
    }
}

/// Sends all of the longest allowed answer but its end: it stays in memory until its caller gives up.
fn hold_answer(stream: &mut (impl Read + Write)) -> std::io::Result<()> {
    stream.write_all(b"*2\r\n")?;
    for (announced, said) in [(4_190_000, 4_190_000), (1_900_000, 1_890_000)] {
        stream.write_all(format!("${announced}\r\n").as_bytes())?;
        // Small pieces: this process is the one that is measured.
        for _ in 0..said / 10_000 {
            stream.write_all(&[b'x'; 10_000])?;
        }
        if said == announced {
            stream.write_all(b"\r\n")?;
        }
    }
    // Waits until the other side closes the connection.
    while stream.read(&mut [0; 4096])? > 0 {}
    Ok(())
}

/// Confirms subscriptions without end that no caller has asked for, each of another channel with a long name.
fn pour_subscriptions(stream: &mut (impl Read + Write)) -> std::io::Result<()> {
    for number in 0_u64.. {
        let channel = format!("{number:0>1000}");
        stream.write_all(format!(">3\r\n$10\r\nssubscribe\r\n$1000\r\n{channel}\r\n:1\r\n").as_bytes())?;
    }
    Ok(())
}

fn serve(mut stream: impl Read + Write, at: At, name: &str) -> std::io::Result<()> {
    let (mut said, mut done, mut piece) = (Vec::new(), 0, [0; 4096]);
    loop {
        while let Some((words, end)) = fake::command(&said, done) {
            done = end;
            let command = words[0].to_ascii_uppercase();
            // A look has no mode among its arguments.
            let is_apart = !words.iter().any(|word| word == "w");
            match command.as_str() {
                "EVALSHA" | "EVAL" if name == "late" => stream.write_all(script_reply("late", &words).as_bytes())?,
                _ if at.is(&command, is_apart) => return pour(&mut stream, name),
                "HELLO" => stream.write_all(fake::hello(at.mode()).as_bytes())?,
                "TIME" => stream.write_all(fake::TIME.as_bytes())?,
                "EVALSHA" | "EVAL" => stream.write_all(script_reply("queued", &words).as_bytes())?,
                _ => stream.write_all(b"+OK\r\n")?,
            }
        }
        match stream.read(&mut piece)? {
            0 => return Ok(()),
            count => said.extend_from_slice(&piece[..count]),
        }
    }
}

/// Returns the reply to an acquisition: its id is behind the digest, the key and a time.
fn script_reply(code: &str, words: &[String]) -> String {
    let id = words.get(5).map_or("-", String::as_str);
    let reply = format!("{code} {id} 1700000000 0 1000");
    format!("${}\r\n{reply}\r\n", reply.len())
}

fn pour(stream: &mut (impl Read + Write), name: &str) -> std::io::Result<()> {
    match name {
        "held" => return hold_answer(stream),
        "subscriptions" => return pour_subscriptions(stream),
        _ => {}
    }
    let (first, then, length) = flood(name);
    stream.write_all(first.as_bytes())?;
    loop {
        for piece in then.as_bytes().chunks(length) {
            stream.write_all(piece)?;
        }
    }
}

fn start(at: At, name: &str, shake: Shake) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (addr, name, shake) = (listener.local_addr().expect("bound"), name.to_owned(), Arc::new(shake));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let name = name.clone();
            stream.set_nodelay(true).expect("a live socket");
            let shake = Arc::clone(&shake);
            // The thread ends with its connection.
            std::thread::spawn(move || match &*shake {
                Shake::No => drop(serve(stream, at, &name)),
                #[cfg(feature = "tls")]
                Shake::With(config) => {
                    let session = rustls::ServerConnection::new(Arc::clone(config)).expect("usable");
                    drop(serve(rustls::StreamOwned::new(session, stream), at, &name));
                }
            });
        }
    });
    addr
}

/// Handshake before a server says anything.
enum Shake {
    No,
    #[cfg(feature = "tls")]
    With(Arc<rustls::ServerConfig>),
}

/// Starts a server, with or without TLS, and returns its topology.
fn hostile(at: At, way: &str, name: &str) -> Topology {
    match way {
        "plain" => at.topology(format!("redis://{}", start(at, name, Shake::No))),
        #[cfg(feature = "tls")]
        "tls" => {
            let certificates = cluster_testenv::Certificates::make();
            let addr = start(at, name, Shake::With(fake::tls::config(&certificates)));
            at.topology(format!("rediss://{addr}")).tls(fake::tls::trusting(&certificates))
        }
        other => panic!("{other} is no way"),
    }
}

fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Uses one server for a while, and holds a lock on another one meanwhile.
async fn meet(healthy: &str, at: At, way: &str, name: &str) {
    let manager = RedisManager::builder(Topology::node(healthy)).lease(LEASE).connect().await.expect("connected");
    let guard = manager.write(&format!("beside-{name}")).await.expect("granted");
    let before = peak_kib();
    let hostile = RedisManager::builder(hostile(at, way, name)).unreachable_after(MEETING).build().expect("built");
    let began = Instant::now();
    while began.elapsed() < MEETING {
        match tokio::time::timeout(MEETING, at.ask(&hostile)).await {
            Err(_) | Ok(Err(Error::Unreachable { .. } | Error::Refused { .. } | Error::WaitTimeout { .. })) => {}
            Ok(other) => panic!("{name}: {other:?}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
    assert_eq!(guard.state(), HoldState::Held, "{name}");
    let cost = peak_kib() - before;
    println!("{name} costs {cost} KiB");
    assert!(cost <= MAX_KIB, "{name} costs {cost} KiB");
    guard.release().await.expect("ours to the end");
}

const FLOODS: [&str; 8] = ["bulk", "long-bulk", "array", "endless-array", "arrays", "depth", "line", "pushes"];
/// Floods for the other connections, which are read like the shared one. `.ci/all` meets the second half too.
const FEW: [&str; 2] = ["bulk", "pushes"];
const MORE: [&str; 2] = ["array", "depth"];

/// Starts one process for each server, since memory is counted for a process.
fn all_are_met(test: &str, at: At, way: &str, floods: &[&str]) {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    if let Ok(role) = std::env::var(ROLE) {
        let (healthy, name) = role.split_once(' ').expect("a URL and a name");
        return runtime().expect("a runtime").block_on(meet(healthy, at, way, name));
    }
    let healthy = Server::start(Version::Valkey91).expect("it starts");
    let test = format!("net::node::hostile::{test}");
    for name in floods {
        let mut process = Command::new(std::env::current_exe().expect("a path"));
        let role = format!("{} {name}", healthy.url());
        // glibc keeps freed memory for each thread. That is no memory of the manager, and differs from run to run.
        let process = process
            .args(["--exact", &test, "--nocapture", "--include-ignored"])
            .env(ROLE, role)
            .env("MALLOC_ARENA_MAX", "1");
        let process = process.output().expect("it runs");
        let words = String::from_utf8_lossy(&process.stdout);
        assert!(words.contains(" costs "), "{words}{}", String::from_utf8_lossy(&process.stderr));
        assert!(process.status.success(), "{words}{}", String::from_utf8_lossy(&process.stderr));
        println!("{}", words.lines().find(|line| line.contains(" costs ")).unwrap_or_default());
    }
}

#[test]
#[ignore = "takes a minute: see `.ci/all`"]
fn answers_without_end_cost_little_and_no_hold_elsewhere() {
    let floods = [FLOODS.as_slice(), &["late"]].concat();
    all_are_met("answers_without_end_cost_little_and_no_hold_elsewhere", At::Script, "plain", &floods);
}

#[test]
#[ignore = "takes a minute: see `.ci/all`"]
fn greetings_without_end_cost_little_and_no_hold_elsewhere() {
    all_are_met("greetings_without_end_cost_little_and_no_hold_elsewhere", At::Greeting, "plain", &FLOODS);
}

#[test]
fn looks_without_end_cost_little_and_no_hold_elsewhere() {
    all_are_met("looks_without_end_cost_little_and_no_hold_elsewhere", At::Look, "plain", &FEW);
}

#[test]
#[ignore = "takes a minute: see `.ci/all`"]
fn more_looks_without_end_cost_little_and_no_hold_elsewhere() {
    all_are_met("more_looks_without_end_cost_little_and_no_hold_elsewhere", At::Look, "plain", &MORE);
}

#[test]
fn subscriptions_without_end_cost_little_and_no_hold_elsewhere() {
    let floods = [FEW.as_slice(), &["subscriptions"]].concat();
    all_are_met("subscriptions_without_end_cost_little_and_no_hold_elsewhere", At::Link, "plain", &floods);
}

#[test]
#[ignore = "takes a minute: see `.ci/all`"]
fn more_subscriptions_without_end_cost_little_and_no_hold_elsewhere() {
    all_are_met("more_subscriptions_without_end_cost_little_and_no_hold_elsewhere", At::Link, "plain", &MORE);
}

/// Answers behind TLS are read by the same code.
#[cfg(feature = "tls")]
#[test]
#[ignore = "takes a minute: see `.ci/all`"]
fn answers_without_end_behind_tls_cost_little_and_no_hold_elsewhere() {
    let floods = ["bulk", "long-bulk", "array", "endless-array", "depth", "late"];
    all_are_met("answers_without_end_behind_tls_cost_little_and_no_hold_elsewhere", At::Script, "tls", &floods);
}

#[cfg(feature = "tls")]
#[test]
fn other_answers_without_end_behind_tls_cost_little_and_no_hold_elsewhere() {
    let test = "other_answers_without_end_behind_tls_cost_little_and_no_hold_elsewhere";
    let role = std::env::var(ROLE).unwrap_or_default();
    for (at, flood) in [(At::Greeting, "bulk"), (At::Look, "array"), (At::Link, "pushes")] {
        if role.is_empty() || role.ends_with(flood) {
            all_are_met(test, at, "tls", &[flood]);
        }
    }
}

#[test]
fn long_answers_on_all_connections_at_once_cost_little_and_no_hold_elsewhere() {
    all_are_met(
        "long_answers_on_all_connections_at_once_cost_little_and_no_hold_elsewhere",
        At::Everywhere,
        "plain",
        &["held"],
    );
}

#[test]
#[ignore = "takes a minute: see `.ci/all`"]
fn maps_without_end_cost_little_and_no_hold_elsewhere() {
    let floods = [FEW.as_slice(), &MORE, &["large-maps"]].concat();
    all_are_met("maps_without_end_cost_little_and_no_hold_elsewhere", At::Map, "plain", &floods);
}
