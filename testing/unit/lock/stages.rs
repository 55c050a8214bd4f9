//! Stages of an acquisition in its process, and what each event makes of them. The code makes the tables of ARCHITECTURE.md,
//! and the test compares them with the page.

use super::requesters::{answers, queued, unreplicated};
use super::*;
use crate::base::attempt::{Acquired, Granted};
use crate::lock::side::{NextStep, Patience, SideOutage};

/// Stage of a writer's acquisition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AcquisitionStage {
    SendsFirst,
    SendsAgain,
    WaitsBehind,
    WaitsForGuard,
    HasShare,
    IsFailed,
}

const STAGES: [(AcquisitionStage, &str); 6] = [
    (AcquisitionStage::SendsFirst, "waits, and its task sends the first copy"),
    (AcquisitionStage::SendsAgain, "waits, and its task sends further copies"),
    (AcquisitionStage::WaitsBehind, "waits, and the task of another sends the copies"),
    (AcquisitionStage::WaitsForGuard, "waits for the write guard of the process"),
    (AcquisitionStage::HasShare, "has a share, and has not looked"),
    (AcquisitionStage::IsFailed, "has failed, and has not looked"),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StageEvent {
    Granted,
    Refused,
    TryRefused,
    GuardLeaves,
    RequesterStalls,
    NoReplica,
    OutageBegins,
    OwnEnd,
    OwnEndBeforeOthers,
}

const EVENTS: [(StageEvent, &str); 9] = [
    (StageEvent::Granted, "the server grants the request"),
    (StageEvent::Refused, "the server refuses the request"),
    (StageEvent::TryRefused, "the server refuses the request of a try"),
    (StageEvent::GuardLeaves, "the write guard of the process leaves"),
    (StageEvent::RequesterStalls, "the task that sends the copies is not polled in time, and others wait"),
    (StageEvent::NoReplica, "too few replicas have the grant"),
    (StageEvent::OutageBegins, "the server does not answer"),
    (StageEvent::OwnEnd, "its own future is dropped, and no other waits"),
    (StageEvent::OwnEndBeforeOthers, "its own future is dropped, and others wait"),
];

const REQUEST: u64 = 1;

/// An acquisition in one stage, with the other waiters, the requester and the guard that the stage has.
struct StagedAcquisition {
    table: Arc<Table>,
    subject: WaitEntry,
    others: Vec<WaitEntry>,
    requester: Option<RequesterEntry>,
    guard: Option<(Arc<Hold>, ShareId)>,
}

impl StagedAcquisition {
    /// Returns `None` if no such acquisition can be in this stage.
    fn at(stage: AcquisitionStage, patience: Patience) -> Option<Self> {
        let table = table();
        let mut others = Vec::new();
        if matches!(stage, AcquisitionStage::WaitsForGuard | AcquisitionStage::HasShare) {
            return Some(Self::behind_guard(table, stage));
        }
        if stage == AcquisitionStage::WaitsBehind {
            others.push(enter(&table, Write));
        }
        let mut subject = match patience {
            Patience::Wait => enter(&table, Write),
            Patience::AskOnce => try_enter(&table, Write)?,
        };
        let requester = carried(others.first_mut().unwrap_or(&mut subject));
        sends(&requester, REQUEST);
        match stage {
            AcquisitionStage::SendsAgain => {
                answers(&requester, queued());
                sends(&requester, REQUEST);
            }
            AcquisitionStage::IsFailed => {
                requester.fail_waiters(unreplicated(), now());
                return Some(Self { table, subject, others, requester: None, guard: None });
            }
            _ => {}
        }
        Some(Self { table, subject, others, requester: Some(requester), guard: None })
    }

    fn behind_guard(table: Arc<Table>, stage: AcquisitionStage) -> Self {
        let (hold, share_id) = grant(&enter_first(&table, Write).0, 9, Write, 1000, 64);
        let subject = enter(&table, Write);
        if stage == AcquisitionStage::HasShare {
            remove(&hold, share_id);
        }
        let guard = (stage == AcquisitionStage::WaitsForGuard).then_some((hold, share_id));
        Self { table, subject, others: Vec::new(), requester: None, guard }
    }

    /// Applies an event. Returns `None` if the event cannot come in this stage.
    fn after(mut self, event: StageEvent) -> Option<String> {
        match event {
            StageEvent::OwnEnd => return self.others.is_empty().then(|| self.end()),
            StageEvent::OwnEndBeforeOthers => {
                self.others.push(enter(&self.table, Write));
                return Some(self.end());
            }
            StageEvent::GuardLeaves => {
                let (hold, share_id) = self.guard.take()?;
                remove(&hold, share_id);
            }
            StageEvent::Granted => {
                let requester = self.requester.as_ref()?;
                let installed = requester.on_grant(new_hold(REQUEST, Write, (1000, 64), now()), now()).0;
                match installed {
                    Installed::Hold(_, Some(_)) if self.others.is_empty() => return Some("has a hold".into()),
                    Installed::Hold(..) => {}
                    Installed::Over | Installed::NotMine => panic!("{installed:?}"),
                }
            }
            StageEvent::Refused | StageEvent::TryRefused => {
                let requester = self.requester.as_ref()?;
                answers(requester, queued());
                requester.deny_tries(now());
            }
            StageEvent::RequesterStalls => {
                self.requester.as_ref()?;
                self.others.push(enter(&self.table, Write));
                requester_stalls(&self.table);
            }
            StageEvent::NoReplica => self.requester.as_ref()?.fail_waiters(unreplicated(), now()),
            StageEvent::OutageBegins => {
                self.requester.as_ref()?.on_outage(Some(SideOutage::new(now(), None)));
            }
        }
        let stage = stage_of(&mut self.subject);
        Some(format!("{stage}{}", self.goes_on()))
    }

    /// Drops the future of the acquisition.
    fn end(mut self) -> String {
        let left = leave(self.subject);
        let end = match &left {
            Leaving { handed: Some(_), .. } => "ends, and its share is released",
            Leaving { pending: Some(_), .. } => "ends, and the request is withdrawn",
            Leaving { .. } => "ends",
        };
        format!("{end}{}", next_goes_on(&mut self.others))
    }

    fn goes_on(&mut self) -> &'static str {
        next_goes_on(&mut self.others)
    }
}

/// Tells whether the task of another waiter goes on with the request.
fn next_goes_on(others: &mut [WaitEntry]) -> &'static str {
    let goes_on = |other: &mut WaitEntry| match signal_of(other) {
        Some(Wake::Requests(requester_id)) => sends(&other.requester(requester_id), 2) == Some(id(REQUEST)),
        _ => false,
    };
    if others.iter_mut().any(goes_on) { ", and the next waiter goes on with the request" } else { "" }
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
        Poll::Ready(Some(Wake::Requests(_))) => "goes on with the request",
        Poll::Ready(Some(Wake::Handed(_))) => "has a share",
        Poll::Ready(Some(Wake::Denied)) => "is refused",
        Poll::Ready(Some(Wake::Failed(_))) => "fails",
        Poll::Ready(Some(Wake::PlaceLost)) => "waits again, behind the others",
    }
}

fn row(cells: impl IntoIterator<Item = String>) -> String {
    let cells: Vec<_> = cells.into_iter().collect();
    format!("| {} |\n", cells.join(" | "))
}

fn table_of_stages() -> String {
    let mut text = row(["event"].into_iter().chain(STAGES.map(|(_, name)| name)).map(str::to_owned));
    text += &row(["---"; 7].map(str::to_owned));
    for (event, name) in EVENTS {
        let patience = if event == StageEvent::TryRefused { Patience::AskOnce } else { Patience::Wait };
        let after = |(stage, _)| {
            let staged = StagedAcquisition::at(stage, patience);
            staged.and_then(|staged| staged.after(event)).unwrap_or_else(|| "–".to_owned())
        };
        text += &row(std::iter::once(name.to_owned()).chain(STAGES.map(after)));
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
    let mut text = row(["answer", "next step"].map(str::to_owned));
    text += &row(["---"; 2].map(str::to_owned));
    for (name, answer) in answers {
        let step = match NextStep::after(&answer) {
            NextStep::Take(_) => "gives the hold to the first waiter",
            NextStep::AwaitTurn { .. } => "waits in the queue of the server",
            NextStep::Pause { .. } => "pauses, and asks again",
            NextStep::AskSoon => "asks again soon",
        };
        text += &row([name, step].map(str::to_owned));
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
