//! Sentinels: asks them for the address of the primary with a given name, and for its replicas.
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
use parking_lot::Mutex;
use redis::{ConnectionAddr, ConnectionInfo, RedisConnectionInfo, Value};

use crate::base::error::Refusal;
use crate::base::lease::Moment;
use crate::net::CLOCK;
use crate::net::address::address_of;
use crate::net::fault::{self, Fault};
use crate::net::node::{ask_once, hello_value, info_text, list_items};
use crate::net::secrets::Secrets;

/// Time after an unanswered question for replicas in which no other question for them is sent. Otherwise silent Sentinels
/// would delay the grants of each second by a response timeout.
const REPLICAS_PAUSE: Duration = Duration::from_secs(5);

pub(super) struct Sentinels {
    primary: String,
    infos: Vec<ConnectionInfo>,
    secrets: Arc<Secrets>,
    response_timeout: Duration,
    /// IP addresses of the replicas, as of the newest answer of a majority.
    replicas: Mutex<Option<Vec<String>>>,
    /// Time at which a question for the replicas last went unanswered.
    unanswered: Mutex<Option<Moment>>,
}

/// Replicas that other servers name, whether these are attached or not.
#[derive(Clone, Debug, Default)]
pub(super) struct NamedReplicas {
    /// IP addresses. A replica without a known address has an empty one.
    pub(super) addresses: Vec<String>,
    /// True if this is a complete answer. False if more replicas may exist.
    pub(super) is_new: bool,
}

/// Answer of one Sentinel.
struct Named {
    primary: String,
    /// IP addresses of the replicas. Empty if the Sentinel was not asked for them.
    replicas: Vec<String>,
}

/// Answers of the Sentinels that name the same primary.
struct Votes {
    count: usize,
    /// Address of the first of these Sentinels.
    sentinel: String,
    /// IP addresses of the replicas, each as often as the Sentinel that knows most of them names it.
    replicas: HashMap<String, usize>,
}

/// Facts that a Sentinel is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Question {
    Primary,
    PrimaryAndReplicas,
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
        Self {
            primary: primary.to_owned(),
            infos,
            secrets,
            response_timeout,
            replicas: Mutex::new(None),
            unanswered: Mutex::new(None),
        }
    }

    /// Returns the `host:port` of the primary that most Sentinels name, and the address of the first Sentinel that
    /// named it.
    pub(super) async fn primary(&self) -> Result<(String, String), Fault> {
        self.vote(Question::Primary).await.map(|(primary, votes)| (primary, votes.sentinel))
    }

    /// Returns the replicas that most Sentinels name. If too few Sentinels answer, returns those of the last answer.
    /// Fails if there is no answer yet.
    pub(super) async fn replicas(&self) -> Result<NamedReplicas, Fault> {
        let old = self.replicas.lock().clone().map(|addresses| NamedReplicas { addresses, is_new: false });
        let unanswered = *self.unanswered.lock();
        if let Some(old) = &old
            && unanswered.is_some_and(|at| CLOCK.now().since(at) < REPLICAS_PAUSE)
        {
            return Ok(old.clone());
        }
        let voting = tokio::time::timeout(self.response_timeout, self.vote(Question::PrimaryAndReplicas));
        let fault = match voting.await {
            Ok(Ok((_, votes))) if votes.count > self.infos.len() / 2 => {
                let repeated = votes.replicas.into_iter().flat_map(|(address, count)| vec![address; count]);
                let addresses: Vec<String> = repeated.collect();
                *self.unanswered.lock() = None;
                *self.replicas.lock() = Some(addresses.clone());
                return Ok(NamedReplicas { addresses, is_new: true });
            }
            Ok(Err(fault)) => fault,
            Ok(Ok(_)) | Err(_) => Fault::unsent("most Sentinels have not named the replicas"),
        };
        *self.unanswered.lock() = Some(CLOCK.now());
        old.ok_or(fault)
    }

    /// Asks all Sentinels. Returns the primary that most of them name, with their votes.
    async fn vote(&self, question: Question) -> Result<(String, Votes), Fault> {
        let mut votes: HashMap<String, Votes> = HashMap::new();
        let mut fault = Fault::NotSent(None);
        let mut answers: FuturesUnordered<_> = self
            .infos
            .iter()
            .map(|info| async move {
                let sentinel = address_of(info.addr());
                let answer = self.ask(info, question).await.map_err(|fault| fault.at(&sentinel));
                answer.map(|named| (named, sentinel))
            })
            .collect();
        while let Some(answer) = answers.next().await {
            match answer {
                Ok((Named { primary, replicas }, sentinel)) => {
                    let empty = || Votes { count: 0, sentinel, replicas: HashMap::new() };
                    votes.entry(primary).or_insert_with(empty).add(replicas);
                }
                Err(other) => fault.prefer(other),
            }
            if votes.values().any(|votes| votes.count > self.infos.len() / 2) {
                break;
            }
        }
        votes.into_iter().max_by_key(|(_, votes)| votes.count).ok_or(fault)
    }

    /// Asks each Sentinel for the primary. Yields the address of each Sentinel, and a future that resolves when the
    /// Sentinel has named one.
    pub(super) fn ask_each(&self) -> impl Iterator<Item = (String, impl Future<Output = Result<(), Fault>>)> {
        self.infos.iter().map(|info| {
            let asking = async { self.ask(info, Question::Primary).await.map(drop) };
            (address_of(info.addr()), asking)
        })
    }

    async fn ask(&self, info: &ConnectionInfo, question: Question) -> Result<Named, Fault> {
        let info = self.secrets.sentinel_login(info).await;
        match self.ask_as(info.addr(), &RedisConnectionInfo::default(), question).await {
            // The first question is sent without a login. A Sentinel that needs a password refuses this question, so
            // the second question is sent with a login.
            Err(Fault::Refused { refusal: Refusal::Unauthenticated | Refusal::Forbidden, .. }) => {
                // A Sentinel has no databases, so the login names none.
                self.ask_as(info.addr(), &info.redis_settings().clone().set_db(0), question).await
            }
            answer => answer,
        }
    }

    async fn ask_as(
        &self,
        address: &ConnectionAddr,
        settings: &RedisConnectionInfo,
        question: Question,
    ) -> Result<Named, Fault> {
        let of_primary = |words: &str| redis::cmd("SENTINEL").arg(words).arg(&self.primary).take();
        let mut questions = vec![of_primary("GET-MASTER-ADDR-BY-NAME")];
        if question == Question::PrimaryAndReplicas {
            questions.push(of_primary("REPLICAS"));
        }
        let mut replies =
            ask_once(address, settings, &self.secrets, self.response_timeout, &questions).await?.into_iter();
        let primary = self.read_primary(replies.next().unwrap_or_default())?;
        let replicas = match replies.next() {
            Some(replicas) => {
                read_replicas(&fault::reply(replicas)?).ok_or_else(|| Fault::unreadable("it", "SENTINEL REPLICAS"))?
            }
            None => Vec::new(),
        };
        Ok(Named { primary, replicas })
    }

    fn read_primary(&self, reply: Value) -> Result<String, Fault> {
        let other = |message: String| Fault::refusal(Refusal::OtherTopology, message);
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

impl Votes {
    /// Adds the answer of a Sentinel. A replica counts if any Sentinel names it, because another Sentinel may not have
    /// found it yet.
    fn add(&mut self, replicas: Vec<String>) {
        self.count += 1;
        let mut named: HashMap<String, usize> = HashMap::new();
        replicas.into_iter().for_each(|address| *named.entry(address).or_default() += 1);
        for (address, count) in named {
            let most = self.replicas.entry(address).or_default();
            *most = count.max(*most);
        }
    }
}

fn read_address(reply: &Value) -> Option<String> {
    let [host, port] = list_items(reply)? else { return None };
    Some(format!("{}:{}", info_text(host)?, info_text(port)?))
}

/// Reads the IP addresses in an answer to `SENTINEL REPLICAS`. Each replica is a list of fields with their values.
fn read_replicas(reply: &Value) -> Option<Vec<String>> {
    let address = |replica: &Value| {
        let ip = match replica {
            Value::Array(fields) => fields.chunks(2).find(|field| info_text(&field[0]) == Some("ip"))?.get(1),
            other => hello_value(other, "ip"),
        };
        info_text(ip?).map(str::to_owned)
    };
    list_items(reply)?.iter().map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn replicas_are_read_in_both_versions_of_the_protocol() {
        let old = Value::Array(["name", "x", "ip", "10.0.0.2", "port", "1"].map(text).to_vec());
        let new = Value::Map(vec![(text("name"), text("ip")), (text("ip"), text("10.0.0.3"))]);
        let read = read_replicas(&Value::Array(vec![old, new]));
        assert_eq!(read, Some(vec!["10.0.0.2".to_owned(), "10.0.0.3".to_owned()]));
        let without = Value::Array(["name", "ip"].map(text).to_vec());
        assert_eq!(read_replicas(&Value::Array(vec![without])), None);
        assert_eq!(read_replicas(&Value::Nil), None);
    }

    #[test]
    fn replica_counts_if_any_sentinel_names_it() {
        let mut votes = Votes { count: 0, sentinel: String::new(), replicas: HashMap::new() };
        let all = |addresses: &[&str]| addresses.iter().map(|address| (*address).to_owned()).collect();
        votes.add(all(&["a", "a", "b"]));
        votes.add(all(&["a", "c"]));
        let mut replicas: Vec<_> = votes.replicas.into_iter().collect();
        replicas.sort();
        let named = |address: &str, count| (address.to_owned(), count);
        assert_eq!((votes.count, replicas), (2, vec![named("a", 2), named("b", 1), named("c", 1)]));
    }
}
