//! The least that gives a lock up when it is called: readers with a connection each for their scripts and one for the call, and a
//! writer with the same for what it waits for. The scripts are ours, nothing is around them.

use std::time::Instant;

use cluster_testenv::Node;
use redis::aio::MultiplexedConnection;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::figures::{Bare, bare_connection, foreign_id};
use super::{micros, subscribed};

const KEY: &str = "rwlock:{bare}:lock";
const CALL: &str = "rwlock:{bare}:lock:call";
/// Of all ids that `foreign_id` gives.
const WAKE: &str = "rwlock:{bare}:lock:wake:0123456789abcdef0123456789abcdef";

struct Client {
    scripts: Bare<MultiplexedConnection>,
    messages: TcpStream,
}

impl Client {
    async fn new(node: &Node, channel: &str) -> Self {
        let connection = bare_connection(&node.url()).await;
        let scripts = Bare::new(connection.clone(), &mut [connection]).await;
        Self { scripts, messages: subscribed(node, channel).await }
    }

    async fn hears(&mut self) {
        assert!(self.messages.read(&mut [0; 1024]).await.expect("a message") > 0);
    }

    /// Leaves when it is called.
    async fn gives_up(mut self, id: String) -> Self {
        self.hears().await;
        self.scripts.leave(KEY, &id).await;
        self
    }
}

pub(crate) struct CallBacks {
    writer: Client,
    readers: Vec<Client>,
}

impl CallBacks {
    pub(crate) async fn new(node: &Node, readers: usize) -> Self {
        let mut them = Self { writer: Client::new(node, WAKE).await, readers: Vec::new() };
        for _ in 0..readers {
            them.readers.push(Client::new(node, CALL).await);
        }
        them
    }

    /// How long the writer waits until all have left, in microseconds.
    pub(crate) async fn go(&mut self) -> f64 {
        let mut leaving = JoinSet::new();
        for mut reader in self.readers.drain(..) {
            let id = foreign_id();
            reader.scripts.keep(KEY, &id).await;
            leaving.spawn(reader.gives_up(id));
        }
        let id = foreign_id();
        let began = Instant::now();
        self.writer.scripts.wait(KEY, &id).await;
        self.writer.hears().await;
        let took = micros(began);
        self.readers = leaving.join_all().await;
        self.writer.scripts.leave(KEY, &id).await;
        took
    }
}
