//! Lock servers of dsync: processes of the program in Go, which keep locks in their memory.

use super::*;
use crate::process::PATIENCE;

pub(crate) struct LockServer {
    process: Worker,
}

/// Calls that a lock server has answered since its start, and the processor time for them.
#[derive(Deserialize)]
struct Used {
    calls: u64,
    cpu_ns: u64,
}

impl LockServer {
    pub(crate) fn start() -> Self {
        let process = Worker::spawn(Program::Go.command().arg("serve")).expect("a lock server starts");
        Self { process }
    }

    pub(crate) fn address(&self) -> &str {
        &self.process.ready
    }

    /// Returns its processor time, and the number of calls that it has answered.
    pub(crate) fn used(&self) -> (Duration, u64) {
        let answer = self.process.begin().and_then(|()| self.process.line::<Used>(PATIENCE));
        let Used { calls, cpu_ns } = answer.expect("an answer");
        (Duration::from_nanos(cpu_ns), calls)
    }
}
