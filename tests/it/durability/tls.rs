//! Replicated grants over TLS: `WAIT` follows the scripts on encrypted connections as well.

use std::time::Duration;

use cluster_testenv::{Certificates, Cluster, Server, TlsClients};
use futures_util::future::join_all;
use redis_rwlock::{Error, Tls, Topology};

use super::{LONG_WAIT, SHORT_WAIT, settings};
use crate::fixture::Fixture;
use crate::servers::waiting_at;
use crate::wait::{bounded, granted, spawn, until};

crate::fixture::on_two_threads![
    grants_count_when_a_replica_has_them_with_a_client_certificate,
    grants_count_when_a_replica_has_them
];

/// Number of callers: more than there are connections, so that scripts of several callers share a pipeline.
const CALLERS: usize = 100;
/// Node timeout that is longer than any stall of a busy machine, so that no replica takes over.
const NO_FAILOVER: Duration = Duration::from_secs(15);

async fn grants_count_when_a_replica_has_them() {
    grants_wait_for_a_replica(TlsClients::Optional, trusting).await;
}

async fn grants_count_when_a_replica_has_them_with_a_client_certificate() {
    let with_client = |all: &Certificates| trusting(all).client_pem(all.client_cert_pem(), all.client_key_pem());
    bounded(grants_wait_for_a_replica(TlsClients::Required, with_client)).await;
}

fn trusting(certificates: &Certificates) -> Tls {
    Tls::new().ca_pem(certificates.ca_pem())
}

async fn grants_wait_for_a_replica(clients: TlsClients, tls: impl Fn(&Certificates) -> Tls) {
    let cluster = Cluster::builder(Server::Redis70).primaries(1).node_timeout(NO_FAILOVER).tls(clients);
    let cluster = cluster.start().expect("the cluster starts");
    let [primary, replica] = cluster.nodes() else { panic!("two nodes") };
    let f = Fixture::hash(Topology::cluster([primary.url()]).tls(tls(cluster.certificates())));
    let (patient, hasty) = (f.manager_with(settings(LONG_WAIT)).await, f.manager_with(settings(SHORT_WAIT)).await);

    let names: Vec<String> = (0..CALLERS).map(|_| f.name()).collect();
    let guards = join_all(names.iter().map(|name| patient.write(name).into_future())).await;
    for (guard, name) in guards.into_iter().zip(&names) {
        let guard = guard.expect("granted");
        assert_eq!(guard.name(), name);
        assert!(hasty.try_write(name).await.expect("answered").is_none(), "{name} is held");
        guard.release().await.expect("ours to the end");
    }

    let (held, asked) = (patient.write(&names[0]).await.expect("granted"), &names[1]);
    replica.pause();
    let waiting = spawn(patient.write(asked));
    let waits = async || waiting_at(primary) >= 1 && !f.view(asked).await.is_free();
    until("the primary waits for the replica", waits).await;
    held.release().await.expect("nobody waits for a `WAIT` of others");
    assert!(!waiting.is_finished(), "no replica has it");
    let error = hasty.write(&names[2]).await.map(drop).expect_err("no replica has it");
    assert_matches!(error, Error::NotEnoughReplicas { asked: 1, acknowledged: 0, .. });
    f.becomes_free(&names[2]).await;
    replica.resume();
    let guard = granted(waiting).await;
    guard.release().await.expect("ours to the end");
    f.becomes_free(asked).await;
}
