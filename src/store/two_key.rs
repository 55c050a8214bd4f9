//! Two-key scheme. Each lock has a read key and a write key on one node. The folder `lua/` has the scripts.

use std::sync::Arc;

use crate::net::{Router, Script};
use crate::store::lua::{LuaScheme, ScriptQueue, Scripts, scripts_of};
use crate::store::scripts::two_key;

static SCRIPTS: Scripts = scripts_of!(two_key { used: None, note: None, key_parts: &["read", "write"] });

pub(crate) fn scheme(router: Arc<Router>) -> LuaScheme {
    LuaScheme::new(&SCRIPTS, router, ScriptQueue::Beside)
}
