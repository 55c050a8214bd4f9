//! The hash scheme: one hash per lock, on any topology. The scripts and their safety argument are in `lua/`.

use std::sync::Arc;

use crate::options::PublishedLimits;
use crate::scheme::lua::{LuaScheme, Scripts};
use crate::transport::{Script, Transport};

static SCRIPTS: Scripts = Scripts {
    acquire: Script::new(include_str!("../../lua/hash/acquire.lua")),
    leave: Script::new(include_str!("../../lua/hash/leave.lua")),
    renew: Script::new(include_str!("../../lua/hash/renew.lua")),
    inspect: Script::new(include_str!("../../lua/hash/inspect.lua")),
    force: Script::new(include_str!("../../lua/hash/force.lua")),
    key_parts: &["lock"],
    wake_part: None,
};

pub(crate) fn scheme(transport: Arc<dyn Transport>, limits: PublishedLimits) -> LuaScheme {
    let limits = [limits.read, limits.write];
    let limits = limits.map(|limit| limit.as_millis().to_string());
    LuaScheme::new(&SCRIPTS, transport, limits.into())
}
