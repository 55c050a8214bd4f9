//! Single requests of a case: matchers and copies of them, and the state that they leave on the server.

use std::sync::Arc;
use std::time::Duration;

use cluster_testenv::{HeldReply, HeldRequest, Matcher, Proxy, Reply};
use parking_lot::Mutex;

use crate::fixture::{Kind, ServerFixture};
use crate::scripts::{hash, two_key};
use crate::servers::ask;
use crate::wait::{BOUND, until};

/// A script that managers send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Script {
    Acquire,
    Leave,
    Renew,
    Force,
}

impl Script {
    fn text(self, kind: Kind) -> &'static str {
        match (kind, self) {
            (Kind::TwoKey, Self::Acquire) => two_key::ACQUIRE,
            (Kind::TwoKey, Self::Leave) => two_key::LEAVE,
            (Kind::TwoKey, Self::Renew) => two_key::RENEW,
            (Kind::TwoKey, Self::Force) => two_key::FORCE,
            (Kind::HashNode | Kind::HashCluster, Self::Acquire) => hash::ACQUIRE,
            (Kind::HashNode | Kind::HashCluster, Self::Leave) => hash::LEAVE,
            (Kind::HashNode | Kind::HashCluster, Self::Renew) => hash::RENEW,
            (Kind::HashNode | Kind::HashCluster, Self::Force) => hash::FORCE,
        }
    }
}

impl ServerFixture {
    /// The proxy that the requests for a lock go through.
    pub fn proxy(&self, name: &str) -> &Proxy {
        self.servers.owner_of(&self.keys_of(name)[0]).proxy()
    }

    /// Matches the requests of one script for a lock. Loads the script first, so that all requests name it by its
    /// digest.
    pub fn requests(&self, script: Script, name: &str) -> Matcher {
        let loaded = self.servers.everywhere(&["SCRIPT", "LOAD", script.text(self.kind)]);
        let digest = loaded[0].text().expect("a digest").into_owned();
        Matcher::containing(digest).and(&self.keys_of(name)[0])
    }

    /// All stored state of a lock, with the ends of its ttls.
    pub fn stored(&self, name: &str) -> Vec<(Reply, Reply)> {
        let keys = self.keys_of(name);
        keys.iter().map(|key| (self.value_of(key), self.on_key("PEXPIRETIME", key, &[]))).collect()
    }

    /// Fields of a hash in order, because a read moves them about in the server's table. Other keys as the server dumps
    /// them.
    fn value_of(&self, key: &str) -> Reply {
        if self.on_key("TYPE", key, &[]).text().is_none_or(|kind| kind != "hash") {
            return self.on_key("DUMP", key, &[]);
        }
        let fields = self.on_key("HGETALL", key, &[]);
        let mut pairs: Vec<_> = fields.array().expect("a list").chunks(2).map(<[Reply]>::to_vec).collect();
        pairs.sort_by_key(|pair| pair[0].bytes().map(<[u8]>::to_vec));
        Reply::Array(pairs.concat())
    }

    /// The clock of the server that has a lock.
    pub fn server_ms(&self, name: &str) -> u64 {
        let time = ask(self.servers.owner_of(&self.keys_of(name)[0]), &["TIME"]);
        let part = |n: usize| time.array().and_then(|parts| parts[n].text()?.parse::<u64>().ok()).expect("a number");
        part(0) * 1000 + part(1) / 1000
    }
}

/// A copy of one request, which can arrive whenever the case wants it to.
#[derive(Clone, Debug, Default)]
pub struct Copied(Arc<Mutex<Option<Vec<Vec<u8>>>>>);

impl Copied {
    /// Matches the same requests, and copies the first one that comes.
    pub fn first_of(&self, requests: Matcher) -> Matcher {
        let copy = Arc::clone(&self.0);
        requests.and(Matcher::new(move |request| {
            copy.lock().get_or_insert_with(|| request.args().to_vec());
            true
        }))
    }

    fn args(&self) -> Vec<Vec<u8>> {
        self.0.lock().clone().expect("a request came")
    }

    /// Sends the copy once more, and returns the code of the reply.
    pub fn arrives(&self, f: &ServerFixture, name: &str) -> String {
        let node = f.servers.owner_of(&f.keys_of(name)[0]);
        let reply = node.command(&self.args()).and_then(Reply::into_result).expect("the server answers");
        // The first word of one text, or the first of several.
        let head = reply.array().map_or(&reply, |fields| &fields[0]).text().expect("a text");
        head.split(' ').next().unwrap_or_default().to_owned()
    }

    /// Returns when the limit of a copied acquisition is over.
    pub async fn is_past_its_limit(&self, f: &ServerFixture, name: &str) {
        let (args, keys) = (self.args(), f.keys_of(name).len());
        let limit = String::from_utf8_lossy(&args[3 + keys]).parse::<u64>().expect("the limit comes first");
        until("the limit is over", async || f.server_ms(name) > limit).await;
    }
}

/// Waits without keeping the thread.
pub async fn is_held(request: &HeldRequest) {
    until("the request is held", async || request.wait_held(Duration::ZERO).is_ok()).await;
}

/// Waits until the server has applied the request, without keeping the thread.
pub async fn is_applied(reply: &HeldReply) {
    until("the request is applied", async || reply.wait_applied(Duration::ZERO).is_ok()).await;
}

/// Lets a request go on, and returns when the server has applied it.
pub fn arrives(request: HeldRequest) {
    request.release_and_wait(BOUND).expect("the server applies it");
}
