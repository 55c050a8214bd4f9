//! What was heard from the workers, and whether it can be true.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

use redis_rwlock::FencingToken;

use crate::config::Look;
use crate::event::{Event, parse_token};
use crate::store::{Fields, TOKEN};

#[derive(Debug, Default)]
struct Account {
    name: String,
    reads: usize,
    updates: usize,
    waits: Vec<Duration>,
    killed: bool,
    stopped: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Report {
    accounts: Vec<Account>,
    /// Versions that somebody has begun to write. Those that nobody acknowledged may be stored or not.
    begun: BTreeSet<u64>,
    /// Versions that their writers acknowledged, with the token of each.
    acknowledged: BTreeMap<u64, FencingToken>,
    /// Versions that two writers acknowledged: one of the two updates is lost.
    twice: Vec<u64>,
    overlaps: usize,
    inconsistent: usize,
    /// The highest token of the resource so far, and whether it was ever seen to go back.
    highest: Option<FencingToken>,
    went_back: bool,
}

impl Report {
    pub(crate) fn new(names: impl Iterator<Item = String>) -> Self {
        let accounts = names.map(|name| Account { name, ..Account::default() }).collect();
        Self { accounts, ..Self::default() }
    }

    pub(crate) fn hear(&mut self, number: usize, event: &Event) {
        let Some(account) = self.accounts.get_mut(number) else {
            return;
        };
        match *event {
            Event::Read { waited, .. } => {
                account.reads += 1;
                account.waits.push(waited);
            }
            Event::Began { version, .. } => {
                self.begun.insert(version);
            }
            Event::Updated { version, token, waited } => {
                account.updates += 1;
                account.waits.push(waited);
                if self.acknowledged.insert(version, token).is_some() {
                    self.twice.push(version);
                }
            }
            Event::Overlap { .. } => self.overlaps += 1,
            Event::Inconsistent { .. } => self.inconsistent += 1,
            Event::Stopped => account.stopped = true,
            Event::FoundHalf { waited, .. } => account.waits.push(waited),
            Event::Hangs { .. } | Event::Finished { .. } | Event::Lost { .. } | Event::Trouble { .. } => {}
        }
    }

    pub(crate) fn killed(&mut self, number: usize) {
        if let Some(account) = self.accounts.get_mut(number) {
            account.killed = true;
        }
    }

    pub(crate) fn saw_token_of_resource(&mut self, fields: &Fields) {
        let token = fields.get(TOKEN).and_then(|text| parse_token(text));
        self.went_back |= token < self.highest;
        self.highest = self.highest.max(token);
    }

    /// One line per worker.
    pub(crate) fn table(&mut self) -> String {
        let mut table = format!("{:<8}{:>8}{:>9}{:>12}{:>12}", "worker", "reads", "updates", "wait p50", "wait p99");
        for account in &mut self.accounts {
            account.waits.sort_unstable();
            let wait = |percent| percentile(&account.waits, percent).map_or("-".to_owned(), span);
            let (p50, p99) = (wait(50), wait(99));
            let Account { name, reads, updates, killed, .. } = account;
            let note = if *killed { "  killed" } else { "" };
            // Writing to a text does not fail.
            write!(table, "\n{name:<8}{reads:>8}{updates:>9}{p50:>12}{p99:>12}{note}").unwrap_or_default();
        }
        table
    }

    /// Prints what was checked. Whether all of it held.
    pub(crate) fn judge(&self, stored: &Look, taken_over: bool, late_write_was_refused: bool) -> bool {
        let reads: usize = self.accounts.iter().map(|account| account.reads).sum();
        let tokens: Vec<FencingToken> = self.acknowledged.values().copied().collect();
        let survivors_stopped = self.accounts.iter().all(|account| account.stopped != account.killed);
        let checks = [
            (self.no_update_is_lost(stored), self.updates_in_words(stored)),
            (self.inconsistent == 0 && reads > 0, format!("{reads} reads, each of one whole configuration")),
            (
                self.overlaps == 0,
                "no access was refused to a worker that held the lock: nobody was beside it".to_owned(),
            ),
            (tokens.is_sorted_by(|a, b| a < b), "each update had a higher token than the one before".to_owned()),
            (!self.went_back, "the resource's token never went back".to_owned()),
            (taken_over, "a worker was killed in the middle of an update, and another one finished it".to_owned()),
            (late_write_was_refused, "a late write with the dead worker's token was refused".to_owned()),
            (survivors_stopped, "all other workers lived to the end".to_owned()),
        ];
        println!();
        for (holds, what) in &checks {
            println!("{}  {what}", if *holds { "  ok  " } else { "BROKEN" });
        }
        let all_hold = checks.iter().all(|(holds, _)| *holds);
        println!("\ninvariant {}", if all_hold { "holds" } else { "is BROKEN" });
        all_hold
    }

    /// Each stored version was acknowledged once, or begun by somebody who could not tell; and none is missing.
    fn no_update_is_lost(&self, stored: &Look) -> bool {
        let Look::Whole(config) = stored else {
            return false;
        };
        let all_are_stored = self.acknowledged.keys().all(|version| *version <= config.version);
        let all_have_a_writer = (1..=config.version)
            .all(|version| self.acknowledged.contains_key(&version) || self.begun.contains(&version));
        config.version > 0 && self.twice.is_empty() && all_are_stored && all_have_a_writer
    }

    fn updates_in_words(&self, stored: &Look) -> String {
        let acknowledged: usize = self.accounts.iter().map(|account| account.updates).sum();
        match stored {
            Look::Whole(config) => {
                let unclear = (1..=config.version).filter(|version| !self.acknowledged.contains_key(version)).count();
                format!(
                    "no lost update: v{} is stored, {acknowledged} updates were acknowledged, {unclear} finished for a writer that was gone",
                    config.version
                )
            }
            Look::HalfDone(_) => "no lost update: the stored configuration is half done".to_owned(),
            Look::Corrupt => "no lost update: the stored configuration is corrupt".to_owned(),
        }
    }
}

fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    sorted.get((sorted.len() * percent / 100).min(sorted.len().checked_sub(1)?)).copied()
}

/// A time as people say it.
pub(crate) fn span(time: Duration) -> String {
    if time >= Duration::from_secs(1) {
        return format!("{:.2} s", time.as_secs_f64());
    }
    if time >= Duration::from_millis(10) {
        return format!("{} ms", time.as_millis());
    }
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}
