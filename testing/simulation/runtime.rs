//! Runtimes of a virtual process. A runtime polls its tasks while it goes on, and drops them when it ends. All runtimes
//! share the clock of the run. Background work of the engine belongs to none of them.

use std::cell::RefCell;

use super::history::Guard as GuardNo;
use super::*;

/// Runtime of a process.
#[derive(Default)]
pub struct Runtime {
    pub number: u32,
    /// Gate that is closed while the runtime is not driven.
    gate: Arc<Gate>,
    tasks: Mutex<Vec<Weak<Seat>>>,
    ended: AtomicBool,
    /// True if the guards of its tasks are forgotten when it ends.
    leaks: AtomicBool,
}

/// Place of a task until the task is done or its runtime ends.
#[derive(Default)]
struct Seat {
    task: Mutex<Option<BoxFuture<'static, ()>>>,
    waker: Mutex<Option<Waker>>,
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<Runtime>>> = const { RefCell::new(None) };
}

/// Returns the runtime whose task runs now, even if it only drops the task.
pub fn current() -> Option<Arc<Runtime>> {
    CURRENT.with_borrow(Option::clone)
}

/// Future that polls the task at a seat, and is ready when there is none.
pub struct Driven {
    seat: Arc<Seat>,
    runtime: Arc<Runtime>,
}

impl Future for Driven {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        *self.seat.waker.lock() = Some(cx.waker().clone());
        let mut task = self.seat.task.lock();
        let Some(polled) = task.as_mut() else {
            return Poll::Ready(());
        };
        std::task::ready!(self.runtime.within(|| polled.as_mut().poll(cx)));
        *task = None;
        Poll::Ready(())
    }
}

impl Runtime {
    pub fn new(number: u32) -> Arc<Self> {
        Arc::new(Self { number, ..Self::default() })
    }

    /// Returns the task as this runtime drives it.
    pub fn drives(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) -> Pausable<Driven> {
        let seat = Arc::new(Seat { task: Mutex::new(Some(Box::pin(task))), waker: Mutex::default() });
        self.tasks.lock().push(Arc::downgrade(&seat));
        Pausable::new(&self.gate, Driven { seat, runtime: Arc::clone(self) })
    }

    /// Runs `act` with this runtime as the current one.
    fn within<T>(self: &Arc<Self>, act: impl FnOnce() -> T) -> T {
        let before = CURRENT.replace(Some(Arc::clone(self)));
        let done = act();
        CURRENT.set(before);
        done
    }

    /// Stops driving the tasks.
    pub fn stops(&self) {
        self.gate.close();
    }

    pub fn goes_on(&self) {
        self.gate.open();
    }

    pub fn is_driven(&self) -> bool {
        self.gate.is_open()
    }

    /// Waits until the runtime is driven. Never returns after the end of the runtime.
    pub async fn driven(&self) {
        self.gate.pass().await;
        if self.has_ended() {
            std::future::pending::<()>().await;
        }
    }

    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Drops all tasks of the runtime. Their guards are dropped with them, or forgotten.
    pub fn ends(self: &Arc<Self>, leaks: bool) {
        self.leaks.store(leaks, Ordering::SeqCst);
        self.ended.store(true, Ordering::SeqCst);
        for seat in std::mem::take(&mut *self.tasks.lock()).iter().filter_map(Weak::upgrade) {
            let task = seat.task.lock().take();
            self.within(|| drop(task));
            if let Some(waker) = seat.waker.lock().take() {
                waker.wake();
            }
        }
        // A future that waits for the tasks must notice their end.
        self.gate.open();
    }
}

/// Guard that a task holds.
pub struct Hand {
    pub world: Arc<World>,
    pub runtime: Arc<Runtime>,
    pub number: GuardNo,
    pub wish: Wish,
    pub guard: Option<AnyGuard>,
}

impl Hand {
    pub fn opens(mut self) -> AnyGuard {
        self.guard.take().expect("it is opened once")
    }
}

impl std::ops::Deref for Hand {
    type Target = AnyGuard;

    fn deref(&self) -> &AnyGuard {
        self.guard.as_ref().expect("it is opened once")
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        let Some(guard) = self.guard.take().filter(|_| self.runtime.has_ended()) else {
            return;
        };
        let leaks = self.wish.may_leak() && self.runtime.leaks.load(Ordering::SeqCst);
        let how = if leaks { Letting::Leak } else { Letting::Drop };
        self.world.record(What::LetGo { guard: self.number, how });
        if leaks {
            self.world.leaked.lock().push(guard);
        }
    }
}

/// Events that are recorded if the runtime ends before the outcome of an action is known.
pub struct Otherwise {
    world: Arc<World>,
    runtime: Arc<Runtime>,
    events: Vec<What>,
}

impl Otherwise {
    pub fn new(world: &Arc<World>, runtime: &Arc<Runtime>, events: Vec<What>) -> Self {
        Self { world: Arc::clone(world), runtime: Arc::clone(runtime), events }
    }

    pub fn known(mut self) {
        self.events.clear();
    }
}

impl Drop for Otherwise {
    fn drop(&mut self) {
        if self.runtime.has_ended() {
            self.events.drain(..).for_each(|what| self.world.record(what));
        }
    }
}
