//! Dedicated connections for calls that may take long. Each connection carries one call at a time. Each runtime has at
//! most [`MAX_APART`] of them to one node.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::runtime::{Handle, Id};
use tokio::sync::Semaphore;

use super::connections::{OpenConnection, Sharing};
use super::{Admission, CallAnswer, Node};
use crate::net::Call;
use crate::net::fault::Fault;

/// Limit for the dedicated connections of one runtime to one node.
pub(super) const MAX_APART: usize = 4;

/// Dedicated connections of all runtimes to one node. Each runtime has its own connections, so a runtime that stands
/// still cannot block the connections of another runtime.
#[derive(Default)]
pub(super) struct Apart {
    of: Mutex<Vec<(Id, Arc<FewConnections>)>>,
}

/// Dedicated connections of one runtime to one node.
struct FewConnections {
    places: Semaphore,
    idle: Mutex<Vec<Arc<OpenConnection>>>,
}

impl Apart {
    /// Returns the connections of this runtime. If this runtime has none yet, first removes the entries of runtimes
    /// that use no connection now, because those runtimes may have ended.
    fn of_this_runtime(&self) -> Arc<FewConnections> {
        let runtime = Handle::current().id();
        let mut of = self.of.lock();
        if let Some((_, few)) = of.iter().find(|(of, _)| *of == runtime) {
            return Arc::clone(few);
        }
        of.retain(|(_, few)| few.places.available_permits() < MAX_APART);
        let few = Arc::new(FewConnections { places: Semaphore::new(MAX_APART), idle: Mutex::default() });
        of.push((runtime, Arc::clone(&few)));
        few
    }
}

impl FewConnections {
    fn idle(&self) -> Option<Arc<OpenConnection>> {
        let mut idle = self.idle.lock();
        idle.retain(|live| live.is_open());
        idle.pop()
    }

    fn put_back(&self, live: Arc<OpenConnection>) {
        if live.is_open() {
            self.idle.lock().push(live);
        }
    }

    /// Closes the connections that carry no call now.
    fn forget_idle(&self) {
        let idle = std::mem::take(&mut *self.idle.lock());
        drop(idle);
    }
}

impl Node {
    /// Sends one call on a connection that carries no other call at that time. If the returned future is dropped before
    /// it ends, the connection is closed.
    pub(in crate::net) async fn call_apart(&self, call: &Call) -> CallAnswer {
        self.wait_for_answer().await?;
        // If this process cannot connect to the node, the call fails here, before it waits for a free connection.
        self.connections.live().await?;
        let few = self.apart.of_this_runtime();
        let place = tokio::time::timeout(self.limits.response_timeout * 2, few.places.acquire()).await;
        let Ok(Ok(_place)) = place else {
            let late = format!("all {MAX_APART} connections for looks are in use");
            return Err(Fault::unsent(late));
        };
        let live = match few.idle() {
            Some(live) => live,
            None => self.connections.dial(Sharing::Apart).await?,
        };
        let answer = self.send_or_load(&live, call, Admission::Owner).await;
        match answer {
            // If this connection got no answer, the other idle connections may be dead as well. They are closed,
            // because each dead connection would cost a later call one response timeout.
            // Or the login of this connection may have ended, and then that of the others as well.
            Err(Fault::Unknown { .. } | Fault::Again(_)) => few.forget_idle(),
            _ => few.put_back(live),
        }
        answer
    }
}
