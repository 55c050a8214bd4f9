//! Pushes of a server about channels.

use std::sync::Arc;

/// Push about a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pushed<'a> {
    Message { channel: &'a str, message: &'a [u8] },
    Subscribed { channel: &'a str },
    Unsubscribed { channel: &'a str },
}

/// Handler of pushes. The task that reads the connection calls the handler for each push, in the order in which the
/// server sent them.
pub(super) type OnPush = Arc<dyn Fn(Pushed<'_>) + Send + Sync>;

impl<'a> Pushed<'a> {
    /// Reads a push. Returns `None` if the push is not about a channel.
    pub(super) fn of(kind: &[u8], channel: &'a [u8], message: Option<&'a [u8]>) -> Option<Self> {
        let channel = std::str::from_utf8(channel).ok()?;
        match (kind, message) {
            (b"smessage" | b"message", Some(message)) => Some(Self::Message { channel, message }),
            (b"ssubscribe" | b"subscribe", _) => Some(Self::Subscribed { channel }),
            (b"sunsubscribe" | b"unsubscribe", _) => Some(Self::Unsubscribed { channel }),
            _ => None,
        }
    }
}
