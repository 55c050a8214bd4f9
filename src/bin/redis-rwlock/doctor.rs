//! `doctor`: what is wrong with the servers, all of it at once.
//!
//! The library stops at the first thing that keeps it from working. This asks each server by itself, past the library, and tries
//! the commands one by one.

use std::collections::BTreeMap;
use std::num::NonZeroU8;
use std::process;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use redis_rwlock::{Health, NodeHealth, NodeRole, RwLockManager};
use serde::Serialize;

use crate::exit::{Code, Failure};
use crate::output::Output;
use crate::settings::{Place, Settings};
use crate::span::Span;
use crate::table::{columns, shown};

mod finding;
mod link;
mod rights;
mod survey;

use finding::{Finding, Findings, Level};
use survey::Survey;

/// How many servers are asked at a time.
const AT_ONCE: usize = 16;
const DEFAULT_CLOCK_MARGIN: Duration = Duration::from_millis(100);
const DEFAULT_RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);

/// What is printed.
#[derive(Debug, Serialize)]
struct Report<'a> {
    ok: bool,
    nodes: &'a [NodeHealth],
    findings: Vec<Finding>,
}

pub(crate) async fn doctor(replicas: Option<NonZeroU8>, settings: &Settings, output: Output) -> Result<Code, Failure> {
    let manager = settings.manager()?;
    let health = manager.health().await?;
    let asked = replicas.or_else(|| settings.text("DURABILITY_REPLICAS")?.parse().ok());
    let mut findings = Findings::default();
    let found = health.nodes.iter().filter(|node| node.role != NodeRole::Sentinel);
    let found = found.map(|node| (node.address.clone(), node.role)).collect();
    let mut surveys = survey_all(found, settings, asked.is_some(), &mut findings).await;
    if let Place::Sentinel(_) = settings.place() {
        // The library learns of replicas when one of them is the primary.
        let replicas =
            surveys.values().flat_map(Survey::replicas).map(|address| (address, NodeRole::Replica)).collect();
        surveys.extend(survey_all(replicas, settings, asked.is_some(), &mut findings).await);
    }
    for (node, survey) in &surveys {
        survey.tell(node, &settings.place(), asked, &mut findings);
    }
    let refused = surveys.iter().flat_map(|(node, survey)| survey.refused.iter().map(move |refused| (node, refused)));
    rights::tell(refused, settings, &mut findings);
    if let Place::Cluster(_) = settings.place() {
        survey::tell_slots(&surveys, &mut findings);
    }
    tell_health(&health, settings, &mut findings);
    if findings.has_no_problem() {
        try_a_lock(settings, &mut findings).await;
    }
    let findings = findings.in_order();
    let ok = findings.iter().all(|finding| finding.level == Level::Note);
    let report = Report { ok, nodes: &health.nodes, findings };
    output.answer(&report, || text(&report))?;
    Ok(if ok { Code::OK } else { Code::NO })
}

/// Asks each of these servers, by address.
async fn survey_all(
    nodes: Vec<(String, NodeRole)>,
    settings: &Settings,
    wants_replicas: bool,
    findings: &mut Findings,
) -> BTreeMap<String, Survey> {
    let asking = nodes.into_iter().map(|(address, role)| async move {
        let survey = Survey::ask(&address, settings, wants_replicas).await;
        (address, role, survey)
    });
    let asked: Vec<_> = stream::iter(asking).buffer_unordered(AT_ONCE).collect().await;
    let mut surveys = BTreeMap::new();
    for (address, role, survey) in asked {
        match survey {
            Ok(survey) => drop(surveys.insert(address, survey)),
            Err(failure) => {
                let level = if role == NodeRole::Replica { Level::Warning } else { Level::Problem };
                findings.add(failure.finding(level, &address));
            }
        }
    }
    surveys
}

/// What the library says of servers of which nothing worse is known, and of them together.
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
        findings.add(Finding::new(Level::Problem, "primary", "no server is known that takes locks"));
    }
    let margin = settings.span("CLOCK_MARGIN", DEFAULT_CLOCK_MARGIN);
    if let Some(spread) = health.clock_spread().filter(|spread| *spread >= margin) {
        let clocks = health.nodes.iter().filter(|node| node.clock_ahead_ms.is_some());
        let (first, last) = (clocks.clone().min_by_key(|n| n.clock_ahead_ms), clocks.max_by_key(|n| n.clock_ahead_ms));
        let message =
            format!("the servers' clocks are {} apart, and clock_margin allows {}", Span(spread), Span(margin));
        let finding =
            Finding::new(Level::Problem, "clocks", message).advise("run NTP on the servers, or raise clock_margin");
        let ends = first.into_iter().chain(last).map(|node| &*node.address);
        findings.add(ends.fold(finding, Finding::at));
    }
    let slow = settings.span("RESPONSE_TIMEOUT", DEFAULT_RESPONSE_TIMEOUT) / 4;
    for node in health.nodes.iter().filter(|node| node.round_trip.is_some_and(|round_trip| round_trip > slow)) {
        let took = node.round_trip.unwrap_or_default();
        let message = format!("a round trip takes {}, near response_timeout", Span(took));
        findings.add(
            Finding::new(Level::Warning, "round-trip", message).at(&node.address).advise("raise response_timeout"),
        );
    }
}

/// Nothing is known to be wrong: the last word has a lock of our own.
async fn try_a_lock(settings: &Settings, findings: &mut Findings) {
    let attempt = async {
        let manager = settings.manager()?;
        let began = Instant::now();
        let guard = manager.try_write(&format!("redis-rwlock doctor {}", process::id())).await?;
        if let Some(guard) = guard {
            guard.release().await?;
        }
        Ok::<_, Failure>(began.elapsed())
    };
    findings.add(match attempt.await {
        Ok(took) => Finding::new(Level::Note, "trial", format!("a lock was taken and given back in {}", Span(took))),
        Err(failure) => Finding::new(Level::Problem, "trial", failure.message),
    });
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
    let round_trip = node.round_trip.map(|span| Span(span).to_string()).unwrap_or_default();
    let clock = node.clock_ahead_ms.map(|ahead| format!("{ahead:+} ms")).unwrap_or_default();
    [node.address.clone(), role, server, round_trip, clock]
}
