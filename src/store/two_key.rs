//! Two-key scheme. Each lock has a read key and a write key on one node. The folder `lua/` has the scripts.

use std::sync::Arc;

use crate::net::{Router, Script};
use crate::store::lua::{LuaScheme, ScriptQueue, Scripts};
use crate::store::scripts::two_key;

static SCRIPTS: Scripts = Scripts {
    acquire: Script::new(two_key::ACQUIRE),
    leave: Script::new(two_key::LEAVE),
    convert: Script::new(two_key::CONVERT),
    renew: Script::new(two_key::RENEW),
    inspect: Script::new(two_key::INSPECT),
    force: Script::new(two_key::FORCE),
    used: None,
    note: None,
    key_parts: &["read", "write"],
};

pub(crate) fn scheme(router: Arc<Router>) -> LuaScheme {
    LuaScheme::new(&SCRIPTS, router, ScriptQueue::Beside)
}
