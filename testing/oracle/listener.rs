//! Published messages of a server.

use super::operation::MANAGER;
use super::*;

/// Receives the messages that are published to waiters of a lock, and its recalls.
pub(super) struct Listener {
    subscriber: Client,
    speaks: Client,
    channel: String,
    recalls: String,
}

impl Listener {
    /// Subscribes at the node that owns the channel. `None` if there are no nodes.
    pub(super) fn new(nodes: &[&Node], key: &Key) -> Option<Self> {
        let channel = format!("{}:wake:{MANAGER}", key.channels("lock"));
        let recalls = format!("{}:call", key.channels("lock"));
        let connect = |node: &&Node| node.client().expect("the server answers");
        let speaks = |mut client: Client| {
            let owned = client.command(&["SPUBLISH", &channel, ""]).expect("an answer").error().is_none();
            owned.then_some(client)
        };
        let (node, speaks) = nodes.iter().find_map(|node| Some((node, speaks(connect(node))?)))?;
        let mut subscriber = connect(node);
        for channel in [&channel, &recalls] {
            subscriber.command(&["SSUBSCRIBE", channel]).expect("subscribed");
        }
        Some(Self { subscriber, speaks, channel, recalls })
    }

    /// Returns all messages so far in the order of their text. Recalls begin with `call`.
    pub(super) fn received(mut self) -> Vec<String> {
        const END: &str = "no more";
        self.speaks.command(&["SPUBLISH", &self.channel, END]).expect("published");
        let mut received = Vec::new();
        loop {
            let message = self.subscriber.receive().expect("a message");
            let [_, channel, text] = message.array().expect("three parts") else { panic!("{message:?}") };
            let [channel, text] = [channel, text].map(|part| part.text().expect("a text"));
            if text == END {
                received.sort();
                return received;
            }
            received.push(if channel == self.recalls { format!("call {text}") } else { text.into_owned() });
        }
    }
}
