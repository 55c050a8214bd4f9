//! Turns that go from task to task by a message that a script publishes: the least that a hand-over can cost. This
//! process knows the next client, so no client asks the server for it. Each waiting client reads its push messages
//! itself.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;

use tokio::sync::Mutex;

use super::*;

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
    pushed: Arc<Mutex<Messages>>,
}

pub(super) async fn connect(url: &str, script: Script) -> Box<dyn Peer> {
    let mut connection = bare_connection(url).await;
    let text = if script == Script::Push { PUSH } else { RELEASE };
    let (digest, sets) = (load_script(&mut connection, text).await, load_script(&mut connection, SETS).await);
    let number = CLIENTS.fetch_add(1, Ordering::Relaxed);
    let pushed = Arc::new(Mutex::new(Messages::subscribe(url, &format!("{KEY}{number}")).await));
    Box::new(HandOver { connection, number, script, digest, sets, pushed })
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

    async fn leave(&mut self, is_own: bool) {
        if is_own {
            return self.publish(NOBODY).await;
        }
        loop {
            let next = TURNS.lock().waiting.pop_front();
            // A client that leaves an empty queue publishes too. Otherwise it would enter again at no cost.
            self.publish(next.unwrap_or(NOBODY)).await;
            let mut turns = TURNS.lock();
            if next.is_some() {
                return;
            }
            if turns.waiting.is_empty() {
                turns.taken = false;
                return;
            }
        }
    }

    async fn set(&mut self) {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.sets).arg(1).arg(KEY);
        command.query_async::<()>(&mut self.connection).await.expect("written");
    }
}

impl Client for HandOver {
    async fn enter(&self, _: Mode, name: &str) -> Held {
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
            self.pushed.lock().await.next().await;
        }
        let is_own = Self::is_own(name);
        Held::new(async move || own.leave(is_own).await)
    }
}
