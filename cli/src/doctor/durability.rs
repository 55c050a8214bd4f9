//! Levels of durability: which of them the servers can do, and whether they can do the one that is asked for.

use std::collections::BTreeMap;
use std::num::NonZeroU8;
use std::str::FromStr;

use redis_rwlock::Error;

use super::finding::{Finding, Findings, Level};
use super::memory_db::is_of_memory_db;
use super::rights::WaitRight;
use super::survey::Survey;
use crate::settings::Settings;

/// Replicas that each primary must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    At(NonZeroU8),
    /// All replicas that the servers name.
    All,
    /// No replicas, because the service stores each write durably.
    Server,
}

impl FromStr for Asked {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "all" => Ok(Self::All),
            "server" => Ok(Self::Server),
            number => number.parse().map(Self::At).map_err(|_| "give a number from 1 to 255, all or server"),
        }
    }
}

impl Asked {
    /// Returns the level that the settings ask for. Returns `None` at the level of the primary.
    pub(super) fn of(settings: &Settings) -> Option<Self> {
        match settings.text("DURABILITY") {
            Some("server") => Some(Self::Server),
            _ => settings.text("DURABILITY_REPLICAS")?.parse().ok(),
        }
    }

    pub(super) fn needs_wait(self) -> bool {
        self != Self::Server
    }
}

/// Reports for each primary the levels that it can do. Primaries with the same levels share a note.
pub(super) fn tell_levels(surveys: &BTreeMap<String, Survey>, asked: Option<Asked>, findings: &mut Findings) {
    let mut notes: BTreeMap<(String, Option<&str>), Vec<&String>> = BTreeMap::new();
    for (node, survey) in surveys.iter().filter(|(_, survey)| survey.is_primary()) {
        let replicated = match (survey.wait, survey.online_replicas()) {
            (Some(WaitRight::Unknown), _) => "the server knows no WAIT, so it cannot do Replicated".to_owned(),
            (Some(WaitRight::Forbidden), _) => "the level Replicated needs the right +wait".to_owned(),
            (_, Some(0)) => "no replica is attached, so the server cannot do Replicated".to_owned(),
            (_, Some(online)) => format!("the server can do Replicated with up to {online} attached replicas"),
            (_, None) => "the number of replicas is not known, since the user lacks +info".to_owned(),
        };
        notes.entry((replicated, None)).or_default().push(node);
        if is_of_memory_db(node) {
            let message = "the server looks like MemoryDB, whose answers are durable".to_owned();
            let advice = (asked != Some(Asked::Server)).then_some("use the level Server (RWLOCK_DURABILITY=server)");
            notes.entry((message, advice)).or_default().push(node);
        } else if asked == Some(Asked::Server) {
            let message = "nothing shows that the server stores each write durably before it answers".to_owned();
            let advice = "use the level Server only with a service that promises this";
            notes.entry((message, Some(advice))).or_default().push(node);
        }
    }
    for ((message, advice), nodes) in notes {
        let finding = Finding::new(Level::Note, "durability", message);
        let finding = advice.into_iter().fold(finding, Finding::advise);
        findings.add(nodes.into_iter().fold(finding, |finding, node| finding.at(node)));
    }
}

/// Reports replicas that the servers name but that are not attached, and missing rights to ask for them. The library
/// checks this when it connects.
pub(super) async fn tell_named(settings: &Settings, findings: &mut Findings) {
    let connected = match settings.with_all_replicas() {
        Ok(builder) => builder.connect().await.map(drop),
        Err(failure) => return findings.add(Finding::new(Level::Problem, "replicas", failure.message)),
    };
    let Err(error) = connected else { return };
    let finding = match &error {
        Error::NotEnoughReplicas { asked, acknowledged, node, .. } => {
            let message = format!("{acknowledged} of the {asked} replicas that the servers name are attached");
            let finding = Finding::new(Level::Problem, "replicas", message);
            node.iter().fold(finding, |finding, node| finding.at(node)).advise(
                "bring the replicas back, or remove them: CLUSTER FORGET at all nodes, SENTINEL RESET at all Sentinels",
            )
        }
        Error::Refused { message, node, .. } => {
            let message = format!("a server does not say which replicas it has: {message}");
            let finding = Finding::new(Level::Problem, "rights", message);
            node.iter().fold(finding, |finding, node| finding.at(node)).advise(
                "give the user +cluster|myid and +cluster|replicas, and the user of the Sentinels +sentinel|replicas",
            )
        }
        error => Finding::new(Level::Problem, "replicas", error.to_string()),
    };
    findings.add(finding);
}
