//! The least code that serves readers and writers as evenly as this crate: two queues at the server, and a message for each
//! waiter that may enter. It has no leases, ids, tokens or checks, so it loses the lock with any client or message that is
//! lost. It shows what a fair queue costs by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use super::hand_over::subscribe;
use super::{Held, Mode, Peer};
use crate::setup::{bare_connection, digest};

const ACQUIRE: &str = include_str!("fair_queue/acquire.lua");
const LEAVE: &str = include_str!("fair_queue/leave.lua");
/// Beginning of all keys and channels, which have one slot.
const PREFIX: &str = "{fair-queue}";

static CLIENTS: AtomicUsize = AtomicUsize::new(0);

#[derive(Clone)]
struct FairQueue {
    connection: MultiplexedConnection,
    number: usize,
    acquire: String,
    leave: String,
    /// Messages for this client, which waits for one lock at a time.
    pushed: Arc<Mutex<TcpStream>>,
}

pub(super) async fn connect(url: &str) -> Box<dyn Peer> {
    let mut connection = bare_connection(url).await;
    for text in [ACQUIRE, LEAVE] {
        redis::cmd("SCRIPT").arg("LOAD").arg(text).query_async::<()>(&mut connection).await.expect("a script loads");
    }
    let number = CLIENTS.fetch_add(1, Ordering::Relaxed);
    let pushed = Arc::new(Mutex::new(subscribe(url, &format!("{PREFIX}{number}")).await));
    let [acquire, leave] = [ACQUIRE, LEAVE].map(digest);
    Box::new(FairQueue { connection, number, acquire, leave, pushed })
}

fn letter(mode: Mode) -> &'static str {
    if mode == Mode::Write { "w" } else { "r" }
}

/// Returns the call of a script with the keys of a lock and its mode.
fn call(script: &str, mode: Mode, name: &str) -> redis::Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(script).arg(3);
    for part in ["lock", "readers", "writers"] {
        command.arg(format!("{PREFIX}{name}:{part}"));
    }
    command.arg(letter(mode));
    command
}

impl Peer for FairQueue {
    fn enter<'a>(&'a self, mode: Mode, name: &'a str) -> BoxFuture<'a, Box<dyn Held>> {
        Box::pin(async move {
            let mut own = self.clone();
            let mut command = call(&own.acquire, mode, name);
            command.arg(own.number);
            let answer: String = command.query_async(&mut own.connection).await.expect("answered");
            if answer == "queued" {
                let read = self.pushed.lock().await.read(&mut [0; 512]).await;
                assert!(read.expect("a live socket") > 0);
            }
            Box::new(Hold { own, mode, name: name.to_owned() }) as Box<dyn Held>
        })
    }
}

struct Hold {
    own: FairQueue,
    mode: Mode,
    name: String,
}

impl Held for Hold {
    fn leave(mut self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let mut command = call(&self.own.leave, self.mode, &self.name);
            command.arg(PREFIX);
            command.query_async::<()>(&mut self.own.connection).await.expect("answered");
        })
    }
}
