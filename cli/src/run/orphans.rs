//! Reaps ended processes that only process 1 waits for, which is this process in a container without an init.

use std::process;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::others;

#[derive(Debug, Default)]
pub(super) struct Orphans {
    /// Children that other tasks wait for.
    awaited: Vec<Pid>,
}

impl Orphans {
    pub(super) fn leave(&mut self, child: Pid) {
        self.awaited.push(child);
    }

    /// Reaps the ended ones, which would stay as zombies and fill the table of processes.
    pub(super) fn reap(&self) {
        const INIT: u32 = 1;
        if process::id() != INIT {
            return;
        }
        for orphan in others::zombies_of(INIT).into_iter().filter(|child| !self.awaited.contains(child)) {
            // No task needs its status.
            waitid(WaitId::Pid(orphan), WaitIdOptions::EXITED | WaitIdOptions::NOHANG).ok();
        }
    }
}
