//! Other processes, as the system lists them.

use std::fs;

use rustix::process::{self, Pid};

/// Returns whether the group has a running process outside of `known`; `None` where the system does not list processes.
pub(super) fn are_in(group: Pid, known: &[Pid]) -> Option<bool> {
    let group = group.as_raw_nonzero().get();
    let mut all = stats()?.peekable();
    all.peek()?;
    Some(all.any(|stat| stat.group == group && stat.runs() && !known.contains(&stat.pid)))
}

/// Returns the process group of this process. Returns `None` if the group is in another namespace, as for process 1
/// below `unshare --pid`.
pub(super) fn own_group() -> Option<Pid> {
    match fs::read_to_string("/proc/self/stat") {
        Ok(stat) => Pid::from_raw(Stat::parse(process::getpid(), &stat)?.group),
        // On a system without namespaces, each process sees its group.
        Err(_) => (!cfg!(target_os = "linux")).then(process::getpgrp),
    }
}

/// Returns the children of a process that have ended and were not reaped.
pub(super) fn zombies_of(parent: u32) -> Vec<Pid> {
    let all = stats().into_iter().flatten();
    all.filter(|stat| stat.parent == parent && stat.state == 'Z').map(|stat| stat.pid).collect()
}

struct Stat {
    pid: Pid,
    state: char,
    parent: u32,
    group: i32,
}

/// Reads the states of all processes; `None` or an empty list where the system does not list them.
fn stats() -> Option<impl Iterator<Item = Stat>> {
    let entries = fs::read_dir("/proc").ok()?;
    Some(entries.flatten().filter_map(|entry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        // The process may have ended meanwhile.
        Stat::parse(pid, &fs::read_to_string(entry.path().join("stat")).ok()?)
    }))
}

impl Stat {
    /// Parses `pid (name) state parent group …`, where the name may contain any character.
    fn parse(pid: Pid, stat: &str) -> Option<Self> {
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let state = fields.next()?.chars().next()?;
        Some(Self { pid, state, parent: fields.next()?.parse().ok()?, group: fields.next()?.parse().ok()? })
    }

    fn runs(&self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }
}
