//! Findings of `doctor`, with advice.

use redis_rwlock::{AddressSource, NodeHealth};
use serde::Serialize;

/// Severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// Locks do not work, or not as promised.
    Problem,
    /// Locks work, but less well.
    Warning,
    /// Information, with nothing to repair.
    Note,
}

#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) level: Level,
    /// Name of the check, by which programs distinguish findings.
    check: &'static str,
    nodes: Vec<String>,
    message: String,
    advice: Option<String>,
}

impl Finding {
    pub(super) fn new(level: Level, check: &'static str, message: impl Into<String>) -> Self {
        Self { level, check, nodes: Vec::new(), message: message.into(), advice: None }
    }

    pub(super) fn at(mut self, node: &str) -> Self {
        self.nodes.push(node.to_owned());
        self
    }

    pub(super) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// Formats the finding as lines for users.
    pub(super) fn lines(&self) -> Vec<String> {
        let level = match self.level {
            Level::Problem => "problem",
            Level::Warning => "warning",
            Level::Note => "note",
        };
        let nodes = if self.nodes.is_empty() { String::new() } else { format!(" ({})", self.nodes.join(", ")) };
        let advice = self.advice.iter().map(|advice| format!("  do: {advice}"));
        std::iter::once(format!("{level}: {}: {}{nodes}", self.check, self.message)).chain(advice).collect()
    }
}

#[derive(Debug, Default)]
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    pub(super) fn add(&mut self, finding: Finding) {
        self.0.push(finding);
    }

    pub(super) fn has_no_problem(&self) -> bool {
        self.0.iter().all(|finding| finding.level != Level::Problem)
    }

    /// Returns true if there is a problem of this node.
    pub(super) fn concern(&self, node: &str) -> bool {
        let at_node = |finding: &&Finding| finding.nodes.iter().any(|other| other == node);
        self.0.iter().filter(at_node).any(|finding| finding.level == Level::Problem)
    }

    /// Adds the source of the address to each finding about a server that cannot be used, unless the user named the
    /// address.
    pub(super) fn add_sources(&mut self, nodes: &[NodeHealth]) {
        for finding in self.0.iter_mut().filter(|finding| ["unreachable", "login", "tls"].contains(&finding.check)) {
            let of = |node: &&NodeHealth| {
                finding.nodes.contains(&node.address) && node.address_source != AddressSource::User
            };
            for node in nodes.iter().filter(of) {
                finding.message += &format!("; the address was {}", node.address_source);
            }
        }
    }

    /// Returns the findings, the worst first.
    pub(super) fn in_order(mut self) -> Vec<Finding> {
        self.0.sort_by_key(|finding| finding.level);
        self.0
    }
}
