//! Stages of an acquisition in its process, and what each event makes of them. The code makes the tables of ARCHITECTURE.md,
//! and the test compares them with the page.

use super::*;
use crate::base::attempt::{Acquired, Granted};
use crate::lock::side::{NextStep, SideOutage};

/// Stage of a writer's acquisition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AcquisitionStage {
    WaitsForLeader,
    WaitsForGuard,
    Asks,
    AsksBefore,
    AsksBeside,
    HasShare,
}

const STAGES: [(AcquisitionStage, &str); 6] = [
    (AcquisitionStage::WaitsForLeader, "waits behind the leader"),
    (AcquisitionStage::WaitsForGuard, "waits for the write guard of the process"),
    (AcquisitionStage::Asks, "asks, and no other waits"),
    (AcquisitionStage::AsksBefore, "asks, and others wait"),
    (AcquisitionStage::AsksBeside, "asks beside the leader (a try)"),
    (AcquisitionStage::HasShare, "has a share, and has not looked"),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StageEvent {
    OwnGrant,
    GrantOfLeader,
    GuardLeaves,
    LeaderLeaves,
    LeaderStalls,
    NoReplica,
    OutageBegins,
    OwnEnd,
}

const EVENTS: [(StageEvent, &str); 8] = [
    (StageEvent::OwnGrant, "the server grants its request"),
    (StageEvent::GrantOfLeader, "the server grants the request of the leader"),
    (StageEvent::GuardLeaves, "the write guard of the process leaves"),
    (StageEvent::LeaderLeaves, "the future of the leader is dropped"),
    (StageEvent::LeaderStalls, "the future of the leader is not polled in time"),
    (StageEvent::NoReplica, "too few replicas have the grant of the leader"),
    (StageEvent::OutageBegins, "the server does not answer the leader"),
    (StageEvent::OwnEnd, "its own future is dropped"),
];

/// Request of the leader, and of the acquisition if it sends one of its own.
const OF_LEADER: u64 = 1;
const OF_SUBJECT: u64 = 2;

/// An acquisition in one stage, with those that the stage needs.
struct StagedAcquisition {
    table: Arc<Table>,
    subject: WaitEntry,
    leader: Option<WaitEntry>,
    behind: Option<WaitEntry>,
    guard: Option<(Arc<Hold>, ShareId)>,
}

impl StagedAcquisition {
    fn at(stage: AcquisitionStage) -> Self {
        let table = table();
        let leader = || {
            let leader = enter(&table, Write);
            sends(&leader, OF_LEADER);
            leader
        };
        let (mut front, mut behind, mut guard) = (None, None, None);
        let subject = match stage {
            AcquisitionStage::WaitsForLeader => {
                front = Some(leader());
                enter(&table, Write)
            }
            AcquisitionStage::WaitsForGuard | AcquisitionStage::HasShare => {
                let held = grants(&leader(), OF_LEADER);
                let subject = enter(&table, Write);
                if stage == AcquisitionStage::HasShare {
                    remove(&held.0, held.1);
                } else {
                    guard = Some(held);
                }
                subject
            }
            AcquisitionStage::Asks | AcquisitionStage::AsksBefore => {
                let subject = enter(&table, Write);
                sends(&subject, OF_SUBJECT);
                behind = (stage == AcquisitionStage::AsksBefore).then(|| enter(&table, Write));
                subject
            }
            AcquisitionStage::AsksBeside => {
                front = Some(leader());
                let subject = try_enter(&table, Write).expect("no task of the process is in the way");
                sends(&subject, OF_SUBJECT);
                subject
            }
        };
        Self { table, subject, leader: front, behind, guard }
    }

    /// Applies an event. Returns `None` if the event cannot come in this stage.
    fn after(mut self, event: StageEvent) -> Option<&'static str> {
        match event {
            StageEvent::OwnGrant => {
                let has_asked = self.subject.has_traces();
                return has_asked.then(|| grants(&self.subject, OF_SUBJECT)).map(|_| "has a hold");
            }
            StageEvent::OwnEnd => return Some(end_of(&leave(self.subject))),
            StageEvent::GrantOfLeader => drop(grants(self.leader.as_ref()?, OF_LEADER)),
            StageEvent::GuardLeaves => {
                let (hold, share_id) = self.guard.take()?;
                remove(&hold, share_id);
            }
            StageEvent::LeaderLeaves => drop(leave(self.leader.take()?)),
            StageEvent::LeaderStalls => {
                // The leader may be the acquisition itself.
                self.leader.as_ref().or(self.behind.as_ref())?;
                self.table.deadlines.look_for_stalled(now().after(POLL_WITHIN * 2));
            }
            StageEvent::NoReplica => {
                let failure = Failure::Unreplicated { asked: 1, acknowledged: 0, node: None };
                let leader = self.leader.as_ref()?;
                // The request was also for those that came before its newest copy.
                sends(leader, OF_LEADER);
                leader.fail_waiters(&failure);
            }
            StageEvent::OutageBegins => {
                self.leader.as_ref()?.on_outage(Some(SideOutage { since: now(), source: None }));
            }
        }
        Some(stage_of(&mut self.subject))
    }
}

/// Turns the answer to a request that was sent into a hold.
fn grants(entry: &WaitEntry, n: u64) -> (Arc<Hold>, ShareId) {
    match entry.on_grant(new_hold(n, Write, (1000, 64), now()), now()).0 {
        Installed::Hold(hold, share_id) => (hold, share_id),
        other => panic!("{other:?}"),
    }
}

/// Returns the stage that an acquisition finds when its future is polled.
fn stage_of(entry: &mut WaitEntry) -> &'static str {
    let woken = {
        let mut signal = std::pin::pin!(entry.woken(None));
        signal.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    };
    match woken {
        Poll::Pending => "waits",
        Poll::Ready(None) => "waits, with a timer",
        Poll::Ready(Some(Wake::Handed(..))) => "has a share",
        Poll::Ready(Some(Wake::Failed(_))) => "fails",
        Poll::Ready(Some(Wake::Ask)) => match sends(entry, OF_SUBJECT) {
            None => "waits again, at its old place",
            Some(request) if request == id(OF_LEADER) => "asks, with the request of the leader",
            Some(_) => "asks",
        },
    }
}

fn end_of(left: &Leaving) -> &'static str {
    match left {
        Leaving { handed: Some(_), .. } => "ends, and its share is released",
        Leaving { pending: Some(_), .. } => "ends, and its request is withdrawn",
        Leaving { goes_on: true, .. } => "ends, and the next waiter has its request",
        Leaving { .. } => "ends",
    }
}

fn row(cells: impl IntoIterator<Item = &'static str>) -> String {
    let cells: Vec<_> = cells.into_iter().collect();
    format!("| {} |\n", cells.join(" | "))
}

fn table_of_stages() -> String {
    let mut text = row(std::iter::once("event").chain(STAGES.map(|(_, name)| name)));
    text += &row(["---"; 7]);
    for (event, name) in EVENTS {
        let after = |(stage, _)| StagedAcquisition::at(stage).after(event).unwrap_or("–");
        text += &row(std::iter::once(name).chain(STAGES.map(after)));
    }
    text
}

fn table_of_answers() -> String {
    let (retry_in, holder) = (secs(1), None);
    let granted = Granted {
        token: FencingToken::from_wire(1).expect("small"),
        tokens: 1,
        remaining: LEASE,
        is_waited_for: false,
    };
    let answers = [
        ("granted", Acquired::Granted(granted)),
        ("queued", Acquired::Queued { retry_in, is_cached: false, holder: holder.clone() }),
        ("queued, and the hold is recalled", Acquired::Queued { retry_in, is_cached: true, holder: holder.clone() }),
        ("refused", Acquired::Contended { retry_in, holder: holder.clone() }),
        ("refused, and the hold may be cached", Acquired::Cached { retry_in, holder }),
        ("late", Acquired::Late),
    ];
    let callers = [("waits", true, false), ("a try", false, false), ("a try that has recalled in vain", false, true)];
    let mut text = row(std::iter::once("answer").chain(callers.map(|(name, ..)| name)));
    text += &row(["---"; 4]);
    for (name, answer) in answers {
        let step = |(_, waits, is_over)| match NextStep::after(&answer, waits, || is_over) {
            NextStep::Take(_) => "has a hold",
            NextStep::EndRefused => "ends: others hold it or wait",
            NextStep::AwaitTurn { .. } if waits => "waits in the queue of the server",
            NextStep::AwaitTurn { .. } if is_over => "asks once more, and ends then",
            NextStep::AwaitTurn { .. } => "waits for the reply to its recall",
            NextStep::Pause { .. } => "pauses, and asks again",
            NextStep::AskSoon => "asks again soon",
        };
        text += &row(std::iter::once(name).chain(callers.map(step)));
    }
    text
}

#[test]
fn stages_of_an_acquisition_are_those_of_the_page() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/ARCHITECTURE.md")).expect("the page");
    for table in [table_of_stages(), table_of_answers()] {
        assert!(page.contains(&table), "ARCHITECTURE.md has not:\n{table}");
    }
}
