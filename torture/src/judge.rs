//! Judges the history of a run.
//!
//! Each use of a lock is a span. The span begins when the user has the guard. It ends when the user begins the release,
//! notices the loss, or reaches the end of the local validity, whichever comes first. The recorded spans are never
//! longer than the real ones, so each reported violation has really happened. Each finding counts for the fault that
//! began last.

use std::collections::BTreeMap;

use super::*;
use crate::history::Use;
use crate::observer::Sightings;
use crate::register::Ledger;

mod queue;

pub(crate) use queue::{GroupWaits, QueueChecks};

/// Longest time from the end of the local validity until the user must have noticed the loss.
const TOLD_WITHIN: Duration = Duration::from_millis(100);
/// Shortest stall that the report shows. It is the time of a heartbeat and an attempt.
const WORTH_TELLING: Duration = Duration::from_millis(1500);
/// Longest time for which the server keeps a hold after the local validity. It is the margin for clocks, and 1 % of the
/// longest lease.
const LEASE_IS_OVER: Duration = Duration::from_millis(100 + 80 + 20);
/// Shortest time in which a server on this machine could answer.
const AT_ONCE: Duration = Duration::from_micros(60);
/// Limit for each worker's first grant after all servers are healthy again.
const PROGRESS: Duration = Duration::from_secs(3);

/// Fault that the run caused, or two faults at the same time.
#[derive(Clone, Debug)]
pub(crate) struct Cycle {
    pub(crate) name: String,
    pub(crate) column: Column,
    /// `No` if one of the faults changes a server's role.
    pub(crate) mixes: Mixes,
    pub(crate) began: Moment,
    /// Moment when all servers were healthy again.
    pub(crate) healed: Moment,
    /// Moment when the next fault begins.
    pub(crate) over: Moment,
    /// Number of faults.
    pub(crate) count: usize,
}

/// Findings under one kind of fault.
#[derive(Clone, Default, Debug)]
pub(crate) struct Row {
    pub(crate) column: Column,
    pub(crate) faults: usize,
    pub(crate) grants: usize,
    /// Conflicting uses at the same time.
    pub(crate) overlaps: usize,
    /// Tokens that are not above the token of an earlier use.
    pub(crate) token_order: usize,
    /// Users that noticed a loss after another user had got the lock.
    pub(crate) told_late: usize,
    /// Writers that entered before a waiter although they had asked later.
    pub(crate) passed: usize,
    /// First writers of a queue that waited for more than one phase of readers.
    pub(crate) read_phases: usize,
    /// Readers that waited for more than one writer.
    pub(crate) write_phases: usize,
    /// Groups that reached the limit of their wait.
    pub(crate) starved: usize,
    pub(crate) lost_fenced: u64,
    pub(crate) lost_unfenced: u64,
    /// Old tokens that a register has refused.
    pub(crate) refused: usize,
    /// Number of lost holds. `loss_told_after` is the longest time from the begin of the fault until a user noticed the
    /// loss of its hold.
    pub(crate) losses: usize,
    pub(crate) loss_told_after: Duration,
    /// Longest time in which a lock was free although there was a waiter. A hold that was not released counts until its
    /// lease is over.
    pub(crate) stall: Duration,
    /// Longest such time after all servers were healthy again.
    pub(crate) stall_when_well: Duration,
    /// Workers without a grant in the first seconds after the repair.
    pub(crate) no_progress: usize,
    /// First violation of each kind, as a text.
    pub(crate) examples: BTreeMap<&'static str, String>,
}

impl Row {
    fn new(column: Column) -> Self {
        Self { column, ..Self::default() }
    }

    /// Number of violations, which must be zero where a level claims to survive.
    pub(crate) fn violations(&self) -> usize {
        let order = self.passed + self.read_phases + self.write_phases;
        self.overlaps + self.token_order + self.told_late + order + self.starved
    }
}

/// All findings.
#[derive(Debug)]
pub(crate) struct Findings {
    pub(crate) rows: BTreeMap<String, Row>,
    /// Memory in KiB of a worker after the first third of the run and at the end of the run. The worker is the one with
    /// the largest growth.
    pub(crate) memory: Option<(u64, u64)>,
    /// Average number of cached holds in a worker.
    pub(crate) cached_holds: f64,
    /// Number of grants that came faster than a server can answer.
    pub(crate) at_once: usize,
    /// Checks of the queues, and waits of groups. `None` if no observer ran.
    pub(crate) queues: Option<(QueueChecks, GroupWaits)>,
}

/// Evidence that the judge has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence<'a> {
    pub(crate) told: &'a [Told],
    pub(crate) ledger: &'a Ledger,
    /// Views of the queues, if there was an observer.
    pub(crate) sightings: Option<&'a Sightings>,
    pub(crate) cycles: &'a [Cycle],
    pub(crate) began: Moment,
    /// Number of locks.
    pub(crate) locks: usize,
}

/// Name of the time before the first fault.
pub(crate) const CALM: &str = "(none yet)";

#[derive(Debug)]
struct Judge<'a> {
    cycles: &'a [Cycle],
    began: Moment,
    rows: BTreeMap<String, Row>,
}

/// Use, and the number of the process that wrote the use.
#[derive(Clone, Copy, Debug)]
struct Seen<'a> {
    used: &'a Use,
    teller: usize,
}

pub(crate) fn judge(evidence: Evidence<'_>) -> Findings {
    let Evidence { told, ledger, sightings, cycles, began, locks } = evidence;
    let mut rows = BTreeMap::from([(CALM.to_owned(), Row::new(Column::Left))]);
    for cycle in cycles {
        rows.entry(cycle.name.clone()).or_insert_with(|| Row::new(cycle.column)).faults += cycle.count;
    }
    let (mut judge, mut checks) = (Judge { cycles, began, rows }, QueueChecks::default());
    for lock in 0..locks {
        let mut uses: Vec<_> = told
            .iter()
            .enumerate()
            .flat_map(|(teller, told)| {
                let of_lock = told.history.uses.iter().filter(move |used| used.lock == lock);
                of_lock.map(move |used| Seen { used, teller })
            })
            .collect();
        uses.sort_unstable_by_key(|seen| seen.used.granted);
        judge.overlaps_and_tokens(&uses);
        judge.losses(&uses, told);
        judge.stalls(lock, &uses, told);
        if let Some(of_lock) = sightings.and_then(|sightings| sightings.get(lock)) {
            judge.queue(&uses, of_lock, &mut checks);
        }
    }
    let queues = sightings.map(|_| (checks, judge.group_waits(told)));
    for lost in &ledger.lost {
        let row = judge.row(lost.at);
        match lost.kind {
            Kind::Fenced => row.lost_fenced += lost.count,
            Kind::Unfenced => row.lost_unfenced += lost.count,
        }
    }
    for refused in &ledger.refused {
        judge.row(*refused).refused += 1;
    }
    judge.progress(told);
    let memory = memory(told, began, cycles.last().map_or(began, |cycle| cycle.over));
    Findings { rows: judge.rows, memory, cached_holds: cached_holds(told), at_once: at_once(told), queues }
}

impl Judge<'_> {
    fn cycle(&self, at: Moment) -> Option<&Cycle> {
        let after = self.cycles.partition_point(|cycle| cycle.began <= at);
        self.cycles[..after].last()
    }

    fn row(&mut self, at: Moment) -> &mut Row {
        let name = self.cycle(at).map_or(CALM, |cycle| &cycle.name).to_owned();
        self.rows.entry(name).or_insert_with(|| Row::new(Column::Left))
    }

    fn finds(&mut self, kind: &'static str, at: Moment, what: String) -> &mut Row {
        let began = self.began;
        let since = self.cycle(at).map(|cycle| at - cycle.began);
        let row = self.row(at);
        row.examples.entry(kind).or_insert_with(|| {
            let since = since.map(|since| format!(", {} ms after the fault began", since / 1_000_000));
            format!("{:.3} s{}: {kind}: {what}", seconds(at, began), since.unwrap_or_default())
        });
        row
    }

    /// Checks the uses of one lock, in the order of their grants, for overlaps and for tokens that do not grow.
    fn overlaps_and_tokens(&mut self, uses: &[Seen<'_>]) {
        let began = self.began;
        let mut inside: Vec<Seen<'_>> = Vec::new();
        // Highest tokens of the uses that are over.
        let (mut written, mut read) = (None::<Seen<'_>>, None::<Seen<'_>>);
        for new in uses {
            let granted = new.used.granted;
            self.row(granted).grants += 1;
            inside.retain(|old| {
                let is_inside = old.used.end() > granted;
                if !is_inside {
                    let highest = if old.used.mode == Mode::Write { &mut written } else { &mut read };
                    *highest = highest.filter(|highest| highest.used.token >= old.used.token).or(Some(*old));
                }
                is_inside
            });
            if new.used.end() <= granted {
                continue; // the hold was over before its user could begin
            }
            for old in &inside {
                if old.used.mode == Mode::Write || new.used.mode == Mode::Write {
                    let what = format!("{} and {}", describe(*old, began), describe(*new, began));
                    self.finds("overlap", granted, what).overlaps += 1;
                }
            }
            // Readers of a phase share their token.
            let below = [written, read.filter(|_| new.used.mode == Mode::Write)].into_iter().flatten();
            let least = new.used.token + u64::from(new.used.origin == Origin::GoesOn);
            if let Some(old) = below.max_by_key(|old| old.used.token).filter(|old| old.used.token >= least) {
                let what = format!("{} before {}", describe(old, began), describe(*new, began));
                self.finds("token order", granted, what).token_order += 1;
            }
            inside.push(*new);
        }
    }

    /// Checks that each user notices a loss in time, or at least before another user has the lock. A loss during a
    /// pause of the process does not count.
    fn losses(&mut self, uses: &[Seen<'_>], told: &[Told]) {
        let began = self.began;
        for (place, seen) in uses.iter().enumerate() {
            let Some(at) = seen.used.told else { continue };
            let since = self.cycle(at).map(|cycle| Duration::from_nanos(at - cycle.began));
            let row = self.row(at);
            row.losses += 1;
            row.loss_told_after = row.loss_told_after.max(since.unwrap_or_default());
            let until = seen.used.until;
            let stood_still = |&(from, to): &(Moment, Moment)| from < at && to > until;
            if at <= until + nanos(TOLD_WITHIN) || told[seen.teller].history.stalls.iter().any(stood_still) {
                continue;
            }
            let conflicts = |other: &&Seen<'_>| seen.used.mode == Mode::Write || other.used.mode == Mode::Write;
            let mut later = uses[place + 1..].iter().take_while(|other| other.used.granted < at);
            if let Some(other) = later.find(|other| other.used.granted >= until && conflicts(other)) {
                let (seen, other) = (describe(*seen, began), describe(*other, began));
                let what = format!("{seen}; meanwhile {other}");
                self.finds("told late", at, what).told_late += 1;
            }
        }
    }

    /// Finds the times in which a lock has a waiter and no user. A group may hold some of its locks while it waits for
    /// others, so it counts as a user from its question on, and never as a waiter.
    fn stalls(&mut self, lock: usize, uses: &[Seen<'_>], told: &[Told]) {
        // Each change adds or removes one waiter or one user.
        let mut changes: Vec<(Moment, i64, i64)> = Vec::new();
        for Seen { used, .. } in uses {
            let ended = used.end().max(used.granted);
            match used.group {
                None => changes.extend([(used.asked, 1, 0), (used.granted, -1, 1), (ended, 0, -1)]),
                Some(_) => changes.extend([(used.asked, 0, 1), (ended, 0, -1)]),
            }
        }
        for kept in told.iter().flat_map(|told| &told.history.kept).filter(|kept| kept.lock == lock) {
            changes.push((kept.from, 0, 1));
            changes.push((kept.until.max(kept.from) + nanos(LEASE_IS_OVER), 0, -1));
        }
        for wait in told.iter().flat_map(|told| &told.history.waits).filter(|wait| wait.lock == lock) {
            match wait.group {
                None => changes.extend([(wait.asked, 1, 0), (wait.gave_up, -1, 0)]),
                Some(_) => changes.extend([(wait.asked, 0, 1), (wait.gave_up + nanos(LEASE_IS_OVER), 0, -1)]),
            }
        }
        changes.sort_unstable();
        let (mut waiting, mut inside, mut since) = (0, 0, None);
        for (at, waiters, users) in changes {
            (waiting, inside) = (waiting + waiters, inside + users);
            match (waiting > 0 && inside == 0, since) {
                (true, None) => since = Some(at),
                (false, Some(from)) => {
                    self.stalled(uses, from, at);
                    since = None;
                }
                _ => {}
            }
        }
    }

    fn stalled(&mut self, uses: &[Seen<'_>], from: Moment, to: Moment) {
        let (since, until) = (from, to);
        // A stall counts for the fault that had begun when the stall ended.
        let well = self.cycle(to).map_or(from, |cycle| cycle.healed.max(from));
        let began = self.began;
        let row = self.row(to);
        if to.saturating_sub(well) > nanos(WORTH_TELLING.max(row.stall_when_well)) {
            let [from, well, to] = [from, well, to].map(|at| format!("{:.3}", seconds(at, began)));
            let before = uses.iter().filter(|seen| seen.used.end() <= since).max_by_key(|seen| seen.used.end());
            let after = uses.iter().find(|seen| seen.used.granted >= until);
            let [before, after] =
                [before, after].map(|seen| seen.map_or("nobody".to_owned(), |seen| describe(*seen, began)));
            let what =
                format!("stall from {from} to {to} s, all was well from {well} s on, after {before}, until {after}");
            row.examples.insert("stall", what);
        }
        row.stall = row.stall.max(Duration::from_nanos(to - from));
        row.stall_when_well = row.stall_when_well.max(Duration::from_nanos(to.saturating_sub(well)));
    }

    fn progress(&mut self, told: &[Told]) {
        let mut grants: Vec<Vec<Moment>> = Vec::new();
        for told in told {
            grants.push(told.history.uses.iter().map(|used| used.granted).collect());
            grants.last_mut().expect("pushed").sort_unstable();
        }
        for cycle in self.cycles.iter().filter(|cycle| cycle.over >= cycle.healed + nanos(PROGRESS)) {
            for (told, grants) in told.iter().zip(&grants) {
                let is_there = told.history.ready.is_some_and(|ready| ready <= cycle.healed)
                    && told.ended >= cycle.healed + nanos(PROGRESS);
                let next = grants.get(grants.partition_point(|at| *at < cycle.healed));
                if is_there && next.is_none_or(|at| *at > cycle.healed + nanos(PROGRESS)) {
                    let what = format!("worker {} has no grant within 3 s after all was well", told.worker);
                    self.finds("no progress", cycle.healed, what).no_progress += 1;
                }
            }
        }
    }
}

/// Returns the memory of a process after a third of the run and at the end. Only processes that lived that long count,
/// and the result is for the one with the largest growth.
fn memory(told: &[Told], began: Moment, over: Moment) -> Option<(u64, u64)> {
    let second_third = began + over.saturating_sub(began) / 3;
    let grown = told.iter().filter_map(|told| {
        let looks = &told.history.memory;
        let first = looks.iter().find(|(at, _)| *at >= second_third)?;
        let last = looks.last().filter(|(at, _)| *at + nanos(PROGRESS) >= over)?;
        let is_old = looks.first().is_some_and(|(at, _)| *at < second_third);
        is_old.then_some((first.1, last.1))
    });
    grown.max_by_key(|(first, last)| last.saturating_sub(*first))
}

fn at_once(told: &[Told]) -> usize {
    let uses = told.iter().flat_map(|told| &told.history.uses).filter(|used| used.origin == Origin::Granted);
    uses.filter(|used| used.granted.saturating_sub(used.asked) < nanos(AT_ONCE)).count()
}

/// Returns the average over all readings of all workers.
fn cached_holds(told: &[Told]) -> f64 {
    let looks = || told.iter().flat_map(|told| &told.history.cached_holds);
    #[expect(clippy::cast_precision_loss, reason = "fewer than there are bits")]
    let [sum, count] = [looks().sum::<u64>(), looks().count() as u64].map(|number| number as f64);
    if count > 0.0 { sum / count } else { 0.0 }
}

fn seconds(at: Moment, began: Moment) -> f64 {
    Duration::from_nanos(at.saturating_sub(began)).as_secs_f64()
}

fn describe(seen: Seen<'_>, began: Moment) -> String {
    let Use { lock, mode, token, asked, granted, until, told, ended, gift, .. } = seen.used;
    let at = |moment: &Moment| format!("{:.3}", seconds(*moment, began));
    let end = match (told, ended) {
        (Some(told), _) => format!("told at {}", at(told)),
        (None, Some(ended)) => match gift {
            Some(gift) => format!("{gift:?} at {}", at(ended)).to_lowercase(),
            None => format!("killed or stopped at {}", at(ended)),
        },
        (None, None) => "never ended".to_owned(),
    };
    let (asked, granted, until) = (at(asked), at(granted), at(until));
    format!(
        "{mode:?} of lock {lock} by {} (token {token}, asked {asked}, granted {granted}, valid until {until}, {end})",
        seen.teller
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::History;
    use crate::register::LostUpdates;

    pub(super) const MS: u64 = 1_000_000;

    pub(super) fn told(worker: usize, lines: &[&str]) -> Told {
        // Times are in milliseconds.
        let in_nanos = |line: &&str| {
            let times: &[usize] = match line.as_bytes()[0] {
                b'A' | b'B' | b'W' | b'E' | b'L' | b'V' => &[2],
                b'G' => &[2, 4],
                b'S' => &[1, 2],
                b'K' => &[2, 3],
                _ => &[1],
            };
            let word = |(place, word): (usize, &str)| {
                if times.contains(&place) { (word.parse::<u64>().unwrap() * MS).to_string() } else { word.to_owned() }
            };
            line.split(' ').enumerate().map(word).collect::<Vec<_>>().join(" ") + "\n"
        };
        let text: String = lines.iter().map(in_nanos).collect();
        Told { worker, history: History::parse(&text, 100_000 * MS).unwrap(), ended: 100_000 * MS }
    }

    fn row(told: &[Told]) -> Row {
        row_with(told, &Ledger::default())
    }

    fn row_with(told: &[Told], ledger: &Ledger) -> Row {
        let cycle = cycle(Mixes::Yes);
        let evidence = Evidence { told, ledger, sightings: None, cycles: &[cycle], began: 0, locks: 1 };
        judge(evidence).rows.remove("fault").unwrap()
    }

    pub(super) fn cycle(mixes: Mixes) -> Cycle {
        Cycle {
            name: "fault".to_owned(),
            column: Column::Left,
            mixes,
            began: 0,
            healed: 2000 * MS,
            over: 9000 * MS,
            count: 1,
        }
    }

    const WRITER: &[&str] =
        &["I 1", "A 1 10 0 w", "G 1 20 7 500", "E 1 100 r", "A 9 2000 0 w", "G 9 2001 99 2002", "E 9 2002 r"];

    fn beside(lines: &[&str]) -> Row {
        row(&[told(0, WRITER), told(1, lines)])
    }

    #[test]
    fn uses_that_conflict_overlap_as_long_as_both_are_valid() {
        assert_eq!(beside(&["A 1 10 0 w", "G 1 90 8 500", "E 1 200 r"]).overlaps, 1);
        assert_eq!(beside(&["A 1 10 0 r", "G 1 90 8 500", "E 1 200 r"]).overlaps, 1);
        let after = beside(&["A 1 10 0 w", "G 1 100 8 500", "E 1 200 r"]);
        assert_eq!((after.overlaps, after.token_order, after.grants), (0, 0, 3));
        // The local validity of the first use is over.
        let first = told(0, &["A 1 10 0 w", "G 1 20 7 60", "E 1 900 r"]);
        assert_eq!(row(&[first, told(1, &["A 1 10 0 w", "G 1 90 8 500", "E 1 200 r"])]).overlaps, 0);
        // The hold of the other use was over when its answer came.
        assert_eq!(beside(&["A 1 10 0 w", "G 1 90 8 85", "E 1 95 r"]).overlaps, 0);
        let [one, other] = [0, 1].map(|worker| told(worker, &["A 1 10 0 r", "G 1 20 7 500", "E 1 100 r"]));
        assert_eq!(row(&[one, other]).overlaps, 0);
    }

    #[test]
    fn token_that_does_not_grow_is_found() {
        for token in [6, 7] {
            let row = beside(&["A 1 10 0 w", &format!("G 1 200 {token} 500"), "E 1 300 r"]);
            assert_eq!((row.token_order, row.overlaps), (1, 0));
        }
        assert_eq!(beside(&["A 1 10 0 r", "G 1 200 7 500", "E 1 300 r"]).token_order, 1);
        let readers =
            told(0, &["A 1 10 0 r", "G 1 20 7 500", "E 1 100 r", "A 2 110 0 r", "G 2 120 7 500", "E 2 130 r"]);
        assert_eq!(row(&[readers]).token_order, 0);
        let writes = ["A 1 10 0 r", "G 1 20 7 500", "E 1 100 r", "A 2 110 0 w", "G 2 120 7 500", "E 2 130 r"];
        assert_eq!(row(&[told(0, &writes)]).token_order, 1);
        // The use continues with the same hold.
        let goes_on = ["A 1 10 0 w", "G 1 20 7 500", "E 1 100 c", "B 2 100 0 w", "G 2 101 7 500", "E 2 130 r"];
        assert_eq!(row(&[told(0, &goes_on)]).token_order, 0);
    }

    #[test]
    fn updates_that_were_lost_and_tokens_that_were_refused_count_for_the_fault_that_had_begun() {
        let lost = |kind, count| LostUpdates { at: 50 * MS, kind, lock: 0, count };
        let ledger = Ledger {
            lost: vec![lost(Kind::Fenced, 3), lost(Kind::Unfenced, 2), lost(Kind::Unfenced, 4)],
            refused: vec![50 * MS, 60 * MS],
            ..Ledger::default()
        };
        let row = row_with(&[], &ledger);
        assert_eq!((row.lost_fenced, row.lost_unfenced, row.refused), (3, 6, 2));
    }

    #[test]
    fn loss_that_is_told_after_another_grant_is_late_unless_its_process_stood_still() {
        let other = || told(1, &["A 1 10 0 w", "G 1 700 8 900", "E 1 800 r"]);
        let late = ["A 1 10 0 w", "G 1 20 7 500", "L 1 750 expired"];
        assert_eq!(row(&[told(0, &late), other()]).told_late, 1);
        assert_eq!(row(&[told(0, &[&late[..], &["S 480 745"]].concat()), other()]).told_late, 0);
        assert_eq!(row(&[told(0, &["A 1 10 0 w", "G 1 20 7 500", "L 1 699 expired"]), other()]).told_late, 0);
    }

    #[test]
    fn free_lock_that_somebody_waits_for_stands_still() {
        let row = beside(&["A 1 30 0 w", "G 1 350 8 900", "E 1 400 r"]);
        assert_eq!(row.stall, Duration::from_millis(250));
        assert_eq!(row.stall_when_well, Duration::from_millis(1));
        // The server refused the release of the first hold. The lease of this hold ends 200 ms after its local
        // validity.
        let kept = told(0, &[WRITER, &["K 0 100 140"]].concat());
        let waits = told(1, &["A 1 30 0 w", "G 1 350 8 900", "E 1 400 r"]);
        assert_eq!(row_with(&[kept, waits], &Ledger::default()).stall, Duration::from_millis(10));
    }

    #[test]
    fn group_that_waits_may_hold_its_locks_so_they_do_not_stand_still() {
        // The group asks for this lock and another one, and gives up. Another user waits until then.
        let group = told(0, &["A 1 10 0 w g0 g1", "A 2 10 1 w g0 g1", "W 1 600 wait-timeout", "W 2 600 wait-timeout"]);
        let waits = told(1, &["A 1 30 0 w", "G 1 620 8 900", "E 1 700 r"]);
        assert_eq!(row(&[group, waits]).stall, Duration::ZERO);
    }

    #[test]
    fn worker_without_a_grant_after_healing_is_found() {
        let served = ["I 1", "A 1 4000 0 w", "G 1 4900 100 5000", "E 1 4950 r"];
        assert_eq!(beside(&served).no_progress, 0);
        assert_eq!(beside(&["I 1", "A 1 4000 0 w", "G 1 5100 100 5200", "E 1 5150 r"]).no_progress, 1);
        // The worker became ready later.
        assert_eq!(beside(&["I 2500"]).no_progress, 0);
    }
}
