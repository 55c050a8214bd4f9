//! Turns that go from task to task by a message that a script publishes: the least that a hand-over can cost. This
//! process knows the next client, so no client asks the server for it. Each waiting client reads its push messages
//! itself.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use futures_util::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use super::{Held, Mode, Peer};
use crate::setup::{bare_connection, digest};

const PUSH: &str = "#!lua\nreturn redis.call('SPUBLISH', KEYS[1] .. ARGV[1], ARGV[1])";
/// Commands of a release that lets the next waiter enter, with fields of the same length, and without any decision.
const RELEASE: &str = include_str!("hand_over/release.lua");
/// Script that writes the fields which the release removes.
const SETS: &str = include_str!("hand_over/sets.lua");
/// Key of the lock, and beginning of the channels. All of them are in one slot.
const KEY: &str = "{hand-over}";

/// Number of no client. A client that releases a lock of its own publishes to it, so that the release has the same
/// cost.
const NOBODY: usize = usize::MAX;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Script {
    Push,
    Release,
}

#[derive(Default)]
struct Turns {
    taken: bool,
    waiting: VecDeque<usize>,
}

static TURNS: LazyLock<parking_lot::Mutex<Turns>> = LazyLock::new(parking_lot::Mutex::default);
static CLIENTS: AtomicUsize = AtomicUsize::new(0);

#[derive(Clone)]
struct HandOver {
    connection: MultiplexedConnection,
    number: usize,
    script: Script,
    digest: String,
    sets: String,
    /// Connection of this client alone, which waits for one turn at a time.
    pushed: Arc<Mutex<TcpStream>>,
}

pub(super) async fn connect(url: &str, script: Script) -> Box<dyn Peer> {
    let mut connection = bare_connection(url).await;
    let text = if script == Script::Push { PUSH } else { RELEASE };
    for text in [text, SETS] {
        redis::cmd("SCRIPT").arg("LOAD").arg(text).query_async::<()>(&mut connection).await.expect("a script loads");
    }
    let number = CLIENTS.fetch_add(1, Ordering::Relaxed);
    let pushed = Arc::new(Mutex::new(subscribe(url, &format!("{KEY}{number}")).await));
    let [digest, sets] = [text, SETS].map(digest);
    Box::new(HandOver { connection, number, script, digest, sets, pushed })
}

pub(super) async fn subscribe(url: &str, channel: &str) -> TcpStream {
    let address = url.trim_start_matches("redis://").trim_end_matches('/');
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.set_nodelay(true).expect("a live socket");
    stream.write_all(format!("SSUBSCRIBE {channel}\r\n").as_bytes()).await.expect("sent");
    // The confirmation is one push, which fits into the buffer.
    assert!(stream.read(&mut [0; 256]).await.expect("confirmed") > 0);
    stream
}

impl HandOver {
    /// Returns true for a lock that is not handed over.
    fn is_own(name: &str) -> bool {
        name.starts_with("own")
    }

    async fn publish(&mut self, next: usize) {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.digest).arg(1).arg(KEY).arg(next);
        command.query_async::<redis::Value>(&mut self.connection).await.expect("published");
    }

    async fn set(&mut self) {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.sets).arg(1).arg(KEY);
        command.query_async::<()>(&mut self.connection).await.expect("written");
    }
}

impl Peer for HandOver {
    fn enter<'a>(&'a self, _: Mode, name: &'a str) -> BoxFuture<'a, Box<dyn Held>> {
        Box::pin(async move {
            let mut own = self.clone();
            let waits = {
                let mut turns = TURNS.lock();
                let waits = turns.taken && !Self::is_own(name);
                if waits {
                    turns.waiting.push_back(self.number);
                } else {
                    turns.taken |= !Self::is_own(name);
                }
                waits
            };
            if waits {
                if self.script == Script::Release {
                    own.set().await;
                }
                let read = self.pushed.lock().await.read(&mut [0; 512]).await;
                assert!(read.expect("a live socket") > 0);
            }
            Box::new(Hold { own, is_own: Self::is_own(name) }) as Box<dyn Held>
        })
    }
}

struct Hold {
    own: HandOver,
    is_own: bool,
}

impl Held for Hold {
    fn leave(mut self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            if self.is_own {
                return self.own.publish(NOBODY).await;
            }
            loop {
                let next = TURNS.lock().waiting.pop_front();
                // A client that leaves an empty queue publishes too. Otherwise it would enter again at no cost.
                self.own.publish(next.unwrap_or(NOBODY)).await;
                let mut turns = TURNS.lock();
                if next.is_some() {
                    return;
                }
                if turns.waiting.is_empty() {
                    turns.taken = false;
                    return;
                }
            }
        })
    }
}
