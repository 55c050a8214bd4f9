//! Runs the threads of a scene in each order of their accesses to shared memory.
//!
//! The scheduler lets one thread of a scene run at a time. Before each access to a mutex or an atomic variable, and after
//! each unlock, it decides which thread runs on. An order of the threads is the list of these decisions. The search runs a
//! scene once for each order, so a scene has to be made anew for each order, and its threads must decide nothing by
//! chance. An order takes the right to run away from a thread at most as often as the search allows. Most faults need
//! one such preemption, or two. Memory is sequentially consistent: the search does not see what a weaker ordering of
//! atomic accesses could do.
//!
//! A thread that waits for a mutex or a wake-up does not run. If all threads of a scene wait, a wake-up was lost, or there
//! is a deadlock. The search reports that with the order, as it reports what the scene finds wrong at its end.
//!
//! The crates `loom` and `shuttle` do the same. Their mutexes work in their own runs only, so the other tests of the crate
//! would need a second build with other mutexes.
#![allow(unreachable_pub)] // the module is private to the tests

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

/// Kind of an access to shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SharedAccess {
    Lock,
    TryLock,
    Unlock,
    Load,
    Store,
    Swap,
    /// Wait for a mutex or a wake-up.
    Wait,
    End,
}

/// Work of one thread.
pub type ThreadBody = Box<dyn FnOnce() + Send>;

/// Threads of one run, and what is to be true when all have ended.
pub struct ThreadScene {
    threads: Vec<ThreadBody>,
    judge: Box<dyn FnOnce() -> Result<(), String>>,
}

impl ThreadScene {
    pub fn new<const N: usize>(threads: [ThreadBody; N], judge: impl FnOnce() -> Result<(), String> + 'static) -> Self {
        Self { threads: threads.into(), judge: Box::new(judge) }
    }
}

/// Fault, and the order of the threads that leads to it.
pub struct FoundInOrder {
    pub what: String,
    order: Vec<(usize, SharedAccess, &'static str)>,
}

impl fmt::Debug for FoundInOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, in this order:", self.what)?;
        self.order.iter().try_for_each(|(thread, access, of)| writeln!(f, "  thread {thread}: {access:?} {of}"))
    }
}

/// Decision which thread runs on: its place among those that may, and their number.
#[derive(Clone, Copy, Debug)]
struct Decision {
    chosen: usize,
    of: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    Runs,
    /// Waits for the mutex or the wake-up at this address.
    Waits(usize),
    Ended,
}

/// Run of a scene.
#[derive(Debug)]
struct Course {
    threads: Vec<Progress>,
    /// Thread that runs. `None` at the end.
    running: Option<usize>,
    /// Decisions of this run. The first ones repeat an earlier run.
    decisions: Vec<Decision>,
    made: usize,
    preemptions_left: usize,
    order: Vec<(usize, SharedAccess, &'static str)>,
    failure: Option<String>,
}

impl Course {
    /// Chooses the thread that runs on after an access of `from`.
    fn choose(&mut self, from: usize) {
        let runs = |thread: &usize| self.threads[*thread] == Progress::Runs;
        let others = (0..self.threads.len()).filter(|thread| *thread != from).filter(runs);
        let goes_on = runs(&from);
        let may: Vec<usize> = match goes_on {
            true if self.preemptions_left == 0 => vec![from],
            true => std::iter::once(from).chain(others).collect(),
            false => others.collect(),
        };
        self.running = if may.is_empty() { None } else { Some(may[self.decide(may.len())]) };
        if goes_on && self.running != Some(from) {
            self.preemptions_left -= 1;
        }
    }

    fn decide(&mut self, of: usize) -> usize {
        if of == 1 {
            return 0;
        }
        if self.made == self.decisions.len() {
            self.decisions.push(Decision { chosen: 0, of });
        }
        let decision = self.decisions[self.made];
        self.made += 1;
        if decision.of == of {
            return decision.chosen;
        }
        self.failure.get_or_insert_with(|| "the scene decides something by chance".into());
        0
    }

    fn is_stuck(&self) -> bool {
        self.running.is_none() && self.threads.iter().any(|thread| *thread != Progress::Ended)
    }
}

/// Run that all its threads share.
#[derive(Debug)]
struct SharedCourse {
    course: Mutex<Course>,
    changed: Condvar,
}

impl SharedCourse {
    fn lock(&self) -> MutexGuard<'_, Course> {
        self.course.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an access of a thread, and returns when this thread runs on.
    fn pass(&self, thread: usize, progress: Progress, access: SharedAccess, of: &'static str) {
        let mut course = self.lock();
        course.threads[thread] = progress;
        course.order.push((thread, access, of));
        course.choose(thread);
        self.changed.notify_all();
        if progress != Progress::Ended {
            drop(self.changed.wait_while(course, |course| course.running != Some(thread)));
        }
    }

    /// Lets the threads run on that wait for the mutex or the wake-up at this address.
    fn release(&self, address: usize) {
        for thread in &mut self.lock().threads {
            if *thread == Progress::Waits(address) {
                *thread = Progress::Runs;
            }
        }
    }

    fn run(self: &Arc<Self>, thread: usize, body: ThreadBody) {
        drop(self.changed.wait_while(self.lock(), |course| course.running != Some(thread)));
        SELF.set(Some(SceneThread { course: Arc::clone(self), number: thread, locks: 0 }));
        let ended = catch_unwind(AssertUnwindSafe(body));
        SELF.set(None);
        if let Err(panic) = ended {
            self.lock().failure.get_or_insert_with(|| text_of(&*panic));
        }
        self.pass(thread, Progress::Ended, SharedAccess::End, "");
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("a thread panics: {}", text.unwrap_or("without a text"))
}

/// Thread of a scene.
#[derive(Clone)]
struct SceneThread {
    course: Arc<SharedCourse>,
    number: usize,
    /// Number of mutexes that it has locked.
    locks: usize,
}

thread_local! {
    static SELF: RefCell<Option<SceneThread>> = const { RefCell::new(None) };
}

/// Returns the present thread, if it belongs to a scene.
fn this_thread() -> Option<SceneThread> {
    SELF.try_with(|thread| thread.borrow().clone()).ok().flatten()
}

fn count_locks(change: impl FnOnce(usize) -> usize) {
    let change = |thread: &RefCell<Option<SceneThread>>| {
        if let Some(thread) = &mut *thread.borrow_mut() {
            thread.locks = change(thread.locks);
        }
    };
    // The variable is gone when the thread ends, and then the thread belongs to no scene.
    SELF.try_with(change).unwrap_or_default();
}

/// Lets the scheduler decide which thread runs on, before an access.
pub fn access(access: SharedAccess, of: &'static str) {
    if let Some(SceneThread { course, number, .. }) = this_thread() {
        course.pass(number, Progress::Runs, access, of);
    }
}

/// Waits until another thread unlocks the mutex at this address. Returns false at once in a thread that belongs to no
/// scene.
pub fn await_free(address: usize, of: &'static str) -> bool {
    let thread = this_thread();
    if let Some(SceneThread { course, number, .. }) = &thread {
        course.pass(*number, Progress::Waits(address), SharedAccess::Wait, of);
    }
    thread.is_some()
}

/// Notes that the present thread has locked a mutex.
pub fn on_lock() {
    count_locks(|locks| locks + 1);
}

/// Notes that the present thread has unlocked the mutex at this address.
pub fn on_unlock(address: usize, of: &'static str) {
    count_locks(|locks| locks - 1);
    if let Some(SceneThread { course, number, .. }) = this_thread() {
        course.release(address);
        course.pass(number, Progress::Runs, SharedAccess::Unlock, of);
    }
}

/// Returns true if the present thread has locked a mutex.
pub fn has_lock() -> bool {
    this_thread().is_some_and(|thread| thread.locks > 0)
}

/// Wake-up of a thread of a scene.
struct ThreadSignal {
    is_woken: AtomicBool,
    course: Arc<SharedCourse>,
}

impl ThreadSignal {
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

impl Wake for ThreadSignal {
    fn wake(self: Arc<Self>) {
        if has_lock() {
            self.course.lock().failure.get_or_insert_with(|| "a waker is called under a mutex".into());
        }
        self.is_woken.store(true, Ordering::SeqCst);
        self.course.release(self.address());
    }
}

/// Polls a future in a thread of a scene until it is ready. Between two polls, the thread waits until it is woken.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let SceneThread { course, number, .. } = this_thread().expect("a thread of a scene");
    let signal = Arc::new(ThreadSignal { is_woken: AtomicBool::new(false), course: Arc::clone(&course) });
    let waker = Waker::from(Arc::clone(&signal));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return result;
        }
        while !signal.is_woken.swap(false, Ordering::SeqCst) {
            course.pass(number, Progress::Waits(signal.address()), SharedAccess::Wait, "a wake-up");
        }
    }
}

/// Runs a scene in one order. Returns the decisions, and what is wrong.
fn run_once(scene: ThreadScene, decisions: Vec<Decision>, preemptions: usize) -> (Vec<Decision>, Option<FoundInOrder>) {
    let ThreadScene { threads, judge } = scene;
    let course = Course {
        threads: vec![Progress::Runs; threads.len()],
        running: None,
        decisions,
        made: 0,
        preemptions_left: preemptions,
        order: Vec::new(),
        failure: None,
    };
    let shared = Arc::new(SharedCourse { course: Mutex::new(course), changed: Condvar::new() });
    let spawn = |(number, body)| {
        let shared = Arc::clone(&shared);
        thread::spawn(move || shared.run(number, body))
    };
    let handles: Vec<_> = threads.into_iter().enumerate().map(spawn).collect();
    let mut course = shared.lock();
    let first = course.decide(handles.len());
    course.running = Some(first);
    shared.changed.notify_all();
    let mut course =
        shared.changed.wait_while(course, |course| course.running.is_some()).unwrap_or_else(PoisonError::into_inner);
    let (decisions, order) = (std::mem::take(&mut course.decisions), std::mem::take(&mut course.order));
    let (failure, is_stuck) = (course.failure.take(), course.is_stuck());
    drop(course);
    if is_stuck {
        // The threads stay as they are. Nothing can wake them.
        let what = failure.unwrap_or_else(|| "threads wait for ever".into());
        return (decisions, Some(FoundInOrder { what, order }));
    }
    handles.into_iter().for_each(|thread| thread.join().expect("it catches panics"));
    let what = failure.or_else(|| judge().err());
    (decisions, what.map(|what| FoundInOrder { what, order }))
}

/// Runs a scene once for each order of its threads in which at most `preemptions` times a thread that could run on does
/// not. Returns the number of orders, or the first order in which something is wrong.
pub fn explore_orders(preemptions: usize, scene: impl Fn() -> ThreadScene) -> Result<usize, FoundInOrder> {
    let mut decisions = Vec::new();
    for orders in 1.. {
        let (made, found) = run_once(scene(), decisions, preemptions);
        if let Some(found) = found {
            return Err(found);
        }
        decisions = made;
        let Some(last) = decisions.iter().rposition(|decision| decision.chosen + 1 < decision.of) else {
            return Ok(orders);
        };
        decisions.truncate(last + 1);
        decisions[last].chosen += 1;
    }
    unreachable!("each search ends")
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::super::{AtomicUsize, Mutex as SharedMutex};
    use super::*;

    /// Two threads that lock two mutexes, in the same order or not.
    fn two_mutexes(are_crossed: bool) -> ThreadScene {
        let mutexes = [0; 2].map(|_| Arc::new(SharedMutex::new(())));
        let locks = |first: usize| -> ThreadBody {
            let (first, second) = (Arc::clone(&mutexes[first]), Arc::clone(&mutexes[1 - first]));
            Box::new(move || {
                let _first = first.lock();
                drop(second.lock());
            })
        };
        ThreadScene::new([locks(0), locks(usize::from(are_crossed))], || Ok(()))
    }

    #[test]
    fn deadlock_is_found() {
        explore_orders(2, || two_mutexes(false)).expect("there is no deadlock");
        let found = explore_orders(1, || two_mutexes(true)).expect_err("there is a deadlock");
        assert_eq!(found.what, "threads wait for ever");
    }

    fn two_increments(are_atomic: bool) -> ThreadScene {
        let count = Arc::new(AtomicUsize::new(0));
        let add = || -> ThreadBody {
            let count = Arc::clone(&count);
            Box::new(move || {
                if are_atomic {
                    count.fetch_add(1, Ordering::SeqCst);
                } else {
                    count.store(count.load(Ordering::SeqCst) + 1, Ordering::SeqCst);
                }
            })
        };
        let threads = [add(), add()];
        ThreadScene::new(threads, move || match count.load(Ordering::SeqCst) {
            2 => Ok(()),
            count => Err(format!("{count}")),
        })
    }

    #[test]
    fn each_order_is_visited_and_a_lost_update_found() {
        assert_eq!(explore_orders(0, || two_increments(true)).expect("nothing is lost"), 2);
        assert_eq!(explore_orders(9, || two_increments(true)).expect("nothing is lost"), 6);
        explore_orders(0, || two_increments(false)).expect("no thread is preempted");
        assert_eq!(explore_orders(1, || two_increments(false)).expect_err("an update is lost").what, "1");
    }

    /// A thread waits for a waker that it leaves in a mutex.
    fn wake_from_a_mutex(is_under_it: bool) -> ThreadScene {
        let (left, is_over) = (Arc::new(SharedMutex::new(None)), Arc::new(AtomicUsize::new(0)));
        let (others, over) = (Arc::clone(&left), Arc::clone(&is_over));
        let waits: ThreadBody = Box::new(move || {
            block_on(poll_fn(|cx| {
                let waker = cx.waker().clone();
                let mut left = left.lock();
                if is_over.load(Ordering::SeqCst) == 1 {
                    return Poll::Ready(());
                }
                *left = Some(waker);
                Poll::Pending
            }));
        });
        let wakes: ThreadBody = Box::new(move || {
            let mut left: crate::base::sync::MutexGuard<'_, Option<Waker>> = others.lock();
            over.store(1, Ordering::SeqCst);
            let waker = left.take();
            if is_under_it {
                waker.into_iter().for_each(Waker::wake);
            } else {
                drop(left);
                waker.into_iter().for_each(Waker::wake);
            }
        });
        ThreadScene::new([waits, wakes], || Ok(()))
    }

    #[test]
    fn wake_up_under_a_mutex_is_found() {
        explore_orders(2, || wake_from_a_mutex(false)).expect("the thread is woken");
        let found = explore_orders(1, || wake_from_a_mutex(true)).expect_err("the mutex is locked");
        assert_eq!(found.what, "a waker is called under a mutex");
    }

    #[test]
    fn panic_of_a_thread_is_found() {
        let panics = || {
            let body: ThreadBody = Box::new(|| assert!(thread::panicking(), "as the test wants it"));
            ThreadScene::new([body], || Ok(()))
        };
        assert_eq!(explore_orders(0, panics).expect_err("it panics").what, "a thread panics: as the test wants it");
    }
}
