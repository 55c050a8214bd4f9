//! Command `doctor`, which reports all defects of the servers at once.
//!
//! The library stops at the first error. So this command connects to each server without the library, and tries the
//! commands of Redis one by one.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use redis_rwlock::{DurationText, Health, NodeFinding, NodeHealth, NodeRole, RwLockManager};
use serde::Serialize;

use crate::args::ManagerKind;
use crate::exit::{Code, Failure, in_words_of_users};
use crate::output::Output;
use crate::settings::{Place, Settings};
use crate::table::{columns, shown};

mod durability;
mod encrypted;
mod finding;
mod link;
mod memory_db;
mod rights;
mod survey;
mod tls;
mod trial;

pub(crate) use durability::Asked;
use finding::{Finding, Findings, Level};
use survey::Survey;

/// Limit of servers that `doctor` asks at the same time.
const AT_ONCE: usize = 16;
const DEFAULT_LEASE: Duration = Duration::from_secs(10);
const DEFAULT_MAX_CLOCK_SKEW: Duration = Duration::from_millis(100);
const DEFAULT_RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Printed result.
#[derive(Debug, Serialize)]
struct Report<'a> {
    ok: bool,
    nodes: &'a [NodeHealth],
    findings: Vec<Finding>,
}

pub(crate) async fn doctor(replicas: Option<Asked>, settings: &Settings, output: Output) -> Result<Code, Failure> {
    if settings.kind == ManagerKind::Redisson {
        let reason =
            "doctor knows the rights for locks of this crate's own format: see docs/OPERATIONS.md for Redisson's";
        return Err(Failure::new(Code::USAGE, reason));
    }
    let manager = settings.manager()?;
    let mut health = manager.health().await?;
    for problem in health.nodes.iter_mut().filter_map(|node| node.problem.as_mut()) {
        *problem = in_words_of_users(problem);
    }
    let asked = replicas.or_else(|| Asked::of(settings));
    let wants_replicas = asked.is_some_and(Asked::needs_wait);
    let mut findings = Findings::default();
    let found = health.nodes.iter().filter(|node| node.role != NodeRole::Sentinel);
    let found = found.map(|node| (node.address.clone(), node.role)).collect();
    let mut surveyed = Surveyed::default();
    surveyed.ask_all(found, settings, wants_replicas).await;
    if let Place::Sentinel(_) = settings.place() {
        // The library connects to a replica only when the replica becomes the primary. The user must know its defects
        // before that.
        let replicas = surveyed.surveys.values().flat_map(Survey::replicas);
        let replicas = replicas.map(|address| (address, NodeRole::Replica)).collect();
        surveyed.ask_all(replicas, settings, wants_replicas).await;
    }
    surveyed.tell_failures(settings, &mut findings);
    let surveys = surveyed.surveys;
    for (node, survey) in &surveys {
        survey.tell(node, &settings.place(), asked, &mut findings);
    }
    let refused = surveys.iter().flat_map(|(node, survey)| survey.refused.iter().map(move |refused| (node, refused)));
    rights::tell(refused, settings, &mut findings);
    if let Place::Cluster(_) = settings.place() {
        survey::tell_slots(&surveys, &mut findings);
        survey::tell_node_timeout(&surveys, settings.span("LEASE", DEFAULT_LEASE), &mut findings);
    }
    tell_health(&health, settings, &mut findings);
    // Nothing is known of the servers behind a proxy.
    if !matches!(settings.place(), Place::Proxy(_)) {
        durability::tell_levels(&surveys, asked, &mut findings);
    }
    if asked == Some(Asked::All) && findings.has_no_problem() {
        durability::tell_named(settings, &mut findings).await;
    }
    findings.add_sources(&health.nodes);
    if findings.has_no_problem() {
        trial::try_locks(&surveys, settings, &mut findings).await;
    }
    let findings = findings.in_order();
    let ok = findings.iter().all(|finding| finding.level == Level::Note);
    let report = Report { ok, nodes: &health.nodes, findings };
    output.answer(&report, || text(&report))?;
    Ok(if ok { Code::OK } else { Code::NO })
}

/// Results by address: the answers of servers, and the failures of servers that could not be asked.
#[derive(Debug, Default)]
struct Surveyed {
    surveys: BTreeMap<String, Survey>,
    failures: Vec<(String, NodeRole, link::Failure)>,
}

impl Surveyed {
    async fn ask_all(&mut self, nodes: Vec<(String, NodeRole)>, settings: &Settings, wants_replicas: bool) {
        let asking = nodes.into_iter().map(|(address, role)| async move {
            let survey = Survey::ask(&address, settings, wants_replicas).await;
            (address, role, survey)
        });
        let mut answers = stream::iter(asking).buffer_unordered(AT_ONCE);
        while let Some((address, role, survey)) = answers.next().await {
            match survey {
                Ok(survey) => drop(self.surveys.insert(address, survey)),
                Err(failure) => self.failures.push((address, role, failure)),
            }
        }
    }

    fn tell_failures(&self, settings: &Settings, findings: &mut Findings) {
        let user = rights::user(settings);
        let login = match (self.surveys.is_empty(), &*user) {
            (true, _) if settings.path("PASSWORD_FILE").is_some() => {
                "check the user in the URL and the password in the file".to_owned()
            }
            (true, _) => "check user and password in the URL".to_owned(),
            (false, "default") => {
                "set the password that the other servers have: passwords are not replicated".to_owned()
            }
            (false, user) => {
                format!("create user {user} on this server too: other servers accept it, and ACLs are not replicated")
            }
        };
        for (address, role, failure) in &self.failures {
            let level = if *role == NodeRole::Replica { Level::Warning } else { Level::Problem };
            findings.add(failure.finding(level, address, &login));
        }
    }
}

/// Reports the library's findings about each server without a problem so far, and about all servers together.
fn tell_health(health: &Health, settings: &Settings, findings: &mut Findings) {
    for node in &health.nodes {
        if let Some(problem) = &node.problem
            && !findings.concern(&node.address)
        {
            let level = match node.role {
                NodeRole::Primary | NodeRole::Unknown => Level::Problem,
                _ => Level::Warning,
            };
            findings.add(Finding::new(level, "unreachable", problem).at(&node.address));
        }
    }
    if health.nodes.iter().all(|node| !matches!(node.role, NodeRole::Primary | NodeRole::Unknown))
        && findings.has_no_problem()
    {
        findings.add(Finding::new(Level::Problem, "primary", "no server that grants locks is known"));
    }
    tell_clocks(health, settings.span("MAX_CLOCK_SKEW", DEFAULT_MAX_CLOCK_SKEW), findings);
    let timeout = settings.span("RESPONSE_TIMEOUT", DEFAULT_RESPONSE_TIMEOUT);
    let is_slow = |node: &&NodeHealth| node.round_trip.is_some_and(|round_trip| round_trip > timeout / 4);
    for node in health.nodes.iter().filter(is_slow) {
        let took = node.round_trip.unwrap_or_default();
        let message = format!(
            "a round trip takes {}, which is more than a quarter of response_timeout ({})",
            DurationText(took),
            DurationText(timeout)
        );
        findings.add(
            Finding::new(Level::Warning, "round-trip", message)
                .at(&node.address)
                .advise("raise response_timeout (RWLOCK_RESPONSE_TIMEOUT)"),
        );
    }
}

/// Reports clocks that differ too much. Names each server with a wrong clock, or the two servers whose clocks differ
/// most.
fn tell_clocks(health: &Health, margin: Duration, findings: &mut Findings) {
    let Some(spread) = health.clock_spread().filter(|spread| *spread >= margin) else { return };
    let is_off =
        |node: &&NodeHealth| node.findings.iter().any(|finding| matches!(finding, NodeFinding::ClockSkew { .. }));
    let mut off: Vec<_> = health.nodes.iter().filter(is_off).collect();
    if off.is_empty() {
        let clocks = || health.nodes.iter().filter(|node| node.clock_ahead_ms.is_some());
        off.extend(clocks().min_by_key(|node| node.clock_ahead_ms));
        off.extend(clocks().max_by_key(|node| node.clock_ahead_ms));
    }
    let message = format!(
        "the servers' clocks are {} apart, and max_clock_skew allows {}",
        DurationText(spread),
        DurationText(margin)
    );
    let finding = Finding::new(Level::Problem, "clocks", message)
        .advise("run NTP on the servers, or raise max_clock_skew (RWLOCK_MAX_CLOCK_SKEW)");
    findings.add(off.iter().fold(finding, |finding, node| finding.at(&node.address)));
}

fn text(report: &Report<'_>) -> String {
    let rows: Vec<_> = report.nodes.iter().map(row).collect();
    let mut lines = columns(["NODE", "ROLE", "SERVER", "ROUND TRIP", "CLOCK"], &rows);
    lines.push(String::new());
    for finding in &report.findings {
        lines.extend(finding.lines().iter().map(|line| shown(line)));
    }
    if report.ok {
        lines.push("all is well".to_owned());
    }
    lines.join("\n") + "\n"
}

fn row(node: &NodeHealth) -> [String; 5] {
    let role = format!("{:?}", node.role).to_lowercase();
    let server = [node.server.as_deref(), node.version.as_deref()].into_iter().flatten().collect::<Vec<_>>().join(" ");
    let round_trip = node.round_trip.map(|span| DurationText(span).to_string()).unwrap_or_default();
    let clock = node.clock_ahead_ms.map(|ahead| format!("{ahead:+} ms")).unwrap_or_default();
    [node.address.clone(), role, server, round_trip, clock]
}
