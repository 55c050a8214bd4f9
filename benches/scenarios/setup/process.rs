//! Processor time, memory and wake-ups of processes and their threads.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the processor time that this process has used, in user mode and in the kernel.
pub(crate) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().expect("positive"), time.tv_nsec.try_into().expect("positive"))
}

/// Returns the same without the threads of proxies, which stand for the network.
pub(crate) fn client_time() -> Duration {
    processor_time().saturating_sub(own_threads("proxy ").filter_map(|thread| ran(&thread)).sum())
}

/// Returns the processor time of the live threads of a process.
pub(crate) fn time_of_threads(pid: u32) -> Duration {
    threads(&pid.to_string()).filter_map(|thread| ran(&thread)).sum()
}

/// Returns the processor time of the main thread of a process.
pub(crate) fn time_of(pid: u32) -> Duration {
    ran(Path::new(&format!("/proc/{pid}"))).expect("it lives")
}

/// Returns the memory of this process that is in use.
pub(crate) fn resident_bytes() -> u64 {
    status(Path::new("/proc/self"), "VmRSS:").expect("Linux") * 1024
}

/// Returns the most memory that this process has used at the same time.
pub(crate) fn peak_bytes() -> u64 {
    status(Path::new("/proc/self"), "VmHWM:").expect("Linux") * 1024
}

/// Returns the memory of a process that is in use.
pub(crate) fn resident_bytes_of(pid: u32) -> u64 {
    status(Path::new(&format!("/proc/{pid}")), "VmRSS:").expect("it lives") * 1024
}

/// Returns how often threads of this process whose names begin so have been woken.
pub(crate) fn wake_ups(prefix: &str) -> u64 {
    own_threads(prefix).filter_map(|thread| sleeps(&thread)).sum()
}

/// Returns how often the main thread of a process has been woken.
pub(crate) fn wake_ups_of(pid: u32) -> u64 {
    sleeps(Path::new(&format!("/proc/{pid}"))).expect("it lives")
}

/// Folders of the threads of a process. A thread may end meanwhile, so what is read of it is optional.
fn threads(pid: &str) -> impl Iterator<Item = PathBuf> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a live process on Linux");
    tasks.filter_map(|task| Some(task.ok()?.path()))
}

/// Threads of this process whose names begin so.
fn own_threads(prefix: &str) -> impl Iterator<Item = PathBuf> {
    let is_meant =
        move |thread: &PathBuf| fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.starts_with(prefix));
    threads("self").filter(is_meant)
}

fn ran(thread: &Path) -> Option<Duration> {
    let text = fs::read_to_string(thread.join("schedstat")).ok()?;
    text.split(' ').next()?.parse().map(Duration::from_nanos).ok()
}

/// A thread goes to sleep when it has nothing to do, and is woken as often.
fn sleeps(thread: &Path) -> Option<u64> {
    status(thread, "voluntary_ctxt_switches:")
}

fn status(thread: &Path, field: &str) -> Option<u64> {
    let text = fs::read_to_string(thread.join("status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}
