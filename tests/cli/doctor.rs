//! `doctor` finds what is wrong, all of it, and says what to do.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cluster_testenv::{Cluster, Node, Sentinels, Server, TlsClients};
use serde_json::Value;

use crate::program::{SERVER, at, program, said};

/// The rights of the README for one node, all of them.
const RIGHTS: [&str; 20] = [
    "on",
    ">s3cret",
    "~rwlock:{*",
    "~rwlock#*",
    "&rwlock:{*",
    "&rwlock#*",
    "+eval",
    "+evalsha",
    "+time",
    "+hmget",
    "+hget",
    "+hset",
    "+hdel",
    "+pexpireat",
    "+ssubscribe",
    "+sunsubscribe",
    "+spublish",
    "+scan",
    "+info",
    "+ping",
];

/// What doctor has found, as `check` and `message`.
struct Found {
    code: Option<i32>,
    findings: Vec<(String, String)>,
    text: String,
}

impl Found {
    fn has(&self, check: &str, part: &str) -> bool {
        self.findings.iter().any(|(of, message)| of == check && message.contains(part))
    }

    fn only(&self, check: &str, part: &str) {
        let checks: BTreeSet<&str> = self.findings.iter().map(|(check, _)| &**check).collect();
        assert!(self.code == Some(1) && self.has(check, part) && checks.len() == 1, "{}", self.text);
    }
}

/// Problems and warnings; notes are for people.
fn doctor(mut command: Command) -> Found {
    command.args(["--json", "doctor"]);
    let said = said(command);
    assert!(!said.out.contains("s3cret") && !said.err.contains("s3cret"), "{said:?}");
    let report: Value = serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    assert_eq!(report["ok"].as_bool(), Some(said.code == Some(0)), "{said:?}");
    let findings = report["findings"].as_array().expect("a list").iter();
    let findings = findings.filter(|finding| finding["level"] != "note").map(|finding| {
        let text = |field: &str| finding[field].as_str().expect("a text").to_owned();
        (text("check"), text("message"))
    });
    Found { code: said.code, findings: findings.collect(), text: said.out }
}

fn doctor_at(node: &Node) -> Found {
    doctor(at(&node.url(), &[]))
}

#[test]
fn healthy_server_is_well() {
    let found = doctor_at(&SERVER);
    assert!(found.code == Some(0) && found.findings.is_empty(), "{}", found.text);
    let people = said(program(&["doctor"]));
    assert!(people.code == Some(0) && people.out.contains("all is well"), "{people:?}");
    let valkey = Node::start(Server::Valkey91).expect("it starts");
    assert_eq!(doctor_at(&valkey).code, Some(0));
}

#[test]
fn memory_policy_is_found() {
    let node = Node::builder(Server::Valkey91).arg("--maxmemory-policy", "volatile-lru").start().expect("it starts");
    doctor_at(&node).only("memory-policy", "volatile-lru");
}

#[test]
fn old_server_is_found() {
    let node = Node::start(Server::Redis62).expect("it starts");
    doctor_at(&node).only("version", "6.2");
}

#[test]
fn server_that_is_not_there_is_found() {
    doctor(at("redis://:s3cret@127.0.0.1:1", &[])).only("unreachable", "refused");
    let node = Node::builder(Server::Redis70).password("s3cret").start().expect("it starts");
    doctor(at(&node.url().replace("s3cret", "s3cret2"), &[])).only("login", "");
    doctor(at(&node.url().replace(":s3cret@", ""), &[])).only("login", "");
}

#[test]
fn replica_for_a_primary_and_missing_replicas_are_found() {
    // Else it waits for more of them to come.
    let primary = Node::builder(Server::Redis70).arg("--repl-diskless-sync-delay", "0").start().expect("it starts");
    let replica = Node::start(Server::Redis70).expect("it starts");
    let port = primary.port().to_string();
    replica.command(&["REPLICAOF", "127.0.0.1", &port]).expect("answered").into_result().expect("it follows");
    let found = doctor_at(&replica);
    assert!(found.code == Some(1) && found.has("role", &format!("replica of 127.0.0.1:{port}")), "{}", found.text);

    let asked = |n: &str| {
        let mut command = at(&primary.url(), &[]);
        command.env("RWLOCK_DURABILITY_REPLICAS", n).env("RWLOCK_DURABILITY_TIMEOUT", "100ms");
        command
    };
    crate::program::until("the replica follows", || doctor(asked("1")).code == Some(0));
    doctor(asked("2")).only("replicas", "1 of the 2");
    let people = said(at(&primary.url(), &["doctor", "--replicas", "3"]));
    assert!(people.code == Some(1) && people.out.contains("problem: replicas: 1 of the 3"), "{people:?}");
}

fn rights_are_found(server: Server) {
    let node = Node::start(server).expect("it starts");
    let without = |missing: &[&str]| {
        let rules: Vec<&str> = RIGHTS.iter().filter(|rule| !missing.contains(rule)).copied().collect();
        node.acl_set_user("locks", &[&["reset"][..], &rules].concat()).expect("the server knows all rights");
        doctor(at(&node.url().replace("redis://", "redis://locks:s3cret@"), &[]))
    };
    let found = without(&[]);
    assert!(found.code == Some(0) && found.findings.is_empty(), "{}", found.text);
    for missing in ["+pexpireat", "+eval", "+hset", "+ssubscribe", "+spublish", "~rwlock#*", "&rwlock:{*"] {
        without(&[missing]).only("rights", missing);
    }
    // All at once, and not one after the other.
    let missing = ["+pexpireat", "+evalsha", "+time", "+ssubscribe", "+spublish"];
    let found = without(&missing);
    for missing in missing {
        assert!(found.has("rights", &format!("user locks lacks {missing}")), "{missing}: {}", found.text);
    }
}

#[test]
fn rights_are_found_on_redis_7_0() {
    rights_are_found(Server::Redis70);
}

#[test]
fn rights_are_found_on_valkey_9_1() {
    rights_are_found(Server::Valkey91);
}

#[test]
fn renamed_command_is_found() {
    // A directive of two words, and another one to make them even.
    let node = Node::builder(Server::Redis70).arg("--rename-command", "PEXPIREAT").arg("hidden", "--rename-command");
    let node = node.arg("DEBUG", "hidden-too").start().expect("it starts");
    doctor_at(&node).only("rights", "no PEXPIREAT");
}

#[test]
fn what_is_wrong_with_a_cluster_is_found() {
    let cluster = Cluster::builder(Server::Redis70).primaries(3).replicas(0).clock().start().expect("it starts");
    let urls = cluster.urls().join(",");
    let of_cluster = |args: &[&str]| {
        let mut command = program(args);
        command.env_remove("RWLOCK_NODE").env("RWLOCK_CLUSTER", &urls);
        doctor(command)
    };
    assert_eq!(of_cluster(&[]).code, Some(0), "{}", of_cluster(&[]).text);

    doctor_at(&cluster.nodes()[0]).only("topology", "part of a cluster");
    let mut alone = program(&[]);
    alone.env_remove("RWLOCK_NODE").env("RWLOCK_CLUSTER", SERVER.url());
    doctor(alone).only("topology", "part of no cluster");

    cluster.nodes()[1].clock().step_forward(Duration::from_millis(300));
    of_cluster(&[]).only("clocks", "apart");
    cluster.nodes()[1].clock().set_right();

    let mut wants_replicas = program(&["--cluster", &urls]);
    wants_replicas.env("RWLOCK_DURABILITY_REPLICAS", "1").env("RWLOCK_DURABILITY_TIMEOUT", "100ms");
    doctor(wants_replicas).only("replicas", "0 of the 1");

    for node in cluster.nodes() {
        node.command(&["CLUSTER", "DELSLOTS", "77"]).expect("answered").into_result().expect("it is gone");
    }
    of_cluster(&[]).only("slots", "nobody owns slots 77");
}

fn with_certificates(mut command: Command, folder: &Path) -> Command {
    let files = [("CA", "ca.pem"), ("CLIENT_CERTIFICATE", "client.pem"), ("CLIENT_KEY", "client.key")];
    for (name, file) in files {
        command.env(format!("RWLOCK_TLS_{name}"), folder.join(file));
    }
    command
}

#[test]
fn server_with_tls_is_looked_at_like_another() {
    let node = Node::builder(Server::Redis70).tls(TlsClients::Required).password("s3cret").start().expect("it starts");
    let (url, certificates) = (node.url(), node.certificates_dir());
    let with_them = |url: &str| with_certificates(at(url, &[]), certificates);
    let found = doctor(with_them(&url));
    assert!(found.code == Some(0) && found.findings.is_empty(), "{}", found.text);

    doctor(at(&url, &[])).only("unreachable", "certificate");
    let mut stranger = with_them(&url);
    stranger.env_remove("RWLOCK_TLS_CLIENT_CERTIFICATE").env_remove("RWLOCK_TLS_CLIENT_KEY");
    doctor(stranger).only("unreachable", "");
    doctor(at(&url.replace("rediss://", "redis://"), &[])).only("unreachable", "");
    doctor(with_them(&url.replace("s3cret", "s3cret2"))).only("login", "");

    node.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]).expect("answered").into_result().expect("set");
    doctor(with_them(&url)).only("memory-policy", "volatile-ttl");
}

#[test]
fn what_is_wrong_behind_sentinels_is_found() {
    let sentinels =
        Sentinels::builder(Server::Redis70).password("s3cret").tls(TlsClients::Required).start().expect("they start");
    // User and password of the first URL are those of primary and replicas.
    let urls = sentinels.urls().join(",").replacen("rediss://", "rediss://:s3cret@", 1);
    let of_primary = |name: &str, args: &[&str]| {
        let mut command = program(args);
        command.env_remove("RWLOCK_NODE").env("RWLOCK_SENTINEL_PRIMARY", name).env("RWLOCK_SENTINEL_URLS", &urls);
        with_certificates(command, sentinels.sentinels()[0].certificates_dir())
    };
    let of_sentinels = |args: &[&str]| doctor(of_primary(sentinels.primary_name(), args));
    let found = of_sentinels(&[]);
    assert!(found.code == Some(0) && found.findings.is_empty(), "{}", found.text);
    let mut wants_replicas = of_primary(sentinels.primary_name(), &[]);
    wants_replicas.env("RWLOCK_DURABILITY_REPLICAS", "3").env("RWLOCK_DURABILITY_TIMEOUT", "100ms");
    doctor(wants_replicas).only("replicas", "2 of the 3");

    let [replica, ..] = sentinels.replicas()[..] else { panic!("it has replicas") };
    let policy = |policy: &str| {
        replica.command(&["CONFIG", "SET", "maxmemory-policy", policy]).expect("answered").into_result().expect("set");
    };
    policy("volatile-lru");
    // It may be the primary tomorrow.
    of_sentinels(&[]).only("memory-policy", "volatile-lru");
    policy("noeviction");

    let found = doctor(of_primary("nobody", &[]));
    assert!(
        found.has("primary", "no server") && found.has("unreachable", "knows no primary \"nobody\""),
        "{}",
        found.text
    );
    let sentinel = with_certificates(at(&sentinels.urls()[0], &[]), sentinels.sentinels()[0].certificates_dir());
    doctor(sentinel).only("topology", "Sentinel");

    sentinels.sentinels()[2].kill();
    of_sentinels(&[]).only("unreachable", "");
}
