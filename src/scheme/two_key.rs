//! The two-key scheme: a read key and a write key per lock, on one node. The scripts are in `lua/`.

use std::sync::Arc;

use crate::scheme::lua::{LuaScheme, Scripts};
use crate::transport::{Script, Transport};

static SCRIPTS: Scripts = Scripts {
    acquire: Script::new(include_str!("../../lua/two_key/acquire.lua")),
    leave: Script::new(include_str!("../../lua/two_key/leave.lua")),
    renew: Script::new(include_str!("../../lua/two_key/renew.lua")),
    inspect: Script::new(include_str!("../../lua/two_key/inspect.lua")),
    force: Script::new(include_str!("../../lua/two_key/force.lua")),
    key_parts: &["read", "write"],
    wake_part: Some("wake"),
};

pub(crate) fn scheme(transport: Arc<dyn Transport>) -> LuaScheme {
    LuaScheme::new(&SCRIPTS, transport, Vec::new())
}
