//! The primary of a lock is killed: how soon the lock is had again after the new primary's first answer.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use cluster_testenv::{Client, Cluster, Node};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis_rwlock::{Durability, RedisManager, Replicas, RwLockManager, Topology};

use super::{About, Comparison, Figures, Setting, runtime};
use crate::peer::{Kind, Role};
use crate::table::Better;

const NAME: &str = "recovery";
/// How long what is asked meanwhile may take.
const TRY: Duration = Duration::from_millis(200);
/// About how long a failover takes, with the start of its cluster.
const LASTS: Duration = Duration::from_secs(10);
/// By then a failover is over.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn comparisons(setting: &Setting) -> Vec<Comparison<'_>> {
    let about = About {
        group: "Recovery",
        title: "A primary of three is killed and its replica takes over, node timeout 1 s".to_owned(),
        at: None,
        better: Better::Less,
        columns: &["ms after the new primary's first answer", "ms after the kill"],
        notes: &["The new primary's first answer is the first write that a client without any lock has had from it"],
    };
    let is_asked = |kind: Kind| is_able(kind) || (kind.role() == Role::Lock && !kind.is_ours());
    let entrants = setting.entrants(is_asked, LASTS, refusal, |kind| recover(setting, kind));
    vec![setting.compare(&about, entrants)]
}

fn refusal(kind: Kind) -> Option<String> {
    (!is_able(kind)).then(|| "it is given one node, and no cluster, here".to_owned())
}

fn is_able(kind: Kind) -> bool {
    matches!(kind, Kind::OursOnCluster | Kind::OursReplicated | Kind::ClusterConnection)
}

/// Whoever wants the lock.
enum Wants {
    Manager(RedisManager),
    Connection(ClusterConnection),
}

impl Wants {
    async fn connect(kind: Kind, urls: Vec<String>) -> Option<Self> {
        let builder = RedisManager::builder(Topology::cluster(urls.clone()));
        let replicated = Durability::Replicated { replicas: Replicas::At(1), timeout: TRY };
        Some(match kind {
            Kind::OursOnCluster => Self::Manager(builder.connect().await.expect("a cluster")),
            Kind::ClusterConnection => {
                let client = ClusterClient::new(urls).expect("URLs");
                Self::Connection(client.get_async_connection().await.expect("a cluster"))
            }
            Kind::OursReplicated => Self::Manager(builder.durability(replicated).connect().await.expect("a cluster")),
            _ => return None,
        })
    }

    /// Whether it was had and given back.
    async fn once(&mut self) -> bool {
        match self {
            Self::Manager(manager) => match manager.write(NAME).await {
                Ok(guard) => guard.release().await.is_ok(),
                Err(_) => false,
            },
            Self::Connection(connection) => {
                let mut command = redis::cmd("SET");
                let asking = command.arg(NAME).arg("").query_async::<redis::Value>(connection);
                asking.await.is_ok_and(|reply| reply.extract_error().is_ok())
            }
        }
    }
}

fn recover(setting: &Setting, kind: Kind) -> Result<Figures, String> {
    // Who wants a replica's word needs one that is left when the other has taken over.
    let replicas = if kind == Kind::OursReplicated { 2 } else { 1 };
    let cluster = Cluster::builder(setting.server).replicas(replicas).start().expect("a cluster starts");
    let primary = cluster.primary_of_slot(cluster.keyslot(NAME));
    let replicas: Vec<_> = cluster.replicas_of(primary).into_iter().map(Node::addr).collect();
    let runtime = runtime();
    let mut wants = runtime.block_on(Wants::connect(kind, cluster.urls())).ok_or("it cannot")?;
    assert!(runtime.block_on(wants.once()), "nothing is wrong yet");
    let (answers, answered) = mpsc::channel();
    let killed = Instant::now();
    primary.kill();
    for replica in replicas {
        let answers = answers.clone();
        thread::spawn(move || first_answer(replica).map(|at| answers.send(at)));
    }
    // A release that the kill had overtaken is no recovery: what counts is asked after it.
    let had = runtime.block_on(async {
        while killed.elapsed() < PATIENCE {
            if let Ok(true) = tokio::time::timeout(PATIENCE, wants.once()).await {
                return Some(Instant::now());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        None
    });
    let had = had.ok_or("it was not had again within a minute")?;
    let answered = answered.recv_timeout(PATIENCE).map_err(|_| "no replica took over")?;
    let ms = |span: Duration| span.as_secs_f64() * 1e3;
    Ok((vec![ms(had.saturating_duration_since(answered)), ms(had - killed)], String::new()))
}

/// When this node first wrote something to the lock's slot.
fn first_answer(node: std::net::SocketAddr) -> Option<Instant> {
    let until = Instant::now() + PATIENCE;
    let mut client = Client::connect_within(node, TRY).ok()?;
    while Instant::now() < until {
        // A key beside the lock, and in its slot.
        let reply = client.command(&["SET", &format!("{{{NAME}}}:probe"), ""]).ok()?;
        if reply.is_ok() {
            return Some(Instant::now());
        }
        thread::sleep(Duration::from_millis(1));
    }
    None
}
