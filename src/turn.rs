//! From a write hold to a read hold and back, in one step of the server: nobody is let in between.
//!
//! The new hold is an acquisition of its own, so that nothing that was sent for the old one can touch it. While the answer
//! is out, the hold is closed to everybody else of this process and is not renewed. An answer that never comes leaves it
//! open which of the two the server has: then the guard is lost, and both are given back.

use std::sync::Arc;

use crate::departure::{Departure, Pending};
use crate::engine::{Engine, Held, SILENCE_PAUSE};
use crate::error::{Error, LossReason};
use crate::hold::{self, Grant, Hold, HoldState, Next, Ticket};
use crate::lease::{self, Moment};
use crate::scheme::{Answered, Ask, Failure, Granted, IfTaken, Mode, Turned, loss_reason};

/// Why a guard could not be turned, and the guard.
pub(crate) struct NotTurned {
    pub(crate) held: Held,
    pub(crate) error: Error,
}

/// Makes a write hold a read hold. All readers that wait enter with it.
pub(crate) async fn downgrade(held: Held) -> Result<Held, NotTurned> {
    if let Some(error) = lost(&held) {
        return Err(NotTurned { held, error });
    }
    // Nested in another guard's hold it only counts, as a nested read does.
    if !held.hold().begin_turn(held.engine().clock.now()) {
        return Ok(held);
    }
    Turn::new(&held, Mode::Read).run(held).await
}

/// Makes a read hold a write hold, if nobody else reads and no writer waits.
pub(crate) async fn upgrade(held: Held) -> Result<Held, NotTurned> {
    if let Some(error) = lost(&held) {
        return Err(NotTurned { held, error });
    }
    if held.hold().mode() == Mode::Write {
        // A nested read of a writer: it only counts.
        return Ok(held);
    }
    let writer_waits = held.engine().table.writer_waits(held.hold().key());
    if writer_waits || !held.hold().begin_turn(held.engine().clock.now()) {
        let error = Error::UpgradeConflict { lock: held.hold().key().shared_name() };
        return Err(NotTurned { held, error });
    }
    Turn::new(&held, Mode::Write).run(held).await
}

fn lost(held: &Held) -> Option<Error> {
    match held.hold().state_of(held.ticket()) {
        HoldState::Lost(reason) => Some(Error::Lost { lock: held.hold().key().shared_name(), reason }),
        HoldState::Held | HoldState::Unconfirmed => None,
    }
}

/// One turn on its way. Dropped before it knows better, it loses the hold and gives both back.
struct Turn {
    engine: Arc<Engine>,
    old: Arc<Hold>,
    ask: Ask,
    /// When the last copy may yet arrive.
    stray_until: Option<Moment>,
    settled: bool,
    _pending: Pending,
}

enum Outcome {
    Granted {
        sent: Moment,
        granted: Granted,
    },
    /// The old hold stands, and no copy is on its way that might end it.
    Stays(Error),
    Lost(LossReason),
}

impl Turn {
    fn new(held: &Held, mode: Mode) -> Self {
        let engine = Arc::clone(held.engine());
        let share = held.hold().share(held.ticket());
        let now = engine.clock.now();
        // No renewal of the old hold may come after the turn: its answer would tell a loss that is none.
        engine.renewals.forget(held.hold());
        let ask = Ask {
            id: engine.next_id(),
            mode,
            lease: share.lease.min(share.ends.since(now)),
            turns: engine.options().hand_over_budget,
            if_taken: IfTaken::Leave,
        };
        let pending = engine.departures.pending();
        Self { engine, old: Arc::clone(held.hold()), ask, stray_until: None, settled: false, _pending: pending }
    }

    async fn run(mut self, held: Held) -> Result<Held, NotTurned> {
        let outcome = self.ask().await;
        let now = self.engine.clock.now();
        let error = match outcome {
            Outcome::Granted { sent, granted } => match self.begin(&held, sent, granted, now) {
                Some((hold, ticket)) => {
                    self.settled = true;
                    let (engine, _, _) = held.into_parts();
                    return Ok(Held::new(&engine, hold, ticket));
                }
                None if self.engine.closing.is_closed() => self.lost(LossReason::Closed),
                None => self.lost(LossReason::Expired),
            },
            Outcome::Stays(error) => {
                self.settled = true;
                self.old.stays();
                self.engine.renewals.watch(&self.old, now);
                error
            }
            Outcome::Lost(reason) => self.lost(reason),
        };
        Err(NotTurned { held, error })
    }

    fn lost(&self, reason: LossReason) -> Error {
        self.old.lose(reason);
        Error::Lost { lock: self.old.key().shared_name(), reason }
    }

    /// Asks until there is an answer, or the old hold is over.
    async fn ask(&mut self) -> Outcome {
        let engine = Arc::clone(&self.engine);
        let began = engine.clock.now();
        let options = engine.options();
        let span = lease::stray_span(options.response_timeout, options.clock_margin);
        loop {
            let before = self.stray_until;
            // Should this future die at the next await.
            self.stray_until = Some(engine.clock.now().after(span));
            let answer = engine.scheme.turn(self.old.key(), self.old.id(), &self.ask).await;
            let now = engine.clock.now();
            let failure = match answer {
                Ok(Answered { sent, value, .. }) => {
                    self.stray_until = before.filter(|until| *until > sent);
                    match value {
                        Turned::Granted(granted) => return Outcome::Granted { sent, granted },
                        Turned::Refused => match self.stray_until {
                            // An earlier copy may yet find the others gone: then the old hold would be gone too.
                            Some(until) => {
                                engine.clock.sleep_until(until).await;
                                continue;
                            }
                            None => {
                                let lock = self.old.key().shared_name();
                                return Outcome::Stays(Error::UpgradeConflict { lock });
                            }
                        },
                        Turned::Lost { forced } => return Outcome::Lost(loss_reason(self.old.token(), forced)),
                        Turned::Late => Failure::NotDone { source: None },
                    }
                }
                Err(failure) => failure,
            };
            match &failure {
                Failure::Unknown { stray_until, .. } => self.stray_until = before.max(Some(*stray_until)),
                Failure::NotDone { .. } | Failure::Refused { .. } => self.stray_until = before,
            }
            let over = now >= self.old.deadline();
            let error = engine.final_error(self.old.key(), failure, now.since(began));
            match error {
                // Whether an earlier copy was carried out is not known.
                Some(_) if self.stray_until.is_some() => return Outcome::Lost(LossReason::Gone),
                Some(error) => return Outcome::Stays(error),
                None if over => return Outcome::Lost(LossReason::Expired),
                None => tokio::time::sleep(SILENCE_PAUSE).await,
            }
        }
    }

    /// Puts the new hold in the place of the old one.
    fn begin(&self, held: &Held, sent: Moment, granted: Granted, now: Moment) -> Option<(Arc<Hold>, Ticket)> {
        let engine = &self.engine;
        let Granted { token, turns, remaining, writers_waiting } = granted;
        let terms =
            hold::Terms { key: Arc::clone(self.old.key()), id: self.ask.id.clone(), mode: self.ask.mode, token, turns };
        let share = self.old.share(held.ticket());
        let grant = Grant { sent, remaining, asked: self.ask.lease };
        let margin = engine.options().clock_margin;
        let (hold, ticket) = Hold::new(terms, share, grant, self.stray_until, engine.clock, margin);
        if !matches!(hold.next(now), Next::At(_)) {
            return None;
        }
        hold.share_until((!writers_waiting).then(|| sent.after(engine.sharing().window)));
        let hold = Arc::new(hold);
        engine.table.turned(&self.old, &hold, now);
        // `close` has listed its holds already, or finds this one in the table.
        if engine.closing.is_closed() {
            hold.lose(LossReason::Closed);
            engine.see_off(&hold);
            return None;
        }
        self.old.turned(held.ticket());
        let departure = Departure::of(&self.old);
        if departure.stray_after(sent).is_some() {
            engine.departures.in_background(departure, None);
        }
        engine.renewals.watch(&hold, now);
        tracing::debug!(lock = hold.key().name(), mode = %hold.mode(), token = token.as_u64(), "turned");
        Some((hold, ticket))
    }

    fn take_back(&self, until: Moment) {
        let covers = lease::surely_over(self.ask.lease, self.engine.options().clock_margin);
        let departure = Departure {
            key: Arc::clone(self.old.key()),
            id: self.ask.id.clone(),
            server_until: until.max(self.old.server_until()).after(covers),
            stray_until: Some(until),
        };
        self.engine.departures.in_background(departure, None);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        // Which of the two the server has is not known: neither is to be relied on, both are given back.
        self.old.lose(LossReason::Gone);
        self.take_back(self.stray_until.unwrap_or_else(|| self.engine.clock.now()));
        self.engine.see_off(&self.old);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;
    use crate::key::Key;
    use crate::options::{Options, Overrides, Terms};
    use crate::pursuit::{Patience, acquire};
    use crate::scheme::memory::{Memory, Store};
    use crate::scheme::staged::{Fate, STRAY, Staged};
    use crate::scheme::{Acquired, Scheme, Turned};

    /// A process whose requests a test decides about, and another one on the same store.
    struct Stage {
        scheme: Arc<Staged>,
        engine: Arc<Engine>,
        other: Arc<Engine>,
        key: Arc<Key>,
    }

    impl Stage {
        fn new() -> Self {
            let memory = Memory::new(Arc::new(Store::new()));
            let scheme = Arc::new(Staged::new(memory.clone()));
            let engine = Arc::new(Engine::new(Arc::<Staged>::clone(&scheme), Options::default()));
            let other = Arc::new(Engine::new(Arc::new(memory), Options::default()));
            let key = engine.key("cfg").expect("valid");
            Self { scheme, engine, other, key }
        }

        async fn take(&self, engine: &Arc<Engine>, mode: Mode) -> Held {
            let terms = Terms::new(engine.options(), Overrides::default()).expect("valid");
            let taken = acquire(engine, Arc::clone(&self.key), mode, terms, Patience::Wait).await;
            taken.expect("answered").expect("granted")
        }

        async fn is_free(&self) -> bool {
            let view = self.scheme.memory.inspect(&self.key).await.expect("memory answers").value;
            view.holders.is_empty() && view.waiters.is_empty()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn upgrade_is_not_refused_as_long_as_a_copy_of_it_may_yet_be_carried_out() {
        let stage = Stage::new();
        let neighbour = stage.take(&stage.other, Mode::Read).await;
        let reading = stage.take(&stage.engine, Mode::Read).await;
        let old = reading.hold().id().clone();
        stage.scheme.next_turn(Fate::Cut);
        let scheme = Arc::clone(&stage.scheme);
        let key = Arc::clone(&stage.key);
        let late_copy = async {
            tokio::time::sleep(STRAY / 2).await; // refused by then, since another one reads
            neighbour.release().await.expect("released");
            let late = scheme.memory.turn(&key, &old, &scheme.last_ask()).await.expect("memory answers");
            assert!(matches!(late.value, Turned::Granted(_)), "{late:?}");
        };
        let (upgraded, ()) = tokio::join!(upgrade(reading), late_copy);
        tokio::time::sleep(STRAY).await;
        // Nobody may read here that the server does not know.
        let held = upgraded.unwrap_or_else(|refused| refused.held);
        let held_here = held.hold().state_of(held.ticket()) == HoldState::Held;
        let terms = Terms::new(stage.other.options(), Overrides::default()).expect("valid");
        let write = acquire(&stage.other, Arc::clone(&stage.key), Mode::Write, terms, Patience::AskOnce).await;
        let writer_is_in = write.expect("answered").is_some();
        assert!(!(held_here && writer_is_in), "both are inside");
        assert!(held_here, "the copy that came late was the upgrade");
    }

    #[tokio::test(start_paused = true)]
    async fn late_copy_of_an_acquisition_does_not_outlive_its_turn() {
        let stage = Stage::new();
        stage.scheme.next_acquire(Fate::Cut);
        let writing = stage.take(&stage.engine, Mode::Write).await;
        let ask = stage.scheme.last_ask();
        let Ok(reading) = downgrade(writing).await else { panic!("turned") };
        let late = stage.scheme.memory.acquire(&stage.key, &ask).await.expect("memory answers");
        assert!(matches!(late.value, Acquired::Queued { .. }), "{late:?}");
        reading.release().await.expect("released");
        tokio::time::sleep(STRAY + Duration::from_millis(100)).await;
        assert!(stage.is_free().await, "a ghost waits or writes");
    }

    #[tokio::test(start_paused = true)]
    async fn turn_that_crosses_with_close_is_given_back() {
        let stage = Stage::new();
        let writing = stage.take(&stage.engine, Mode::Write).await;
        let (word, answer) = oneshot::channel();
        stage.scheme.next_turn(Fate::Answered(answer));
        let closing = async {
            tokio::task::yield_now().await;
            let (closed, _) = tokio::join!(stage.engine.close(), async { word.send(()) });
            closed.expect("closed");
        };
        let (turned, ()) = tokio::join!(downgrade(writing), closing);
        let error = turned.err().map(|refused| refused.error);
        assert!(matches!(error, Some(Error::Lost { reason: LossReason::Closed, .. })), "{error:?}");
        stage.engine.settled().await;
        assert!(stage.is_free().await, "close has left a hold");
    }

    #[tokio::test(start_paused = true)]
    async fn guard_that_is_over_is_not_turned() {
        let stage = Stage::new();
        let longer = stage.take(&stage.engine, Mode::Read).await;
        let overrides = Overrides { max_hold: Some(Duration::from_secs(1)), ..Overrides::default() };
        let terms = Terms::new(stage.engine.options(), overrides).expect("valid");
        let read = acquire(&stage.engine, Arc::clone(&stage.key), Mode::Read, terms, Patience::Wait).await;
        let reading = read.expect("answered").expect("joined");
        longer.release().await.expect("released");
        tokio::time::sleep(Duration::from_millis(1100)).await;
        let Err(refused) = upgrade(reading).await else { panic!("it was over") };
        assert!(matches!(refused.error, Error::Lost { reason: LossReason::MaxHold, .. }), "{:?}", refused.error);
    }
}
