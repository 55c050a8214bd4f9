//! Minimal code that gives a lock up when it is recalled: readers with a connection each for their scripts and one for
//! the recall, and a writer with the same for its notification. The scripts are those of the crate, nothing is around
//! them.

use super::*;

const KEY: &str = "rwlock:{bare}:lock";
const CALL: &str = "rwlock:{bare}:lock:call";
/// Channel of all ids that `foreign_id` gives.
const WAKE: &str = "rwlock:{bare}:lock:wake:0123456789abcdef0123456789abcdef";

type Client = (Bare, Messages);

async fn client(node: &Node, channel: &str) -> Client {
    (Bare::connect(node).await, Messages::subscribe(&node.url(), channel).await)
}

pub(crate) struct Recalls {
    writer: Client,
    readers: Vec<Client>,
}

impl Recalls {
    pub(crate) async fn new(node: &Node, count: usize) -> Self {
        let mut readers = Vec::new();
        for _ in 0..count {
            readers.push(client(node, CALL).await);
        }
        Self { writer: client(node, WAKE).await, readers }
    }

    /// Returns how long the writer waits until all readers have left, in microseconds.
    pub(crate) async fn measure(&mut self) -> f64 {
        let mut leaving = JoinSet::new();
        for (mut scripts, mut messages) in self.readers.drain(..) {
            let id = foreign_id();
            scripts.acquire_recallable(KEY, &id).await;
            leaving.spawn(async move {
                messages.next().await;
                scripts.leave(KEY, &id).await;
                (scripts, messages)
            });
        }
        let (id, (scripts, messages)) = (foreign_id(), &mut self.writer);
        let began = Instant::now();
        scripts.wait(KEY, &id).await;
        messages.next().await;
        let took = micros(began.elapsed());
        self.readers = leaving.join_all().await;
        scripts.leave(KEY, &id).await;
        took
    }
}
