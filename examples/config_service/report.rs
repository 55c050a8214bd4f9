//! Events of the workers, and the checks whether they can be true.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use redis_rwlock::LockView;

use crate::store::{Fields, Look, look, mark};
use crate::{DURATION, LOCK, SHOWN_HANGING, TAKE_OVER_LIMIT, VICTIM, WORKERS, name};

/// Update in whose middle the victim hangs, and is killed later.
struct Victim {
    version: u64,
    token: u64,
    hangs_since: Instant,
    killed: Option<Instant>,
}

static STARTED: LazyLock<Instant> = LazyLock::new(Instant::now);

pub(crate) fn say(what: &str) {
    println!("{:5.1} s  {what}", STARTED.elapsed().as_secs_f64());
}

/// Events of all workers.
#[derive(Default)]
pub(crate) struct Report {
    reads: usize,
    pub(crate) stopped: usize,
    /// Versions that a worker has begun to write.
    begun: BTreeSet<u64>,
    /// Versions that their writers acknowledged, with the token of each.
    acknowledged: BTreeMap<u64, u64>,
    /// Whether two writers acknowledged one version. One of the two updates is lost.
    is_twice: bool,
    /// Times that a worker was not alone, or saw values that do not belong together.
    broken: usize,
    victim: Option<Victim>,
    is_taken_over: bool,
}

impl Report {
    pub(crate) fn is_over(&self) -> bool {
        let limit = if self.is_taken_over { DURATION } else { DURATION + TAKE_OVER_LIMIT };
        STARTED.elapsed() >= limit
    }

    pub(crate) fn token_of_victim(&self) -> u64 {
        self.victim.as_ref().map_or(0, |victim| victim.token)
    }

    /// Returns true once: when the victim has hung for long enough.
    pub(crate) fn is_time_to_kill(&mut self) -> bool {
        let hangs = |victim: &&mut Victim| victim.killed.is_none() && victim.hangs_since.elapsed() >= SHOWN_HANGING;
        let Some(victim) = self.victim.as_mut().filter(hangs) else { return false };
        victim.killed = Some(Instant::now());
        say(&format!("killed {} while it writes v{}", name(VICTIM), victim.version));
        true
    }

    /// Notes the event that a worker sent as a line.
    pub(crate) fn hear(&mut self, name: &str, line: &str) {
        let (kind, text) = line.split_once(' ').unwrap_or((line, ""));
        let mut numbers = text.split(' ').map(|word| word.parse().unwrap_or(0));
        let (version, token) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        match kind {
            "read" => self.reads += 1,
            "began" => drop(self.begun.insert(version)),
            "updated" => self.is_twice |= self.acknowledged.insert(version, token).is_some(),
            "stopped" => self.stopped += 1,
            "hangs" => {
                self.victim = Some(Victim { version, token, hangs_since: Instant::now(), killed: None });
                say(&format!("{name} is in the middle of its update to v{version}, and hangs there"));
            }
            "finished" => match &self.victim {
                Some(Victim { version: of_victim, killed: Some(at), .. }) if *of_victim == version => {
                    let (waited, dead) = (span(at.elapsed()), crate::name(VICTIM));
                    self.is_taken_over = true;
                    say(&format!("{name} took over {waited} after the death of {dead}, and finished its v{version}"));
                }
                _ => say(&format!("{name} finished v{version}, which its writer had left half done")),
            },
            "trouble" => say(&format!("{name} has trouble: {text}")),
            _ => {
                self.broken += 1;
                say(&format!("{name} SAW {line}"));
            }
        }
    }

    /// Prints the holders of the lock, beside the configuration as it looks without the lock.
    pub(crate) fn show(&self, lock: &LockView, fields: &Fields) {
        let holders = lock.holders.iter();
        let holders: Vec<_> = holders
            .map(|holder| format!("{} (age {}, {} left)", holder.label, span(holder.age), span(holder.remaining)))
            .collect();
        // Several hold it only if all of them read.
        let holders = match lock.holders.first() {
            None => "free".to_owned(),
            Some(first) => format!("{} by {}", first.mode, holders.join(", ")),
        };
        let seen = match look(fields) {
            Look::Whole(version) => format!("v{version} "),
            Look::HalfDone(version) => format!("v{version} HALF DONE, "),
            Look::Corrupt => "CORRUPT, ".to_owned(),
        };
        say(&format!("{LOCK}: {holders:<54} | {seen}token {}", mark(fields)));
    }

    /// Prints the checks. Returns whether all of them held.
    pub(crate) fn print(&self, stored: &Fields, is_late_refused: bool) -> bool {
        let last = look(stored);
        // A version that nobody acknowledged was begun by a worker that could not tell its end.
        let are_all_stored = matches!(last, Look::Whole(last) if last > 0
            && (1..=last).all(|version| self.begun.contains(&version))
            && self.acknowledged.keys().all(|version| *version <= last));
        let updates = format!("no lost update: {} were acknowledged, stored is {last:?}", self.acknowledged.len());
        let checks = [
            (are_all_stored && !self.is_twice, &*updates),
            (
                self.broken == 0 && self.reads > 0,
                &format!("{} reads, each of one whole version, and no worker was beside a writer", self.reads),
            ),
            (
                self.acknowledged.values().is_sorted_by(|a, b| a < b),
                "each update had a higher token than the one before",
            ),
            (self.is_taken_over, "a worker was killed in the middle of an update, and another one finished it"),
            (is_late_refused && self.victim.is_some(), "a late write with the dead worker's token was refused"),
            (self.stopped == WORKERS - 1, "all other workers lived to the end"),
        ];
        println!();
        for (holds, text) in checks {
            println!("{}  {text}", if holds { "  ok  " } else { "BROKEN" });
        }
        let all_hold = checks.iter().all(|(holds, _)| *holds);
        println!("\ninvariant {}", if all_hold { "holds" } else { "is BROKEN" });
        all_hold
    }
}

/// Returns a time for readers.
fn span(time: Duration) -> String {
    if time.as_secs() > 0 { format!("{:.2} s", time.as_secs_f64()) } else { format!("{} ms", time.as_millis()) }
}
