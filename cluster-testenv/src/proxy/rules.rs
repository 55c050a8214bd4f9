//! Rules for requests that have not come yet.

use std::{
    collections::HashMap,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use super::{
    limit::ScriptLimit,
    matcher::{Matcher, Request},
    messages::LostMessages,
};
use crate::{Error, Result};

/// Action on a request, or on its reply.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Action {
    HoldRequest,
    HoldReply,
    /// The proxy drops the reply and resets the connection.
    CutAfterApply,
    /// The proxy sends the request twice, and drops the second reply.
    Duplicate,
    /// The proxy drops the reply, and nothing else.
    DropReply,
}

/// Progress of the request of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Awaited,
    /// The request is at the proxy.
    Seen,
    /// The server's reply is at the proxy.
    Applied,
}

/// Stage of one rule, for threads that wait for it.
#[derive(Debug)]
pub struct Progress {
    stage: Mutex<Stage>,
    changed: Condvar,
}

impl Progress {
    pub fn reach(&self, stage: Stage) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage;
        self.changed.notify_all();
    }

    pub fn wait_for(&self, stage: Stage, what: &str, bound: Duration) -> Result<()> {
        let reached = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(reached, bound, |reached| *reached < stage);
        let (reached, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *reached < stage { Err(Error::NotInTime { what: what.to_owned(), bound }) } else { Ok(()) }
    }
}

/// Number that identifies a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleId(u64);

/// Rule without its matcher. The rule stays with the request that it has taken.
#[derive(Clone)]
pub struct Rule {
    pub id: RuleId,
    pub action: Action,
    pub progress: Arc<Progress>,
}

/// Count of the requests that a matcher matches. Waiting callers ask for it again and again on the thread that carries
/// the traffic. So the thread compares each request only once.
struct Counted {
    /// Matcher whose address stays unique as long as this copy lives.
    matcher: Matcher,
    count: usize,
    known: usize,
}

/// Rules that wait for a request, the requests that came, and the limit of scripts.
#[derive(Default)]
pub struct Rules {
    armed: Vec<(Matcher, Rule)>,
    armed_ever: u64,
    /// Commands that replace all requests that a matcher matches, in RESP.
    replacements: Vec<(Matcher, Vec<u8>)>,
    seen: Vec<Request>,
    pub limit: ScriptLimit,
    pub messages: LostMessages,
    /// Counts by the address of their matcher.
    counted: HashMap<usize, Counted>,
}

impl Rules {
    pub fn arm(&mut self, matcher: Matcher, action: Action) -> Rule {
        self.armed_ever += 1;
        let progress = Arc::new(Progress { stage: Mutex::new(Stage::Awaited), changed: Condvar::new() });
        let rule = Rule { id: RuleId(self.armed_ever), action, progress };
        self.armed.push((matcher, rule.clone()));
        rule
    }

    pub fn disarm(&mut self, id: RuleId) {
        self.armed.retain(|(_, rule)| rule.id != id);
    }

    pub fn replace(&mut self, matcher: Matcher, command: Vec<u8>) {
        self.replacements.push((matcher, command));
    }

    /// Returns the command that the server gets in place of the request.
    pub fn replacement(&self, request: &Request) -> Option<Vec<u8>> {
        let found = self.replacements.iter().find(|(matcher, _)| matcher.matches(request));
        found.map(|(_, command)| command.clone())
    }

    /// Stores a request that no rule takes.
    pub fn note(&mut self, request: Request) {
        self.seen.push(request);
    }

    /// Stores the request, and takes the oldest rule that waits for it.
    pub fn see(&mut self, request: Request) -> Option<Rule> {
        let index = self.armed.iter().position(|(matcher, _)| matcher.matches(&request));
        self.note(request);
        let rule = index.map(|index| self.armed.remove(index).1)?;
        rule.progress.reach(Stage::Seen);
        Some(rule)
    }

    pub fn count_seen(&mut self, matcher: &Matcher) -> usize {
        let new = || Counted { matcher: matcher.clone(), count: 0, known: 0 };
        let counted = self.counted.entry(matcher.address()).or_insert_with(new);
        let unknown = self.seen.iter().skip(counted.known);
        counted.count += unknown.filter(|request| counted.matcher.matches(request)).count();
        counted.known = self.seen.len();
        counted.count
    }

    pub fn forget_seen(&mut self) {
        self.seen.clear();
        self.counted.clear();
    }
}
