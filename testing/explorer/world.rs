//! Clients of one lock, what is on its way between them and the server, and everything that may happen next.
//!
//! A request is carried out and answered in the step in which it is sent, unless something is lost or late: nobody sees what a
//! client has not sent yet, so a request that is under way for less than a tick is one that is sent a little later; and a
//! client that has not heard an answer yet is one that does nothing. Notices wait to be delivered, in any order, since
//! their client may do something else meanwhile. Time goes on when all are heard but the late ones, and every client has
//! done what it does without delay: ask again as a heartbeat, tell the server that it leaves.
//!
//! Here is what a state is made of, and one step from it. `choices` has what may happen next, `clients` what clients do and
//! make of answers, `keeping` what those do who let holds stay, `force` what an operator does, `time` what a tick does,
//! `judge` what must hold in each state, and `aside` that who keeps a hold stands aside.

mod aside;
mod caching;
mod choices;
mod clients;
mod force;
mod judge;
mod time;

use std::time::Duration;

use self::caching::ClientCache;
pub(super) use self::caching::{Caching, SubscriptionState, count_from_the_highest};
use self::force::Seen;
use super::Scene;
use super::server::{Block, Id, Reply, Request, Server, Shelf, Side, TICK_MS};
use super::small::List;
use super::watch::{Invariant, Watch};
use crate::base::lease::{Moment, valid_until};

pub(super) const CLIENTS: usize = 4;
/// Acquisitions of all clients together.
pub(super) const PASSES: usize = 6;
/// Messages at a time.
const MESSAGES: usize = 8;
/// A client gives a request up when it is so old, or earlier: its connection breaks.
const RESPONSE_TIMEOUT: u8 = 2;
/// An unanswered request may be carried out until it is so old.
const STRAY: u8 = 2;
/// Late messages that can do nothing any more are forgotten.
const FORGET: i8 = -2;

/// How often the world may go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Budget {
    /// Messages that are lost, requests and answers and notices.
    pub(super) losses: u8,
    /// Requests that arrive twice, the second time whenever it likes.
    pub(super) copies: u8,
    /// Messages that are late, as late as they like.
    pub(super) delays: u8,
    pub(super) deaths: u8,
    pub(super) conversions: u8,
    /// Ticks in which a client does not do what it should, for it is not scheduled.
    pub(super) lapses: u8,
    /// Losses of the record.
    pub(super) wipes: u8,
    /// Subscriptions that break.
    pub(super) breaks: u8,
    /// Operators who look at the lock, and end what they have seen.
    pub(super) forces: u8,
}

/// A request that is not answered yet: for how many ticks.
type ClientRecall = Option<u8>;

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub(super) enum Stage {
    #[default]
    Unused,
    /// `due`: it may ask again.
    Asks {
        call: ClientRecall,
        queued: bool,
        due: bool,
    },
    /// Valid for so many ticks.
    Holds {
        ticks: u8,
        call: ClientRecall,
    },
    /// Nobody is inside, and it stays.
    Idle {
        ticks: u8,
        call: ClientRecall,
    },
    /// Gives itself up for the next one, and counts as reading for so many ticks. `refused`: it asks again when no copy is
    /// under way any more.
    Converts {
        ticks: u8,
        call: ClientRecall,
        refused: bool,
    },
    /// What the one before converts to.
    Arrives,
    /// `told`: the server has answered. Over when a withdrawal is answered that was sent when no copy of the acquisition could be
    /// carried out behind it: that is what `WaitTimeout` calls confirmed.
    Leaves {
        call: ClientRecall,
        told: bool,
    },
    Over,
}

/// One acquisition of a client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub(super) struct Pass {
    pub(super) side: Side,
    waits: bool,
    pub(super) stage: Stage,
    /// An unanswered copy may be carried out for so many ticks.
    stray: u8,
    /// The same of a conversion from it to the next.
    copies: u8,
    /// No copy of the acquisition may be carried out behind the request that is on its way.
    covered: bool,
    /// The server may have it on record.
    recorded: bool,
    /// An operator has ended it, and it does not know.
    forced: bool,
    pub(super) keep: ClientCache,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) enum Body {
    /// `live`: somebody waits for the answer.
    Request {
        request: Request,
        live: bool,
    },
    Answer {
        id: Id,
        reply: Reply,
    },
    /// Of a grant that lasts for so many ticks from now, or to ask again.
    Notice {
        id: Id,
        grant: Option<u8>,
        tokens: Block,
    },
    /// Somebody waits for what has this token, counted from the highest.
    Call {
        client: u8,
        token: i8,
        tries: Option<Id>,
    },
    /// The answer to a try: somebody is inside.
    Used {
        id: Id,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct Message {
    pub(super) body: Body,
    late: bool,
}

impl Default for Message {
    fn default() -> Self {
        Self { body: Body::Answer { id: 0, reply: Reply::Late }, late: false }
    }
}

/// What becomes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Answered,
    Lost,
    Late,
    Twice,
    /// It is carried out, but the answer is lost or late.
    AnswerLost,
    AnswerLate,
    /// The server's clock has run ahead, and its limit is over.
    TooLate,
}

const FATES: [Fate; 7] =
    [Fate::Answered, Fate::Lost, Fate::Late, Fate::Twice, Fate::AnswerLost, Fate::AnswerLate, Fate::TooLate];

/// What a client does of its own accord.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Deed {
    Acquire {
        side: Side,
        waits: bool,
    },
    AskAgain,
    Renew,
    /// Releases a hold, cancels an acquisition, drops a conversion; or tells the server of it again.
    Leave,
    Convert,
    ConvertAgain,
}

/// One step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Act {
    Do {
        id: Id,
        deed: Deed,
        fate: Fate,
        draw: u8,
    },
    /// An acquisition or conversion that leaves nothing is dropped without a word.
    Drop {
        id: Id,
    },
    Deliver {
        at: u8,
        draw: u8,
    },
    Lose {
        at: u8,
    },
    /// The connection breaks, or the response timeout is over.
    GiveUp {
        id: Id,
    },
    Die {
        client: u8,
    },
    Tick,
    Wipe,
    /// A guard leaves, and the hold stays.
    Rest {
        id: Id,
    },
    /// The next acquisition enters what has stayed.
    Enter {
        id: Id,
    },
    /// What becomes of a client's subscription.
    Turns {
        client: u8,
        to: SubscriptionState,
    },
    /// A call that comes again.
    HearTwice {
        at: u8,
    },
    /// An operator looks at the lock.
    Look,
    Force,
}

/// What a wrong client does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Slip {
    /// Counts its validity from the answer, not from the request.
    CountsFromTheAnswer,
    /// Takes a grant that is over when it hears of it.
    TakesGrantsThatAreOver,
    /// Stays valid when its lease is over, because nobody has said no.
    OutlivesItsLease,
    /// Does not leave again when a copy may have come behind its release.
    LeavesOnce,
    /// Takes an answer that it came too late for one that it is not recorded.
    LateForgetsRecord,
    /// Goes away without telling the server.
    LeavesUntold,
    /// Counts as withdrawn when the withdrawal is sent.
    ConfirmsAtOnce,
    /// Counts as withdrawn when its withdrawal has found something, although another copy may be under way.
    ConfirmsWhatItFound,
    /// Counts as withdrawn when no copy is under way as the answer comes, although one may have come behind the withdrawal.
    ConfirmsWhenAnswered,
    /// Takes copies for over a tick before they are.
    ConfirmsTooSoon,
    /// Waits for a notice and asks no more.
    NeverAsksAgain,
    /// Believes that its conversion was refused while a copy of it is under way.
    BelievesRefusalBeforeStrays,
    /// Keeps the hold that it has converted.
    KeepsWhatItConverted,
    /// A called hold stays.
    StaysWhenCalled,
    /// Says that a hold may stay, and believes it, while nobody has confirmed its subscription.
    ReliesUnconfirmed,
    /// Relies on the answer to a request from before its subscription stood.
    ReliesOnWhatItAskedBefore,
    /// Relies on an answer although its subscription broke while it was under way.
    ReliesAcrossBreak,
    /// Keeps its hold when its subscription has broken.
    KeepsUnheard,
    /// Forgets a call that came before the grant.
    ForgetsEarlyCall,
    /// Ends "called" by an answer to what it sent before the call.
    BelievesOlderAnswer,
    /// Makes nothing of an answer that says that somebody waits.
    IgnoresWhatARenewalTells,
    /// Gives a called hold up while somebody is inside.
    GivesUpUnderGuard,
    /// Hands a hold out that is over.
    EntersWhatIsOver,
    /// Two writers have the same token.
    ReusesToken,
    /// Answers a try by "used" while nobody is inside.
    AnswersUsedWhenIdle,
    /// A try that was answered stays in the queue.
    TryStays,
    /// Believes that it was let in before it was queued again.
    TakesGrantFromBefore,
}

impl Slip {
    pub(super) const ALL: [Self; 13] = [
        Self::CountsFromTheAnswer,
        Self::TakesGrantsThatAreOver,
        Self::OutlivesItsLease,
        Self::LeavesOnce,
        Self::LateForgetsRecord,
        Self::LeavesUntold,
        Self::ConfirmsAtOnce,
        Self::ConfirmsWhatItFound,
        Self::ConfirmsWhenAnswered,
        Self::ConfirmsTooSoon,
        Self::NeverAsksAgain,
        Self::BelievesRefusalBeforeStrays,
        Self::KeepsWhatItConverted,
    ];
    /// Of those who let holds stay.
    pub(super) const KEEPING: [Self; 14] = [
        Self::StaysWhenCalled,
        Self::ReliesUnconfirmed,
        Self::ReliesOnWhatItAskedBefore,
        Self::ReliesAcrossBreak,
        Self::KeepsUnheard,
        Self::ForgetsEarlyCall,
        Self::BelievesOlderAnswer,
        Self::IgnoresWhatARenewalTells,
        Self::GivesUpUnderGuard,
        Self::EntersWhatIsOver,
        Self::ReusesToken,
        Self::AnswersUsedWhenIdle,
        Self::TryStays,
        Self::TakesGrantFromBefore,
    ];
}

pub(super) struct Rules<'a> {
    pub(super) scene: &'a Scene,
    pub(super) server: Server,
    pub(super) slip: Option<Slip>,
}

impl Rules<'_> {
    fn slips(&self, slip: Slip) -> bool {
        self.slip == Some(slip)
    }

    pub(super) fn client(&self, id: Id) -> usize {
        usize::from(id) / self.scene.each
    }
}

/// Everything at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct State {
    pub(super) shelf: Shelf,
    pub(super) passes: [Pass; PASSES],
    pub(super) dead: [bool; CLIENTS],
    pub(super) lines: [SubscriptionState; CLIENTS],
    pub(super) seen: Option<Seen>,
    pub(super) bag: List<Message, MESSAGES>,
    pub(super) budget: Budget,
    pub(super) watch: Watch,
}

pub(super) type Stepped = Result<State, Invariant>;

/// What is left of a grant here, in ticks, by the crate's own arithmetic.
fn ticks_left(remaining: u8, age: u8) -> u8 {
    let tick = Duration::from_millis(TICK_MS);
    let until = valid_until(Moment::from_nanos(0), tick * u32::from(remaining), Duration::ZERO);
    let left = until.since(Moment::from_nanos(0).after(tick * u32::from(age)));
    u8::try_from(left.as_nanos().div_ceil(tick.as_nanos())).expect("leases are short")
}

impl Pass {
    /// Whether it has something to do without delay.
    fn is_due(&self, rules: &Rules<'_>) -> bool {
        match self.stage {
            Stage::Asks { call: None, queued, due } => !queued || due && !rules.slips(Slip::NeverAsksAgain),
            Stage::Converts { call: None, refused, .. } => !refused || self.copies == 0,
            Stage::Leaves { call: None, told, .. } => !told || self.stray == 0,
            Stage::Idle { .. } => self.keep.is_over(),
            _ => false,
        }
    }
}

impl State {
    pub(super) fn new(scene: &Scene) -> Self {
        Self {
            shelf: Shelf::default(),
            passes: [Pass::default(); PASSES],
            dead: [false; CLIENTS],
            lines: [scene.caching.line(); CLIENTS],
            seen: None,
            bag: List::default(),
            budget: scene.budget,
            watch: Watch::default(),
        }
    }

    fn pass(&mut self, id: Id) -> &mut Pass {
        &mut self.passes[usize::from(id)]
    }

    fn stage(&self, id: Id) -> Stage {
        self.passes[usize::from(id)].stage
    }

    fn set(&mut self, id: Id, stage: Stage) {
        self.pass(id).stage = stage;
        if stage == Stage::Over {
            *self.pass(id) = Pass { stage, ..Pass::default() };
        }
    }

    pub(super) fn step(&self, rules: &Rules<'_>, act: Act) -> Stepped {
        let mut next = *self;
        match act {
            Act::Do { id, deed, fate, draw } => next.act(rules, id, deed, fate, draw)?,
            Act::Drop { id } => next.drop_without_a_word(id),
            Act::Deliver { at, draw } => {
                let message = next.bag.remove(usize::from(at));
                next.deliver(rules, message, draw)?;
            }
            Act::Lose { at } => {
                next.budget.losses -= 1;
                next.bag.remove(usize::from(at));
            }
            Act::GiveUp { id } => next.give_up(id),
            Act::Die { client } => next.die(rules, usize::from(client)),
            Act::Tick => next.tick(rules),
            Act::Wipe => {
                next.budget.wipes -= 1;
                next.shelf = Shelf::default();
                next.watch.wipe();
            }
            Act::Look => next.look(),
            Act::Force => next.force(rules)?,
            Act::Rest { id } => next.cache(id),
            Act::Enter { id } => next.enter(rules, id),
            Act::Turns { client, to } => next.set_subscription(rules, client, to),
            Act::HearTwice { at } => {
                next.budget.copies -= 1;
                let message = &mut next.bag.as_mut_slice()[usize::from(at)];
                message.late = true;
                let message = *message;
                next.deliver(rules, message, 0)?;
            }
        }
        next.tidy(rules);
        Ok(next)
    }

    /// Clients are alike: the same state but for their names is the same.
    pub(super) fn sort(&mut self, rules: &Rules<'_>) -> [u8; CLIENTS] {
        let (clients, each) = (rules.scene.clients, rules.scene.each);
        let mut order = [0, 1, 2, 3];
        let own = |client: u8| {
            let first = usize::from(client) * each;
            (self.dead[usize::from(client)], self.lines[usize::from(client)], &self.passes[first..first + each])
        };
        order[..clients].sort_by(|a, b| own(*a).cmp(&own(*b)));
        if order[..clients].is_sorted() {
            return order;
        }
        let before = *self;
        let mut names = [0; PASSES];
        let mut clients_now = [0; CLIENTS];
        for (new, old) in order[..clients].iter().enumerate() {
            let old = usize::from(*old);
            self.dead[new] = before.dead[old];
            self.lines[new] = before.lines[old];
            clients_now[old] = u8::try_from(new).expect("small");
            for nth in 0..each {
                self.passes[new * each + nth] = before.passes[old * each + nth];
                names[old * each + nth] = Id::try_from(new * each + nth).expect("small");
            }
        }
        let name = |id: Id| names[usize::from(id)];
        self.shelf.rename(name);
        self.watch.rename(name);
        self.seen.iter_mut().for_each(|seen| seen.rename(name));
        for message in self.bag.as_mut_slice() {
            match &mut message.body {
                Body::Request { request, .. } => request.id = name(request.id),
                Body::Answer { id, .. } | Body::Notice { id, .. } | Body::Used { id } => *id = name(*id),
                Body::Call { client, tries, .. } => {
                    *client = clients_now[usize::from(*client)];
                    *tries = tries.map(name);
                }
            }
        }
        self.bag.as_mut_slice().sort_unstable();
        order
    }
}

/// It has yet to tell the server.
const LEAVING: Stage = Stage::Leaves { call: None, told: false };
