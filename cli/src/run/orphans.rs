//! Reaps orphans, which are processes without a living parent. The kernel makes process 1 their parent. In a container
//! without an init, `run` is process 1.

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

    /// Reaps the orphans that have ended. Otherwise they would stay as zombies and fill the process table.
    pub(super) fn reap(&self) {
        const INIT: u32 = 1;
        if process::id() != INIT {
            return;
        }
        for orphan in others::zombies_of(INIT).into_iter().filter(|child| !self.awaited.contains(child)) {
            // No task needs the exit status of an orphan.
            waitid(WaitId::Pid(orphan), WaitIdOptions::EXITED | WaitIdOptions::NOHANG).ok();
        }
    }
}
