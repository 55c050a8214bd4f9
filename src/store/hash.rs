//! Hash scheme. Each lock is one hash, on any topology. The folder `lua/` has the scripts, and `docs/PROTOCOL.md`
//! explains why they are safe.

use std::sync::Arc;

use crate::base::options::TimestampClients;
use crate::net::{Router, Script};
use crate::store::lua::{LuaScheme, ScriptQueue, Scripts, scripts_of};
use crate::store::scripts::hash;

static SCRIPTS: Scripts = scripts_of!(hash {
    used: Some(Script::new(hash::USED)),
    note: Some(Script::new(hash::NOTE)),
    key_parts: &["lock"],
});

pub(crate) fn scheme(router: Arc<Router>, limits: TimestampClients) -> LuaScheme {
    scheme_of(&SCRIPTS, router, limits)
}

/// Builds the scheme with these scripts.
pub(crate) fn scheme_of(scripts: &'static Scripts, router: Arc<Router>, limits: TimestampClients) -> LuaScheme {
    let limits = format!("{} {}", limits.read.as_millis(), limits.write.as_millis());
    LuaScheme::new(scripts, router, ScriptQueue::InTheLock { limits })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn rights_name_each_command_that_scripts_cannot_do_without() {
        let text = "local call = redis.call call('TIME') redis.call('HGET', k) redis.pcall('SPUBLISH', c)";
        assert_eq!(Script::new(text).commands().collect::<Vec<_>>(), ["TIME", "HGET"]);
        let commands = ["HDEL", "HGET", "HMGET", "HSET", "PEXPIREAT", "TIME"];
        assert_eq!(SCRIPTS.commands(), BTreeSet::from(commands));
    }
}
