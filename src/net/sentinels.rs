//! Sentinels: asks them for the address of the primary with a given name.
//!
//! Each question uses a new connection. Questions are rare, and a Sentinel that hangs must not delay the others.
//!
//! The address that most Sentinels name is used. It is used as soon as more than half of all Sentinels have named it,
//! or all Sentinels have answered. The first answer alone is not enough, because a Sentinel that is cut off from the
//! others may still name the old primary.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{ConnectionInfo, RedisConnectionInfo, Value};

use crate::base::error::Refusal;
use crate::net::address::address_of;
use crate::net::fault::{self, Fault};
use crate::net::node::ask_once;
use crate::net::secrets::Secrets;

pub(super) struct Sentinels {
    primary: String,
    infos: Vec<ConnectionInfo>,
    secrets: Arc<Secrets>,
    response_timeout: Duration,
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<String> = self.infos.iter().map(|info| address_of(info.addr())).collect();
        f.debug_tuple("Sentinels").field(&self.primary).field(&addresses).finish()
    }
}

impl Sentinels {
    pub(super) fn new(
        primary: &str,
        infos: Vec<ConnectionInfo>,
        secrets: Arc<Secrets>,
        response_timeout: Duration,
    ) -> Self {
        Self { primary: primary.to_owned(), infos, secrets, response_timeout }
    }

    /// Returns the `host:port` of the primary that most Sentinels name, and the address of the first Sentinel that
    /// named it.
    pub(super) async fn primary(&self) -> Result<(String, String), Fault> {
        let mut votes: HashMap<String, (usize, String)> = HashMap::new();
        let mut fault = Fault::NotSent(None);
        let mut answers: FuturesUnordered<_> = self
            .ask_each()
            .map(|(sentinel, asking)| async move {
                match asking.await {
                    Ok(primary) => Ok((primary, sentinel)),
                    Err(fault) => Err(fault.at(&sentinel)),
                }
            })
            .collect();
        while let Some(answer) = answers.next().await {
            match answer {
                Ok((primary, sentinel)) => votes.entry(primary).or_insert((0, sentinel)).0 += 1,
                Err(refused @ Fault::Refused { .. }) => fault = refused,
                Err(other) if matches!(fault, Fault::NotSent(None)) => fault = other,
                Err(_) => {}
            }
            if votes.values().any(|(count, _)| *count > self.infos.len() / 2) {
                break;
            }
        }
        let most = votes.into_iter().max_by_key(|(_, (count, _))| *count);
        most.map(|(primary, (_, sentinel))| (primary, sentinel)).ok_or(fault)
    }

    /// Asks each Sentinel for the primary. Yields the address of each Sentinel, and a future that resolves to its
    /// answer.
    pub(super) fn ask_each(&self) -> impl Iterator<Item = (String, impl Future<Output = Result<String, Fault>>)> {
        self.infos.iter().map(|info| (address_of(info.addr()), self.ask(info)))
    }

    async fn ask(&self, info: &ConnectionInfo) -> Result<String, Fault> {
        let info = self.secrets.sentinel_login(info).await;
        match self.question(&info, SentinelLogin::None).await {
            // The first question is sent without a login. A Sentinel that needs a password refuses this question, so
            // the second question is sent with a login.
            Err(Fault::Refused { refusal: Refusal::Unauthenticated | Refusal::Forbidden, .. }) => {
                self.question(&info, SentinelLogin::OfPrimary).await
            }
            answer => answer,
        }
    }

    async fn question(&self, info: &ConnectionInfo, credentials: SentinelLogin) -> Result<String, Fault> {
        let settings = settings(info.redis_settings(), credentials);
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.primary);
        let reply = ask_once(info.addr(), &settings, &self.secrets, self.response_timeout, &question).await?;
        let other = |message| Fault::Refused { refusal: Refusal::OtherTopology, message };
        let reply = fault::reply(reply).map_err(|fault| match fault {
            Fault::Refused { refusal: Refusal::Other, message } if message.contains("unknown command") => {
                other("it is no Sentinel: give the Sentinels' URLs, or use `Topology::node` for this one".to_owned())
            }
            fault => fault,
        })?;
        let unknown =
            || other(format!("it knows no primary {:?}: `SENTINEL MASTERS` lists those that it knows", self.primary));
        read_address(&reply).ok_or_else(unknown)
    }
}

#[derive(Clone, Copy)]
enum SentinelLogin {
    None,
    OfPrimary,
}

/// Returns the login settings for a Sentinel. They name no database, because a Sentinel has no databases.
fn settings(primary: &RedisConnectionInfo, credentials: SentinelLogin) -> RedisConnectionInfo {
    let mut settings = RedisConnectionInfo::default();
    if let SentinelLogin::OfPrimary = credentials {
        if let Some(username) = primary.username() {
            settings = settings.set_username(username);
        }
        if let Some(password) = primary.password() {
            settings = settings.set_password(password);
        }
    }
    settings
}

fn read_address(reply: &Value) -> Option<String> {
    let Value::Array(parts) = reply else {
        return None;
    };
    let [Value::BulkString(host), Value::BulkString(port)] = parts.as_slice() else {
        return None;
    };
    let (host, port) = (std::str::from_utf8(host).ok()?, std::str::from_utf8(port).ok()?);
    Some(format!("{host}:{port}"))
}
