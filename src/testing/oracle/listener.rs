//! What a server publishes.

use cluster_testenv::{Client, Node, Reply};

use super::operation::MANAGER;
use crate::key::Key;

/// Hears what is published to the waiters of a lock.
pub(super) struct Listener {
    hears: Client,
    speaks: Client,
    channel: String,
}

impl Listener {
    /// At whichever of the nodes has the channel; none if there are none.
    pub(super) fn new(nodes: &[&Node], key: &Key) -> Option<Self> {
        let channel = format!("{}:wake:{MANAGER}", key.channels("lock"));
        let connect = |node: &&Node| node.client().expect("the server answers");
        let speaks = |mut client: Client| {
            let owned = client.command(&["SPUBLISH", &channel, ""]).expect("an answer").error().is_none();
            owned.then_some(client)
        };
        let (node, speaks) = nodes.iter().find_map(|node| Some((node, speaks(connect(node))?)))?;
        let mut hears = connect(node);
        hears.command(&["SSUBSCRIBE", &channel]).expect("subscribed");
        Some(Self { hears, speaks, channel })
    }

    /// All until now, in the order of their text.
    pub(super) fn heard(mut self) -> Vec<String> {
        const END: &str = "no more";
        self.speaks.command(&["SPUBLISH", &self.channel, END]).expect("published");
        let mut heard = Vec::new();
        loop {
            let message = self.hears.receive().expect("a message");
            let text = message.array().and_then(|parts| parts.last()).and_then(Reply::text).expect("a text");
            if text == END {
                heard.sort();
                return heard;
            }
            heard.push(text.into_owned());
        }
    }
}
