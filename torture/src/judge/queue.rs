//! Rules of the queues, checked by the views of the observer and the histories of the workers.
//!
//! A worker knows when it asks and when it has its guard, but not its place in the queue. So only what a view proves
//! counts. A waiter with the age `a` in a view was in the queue from `a` before the view on, since a waiter that loses its
//! place begins with the age 0. A client without a record in a view of that time asked later than the waiter.
//!
//! 1. No writer of a process that asked later enters before a waiting writer.
//! 2. A writer that is the first one of the queue waits for at most one phase of readers.
//! 3. A reader waits for at most one other writer, and for none that comes after one that is inside. That writer has asked
//!    later only if an earlier one has given up: after readers, a writer enters. Such writers are counted.
//! 4. No group reaches the limit of its wait.
//!
//! A fault that changes the role of a server may lose a place, or let the observer see the past of an old primary. Waits
//! that touch such a fault are left out of the first three rules, and counted.

use std::collections::{BTreeSet, HashMap};

use super::*;
use crate::history::GroupEnd;
use crate::observer::{Record, Sighting, Standing};
use crate::worker::GROUPS_LABEL;

/// Largest error of an age. Faults step the clock of a server by less than 100 ms, and ages are in whole milliseconds.
const AGE_ERROR: Duration = Duration::from_millis(102);

/// Extent of the checks, which shows that they were not empty.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct QueueChecks {
    /// Pairs of a waiter and a client that waited as a writer and had asked later.
    pub(crate) pairs: usize,
    /// Number of these pairs whose waiter is a group.
    pub(crate) pairs_of_groups: usize,
    /// Writers that entered before a reader who had asked earlier, in place of a writer that gave up.
    pub(crate) stepped_in: usize,
    /// Number of pairs that were left out.
    pub(crate) left_out: usize,
    /// Waits of the first writer of a queue during which readers were inside.
    pub(crate) phases: usize,
    /// Number of these waits that were waits of groups.
    pub(crate) phases_of_groups: usize,
}

/// Waits of groups.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct GroupWaits {
    pub(crate) granted: usize,
    pub(crate) timed_out: usize,
    /// Number of acquisitions that returned another error, such as `Unreachable`.
    pub(crate) failed: usize,
    /// Longest wait, also of a group that was cut off by the end of its process.
    pub(crate) longest: Duration,
    /// Waits that ended with a grant or at the limit, in ascending order.
    waits: Vec<Duration>,
}

impl GroupWaits {
    /// Returns the wait that this number of a thousand waits does not exceed.
    pub(crate) fn quantile(&self, of_a_thousand: usize) -> Duration {
        let place = (self.waits.len() * of_a_thousand).div_ceil(1000).saturating_sub(1);
        self.waits.get(place).copied().unwrap_or_default()
    }
}

/// Last view of a waiter, and the earlier views in which the waiter certainly waited.
#[derive(Clone, Copy, Debug)]
struct Place<'a> {
    waiter: &'a Record,
    /// Views of the wait, the last one included.
    views: &'a [Sighting],
}

impl<'a> Place<'a> {
    /// Returns the place of each waiter, at its last view.
    fn all(sightings: &'a [Sighting]) -> impl Iterator<Item = Self> {
        sightings.iter().enumerate().flat_map(move |(index, view)| {
            let next = sightings.get(index + 1);
            let last_seen = waiters(view).filter(move |waiter| !next.is_some_and(|next| goes_on(waiter, next)));
            last_seen.filter_map(move |waiter| {
                let age = nanos(Duration::from_millis(waiter.age_ms.into()));
                let entered = (view.received + nanos(AGE_ERROR)).saturating_sub(age);
                let first = sightings.partition_point(|view| view.sent <= entered);
                (first < index).then(|| Self { waiter, views: &sightings[first..=index] })
            })
        })
    }

    fn last(&self) -> &'a Sighting {
        &self.views[self.views.len() - 1]
    }

    fn is_of_group(&self) -> bool {
        self.waiter.label.starts_with(GROUPS_LABEL)
    }

    /// Returns the clients that waited as writers during the wait and had asked later.
    fn later_writers(&self) -> HashSet<&'a str> {
        let (mut later, mut seen) = (HashSet::new(), HashMap::<&str, usize>::new());
        for (before, view) in self.views.iter().enumerate() {
            let writes = |record: &&Record| record.standing == Standing::Waits && record.mode == Mode::Write;
            let was_absent = |record: &&Record| seen.get(&*record.label).copied().unwrap_or(0) < before;
            let others = view.records.iter().filter(|record| record.label != self.waiter.label);
            later.extend(others.filter(writes).filter(was_absent).map(|record| &*record.label));
            let present: HashSet<&str> = view.records.iter().map(|record| &*record.label).collect();
            present.into_iter().for_each(|label| *seen.entry(label).or_default() += 1);
        }
        later
    }

    /// Returns a view of the wait that the client had no record in, and that was over when it was granted the lock.
    fn view_without(&self, label: &str, granted: Moment) -> Option<&'a Sighting> {
        let mut over = self.views.iter().take_while(|view| view.received < granted);
        over.find(|view| view.records.iter().all(|record| *record.label != *label))
    }

    /// Returns the views in which the waiter was the first writer of the queue.
    fn at_head(&self) -> &'a [Sighting] {
        let is_head = |view: &Sighting| {
            let mut writers = waiters(view).filter(|waiter| waiter.mode == Mode::Write);
            // Guests have the label of their worker, so a second waiter of that label may be another one.
            writers.next().is_some_and(|first| first.label == self.waiter.label)
                && writers.all(|other| other.label != self.waiter.label)
        };
        match self.views.iter().position(is_head) {
            Some(first) if self.waiter.mode == Mode::Write && is_head(self.last()) => &self.views[first..],
            _ => &[],
        }
    }
}

fn waiters(view: &Sighting) -> impl Iterator<Item = &Record> {
    view.records.iter().filter(|record| record.standing == Standing::Waits)
}

/// Returns true if the next view has the waiter, too.
fn goes_on(waiter: &Record, next: &Sighting) -> bool {
    waiters(next).any(|other| other.label == waiter.label && other.mode == waiter.mode && other.age_ms > waiter.age_ms)
}

/// Returns the uses with a grant between the two moments.
fn between<'a, 'b>(uses: &'b [Seen<'a>], from: Moment, to: Moment) -> impl Iterator<Item = Seen<'a>> + use<'a, 'b> {
    let first = uses.partition_point(|seen| seen.used.granted <= from);
    let is_grant = |seen: &Seen<'_>| seen.used.origin == Origin::Granted && seen.used.until > seen.used.granted;
    uses[first..].iter().copied().take_while(move |seen| seen.used.granted < to).filter(is_grant)
}

/// Returns the grants to writers that had asked later than the waiter, each with a view that proves it.
fn later_grants<'a, 'b>(
    uses: &'b [Seen<'a>],
    place: &'b Place<'b>,
) -> impl Iterator<Item = (Seen<'a>, &'b Sighting)> + use<'a, 'b> {
    between(uses, place.views[0].received, place.last().sent)
        .filter(|seen| seen.used.mode == Mode::Write && *seen.used.label != *place.waiter.label)
        .filter_map(|seen| Some((seen, place.view_without(&seen.used.label, seen.used.granted)?)))
}

impl Judge<'_> {
    /// Checks the order of the queue of one lock. The uses are in the order of their grants.
    pub(super) fn queue(&mut self, uses: &[Seen<'_>], sightings: &[Sighting], checks: &mut QueueChecks) {
        for place in Place::all(sightings) {
            let later = place.later_writers().len();
            if self.changes_a_role(place.views[0].sent, place.last().received) {
                checks.left_out += later;
                continue;
            }
            checks.pairs += later;
            checks.pairs_of_groups += if place.is_of_group() { later } else { 0 };
            if place.waiter.mode == Mode::Write {
                self.passing_writers(uses, &place);
                self.read_phases(uses, &place, checks);
            } else {
                self.write_phases(uses, &place, checks);
            }
        }
    }

    /// Returns true if a fault that changes the role of a server falls into this time.
    fn changes_a_role(&self, from: Moment, to: Moment) -> bool {
        let mut changes = self.cycles.iter().filter(|cycle| cycle.mixes == Mixes::No);
        changes.any(|cycle| cycle.began <= to && cycle.healed >= from)
    }

    fn passing_writers(&mut self, uses: &[Seen<'_>], place: &Place<'_>) {
        for (seen, view) in later_grants(uses, place) {
            let (entered, label) = (describe(seen, self.began), &seen.used.label);
            let (wait, at) = (self.describe_wait(place), seconds(view.sent, self.began));
            let what =
                format!("{entered} of {label} entered; {wait}, and {label} had no record in the view from {at:.3} s");
            self.finds("passed", seen.used.granted, what).passed += 1;
        }
    }

    fn write_phases(&mut self, uses: &[Seen<'_>], place: &Place<'_>, checks: &mut QueueChecks) {
        let first = &place.views[0];
        let has_writer = first.records.iter().any(|one| one.standing == Standing::Holds && one.mode == Mode::Write);
        let is_inside =
            |label: &str| first.records.iter().any(|one| one.standing == Standing::Holds && *one.label == *label);
        // The tasks of a process pass its hold on, so all of them count as one writer.
        let new: BTreeSet<&str> = between(uses, first.received, place.last().sent)
            .filter(|seen| seen.used.mode == Mode::Write && *seen.used.label != *place.waiter.label)
            .map(|seen| &*seen.used.label)
            .filter(|label| !is_inside(label))
            .collect();
        checks.stepped_in += usize::from(later_grants(uses, place).next().is_some());
        if new.len() + usize::from(has_writer) > 1 {
            let what = format!("writers {new:?} entered; {}", self.describe_wait(place));
            self.finds("write phases", place.last().sent, what).write_phases += 1;
        }
    }

    fn read_phases(&mut self, uses: &[Seen<'_>], place: &Place<'_>, checks: &mut QueueChecks) {
        let Some(first) = place.at_head().first() else { return };
        let has_readers = first.records.iter().any(|one| one.standing == Standing::Holds && one.mode == Mode::Read);
        // Readers of a phase share their token.
        let new: BTreeSet<u64> = between(uses, first.received, place.last().sent)
            .filter(|seen| seen.used.mode == Mode::Read && seen.used.token > first.last_token)
            .map(|seen| seen.used.token)
            .collect();
        let phases = new.len() + usize::from(has_readers);
        checks.phases += usize::from(phases > 0);
        checks.phases_of_groups += usize::from(phases > 0 && place.is_of_group());
        if phases > 1 {
            let what =
                format!("{phases} phases of readers, new ones with the tokens {new:?}; {}", self.describe_wait(place));
            self.finds("read phases", place.last().sent, what).read_phases += 1;
        }
    }

    fn describe_wait(&self, place: &Place<'_>) -> String {
        let Record { label, mode, .. } = place.waiter;
        let [from, to] = [place.views[0].sent, place.last().sent].map(|at| seconds(at, self.began));
        format!("{label} waited to {mode} from {from:.3} s at the latest, and still at {to:.3} s")
    }

    /// Counts the waits of groups, and finds those that reached their limit.
    pub(super) fn group_waits(&mut self, told: &[Told]) -> GroupWaits {
        let mut waits = GroupWaits::default();
        for wait in told.iter().flat_map(|told| &told.history.group_waits) {
            let took = Duration::from_nanos(wait.ended.saturating_sub(wait.asked));
            waits.longest = waits.longest.max(took);
            match wait.end {
                GroupEnd::Granted => waits.granted += 1,
                GroupEnd::TimedOut => {
                    waits.timed_out += 1;
                    let what = format!("a group waited for {:.1} s in vain", took.as_secs_f64());
                    self.finds("starved", wait.ended, what).starved += 1;
                }
                GroupEnd::Failed => waits.failed += 1,
                GroupEnd::CutOff => continue,
            }
            if wait.end != GroupEnd::Failed {
                waits.waits.push(took);
            }
        }
        waits.waits.sort_unstable();
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::tests::{MS, cycle, told};
    use crate::judge::{Evidence, Row, judge};
    use crate::register::Ledger;

    /// Parses a view such as `1000 1001 7: holds w w1 50, waits r g2 300`: its two moments in milliseconds, the last token,
    /// and the records with their labels and ages.
    fn view(text: &str) -> Sighting {
        let (head, records) = text.split_once(": ").unwrap();
        let head: Vec<u64> = head.split(' ').map(|word| word.parse().unwrap()).collect();
        let record = |text: &str| {
            let words: Vec<&str> = text.split(' ').collect();
            let standing = if words[0] == "holds" { Standing::Holds } else { Standing::Waits };
            let mode = if words[1] == "r" { Mode::Read } else { Mode::Write };
            Record { standing, mode, label: words[2].into(), age_ms: words[3].parse().unwrap() }
        };
        let records = records.split(", ").map(record).collect();
        Sighting { sent: head[0] * MS, received: head[1] * MS, last_token: head[2], records }
    }

    fn findings(lines: &[&str], views: &[&str], mixes: Mixes) -> (Row, QueueChecks, GroupWaits) {
        let sightings = vec![views.iter().map(|text| view(text)).collect()];
        let (told, ledger, cycles) = ([told(0, lines)], Ledger::default(), [cycle(mixes)]);
        let (sightings, told) = (Some(&sightings), &told[..]);
        let mut found = judge(Evidence { told, ledger: &ledger, sightings, cycles: &cycles, began: 0, locks: 1 });
        let (checks, waits) = found.queues.unwrap();
        (found.rows.remove("fault").unwrap(), checks, waits)
    }

    fn row(lines: &[&str], views: &[&str]) -> Row {
        findings(lines, views, Mixes::Yes).0
    }

    const LATER: &[&str] = &["A 1 1050 0 w w3", "G 1 1100 9 1500", "E 1 1150 r"];
    /// The group g2 waits, and w3 comes only after the first view.
    const GROUP_WAITS: &[&str] = &[
        "1000 1001 7: holds w w1 50, waits w g2 300",
        "1060 1061 7: holds w w1 110, waits w g2 360, waits w w3 9",
        "1200 1201 9: holds w w1 5, waits w g2 500",
    ];

    #[test]
    fn writer_that_asked_later_and_entered_first_is_found() {
        let (row, checks, _) = findings(LATER, GROUP_WAITS, Mixes::Yes);
        assert_eq!((row.passed, row.violations(), checks.pairs, checks.pairs_of_groups), (1, 1, 1, 1));
        // The writer enters after the last view of the waiter.
        assert_eq!(self::row(LATER, &GROUP_WAITS[..2]).passed, 0);
    }

    #[test]
    fn reader_waits_for_one_writer_which_may_step_in_for_another() {
        let views =
            |holder: &str| [format!("1000 1001 7: {holder}waits r g2 300"), "1400 1401 7: waits r g2 700".to_owned()];
        let found = |holder: &str, lines: &[&str]| {
            let views = views(holder);
            let (row, checks, _) = findings(lines, &[&views[0], &views[1]], Mixes::Yes);
            (row.write_phases, checks.stepped_in)
        };
        let next: &[&str] = &["A 2 1060 0 w w4", "G 2 1200 11 1500", "E 2 1250 r"];
        assert_eq!(found("holds r w9 50, ", LATER), (0, 1));
        assert_eq!(found("holds r w9 50, ", &[LATER, next].concat()), (1, 1));
        // A writer was inside, and its own process goes on with its hold.
        assert_eq!(found("holds w w9 50, ", LATER), (1, 1));
        assert_eq!(found("holds w w3 50, ", LATER), (0, 0));
    }

    fn row_of(lines: &[&str], views: &[String]) -> Row {
        row(lines, &views.iter().map(String::as_str).collect::<Vec<_>>())
    }

    #[test]
    fn order_that_no_view_proves_is_no_violation() {
        // The writer may have asked before the waiter: it has a record in each view before its grant.
        let earlier = ["1000 1001 7: waits w w3 400, waits w g2 300", GROUP_WAITS[1], GROUP_WAITS[2]];
        assert_eq!(row(LATER, &earlier).passed, 0);
        // The waiter has lost its place, and another one in the last view. Ages may be wrong by the steps of a clock.
        for age in [10, 250, 300] {
            let last = format!("1200 1201 9: holds w w1 5, waits w g2 {age}");
            assert_eq!(row(LATER, &[GROUP_WAITS[0], GROUP_WAITS[1], &last]).passed, 0, "{age}");
        }
        // Another task of the process of the waiter, and a hold that was over when its user had it.
        assert_eq!(row(&["A 1 1050 0 w g2", "G 1 1100 9 1500", "E 1 1150 r"], GROUP_WAITS).passed, 0);
        assert_eq!(row(&["A 1 1050 0 w w3", "G 1 1100 9 1100", "E 1 1150 r"], GROUP_WAITS).passed, 0);
    }

    #[test]
    fn waits_while_a_server_changes_its_role_are_left_out_and_counted() {
        let (row, checks, _) = findings(LATER, GROUP_WAITS, Mixes::No);
        assert_eq!((row.passed, checks.pairs, checks.left_out), (0, 0, 1));
    }

    #[test]
    fn first_writer_waits_for_one_phase_of_readers() {
        let views =
            |holder: &str| [format!("1000 1001 7: {holder}waits w g2 300"), "1400 1401 7: waits w g2 700".into()];
        let phase = |id: u64, at: u64, token: u64| {
            [format!("A {id} 990 0 r w3"), format!("G {id} {at} {token} 1900"), format!("E {id} {} r", at + 9)]
                .join("\n")
        };
        let phases = |holder: &str, tokens: [u64; 2]| {
            let lines = [phase(1, 1100, tokens[0]), phase(2, 1200, tokens[1])].join("\n");
            row_of(&lines.lines().collect::<Vec<_>>(), &views(holder)).read_phases
        };
        assert_eq!(phases("holds w w1 50, ", [20, 30]), 1);
        assert_eq!(phases("holds w w1 50, ", [20, 20]), 0);
        // Readers were inside, and the token of their phase is 7.
        assert_eq!(phases("holds r w3 50, ", [7, 7]), 0);
        assert_eq!(phases("holds r w3 50, ", [7, 20]), 1);
        // Another writer is ahead.
        assert_eq!(phases("holds w w1 50, waits w w4 400, ", [20, 30]), 0);
    }

    #[test]
    fn group_at_its_limit_starves_and_the_longest_waits_are_told() {
        let lines = ["A 1 10 0 w g2 g1", "A 2 10 1 w g2 g1", "W 1 900 wait-timeout", "W 2 900 wait-timeout"];
        let granted = ["A 3 20 0 w g2 g3", "G 3 60 9 1500", "E 3 70 r", "A 4 100 1 r g2 g4", "W 4 300 unreachable"];
        let (row, _, waits) = findings(&[&lines[..], &granted].concat(), &[], Mixes::Yes);
        assert_eq!((row.starved, row.violations()), (1, 1));
        assert_eq!((waits.granted, waits.timed_out, waits.failed), (1, 1, 1));
        assert_eq!([500, 999].map(|part| waits.quantile(part).as_millis()), [40, 890]);
        assert_eq!(waits.longest.as_millis(), 890);
    }
}
