//! Uses TLS with a private authority and a client certificate, and a user with only the rights that locks need.
//!
//! `docs/OPERATIONS.md` lists the rights. Create the user with one of the lines there. Then run
//!
//! `REDIS_URL=rediss://locks:secret@127.0.0.1:6379 CERTIFICATES=/etc/locks cargo run --example tls_acl`

use std::env;
use std::path::PathBuf;

use redis_rwlock::{RedisManager, Refusal, RwLockManager, Tls, Topology};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = env::var("REDIS_URL")?;
    let certificates = PathBuf::from(env::var("CERTIFICATES")?);
    let tls = || {
        let file = |name: &str| certificates.join(name);
        Tls::new().ca_file(file("ca.pem")).client_files(file("client.pem"), file("client.key"))
    };

    let locks = RedisManager::connect(Topology::node(&url).tls(tls())).await?;
    let guard = locks.write("cfg").await?;
    println!("encrypted, as a user of little: token {}", guard.fencing_token());
    guard.release().await?;
    println!("no password in what is shown: {locks:?}");

    // The user may access the locks of this prefix and nothing else.
    let others = RedisManager::builder(Topology::node(&url).tls(tls())).key_prefix("billing").build()?;
    refused(others.write("cfg").await.map(drop), Refusal::Forbidden);

    // A client without a certificate, or with the wrong password, gets an error at once.
    let nobody = Tls::new().ca_file(certificates.join("ca.pem"));
    refused(RedisManager::connect(Topology::node(&url).tls(nobody)).await.map(drop), Refusal::Unauthenticated);
    let mistyped = url.replace(":secret@", ":secert@");
    refused(RedisManager::connect(Topology::node(mistyped).tls(tls())).await.map(drop), Refusal::Unauthenticated);
    Ok(())
}

fn refused(outcome: redis_rwlock::Result<()>, why: Refusal) {
    match outcome {
        Err(error @ redis_rwlock::Error::Refused { refusal, .. }) if refusal == why => println!("refused: {error}"),
        other => panic!("expected to be refused as {why}: {other:?}"),
    }
}
