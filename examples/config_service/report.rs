//! Events of the workers, and the checks whether they can be true.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::store::{Fields, Look, look, mark};

/// Update in whose middle a worker hangs, and is killed later.
pub(crate) struct Victim {
    pub(crate) name: String,
    pub(crate) version: u64,
    pub(crate) token: u64,
    pub(crate) hangs_since: Instant,
    pub(crate) killed: Option<Instant>,
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
    /// Versions that two writers acknowledged. One of the two updates is lost.
    twice: Vec<u64>,
    overlaps: usize,
    inconsistent: usize,
    pub(crate) victim: Option<Victim>,
    pub(crate) is_taken_over: bool,
    /// Highest mark of the resource that the parent saw, and whether it saw a lower one later.
    highest: u64,
    went_back: bool,
}

impl Report {
    /// Notes the event that a worker sent as a line. Returns what there is to say about it.
    pub(crate) fn hear(&mut self, name: &str, line: &str) -> Option<String> {
        let (kind, text) = line.split_once(' ').unwrap_or((line, ""));
        let mut numbers = text.split(' ').map(|word| word.parse().unwrap_or(0));
        let (version, token) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        match kind {
            "read" => self.reads += 1,
            "began" => drop(self.begun.insert(version)),
            "updated" => self.twice.extend(self.acknowledged.insert(version, token).map(|_| version)),
            "stopped" => self.stopped += 1,
            "hangs" => {
                let (name, hangs_since) = (name.to_owned(), Instant::now());
                let what = format!("{name} is in the middle of its update to v{version}, and hangs there");
                self.victim = Some(Victim { name, version, token, hangs_since, killed: None });
                return Some(what);
            }
            "finished" => {
                let victim = self.victim.as_ref().filter(|victim| victim.version == version);
                let Some(Victim { name: dead, killed: Some(at), .. }) = victim else {
                    return Some(format!("{name} finished v{version}, which its writer had left half done"));
                };
                self.is_taken_over = true;
                let waited = span(at.elapsed());
                return Some(format!(
                    "{name} took over {waited} after the death of {dead}, and finished its v{version}"
                ));
            }
            "lost" => return Some(format!("{name} lost its hold: {text}")),
            "trouble" => return Some(format!("{name} has trouble: {text}")),
            "overlap" => {
                self.overlaps += 1;
                return Some(format!("{name} WAS NOT ALONE: {text}"));
            }
            // "inconsistent", and what is unknown.
            _ => {
                self.inconsistent += 1;
                return Some(format!("{name} SAW {line}"));
            }
        }
        None
    }

    pub(crate) fn note_mark(&mut self, fields: &Fields) {
        self.went_back |= mark(fields) < self.highest;
        self.highest = self.highest.max(mark(fields));
    }

    /// Prints the checks. Returns whether all of them held.
    pub(crate) fn print(&mut self, workers: usize, stored: &Fields, late: &Option<Fields>) -> bool {
        self.note_mark(stored);
        let (no_update_is_lost, updates) = self.check_updates(&look(stored));
        let checks = [
            (no_update_is_lost, updates.as_str()),
            (self.inconsistent == 0 && self.reads > 0, &format!("{} reads, each of one whole version", self.reads)),
            (self.overlaps == 0, "no access was refused to a worker that held the lock: nobody was beside it"),
            (
                self.acknowledged.values().is_sorted_by(|a, b| a < b),
                "each update had a higher token than the one before",
            ),
            (!self.went_back, "the resource's token never went back"),
            (self.is_taken_over, "a worker was killed in the middle of an update, and another one finished it"),
            (late.is_none() && self.victim.is_some(), "a late write with the dead worker's token was refused"),
            (self.stopped == workers - 1, "all other workers lived to the end"),
        ];
        println!();
        for (holds, text) in checks {
            println!("{}  {text}", if holds { "  ok  " } else { "BROKEN" });
        }
        let all_hold = checks.iter().all(|(holds, _)| *holds);
        println!("\ninvariant {}", if all_hold { "holds" } else { "is BROKEN" });
        all_hold
    }

    /// Returns whether each stored version was acknowledged once, or begun by a worker that could not tell its end, and
    /// whether no acknowledged version is missing.
    fn check_updates(&self, stored: &Look) -> (bool, String) {
        let &Look::Whole(last) = stored else {
            return (false, format!("no lost update: the stored configuration is {stored:?}"));
        };
        let is_known = |version: &u64| self.acknowledged.contains_key(version) || self.begun.contains(version);
        let are_stored = self.acknowledged.keys().all(|version| *version <= last);
        let is_sound = last > 0 && self.twice.is_empty() && are_stored && (1..=last).all(|version| is_known(&version));
        let updates = self.acknowledged.len();
        let unclear = (1..=last).filter(|version| !self.acknowledged.contains_key(version)).count();
        let text = format!(
            "no lost update: v{last} is stored, {updates} updates were acknowledged, {unclear} finished for a writer \
             that was gone"
        );
        (is_sound, text)
    }
}

/// Returns a time for readers.
pub(crate) fn span(time: Duration) -> String {
    if time.as_secs() > 0 { format!("{:.2} s", time.as_secs_f64()) } else { format!("{} ms", time.as_millis()) }
}
