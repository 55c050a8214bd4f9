//! Commands `inspect` and `list`.

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use redis_rwlock::{Cycle, DurationText, Error, LockView, NodeHealth, NodeRole, Refusal, RwLockManager};
use serde::Serialize;

use crate::exit::{Code, Failure, full_text};
use crate::output::Output;
use crate::settings::{Manager, Settings};
use crate::table::{self, shown};

/// Limit of inspections that are in progress at the same time.
const AT_ONCE: usize = 32;

pub(crate) async fn inspect(name: &str, settings: &Settings, output: Output) -> Result<Code, Failure> {
    let manager = settings.manager()?;
    let view = manager.inspect(name).await?;
    output.answer(&view, || lines(&view).join("\n") + "\n")?;
    Ok(if view.is_free() { Code::NO } else { Code::OK })
}

pub(crate) async fn list(held: bool, settings: &Settings, output: Output) -> Result<Code, Failure> {
    let manager = settings.manager()?;
    let mut looks = looks(&manager, &manager.locks().await?).await?;
    if held {
        looks.retain(|look| matches!(look, Look::View(view) if !view.is_free()) || look.problem().is_some());
    }
    output.answer(&looks, || table::of_locks(&looks).join("\n") + "\n")?;
    Ok(if looks.iter().any(|look| look.problem().is_some()) { Code::REFUSED } else { Code::OK })
}

pub(crate) async fn deadlocks(settings: &Settings, output: Output) -> Result<Code, Failure> {
    let cycles = settings.manager()?.deadlocks().await?;
    output.answer(&cycles, || match &*cycles {
        [] => "no deadlock\n".to_owned(),
        cycles => cycles.iter().map(cycle_text).collect(),
    })?;
    Ok(if cycles.is_empty() { Code::OK } else { Code::NO })
}

/// Formats a cycle with a line for each wait.
fn cycle_text(cycle: &Cycle) -> String {
    let waits = cycle.waits.iter().map(|wait| format!("  {wait}\n"));
    ["possible deadlock:\n".to_owned()].into_iter().chain(waits).collect()
}

/// Result of inspecting one lock.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Look {
    View(Box<LockView>),
    /// Key whose value is not a lock of this version.
    Odd {
        name: String,
        problem: String,
    },
}

impl Look {
    pub(crate) fn view(&self) -> Option<&LockView> {
        match self {
            Self::View(view) => Some(view),
            Self::Odd { .. } => None,
        }
    }

    pub(crate) fn problem(&self) -> Option<&str> {
        match self {
            Self::View(_) => None,
            Self::Odd { problem, .. } => Some(problem),
        }
    }
}

/// Inspects these locks, and returns the results in the same order. A key whose value is not a lock of this version has
/// the result [`Look::Odd`]. If a server does not answer, or refuses a request for another reason, the whole call
/// fails.
pub(crate) async fn looks(manager: &Manager, names: &[String]) -> Result<Vec<Look>, Error> {
    let look = |name: String| async move {
        match manager.inspect(&name).await {
            Ok(view) => Ok(Look::View(Box::new(view))),
            Err(error) if is_of_one_key(&error) => Ok(Look::Odd { name, problem: full_text(&error) }),
            Err(error) => Err(error),
        }
    };
    stream::iter(names.to_vec()).map(look).buffered(AT_ONCE).try_collect().await
}

fn is_of_one_key(error: &Error) -> bool {
    match error {
        Error::Refused { refusal, .. } => {
            matches!(refusal, Refusal::ForeignKey | Refusal::OtherVersion | Refusal::Other)
        }
        Error::InvalidName { .. } => true,
        _ => false,
    }
}

/// Formats one lock for people.
pub(crate) fn lines(view: &LockView) -> Vec<String> {
    let mut rows = Vec::new();
    for holder in &view.holders {
        let for_so_long = DurationText(holder.age).to_string();
        let remaining = DurationText(holder.remaining);
        let (does, left) = match (holder.resting, holder.detached) {
            (true, _) => ("done", format!("free in {remaining}")),
            (false, true) => ("detached", format!("{remaining} left")),
            (false, false) => ("holds", format!("{remaining} left")),
        };
        rows.push([does.to_owned(), holder.mode.to_string(), holder.label.clone(), for_so_long, left]);
    }
    for waiter in &view.waiters {
        let for_so_long = DurationText(waiter.waiting).to_string();
        rows.push(["waits".to_owned(), waiter.mode.to_string(), waiter.label.clone(), for_so_long, String::new()]);
    }
    let token = view.last_token.map(|token| format!(", last token {token}")).unwrap_or_default();
    let free = match (view.is_free(), view.last_token) {
        (false, _) => "",
        (true, Some(_)) => " is free",
        // The server keeps the last token of a free lock for a minute.
        (true, None) => {
            " is free, and the server knows nothing of it: the lock was not used within the last minute, or the name or the key prefix is wrong"
        }
    };
    let mut lines = vec![format!("lock {}{free}{token}", shown(&view.name))];
    if !rows.is_empty() {
        lines.extend(table::columns(["", "MODE", "LABEL", "FOR", ""], &rows));
    }
    for holder in &view.holders {
        if let Some(note) = &holder.note {
            lines.push(format!("note of {}: {}", shown(&holder.label), shown(note)));
        }
    }
    let more = [(view.more_holders, "hold it"), (view.more_waiters, "wait")];
    lines.extend(more.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("and {count} more {what}")));
    lines
}

/// Formats the first three holders of the lock, and the number of the others.
pub(crate) fn holders(view: &LockView) -> String {
    let each = view.holders.iter().take(3).map(|holder| {
        let label = shown(&holder.label);
        match (holder.resting, holder.detached) {
            (true, _) => format!("{label} (done, free in {})", DurationText(short(holder.remaining))),
            (false, true) => format!("{label} (detached, {} left)", DurationText(short(holder.remaining))),
            (false, false) => format!("{label} ({}, for {})", holder.mode, DurationText(short(holder.age))),
        }
    });
    let text = each.collect::<Vec<_>>().join(", ");
    match (view.holders.len() + view.more_holders).saturating_sub(3) {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

/// Returns the end of a message that names the servers without an answer. Replicas and Sentinels do not count. The text
/// is empty if all other servers answer.
pub(crate) async fn silent_servers(manager: &Manager) -> String {
    let Ok(health) = manager.health().await else { return String::new() };
    let is_needed = |node: &&NodeHealth| !matches!(node.role, NodeRole::Replica | NodeRole::Sentinel);
    let silent = health.nodes.iter().filter(is_needed).filter(|node| !node.is_reachable);
    silent
        .map(|node| match &node.problem {
            Some(problem) => format!("; {} does not answer ({problem})", node.address),
            None => format!("; {} does not answer", node.address),
        })
        .collect()
}

/// Rounds a duration down to tenths of a second.
fn short(span: Duration) -> Duration {
    Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX) / 100 * 100)
}
