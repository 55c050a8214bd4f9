//! Two threads at one cell, in each order of their accesses to shared memory. The code that runs is the code that ships:
//! the cell, the table, the queues of deadlines and the alarms. So the effects of two events come in either order, too.
//!
//! Some scenes have a slip, which is a planted fault of a wrong driver. They show that the scene finds it.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Mutex as StdMutex, OnceLock, PoisonError};
use std::time::Instant;

use super::*;
use crate::base::recalls::Reception;
use crate::base::single_task::{Running, SingleTask};
use crate::base::sync::scheduler::{ThreadBody, ThreadScene, block_on, explore_orders, has_lock};
use crate::base::sync::{AtomicBool, Mutex};
use crate::lock::cell::Surroundings;
use crate::lock::effects::CellEvent;
use crate::lock::hold::Next;
use crate::lock::side::SideOutage;

/// Faults of a wrong driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slip {
    /// Registers the waker of a waiter after the mutex was free since the waiter looked.
    RegistersAfterItLooked,
    /// Wakes a waiter before the state has the reason.
    WakesBeforeItChanges,
    /// Returns nothing of the share that a waiter was handed when it left.
    LeavesWithShare,
    /// Adds a waiter to a cell that the table has removed.
    EntersRemovedCell,
    /// Puts a hold into the queue at the deadline that it had before the mutex of the queue was locked.
    SchedulesWhatItRead,
    /// Takes a hold out of the queue and causes no event.
    TakesWithoutEvent,
    /// Listens for new work after the queues were read.
    ListensAfterItLooked,
    /// Leaves the subscription to the next leader in a second event.
    LeavesSubscriptionLater,
    /// Listens for the first answer after it has seen that there is none.
    ListensForAnswerLate,
    /// Looks for more work before it ends the only task that does the work.
    EndsAfterItLooked,
    /// Takes a grant because its leader was the leader just before.
    TakesWhatItMightHaveTaken,
    /// Sends no release because others shared the hold just before.
    LeavesAsItCounted,
}

type SceneOf = fn(Option<Slip>) -> ThreadScene;

/// Scenes by their names, with a number of orders that each has at least when threads are preempted twice.
const SCENES: [(&str, SceneOf, usize); 16] = [
    ("a leader leaves, and the next waiter looks", leader_leaves_and_waiter_looks, 16),
    ("an outage begins, and a waiter looks", outage_begins_as_a_waiter_looks, 10),
    ("the manager is closed, and a waiter looks", manager_is_closed_as_a_waiter_looks, 10),
    ("a writer is handed the hold, and looks", writer_is_handed_a_hold, 17),
    ("a writer is handed the hold, and leaves", writer_leaves_as_it_is_handed_a_hold, 16),
    ("a reader is handed a share, and leaves", reader_leaves_as_it_is_handed_a_share, 48),
    ("two guards of one hold leave", two_guards_of_one_hold_leave, 20),
    ("a task enters as the table removes the cell", task_enters_as_the_cell_is_removed, 54),
    ("two events bring the deadline of a hold forward", two_events_bring_a_deadline_forward, 200),
    ("the background takes a hold that an event changes", background_takes_a_hold, 400),
    ("a hold is forgotten as it is scheduled", hold_is_forgotten_as_it_is_scheduled, 120),
    ("a driver falls asleep as work comes", driver_falls_asleep_as_work_comes, 250),
    ("a leader leaves its subscription to the next one", leader_leaves_its_subscription, 14),
    ("the server answers the leader as a waiter listens", server_answers_as_a_waiter_listens, 18),
    ("a single task ends as work comes", single_task_ends_as_work_comes, 40),
    ("a leader gets a grant as it counts as stalled", leader_gets_a_grant_as_it_stalls, 130),
];

fn body(work: impl FnOnce() + Send + 'static) -> ThreadBody {
    Box::new(work)
}

fn two_threads(
    one: impl FnOnce() + Send + 'static,
    other: impl FnOnce() + Send + 'static,
    judge: impl FnOnce() -> Result<(), String> + 'static,
) -> ThreadScene {
    ThreadScene::new([body(one), body(other)], judge)
}

fn check(is_right: bool, fault: &str) -> Result<(), String> {
    if is_right { Ok(()) } else { Err(fault.into()) }
}

/// Lets the cell drop a hold without guards. Otherwise the cell and the hold would stay in memory.
fn end(hold: &Hold) {
    hold.cell().event(now(), |state, event| state.on_end(hold.number(), event));
}

/// Outcomes of the threads, for the judge of their scene.
struct Outcomes<T>(Arc<StdMutex<Vec<T>>>);

impl<T> Outcomes<T> {
    fn new() -> Self {
        Self(Arc::default())
    }

    fn another(&self) -> Self {
        Self(Arc::clone(&self.0))
    }

    fn add(&self, outcome: T) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
    }

    fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn leader_leaves_and_waiter_looks(slip: Option<Slip>) -> ThreadScene {
    let table = table();
    let [leader, mut waiter] = enter_all(&table, Write);
    let waiter_id = waiter.waiter_id();
    let looks = move || {
        let reason = reason_of(&mut waiter, slip);
        assert!(matches!(reason, Wake::Ask), "{reason:?}");
        leave(waiter);
    };
    let leaves = move || match slip {
        Some(Slip::WakesBeforeItChanges) => wake_and_then_leave(&leader, waiter_id),
        _ => drop(leave(leader)),
    };
    two_threads(looks, leaves, move || check(table.is_idle(), "the table has an idle cell"))
}

/// Waits until a waiter is woken, and returns the reason.
fn reason_of(waiter: &mut WaitEntry, slip: Option<Slip>) -> Wake {
    match slip {
        Some(Slip::RegistersAfterItLooked) => block_on(poll_fn(|cx| look_and_then_register(waiter, cx))),
        _ => block_on(waiter.woken(None)).expect("the server answers"),
    }
}

/// The wrong form of `WaitEntry::poll_wake`.
fn look_and_then_register(entry: &WaitEntry, cx: &Context<'_>) -> Poll<Wake> {
    let waiter_id = entry.waiter_id();
    match entry.cell().ask(|state| state.take_signal(Write, waiter_id)) {
        Some(reason) => Poll::Ready(reason),
        None => entry.cell().poll_waiter(waiter_id, cx, |_| None),
    }
}

/// The wrong form of `WaitEntry::leave`.
fn wake_and_then_leave(leader: &WaitEntry, next: WaiterId) {
    let cell = leader.cell();
    cell.quietly(|_, event| event.wake(next));
    let mut unused = CellEvent::new(now(), cell.rules(), &Reception::NONE);
    let left = cell.ask(|state| {
        let left = state.leave(Write, leader.waiter_id(), Backoff::new(), &mut unused);
        state.advance(&mut unused);
        left
    });
    drop(left);
}

fn outage_begins_as_a_waiter_looks(slip: Option<Slip>) -> ThreadScene {
    let table = table();
    let [leader, mut waiter] = enter_all(&table, Write);
    // So the event has two reasons to wake all.
    assert!(waiter.side().awaits_first_answer(), "the outage is the first answer, too");
    let begins = move || leader.on_outage(Some(SideOutage { since: now(), source: None }));
    let looks = move || {
        let woken = match slip {
            Some(Slip::RegistersAfterItLooked) => {
                block_on(poll_fn(|cx| look_for_outage_and_then_register(&waiter, cx)))
            }
            _ => block_on(waiter.woken(None)),
        };
        assert!(woken.is_none(), "{woken:?}");
    };
    two_threads(looks, begins, || Ok(()))
}

/// The wrong form of `WaitEntry::poll_wake`.
fn look_for_outage_and_then_register(entry: &WaitEntry, cx: &Context<'_>) -> Poll<Option<Wake>> {
    match entry.cell().ask(|state| state.side(Write).outage.clone()) {
        Some(_) => Poll::Ready(None),
        None => entry.cell().poll_waiter(entry.waiter_id(), cx, |_| None),
    }
}

fn manager_is_closed_as_a_waiter_looks(slip: Option<Slip>) -> ThreadScene {
    let table = table();
    let [leader, mut waiter] = enter_all(&table, Write);
    let is_closed = Arc::new(AtomicBool::new(false));
    // What `Table::wake_waiters` does at this cell. Without the other shards there are fewer orders.
    let (seen, cell) = (Arc::clone(&is_closed), Arc::clone(leader.cell()));
    let wakes = move || cell.quietly(|_, event| event.wake_all());
    let looks = move || {
        block_on(poll_fn(|cx| {
            let was_closed = seen.load(Ordering::SeqCst);
            assert!(waiter.poll_wake(None, cx).is_pending());
            let ends =
                if slip == Some(Slip::RegistersAfterItLooked) { was_closed } else { seen.load(Ordering::SeqCst) };
            if ends { Poll::Ready(()) } else { Poll::Pending }
        }));
        leave(waiter);
    };
    let closes = move || {
        if slip == Some(Slip::WakesBeforeItChanges) {
            wakes();
        }
        is_closed.store(true, Ordering::SeqCst);
        if slip != Some(Slip::WakesBeforeItChanges) {
            wakes();
        }
    };
    two_threads(looks, closes, move || {
        drop(leave(leader));
        check(table.is_idle(), "the table has an idle cell")
    })
}

fn writer_is_handed_a_hold(slip: Option<Slip>) -> ThreadScene {
    let table = table();
    let [first, mut second] = enter_all(&table, Write);
    let (hold, share_id) = grant(&first, 1, Write, 1000, 64);
    let held = Arc::clone(&hold);
    let looks = move || {
        let reason = reason_of(&mut second, slip);
        let Wake::Handed(hold, share_id) = reason else { panic!("{reason:?}") };
        assert_eq!(remove(&hold, share_id), ShareRemoved::Last);
    };
    let removes = move || assert!(matches!(remove(&hold, share_id), ShareRemoved::HandedOver(_)));
    two_threads(looks, removes, move || {
        end(&held);
        check(held.usage().0 == 0, "a guard is left")
    })
}

fn writer_leaves_as_it_is_handed_a_hold(slip: Option<Slip>) -> ThreadScene {
    let table = table();
    let [first, second] = enter_all(&table, Write);
    let (hold, share_id) = grant(&first, 1, Write, 1000, 64);
    let (held, removals) = (Arc::clone(&hold), Outcomes::new());
    let (mine, theirs) = (removals.another(), removals.another());
    let leaves = move || leave_and_give_back(second, slip, &mine);
    let removes = move || theirs.add(remove(&hold, share_id));
    two_threads(leaves, removes, move || judge_removals(&held, &removals))
}

fn reader_leaves_as_it_is_handed_a_share(slip: Option<Slip>) -> ThreadScene {
    let table = table();
    let [leader, waiter] = enter_all(&table, Read);
    sends(&leader, 1);
    let (held, removals) = (Arc::new(OnceLock::new()), Outcomes::new());
    let (granted, mine, theirs) = (Arc::clone(&held), removals.another(), removals.another());
    let leaves = move || leave_and_give_back(waiter, slip, &mine);
    let enters = move || {
        let now = now();
        let (Installed::Hold(hold, share_id), _) = leader.on_grant(new_hold(1, Read, (1000, 1), now), now) else {
            panic!("it is the leader")
        };
        granted.set(Arc::clone(&hold)).expect("one grant");
        theirs.add(remove(&hold, share_id));
    };
    two_threads(leaves, enters, move || judge_removals(held.get().expect("it was granted"), &removals))
}

fn two_guards_of_one_hold_leave(slip: Option<Slip>) -> ThreadScene {
    let table = table();
    let (hold, first) = read_hold(&table);
    let second = join(&table);
    let removals = Outcomes::new();
    let leaves = |share_id| {
        let (hold, removals) = (Arc::clone(&hold), removals.another());
        body(move || {
            let had_others = slip == Some(Slip::LeavesAsItCounted) && hold.usage().0 > 1;
            let is_shared = hold.leave_quietly(share_id);
            let removed = if is_shared { ShareRemoved::Shared } else { remove(&hold, share_id) };
            removals.add(if had_others { ShareRemoved::Shared } else { removed });
        })
    };
    ThreadScene::new([leaves(first), leaves(second)], move || judge_removals(&hold, &removals))
}

/// Does what the drop of a waiting future does.
fn leave_and_give_back(waiter: WaitEntry, slip: Option<Slip>, removals: &Outcomes<ShareRemoved>) {
    if let Some((hold, share_id)) = leave(waiter).handed
        && slip != Some(Slip::LeavesWithShare)
    {
        removals.add(remove(&hold, share_id));
    }
}

/// Exactly one guard is the last one of the hold. Its thread sends the release.
fn judge_removals(hold: &Hold, removals: &Outcomes<ShareRemoved>) -> Result<(), String> {
    end(hold);
    let removals = removals.take();
    let last = removals.iter().filter(|removed| **removed == ShareRemoved::Last).count();
    check(hold.usage().0 == 0 && last == 1, &format!("{removals:?}, and {} guards are left", hold.usage().0))
}

fn task_enters_as_the_cell_is_removed(slip: Option<Slip>) -> ThreadScene {
    let table = table();
    let (first, entered) = (enter(&table, Write), Outcomes::new());
    let (tasks, entries) = (Arc::clone(&table), entered.another());
    let enters = move || {
        entries.add(match slip {
            Some(Slip::EntersRemovedCell) => enter_whatever_is_there(&tasks),
            _ => enter(&tasks, Write),
        });
    };
    let leaves = move || drop(leave(first));
    two_threads(leaves, enters, move || {
        check(table.writer_waits(&key()), "other tasks do not find the waiter")?;
        entered.take().into_iter().for_each(|entry| drop(leave(entry)));
        check(table.is_idle(), "the table has an idle cell")
    })
}

/// The wrong form of `Table::enter`.
fn enter_whatever_is_there(table: &Arc<Table>) -> WaitEntry {
    enter_cell(table.cell(&key()))
}

fn enter_cell(cell: Arc<Cell<Hold>>) -> WaitEntry {
    let (waiter_id, waits) = cell.event(now(), |state, event| state.enter(Write, None, want(), event));
    WaitEntry::new(cell, Write, waiter_id, waits)
}

/// Table with a wrong queue of deadlines.
struct StaleQueue(Arc<Table>);

impl Surroundings<Hold> for StaleQueue {
    fn schedule(&self, hold: &Arc<Hold>) {
        let Next::At(at) = hold.due() else { return };
        if !hold.is_retired() {
            self.0.deadlines.schedule_at(hold, at);
        }
    }

    fn look_at(&self, cell: &Arc<Cell<Hold>>, at: Moment) {
        self.0.look_at(cell, at);
    }

    fn forget(&self, cell: &Arc<Cell<Hold>>) {
        self.0.forget(cell);
    }
}

/// Hold whose renewal waits in the queue of a route, so that the background looks at it at its deadline.
struct HoldInLine {
    hold: Arc<Hold>,
    share_id: ShareId,
    table: Arc<Table>,
    /// Kept, because the cell has a weak reference only.
    _around: Arc<dyn Surroundings<Hold>>,
}

impl HoldInLine {
    fn new(slip: Option<Slip>) -> Self {
        let table = table();
        let around: Arc<dyn Surroundings<Hold>> = match slip {
            Some(Slip::SchedulesWhatItRead) => Arc::new(StaleQueue(Arc::clone(&table))),
            _ => Arc::<Table>::clone(&table),
        };
        let cell = Arc::new(Cell::new(&key(), &Arc::new(rules()), Arc::downgrade(&around)));
        let (hold, share_id) = grant(&enter_cell(cell), 1, Write, 1000, 64);
        let soon = now().after(LEASE - secs(1));
        assert_eq!(table.deadlines.take_due(soon, Duration::ZERO).len(), 1);
        assert!(hold.join_batch(soon));
        Self { hold, share_id, table, _around: around }
    }

    fn is_looked_at_in_time(&self) -> Result<(), String> {
        let Next::At(due) = self.hold.due() else { return Err("the hold is over".into()) };
        check(looked_at(&self.hold) <= due, "the background looks at the hold too late")
    }
}

impl Drop for HoldInLine {
    fn drop(&mut self) {
        remove(&self.hold, self.share_id);
        end(&self.hold);
    }
}

fn two_events_bring_a_deadline_forward(slip: Option<Slip>) -> ThreadScene {
    let stage = HoldInLine::new(slip);
    let (one, other) = (Arc::clone(&stage.hold), Arc::clone(&stage.hold));
    let sooner = move || one.leave_batch(now().after(secs(2)));
    let at_once = move || other.renew_now(now());
    two_threads(sooner, at_once, move || stage.is_looked_at_in_time())
}

fn background_takes_a_hold(slip: Option<Slip>) -> ThreadScene {
    let stage = HoldInLine::new(slip);
    stage.hold.leave_batch(now().after(secs(2)));
    let (hold, table) = (Arc::clone(&stage.hold), Arc::clone(&stage.table));
    let takes = move || {
        let soon = now().after(secs(4));
        for hold in table.deadlines.take_due(soon, Duration::ZERO) {
            if slip != Some(Slip::TakesWithoutEvent) {
                hold.join_batch(soon);
            }
        }
    };
    let changes = move || hold.renew_now(now());
    two_threads(takes, changes, move || stage.is_looked_at_in_time())
}

fn hold_is_forgotten_as_it_is_scheduled(slip: Option<Slip>) -> ThreadScene {
    let stage = HoldInLine::new(slip);
    let (one, other, table) = (Arc::clone(&stage.hold), Arc::clone(&stage.hold), Arc::clone(&stage.table));
    let changes = move || one.leave_batch(now().after(secs(2)));
    let forgets = move || table.deadlines.forget(&other);
    two_threads(changes, forgets, move || {
        check(stage.table.deadlines.has_no_holds(), "the queue has a hold for which nothing is due")
    })
}

fn driver_falls_asleep_as_work_comes(slip: Option<Slip>) -> ThreadScene {
    let table = table();
    let leader = enter(&table, Write);
    sends(&leader, 1);
    let (began, driver, holds) = (now(), table.deadlines.wake.register(), Outcomes::new());
    let granted = holds.another();
    let work = move || granted.add(leader.on_grant(new_hold(1, Write, (1000, 1), began), began).0);
    let drive = move || {
        let (wake, later) = (&table.deadlines.wake, began.after(LEASE));
        loop {
            let mut woken = pin!(wake.woken());
            woken.as_mut().enable();
            wake.looks(driver, began);
            if !table.deadlines.take_due(later, Duration::ZERO).is_empty() {
                return;
            }
            // The timer of an earlier alarm ends the wait.
            if wake.sleeps(driver, table.deadlines.next()) > later {
                match slip {
                    Some(Slip::ListensAfterItLooked) => block_on(wake.woken()),
                    _ => block_on(woken),
                }
            }
        }
    };
    two_threads(work, drive, move || {
        for granted in holds.take() {
            let Installed::Hold(hold, share_id) = granted else { return Err("the leader gets no hold".into()) };
            remove(&hold, share_id);
            end(&hold);
        }
        Ok(())
    })
}

/// Counts its drops. A drop under a mutex counts as very many.
struct EndsInThread(Arc<AtomicUsize>);

impl Drop for EndsInThread {
    fn drop(&mut self) {
        self.0.fetch_add(if has_lock() { 1000 } else { 1 }, Ordering::SeqCst);
    }
}

fn leader_leaves_its_subscription(slip: Option<Slip>) -> ThreadScene {
    let table = table();
    let [leader, mut waiter] = enter_all(&table, Write);
    sends(&leader, 1);
    let (ends, left) = (Arc::new(AtomicUsize::new(0)), Outcomes::new());
    let (_, notices) = crate::base::attempt::notifications();
    let end = Box::new(EndsInThread(Arc::clone(&ends)));
    let mine = Notifications::Subscribed(Subscription { notices, _end: end });
    let found = left.another();
    let leaves = move || match slip {
        Some(Slip::LeavesSubscriptionLater) => leave_and_then_hand_on(leader, mine),
        _ => drop(leader.leave(mine, Backoff::new(), now())),
    };
    let goes_on = move || {
        assert!(matches!(block_on(waiter.woken(None)), Some(Wake::Ask)));
        found.add(waiter.take_left());
        leave(waiter);
    };
    two_threads(leaves, goes_on, move || {
        let found = left.take();
        let is_subscribed = matches!(found[..], [Some(Notifications::Subscribed(_))]);
        check(is_subscribed, "the next leader finds no subscription")?;
        drop(found);
        check(ends.load(Ordering::SeqCst) == 1, "a subscription ends under a mutex, or never")
    })
}

/// The wrong form of `WaitEntry::leave`.
fn leave_and_then_hand_on(leader: WaitEntry, notifications: Notifications) {
    let cell = Arc::clone(leader.cell());
    leave(leader);
    let former = cell
        .event_beside(now(), |_, _, beside| beside.get_or_insert_default().notifications(Write).replace(notifications));
    drop(former);
}

fn server_answers_as_a_waiter_listens(slip: Option<Slip>) -> ThreadScene {
    let table = table();
    let [leader, mut waiter] = enter_all(&table, Write);
    let answer = move || leader.on_outage(None);
    let listens = move || {
        block_on(poll_fn(|cx| match slip {
            Some(Slip::ListensForAnswerLate) => look_and_then_listen(&mut waiter, cx),
            _ => listen_and_then_look(&mut waiter, cx),
        }));
    };
    two_threads(listens, answer, || Ok(()))
}

/// Looks for the first answer as a waiter with a limit does.
fn listen_and_then_look(waiter: &mut WaitEntry, cx: &Context<'_>) -> Poll<()> {
    assert!(waiter.poll_wake(None, cx).is_pending(), "it is the second");
    if waiter.side().awaits_first_answer() { Poll::Pending } else { Poll::Ready(()) }
}

fn look_and_then_listen(waiter: &mut WaitEntry, cx: &Context<'_>) -> Poll<()> {
    if !waiter.side().awaits_first_answer() {
        return Poll::Ready(());
    }
    waiter.poll_wake(None, cx).map(drop)
}

/// Work of which one task at a time takes all.
#[derive(Default)]
struct SharedWork {
    todo: Mutex<Vec<()>>,
    task: SingleTask,
}

impl SharedWork {
    fn run(&self, running: Running, slip: Option<Slip>) {
        let mut running = Some(running);
        while let Some(mark) = running {
            self.todo.lock().clear();
            running = match slip {
                Some(Slip::EndsAfterItLooked) => Some(mark).filter(|_| self.has_more()),
                _ => mark.end_unless(|| self.has_more()),
            };
        }
    }

    fn has_more(&self) -> bool {
        !self.todo.lock().is_empty()
    }
}

fn single_task_ends_as_work_comes(slip: Option<Slip>) -> ThreadScene {
    let work = Arc::new(SharedWork::default());
    let running = work.task.begin().expect("none runs");
    let (runs, adds) = (Arc::clone(&work), Arc::clone(&work));
    let runs = move || runs.run(running, slip);
    let adds = move || {
        adds.todo.lock().push(());
        if let Some(running) = adds.task.begin() {
            adds.run(running, slip);
        }
    };
    two_threads(runs, adds, move || check(!work.has_more(), "no task does the work"))
}

fn leader_gets_a_grant_as_it_stalls(slip: Option<Slip>) -> ThreadScene {
    let table = table();
    let [leader, waiter] = enter_all(&table, Write);
    sends(&leader, 1);
    let (driver, tasks) = (Arc::clone(&table), Arc::clone(&table));
    let holds = Outcomes::new();
    let granted = holds.another();
    let takes = move || {
        let (now, hold) = (now(), new_hold(1, Write, (1000, 1), now()));
        match slip {
            Some(Slip::TakesWhatItMightHaveTaken) if leader.note_polled(now) => {
                granted.add(tasks.adopt(&key(), hold, now).expect("it is in time"));
            }
            _ => {
                if let (Installed::Hold(hold, share_id), _) = leader.on_grant(hold, now) {
                    granted.add((hold, share_id));
                }
            }
        }
    };
    let looks = move || driver.deadlines.look_for_stalled(now().after(POLL_WITHIN * 2));
    two_threads(takes, looks, move || {
        let (goes_on, holds) = (sends(&waiter, 2) == Some(id(1)), holds.take());
        for (hold, share_id) in &holds {
            remove(hold, *share_id);
            end(hold);
        }
        check(holds.len() + usize::from(goes_on) == 1, "a hold and a request have the same id, or none has it")
    })
}

/// Explores all scenes. Returns the number of orders of each.
fn explore_all(preemptions: usize) -> Vec<usize> {
    let explore = |(name, scene, _): &(&str, SceneOf, usize)| {
        let began = Instant::now();
        let orders = explore_orders(preemptions, || scene(None)).unwrap_or_else(|found| panic!("{name}: {found:?}"));
        println!("{orders} orders, {:?}: {name}", began.elapsed());
        orders
    };
    SCENES.iter().map(explore).collect()
}

#[test]
fn two_threads_at_one_cell_are_right_in_each_order() {
    for ((name, _, least), orders) in SCENES.iter().zip(explore_all(2)) {
        assert!(orders >= *least, "{name}: {orders} orders instead of {least} and more");
    }
}

#[test]
#[cfg_attr(not(redis_rwlock_optimised), ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn two_threads_at_one_cell_are_right_with_more_preemptions() {
    explore_all(4);
}

#[test]
fn each_slip_of_a_thread_is_found() {
    let slips: [(Slip, SceneOf, &str); 18] = [
        (Slip::RegistersAfterItLooked, leader_leaves_and_waiter_looks, "threads wait for ever"),
        (Slip::RegistersAfterItLooked, outage_begins_as_a_waiter_looks, "threads wait for ever"),
        (Slip::RegistersAfterItLooked, manager_is_closed_as_a_waiter_looks, "threads wait for ever"),
        (Slip::WakesBeforeItChanges, manager_is_closed_as_a_waiter_looks, "threads wait for ever"),
        (Slip::RegistersAfterItLooked, writer_is_handed_a_hold, "threads wait for ever"),
        (Slip::WakesBeforeItChanges, leader_leaves_and_waiter_looks, "threads wait for ever"),
        (Slip::LeavesWithShare, writer_leaves_as_it_is_handed_a_hold, "[HandedOver"),
        (Slip::LeavesWithShare, reader_leaves_as_it_is_handed_a_share, "[Shared]"),
        (Slip::LeavesAsItCounted, two_guards_of_one_hold_leave, "[Shared, Shared]"),
        (Slip::EntersRemovedCell, task_enters_as_the_cell_is_removed, "other tasks do not find the waiter"),
        (Slip::SchedulesWhatItRead, two_events_bring_a_deadline_forward, "the background looks at the hold too late"),
        (Slip::SchedulesWhatItRead, hold_is_forgotten_as_it_is_scheduled, "the queue has a hold"),
        (Slip::TakesWithoutEvent, background_takes_a_hold, "the background looks at the hold too late"),
        (Slip::ListensAfterItLooked, driver_falls_asleep_as_work_comes, "threads wait for ever"),
        (Slip::LeavesSubscriptionLater, leader_leaves_its_subscription, "the next leader finds no subscription"),
        (Slip::ListensForAnswerLate, server_answers_as_a_waiter_listens, "threads wait for ever"),
        (Slip::EndsAfterItLooked, single_task_ends_as_work_comes, "no task does the work"),
        (Slip::TakesWhatItMightHaveTaken, leader_gets_a_grant_as_it_stalls, "a hold and a request have the same id"),
    ];
    for (slip, scene, what) in slips {
        let found = explore_orders(1, || scene(Some(slip))).expect_err("the slip makes a difference");
        println!("{slip:?}: {found:?}");
        assert!(found.what.starts_with(what), "{slip:?}: {found:?}");
    }
}
