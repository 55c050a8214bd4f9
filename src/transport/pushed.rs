//! What a server says of its own accord of channels.

use redis::{PushKind, Value};

/// On a connection that subscribes. All name their channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pushed<'a> {
    Message { channel: &'a str, message: &'a [u8] },
    Subscribed { channel: &'a str },
    Unsubscribed { channel: &'a str },
}

/// Whoever is told, in the order in which the server said it, by the task that reads the connection.
pub(super) type Hear = Box<dyn Fn(Pushed<'_>) + Send + Sync>;

impl<'a> Pushed<'a> {
    /// `None` if it is about something else.
    pub(super) fn of(kind: &[u8], channel: &'a [u8], message: Option<&'a [u8]>) -> Option<Self> {
        let channel = std::str::from_utf8(channel).ok()?;
        match (kind, message) {
            (b"smessage", Some(message)) => Some(Self::Message { channel, message }),
            (b"ssubscribe", _) => Some(Self::Subscribed { channel }),
            (b"sunsubscribe", _) => Some(Self::Unsubscribed { channel }),
            _ => None,
        }
    }

    /// The same as the library reads it.
    pub(super) fn of_library(kind: &PushKind, data: &'a [Value]) -> Option<Self> {
        let text = |value: Option<&'a Value>| match value {
            Some(Value::BulkString(bytes)) => Some(bytes.as_slice()),
            _ => None,
        };
        let kind = match kind {
            PushKind::SMessage => &b"smessage"[..],
            PushKind::SSubscribe => b"ssubscribe",
            PushKind::SUnsubscribe => b"sunsubscribe",
            _ => return None,
        };
        Self::of(kind, text(data.first())?, text(data.get(1)))
    }
}
