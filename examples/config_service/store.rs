//! The configuration, and the *resource* that keeps it: a few fields in this process, or in a hash on a server.
//!
//! Each access under the lock brings the fencing token of its hold. The resource refuses a token below its mark, which
//! is the highest token so far. So a holder that was paused past its lease does no harm when it wakes up. No lock with
//! a lease could prevent this harm on its own.

use std::collections::HashMap;

use parking_lot::Mutex;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{RedisResult, Script};

/// Fields of the resource by their names.
pub(crate) type Fields = HashMap<String, String>;

/// Meaning of the fields.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Look {
    Whole(u64),
    /// An update to this version has begun and not ended.
    HalfDone(u64),
    /// No writer leaves these fields behind, dead or alive.
    Corrupt,
}

/// Returns the fields that an update to a version sets, in this order. The draft comes first and is emptied last. It
/// says all that another writer needs for the same update, if the first writer dies. Here the version determines all
/// values. A real draft contains the whole next configuration.
pub(crate) fn steps(version: u64) -> [(&'static str, String); 4] {
    let draft = version.to_string();
    [("draft", draft.clone()), ("version", draft), ("upstream", format!("backend-{version}")), ("draft", String::new())]
}

/// Reads the fields, whose values must belong together.
pub(crate) fn look(fields: &Fields) -> Look {
    let text = |field| fields.get(field).map_or("", String::as_str);
    match (text("draft").parse(), text("version").parse()) {
        (Ok(draft), _) => Look::HalfDone(draft),
        (Err(_), Ok(version)) if steps(version)[1..].iter().all(|(field, value)| text(field) == value) => {
            Look::Whole(version)
        }
        _ if fields.keys().all(|field| field == "token") => Look::Whole(0),
        _ => Look::Corrupt,
    }
}

/// Returns the highest token so far.
pub(crate) fn mark(fields: &Fields) -> u64 {
    fields.get("token").and_then(|token| token.parse().ok()).unwrap_or(0)
}

/// Script of one access. KEYS: the resource. ARGV: the token, and a field with its value if it is a write; or nothing,
/// for a look without the lock. Returns all fields, or nil for a token below the mark. Check and write must be one
/// step, hence a script. Tokens are at most 2^53, so `tonumber` is exact.
const ACCESS: &str = r"
if ARGV[1] then
  local mark = redis.call('HGET', KEYS[1], 'token')
  if mark and tonumber(ARGV[1]) < tonumber(mark) then return false end
  redis.call('HSET', KEYS[1], 'token', ARGV[1])
  if ARGV[2] then redis.call('HSET', KEYS[1], ARGV[2], ARGV[3]) end
  redis.call('EXPIRE', KEYS[1], 600)
end
return redis.call('HGETALL', KEYS[1])";

/// The resource, on a server under a key. Locks and data share servers, but no connection: a general client repeats a
/// request whose answer it lost. That does no harm here, because each access sets a field to a value.
pub(crate) enum Store {
    Memory(Mutex<Fields>),
    Cluster(ClusterConnection, String),
}

impl Store {
    /// Connects to the cluster that has the resource under this key.
    pub(crate) async fn connect(urls: &str, key: &str) -> RedisResult<Self> {
        Ok(Self::Cluster(ClusterClient::new(urls.split(','))?.get_async_connection().await?, key.to_owned()))
    }

    /// Sets a field if there is one, and returns all fields. Returns `None` for a token below the mark. Readers without
    /// the lock have no token.
    pub(crate) async fn access(&self, token: Option<u64>, change: Option<(&str, &str)>) -> RedisResult<Option<Fields>> {
        let (script, (field, value)) = (Script::new(ACCESS), change.unzip());
        let mut call = script.prepare_invoke();
        call.arg(token).arg(field).arg(value);
        match self {
            Self::Memory(fields) => Ok(access_in_memory(&mut fields.lock(), token, change)),
            Self::Cluster(connection, key) => call.key(key).invoke_async(&mut connection.clone()).await,
        }
    }
}

/// Does the same as the script.
fn access_in_memory(fields: &mut Fields, token: Option<u64>, change: Option<(&str, &str)>) -> Option<Fields> {
    if let Some(token) = token {
        if token < mark(fields) {
            return None;
        }
        let change = change.map(|(field, value)| (field.to_owned(), value.to_owned()));
        fields.extend(change.into_iter().chain([("token".to_owned(), token.to_string())]));
    }
    Some(fields.clone())
}
