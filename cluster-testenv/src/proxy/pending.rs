//! Pairs the replies of a connection with its requests.
//!
//! A server answers in order, one reply to each request, with three exceptions. It confirms a subscription channel by
//! channel. Messages and pushes answer no request. After some commands the connection speaks another protocol.

use std::collections::{HashSet, VecDeque};

use super::{
    matcher::Request,
    rules::{Action, Rule, RuleId},
    wire,
};

/// Replies that a connection waits for.
#[derive(Default)]
pub struct PendingReplies {
    queue: VecDeque<Pending>,
    subscriptions: HashSet<(Subscribed, Vec<u8>)>,
    /// True after the first push of version 3 on this connection. From then on, a list is always an answer.
    has_pushes: bool,
}

struct Pending {
    awaited: Awaited,
    rule: Option<Rule>,
}

/// Kind of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Subscribed {
    Channel,
    Pattern,
    ShardChannel,
}

/// Message that confirms the begin or the end of a subscription, or reports that the server ended the subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirmation {
    to: Subscribed,
    is_end: bool,
}

impl Confirmation {
    fn read(word: &[u8]) -> Option<Self> {
        let (to, is_end) = match word {
            b"subscribe" => (Subscribed::Channel, false),
            b"unsubscribe" => (Subscribed::Channel, true),
            b"psubscribe" => (Subscribed::Pattern, false),
            b"punsubscribe" => (Subscribed::Pattern, true),
            b"ssubscribe" => (Subscribed::ShardChannel, false),
            b"sunsubscribe" => (Subscribed::ShardChannel, true),
            _ => return None,
        };
        Some(Self { to, is_end })
    }
}

/// Answer that a request awaits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    Reply,
    /// A number of confirmations (`left`), or all confirmations until no subscription of this kind remains.
    Confirmations {
        of: Confirmation,
        left: Option<usize>,
    },
    /// All bytes from now on.
    Stream,
}

impl Awaited {
    pub fn by(request: &Request) -> Self {
        let args = request.args().len() - 1;
        let second = request.args().get(1).map(|arg| arg.to_ascii_uppercase()).unwrap_or_default();
        let name = request.name();
        if let Some(of) = Confirmation::read(name.to_ascii_lowercase().as_bytes()) {
            return Self::Confirmations { of, left: (args > 0).then_some(args) };
        }
        match name.as_str() {
            "SYNC" | "PSYNC" | "MONITOR" => Self::Stream,
            "CLUSTER" if second == b"SYNCSLOTS" => Self::Stream,
            // From then on the server does not answer all requests.
            "CLIENT" if second == b"REPLY" => Self::Stream,
            _ => Self::Reply,
        }
    }
}

impl PendingReplies {
    pub fn expect(&mut self, awaited: Awaited, rule: Option<Rule>) {
        self.queue.push_back(Pending { awaited, rule });
    }

    /// Returns true if the proxy forwards all bytes of the server unparsed from now on.
    pub fn is_stream(&self) -> bool {
        self.queue.front().is_some_and(|pending| pending.awaited == Awaited::Stream)
    }

    /// Returns true if a rule waits for one of the replies.
    pub fn is_watched(&self) -> bool {
        self.queue.iter().any(|pending| pending.rule.is_some())
    }

    pub fn has(&self, id: RuleId) -> bool {
        self.queue.iter().any(|pending| pending.rule.as_ref().is_some_and(|rule| rule.id == id))
    }

    /// Stops a rule from holding the reply.
    pub fn forget(&mut self, id: RuleId) {
        let is_meant = |rule: &Rule| rule.id == id && rule.action != Action::HoldRequest;
        let rules = self.queue.iter_mut().map(|pending| &mut pending.rule);
        rules.filter(|rule| rule.as_ref().is_some_and(is_meant)).for_each(|rule| *rule = None);
    }

    /// Changes the action on the reply that a rule waits for.
    pub fn change(&mut self, id: RuleId, action: Action) {
        let rules = self.queue.iter_mut().filter_map(|pending| pending.rule.as_mut());
        rules.filter(|rule| rule.id == id).for_each(|rule| rule.action = action);
    }

    /// Counts a reply of the server, and returns the rule that waits for this reply.
    pub fn answer(&mut self, reply: &[u8]) -> Option<Rule> {
        let (kind, [word, channel]) = wire::head(reply);
        self.has_pushes |= kind == b'>';
        // On a subscribed connection of version 2, such a list can be no answer to another request.
        let is_message = kind == b'>' || (kind == b'*' && !self.has_pushes && self.is_message(word));
        let confirmation = Confirmation::read(word).filter(|_| matches!(kind, b'*' | b'>'));
        let Some(pending) = self.queue.front_mut() else {
            note(&mut self.subscriptions, confirmation.filter(|_| is_message), channel);
            return None;
        };
        let rule = pending.rule.clone();
        let is_answered = match &mut pending.awaited {
            Awaited::Confirmations { of, left } if confirmation == Some(*of) => {
                note(&mut self.subscriptions, confirmation, channel);
                *left = left.map(|left| left - 1);
                left.map_or_else(|| !self.subscriptions.iter().any(|(to, _)| *to == of.to), |left| left == 0)
            }
            Awaited::Confirmations { .. } if matches!(kind, b'-' | b'!') => true,
            Awaited::Reply if !is_message => true,
            Awaited::Reply | Awaited::Confirmations { .. } | Awaited::Stream => {
                note(&mut self.subscriptions, confirmation.filter(|_| is_message), channel);
                return None;
            }
        };
        if is_answered {
            self.queue.pop_front();
        }
        rule
    }

    fn is_message(&self, word: &[u8]) -> bool {
        let is_end = Confirmation::read(word).is_some_and(|confirmation| confirmation.is_end);
        !self.subscriptions.is_empty() && (is_end || matches!(word, b"message" | b"pmessage" | b"smessage"))
    }
}

/// Updates the set of subscriptions.
fn note(subscriptions: &mut HashSet<(Subscribed, Vec<u8>)>, confirmation: Option<Confirmation>, channel: &[u8]) {
    let Some(Confirmation { to, is_end }) = confirmation else { return };
    let subscription = (to, channel.to_vec());
    if is_end {
        subscriptions.remove(&subscription);
    } else {
        subscriptions.insert(subscription);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> Request {
        Request::new(text.split(' ').map(|word| word.as_bytes().to_vec()).collect())
    }

    fn list(kind: char, words: &str) -> Vec<u8> {
        let words: Vec<&str> = words.split(' ').collect();
        let bulks = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
        format!("{kind}{}\r\n{}", words.len(), bulks.collect::<String>()).into_bytes()
    }

    /// Sends the requests, then receives the lists, and returns how many requests are left after each list.
    fn left_after(requests: &[&str], lists: &[(char, &str)]) -> Vec<usize> {
        let mut pending = PendingReplies::default();
        for text in requests {
            pending.expect(Awaited::by(&request(text)), None);
        }
        let mut left_after = |(kind, words): &(char, &str)| {
            pending.answer(&list(*kind, words));
            pending.queue.len()
        };
        lists.iter().map(&mut left_after).collect()
    }

    #[test]
    fn subscription_is_answered_channel_by_channel_in_both_versions() {
        for kind in ['*', '>'] {
            let lists = [(kind, "subscribe a 1"), (kind, "message a text"), (kind, "subscribe b 2")];
            assert_eq!(left_after(&["SUBSCRIBE a b", "PING"], &lists), [2, 2, 1]);
            let lists = [(kind, "subscribe a 1"), (kind, "psubscribe * 2"), (kind, "unsubscribe a 0")];
            assert_eq!(left_after(&["SUBSCRIBE a", "PSUBSCRIBE *", "UNSUBSCRIBE", "PING"], &lists), [3, 2, 1]);
        }
    }

    #[test]
    fn messages_and_unasked_ends_answer_nothing() {
        for kind in ['*', '>'] {
            let lists =
                [(kind, "ssubscribe a 1"), (kind, "smessage a text"), (kind, "sunsubscribe a 0"), ('*', "pong ")];
            assert_eq!(left_after(&["SSUBSCRIBE a", "PING"], &lists), [1, 1, 1, 0]);
        }
    }

    #[test]
    fn list_of_an_unsubscribed_connection_is_an_answer_whatever_it_says() {
        assert_eq!(left_after(&["LRANGE key 0 -1", "PING"], &[('*', "message a text")]), [1]);
    }

    #[test]
    fn refused_subscription_is_answered_once() {
        let mut pending = PendingReplies::default();
        pending.expect(Awaited::by(&request("SSUBSCRIBE a b")), None);
        pending.answer(b"-MOVED 1 127.0.0.1:1\r\n");
        assert!(pending.queue.is_empty());
    }
}
