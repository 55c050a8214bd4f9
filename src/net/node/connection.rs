//! Connection for requests. It encodes requests in RESP, and sends them on a [wire](super::wire).

use std::iter;

use redis::{Cmd, RedisError, Value};

use super::relogin::Relogin;
use super::wire::{AllAndLast, Of, Wire};
use crate::base::digits::Digits;
use crate::base::lease::ServerTime;
use crate::net::encode::{head, part};
use crate::net::script::Dialect;
use crate::net::{Call, Expiry};

pub(in crate::net) struct Connection {
    pub(super) wire: Wire,
    /// Task that sends new credentials, if a provider returns them.
    pub(super) _relogin: Option<Relogin>,
}

/// Request to a server.
#[derive(Clone, Copy)]
pub(in crate::net) enum Request<'a> {
    Call { call: &'a Call, wording: Wording, not_after: ServerTime },
    Command(&'a Cmd),
}

/// Form in which a call names its script: by its digest, or with its full text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::net) enum Load {
    Digest,
    Text,
}

/// Dialect of a call's script, and the form in which the call names the script.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::net) struct Wording {
    pub(super) load: Load,
    pub(super) dialect: Dialect,
}

/// Returns calls of one script with their wordings. Only the first call may have to carry the script's text.
pub(super) fn with_wordings<C>(
    calls: impl IntoIterator<Item = C>,
    first: Load,
    dialect: Dialect,
) -> impl Iterator<Item = (C, Wording)> {
    let loads = iter::once(first).chain(iter::repeat(Load::Digest));
    calls.into_iter().zip(loads.map(move |load| Wording { load, dialect }))
}

impl Connection {
    pub(in crate::net) async fn ask(&self, request: Request<'_>) -> Result<Value, RedisError> {
        self.wire.ask(|bytes| request.encode(bytes)).await
    }

    /// Sends requests with one write. Returns one answer for each request, in order.
    pub(super) async fn ask_all(&self, requests: &[Request<'_>]) -> Result<Vec<Value>, RedisError> {
        let encode = |bytes: &mut Vec<u8>| requests.iter().for_each(|request| request.encode(bytes));
        self.wire.ask_all(Of::Questions, requests.len(), encode).await
    }

    /// Sends commands that subscribe or unsubscribe, with one write. Returns a confirmation or a refusal for each
    /// command, in order.
    pub(in crate::net) async fn subscribe_all(&self, commands: &[Cmd]) -> Result<Vec<Value>, RedisError> {
        let encode = |bytes: &mut Vec<u8>| {
            commands.iter().for_each(|command| Request::Command(command).encode(bytes));
        };
        self.wire.ask_all(Of::Subscriptions, commands.len(), encode).await
    }

    /// Sends requests and one last request with one write, because two writes would wake the server and its replicas
    /// twice. The answers to the requests are available before the answer to the last request.
    pub(super) fn ask_all_then<'a>(&'a self, requests: &[Request<'_>], last: &Cmd) -> AllAndLast<'a> {
        let encode = |bytes: &mut Vec<u8>| {
            requests.iter().for_each(|request| request.encode(bytes));
            Request::Command(last).encode(bytes);
        };
        self.wire.ask_all_then(requests.len(), encode)
    }
}

impl Request<'_> {
    /// Appends the request to `bytes`, in RESP.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Call { call, wording, not_after } => encode_call(bytes, call, *wording, *not_after),
            Self::Command(command) => bytes.extend_from_slice(&command.get_packed_command()),
        }
    }
}

fn encode_call(bytes: &mut Vec<u8>, call: &Call, wording: Wording, not_after: ServerTime) {
    let expires = call.expiry == Expiry::ResponseTimeout;
    // Two parts name the script, and one part is the number of keys.
    head(bytes, b'*', call.parts + 3 + usize::from(expires));
    let Wording { load, dialect } = wording;
    match load {
        Load::Digest => bytes.extend_from_slice(call.script.call_start(dialect).as_bytes()),
        Load::Text => ["EVAL", call.script.text(dialect)].iter().for_each(|word| part(bytes, word.as_bytes())),
    }
    part(bytes, Digits::of(call.keys as u64).as_bytes());
    let (keys, args) = call.encoded_parts();
    bytes.extend_from_slice(keys);
    if expires {
        part(bytes, Digits::of(not_after.as_millis_up()).as_bytes());
    }
    bytes.extend_from_slice(args);
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../../testing/unit/net/node/connection.rs"]
mod tests;
