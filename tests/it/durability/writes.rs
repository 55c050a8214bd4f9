//! Scripts that grant or extend a hold write something, even when nothing changes. `WAIT` counts only what its own
//! connection has written.

use cluster_testenv::{Client, Reply, Server};

use crate::scripts::{hash, two_key};
use crate::servers::{Pair, SUPPORTED};

const NEVER_LATE: &str = "9000000000000";
const LEASE_MS: &str = "60000";
const LIMITS: &str = "1000 3000";

/// Scripts of one scheme, with their keys and arguments.
struct Scheme {
    acquire: &'static str,
    renew: &'static str,
    convert: &'static str,
    keys: &'static [&'static str],
    /// Arguments that follow those of both schemes.
    tail: &'static [&'static str],
}

const HASH: Scheme = Scheme {
    acquire: hash::ACQUIRE,
    renew: hash::RENEW,
    convert: hash::CONVERT,
    keys: &["{lock}"],
    tail: &["01", LIMITS],
};
const TWO_KEY: Scheme = Scheme {
    acquire: two_key::ACQUIRE,
    renew: two_key::RENEW,
    convert: two_key::CONVERT,
    keys: &["{lock}:r", "{lock}:w"],
    tail: &[],
};

impl Scheme {
    /// Calls a script, and returns the first word of the answer.
    fn call(&self, client: &mut Client, script: &str, args: &[&str]) -> String {
        let count = self.keys.len().to_string();
        let words = [&["EVAL", script, &count], self.keys, args].concat();
        let reply = client.command(&words).and_then(Reply::into_result).expect("answered");
        reply.text().expect("a text").split(' ').next().expect("a word").to_owned()
    }

    fn acquire(&self, pair: &Pair, id: &str, mode: &str, waiter_ttl_ms: &str) -> String {
        let args = [&[NEVER_LATE, id, mode, LEASE_MS, waiter_ttl_ms], self.tail].concat();
        self.twice(pair, self.acquire, &args)
    }

    fn renew(&self, pair: &Pair, id: &str) -> String {
        self.twice(pair, self.renew, &[id, LEASE_MS])
    }

    fn convert(&self, pair: &Pair, old: &str, new: &str, mode: &str) -> String {
        let args = [&[NEVER_LATE, old, new, mode, LEASE_MS], self.tail].concat();
        self.twice(pair, self.convert, &args)
    }

    /// Calls a script, and repeats it on another connection, as a process does whose answer was lost. No replica has
    /// either write.
    fn twice(&self, pair: &Pair, script: &str, args: &[&str]) -> String {
        let mut clients = [0, 1].map(|_| pair.primary.client().expect("connected"));
        let [first, again] = clients.each_mut().map(|client| self.call(client, script, args));
        assert_eq!(first, again, "{args:?}");
        if matches!(&*first, "granted" | "renewed") {
            for client in &mut clients {
                let replicas = client.command(&["WAIT", "1", "5"]).and_then(Reply::into_result).expect("answered");
                assert_eq!(replicas.int(), Some(0), "{args:?} counts, and no replica has it");
            }
        }
        first
    }

    fn drive(&self, pair: &Pair) {
        assert_eq!(self.acquire(pair, "m.1.x", "w", "0"), "granted");
        assert_eq!(self.renew(pair, "m.1.x"), "renewed");
        assert_eq!(self.acquire(pair, "m.2.x", "w", "30000"), "queued");
        assert_eq!(self.acquire(pair, "m.1.x", "w", "0"), "granted");
        assert_eq!(self.convert(pair, "m.1.x", "m.3.x", "r"), "granted");
        assert_eq!(self.renew(pair, "m.3.x"), "renewed");
        assert_eq!(self.acquire(pair, "m.3.x", "r", "0"), "granted");
        pair.primary.command(&[&["DEL"], self.keys].concat()).expect("deleted");
        assert_eq!(self.acquire(pair, "m.4.x", "r", "0"), "granted");
        assert_eq!(self.renew(pair, "m.4.x"), "renewed");
        assert_eq!(self.convert(pair, "m.4.x", "m.5.x", "w"), "granted");
        assert_eq!(self.convert(pair, "m.5.x", "m.6.x", "r"), "granted");
        for reader in ["m.7.x", "m.8.x", "m.7.x", "m.6.x"] {
            assert_eq!(self.acquire(pair, reader, "r", "0"), "granted");
            assert_eq!(self.renew(pair, reader), "renewed");
        }
    }
}

fn every_answer_that_gives_a_hold_has_written(server: Server) {
    let pair = Pair::start(server);
    pair.replica.pause();
    HASH.drive(&pair);
    TWO_KEY.drive(&pair);
}

#[test]
fn every_answer_that_gives_a_hold_has_written_on_each_server() {
    SUPPORTED.into_iter().for_each(every_answer_that_gives_a_hold_has_written);
}
