//! Where the configuration lies: a handful of named fields, in memory or in a hash on a server.
//!
//! This is the *resource* behind the lock. Every access under the lock brings the hold's fencing token along, and the
//! resource refuses a token below the highest it has seen. So a holder that was paused past its lease, and does not
//! know it yet, can do no harm when it wakes up, which no lock with a lease could prevent on its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{Client, RedisError, Script};
use redis_rwlock::{BoxFuture, FencingToken, Topology};

use crate::Result;
use crate::event::parse_token;

pub(crate) type Fields = HashMap<String, String>;

/// The field that holds the highest token so far.
pub(crate) const TOKEN: &str = "token";

/// Why the resource did not do as it was told.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("somebody came with a higher token before")]
    StaleToken,
    /// Whether it was done is not known.
    #[error("the configuration's server: {0}")]
    Failed(RedisError),
}

/// The resource. A request may arrive twice (a client library that did not hear the answer repeats it), and does no
/// harm then: each sets a field to a value.
pub(crate) trait Store: Send + Sync + 'static {
    /// All fields, for a holder of the lock.
    fn load(&self, token: FencingToken) -> BoxFuture<'_, Result<Fields, StoreError>>;

    /// Sets one field, for a holder of the lock.
    fn set<'a>(&'a self, token: FencingToken, field: &'a str, value: &'a str) -> BoxFuture<'a, Result<(), StoreError>>;

    /// All fields as they are just now, for somebody without the lock.
    fn peek(&self) -> BoxFuture<'_, Result<Fields, StoreError>>;
}

/// Fields in this process.
#[derive(Debug, Default)]
pub(crate) struct MemoryStore {
    fields: Mutex<Fields>,
}

impl MemoryStore {
    fn visit(&self, token: FencingToken, change: impl FnOnce(&mut Fields)) -> Result<Fields, StoreError> {
        // Each change is one insertion, so the fields are sound even if a thread panicked here.
        let mut fields = self.fields.lock().unwrap_or_else(PoisonError::into_inner);
        let highest = fields.get(TOKEN).and_then(|text| parse_token(text));
        if Some(token) < highest {
            return Err(StoreError::StaleToken);
        }
        fields.insert(TOKEN.to_owned(), token.to_string());
        change(&mut fields);
        Ok(fields.clone())
    }
}

impl Store for MemoryStore {
    fn load(&self, token: FencingToken) -> BoxFuture<'_, Result<Fields, StoreError>> {
        Box::pin(async move { self.visit(token, |_| {}) })
    }

    fn set<'a>(&'a self, token: FencingToken, field: &'a str, value: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            self.visit(token, |fields| {
                fields.insert(field.to_owned(), value.to_owned());
            })?;
            Ok(())
        })
    }

    fn peek(&self) -> BoxFuture<'_, Result<Fields, StoreError>> {
        Box::pin(async move { Ok(self.fields.lock().unwrap_or_else(PoisonError::into_inner).clone()) })
    }
}

/// KEYS: the configuration. ARGV: token, then nothing, or a field and its value. Returns all fields, or nil for an old
/// token. Comparing and setting must be one step, hence a script. Tokens are at most 2^53, so `tonumber` is exact.
const VISIT: &str = r"
local highest = redis.call('HGET', KEYS[1], 'token')
if highest and tonumber(ARGV[1]) < tonumber(highest) then return false end
redis.call('HSET', KEYS[1], 'token', ARGV[1])
if ARGV[2] then redis.call('HSET', KEYS[1], ARGV[2], ARGV[3]) end
redis.call('EXPIRE', KEYS[1], 600)
return redis.call('HGETALL', KEYS[1])";

/// Fields in a hash on a server, which goes away ten minutes after the run.
struct ServerStore<C> {
    connection: C,
    key: String,
    visit: Script,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> ServerStore<C> {
    fn shared(connection: C, key: &str) -> Arc<dyn Store> {
        Arc::new(Self { connection, key: key.to_owned(), visit: Script::new(VISIT) })
    }

    async fn visit(&self, token: FencingToken, change: Option<(&str, &str)>) -> Result<Fields, StoreError> {
        let mut connection = self.connection.clone();
        let mut visit = self.visit.key(&self.key);
        visit.arg(token.to_string());
        if let Some((field, value)) = change {
            visit.arg(field).arg(value);
        }
        let fields: Option<Fields> = visit.invoke_async(&mut connection).await.map_err(StoreError::Failed)?;
        fields.ok_or(StoreError::StaleToken)
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Store for ServerStore<C> {
    fn load(&self, token: FencingToken) -> BoxFuture<'_, Result<Fields, StoreError>> {
        Box::pin(self.visit(token, None))
    }

    fn set<'a>(&'a self, token: FencingToken, field: &'a str, value: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            self.visit(token, Some((field, value))).await?;
            Ok(())
        })
    }

    fn peek(&self) -> BoxFuture<'_, Result<Fields, StoreError>> {
        Box::pin(async move {
            let mut connection = self.connection.clone();
            let fields = redis::cmd("HGETALL").arg(&self.key).query_async(&mut connection).await;
            fields.map_err(StoreError::Failed)
        })
    }
}

/// Which servers keep locks and configuration.
pub(crate) enum Servers {
    Node(String),
    Cluster(Vec<String>),
}

impl Servers {
    /// For the locks.
    pub(crate) fn topology(&self) -> Topology {
        match self {
            Self::Node(url) => Topology::node(url),
            Self::Cluster(urls) => Topology::cluster(urls),
        }
    }

    /// For the configuration. Locks and data share servers here, but no connection: the locks' own router knows what a
    /// lost answer means for a lock, a general one does not.
    pub(crate) async fn store(&self, key: &str) -> Result<Arc<dyn Store>> {
        match self {
            Self::Node(url) => {
                let connection: MultiplexedConnection =
                    Client::open(url.as_str())?.get_multiplexed_async_connection().await?;
                Ok(ServerStore::shared(connection, key))
            }
            Self::Cluster(urls) => {
                let client = ClusterClient::new(urls.iter().map(String::as_str))?;
                let connection: ClusterConnection = client.get_async_connection().await?;
                Ok(ServerStore::shared(connection, key))
            }
        }
    }

    /// The arguments with which a worker process finds the same servers.
    pub(crate) fn to_args(&self) -> [String; 2] {
        match self {
            Self::Node(url) => ["--redis".to_owned(), url.clone()],
            Self::Cluster(urls) => ["--cluster".to_owned(), urls.join(",")],
        }
    }
}
