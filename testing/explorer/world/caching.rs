//! What clients do who let holds stay when nobody is inside: the rules of `docs/CACHED_HOLDS.md`.
//!
//! Tokens are counted from the highest that was given, so far back as it matters.

use super::super::server::{Block, Grant, Id, LEASE, Outcome, Reply, Request, Side, TOKENS, What};
use super::super::watch::{Invariant, Moved};
use super::{Act, Body, CLIENTS, ClientRecall, Deed, LEAVING, Message, Rules, Slip, Stage, State};

/// Who is farther back is as far back as this.
const FAR: i8 = -6;

/// Whether holds stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Caching {
    Nothing,
    /// Every client is subscribed to calls from the start.
    Subscribed,
    /// Each subscribes when it likes.
    Subscribing,
}

impl Caching {
    pub(super) fn line(self) -> SubscriptionState {
        if self == Self::Subscribed { SubscriptionState::Stands } else { SubscriptionState::Down }
    }
}

/// A client's subscription to calls.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub(in super::super) enum SubscriptionState {
    #[default]
    Down,
    Stands,
    /// Its client does not know yet, which takes less than a tick.
    Broken,
}

/// What a client knows of a hold that may stay.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub(in super::super) struct ClientCache {
    /// The request under way has said that the hold may stay, and the subscription has stood since.
    is_offered: bool,
    /// The highest token that was called since the request under way was sent.
    recalled_token: Option<i8>,
    /// Every call for it would be heard.
    is_live: bool,
    /// Somebody waits.
    is_recalled: bool,
    /// The first token of the hold.
    first: i8,
    /// The next one for a writer, and how many are left.
    next: Block,
}

impl ClientCache {
    /// Returns true if the next guard needs no request and has a token.
    pub(super) fn is_of_use(&self, rules: &Rules<'_>, side: Side) -> bool {
        self.is_cached(rules) && (side == Side::Read || self.next.count > 0)
    }

    /// Whether guards may enter without a word, and the last one leave without.
    pub(super) fn is_cached(&self, rules: &Rules<'_>) -> bool {
        self.is_live && (!self.is_recalled || rules.slips(Slip::StaysWhenCalled))
    }

    /// Whether an idle hold is to be given up.
    pub(super) fn is_over(&self) -> bool {
        self.is_recalled || !self.is_live
    }

    fn tokens(&mut self) -> [&mut i8; 2] {
        [&mut self.first, &mut self.next.first]
    }
}

impl Rules<'_> {
    pub(super) fn caches(&self) -> bool {
        self.scene.caching != Caching::Nothing
    }
}

fn moved(token: &mut i8, by: i8) {
    *token = (*token - by).max(FAR);
}

// What they do.
impl State {
    /// A client takes a broken subscription for one that stands.
    fn believes_in_line(&self, client: usize) -> bool {
        self.lines[client] != SubscriptionState::Down
    }

    /// Whether a renewal would tell the holder something.
    pub(super) fn is_waiting_for_reply(&self, rules: &Rules<'_>, id: Id) -> bool {
        let pass = &self.passes[usize::from(id)];
        let lacks =
            !pass.keep.is_live || pass.keep.is_recalled || pass.side == Side::Write && pass.keep.next.count == 0;
        rules.caches() && lacks && self.believes_in_line(rules.client(id))
    }

    pub(super) fn idle_deeds(&self, rules: &Rules<'_>, id: Id, ticks: u8, call: ClientRecall, acts: &mut Vec<Act>) {
        self.fated(id, Deed::Leave, acts);
        Self::gives_up(id, call, acts);
        let pass = &self.passes[usize::from(id)];
        if !pass.keep.is_cached(rules) {
            return;
        }
        if self.next_of(rules, id).is_some() {
            acts.push(Act::Enter { id });
        }
        if call.is_none() && ticks < LEASE {
            self.fated(id, Deed::Renew, acts);
        }
    }

    /// The next acquisition of the same client.
    fn next_of(&self, rules: &Rules<'_>, id: Id) -> Option<Id> {
        let end = (rules.client(id) + 1) * rules.scene.each;
        (usize::from(id) + 1..end)
            .find(|at| self.passes[*at].stage == Stage::Unused)
            .map(|at| Id::try_from(at).expect("small"))
    }

    pub(super) fn cache(&mut self, id: Id) {
        if let Stage::Holds { ticks, call } = self.stage(id) {
            self.set(id, Stage::Idle { ticks, call });
        }
    }

    /// Nobody is asked, and the hold goes on under its name.
    pub(super) fn enter(&mut self, rules: &Rules<'_>, id: Id) {
        if let Stage::Idle { ticks, call } = self.stage(id) {
            self.set(id, Stage::Holds { ticks, call });
        }
        if let Some(next) = self.next_of(rules, id) {
            self.set(next, Stage::Over);
        }
        let pass = self.pass(id);
        let (side, first, pass_is_forced) = (pass.side, pass.keep.first, pass.forced);
        let next = &mut pass.keep.next;
        let token = if side == Side::Write { next.first } else { first };
        if side == Side::Write && !rules.slips(Slip::ReusesToken) {
            *next = Block { first: next.first + 1, count: next.count - 1 };
        }
        if !pass_is_forced {
            self.watch.is_handed(token, side);
        }
    }

    pub(super) fn offer_caching(&mut self, rules: &Rules<'_>, id: Id, what: What) -> Option<u8> {
        if !rules.caches() || what == What::Leave {
            return None;
        }
        let stands = self.believes_in_line(rules.client(id)) || rules.slips(Slip::ReliesUnconfirmed);
        let pass = self.pass(id);
        (pass.keep.is_offered, pass.keep.recalled_token) = (stands, None);
        let is_short = what == What::Renew && pass.side == Side::Write && pass.keep.next.count <= 1;
        stands.then(|| if is_short { u8::try_from(TOKENS).expect("small") } else { 0 })
    }
}

// What they are told.
impl State {
    /// An answer about a hold.
    fn on_answer(&mut self, rules: &Rules<'_>, id: Id, is_waited_for: bool) {
        let stands = self.believes_in_line(rules.client(id));
        let keep = &mut self.pass(id).keep;
        let heard = keep.recalled_token.take();
        let said = std::mem::take(&mut keep.is_offered);
        if is_waited_for {
            keep.is_recalled |= !rules.slips(Slip::IgnoresWhatARenewalTells);
            return;
        }
        keep.is_recalled = heard.is_some_and(|token| token >= keep.first);
        keep.is_live |= match rules.slip {
            Some(Slip::ReliesUnconfirmed) => said,
            Some(Slip::ReliesOnWhatItAskedBefore) => stands,
            _ => said && stands,
        };
    }

    pub(super) fn on_cached_grant(&mut self, rules: &Rules<'_>, id: Id, grant: Grant) {
        if !rules.caches() {
            return;
        }
        if rules.slips(Slip::ForgetsEarlyCall) {
            self.pass(id).keep.recalled_token = None;
        }
        self.on_let_in(id, grant.block());
        self.on_answer(rules, id, grant.is_waited_for);
    }

    /// Its guard has the first token.
    pub(super) fn on_let_in(&mut self, id: Id, tokens: Block) {
        let pass = self.pass(id);
        let side = pass.side;
        pass.keep.first = tokens.first;
        pass.keep.next = match side {
            Side::Write => Block { first: tokens.first + 1, count: tokens.count - 1 },
            Side::Read => Block::default(),
        };
        if !pass.forced {
            self.watch.is_handed(tokens.first, side);
        }
    }

    pub(super) fn on_renewed(&mut self, rules: &Rules<'_>, id: Id, is_waited_for: bool, tokens: Option<Block>) {
        if !rules.caches() {
            return;
        }
        if rules.slips(Slip::BelievesOlderAnswer) {
            self.pass(id).keep.recalled_token = None;
        }
        self.on_answer(rules, id, is_waited_for);
        if let Some(tokens) = tokens {
            self.pass(id).keep.next = tokens;
        }
    }

    pub(super) fn on_recall(
        &mut self,
        rules: &Rules<'_>,
        client: u8,
        token: i8,
        tries: Option<Id>,
    ) -> Result<(), Invariant> {
        let first = usize::from(client) * rules.scene.each;
        for id in (first..first + rules.scene.each).map(|at| Id::try_from(at).expect("small")) {
            let stage = self.stage(id);
            let is_idle = matches!(stage, Stage::Idle { .. });
            let keep = &mut self.pass(id).keep;
            let call = match stage {
                Stage::Asks { call: Some(_), .. } | Stage::Arrives => {
                    // Who only tries changes nothing for those who come.
                    keep.recalled_token = keep.recalled_token.max(tries.is_none().then_some(token));
                    continue;
                }
                Stage::Holds { call, .. } | Stage::Idle { call, .. } | Stage::Converts { call, .. } => call,
                _ => continue,
            };
            if token < keep.first {
                continue;
            }
            match tries {
                Some(id) if !is_idle || rules.slips(Slip::AnswersUsedWhenIdle) => {
                    self.bag.push(Message { body: Body::Used { id }, late: false });
                    return if is_idle { Err(Invariant::Used) } else { Ok(()) };
                }
                _ => keep.is_recalled = true,
            }
            if call.is_some() {
                keep.recalled_token = keep.recalled_token.max(Some(token));
            }
            if rules.slips(Slip::GivesUpUnderGuard) && !is_idle {
                let request = Request { id, what: What::Leave, ..Request::default() };
                self.carry_out(rules, request, 0)?;
            }
        }
        Ok(())
    }

    /// A try gives its place back.
    pub(super) fn on_in_use(&mut self, rules: &Rules<'_>, id: Id) {
        if matches!(self.stage(id), Stage::Asks { call: None, .. }) {
            self.set(id, if rules.slips(Slip::TryStays) { Stage::Over } else { LEAVING });
        }
    }
}

// Subscriptions and messages.
impl State {
    pub(super) fn add_subscription_acts(&self, rules: &Rules<'_>, acts: &mut Vec<Act>) {
        if !rules.caches() {
            return;
        }
        for client in (0..rules.scene.clients).filter(|client| !self.dead[*client] && !self.is_through(rules, *client))
        {
            let turns = match self.lines[client] {
                SubscriptionState::Down => Some(SubscriptionState::Stands),
                SubscriptionState::Stands => (self.budget.breaks > 0).then_some(SubscriptionState::Broken),
                SubscriptionState::Broken => Some(SubscriptionState::Down),
            };
            acts.extend(turns.map(|to| Act::Turns { client: u8::try_from(client).expect("small"), to }));
        }
    }

    /// What a broken subscription was to bring is lost.
    pub(super) fn set_subscription(&mut self, rules: &Rules<'_>, client: u8, to: SubscriptionState) {
        self.lines[usize::from(client)] = to;
        match to {
            SubscriptionState::Stands => {}
            SubscriptionState::Broken => {
                self.budget.breaks -= 1;
                self.bag.retain(|message| !matches!(message.body, Body::Call { client: of, .. } if of == client));
            }
            SubscriptionState::Down => {
                let first = usize::from(client) * rules.scene.each;
                for pass in &mut self.passes[first..first + rules.scene.each] {
                    pass.keep.is_offered &= rules.slips(Slip::ReliesAcrossBreak);
                    pass.keep.is_live &= rules.slips(Slip::KeepsUnheard);
                }
            }
        }
    }

    /// No link says nothing for longer than a tick.
    pub(super) fn find_broken_subscriptions(&mut self, rules: &Rules<'_>) {
        for client in 0..CLIENTS {
            if self.lines[client] == SubscriptionState::Broken {
                self.set_subscription(rules, u8::try_from(client).expect("small"), SubscriptionState::Down);
            }
        }
    }

    /// Whoever is subscribed and has something to keep is told.
    pub(super) fn send_recalls(&mut self, rules: &Rules<'_>, outcome: &Outcome) {
        let Some(call) = outcome.call.filter(|_| !rules.scene.is_mute) else { return };
        for client in (0..rules.scene.clients).filter(|client| self.lines[*client] == SubscriptionState::Stands) {
            if self.can_hear_recall(rules, client) {
                let client = u8::try_from(client).expect("small");
                self.bag
                    .push(Message { body: Body::Call { client, token: call.token, tries: call.tries }, late: false });
            }
        }
    }

    fn can_hear_recall(&self, rules: &Rules<'_>, client: usize) -> bool {
        let own = &self.passes[client * rules.scene.each..(client + 1) * rules.scene.each];
        own.iter().any(|pass| {
            let asks = matches!(pass.stage, Stage::Asks { call: Some(_), .. });
            asks || matches!(pass.stage, Stage::Holds { .. } | Stage::Idle { .. } | Stage::Converts { .. })
        })
    }

    /// The highest token has grown: all others are farther back.
    pub(super) fn shift_tokens(&mut self, Moved { grown, .. }: Moved) {
        if grown == 0 {
            return;
        }
        for pass in &mut self.passes {
            let keep = &mut pass.keep;
            let heard = &mut keep.recalled_token;
            heard.iter_mut().for_each(|token| moved(token, grown));
            if matches!(pass.stage, Stage::Holds { .. } | Stage::Idle { .. } | Stage::Converts { .. }) {
                keep.tokens().into_iter().for_each(|token| moved(token, grown));
            }
        }
        for message in self.bag.as_mut_slice() {
            match &mut message.body {
                Body::Call { token, .. } => moved(token, grown),
                Body::Notice { grant: Some(_), tokens, .. } => moved(&mut tokens.first, grown),
                Body::Answer { reply: Reply::Granted(grant), .. } => moved(&mut grant.first, grown),
                Body::Answer { reply: Reply::Renewed { tokens: Some(tokens), .. }, .. } => {
                    moved(&mut tokens.first, grown)
                }
                _ => {}
            }
        }
        self.seen.iter_mut().for_each(|seen| moved(&mut seen.token, grown));
        self.watch.move_on(|token| moved(token, grown));
    }

    /// What keeps nothing has nothing to remember.
    pub(super) fn forget_cached(&mut self, rules: &Rules<'_>) {
        if !rules.caches() {
            return;
        }
        for at in 0..self.passes.len() {
            let stage = self.passes[at].stage;
            let keep = &mut self.passes[at].keep;
            let call = match stage {
                Stage::Asks { call, .. } | Stage::Holds { call, .. } | Stage::Idle { call, .. } => call,
                Stage::Converts { .. } | Stage::Arrives => continue,
                Stage::Unused | Stage::Leaves { .. } | Stage::Over => {
                    *keep = ClientCache::default();
                    continue;
                }
            };
            if call.is_none() {
                (keep.is_offered, keep.recalled_token) = (false, None);
            }
            if matches!(stage, Stage::Asks { .. }) {
                *keep = ClientCache {
                    is_offered: keep.is_offered,
                    recalled_token: keep.recalled_token,
                    ..ClientCache::default()
                };
            }
        }
        let before = *self;
        self.bag.retain(|message| match message.body {
            Body::Call { client, .. } => before.can_hear_recall(rules, client.into()),
            _ => true,
        });
    }
}

/// Counts what was answered and told from the highest token, as everything that is remembered is.
pub(in super::super) fn count_from_the_highest(outcome: &mut Outcome, Moved { top, .. }: Moved) {
    match &mut outcome.reply {
        Reply::Granted(grant) => grant.first -= top,
        Reply::Renewed { tokens: Some(tokens), .. } => tokens.first -= top,
        _ => {}
    }
    for (_, grant) in &mut outcome.news {
        grant.iter_mut().for_each(|grant| grant.first -= top);
    }
    outcome.call.iter_mut().for_each(|call| call.token -= top);
}
