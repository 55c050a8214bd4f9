//! Abilities of a server, by its own answers. A name or a version says less: forks and builds differ.

use crate::{Node, Reply, Result};

impl Node {
    /// Returns true if the server has a command, by `COMMAND INFO`. The name of a subcommand is like
    /// `cluster|migrateslots`; servers before Redis 7.0 know no such names.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::command`](crate::Client::command), or [`Error::Refused`](crate::Error::Refused).
    pub fn has_command(&self, name: &str) -> Result<bool> {
        let reply = self.ask(&["COMMAND", "INFO", name])?;
        Ok(reply.array().and_then(<[Reply]>::first).is_some_and(|entry| !entry.is_nil()))
    }

    /// Returns true if a command takes an argument with this token, such as `TIMEOUT`, by `COMMAND DOCS`. Servers before
    /// Redis 7.0 do not have this command.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::command`](crate::Client::command), or [`Error::Refused`](crate::Error::Refused).
    pub fn has_argument(&self, command: &str, token: &str) -> Result<bool> {
        let reply = self.ask(&["COMMAND", "DOCS", command])?;
        Ok(has_token(&reply, token))
    }
}

/// Looks for `token` in the nested lists of arguments, where its name stands before it.
fn has_token(reply: &Reply, token: &str) -> bool {
    let is = |reply: &Reply, text: &str| reply.text().is_some_and(|found| found == text);
    let parts = reply.array().unwrap_or_default();
    parts.windows(2).any(|pair| is(&pair[0], "token") && is(&pair[1], token))
        || parts.iter().any(|part| has_token(part, token))
}
