//! `inspect` and `list`.

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use redis_rwlock::{LockView, RedisManager, RwLockManager};

use crate::exit::{Code, Failure};
use crate::output::Output;
use crate::settings::Settings;
use crate::span::Span;
use crate::table::{self, shown};

/// How many locks are looked at at a time.
const AT_ONCE: usize = 32;

pub(crate) async fn inspect(name: &str, settings: &Settings, output: Output) -> Result<Code, Failure> {
    let manager = settings.builder()?.build()?;
    let view = manager.inspect(name).await?;
    output.answer(&view, || lines(&view).join("\n") + "\n")?;
    Ok(if view.is_free() { Code::NO } else { Code::OK })
}

pub(crate) async fn list(settings: &Settings, output: Output) -> Result<Code, Failure> {
    let manager = settings.builder()?.build()?;
    let views = views(&manager, &manager.locks().await?).await?;
    output.answer(&views, || {
        let rows: Vec<_> = views.iter().map(table::row).collect();
        table::columns(table::HEADS, &rows).join("\n") + "\n"
    })?;
    Ok(Code::OK)
}

/// These locks, as the servers see them, in the same order.
pub(crate) async fn views(manager: &RedisManager, names: &[String]) -> Result<Vec<LockView>, redis_rwlock::Error> {
    stream::iter(names).map(|name| manager.inspect(name)).buffered(AT_ONCE).try_collect().await
}

/// One lock for people.
pub(crate) fn lines(view: &LockView) -> Vec<String> {
    let mut rows = Vec::new();
    for holder in &view.holders {
        let for_so_long = Span(holder.age).to_string();
        let left = format!("{} left", Span(holder.remaining));
        rows.push(["holds".to_owned(), holder.mode.to_string(), holder.label.clone(), for_so_long, left]);
    }
    for waiter in &view.waiters {
        let for_so_long = Span(waiter.waiting).to_string();
        rows.push(["waits".to_owned(), waiter.mode.to_string(), waiter.label.clone(), for_so_long, String::new()]);
    }
    let token = view.last_token.map(|token| format!(", last token {token}")).unwrap_or_default();
    let free = if view.is_free() { " is free" } else { "" };
    let mut lines = vec![format!("lock {}{free}{token}", shown(&view.name))];
    if !rows.is_empty() {
        lines.extend(table::columns(["", "SIDE", "WHO", "FOR", ""], &rows));
    }
    let more = [(view.more_holders, "hold it"), (view.more_waiters, "wait")];
    lines.extend(more.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("and {count} more {what}")));
    lines
}

/// Who stands in the way, in a few words.
pub(crate) fn holders(view: &LockView) -> String {
    let each = view
        .holders
        .iter()
        .take(3)
        .map(|holder| format!("{} ({}, for {})", shown(&holder.label), holder.mode, Span(short(holder.age))));
    let text = each.collect::<Vec<_>>().join(", ");
    match (view.holders.len() + view.more_holders).saturating_sub(3) {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

/// Without the part that nobody reads.
fn short(span: Duration) -> Duration {
    Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX) / 100 * 100)
}
