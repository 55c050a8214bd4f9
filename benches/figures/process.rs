//! What this process, or a part of it, has used.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The processor time that this process has used, in user mode and in the kernel.
pub(crate) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().expect("positive"), time.tv_nsec.try_into().expect("positive"))
}

/// The same without the threads of proxies, which stand for the network.
pub(crate) fn client_time() -> Duration {
    processor_time().saturating_sub(threads().filter(Thread::is_a_proxys).map(|thread| thread.ran).sum())
}

/// The memory of this process that is in use.
pub(crate) fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line of its own");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

/// A thread of this process.
struct Thread {
    name: String,
    ran: Duration,
    /// How often it went to sleep because it had nothing to do, which is how often it was woken.
    sleeps: u64,
}

impl Thread {
    fn is_a_proxys(&self) -> bool {
        self.name.starts_with("proxy ")
    }
}

/// How often threads of this process whose names begin so have been woken.
pub(crate) fn wake_ups(name: &str) -> u64 {
    threads().filter(|thread| thread.name.starts_with(name)).map(|thread| thread.sleeps).sum()
}

/// How often the main thread of a process went to sleep because it had nothing to do, which is how often it was woken.
pub(crate) fn sleeps_of(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line =
        status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).expect("a line of its own");
    line.trim().parse().expect("a number")
}

/// The processor time that the main thread of a process has used.
pub(crate) fn time_of(pid: u32) -> Duration {
    ran(Path::new(&format!("/proc/{pid}"))).expect("it lives")
}

/// How long the thread with this folder has run, if it lives.
pub(super) fn ran(task: &Path) -> Option<Duration> {
    let text = fs::read_to_string(task.join("schedstat")).ok()?;
    text.split(' ').next()?.parse().map(Duration::from_nanos).ok()
}

fn threads() -> impl Iterator<Item = Thread> {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux");
    tasks.filter_map(|task| {
        let path = task.ok()?.path();
        // A thread may end meanwhile.
        let read = |file| fs::read_to_string(path.join(file)).ok();
        let name = read("comm")?.trim_end().to_owned();
        let ran = ran(&path)?;
        let status = read("status")?;
        let sleeps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        Some(Thread { name, ran, sleeps: sleeps.trim().parse().ok()? })
    })
}
