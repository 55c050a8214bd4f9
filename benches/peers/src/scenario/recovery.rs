//! The primary of a lock is killed: the time from the new primary's first answer to the next grant.

use std::sync::mpsc;

use cluster_testenv::{Client, Cluster};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis_rwlock::{Durability, RedisManager, Replicas, RwLockManager, Topology};

use super::*;

const NAME: &str = "recovery";
/// Time limit of a request during the failover.
const TRY: Duration = Duration::from_millis(200);
/// Time after which a failover is over.
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
    let entrants = setting.entrants(is_asked, refusal, |kind| recover(setting, kind));
    vec![setting.compare(&about, entrants)]
}

fn refusal(kind: Kind) -> Option<String> {
    (!is_able(kind)).then(|| "it is given one node, and no cluster, here".to_owned())
}

fn is_able(kind: Kind) -> bool {
    matches!(kind, Kind::OursOnCluster | Kind::OursReplicated | Kind::ClusterConnection)
}

/// Client that wants the lock.
enum Wants {
    Manager(RedisManager),
    Connection(ClusterConnection),
}

impl Wants {
    async fn connect(kind: Kind, urls: Vec<String>) -> Self {
        if kind == Kind::ClusterConnection {
            let client = ClusterClient::new(urls).expect("URLs");
            return Self::Connection(client.get_async_connection().await.expect("a cluster"));
        }
        let mut builder = RedisManager::builder(Topology::cluster(urls));
        if kind == Kind::OursReplicated {
            builder = builder.durability(Durability::Replicated { replicas: Replicas::At(1), timeout: TRY });
        }
        Self::Manager(builder.connect().await.expect("a cluster"))
    }

    /// Acquires and releases the lock. Returns true if both succeeded.
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
    // A client that waits for an acknowledgement of a replica needs a second replica, because the first one takes over.
    let replicas = if kind == Kind::OursReplicated { 2 } else { 1 };
    let cluster = Cluster::builder(setting.server).replicas(replicas).start().expect("a cluster starts");
    let primary = cluster.primary_of_slot(cluster.keyslot(NAME));
    let replicas: Vec<_> = cluster.replicas_of(primary).into_iter().map(Node::addr).collect();
    let runtime = runtime();
    let mut wants = runtime.block_on(Wants::connect(kind, cluster.urls()));
    assert!(runtime.block_on(wants.once()), "nothing is wrong yet");
    let (answers, answered) = mpsc::channel();
    let killed = Instant::now();
    primary.kill();
    for replica in replicas {
        let answers = answers.clone();
        thread::spawn(move || first_answer(replica).map(|at| answers.send(at)));
    }
    // The result of a release that the kill had overtaken is no recovery. Only requests after the kill count.
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

/// Returns the time of the first successful write to the lock's slot at this node.
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
