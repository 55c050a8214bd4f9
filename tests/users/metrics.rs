//! Tests of the example `metrics` during an outage. The service exports all metrics of docs/alerts.yml and
//! docs/dashboard.json. `promtool` evaluates the rules, which report the outage.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use cluster_testenv::{Node, Server, wait_for};
use redis_rwlock::blocking;

use crate::documents::{read, root};
use crate::examples::{BOUND, http, serve};

/// Wait that is longer than the limit in the rule for long waits.
const LONG_WAIT: Duration = Duration::from_millis(10_100);

/// Metrics that a service exports at one time. The keys are series with their labels.
#[derive(Clone, Debug)]
struct Scrape(BTreeMap<String, f64>);

impl Scrape {
    fn of(port: u16) -> Self {
        let answer = http(port, "GET /metrics");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.contains("200 OK"), "{head}");
        let lines = body.lines().filter(|line| line.starts_with("rwlock_"));
        let series = lines.map(|line| {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            (series.to_owned(), value.parse().expect("a number"))
        });
        Self(series.collect())
    }

    fn has(&self, series: &str, value: f64) -> bool {
        self.0.get(series).is_some_and(|now| *now >= value)
    }
}

/// Metric that an expression selects, with its conditions on labels.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Selector {
    metric: String,
    /// Labels, each with the values that it may have.
    labels: Vec<(String, Vec<String>)>,
}

/// Returns the selectors in a file of rules or in a dashboard.
fn selectors(text: &str) -> BTreeSet<Selector> {
    let text = text.replace("\\\"", "\"");
    let mut found = BTreeSet::new();
    for rest in text.split("rwlock_").skip(1) {
        let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(rest.len());
        let inner = rest[end..].strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(inner, _)| inner);
        let matchers = inner.split(',').filter_map(|matcher| {
            let (label, values) = matcher.trim().split_once('=')?;
            let values = values.trim_start_matches('~').trim_matches('"').split('|').map(str::to_owned);
            Some((label.to_owned(), values.collect::<Vec<_>>()))
        });
        // Prometheus adds the label `job` by itself.
        let labels = matchers.filter(|(label, _)| label != "job").collect();
        found.insert(Selector { metric: format!("rwlock_{}", &rest[..end]), labels });
    }
    found
}

/// Returns the labels by which expressions group a metric, without the labels that Prometheus adds.
fn groupings(text: &str) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for rest in text.split(" by (").skip(1) {
        let (labels, behind) = rest.split_once(')').expect("its end");
        let (_, metric) = behind.split_once("rwlock_").expect("a metric");
        let end = metric.find(|c: char| !c.is_ascii_lowercase() && c != '_').expect("more behind it");
        let labels = labels.split(", ").filter(|label| *label != "job");
        found.extend(labels.map(|label| (format!("rwlock_{}", &metric[..end]), label.to_owned())));
    }
    found
}

/// Asserts that the service exports all metrics and labels that rules and panels select.
fn assert_exports_what_is_asked_for(scrape: &Scrape) {
    for name in ["alerts.yml", "dashboard.json"] {
        let text = read(format!("docs/{name}"));
        let mut selectors = selectors(&text);
        // A single node has no map of slots, so the service does not export this metric.
        selectors.retain(|selector| selector.metric != "rwlock_map_refreshes_total");
        assert!(selectors.len() >= 8, "{name}: {selectors:?}");
        for Selector { metric, labels } in &selectors {
            let of_metric = |series: &&String| series.split('{').next() == Some(metric);
            assert!(scrape.0.keys().any(|series| of_metric(&series)), "{name} asks for {metric}: {scrape:#?}");
            for (label, values) in labels {
                for value in values {
                    let pair = format!("{label}=\"{value}\"");
                    let is_there = scrape.0.keys().filter(of_metric).any(|series| series.contains(&pair));
                    assert!(is_there, "{name} asks for {metric} with {pair}: {scrape:#?}");
                }
            }
        }
        for (metric, label) in groupings(&text) {
            let mut series = scrape.0.keys().filter(|series| series.split('{').next() == Some(&metric));
            assert!(series.all(|series| series.contains(&format!("{label}=\""))), "{name}: {metric} has no {label}");
        }
    }
}

/// Metrics for five minutes, and the rules that must fire during this time if the test checks them.
type Phase<'a> = (&'a Scrape, Option<&'a [&'a str]>);

/// Returns the text of a test for promtool.
fn promtool_test(phases: &[Phase<'_>]) -> String {
    let rules = root().join("docs/alerts.yml");
    let mut text = format!("rule_files: [{}]\nevaluation_interval: 30s\ntests:\n  - interval: 30s\n", rules.display());
    text += "    input_series:\n";
    let all: BTreeSet<&String> = phases.iter().flat_map(|(scrape, _)| scrape.0.keys()).collect();
    for series in all {
        let with_job = match series.split_once('{') {
            Some((metric, labels)) => format!("{metric}{{job=\"shop\",{labels}"),
            None => format!("{series}{{job=\"shop\"}}"),
        };
        let values = phases.iter().map(|(scrape, _)| match scrape.0.get(series) {
            Some(value) => format!("{value}x9"),
            None => "_x10".to_owned(),
        });
        let values = values.collect::<Vec<_>>().join(" ");
        writeln!(text, "      - {{series: '{with_job}', values: '{values}'}}").expect("a String takes all");
    }
    text += "    promql_expr_test:\n";
    for (number, (_, alerts)) in phases.iter().enumerate() {
        let Some(alerts) = alerts else { continue };
        let minutes = number * 5 + 3;
        writeln!(text, "      - eval_time: {minutes}m\n        expr: count by (alertname) (ALERTS)")
            .expect("a String takes all");
        let samples = alerts.iter().map(|alert| format!("{{labels: '{{alertname=\"{alert}\"}}', value: 1}}"));
        writeln!(text, "        exp_samples: [{}]", samples.collect::<Vec<_>>().join(", "))
            .expect("a String takes all");
    }
    text
}

#[test]
fn alerts_tell_of_an_outage_by_what_a_service_exports() {
    let node = Node::start(Server::Redis70).expect("the server starts");
    let elsewhere = blocking::RedisManager::connect(node.url()).expect("connected");
    let leader = elsewhere.write("leader").wait().expect("granted");
    let (_service, _lines, port) = serve("metrics", &node);
    let until = |what: &str, series: &[(&str, f64)]| {
        wait_for(what, BOUND, || {
            let scrape = Scrape::of(port);
            series.iter().all(|(series, value)| scrape.has(series, *value)).then_some(scrape)
        })
        .unwrap_or_else(|error| panic!("{error}: {:#?}", Scrape::of(port)))
    };

    let waits = until("it waits", &[("rwlock_waiters{mode=\"write\"}", 1.0)]);
    thread::sleep(LONG_WAIT);
    leader.release().expect("released");
    let leads = until("it leads", &[("rwlock_holds{mode=\"write\"}", 1.0)]);
    node.kill();
    let outage = [
        ("rwlock_renewals_total{outcome=\"unanswered\"}", 1.0),
        ("rwlock_losses_total{mode=\"write\",reason=\"expired\"}", 1.0),
        ("rwlock_acquisitions_total{mode=\"write\",outcome=\"unreachable\"}", 1.0),
        ("rwlock_unusable_nodes", 1.0),
    ];
    let lost = until("it is told as lost", &outage);
    node.restart().expect("it starts again");
    let back = until("it leads again", &[("rwlock_holds{mode=\"write\"}", 1.0)]);
    assert_eq!(back.0.get("rwlock_unusable_nodes"), Some(&0.0));

    assert_exports_what_is_asked_for(&lost);
    let during = [
        "RwLockHoldsLost",
        "RwLockNodeUnusable",
        "RwLockRenewalsUnanswered",
        "RwLockServerUnreachable",
        "RwLockWaitsTooLong",
    ];
    let phases: [Phase<'_>; 5] = [
        (&waits, Some(&[])),
        (&leads, Some(&["RwLockWaitsTooLong"])),
        (&lost, Some(&during)),
        // The rules look back as far as ten minutes.
        (&back, None),
        (&back, Some(&[])),
    ];
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("alerts-{}.yml", std::process::id()));
    fs::write(&file, promtool_test(&phases)).expect("it can be written");
    let promtool = Command::new(".ci/alerts").arg(&file).output().expect("it starts");
    let said = [promtool.stdout, promtool.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(promtool.status.success(), "{}:\n{said}", file.display());
    fs::remove_file(&file).expect("it is ours");
}
