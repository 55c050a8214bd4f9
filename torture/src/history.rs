//! History of a run, which the worker processes write.
//!
//! A worker writes one line per event without a delay, so a killed worker has written all its events. All processes of
//! a machine share the clock of local validity, so the judge can compare their lines.

use std::fmt::{self, Display};
use std::fs::{self, File};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

use super::*;

/// Moment in nanoseconds, by a clock that also runs while the machine is suspended.
pub(crate) type Moment = u64;

pub(crate) fn now() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// End of a use of a lock whose hold was not lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gift {
    Released,
    Dropped,
    Converted,
}

impl Gift {
    const ALL: [Self; 3] = [Self::Released, Self::Dropped, Self::Converted];

    fn word(self) -> &'static str {
        match self {
            Self::Released => "r",
            Self::Dropped => "d",
            Self::Converted => "c",
        }
    }
}

/// Time for which a group wants to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    /// The group waits until it has its locks.
    Waits,
    /// The group tries once, or its future is dropped soon.
    Brief,
}

impl Patience {
    fn word(self) -> char {
        match self {
            Self::Waits => 'g',
            Self::Brief => 't',
        }
    }
}

fn letter(mode: Mode) -> char {
    if mode == Mode::Read { 'r' } else { 'w' }
}

/// Writer of the history of one process.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    next: AtomicU64,
}

impl Journal {
    pub(crate) fn create(path: &Path) -> Result<Self> {
        Ok(Self { file: File::options().create(true).append(true).open(path)?, next: AtomicU64::new(1) })
    }

    /// Writes a line in one write, so that lines of several tasks do not mix.
    fn tell(&self, line: fmt::Arguments<'_>) {
        let told = (&self.file).write_all(format!("{line}\n").as_bytes());
        told.expect("a file of our own can be written");
    }

    pub(crate) fn ready(&self) {
        self.tell(format_args!("I {}", now()));
    }

    /// Writes the begin of an acquisition by a manager with this label. Returns an id for its later events.
    pub(crate) fn asks(&self, label: &str, lock: usize, mode: Mode) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.tell(format_args!("A {id} {} {lock} {} {label}", now(), letter(mode)));
        id
    }

    /// Writes the begin of an acquisition of several locks. Returns an id for each of them.
    pub(crate) fn asks_all(&self, label: &str, locks: &[(usize, Mode)], patience: Patience) -> Vec<u64> {
        let count = u64::try_from(locks.len()).unwrap_or(u64::MAX);
        let first = self.next.fetch_add(count, Ordering::Relaxed);
        let (at, word) = (now(), patience.word());
        let ids: Vec<u64> = (first..first + count).collect();
        for (id, (lock, mode)) in ids.iter().zip(locks) {
            self.tell(format_args!("A {id} {at} {lock} {} {label} {word}{first}", letter(*mode)));
        }
        ids
    }

    /// Writes that a user keeps a hold after a failed conversion, and returns an id for its later events.
    pub(crate) fn goes_on(&self, label: &str, lock: usize, mode: Mode) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.tell(format_args!("B {id} {} {lock} {} {label}", now(), letter(mode)));
        id
    }

    pub(crate) fn gave_up(&self, id: u64, why: impl Display) {
        self.tell(format_args!("W {id} {} {why}", now()));
    }

    pub(crate) fn granted(&self, id: u64, token: u64, until: Moment) {
        self.tell(format_args!("G {id} {} {token} {until}", now()));
    }

    /// Writes that the user may rely on the hold until `until`.
    pub(crate) fn valid(&self, id: u64, until: Moment) {
        self.tell(format_args!("V {id} {until}"));
    }

    /// Writes that the user has noticed the loss of its hold.
    pub(crate) fn lost(&self, id: u64, told: Moment, reason: impl Display) {
        self.tell(format_args!("L {id} {told} {reason}"));
    }

    /// Writes that the user begins to release the hold.
    pub(crate) fn ends(&self, id: u64, gift: Gift) {
        self.tell(format_args!("E {id} {} {}", now(), gift.word()));
    }

    /// Writes a hold that its user could not release. The server keeps the hold until `until`.
    pub(crate) fn kept(&self, lock: usize, until: Moment) {
        self.tell(format_args!("K {lock} {} {until}", now()));
    }

    /// Writes the order to stop, which ends the work of all tasks.
    pub(crate) fn stops(&self) {
        self.tell(format_args!("Q {}", now()));
    }

    /// Writes that this process was paused.
    pub(crate) fn stalled(&self, from: Moment, to: Moment) {
        self.tell(format_args!("S {from} {to}"));
    }

    pub(crate) fn memory(&self, kib: u64) {
        self.tell(format_args!("M {} {kib}", now()));
    }

    /// Writes the number of cached holds at this moment.
    pub(crate) fn cached_holds(&self, count: usize) {
        self.tell(format_args!("H {} {count}", now()));
    }
}

/// Origin of the hold of a use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    Granted,
    /// The task kept the hold of its earlier use, since the conversion failed. The token is the one of the earlier use.
    GoesOn,
}

/// Group to which an acquisition belongs: the id of its first member, which no other group of the process has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Group {
    pub(crate) id: u64,
    patience: Patience,
}

impl Group {
    fn parse(word: &str) -> Option<Self> {
        let patience = [Patience::Waits, Patience::Brief].into_iter().find(|one| word.starts_with(one.word()))?;
        Some(Self { id: word[1..].parse().ok()?, patience })
    }
}

/// Use of a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Use {
    pub(crate) lock: usize,
    pub(crate) mode: Mode,
    /// Label of the manager.
    pub(crate) label: Box<str>,
    pub(crate) group: Option<Group>,
    pub(crate) origin: Origin,
    pub(crate) token: u64,
    pub(crate) asked: Moment,
    /// Moment when the user got its guard.
    pub(crate) granted: Moment,
    /// End of the hold's local validity, as the user last read it.
    pub(crate) until: Moment,
    /// Moment when the user noticed the loss.
    pub(crate) told: Option<Moment>,
    /// Moment when the user began to release the hold, or was killed.
    pub(crate) ended: Option<Moment>,
    /// Manner in which the user ended the hold.
    pub(crate) gift: Option<Gift>,
}

impl Use {
    /// Returns the moment until which the user relied on the lock and was allowed to.
    pub(crate) fn end(&self) -> Moment {
        [Some(self.until), self.told, self.ended].into_iter().flatten().min().unwrap_or(self.until)
    }
}

/// Acquisition that failed, or that is still in progress.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Wait {
    pub(crate) lock: usize,
    pub(crate) group: Option<Group>,
    pub(crate) asked: Moment,
    pub(crate) gave_up: Moment,
}

/// Wait of a group for all its locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct GroupWait {
    pub(crate) asked: Moment,
    pub(crate) ended: Moment,
    pub(crate) end: GroupEnd,
}

/// End of a group's wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GroupEnd {
    Granted,
    /// The group reached the limit of its wait.
    TimedOut,
    /// The acquisition returned another error.
    Failed,
    /// The process ended before.
    CutOff,
}

/// Unused hold that its user could not release. Its lease ends the hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Kept {
    pub(crate) lock: usize,
    pub(crate) from: Moment,
    pub(crate) until: Moment,
}

/// Events of one process.
#[derive(Clone, Default, Debug)]
pub(crate) struct History {
    pub(crate) ready: Option<Moment>,
    pub(crate) stopped: Option<Moment>,
    pub(crate) uses: Vec<Use>,
    pub(crate) waits: Vec<Wait>,
    pub(crate) group_waits: Vec<GroupWait>,
    pub(crate) kept: Vec<Kept>,
    /// Times when the process was paused.
    pub(crate) stalls: Vec<(Moment, Moment)>,
    /// Memory in KiB, each value with its moment.
    pub(crate) memory: Vec<(Moment, u64)>,
    /// Number of cached holds, from repeated readings.
    pub(crate) cached_holds: Vec<u64>,
    /// Reasons of failed acquisitions, with their counts.
    pub(crate) reasons: std::collections::BTreeMap<String, usize>,
}

/// Use with an id, as it was asked for, and its place among the uses once it is granted.
#[derive(Clone, Debug)]
struct Open {
    used: Use,
    place: Option<usize>,
}

impl History {
    pub(crate) fn read(path: &Path, ended: Moment) -> Result<Self> {
        let text = fs::read(path)?;
        Self::parse(&String::from_utf8_lossy(&text), ended)
    }

    /// Parses the history of a process that ended at `ended`.
    pub(crate) fn parse(text: &str, ended: Moment) -> Result<Self> {
        let (mut history, mut open) = (Self::default(), std::collections::HashMap::new());
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            // The last line of a killed process may be incomplete.
            if history.take(&words, &mut open).is_none() && text.ends_with(line) {
                break;
            }
        }
        let killed = history.stopped.is_none();
        let ended = history.stopped.map_or(ended, |stopped| stopped.min(ended));
        for (id, open) in open {
            match open.place {
                Some(place) => {
                    let used = &mut history.uses[place];
                    used.ended = Some(ended);
                    let kept = Kept { lock: used.lock, from: ended, until: used.until };
                    history.kept.extend(killed.then_some(kept));
                }
                None => history.end_wait(id, &open.used, ended, GroupEnd::CutOff),
            }
        }
        Ok(history)
    }

    /// Adds the wait of a group when its first member ends to wait.
    fn end_group(&mut self, id: u64, used: &Use, ended: Moment, end: GroupEnd) {
        if used.group == Some(Group { id, patience: Patience::Waits }) {
            self.group_waits.push(GroupWait { asked: used.asked, ended, end });
        }
    }

    /// Adds a wait that no grant has ended.
    fn end_wait(&mut self, id: u64, used: &Use, gave_up: Moment, end: GroupEnd) {
        self.end_group(id, used, gave_up, end);
        self.waits.push(Wait { lock: used.lock, group: used.group, asked: used.asked, gave_up });
    }

    fn take(&mut self, words: &[&str], open: &mut std::collections::HashMap<u64, Open>) -> Option<()> {
        let number = |at: usize| words.get(at)?.parse::<u64>().ok();
        match *words.first()? {
            "I" => self.ready = number(1),
            "Q" => self.stopped = number(1),
            how @ ("A" | "B") => {
                let used = Use {
                    lock: words.get(3)?.parse().ok()?,
                    mode: if *words.get(4)? == "r" { Mode::Read } else { Mode::Write },
                    label: (*words.get(5).unwrap_or(&"")).into(),
                    group: words.get(6).and_then(|word| Group::parse(word)),
                    origin: if how == "A" { Origin::Granted } else { Origin::GoesOn },
                    token: 0,
                    asked: number(2)?,
                    granted: 0,
                    until: 0,
                    told: None,
                    ended: None,
                    gift: None,
                };
                open.insert(number(1)?, Open { used, place: None });
            }
            "W" => {
                let (id, gave_up) = (number(1)?, number(2)?);
                let end = if words.get(3) == Some(&"wait-timeout") { GroupEnd::TimedOut } else { GroupEnd::Failed };
                self.end_wait(id, &open.remove(&id)?.used, gave_up, end);
                *self.reasons.entry(words.get(3..)?.join(" ")).or_default() += 1;
            }
            "G" => {
                let id = number(1)?;
                let asked = open.get_mut(&id)?;
                let (granted, token, until) = (number(2)?, number(3)?, number(4)?);
                asked.place = Some(self.uses.len());
                let used = Use { granted, token, until, ..asked.used.clone() };
                self.end_group(id, &used, granted, GroupEnd::Granted);
                self.uses.push(used);
            }
            "V" => self.uses[open.get(&number(1)?)?.place?].until = number(2)?,
            "L" => self.uses[open.remove(&number(1)?)?.place?].told = number(2),
            "E" => {
                let used = &mut self.uses[open.remove(&number(1)?)?.place?];
                used.ended = number(2);
                used.gift = words.get(3).and_then(|word| Gift::ALL.into_iter().find(|gift| gift.word() == *word));
            }
            "K" => {
                let (from, until) = (number(2)?, number(3)?);
                self.kept.push(Kept { lock: words.get(1)?.parse().ok()?, from, until });
            }
            "S" => self.stalls.push((number(1)?, number(2)?)),
            "M" => self.memory.push((number(1)?, number(2)?)),
            "H" => self.cached_holds.push(number(2)?),
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_ends_with_the_first_of_its_ends() {
        let text = "I 1\nA 1 10 0 w\nG 1 20 7 100\nV 1 150\nE 1 60 r\nA 2 11 3 r\nW 2 30 it was taken\n\
                    A 3 12 0 r\nG 3 70 8 130\nL 3 120 expired\nA 4 80 1 w\nG 4 90 9 300\nA 5 95 1 w\nG 5 9";
        let history = History::parse(text, 200).expect("read");
        let ends: Vec<_> = history.uses.iter().map(Use::end).collect();
        assert_eq!(ends, [60, 120, 200]);
        assert_eq!(history.uses[0].until, 150);
        let gave_up: Vec<_> = history.waits.iter().map(|wait| (wait.lock, wait.gave_up)).collect();
        assert_eq!(gave_up, [(3, 30), (1, 200)]);
        assert_eq!(history.reasons["it was taken"], 1);
        // The process was killed.
        assert_eq!(history.kept, [Kept { lock: 1, from: 200, until: 300 }]);
    }

    #[test]
    fn wait_of_a_group_ends_with_that_of_its_first_member() {
        let text = "I 1\nA 1 10 0 w g4 g1\nA 2 10 3 r g4 g1\nG 1 60 7 100\nG 2 60 9 100\nE 1 70 r\nE 2 70 r\n\
                    A 3 80 3 w g4 g3\nA 4 80 5 w g4 g3\nW 3 95 wait-timeout\nW 4 95 wait-timeout\n\
                    A 5 96 3 w g4 t5\nW 5 97 taken\nA 6 98 3 w w4 g6\nA 7 98 4 w w4 g6\n";
        let history = History::parse(text, 200).expect("read");
        let waits: Vec<_> = history.group_waits.iter().map(|wait| (wait.asked, wait.ended, wait.end)).collect();
        assert_eq!(waits, [(10, 60, GroupEnd::Granted), (80, 95, GroupEnd::TimedOut), (98, 200, GroupEnd::CutOff)]);
        assert_eq!(history.uses.iter().filter_map(|used| used.group).map(|group| group.id).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(&*history.uses[0].label, "g4");
    }
}
