//! Servers for tests, in this process: the test sets their answers, and when they come.
#![allow(unreachable_pub)] // the module is private to the tests

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::address::{parse_all, parse_one};
use super::fleet::Fleet;
use super::node::{Limits, Node, NodeSetup, Role};
use crate::base::background_runtime::BackgroundRuntime;
use crate::base::options::Options;
use crate::base::topology::{Access, Tls};

#[cfg(feature = "tls")]
pub mod tls;

/// Returns the answer to `HELLO`.
pub fn hello(mode: &str) -> String {
    hello_as(mode, "master")
}

fn hello_as(mode: &str, role: &str) -> String {
    let (length, role_length) = (mode.len(), role.len());
    format!(
        "%4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$4\r\nmode\r\n${length}\r\n{mode}\r\n$4\r\nrole\r\n${role_length}\r\n{role}\r\n"
    )
}

/// Answer to each script.
const OK: &str = "$17\r\nok - 1700000000 0\r\n";

pub const TIME: &str = "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n";

/// Returns the complete command that begins at `from`, and its end.
pub fn command(said: &[u8], from: usize) -> Option<(Vec<String>, usize)> {
    let text = std::str::from_utf8(said.get(from..)?).ok()?;
    let mut lines = text.split_inclusive("\r\n");
    let mut end = from;
    let mut line = || {
        let line = lines.next().filter(|line| line.ends_with("\r\n"))?;
        end += line.len();
        Some(line.trim_end().to_owned())
    };
    let count: usize = line()?.strip_prefix('*')?.parse().ok()?;
    let mut words = Vec::new();
    for _ in 0..count {
        line()?;
        words.push(line()?);
    }
    Some((words, end))
}

/// Returns a push about a channel.
pub fn push_of(kind: &str, channel: &str) -> String {
    format!(">3\r\n${}\r\n{kind}\r\n${}\r\n{channel}\r\n:1\r\n", kind.len(), channel.len())
}

/// Listens on a free port.
pub async fn listening() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = listener.local_addr().expect("bound");
    (listener, addr)
}

/// Starts a server with this answer to each command, by the number of its connection. Returns the address.
pub async fn answering(answer: impl Fn(usize, &[String]) -> String + Send + Sync + 'static) -> SocketAddr {
    let ((listener, addr), answer) = (listening().await, Arc::new(answer));
    tokio::spawn(async move {
        for connection in 0.. {
            let Ok((mut stream, _)) = listener.accept().await else { return };
            let answer = Arc::clone(&answer);
            tokio::spawn(async move {
                let (mut said, mut done) = (Vec::new(), 0);
                while stream.read_buf(&mut said).await.is_ok_and(|count| count > 0) {
                    while let Some((words, end)) = command(&said, done) {
                        done = end;
                        if stream.write_all(answer(connection, &words).as_bytes()).await.is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    addr
}

/// Returns a node for a server in this process.
pub fn node_at(addr: SocketAddr, options: &Options, role: Role, background: BackgroundRuntime) -> Arc<Node> {
    let info = parse_one(&format!("redis://{addr}"), &Tls::new()).expect("a URL");
    Arc::new(Node::new(&addr.to_string(), info, setup_on(background, options, role)))
}

/// Returns the values for nodes that use this background runtime.
pub fn setup_on(background_runtime: BackgroundRuntime, options: &Options, role: Role) -> NodeSetup {
    NodeSetup { limits: Limits::new(options, role), background_runtime, ..NodeSetup::for_test() }
}

/// Returns a cluster at these seeds.
pub fn fleet_at(urls: &[String], options: &Options) -> Arc<Fleet> {
    let background = BackgroundRuntime::On(Handle::current());
    let infos = parse_all(urls, &Tls::new()).expect("URLs");
    let setup = setup_on(background, options, Role::ClusterMember);
    Fleet::cluster(&infos, &Access::default(), setup).expect("a cluster")
}

/// Returns random numbers and a time limit for a test. The seed is printed, or given in the environment; the time is
/// one second, or as many as are given there.
pub fn randomness() -> (fastrand::Rng, Duration) {
    let given = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seed = given("REDIS_RWLOCK_FUZZ_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("REDIS_RWLOCK_FUZZ_SEED={seed}");
    let time = Duration::from_secs(given("REDIS_RWLOCK_FUZZ_SECONDS").unwrap_or(1));
    (fastrand::Rng::with_seed(seed), time)
}

/// Pace of the answers to scripts. All else is answered at once, unless the server answers nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// No request is answered at all.
    Never,
    /// Number of answers at a time, and the pause behind them.
    Every(usize, Duration),
}

/// Server on which every script succeeds.
pub struct Fake {
    pub addr: SocketAddr,
    pace: watch::Sender<Pace>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    connections: AtomicUsize,
    scripts: AtomicUsize,
    answered: AtomicUsize,
    /// Highest number of scripts that had come and were not answered.
    peak: AtomicUsize,
    /// True if no script is known until one comes with its text.
    knows_none: AtomicBool,
    /// True if the server is a replica.
    is_replica: AtomicBool,
}

impl Fake {
    pub async fn start(pace: Pace) -> Self {
        let (listener, addr) = listening().await;
        let (pace, paces) = watch::channel(pace);
        let counts = Arc::<Counts>::default();
        let serving = Arc::clone(&counts);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                serving.connections.fetch_add(1, SeqCst);
                tokio::spawn(serve(stream, paces.clone(), Arc::clone(&serving)));
            }
        });
        Self { addr, pace, counts }
    }

    pub fn set(&self, pace: Pace) {
        self.pace.send_replace(pace);
    }

    pub fn connections(&self) -> usize {
        self.counts.connections.load(SeqCst)
    }

    pub fn scripts(&self) -> usize {
        self.counts.scripts.load(SeqCst)
    }

    pub fn forget_scripts(&self) {
        self.counts.knows_none.store(true, SeqCst);
    }

    pub fn follows_another(&self) {
        self.counts.is_replica.store(true, SeqCst);
    }

    pub fn peak(&self) -> usize {
        self.counts.peak.load(SeqCst)
    }
}

/// Reads all requests as they come, and answers at the pace.
async fn serve(stream: TcpStream, mut pace: watch::Receiver<Pace>, counts: Arc<Counts>) {
    let (mut reading, mut writing) = stream.into_split();
    let (take, mut taken) = tokio::sync::mpsc::unbounded_channel::<String>();
    let seen = Arc::clone(&counts);
    tokio::spawn(async move {
        let (mut said, mut done) = (Vec::new(), 0);
        while reading.read_buf(&mut said).await.is_ok_and(|count| count > 0) {
            while let Some((words, end)) = command(&said, done) {
                done = end;
                let name = words[0].to_ascii_uppercase();
                if name.starts_with("EVAL") {
                    let scripts = seen.scripts.fetch_add(1, SeqCst) + 1;
                    seen.peak.fetch_max(scripts - seen.answered.load(SeqCst), SeqCst);
                }
                if take.send(name).is_err() {
                    return;
                }
            }
        }
    });
    let mut since_pause = 0;
    while let Some(name) = taken.recv().await {
        if pace.wait_for(|pace| *pace != Pace::Never).await.is_err() {
            return;
        }
        let answer = match name.as_str() {
            "HELLO" if counts.is_replica.load(SeqCst) => hello_as("standalone", "replica"),
            "HELLO" => hello("standalone"),
            "TIME" => TIME.to_owned(),
            // The user may not ask, and the server is no member of a cluster.
            "ASKING" => "-NOPERM no\r\n".to_owned(),
            name if name.starts_with("EVAL") => {
                let Pace::Every(most, pause) = *pace.borrow() else { return };
                if since_pause >= most {
                    since_pause = 0;
                    tokio::time::sleep(pause).await;
                }
                since_pause += 1;
                counts.answered.fetch_add(1, SeqCst);
                if name == "EVAL" {
                    counts.knows_none.store(false, SeqCst);
                }
                if counts.is_replica.load(SeqCst) {
                    "-READONLY You can't write against a read only replica.\r\n".to_owned()
                } else if counts.knows_none.load(SeqCst) {
                    "-NOSCRIPT no\r\n".to_owned()
                } else {
                    OK.to_owned()
                }
            }
            _ => "+OK\r\n".to_owned(),
        };
        if writing.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}
