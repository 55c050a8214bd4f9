//! Number of replicas that must acknowledge the next grants of one primary.
//!
//! With [`Replicas::At`] the number is fixed. With [`Replicas::All`] the servers decide. Before a pipeline is sent, its
//! connection *looks*: it asks the primary for its replicas, unless this process did so within the last second. The
//! number counts the replicas that are attached, and those that are named but not attached. `WAIT` never counts the
//! latter, so grants fail until they are back.
//!
//! A cluster's primary names its replicas itself, in the same pipeline. So the look does not depend on the slot map,
//! and no other member is asked. Behind Sentinels, the Sentinels name the replicas. While too few of them answer, the
//! number may grow but does not fall, because they may know of a replica that this process does not know. On one node,
//! no server names replicas, so the number never falls.
//!
//! A replica is identified by its IP address, and replicas at the same IP address by their number. Ports are not
//! compared, because a server with TLS has two ports, and the primary may report the other one.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Cmd, Value};

use super::connection::Request;
use super::connections::{Connections, OpenConnection};
use super::greeting::{info, info_field, info_text, list_items};
use crate::base::durability::Replicas;
use crate::base::error::NotPrimary;
use crate::base::events;
use crate::base::lease::Moment;
use crate::base::panics::catch_panic;
use crate::net::CLOCK;
use crate::net::fault::{self, Answer, Fault};
use crate::net::sentinels::{NamedReplicas, Sentinels};

/// Limit for the age of a look when a pipeline is sent.
const MAX_LOOK_AGE: Duration = Duration::from_secs(1);

/// Source of the names of a primary's replicas, whether these are attached or not.
#[derive(Clone)]
pub(in crate::net) enum ReplicaNames {
    /// No server names the replicas of a single node.
    Nobody,
    /// The primary itself, as a member of its cluster.
    Primary,
    Sentinels(Arc<Sentinels>),
}

/// Replicas that must acknowledge the grants of one primary, as the newest look found them.
pub(super) struct RequiredReplicas {
    replicas: Replicas,
    names: ReplicaNames,
    newest: Mutex<Option<ReplicaCount>>,
    /// Node id of the primary in its cluster, as of the newest look.
    cluster_id: Mutex<Option<String>>,
    /// Lock that a connection holds while it looks, so that the others can use the result.
    looking: tokio::sync::Mutex<()>,
}

/// Result of a look.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplicaCount {
    /// Time at which the primary was asked.
    asked: Moment,
    pub(super) required: u64,
    pub(super) attached: u64,
}

impl RequiredReplicas {
    pub(super) fn new(replicas: Replicas, names: ReplicaNames) -> Self {
        Self {
            replicas,
            names,
            newest: Mutex::default(),
            cluster_id: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the number of replicas that must acknowledge a pipeline that is sent at `now`. Returns `None` if this
    /// needs a new look.
    pub(super) fn number_at(&self, now: Moment) -> Option<u64> {
        match self.replicas {
            Replicas::At(number) => Some(number.into()),
            Replicas::All => {
                self.newest.lock().filter(|count| now.since(count.asked) <= MAX_LOOK_AGE).map(|count| count.required)
            }
        }
    }

    /// Looks, or waits for the look of another connection. That connection may be dead, so the wait is no longer than one
    /// response timeout.
    pub(super) async fn look_or_wait(&self, connections: &Connections, live: &OpenConnection) -> Result<(), Fault> {
        let turn = tokio::time::timeout(connections.limits.response_timeout, self.looking.lock()).await;
        if self.number_at(CLOCK.now()).is_none() {
            self.look(connections, live).await?;
        }
        drop(turn);
        Ok(())
    }

    /// Asks the primary for its replicas, and the servers that name them. Changes nothing on any server, so the future
    /// may be dropped at any time.
    pub(super) async fn look(&self, connections: &Connections, live: &OpenConnection) -> Result<ReplicaCount, Fault> {
        let asked = CLOCK.now();
        let (attached, named) = match (self.replicas, &self.names) {
            (Replicas::At(_), _) | (Replicas::All, ReplicaNames::Nobody) => {
                (ask_attached(connections, live).await?, NamedReplicas::default())
            }
            (Replicas::All, ReplicaNames::Primary) => self.ask_member(connections, live).await?,
            (Replicas::All, ReplicaNames::Sentinels(sentinels)) => {
                let (attached, named) = tokio::join!(ask_attached(connections, live), sentinels.replicas());
                (attached?, named?)
            }
        };
        Ok(match self.replicas {
            Replicas::At(number) => ReplicaCount { asked, required: number.into(), attached: attached.len() as u64 },
            Replicas::All => self.note(asked, &attached, &named, &connections.address),
        })
    }

    /// Notes the result of a look, and logs a new number. `node` is the address of the primary, for the log.
    fn note(&self, asked: Moment, attached: &[String], named: &NamedReplicas, node: &str) -> ReplicaCount {
        let mut newest = self.newest.lock();
        // The answers to two connections may come in another order than their questions.
        if let Some(newest) = newest.filter(|newest| newest.asked > asked) {
            return newest;
        }
        let before = newest.map(|before| before.required);
        let number = count_replicas(&named.addresses, attached).max(1);
        let required = if named.is_new { number } else { number.max(before.unwrap_or_default()) };
        let count = ReplicaCount { asked, required, attached: attached.len() as u64 };
        *newest = Some(count);
        // The mutex is released first, because the log may call code of the user.
        drop(newest);
        if let Some(before) = before.filter(|before| *before != required) {
            catch_panic(|| events::required_replicas_changed(node, before, required));
        }
        count
    }

    /// Asks a member of a cluster for the replicas that are attached to it, and for those that it names.
    ///
    /// The question for names contains the id of the member. Each look also asks for this id, because a restarted or
    /// reset server has another id at the same address.
    async fn ask_member(
        &self,
        connections: &Connections,
        live: &OpenConnection,
    ) -> Result<(Vec<String>, NamedReplicas), Fault> {
        let my_id = redis::cmd("CLUSTER").arg("MYID").take();
        for _ in 0..2 {
            let known = self.cluster_id.lock().clone();
            let of_id = redis::cmd("CLUSTER").arg("REPLICAS").arg(known.as_deref()).take();
            let info = info("replication");
            let mut questions = vec![&info, &my_id];
            questions.extend(known.is_some().then_some(&of_id));
            let mut answers = ask_all(connections, live, &questions).await?.into_iter();
            let mut next = || answers.next().unwrap_or_else(|| Err(unreadable("CLUSTER")));
            let attached = read_attached(connections, live, &next()?)?;
            let id = info_text(&next()?).map(str::to_owned).ok_or_else(|| unreadable("CLUSTER MYID"))?;
            if known.as_ref() == Some(&id) {
                let addresses = read_named(&next()?).ok_or_else(|| unreadable("CLUSTER REPLICAS"))?;
                return Ok((attached, NamedReplicas { addresses, is_new: true }));
            }
            *self.cluster_id.lock() = Some(id);
        }
        Err(Fault::Again(Answer::error("the id of the node has changed twice")))
    }
}

/// Counts the replicas that are attached, named, or both. At each IP address, the larger of the two numbers counts.
fn count_replicas(named: &[String], attached: &[String]) -> u64 {
    let mut counts: HashMap<&str, (u64, u64)> = HashMap::new();
    named.iter().for_each(|address| counts.entry(address).or_default().0 += 1);
    attached.iter().for_each(|address| counts.entry(address).or_default().1 += 1);
    counts.values().map(|(named, attached)| named.max(attached)).sum()
}

async fn ask_attached(connections: &Connections, live: &OpenConnection) -> Result<Vec<String>, Fault> {
    let (_, answer) = connections.ask(live, &info("replication")).await?;
    read_attached(connections, live, &answer)
}

async fn ask_all(
    connections: &Connections,
    live: &OpenConnection,
    questions: &[&Cmd],
) -> Result<Vec<Result<Value, Fault>>, Fault> {
    let requests: Vec<_> = questions.iter().map(|question| Request::Command(question)).collect();
    let sent = CLOCK.now();
    let replies = pin!(live.connection.ask_all(&requests));
    let answers = connections.in_time(live, sent, replies).await?.into_iter().map(fault::reply);
    Ok(answers.map(|answer| answer.map_err(|fault| connections.without_login(live, sent, fault))).collect())
}

/// Reads the IP addresses of the replicas that are in sync from an answer to `INFO`. A replica that is still copying
/// the data is left out, because it does not acknowledge writes.
///
/// A server that is a replica itself is left, as after a script that it refuses.
fn read_attached(connections: &Connections, live: &OpenConnection, info: &Value) -> Result<Vec<String>, Fault> {
    let text = info_text(info).ok_or_else(|| unreadable("INFO"))?;
    match info_field(text, "role") {
        Some("master" | "primary") => {}
        Some(_) => {
            connections.leave(live);
            let message = "READONLY the server has become a replica".to_owned();
            // The address may soon lead to a primary, so callers try again.
            return Err(Fault::WrongServer(Arc::new(NotPrimary(message))));
        }
        None => return Err(unreadable("INFO")),
    }
    let of_replica = |line: &str| {
        let (number, fields) = line.strip_prefix("slave")?.split_once(':')?;
        number.parse::<u32>().ok()?;
        let field = |name: &str| fields.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        (field("state")?.trim_end() == "online").then(|| field("ip").unwrap_or_default().to_owned())
    };
    Ok(text.lines().filter_map(of_replica).collect())
}

/// Reads the IP addresses from an answer to `CLUSTER REPLICAS`. Each line has the form `<id> <ip>:<port>@<bus port> …`.
fn read_named(reply: &Value) -> Option<Vec<String>> {
    let of_replica = |line: &Value| {
        let address = info_text(line)?.split(' ').nth(1)?.split('@').next()?;
        Some(address.rsplit_once(':')?.0.to_owned())
    };
    list_items(reply)?.iter().map(of_replica).collect()
}

fn unreadable(question: &str) -> Fault {
    Fault::unreadable("the server", question)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(addresses: &[&str]) -> Vec<String> {
        addresses.iter().map(|address| (*address).to_owned()).collect()
    }

    #[test]
    fn replica_that_is_named_and_attached_counts_once() {
        for (named, attached, number) in [
            (&["a", "b"][..], &["a", "b"][..], 2),
            (&["a", "b"], &["a"], 2),
            (&["a"], &["a", "b"], 2),
            (&["a", "b"], &["a", "c"], 3),
            (&["a", "a"], &["a"], 2),
            (&["a"], &["a", "a"], 2),
            (&["", "a"], &["a"], 2),
            (&[], &[], 0),
        ] {
            assert_eq!(count_replicas(&all(named), &all(attached)), number, "{named:?} {attached:?}");
        }
    }

    #[test]
    fn names_of_a_cluster_are_read_with_failed_and_unknown_replicas() {
        let line = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let reply = Value::Array(vec![
            line("0a 10.0.0.2:6379@16379 slave 0b 0 1 2 connected"),
            line("0c 2001:db8::3:6379@16379,host slave,fail 0b 0 1 2 disconnected"),
            line("0d :0@0 slave,noaddr 0b 0 1 2 disconnected"),
        ]);
        assert_eq!(read_named(&reply), Some(all(&["10.0.0.2", "2001:db8::3", ""])));
        assert_eq!(read_named(&Value::Array(vec![line("nonsense")])), None);
        assert_eq!(read_named(&Value::Nil), None);
    }
}
