//! The hash scheme: one hash per lock, on any topology. The scripts and their safety argument are in `lua/`.

use std::sync::Arc;

use crate::options::PublishedLimits;
use crate::scheme::lua::{LuaScheme, Scripts, Waiting};
use crate::scheme::scripts::hash;
use crate::transport::{Script, Transport};

static SCRIPTS: Scripts = Scripts {
    acquire: Script::new(hash::ACQUIRE),
    leave: Script::new(hash::LEAVE),
    turn: Script::new(hash::TURN),
    renew: Script::new(hash::RENEW),
    inspect: Script::new(hash::INSPECT),
    force: Script::new(hash::FORCE),
    key_parts: &["lock"],
};

pub(crate) fn scheme(transport: Arc<dyn Transport>, limits: PublishedLimits) -> LuaScheme {
    let limits = [limits.read, limits.write].map(|limit| limit.as_millis().to_string());
    LuaScheme::new(&SCRIPTS, transport, Waiting::InTheLock { limits })
}
