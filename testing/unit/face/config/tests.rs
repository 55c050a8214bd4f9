use super::*;
use crate::base::durability::{Durability, Replicas};

/// Configuration in which no field has its default.
const JSON: &str = r#"{
    "topology": {"sentinel": {"primary": "main", "urls": ["rediss://:s3cret@a", "rediss://b"]}},
    "tls": {"ca": "/ca.pem", "client_certificate": "/c.pem", "client_key": "/k.pem", "server_name": "locks"},
    "password_file": "/password", "lease": "11s", "max_hold": "max", "wait_timeout": "1.5s", "unreachable_after": "2m",
    "response_timeout": "250ms", "max_clock_skew": "50ms", "join_window": "0ms",
    "reentry": "per_task", "key_prefix": "shop", "label": "billing-1", "timestamp_keys": "lock:*",
    "timestamp_clients": {"read": "2s", "write": "4s", "key_ttl": "12s"}, "max_handoffs": 7, "cache_for": "30s", "max_cached": 9, "max_waiters": 8, "recall_timeout": "70ms", "lock_watchdog_timeout": "12s",
    "durability": {"replicas": 2, "timeout": "90ms"}
}"#;
const ENVIRONMENT: [(&str, &str); 29] = [
    ("L_SENTINEL_PRIMARY", "main"),
    ("L_SENTINEL_URLS", "rediss://:s3cret@a, rediss://b"),
    ("L_TLS_CA", "/ca.pem"),
    ("L_TLS_CLIENT_CERTIFICATE", "/c.pem"),
    ("L_TLS_CLIENT_KEY", "/k.pem"),
    ("L_TLS_SERVER_NAME", "locks"),
    ("L_PASSWORD_FILE", "/password"),
    ("L_LEASE", "11s"),
    ("L_MAX_HOLD", "max"),
    ("L_WAIT_TIMEOUT", "1.5s"),
    ("L_UNREACHABLE_AFTER", "2m"),
    ("L_RESPONSE_TIMEOUT", "250ms"),
    ("L_MAX_CLOCK_SKEW", "50ms"),
    ("L_JOIN_WINDOW", "0ms"),
    ("L_REENTRY", "per_task"),
    ("L_KEY_PREFIX", "shop"),
    ("L_LABEL", "billing-1"),
    ("L_TIMESTAMP_KEYS", "lock:*"),
    ("L_TIMESTAMP_CLIENTS_READ", "2s"),
    ("L_TIMESTAMP_CLIENTS_WRITE", "4s"),
    ("L_TIMESTAMP_CLIENTS_KEY_TTL", "12s"),
    ("L_MAX_HANDOFFS", "7"),
    ("L_CACHE_FOR", "30s"),
    ("L_MAX_CACHED", "9"),
    ("L_MAX_WAITERS", "8"),
    ("L_LOCK_WATCHDOG_TIMEOUT", "12s"),
    ("L_RECALL_TIMEOUT", "70ms"),
    ("L_DURABILITY_REPLICAS", "2"),
    ("L_DURABILITY_TIMEOUT", "90ms"),
];

fn from_vars(vars: &[(&str, &str)]) -> Result<Config> {
    Config::from_vars("L", vars.iter().map(|(name, value)| ((*name).into(), (*value).into())))
}

fn from_json(json: &str) -> serde_json::Result<Config> {
    serde_json::from_str(json)
}

#[test]
fn file_and_environment_say_the_same_and_the_builder_has_it() {
    let config = from_json(JSON).expect("readable");
    let others = [("L2_NODE", "x"), ("PATH", "/bin"), ("LX", "y")];
    assert_eq!(from_vars(&[&ENVIRONMENT[..], &others].concat()).expect("readable"), config);
    let tls = Tls::new().ca_file("/ca.pem").client_files("/c.pem", "/k.pem").server_name("locks");
    let topology = Topology::sentinel("main", ["rediss://:s3cret@a", "rediss://b"]).tls(tls).password_file("/password");
    let span = std::time::Duration::from_millis;
    let built = RedisManager::builder(topology)
        .lease(span(11_000))
        .max_hold(std::time::Duration::MAX)
        .wait_timeout(span(1_500))
        .unreachable_after(span(120_000))
        .response_timeout(span(250))
        .max_clock_skew(span(50))
        .join_window(span(0))
        .reentry(Reentry::PerTask)
        .key_prefix("shop")
        .label("billing-1")
        .timestamp_keys("lock:*")
        .timestamp_clients(TimestampClients::new(span(2_000), span(4_000)).key_ttl(span(12_000)))
        .max_handoffs(7)
        .cache_for(span(30_000))
        .max_cached(9)
        .max_waiters(8)
        .recall_timeout(span(70))
        .durability(Durability::Replicated { replicas: Replicas::At(2), timeout: span(90) });
    assert_eq!(format!("{:?}", config.builder()), format!("{built:?}"));
    assert!(!format!("{config:?} {built:?}").contains("s3cret"));
}

#[test]
fn what_is_not_said_is_as_by_default() {
    let config = from_json(r#"{"topology": {"node": "redis://a"}}"#).expect("readable");
    assert_eq!(from_vars(&[("L_NODE", "redis://a")]).expect("readable"), config);
    assert_eq!(format!("{:?}", config.builder()), format!("{:?}", RedisManager::builder("redis://a")));
    let cluster = from_vars(&[("L_CLUSTER", "redis://a,redis://b")]).expect("readable");
    assert_eq!(cluster.topology, Topology::cluster(["redis://a", "redis://b"]));
}

#[test]
fn durability_has_the_same_levels_in_files_and_variables() {
    let replicated = |replicas| Durability::Replicated { replicas, timeout: std::time::Duration::from_millis(90) };
    for (json, vars, level) in [
        (r#""primary""#, &[("L_DURABILITY", "primary")][..], Durability::Primary),
        (r#""server""#, &[("L_DURABILITY", "server")], Durability::Server),
        (
            r#"{"replicas": 255, "timeout": "90ms"}"#,
            &[("L_DURABILITY_REPLICAS", "255"), ("L_DURABILITY_TIMEOUT", "90ms")],
            replicated(Replicas::At(255)),
        ),
        (
            r#"{"replicas": "all", "timeout": "90ms"}"#,
            &[("L_DURABILITY_REPLICAS", "all"), ("L_DURABILITY_TIMEOUT", "90ms")],
            replicated(Replicas::All),
        ),
    ] {
        let config = from_json(&format!(r#"{{"topology": {{"node": "a"}}, "durability": {json}}}"#)).expect(json);
        assert_eq!(config.durability, Some(DurabilityField(level)), "{json}");
        assert_eq!(from_vars(&[&[("L_NODE", "a")], vars].concat()).expect(json), config);
    }
    for json in
        [r#""servers""#, "1", r#"{"replicas": 256, "timeout": "1s"}"#, r#"{"replicas": "some", "timeout": "1s"}"#]
    {
        from_json(&format!(r#"{{"topology": {{"node": "a"}}, "durability": {json}}}"#)).expect_err(json);
    }
}

#[test]
fn unknown_fields_are_errors_at_every_depth() {
    for (at, extra) in [(r#""a"}"#, r#""a"}, "leese": "1s""#), (r#""a"}"#, r#""a"}, "tls": {"cert": "x"}"#)] {
        let json = r#"{"topology": {"node": "a"}}"#.replace(at, extra);
        let error = from_json(&json).expect_err("a field that does not exist").to_string();
        assert!(error.contains("unknown field"), "{error}");
    }
    for json in [
        r#"{"topology": {"node": "a"}, "timestamp_clients": {"reed": "1s"}}"#,
        r#"{"topology": {"nodes": "a"}}"#,
        r#"{"topology": {"sentinel": {"primary": "a", "urls": [], "user": "b"}}}"#,
        r#"{"lease": "1s"}"#,
        r#"{"topology": {"node": "a"}, "lease": 10}"#,
    ] {
        from_json(json).expect_err(json);
    }
    let error = from_vars(&[("L_NODE", "a"), ("L_LEESE", "1s")]).expect_err("no option").to_string();
    assert!(error.contains("L_LEESE") && error.contains("L_LEASE"), "{error}");
}

#[test]
fn error_about_a_topology_has_its_forms_and_no_password() {
    for topology in [
        r#""redis://:s3cret@h""#,
        r#"{"redis://:s3cret@h": "a"}"#,
        r#"{"node": ["redis://:s3cret@h"]}"#,
        r#"{"cluster": "redis://:s3cret@h"}"#,
        r#"{"sentinel": "redis://:s3cret@h"}"#,
        r#"{"sentinel": {"primary": "main", "urls": "redis://:s3cret@h"}}"#,
        r#"{"sentinel": {"primary": "main", "redis://:s3cret@h": []}}"#,
    ] {
        let error = from_json(&format!(r#"{{"topology": {topology}}}"#)).expect_err(topology).to_string();
        assert!(!error.contains("s3cret"), "{error}");
        assert!(error.contains(r#"{"cluster": [url, …]}"#) && error.contains(" at line 1 column "), "{error}");
    }
    for (topology, meant) in [
        (r#"{"node": "redis://:s3cret@h"}"#, Topology::node("redis://:s3cret@h")),
        (r#"{"cluster": ["redis://a", "redis://b"]}"#, Topology::cluster(["redis://a", "redis://b"])),
        (r#"{"sentinel": {"primary": "m", "urls": ["redis://a"]}}"#, Topology::sentinel("m", ["redis://a"])),
        (r#"{"proxy": "redis://a"}"#, Topology::proxy("redis://a")),
    ] {
        assert_eq!(from_json(&format!(r#"{{"topology": {topology}}}"#)).expect(topology).topology, meant);
    }
}

#[test]
fn variables_of_others_stop_nobody() {
    let set = |name: &'static str| from_vars(&[("L_NODE", "a"), (name, "tcp://10.0.0.1:6379")]);
    for name in ["L_PORT", "L_SERVICE_HOST", "L_NODE_PORT_6379_TCP", "L_NAME", "L_FENCING_TOKEN", "L_SOMETHING"] {
        assert_eq!(set(name).expect(name), from_vars(&[("L_NODE", "a")]).expect("readable"));
    }
    // Each field must be a known name: an unknown one would be ignored.
    for (name, _) in ENVIRONMENT.iter().chain(&[("L_NODE", ""), ("L_CLUSTER", ""), ("L_PROXY", "")]) {
        assert_eq!(names::owner_of(name.strip_prefix("L_").expect("the prefix")), VariableOwner::Config, "{name}");
    }
    // The other level excludes the replicas of the list.
    assert_eq!(names::owner_of("DURABILITY"), VariableOwner::Config);
    assert_eq!(ENVIRONMENT.len() + 4, names::FIELDS.len());
}

#[test]
fn environment_is_told_what_is_wrong_and_no_password() {
    for (vars, part) in [
        (&[][..], "none of L_NODE"),
        (&[("L_NODE", "redis://:s3cret@a"), ("L_CLUSTER", "redis://:s3cret@b")], "more than one"),
        (&[("L_SENTINEL_URLS", "redis://:s3cret@a")], "or neither"),
        (&[("L_NODE", "a"), ("L_LEASE", "soon")], "L_LEASE"),
        (&[("L_NODE", "a"), ("L_REENTRY", "on")], "L_REENTRY"),
        (&[("L_NODE", "a"), ("L_MAX_HANDOFFS", "-1")], "L_MAX_HANDOFFS"),
        (&[("L_NODE", "a"), ("L_DURABILITY_REPLICAS", "0")], "L_DURABILITY_REPLICAS"),
        (&[("L_NODE", "a"), ("L_DURABILITY_REPLICAS", "1")], "or neither"),
        (&[("L_NODE", "a"), ("L_DURABILITY", "replicated")], "L_DURABILITY must be primary or server"),
        (&[("L_NODE", "a"), ("L_DURABILITY", "server"), ("L_DURABILITY_TIMEOUT", "9ms")], "set either L_DURABILITY,"),
    ] {
        let error = from_vars(vars).expect_err(part).to_string();
        assert!(error.contains(part) && !error.contains("s3cret"), "{error}");
    }
}
