//! Tests that `doctor` finds everything that is wrong, and gives advice.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use cluster_testenv::{Cluster, Matcher, Node, Reply, RoutingProxy, Sentinels, Server, TlsClients};
use serde_json::Value;

use crate::program::{
    SERVER, Said, ask, at, output_of, program, said, start_node, three_primaries, until, without_node,
};

/// No such server can be reached from a test, so this test checks the function itself.
#[path = "../../src/doctor/memory_db.rs"]
mod memory_db;

/// All rights that the README lists for one node.
const RIGHTS: [&str; 21] = [
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
    "+command|info",
];

/// Findings of doctor, as `check` and `message`.
struct Found {
    code: Option<i32>,
    findings: Vec<(String, String)>,
    advice: Vec<String>,
    nodes: BTreeSet<String>,
    text: String,
}

impl Found {
    fn has(&self, check: &str, part: &str) -> bool {
        self.findings.iter().any(|(of, message)| of == check && message.contains(part))
    }

    fn is_well(&self) {
        self.is_well_with_note("");
    }

    /// Asserts that nothing is wrong, and that a note contains `part`.
    fn is_well_with_note(&self, part: &str) {
        let is_well = self.code == Some(0) && self.findings.is_empty();
        assert!(is_well && self.text.contains(part), "{}", self.text);
    }

    /// Asserts that nothing else is wrong, and that the advice contains `part`.
    fn only_advises(&self, check: &str, part: &str) -> &Self {
        self.only(check, "");
        assert!(self.advice.iter().all(|advice| advice.contains(part)), "{part}: {}", self.text);
        self
    }

    /// Asserts that the findings name all these nodes, and no other.
    fn names(&self, nodes: &[&Node]) {
        let expected: BTreeSet<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        assert_eq!(self.nodes, expected, "{}", self.text);
    }

    fn only(&self, check: &str, part: &str) -> &Self {
        let checks: BTreeSet<&str> = self.findings.iter().map(|(check, _)| &**check).collect();
        assert!(self.code == Some(1) && self.has(check, part) && checks.len() == 1, "{}", self.text);
        self
    }
}

/// Runs doctor and returns problems and warnings, but no notes, which are for people.
fn doctor(mut command: Command) -> Found {
    command.args(["--json", "doctor"]);
    let said = said(command);
    assert!(!said.out.contains("s3cret") && !said.err.contains("s3cret"), "{said:?}");
    let report: Value = serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    assert_eq!(report["ok"].as_bool(), Some(said.code == Some(0)), "{said:?}");
    let all = report["findings"].as_array().expect("a list").iter();
    let all: Vec<&Value> = all.filter(|finding| finding["level"] != "note").collect();
    let text = |finding: &Value, field: &str| finding[field].as_str().unwrap_or_default().to_owned();
    let nodes = all.iter().flat_map(|finding| finding["nodes"].as_array().expect("a list"));
    Found {
        code: said.code,
        findings: all.iter().map(|finding| (text(finding, "check"), text(finding, "message"))).collect(),
        advice: all.iter().map(|finding| text(finding, "advice")).collect(),
        nodes: nodes.map(|node| node.as_str().expect("an address").to_owned()).collect(),
        text: said.out,
    }
}

fn doctor_at(node: &Node) -> Found {
    doctor(at(&node.url(), &[]))
}

fn at_cluster(urls: &str) -> Command {
    let mut command = without_node(&[]);
    command.env("RWLOCK_CLUSTER", urls);
    command
}

/// Asks for a level of so many replicas.
fn with_replicas(mut command: Command, replicas: &str) -> Command {
    command.env("RWLOCK_DURABILITY_REPLICAS", replicas).env("RWLOCK_DURABILITY_TIMEOUT", "100ms");
    command
}

#[test]
fn server_without_hello_and_a_proxy_are_examined() {
    let tried = "doctor acquired and released a lock";
    let node = Node::builder(Server::Redis70).without_command("HELLO").start().expect("it starts");
    doctor_at(&node).is_well_with_note(tried);
    let cluster = Cluster::builder(Server::Valkey91).replicas(0).start().expect("it starts");
    let proxy = RoutingProxy::before(&cluster).expect("a proxy");
    let found = doctor(program(&["--proxy", &proxy.url()]));
    found.is_well_with_note(tried);
    found.is_well_with_note("waiters ask once a second");
    assert!(!found.text.contains("+info"), "{}", found.text);
}

#[test]
fn healthy_server_is_well() {
    doctor_at(&SERVER).is_well();
    output_of(&["doctor"]).assert_out(0, "all is well");
    let valkey = Node::start(Server::Valkey91).expect("it starts");
    doctor_at(&valkey).is_well();
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
    // Without this the primary waits for more replicas before it sends its data.
    let primary = Node::builder(Server::Redis70).arg("--repl-diskless-sync-delay", "0").start().expect("it starts");
    let replica = start_node();
    let port = primary.port().to_string();
    ask(&replica, &["REPLICAOF", "127.0.0.1", &port]);
    let found = doctor_at(&replica);
    assert!(found.code == Some(1) && found.has("role", &format!("replica of 127.0.0.1:{port}")), "{}", found.text);

    let asked = |replicas| doctor(with_replicas(at(&primary.url(), &[]), replicas));
    until("the replica follows", || asked("1").code == Some(0));
    asked("2").only("replicas", "1 of the 2");
    people_ask(&primary.url(), "3").assert_out(1, "problem: replicas: 1 of the 3");
}

/// Runs doctor as a person does, with these replicas.
fn people_ask(url: &str, replicas: &str) -> Said {
    said(at(url, &["doctor", "--replicas", replicas]))
}

#[test]
fn levels_that_a_server_can_do_are_told() {
    let alone = Node::start(Server::Valkey91).expect("it starts");
    let note = "note: durability: no replica is attached, so the server cannot do Replicated";
    said(at(&alone.url(), &["doctor"])).assert_out(0, note);
    people_ask(&alone.url(), "server").assert_out(0, "nothing shows that the server stores each write durably");
    let without = Node::builder(Server::Redis70).without_command("WAIT").start().expect("it starts");
    said(at(&without.url(), &["doctor"])).assert_out(0, "note: durability: the server knows no WAIT");
    people_ask(&without.url(), "server").assert_code(0);
    doctor(with_replicas(at(&without.url(), &[]), "all")).only("rights", "knows no WAIT");
}

#[test]
fn memory_db_is_known_by_its_name() {
    for (address, is_it) in [
        ("clustercfg.locks.abcdef.memorydb.eu-west-1.amazonaws.com:6379", true),
        ("locks-0001-001.locks.abcdef.memorydb.eu-west-1.amazonaws.com:6379", true),
        ("locks.abcdef.0001.euw1.cache.amazonaws.com:6379", false),
        ("memorydb.example.com:6379", false),
        ("10.0.0.1:6379", false),
    ] {
        assert_eq!(memory_db::is_of_memory_db(address), is_it, "{address}");
    }
}

#[test]
fn named_replica_that_is_not_attached_is_found() {
    let cluster = Cluster::builder(Server::Valkey91).primaries(1).replicas(2).node_timeout(Duration::from_secs(2));
    let cluster = cluster.start().expect("it starts");
    let urls = cluster.urls().join(",");
    let all = || program(&["--cluster", &urls, "doctor", "--replicas", "all"]);
    said(all()).assert_out(0, "Replicated with up to 2 attached replicas");
    cluster.replicas_of(cluster.primaries()[0])[0].kill();
    let is_found = || said(all()).out.contains("problem: replicas: 1 of the 2 replicas that the servers name");
    until("the primary has lost the replica", is_found);
}

fn rights_are_found(server: Server) {
    let node = Node::start(server).expect("it starts");
    let without = |missing: &[&str]| {
        let rules: Vec<&str> = RIGHTS.iter().filter(|rule| !missing.contains(rule)).copied().collect();
        node.acl_set_user("locks", &[&["reset"][..], &rules].concat()).expect("the server knows all rights");
        doctor(at(&node.url().replace("redis://", "redis://locks:s3cret@"), &[]))
    };
    without(&[]).is_well();
    for missing in ["+pexpireat", "+eval", "+hset", "+ssubscribe", "+spublish", "~rwlock#*", "&rwlock:{*"] {
        without(&[missing]).only("rights", missing);
    }
    // A missing optional right is a note, which says what is not known without it.
    let note = "user locks lacks +info: without it an eviction policy that removes locks is not detected";
    without(&["+info"]).is_well_with_note(note);
    // doctor names all missing rights at once, and not one after the other.
    let missing = ["+pexpireat", "+evalsha", "+time", "+ssubscribe", "+spublish"];
    let found = without(&missing);
    for missing in missing {
        assert!(found.has("rights", &format!("user locks lacks {missing}")), "{missing}: {}", found.text);
    }
}

#[test]
fn notifications_that_are_refused_in_scripts_are_found() {
    let node = Node::builder(Server::Redis70).proxied().start().expect("it starts");
    doctor_at(&node).is_well();
    // The proxy's script is the server's own refusal: a script may not subscribe.
    let publishes = Matcher::command("EVAL").and("'SPUBLISH', ARGV");
    node.proxy().replace_requests(publishes, &["EVAL", "return redis.call('SSUBSCRIBE', 'x')", "0"]);
    let refusal = "the server refuses SPUBLISH inside scripts (This Redis command is not allowed from script";
    doctor_at(&node).only("rights", refusal).only_advises("rights", "permit SPUBLISH in scripts");
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
    let node = Node::builder(Server::Redis70).without_command("PEXPIREAT").start().expect("it starts");
    doctor_at(&node).only("rights", "no PEXPIREAT");
}

#[test]
fn what_is_wrong_with_a_cluster_is_found() {
    let cluster = Cluster::builder(Server::Redis70).primaries(3).replicas(0).clock().start().expect("it starts");
    let urls = cluster.urls().join(",");
    of_cluster(&cluster, "").is_well();

    doctor_at(&cluster.nodes()[0]).only("topology", "part of a cluster");
    doctor(at_cluster(&SERVER.url())).only("topology", "part of no cluster");

    cluster.nodes()[1].clock().step_forward(Duration::from_millis(300));
    of_cluster(&cluster, "").only("clocks", "apart");
    cluster.nodes()[1].clock().set_right();

    doctor(with_replicas(program(&["--cluster", &urls]), "1")).only("replicas", "0 of the 1");

    for node in cluster.nodes() {
        ask(node, &["CLUSTER", "DELSLOTS", "77"]);
    }
    of_cluster(&cluster, "").only("slots", "no primary owns slots 77");
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
    doctor(with_them(&url)).is_well();

    doctor(at(&url, &[])).only("tls", "certificate").only_advises("tls", "RWLOCK_TLS_CA");
    let mut stranger = with_them(&url);
    stranger.env_remove("RWLOCK_TLS_CLIENT_CERTIFICATE").env_remove("RWLOCK_TLS_CLIENT_KEY");
    doctor(stranger).only_advises("tls", "RWLOCK_TLS_CLIENT_CERTIFICATE");
    let plain = at(&url.replace("rediss://", "redis://"), &[]);
    doctor(plain).only("tls", "speaks TLS").only_advises("tls", "use rediss://");
    let other = with_certificates(at(&SERVER.url().replace("redis://", "rediss://:s3cret@"), &[]), certificates);
    doctor(other).only("tls", "speaks no TLS").only_advises("tls", "use redis://");
    doctor(with_them(&url.replace("s3cret", "s3cret2"))).only("login", "");

    set(&node, "bind", "127.0.0.1 127.0.0.2");
    let unnamed = url.replace("127.0.0.1", "127.0.0.2");
    doctor(with_them(&unnamed)).only_advises("tls", "RWLOCK_TLS_SERVER_NAME");
    let mut named = with_them(&unnamed);
    named.env("RWLOCK_TLS_SERVER_NAME", "localhost");
    doctor(named).is_well();

    let user = ["ACL", "SETUSER", "locks", "on", ">s3cret", "~*", "&*", "+@all", "-ssubscribe"];
    ask(&node, &user);
    let named = with_them(&url.replace("rediss://:s3cret@", "rediss://locks:s3cret@"));
    doctor(named).only_advises("rights", "ACL SETUSER locks +ssubscribe");

    set(&node, "maxmemory-policy", "volatile-ttl");
    doctor(with_them(&url)).only("memory-policy", "volatile-ttl");
}

#[test]
fn what_is_wrong_behind_sentinels_is_found() {
    let sentinels =
        Sentinels::builder(Server::Redis70).password("s3cret").tls(TlsClients::Required).start().expect("they start");
    // User and password of the first URL are those of primary and replicas.
    let urls = sentinels.urls().join(",").replacen("rediss://", "rediss://:s3cret@", 1);
    let of_primary = |name: &str| {
        let mut command = without_node(&[]);
        command.env("RWLOCK_SENTINEL_PRIMARY", name).env("RWLOCK_SENTINEL_URLS", &urls);
        with_certificates(command, sentinels.sentinels()[0].certificates_dir())
    };
    let of_sentinels = || of_primary(sentinels.primary_name());
    doctor(of_sentinels()).is_well();
    doctor(with_replicas(of_sentinels(), "3")).only("replicas", "2 of the 3");

    let [replica, ..] = sentinels.replicas()[..] else { panic!("it has replicas") };
    set(replica, "maxmemory-policy", "volatile-lru");
    // A later failover may make it the primary.
    doctor(of_sentinels()).only("memory-policy", "volatile-lru");
    set(replica, "maxmemory-policy", "noeviction");

    let found = doctor(of_primary("nobody"));
    assert!(
        found.has("primary", "no server") && found.has("unreachable", "knows no primary \"nobody\""),
        "{}",
        found.text
    );
    let sentinel = with_certificates(at(&sentinels.urls()[0], &[]), sentinels.sentinels()[0].certificates_dir());
    doctor(sentinel).only("topology", "Sentinel");

    sentinels.sentinels()[2].kill();
    doctor(of_sentinels()).only("unreachable", "");
}

#[test]
fn password_that_no_server_wants_is_a_warning() {
    let found = doctor(at(&SERVER.url().replace("redis://", "redis://:s3cret@"), &[]));
    found.only("login", "requires none").names(&[&SERVER]);
}

fn of_cluster(cluster: &Cluster, user: &str) -> Found {
    doctor(at_cluster(&cluster.urls().join(",").replace("redis://", &format!("redis://{user}"))))
}

/// Creates the user with the rights that a cluster needs.
fn allow_user(node: &Node) {
    let rules = [&["reset"][..], &RIGHTS, &["+cluster|slots", "+asking"]].concat();
    node.acl_set_user("locks", &rules).expect("the server knows all rights");
}

fn set(node: &Node, name: &str, value: &str) {
    ask(node, &["CONFIG", "SET", name, value]);
}

#[test]
fn every_primary_is_looked_at() {
    let cluster = three_primaries();
    let nodes: Vec<&Node> = cluster.nodes().iter().collect();
    nodes.iter().for_each(|node| allow_user(node));
    let allow = |node: &Node, rules: &[&str]| node.acl_set_user("locks", rules).expect("the server knows all rights");
    let user = "locks:s3cret@";
    of_cluster(&cluster, user).is_well();

    let set_all = |name: &str, value: &str| nodes.iter().for_each(|node| set(node, name, value));
    set_all("maxmemory-policy", "volatile-ttl");
    of_cluster(&cluster, user).only("memory-policy", "volatile-ttl").names(&nodes);
    set_all("maxmemory-policy", "noeviction");

    set_all("maxmemory", "1");
    of_cluster(&cluster, user).only("memory", "maxmemory 1").names(&nodes);
    // Without the right to ask for the memory, doctor finds the fault by a lock at each primary.
    nodes.iter().for_each(|node| allow(node, &["-info"]));
    of_cluster(&cluster, user).only("trial", "out of memory").names(&nodes);
    set(nodes[0], "maxmemory", "0");
    of_cluster(&cluster, user).only("trial", "out of memory").names(&nodes[1..]);
    set_all("maxmemory", "0");
    nodes.iter().for_each(|node| allow(node, &["+info"]));

    nodes[1..].iter().for_each(|node| allow(node, &["-hset"]));
    of_cluster(&cluster, user).only("rights", "+hset").names(&nodes[1..]);
}

fn hosts_in(reply: &Reply, host: &str) -> usize {
    match reply {
        Reply::Array(replies) => replies.iter().map(|reply| hosts_in(reply, host)).sum(),
        other => usize::from(other.text().is_some_and(|text| text == host)),
    }
}

/// Tests a user who names one member, which announces addresses that cannot be reached.
#[test]
fn announced_address_that_cannot_be_reached_has_its_source() {
    const INSIDE: &str = "127.9.9.9";
    let cluster = three_primaries();
    for node in cluster.nodes() {
        set(node, "cluster-announce-hostname", INSIDE);
        set(node, "cluster-preferred-endpoint-type", "hostname");
    }
    let seed = &cluster.nodes()[0];
    let slots = || seed.command(&["CLUSTER", "SLOTS"]).expect("answered");
    until("all members have heard of the names", || hosts_in(&slots(), INSIDE) == 3);
    let found = doctor(at_cluster(&seed.url()));
    let source = format!("; the address was announced by the cluster at {}", seed.addr());
    found.only("unreachable", &source);
    for node in cluster.nodes() {
        assert!(found.nodes.contains(&format!("{INSIDE}:{}", node.port())), "{}", found.text);
    }
    let once =
        |(_, message): &(String, String)| message.matches("the address was").count() == 1 && message.ends_with(&source);
    assert!(found.findings.iter().all(once), "{}", found.text);
}

#[test]
fn node_timeout_of_a_cluster_is_compared_with_the_lease() {
    let cluster = three_primaries();
    let nodes: Vec<&Node> = cluster.nodes().iter().collect();
    let timeout = |nodes: &[&Node], ms: &str| nodes.iter().for_each(|node| set(node, "cluster-node-timeout", ms));
    // Redis has this timeout by default.
    timeout(&nodes, "15000");
    let found = of_cluster(&cluster, "");
    found.only("node-timeout", "15s").only_advises("node-timeout", "CONFIG SET cluster-node-timeout").names(&nodes);
    let mut longer = at_cluster(&cluster.urls().join(","));
    longer.env("RWLOCK_LEASE", "40s");
    doctor(longer).is_well();
    timeout(&nodes[..2], "5000");
    of_cluster(&cluster, "").names(&nodes[2..]);
    timeout(&nodes, "5000");
    of_cluster(&cluster, "").is_well();
}

#[test]
fn user_that_replicas_do_not_know_is_found() {
    let cluster = Cluster::builder(Server::Redis70).primaries(3).replicas(1).start().expect("it starts");
    let is_replica =
        |node: &Node| ask(node, &["INFO", "replication"]).text().is_some_and(|info| info.contains("role:slave"));
    let (replicas, primaries): (Vec<&Node>, Vec<&Node>) = cluster.nodes().iter().partition(|node| is_replica(node));
    assert_eq!((primaries.len(), replicas.len()), (3, 3));
    primaries.iter().for_each(|node| allow_user(node));
    of_cluster(&cluster, "locks:s3cret@").only_advises("login", "ACLs are not replicated").names(&replicas);
    replicas.iter().for_each(|node| allow_user(node));
    of_cluster(&cluster, "locks:s3cret@").is_well();
}

/// Returns the peak memory of a running process, in KiB.
fn peak_kib(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

/// Starts a server that announces 4 GiB, and sends them.
fn endless() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("accepted");
            thread::spawn(move || {
                let mut request = [0; 1024];
                if stream.read(&mut request).is_err() || stream.write_all(b"$4294967296\r\n").is_err() {
                    return;
                }
                while stream.write_all(&[b'x'; 1 << 16]).is_ok() {}
            });
        }
    });
    addr
}

#[test]
fn answer_without_end_costs_little() {
    let mut command = at(&format!("redis://{}", endless()), &["--json", "doctor"]);
    let mut doctor = command.stdout(Stdio::null()).spawn().expect("it starts");
    let mut peak = 0;
    until("it has ended", || {
        peak = peak_kib(doctor.id()).unwrap_or(0).max(peak);
        doctor.try_wait().expect("it is ours").is_some()
    });
    assert!(peak < 64 << 10, "{peak} KiB");
}
