//! Last check: takes a lock at every primary.

use std::collections::BTreeMap;
use std::process;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis_rwlock::{DurationText, RwLockManager};

use super::finding::{Finding, Findings, Level};
use super::rights;
use super::survey::{self, Survey};
use crate::exit::Failure;
use crate::settings::{Manager, Settings};

/// Limit of the names that are tried until each primary has one. A primary may own only one slot of 16384.
const MAX_NAMES: u32 = 300_000;

/// Takes a lock at each primary and releases it.
pub(super) async fn try_locks(surveys: &BTreeMap<String, Survey>, settings: &Settings, findings: &mut Findings) {
    let manager = match settings.manager() {
        Ok(manager) => manager,
        Err(failure) => return findings.add(Finding::new(Level::Problem, "trial", failure.message)),
    };
    let names = names(surveys, settings);
    let outcomes = join_all(names.iter().map(|(_, name)| try_lock(&manager, name))).await;
    let mut longest = None;
    for ((node, _), outcome) in names.iter().zip(outcomes) {
        match outcome {
            Ok(took) => longest = longest.max(Some(took)),
            Err(failure) => {
                let finding = Finding::new(Level::Problem, "trial", failure.message);
                findings.add(node.iter().fold(finding, |finding, node| finding.at(node)));
            }
        }
    }
    if let Some(took) = longest.filter(|_| findings.has_no_problem()) {
        let at_each = if names.len() > 1 { format!(" at each of {} primaries", names.len()) } else { String::new() };
        findings.add(Finding::new(
            Level::Note,
            "trial",
            format!("doctor acquired and released a lock{at_each} in {}", DurationText(took)),
        ));
    }
}

async fn try_lock(manager: &Manager, name: &str) -> Result<Duration, Failure> {
    let began = Instant::now();
    // `None` means that another process holds the lock, so the server grants locks.
    if let Some(guard) = manager.try_write(name).await? {
        guard.release().await?;
    }
    Ok(began.elapsed())
}

/// Returns a lock's name for each primary of a cluster, or a single name where all locks have one primary.
fn names(surveys: &BTreeMap<String, Survey>, settings: &Settings) -> Vec<(Option<String>, String)> {
    let mut wanted = survey::owners(surveys);
    if wanted.len() < 2 {
        return vec![(None, name_of_trial(0))];
    }
    let mut names = Vec::new();
    for number in 0..MAX_NAMES {
        let name = name_of_trial(number);
        let slot = slot_of(&rights::key_of(settings, &name));
        let owner = wanted.iter().find(|(_, slots)| slots.iter().any(|(first, last)| (*first..=*last).contains(&slot)));
        if let Some(owner) = owner.map(|(owner, _)| owner.clone()) {
            wanted.remove(&owner);
            names.push((Some(owner), name));
        }
        if wanted.is_empty() {
            break;
        }
    }
    names
}

fn name_of_trial(number: u32) -> String {
    format!("redis-rwlock doctor {} {number}", process::id())
}

/// Computes the slot as servers do, from the text in the first braces or from the whole key.
fn slot_of(key: &str) -> u16 {
    let in_braces = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let tag = in_braces.filter(|tag| !tag.is_empty()).unwrap_or(key);
    crc16::State::<crc16::XMODEM>::calculate(tag.as_bytes()) % 16384
}
