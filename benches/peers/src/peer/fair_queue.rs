//! The least code that serves readers and writers as evenly as this crate: two queues at the server, and a message for each
//! waiter that may enter. It has no leases, ids, tokens or checks, so it loses the lock with any client or message that is
//! lost. It shows what a fair queue costs by itself.

use std::sync::atomic::AtomicUsize;

use tokio::sync::Mutex;

use super::*;

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
    pushed: Arc<Mutex<Messages>>,
}

pub(super) async fn connect(url: &str) -> Box<dyn Peer> {
    let mut connection = bare_connection(url).await;
    let (acquire, leave) = (load_script(&mut connection, ACQUIRE).await, load_script(&mut connection, LEAVE).await);
    let number = CLIENTS.fetch_add(1, Ordering::Relaxed);
    let pushed = Arc::new(Mutex::new(Messages::subscribe(url, &format!("{PREFIX}{number}")).await));
    Box::new(FairQueue { connection, number, acquire, leave, pushed })
}

/// Returns the call of a script with the keys of a lock and its mode.
fn call(script: &str, mode: Mode, name: &str) -> redis::Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(script).arg(3);
    for part in ["lock", "readers", "writers"] {
        command.arg(format!("{PREFIX}{name}:{part}"));
    }
    command.arg(mode.letter());
    command
}

impl Client for FairQueue {
    async fn enter(&self, mode: Mode, name: &str) -> Held {
        let (mut own, name) = (self.clone(), name.to_owned());
        let mut command = call(&own.acquire, mode, &name);
        command.arg(own.number);
        let answer: String = command.query_async(&mut own.connection).await.expect("answered");
        if answer == "queued" {
            self.pushed.lock().await.next().await;
        }
        Held::new(async move || {
            let mut command = call(&own.leave, mode, &name);
            command.arg(PREFIX);
            command.query_async::<()>(&mut own.connection).await.expect("answered");
        })
    }
}
