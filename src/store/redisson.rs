//! Scheme of Redisson's read-write lock. Clients of Redisson (Java) and managers of this crate exclude each other on the
//! same keys. `lua/redisson/` has the scripts, and `lua/README.md` the layout.
//!
//! Each acquisition has a field of its own in the lock's hash: its id and `:1`, where Redisson has the id of a client and a
//! thread. So a repeated request finds the hold of the first one again, and a repeated release ends no other hold.
//!
//! The format has no queue and no recalls. A waiter subscribes to the channel of Redisson, and asks again when a message
//! comes. Tokens are in a sorted set beside the lock, which clients of Redisson do not know.

mod limits;
pub(super) mod names;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::limits::adapt;
pub(super) use self::names::Names;
use crate::net::{Router, Script};
use crate::store::Ability;
use crate::store::lua::{LuaScheme, ScriptQueue, Scripts, scripts_of};
use crate::store::scripts::redisson;

static SCRIPTS: Scripts = scripts_of!(redisson { used: None, note: None, key_parts: &[] });

/// Creates the scheme that shares its locks with clients of Redisson. `longest_lease` is the longest time for which a
/// manager relies on an answer of the server.
pub(crate) fn scheme(router: Arc<Router>, longest_lease: Duration) -> LuaScheme {
    LuaScheme::new(&SCRIPTS, router, ScriptQueue::Nowhere { longest_lease })
}

/// Returns the reason for which the format lacks an ability.
pub(super) fn reason_to_lack(ability: Ability) -> &'static str {
    match ability {
        Ability::Rests => {
            "the format of Redisson has no place for a lock that is taken without a holder: use `RedisManager`"
        }
        Ability::Waiters => {
            "the format of Redisson records no waiters, so a manager cannot see which process waits for which: use `RedisManager`"
        }
        Ability::Tickets => {
            "a client of Redisson could not tell a detached hold from one that its holder renews: use `RedisManager`"
        }
    }
}
