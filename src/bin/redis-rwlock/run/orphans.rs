//! Ended processes that nobody waits for but process 1, which is this one in a container without an init.

use std::process;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::others;

#[derive(Debug, Default)]
pub(super) struct Orphans {
    /// Children that are waited for elsewhere.
    awaited: Vec<Pid>,
}

impl Orphans {
    pub(super) fn leave(&mut self, child: Pid) {
        self.awaited.push(child);
    }

    /// Takes the ended ones away, which would stay as zombies and fill the table of processes.
    pub(super) fn reap(&self) {
        const INIT: u32 = 1;
        if process::id() != INIT {
            return;
        }
        for orphan in others::zombies_of(INIT).into_iter().filter(|child| !self.awaited.contains(child)) {
            // Its status is for nobody.
            waitid(WaitId::Pid(orphan), WaitIdOptions::EXITED | WaitIdOptions::NOHANG).ok();
        }
    }
}
